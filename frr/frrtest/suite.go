package frrtest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"vtepd/frr"
)

// Subject is a router for Run: freshly made, with an instance that has one neighbour, established in both unicast
// families, and no lines, no route map Mark, no EVPN and no VXLAN.
type Subject struct {
	Router   frr.Router
	Instance frr.Instance
	Peer     string
	// Address puts a host address on an interface of the router's namespace or takes it away.
	Address func(p netip.Prefix, present bool)
	// VNI makes a VXLAN in a bridge with that local address, both up; or changes the local address of the one there.
	VNI func(vni uint32, local netip.Addr)
	// Network writes a `network` line as an operator does, or takes it away.
	Network func(n frr.Network, present bool)
	// ForeignMap makes a route map Mark as an operator does, without the description, or takes it away.
	ForeignMap func(present bool)
}

// Run holds a Router to the contract of package frr. The fake and the real FRR pass it.
func Run(t *testing.T, s Subject) {
	var (
		one, two = netip.MustParsePrefix("10.255.0.1/32"), netip.MustParsePrefix("10.255.0.2/32")
		six      = netip.MustParsePrefix("2001:db8:255::1/128")
		others   = frr.Network{Prefix: netip.MustParsePrefix("10.99.0.1/32")}
		edit     = func(v frr.Verb, p ...netip.Prefix) frr.Edit {
			e := frr.Edit{Verb: v, ASN: s.Instance.ASN}
			if len(p) > 0 {
				e.Prefix = p[0]
			}
			return e
		}
		config = func() frr.Observation { return observe(t, s, frr.Query{Config: true}) }
		lines  = func() frr.Observation { return observe(t, s, frr.Query{Lines: true}) }
		route  = func(p netip.Prefix) frr.Route {
			return observe(t, s, frr.Query{Prefixes: []netip.Prefix{p}}).Routes[0]
		}
		announced = func(p netip.Prefix) func() (bool, any) {
			return func() (bool, any) {
				r := route(p)
				return r.Local && slices.Equal(r.AdvertisedTo, []string{s.Peer}), r
			}
		}
		gone = func(p netip.Prefix) func() (bool, any) {
			return func() (bool, any) {
				r := route(p)
				return !r.Local && len(r.AdvertisedTo) == 0, r
			}
		}
	)

	o := observe(t, s, frr.Query{Config: true, Sessions: true, VNIs: true, Type3: true, Prefixes: []netip.Prefix{one}})
	if o.Instance != s.Instance || o.EVPN || len(o.Networks) > 0 || o.RouteMap.Present || !o.Version.AtLeast(8, 4) ||
		len(o.VNIs) > 0 || len(o.Type3) > 0 || len(o.Sessions) != 1 || len(o.Routes) != 1 || o.Routes[0].Local {
		t.Fatalf("at first: %+v", o)
	}
	if p := o.Sessions[0]; p.Peer != s.Peer || !p.Established || !p.IPv4 || !p.IPv6 || !p.RouterID.IsValid() || !p.Local.IsValid() {
		t.Fatalf("the session: %+v", p)
	}

	// Refusals, by checks that come before any line.
	refuse(t, s, edit(frr.AddNetwork, one), nil, "network 10.255.0.1/32: route-map VTEPD must be there first: FRR accepts a network line without it and never announces it")
	another := edit(frr.AddEVPN)
	another.ASN++
	refuse(t, s, another, frr.ErrInstance, "")
	s.ForeignMap(true)
	refuse(t, s, edit(frr.AddRouteMap), frr.ErrNotOurs, "")
	refuse(t, s, edit(frr.RemoveRouteMap), frr.ErrNotOurs, "")
	refuse(t, s, edit(frr.AddNetwork, one), frr.ErrNotOurs, "")
	s.ForeignMap(false)

	// The map and two networks, one of them without its address.
	s.Network(others, true)
	s.Address(others.Prefix, true)
	s.Address(one, true)
	s.Address(six, true)
	all := []frr.Edit{edit(frr.AddRouteMap), edit(frr.AddNetwork, one), edit(frr.AddNetwork, two), edit(frr.AddNetwork, six)}
	before := lines()
	if again := lines(); again.Fingerprint != before.Fingerprint || before.Fingerprint == "" || before.Instance.ASN != s.Instance.ASN {
		t.Errorf("a look at the lines: %+v; and another: %+v", before, again)
	}
	apply(t, s, all...)
	if after := lines(); after.Fingerprint == before.Fingerprint || len(after.Networks) != len(before.Networks)+3 {
		t.Errorf("a look at the lines: %+v; after the edits: %+v", before, after)
	}
	want := []frr.Network{{Prefix: one, RouteMap: frr.Mark}, {Prefix: two, RouteMap: frr.Mark}, {Prefix: six, RouteMap: frr.Mark}, others}
	frr.SortNetworks(want)
	if o := config(); !slices.Equal(o.Networks, want) || o.RouteMap != (frr.RouteMap{Present: true, Ours: true}) {
		t.Fatalf("after the edits: %+v", o)
	}
	apply(t, s, all...)
	if o := config(); !slices.Equal(o.Networks, want) {
		t.Fatalf("twice is once: %+v", o)
	}
	eventually(t, "one is announced", announced(one))
	eventually(t, "the IPv6 one is announced", announced(six))
	eventually(t, "the operator's is announced", announced(others.Prefix))
	if r := route(two); r.Local || len(r.AdvertisedTo) > 0 {
		t.Errorf("announced without its address: %+v", r)
	}
	s.Address(two, true)
	eventually(t, "two is announced with its address", announced(two))

	// What isn't ours stays.
	refuse(t, s, edit(frr.AddNetwork, others.Prefix), frr.ErrInTheWay, "network 10.99.0.1/32: in the way: there is a line for it without a route map, not made by vtepd")
	refuse(t, s, edit(frr.RemoveNetwork, others.Prefix), frr.ErrNotOurs, "network 10.99.0.1/32: not vtepd's: the line for it has no route-map VTEPD")
	refuse(t, s, edit(frr.RemoveRouteMap), frr.ErrInTheWay, "route-map VTEPD: in the way: network 10.255.0.1/32 still uses it")

	// A refusal stops what comes after it; what came before it stays for the inverses.
	err := s.Router.Apply(t.Context(), []frr.Edit{edit(frr.RemoveNetwork, two), edit(frr.AddNetwork, others.Prefix), edit(frr.RemoveNetwork, one)})
	if !errors.Is(err, frr.ErrInTheWay) {
		t.Errorf("the second of three edits: %v", err)
	}
	eventually(t, "two is withdrawn", gone(two))
	for _, p := range []netip.Prefix{one, six, others.Prefix} {
		if ok, r := announced(p)(); !ok {
			t.Errorf("with two went %+v", r)
		}
	}

	// EVPN: VNIs are in BGP with it alone, and follow the local address of their VXLAN.
	old, moved := netip.MustParseAddr("10.255.0.1"), netip.MustParseAddr("10.255.0.2")
	s.VNI(100, old)
	s.VNI(200, old)
	if o := observe(t, s, frr.Query{Type3: true}); len(o.Type3) > 0 {
		t.Errorf("type-3 routes without EVPN: %+v", o.Type3)
	}
	apply(t, s, edit(frr.AddEVPN), edit(frr.AddEVPN))
	if !config().EVPN {
		t.Error("no EVPN")
	}
	vteps := func(hundred, twoHundred netip.Addr) func() (bool, any) {
		return func() (bool, any) {
			o := observe(t, s, frr.Query{VNIs: true, Type3: true})
			ok := len(o.VNIs) == 2 && o.VNIs[0].VNI == 100 && o.VNIs[0].Local == hundred && o.VNIs[1].VNI == 200 && o.VNIs[1].Local == twoHundred &&
				len(o.Type3) == 2
			for _, r := range o.Type3 {
				local := hundred
				if r.VNI == 200 {
					local = twoHundred
				}
				ok = ok && r.Local && r.Valid && r.Origin == local && r.NextHop == local && r.RD != ""
			}
			return ok, o
		}
	}
	eventually(t, "two VNIs", vteps(old, old))
	s.VNI(100, moved)
	eventually(t, "one of them moved", vteps(moved, old))
	apply(t, s, edit(frr.RemoveEVPN), edit(frr.RemoveEVPN))
	eventually(t, "no type-3 route", func() (bool, any) {
		o := observe(t, s, frr.Query{Config: true, Type3: true})
		return !o.EVPN && len(o.Type3) == 0, o
	})

	// All back, in one go, and once more.
	var back []frr.Edit
	for _, e := range slices.Backward(all) {
		back = append(back, e.Inverse())
	}
	apply(t, s, back...)
	apply(t, s, back...)
	if o := config(); !slices.Equal(o.Networks, []frr.Network{others}) || o.RouteMap.Present {
		t.Errorf("at last: %+v", o)
	}
	eventually(t, "one is withdrawn", gone(one))
	eventually(t, "the IPv6 one is withdrawn", gone(six))
	if ok, r := announced(others.Prefix)(); !ok {
		t.Errorf("the operator's at last: %+v", r)
	}
	if s.Router.RoundTrips() == 0 {
		t.Error("no round trips")
	}
}

func observe(t *testing.T, s Subject, q frr.Query) frr.Observation {
	t.Helper()
	o, err := s.Router.Observe(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func apply(t *testing.T, s Subject, edits ...frr.Edit) {
	t.Helper()
	if err := s.Router.Apply(t.Context(), edits); err != nil {
		t.Fatal(err)
	}
}

func refuse(t *testing.T, s Subject, e frr.Edit, is error, words string) {
	t.Helper()
	err := s.Router.Apply(t.Context(), []frr.Edit{e})
	var ee *frr.EditError
	if !errors.As(err, &ee) || ee.Edit != e || ee.Line != "" || is != nil && !errors.Is(err, is) || words != "" && err.Error() != words {
		t.Errorf("%v: %v", e, err)
	}
}

// eventually looks again until check says yes. FRR has no events to wait for; a guest takes its time.
func eventually(t *testing.T, what string, check func() (bool, any)) {
	t.Helper()
	const most = time.Minute
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(most)
	for {
		ok, last := check()
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v: %+v", what, most, last)
		}
		<-tick.C
	}
}
