package desired_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/dataplane"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var list = dataplane.Conflist{Name: "uplink", Version: "1.0.0", Master: "eth1", MTU: 1400, Text: `{"name":"uplink"}`}

func onCNI() config.Endpoint {
	return config.Endpoint{
		Name: "vtep0", Placement: config.PlacementCNI, Announce: config.AnnounceBGP,
		CNI: config.CNI{Conflist: "/etc/cni/a", InterfaceName: "verylongname0", PluginDirs: "/usr/lib/cni"},
	}
}

// TestAttachment: an endpoint on an attachment is its link too, and whatever the plugins are told is in its name.
func TestAttachment(t *testing.T) {
	cfg := &config.Config{Node: config.Node{Name: "r1"}, Endpoints: []config.Endpoint{onCNI()}, VNIs: []config.VNI{{VNI: 100, Endpoint: "vtep0", Port: 4789, Bridge: "br100"}}}
	given := desired.Given{Addrs: map[string]netip.Addr{"vtep0": addr("192.0.2.1")}, Conflists: map[string]dataplane.Conflist{"vtep0": list}}
	s := desired.Compute(cfg, given, dataplane.Observation{Links: []dataplane.Link{{Name: "eth1", MTU: 9000}}})
	if len(s.Attachments) != 1 {
		t.Fatalf("%+v", s)
	}
	a := s.Attachments[0]
	want := dataplane.Attachment{
		Link: a.Link, Owner: "endpoint/vtep0", ContainerID: "vtepd-r1" + a.Link[9:], Conflist: list.Text, Parent: "eth1",
		Addr: netip.MustParsePrefix("192.0.2.1/32"), Path: "/usr/lib/cni",
	}
	if a != want || !strings.HasPrefix(a.Link, "verylongn-") || len(a.Link) != 15 {
		t.Errorf("%+v, want %+v", a, want)
	}
	if l, ok := dataplane.Find(s.Links, a.Link); !ok || !l.Same(a.AsLink()) {
		t.Errorf("link %+v", l)
	}
	if v := s.VXLANs()[0]; v.MTU != 1350 || v.Local != addr("192.0.2.1") {
		t.Errorf("%+v", v)
	}
	for name, change := range map[string]func(*config.Endpoint, *dataplane.Conflist, *netip.Addr){
		"name":      func(e *config.Endpoint, _ *dataplane.Conflist, _ *netip.Addr) { e.Name = "vtep1" },
		"interface": func(e *config.Endpoint, _ *dataplane.Conflist, _ *netip.Addr) { e.CNI.InterfaceName = "verylongname1" },
		"plugins":   func(e *config.Endpoint, _ *dataplane.Conflist, _ *netip.Addr) { e.CNI.PluginDirs = "/opt" },
		"cache":     func(e *config.Endpoint, _ *dataplane.Conflist, _ *netip.Addr) { e.CNI.CacheDir = "/c" },
		"conflist":  func(_ *config.Endpoint, c *dataplane.Conflist, _ *netip.Addr) { c.Text += " " },
		"address":   func(_ *config.Endpoint, _ *dataplane.Conflist, a *netip.Addr) { *a = addr("192.0.2.2") },
	} {
		e, c, ip := onCNI(), list, addr("192.0.2.1")
		change(&e, &c, &ip)
		if got := desired.Attachment("r1", e, ip, c); got.Link == a.Link || got.ContainerID == a.ContainerID {
			t.Errorf("%s: another one has the same names: %+v", name, got)
		}
	}
	e := onCNI()
	e.CNI.Conflist = "/another/place"
	if got := desired.Attachment("r1", e, addr("192.0.2.1"), list); got != a {
		t.Errorf("the same conflist elsewhere is another attachment: %+v", got)
	}
}

// TestLoopbacks: one is there once all of its addresses are; a shared one says so by its owner.
func TestLoopbacks(t *testing.T) {
	pool := config.Address{Kind: config.AddressPool, Pool: "p"}
	cfg := &config.Config{Node: config.Node{Name: "r1"}, Loopbacks: []config.Loopback{
		{Name: "lo0", Role: config.RoleRouterID, IPv4: pool, IPv6: pool},
		{Name: "lo1", Role: config.RoleVTEP, IPv4: pool, IPv6: pool},
		{Name: "lo100", Role: config.RoleAnycastRP, IPv6: pool},
	}}
	given := desired.Given{Addrs: map[string]netip.Addr{
		"lo0/ipv4": addr("192.0.2.1"), "lo0/ipv6": addr("2001:db8::1"), "lo1/ipv4": addr("192.0.2.2"), "lo100/ipv6": addr("2001:db8::100"),
	}}
	s := desired.Compute(cfg, given, dataplane.Observation{})
	var got []string
	for _, l := range s.Links {
		got = append(got, l.Name+" "+l.Owner+" "+string(l.Kind))
		for _, a := range l.Addrs {
			if !slices.Contains(s.Routes, a) || a.Bits() != a.Addr().BitLen() {
				t.Errorf("%s is not a host route", a)
			}
		}
	}
	if want := []string{"lo0 loopback/lo0 dummy", "lo100 anycast/lo100 dummy"}; !slices.Equal(got, want) || s.RouterID != addr("192.0.2.1") {
		t.Errorf("%q, router id %s; want %q", got, s.RouterID, want)
	}
	name := desired.LoopbackClaimName("r1", "lo0", "ipv4")
	if name != "r1/loopback/lo0/ipv4" || desired.KeyOf(name) != "lo0/ipv4" || desired.LoopbackOf(name) != "lo0" || desired.RouterOf(name) != "r1" ||
		desired.FieldOf(name) != "loopbacks.lo0.ipv4" {
		t.Errorf("%s: %s %s %s", name, desired.KeyOf(name), desired.LoopbackOf(name), desired.FieldOf(name))
	}
	if e := desired.ClaimName("r1", "vtep0"); desired.LoopbackOf(e) != "" || desired.FieldOf(e) != "endpoints.vtep0.address" {
		t.Errorf("%s: %s %s", e, desired.LoopbackOf(e), desired.FieldOf(e))
	}
}
