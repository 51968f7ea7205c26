package main

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/daemon/status"
)

// TestInUse: who asks to release what is on an endpoint or on a loopback of the router that runs here is told which, and of what isn't,
// and of other routers, what can be known.
func TestInUse(t *testing.T) {
	d := &desk{places: &places{socket: filepath.Join(t.TempDir(), "s")}}
	const stranger = " still runs can't be seen from here; if it does, it goes on using "
	says := func(router, value, want string) {
		t.Helper()
		if diff := cmp.Diff([]string{want}, d.inUse(t.Context(), []string{router}, value)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	says("leaf1", "10.254.0.1", "whether leaf1"+stranger+"10.254.0.1 while another can get it")

	l, err := status.Listen(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	board := &status.Board{}
	board.Update(func(s *status.Snapshot) {
		s.Node = "leaf1"
		s.Endpoints = []status.Endpoint{{Name: "vtep0", Address: netip.MustParseAddr("10.255.0.1")}}
		s.Loopbacks = []status.Loopback{{
			Name: "lo0", Addresses: []netip.Addr{netip.MustParseAddr("10.254.0.1"), netip.MustParseAddr("2001:db8::1")},
		}}
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- board.Serve(ctx, l) }()
	const live = "leaf1 is live: vtepd runs here"
	says("leaf1", "10.255.0.1", live+" and has 10.255.0.1 on endpoint vtep0, and another can get it")
	says("leaf1", "10.254.0.1", live+" and has 10.254.0.1 on loopback lo0, and another can get it")
	says("leaf1", "2001:db8::1", live+" and has 2001:db8::1 on loopback lo0, and another can get it")
	says("leaf1", "10.254.0.2", live+", and 10.254.0.2 is on none of its endpoints and loopbacks now")
	says("leaf2", "10.254.0.1", "whether leaf2"+stranger+"10.254.0.1 while another can get it")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
