package monitor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vtepd/dataplane/monitor"
	"vtepd/dataplane/netns"
)

// start runs a monitor in a namespace of the test's own.
func start(t *testing.T, buffer int) (*monitor.Monitor, *netlink.Handle) {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(vns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	m, err := monitor.Open(monitor.Options{Netns: ns, ReadBuffer: buffer})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return m, h
}

func hint(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("no hint")
	}
}

func TestEachKindOfNewsIsAHint(t *testing.T) {
	m, h := start(t, 0)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := h.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	hint(t, m.C)
	for _, a := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		p, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.AddrAdd(br, p); err != nil {
			t.Fatal(err)
		}
		hint(t, m.C)
	}
	if err := h.LinkDel(br); err != nil {
		t.Fatal(err)
	}
	hint(t, m.C)
}

// TestOverrun looks after every hint, as the daemon does, while 10,000 changes go through a buffer that holds a handful:
// the last look must see the last change.
func TestOverrun(t *testing.T) {
	m, h := start(t, 1)
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := h.LinkAdd(br); err != nil {
		t.Fatal(err)
	}
	// The kernel says nothing about a new alias of a link that is down (netdev_state_change).
	if err := h.LinkSetUp(br); err != nil {
		t.Fatal(err)
	}
	const changes = 10_000
	last := fmt.Sprint("n", changes)
	failed := make(chan error, 1)
	go func() {
		for i := 1; i <= changes; i++ {
			if err := h.LinkSetAlias(br, fmt.Sprint("n", i)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	looks := 0
	for seen := ""; seen != last; looks++ {
		hint(t, m.C)
		l, err := h.LinkByName("br0")
		if err != nil {
			t.Fatal(err)
		}
		seen = l.Attrs().Alias
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if m.Overruns() == 0 {
		t.Errorf("no overrun in %d looks: the buffer isn't small", looks)
	}
	t.Logf("%d changes, %d looks, %d overruns", changes, looks, m.Overruns())
}

func TestCloseWithoutRun(t *testing.T) {
	m, err := monitor.Open(monitor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Run(t.Context()); err == nil || err.Error() != "monitor is closed" {
		t.Errorf("Run: %v", err)
	}
}
