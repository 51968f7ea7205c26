package witness

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	ip  = netip.MustParseAddr
	pfx = netip.MustParsePrefix
)

// Two speakers on this machine's loopback network: whatever one is told to
// announce, the other has heard, and a third behind it, a client of the same
// reflector, has too, with the next hop kept.
func TestSpeakers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := func(c Config) *Witness {
		w, err := Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { w.Stop(context.Background()) })
		return w
	}
	const port = 11790
	all := []Family{IPv4, IPv6, EVPN}
	hub := start(Config{
		AS: 65000, RouterID: ip("10.0.0.100"), Listen: []netip.Addr{ip("127.0.7.100")}, Port: port,
		Peers: []Peer{
			{Addr: ip("127.0.7.1"), AS: 65000, Passive: true, Client: true, Families: all},
			{Addr: ip("127.0.7.2"), AS: 65000, Passive: true, Client: true, Families: all},
		},
	})
	leaf := func(id, local string) *Witness {
		return start(Config{
			AS: 65000, RouterID: ip(id),
			Peers: []Peer{{Addr: ip("127.0.7.100"), Port: port, Local: ip(local), AS: 65000, Families: all}},
		})
	}
	one, two := leaf("10.0.0.1", "127.0.7.1"), leaf("10.0.0.2", "127.0.7.2")
	wait := func(w *Witness, what string, match func(Event) bool) Event {
		t.Helper()
		e, err := w.Wait(ctx, match)
		if err != nil {
			t.Fatalf("%s: %v; heard %v", what, err, w.Events())
		}
		return e
	}
	for _, a := range []string{"127.0.7.1", "127.0.7.2"} {
		wait(hub, "session of "+a, func(e Event) bool { return e.Kind == Up && e.Peer == ip(a) })
	}

	routes := []Route{
		{Prefix: pfx("10.255.0.11/32"), NextHop: ip("10.0.0.1")},
		{Prefix: pfx("fd00:ff::11/128"), NextHop: ip("fd00::1")},
		{VNI: 16777215, NextHop: ip("10.255.0.11"), RD: "10.0.0.1:7"},
	}
	want := []Event{
		{Kind: Announce, Family: IPv4, Route: "10.255.0.11/32", Prefix: routes[0].Prefix, NextHop: routes[0].NextHop},
		{Kind: Announce, Family: IPv6, Route: "fd00:ff::11/128", Prefix: routes[1].Prefix, NextHop: routes[1].NextHop},
		{Kind: Announce, Family: EVPN, Type: 3, RD: "10.0.0.1:7", VNI: 16777215, IP: ip("10.255.0.11"), NextHop: ip("10.255.0.11")},
	}
	opts := cmp.Options{
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.IgnoreFields(Event{}, "Time", "Peer"),
		cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Route" }, cmp.Comparer(func(a, b string) bool {
			return a == b || a == "" || b == "" // EVPN's is GoBGP's own text
		})),
	}
	for i, r := range routes {
		before := time.Now()
		if err := one.Announce(ctx, r); err != nil {
			t.Fatalf("Announce(%+v): %v", r, err)
		}
		for _, w := range []*Witness{hub, two} {
			got := wait(w, "announcement", func(e Event) bool { return e.Kind == Announce && e.Family == want[i].Family })
			if d := cmp.Diff(want[i], got, opts); d != "" {
				t.Errorf("heard (-want +got):\n%s", d)
			}
			if got.Time.Before(before) || got.Time.After(time.Now()) {
				t.Errorf("%v: at %v, announced at %v", got, got.Time, before)
			}
		}
	}
	if got := Current(two.Events()); len(got) != len(routes) {
		t.Errorf("two has %v", got)
	}
	for i, r := range routes {
		if err := one.Withdraw(ctx, r); err != nil {
			t.Fatalf("Withdraw(%+v): %v", r, err)
		}
		want[i].Kind = Withdraw
		got := wait(two, "withdrawal", func(e Event) bool { return e.Kind == Withdraw && e.Family == want[i].Family })
		if d := cmp.Diff(want[i], got, opts); d != "" {
			t.Errorf("heard (-want +got):\n%s", d)
		}
		best, err := hub.Best.Wait(ctx, func(e Event) bool { return e.Kind == Withdraw && e.Family == want[i].Family })
		if d := cmp.Diff(want[i], best, opts); d != "" || err != nil {
			t.Errorf("no longer best (-want +got): %v\n%s", err, d)
		}
	}
	if got := Current(two.Events()); len(got) != 0 {
		t.Errorf("two still has %v", got)
	}
	if err := one.Announce(ctx, routes[0]); err != nil {
		t.Fatal(err)
	}
	mark := hub.Len()
	one.Stop(ctx)
	if _, err := hub.WaitSince(ctx, mark, func(e Event) bool { return e.Kind == Down && e.Peer == ip("127.0.7.1") }); err != nil {
		t.Fatalf("end of the session: %v", err)
	}
	for _, e := range hub.Events() {
		if (e.Kind == Announce || e.Kind == Withdraw) && e.Peer != ip("127.0.7.1") {
			t.Errorf("hub heard %v; nobody else was told to announce", e)
		}
	}
}

