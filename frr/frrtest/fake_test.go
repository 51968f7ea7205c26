package frrtest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/frr"
)

func TestFakeFailAtAndHooks(t *testing.T) {
	f := New(65001, netip.MustParseAddr("10.0.0.1"))
	p := netip.MustParsePrefix("10.255.0.1/32")
	edits := []frr.Edit{{Verb: frr.AddRouteMap, ASN: 65001}, {Verb: frr.AddNetwork, ASN: 65001, Prefix: p}}
	var seen []int
	f.OnEdit(func(k int, _ frr.Edit) { seen = append(seen, k) })
	boom := errors.New("% Unknown command")
	f.FailAt(2, boom)
	err := f.Apply(t.Context(), edits)
	var ee *frr.EditError
	if !errors.As(err, &ee) || ee.Edit != edits[1] || !errors.Is(err, boom) ||
		err.Error() != `network 10.255.0.1/32: line "network 10.255.0.1/32 route-map VTEPD": % Unknown command` {
		t.Fatalf("the second edit: %v", err)
	}
	if err := f.Apply(t.Context(), edits); err != nil {
		t.Fatalf("once only: %v", err)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, seen); diff != "" {
		t.Error(diff)
	}
	if got := f.Edits(); !slices.Equal(got, edits) {
		t.Errorf("edits: %v", got)
	}
	gone := errors.New("gone")
	f.OnEdit(func(int, frr.Edit) { f.SetUnreachable(gone) })
	if err := f.Apply(t.Context(), edits); !errors.Is(err, gone) {
		t.Errorf("FRR went away under the edit: %v", err)
	}
	if _, err := f.Observe(t.Context(), frr.Query{}); !errors.Is(err, gone) {
		t.Errorf("observe: %v", err)
	}
}

func TestFake(t *testing.T) {
	id := netip.MustParseAddr("10.0.0.1")
	f := New(65001, id)
	f.SetSessions(frr.Session{
		Peer: "192.0.2.2", RouterID: netip.MustParseAddr("10.0.0.2"), Established: true,
		Local: netip.MustParseAddr("192.0.2.1"), IPv4: true, IPv6: true,
	})
	present, vnis, nets := map[netip.Prefix]bool{}, []frr.VNI{}, []frr.Network{}
	f.SetPresent(func(p netip.Prefix) bool { return present[p] })
	f.SetVNIs(func() []frr.VNI { return vnis })
	Run(t, Subject{
		Router: f, Instance: frr.Instance{ASN: 65001, RouterID: id}, Peer: "192.0.2.2",
		Address: func(p netip.Prefix, there bool) { present[p] = there },
		VNI: func(vni uint32, local netip.Addr) {
			vnis = slices.DeleteFunc(vnis, func(v frr.VNI) bool { return v.VNI == vni })
			vnis = append(vnis, frr.VNI{VNI: vni, Device: "vx", Local: local})
		},
		Network: func(n frr.Network, there bool) {
			nets = slices.DeleteFunc(nets, func(o frr.Network) bool { return o == n })
			if there {
				nets = append(nets, n)
			}
			f.SetNetworks(nets...)
		},
		ForeignMap: func(there bool) { f.SetRouteMap(frr.RouteMap{Present: there}) },
	})
}
