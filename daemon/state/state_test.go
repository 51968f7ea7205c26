package state_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"vtepd/alloc"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

var values = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func full() state.State {
	return state.State{
		Claims: []state.Claim{{Name: "r1/endpoint/a", Pool: "p", Value: "10.0.0.1"}, {Name: "r1/endpoint/b", Pool: "p", Value: "10.0.0.2"}},
		Links: []dataplane.Link{
			{Name: "a-12345", Kind: dataplane.IPVLAN, Owner: "endpoint/a", Up: true, Parent: "eth1", Mode: "l3", Addrs: []netip.Prefix{prefix("10.0.0.1/32")}},
			{Name: "b-12345", Kind: dataplane.Dummy, Owner: "endpoint/b", Up: true, Addrs: []netip.Prefix{prefix("10.0.0.2/32")}},
			{Name: "br100", Kind: dataplane.Bridge, Owner: "bridge/br100", Up: true},
			{
				Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100", Up: true, MTU: 1450, Master: "br100", VNI: 100, Port: 4789,
				Local: netip.MustParseAddr("10.0.0.1"), NeighSuppress: true,
			},
		},
		EVPN:   true,
		Routes: []netip.Prefix{prefix("10.0.0.1/32"), prefix("10.0.0.2/32")},
	}
}

// TestNormal: one value for all orders, groups and MTUs that the kernel chose; what it is made from stays as it is.
func TestNormal(t *testing.T) {
	want := full()
	rapid.Check(t, func(t *rapid.T) {
		s := full()
		s.Claims = rapid.Permutation(s.Claims).Draw(t, "claims")
		s.Links = rapid.Permutation(s.Links).Draw(t, "links")
		s.Routes = append(rapid.Permutation(s.Routes).Draw(t, "routes"), s.Routes[0])
		for i := range s.Links {
			s.Links[i].Group = rapid.Uint32().Draw(t, "group")
			if s.Links[i].Kind != dataplane.VXLAN {
				s.Links[i].MTU = 1500
			}
		}
		kept := slices.Clone(s.Links)
		if diff := cmp.Diff(want, s.Normal(), values); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
		if s.Hash() != want.Hash() {
			t.Fatal("the fingerprint depends on more than what is compared")
		}
		if d := state.Diff(s, want); len(d) > 0 {
			t.Fatalf("%v", d)
		}
		if diff := cmp.Diff(kept, s.Links, values); diff != "" {
			t.Fatalf("Normal changed its receiver:\n%s", diff)
		}
	})
	if other := (state.State{}); other.Hash() == want.Hash() {
		t.Error("two states, one fingerprint")
	}
}

func TestDiff(t *testing.T) {
	link := func(s *state.State, name string) *dataplane.Link {
		return &s.Links[slices.IndexFunc(s.Links, func(l dataplane.Link) bool { return l.Name == name })]
	}
	for _, c := range []struct {
		name   string
		change func(got *state.State)
		want   []string
	}{
		{"none", func(*state.State) {}, nil},
		{"down", func(s *state.State) { link(s, "br100").Up = false }, []string{"link br100 (bridge of bridge/br100): up false, wanted true"}},
		{"address", func(s *state.State) { link(s, "b-12345").Addrs = nil }, []string{"link b-12345 (dummy of endpoint/b): addresses none, wanted 10.0.0.2/32"}},
		{"local", func(s *state.State) { link(s, "vxlan100").Local = netip.MustParseAddr("10.0.0.9") }, []string{"link vxlan100 (vxlan of vni/100): local 10.0.0.9, wanted 10.0.0.1"}},
		{"mtu", func(s *state.State) { link(s, "vxlan100").MTU = 1400 }, []string{"link vxlan100 (vxlan of vni/100): mtu 1400, wanted 1450"}},
		{"master", func(s *state.State) { link(s, "vxlan100").Master = "" }, []string{"link vxlan100 (vxlan of vni/100): master none, wanted br100"}},
		{"parent", func(s *state.State) { link(s, "a-12345").Parent = "eth2" }, []string{"link a-12345 (ipvlan of endpoint/a): parent eth2, wanted eth1"}},
		{"suppression", func(s *state.State) { link(s, "vxlan100").NeighSuppress = false }, []string{"link vxlan100 (vxlan of vni/100): neighbour suppression false, wanted true"}},
		{
			"missing and too many",
			func(s *state.State) {
				*s = state.State{
					Claims: []state.Claim{{Name: "r1/endpoint/c", Pool: "p", Value: "10.0.0.3"}},
					Links:  []dataplane.Link{{Name: "c-12345", Kind: dataplane.Dummy, Owner: "endpoint/c"}},
					Routes: []netip.Prefix{prefix("10.0.0.3/32")},
				}
			},
			[]string{
				"link a-12345 (ipvlan of endpoint/a) is missing",
				"link b-12345 (dummy of endpoint/b) is missing",
				"link br100 (bridge of bridge/br100) is missing",
				"link vxlan100 (vxlan of vni/100) is missing",
				"link c-12345 (dummy of endpoint/c) should not be there",
				"host route 10.0.0.1/32 is missing",
				"host route 10.0.0.2/32 is missing",
				"host route 10.0.0.3/32 should not be there",
				"advertise-all-vni is false, should be true",
				"claim 10.0.0.1 of pool p for r1/endpoint/a is missing",
				"claim 10.0.0.2 of pool p for r1/endpoint/b is missing",
				"claim 10.0.0.3 of pool p for r1/endpoint/c should not be there",
			},
		},
	} {
		got := full()
		c.change(&got)
		if diff := cmp.Diff(c.want, state.Diff(got, full())); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.name, diff)
		}
	}
}