func TestRefused(t *testing.T) {
	tests := []struct {
		c    Config
		want string
	}{
		{Config{AS: 1}, "router id invalid IP: an IPv4 address is wanted"},
		{Config{AS: 1, RouterID: ip("::1")}, "router id ::1: an IPv4 address is wanted"},
		{
			Config{AS: 1, RouterID: ip("1.1.1.1"), Peers: []Peer{{Addr: ip("10.0.0.1"), Local: ip("127.0.0.1")}}},
			"peer 10.0.0.1: FRR takes no session from 127.0.0.1",
		},
	}
	for _, tt := range tests {
		if _, err := Start(t.Context(), tt.c); err == nil || err.Error() != tt.want {
			t.Errorf("Start(%+v): %v, want %s", tt.c, err, tt.want)
		}
	}
	routes := []struct {
		r    Route
		want string
	}{
		{Route{}, "a route without next hop"},
		{Route{NextHop: ip("10.0.0.1")}, "a route without prefix or VNI"},
		{Route{NextHop: ip("fd00::1"), VNI: 7}, "vni 7: an endpoint fd00::1 needs a route distinguisher"},
	}
	for _, tt := range routes {
		if _, err := tt.r.api(); err == nil || err.Error() != tt.want {
			t.Errorf("route %+v: %v, want %s", tt.r, err, tt.want)
		}
	}
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		l.Append(Event{Kind: Up, Peer: ip("10.0.0.1")})
		isDown := func(e Event) bool { return e.Kind == Down }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Wait(ctx, isDown); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait for what never comes: %v", err)
		}
		done := make(chan Event)
		go func() {
			e, _ := l.Wait(t.Context(), isDown)
			done <- e
		}()
		synctest.Wait()
		want := Event{Kind: Down, Peer: ip("10.0.0.2")}
		l.Append(want)
		if got := <-done; got != want {
			t.Errorf("Wait = %v, want %v", got, want)
		}
		if got := l.Since(1); len(got) != 1 || got[0] != want {
			t.Errorf("Since(1) = %v", got)
		}
		if got := l.Since(5); len(got) != 0 {
			t.Errorf("Since(5) = %v", got)
		}
	})
}

// What one process writes, another reads.
func TestLines(t *testing.T) {
	want := []Event{
		{Time: time.Unix(1, 123456789).UTC(), Kind: Up, Peer: ip("10.0.0.1")},
		{Time: time.Unix(2, 1).UTC(), Kind: Announce, Peer: ip("10.0.0.1"), Family: IPv4, Route: "10.0.0.9/32", Prefix: pfx("10.0.0.9/32"), NextHop: ip("10.0.0.1")},
		{Time: time.Unix(3, 0).UTC(), Kind: Announce, Peer: ip("fd00::1"), Family: EVPN, Type: 2, RD: "1:1", VNI: 7, Tag: 1, ESI: "00", MAC: "02:00:00:00:00:01", IP: ip("fd00::9")},
	}
	l := NewLog()
	for _, e := range want {
		l.Append(e)
	}
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer w.Close()
		l.WriteJSON(ctx, w)
	}()
	got := NewLog()
	read := make(chan error)
	go func() { read <- got.ReadJSON(r) }()
	if _, err := got.Wait(t.Context(), func(e Event) bool { return e.Type == 2 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff(want, got.Events(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Errorf("read (-want +got):\n%s", d)
	}
	if err := NewLog().ReadJSON(strings.NewReader("{")); err == nil {
		t.Error("half a line is no error")
	}
	l.Append(Event{})
	if err := l.WriteJSON(t.Context(), failing{}); err == nil || err.Error() != "full" {
		t.Errorf("WriteJSON a full disk: %v", err)
	}
}

type failing struct{ bytes.Buffer }

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

func TestCurrent(t *testing.T) {
	a := Event{Kind: Announce, Peer: ip("10.0.0.2"), Family: IPv4, Route: "a"}
	b := Event{Kind: Announce, Peer: ip("10.0.0.1"), Family: IPv4, Route: "b"}
	moved := a
	moved.NextHop = ip("10.0.0.9")
	gone := a
	gone.Kind = Withdraw
	down := Event{Kind: Down, Peer: b.Peer}
	tests := []struct {
		name         string
		events, want []Event
	}{
		{"none", nil, nil},
		{"sorted", []Event{a, b}, []Event{b, a}},
		{"the last one counts", []Event{a, moved}, []Event{moved}},
		{"withdrawn", []Event{a, b, gone}, []Event{b}},
		{"withdrawn and back", []Event{a, gone, a}, []Event{a}},
		{"session ended", []Event{a, b, down}, []Event{a}},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, Current(tt.events), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestString(t *testing.T) {
	tests := []struct {
		e    Event
		want string
	}{
		{Event{Kind: Up, Peer: ip("10.0.0.1")}, "10.0.0.1 up"},
		{Event{Kind: EndOfRIB, Peer: ip("10.0.0.1"), Family: EVPN}, "10.0.0.1 eor evpn"},
		{Event{Kind: Announce, Peer: ip("10.0.0.1"), Route: "10.0.0.9/32", NextHop: ip("10.0.0.1")}, "10.0.0.1 announce 10.0.0.9/32 via 10.0.0.1"},
		{
			Event{Kind: Withdraw, Peer: ip("10.0.0.1"), Type: 2, RD: "1:1", VNI: 7, MAC: "02:00:00:00:00:01", IP: ip("10.1.1.1")},
			"10.0.0.1 withdraw type-2 rd 1:1 vni 7 mac 02:00:00:00:00:01 ip 10.1.1.1",
		},
		{Event{Kind: Announce, Peer: ip("10.0.0.1"), Type: 5, RD: "1:1", VNI: 7, Prefix: pfx("10.0.0.0/8")}, "10.0.0.1 announce type-5 rd 1:1 vni 7 10.0.0.0/8"},
	}
	for _, tt := range tests {
		if got := tt.e.String(); got != tt.want {
			t.Errorf("String() = %q, want %q", got, tt.want)
		}
	}
}