// TestObserved: a link is ours by its owner, a line of FRR's by its mark and the record together.
func TestObserved(t *testing.T) {
	k := dataplane.Observation{Links: []dataplane.Link{
		{Name: "eth1", Up: true},
		{Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100", Group: 7},
		{Name: "vxlan200", Kind: dataplane.VXLAN, VNI: 200},
	}}
	f := frr.Observation{EVPN: true, RouteMap: frr.RouteMap{Present: true}, Networks: []frr.Network{
		{Prefix: prefix("10.0.0.1/32"), RouteMap: frr.Mark},
		{Prefix: prefix("10.0.0.2/32")},
		{Prefix: prefix("10.0.0.3/32"), RouteMap: frr.Mark},
		{Prefix: prefix("10.0.0.4/32"), RouteMap: "OTHER"},
	}}
	claims := []state.Claim{{Name: "r1/endpoint/a", Pool: "p", Value: "10.0.0.1"}}
	owned := state.State{EVPN: true, Routes: []netip.Prefix{prefix("10.0.0.1/32"), prefix("10.0.0.2/32"), prefix("10.0.0.4/32"), prefix("10.0.0.5/32")}}
	want := state.State{
		Claims: claims, EVPN: true, Routes: []netip.Prefix{prefix("10.0.0.1/32")},
		Links: []dataplane.Link{{Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100"}},
	}
	if diff := cmp.Diff(want, state.Observed(k, f, owned, claims), values); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	f.RouteMap = frr.RouteMap{}
	want.Routes = nil
	if diff := cmp.Diff(want, state.Observed(k, f, owned, claims), values); diff != "" {
		t.Errorf("without the map: -want +got:\n%s", diff)
	}
	want.EVPN = false
	if diff := cmp.Diff(want, state.Observed(k, f, state.State{}, claims), values); diff != "" {
		t.Errorf("with no record: -want +got:\n%s", diff)
	}
}

func TestParts(t *testing.T) {
	s := full()
	if got := s.VXLANs(); len(got) != 1 || got[0].Name != "vxlan100" {
		t.Errorf("VXLANs: %v", got)
	}
	if got := s.Endpoints(); len(got) != 2 || got[0].Name != "a-12345" || got[1].Name != "b-12345" {
		t.Errorf("endpoints: %v", got)
	}
	p := alloc.Proposal{Claim: alloc.Claim{Name: "r1/endpoint/a", Pool: "asked"}, Allocation: alloc.Allocation{Pool: "p", Value: "10.0.0.1"}}
	if got := state.ClaimOf(p); got != s.Claims[0] {
		t.Errorf("claim: %v", got)
	}
}
