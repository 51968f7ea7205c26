package desired_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/state"
	"vtepd/dataplane"
)

const head = "version: 1\nnode: {name: r1, index: 7}\n"

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// compute is the state for a config whose addresses are all fixed.
func compute(t fataler, text string, obs dataplane.Observation) state.State {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(head+text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	addrs := map[string]netip.Addr{}
	for _, e := range cfg.Endpoints {
		addrs[e.Name], _ = e.Address.Fixed()
	}
	return desired.Compute(cfg, desired.Given{Addrs: addrs}, obs)
}

func host(s string) netip.Prefix {
	a := netip.MustParseAddr(s)
	return netip.PrefixFrom(a, a.BitLen())
}

func TestCompute(t *testing.T) {
	cfg, err := config.Parse("test.yaml", []byte(head+`pools: {vteps: {addresses: [10.255.0.0/24]}}
endpoints:
  vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps}}
  vtep1: {ipvlan: {parent: ens3, parentNetns: host}, address: {static: "2001:db8::1"}}
  lo1: {loopback: {}, address: {cidr: 10.254.0.0/24, from: index}, announce: none}
vlanBridge: {name: br-evpn}
vnis:
  100: {endpoint: vtep0}
  101: {endpoint: vtep0, bridge: lan, mtu: 1400, port: 8472}
  102: {endpoint: vtep1, vlan: 12}
  103: {endpoint: lo1, vlan: 13}
frr: {evpn: create}
`))
	if err != nil {
		t.Fatal(err)
	}
	obs := dataplane.Observation{
		Links: []dataplane.Link{{Name: "eth1", MTU: 9000}},
		Netns: []dataplane.Netns{{Name: "host", Links: []dataplane.Link{{Name: "ens3", MTU: 1600}}}},
	}
	addrs := map[string]netip.Addr{
		"vtep0": netip.MustParseAddr("10.255.0.3"), "vtep1": netip.MustParseAddr("2001:db8::1"), "lo1": netip.MustParseAddr("10.254.0.7"),
	}
	claims := []state.Claim{{Name: "r1/endpoint/vtep0", Pool: "vteps", Value: "10.255.0.3"}}
	got := desired.Compute(cfg, desired.Given{Addrs: addrs, Claims: claims}, obs)
	want := state.State{
		Claims: claims,
		EVPN:   true,
		Routes: []netip.Prefix{host("10.255.0.3"), host("2001:db8::1")},
		Links: []dataplane.Link{
			{Name: "br-evpn", Kind: dataplane.Bridge, Owner: "bridge/br-evpn", Up: true, VLANAware: true},
			{Name: "br100", Kind: dataplane.Bridge, Owner: "bridge/br100", Up: true},
			{Name: "lan", Kind: dataplane.Bridge, Owner: "bridge/lan", Up: true},
			{Name: "lo1-wam7k", Kind: dataplane.Dummy, Owner: "endpoint/lo1", Up: true, Addrs: []netip.Prefix{host("10.254.0.7")}},
			{
				Name: "vtep0-mltw7", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep0", Up: true, Mode: "l3", Parent: "eth1",
				Addrs: []netip.Prefix{host("10.255.0.3")},
			},
			{
				Name: "vtep1-zpbpk", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep1", Up: true, Mode: "l3", Parent: "ens3", ParentNetns: "host",
				Addrs: []netip.Prefix{host("2001:db8::1")},
			},
			{
				Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100", Up: true, MTU: 8950, Master: "br100", VNI: 100, Port: 4789,
				Local: netip.MustParseAddr("10.255.0.3"), NeighSuppress: true,
			},
			{
				Name: "vxlan101", Kind: dataplane.VXLAN, Owner: "vni/101", Up: true, MTU: 1400, Master: "lan", VNI: 101, Port: 8472,
				Local: netip.MustParseAddr("10.255.0.3"), NeighSuppress: true,
			},
			{
				Name: "vxlan102", Kind: dataplane.VXLAN, Owner: "vni/102", Up: true, MTU: 1530, Master: "br-evpn", VLAN: 12, VNI: 102, Port: 4789,
				Local: netip.MustParseAddr("2001:db8::1"), NeighSuppress: true,
			},
			{
				Name: "vxlan103", Kind: dataplane.VXLAN, Owner: "vni/103", Up: true, MTU: 1450, Master: "br-evpn", VLAN: 13, VNI: 103, Port: 4789,
				Local: netip.MustParseAddr("10.254.0.7"), NeighSuppress: true,
			},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMTU(t *testing.T) {
	const v4, v6 = "10.0.0.1", "2001:db8::1"
	netns := func(err string, links ...dataplane.Link) dataplane.Observation {
		return dataplane.Observation{Netns: []dataplane.Netns{{Name: "host", Err: err, Links: links}}}
	}
	router := func(links ...dataplane.Link) dataplane.Observation { return dataplane.Observation{Links: links} }
	for _, c := range []struct {
		name, placement, addr, more string
		obs                         dataplane.Observation
		want                        int
	}{
		{"IPv4", "ipvlan: {parent: eth1}", v4, "", router(dataplane.Link{Name: "eth1", MTU: 9000}), 8950},
		{"IPv6", "ipvlan: {parent: eth1}", v6, "", router(dataplane.Link{Name: "eth1", MTU: 9000}), 8930},
		{"stated", "ipvlan: {parent: eth1}", v6, ", mtu: 1300", router(dataplane.Link{Name: "eth1", MTU: 9000}), 1300},
		{"parent missing", "ipvlan: {parent: eth1}", v4, "", router(dataplane.Link{Name: "eth2", MTU: 9000}), 1450},
		{"parent in another namespace", "ipvlan: {parent: eth1, parentNetns: host}", v4, "", netns("", dataplane.Link{Name: "eth1", MTU: 1600}), 1550},
		{"namespace that can't be read", "ipvlan: {parent: eth1, parentNetns: host}", v4, "", netns("gone"), 1450},
		{"loopback, IPv4", "loopback: {}", v4, "", router(dataplane.Link{Name: "lo", MTU: 65536}), 1450},
		{"loopback, IPv6", "loopback: {}", v6, "", router(), 1430},
	} {
		s := compute(t, fmt.Sprintf("endpoints: {e: {%s, address: {static: %q}}}\nvnis: {100: {endpoint: e%s}}\n", c.placement, c.addr, c.more), c.obs)
		if got := s.VXLANs()[0].MTU; got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestEVPN(t *testing.T) {
	const endpoint, vni = "endpoints: {e: {loopback: {}, address: {static: 10.0.0.1}}}\n", "vnis: {100: {endpoint: e}}\n"
	for _, c := range []struct {
		text string
		want bool
	}{
		{endpoint + vni, false},
		{endpoint + vni + "frr: {evpn: create}\n", true},
		{endpoint + "frr: {evpn: create}\n", false},
	} {
		if got := compute(t, c.text, dataplane.Observation{}).EVPN; got != c.want {
			t.Errorf("%t, want %t:\n%s", got, c.want, c.text)
		}
	}
}

func drawEndpoint(t *rapid.T) (config.Endpoint, netip.Addr) {
	e := config.Endpoint{
		Name:      rapid.StringMatching(`[a-z][a-z0-9._-]{0,14}`).Draw(t, "name"),
		Placement: rapid.SampledFrom([]config.Placement{config.PlacementIPVLAN, config.PlacementLoopback}).Draw(t, "placement"),
	}
	if e.Placement == config.PlacementIPVLAN {
		e.Parent = rapid.StringMatching(`eth[0-9]{1,2}`).Draw(t, "parent")
		e.ParentNetns = rapid.SampledFrom([]string{"", "host", "/proc/1/ns/net"}).Draw(t, "namespace")
	}
	a := [4]byte{10, 255, rapid.Byte().Draw(t, "address"), rapid.Byte().Draw(t, "address")}
	return e, netip.AddrFrom4(a)
}

// TestEndpointName: legal for the kernel, the same for the same, another after any change that Set can't make.
func TestEndpointName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e, a := drawEndpoint(t)
		name := desired.EndpointName(e, a)
		if len(name) > 15 || strings.ContainsAny(name, "/: \t\n%") {
			t.Fatalf("%q can't name a link", name)
		}
		if !strings.HasPrefix(name, e.Name[:min(9, len(e.Name))]+"-") {
			t.Fatalf("%q doesn't tell of %s", name, e.Name)
		}
		same := e
		same.Announce, same.Address = config.AnnounceNone, config.Address{Pool: "p"}
		if got := desired.EndpointName(same, a); got != name {
			t.Fatalf("%s and %s: nothing of the link changed", name, got)
		}
		other, b := e, a
		switch rapid.SampledFrom([]string{"placement", "parent", "namespace", "address", "name"}).Draw(t, "change") {
		case "placement":
			if e.Placement == config.PlacementLoopback {
				other.Placement, other.Parent = config.PlacementIPVLAN, "eth1"
			} else {
				other.Placement, other.Parent, other.ParentNetns = config.PlacementLoopback, "", ""
			}
		case "parent":
			other.Parent += "x"
		case "namespace":
			other.ParentNetns += "x"
		case "address":
			b = b.Next()
		case "name": // two endpoints whose names begin alike
			other.Name = e.Name[:min(14, len(e.Name))] + "+"
		}
		if got := desired.EndpointName(other, b); got == name {
			t.Fatalf("%+v %s and %+v %s are both %s", e, a, other, b, name)
		}
	})
}

// TestOrder: what a config says doesn't depend on the order in which it says it.
func TestOrder(t *testing.T) {
	endpoints := []string{
		"  a: {loopback: {}, address: {static: 10.0.0.3}}\n",
		"  b: {ipvlan: {parent: eth1}, address: {static: 10.0.0.1}}\n",
		"  c: {ipvlan: {parent: eth2}, address: {static: \"2001:db8::1\"}}\n",
	}
	vnis := []string{
		"  100: {endpoint: a}\n", "  20: {endpoint: b, vlan: 7}\n", "  3: {endpoint: c, vlan: 5}\n", "  99: {endpoint: b, bridge: lan}\n",
	}
	obs := dataplane.Observation{Links: []dataplane.Link{{Name: "eth1", MTU: 9000}}}
	text := func(sections ...string) string { return strings.Join(sections, "") }
	e, v := "endpoints:\n"+text(endpoints...), "vnis:\n"+text(vnis...)
	const bridge = "vlanBridge: {name: br-evpn}\n"
	want := compute(t, text(e, v, bridge), obs)
	if !slices.IsSortedFunc(want.Links, func(a, b dataplane.Link) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("not sorted: %v", want.Links)
	}
	rapid.Check(t, func(t *rapid.T) {
		e := "endpoints:\n" + text(rapid.Permutation(endpoints).Draw(t, "endpoints")...)
		v := "vnis:\n" + text(rapid.Permutation(vnis).Draw(t, "vnis")...)
		got := compute(t, text(rapid.Permutation([]string{e, v, bridge}).Draw(t, "sections")...), obs)
		if diff := state.Diff(got, want); len(diff) > 0 || got.Hash() != want.Hash() {
			t.Fatalf("%v", diff)
		}
	})
}

func TestClaimNames(t *testing.T) {
	name := desired.ClaimName("leaf1", "vtep0")
	if name != "leaf1/endpoint/vtep0" || desired.KeyOf(name) != "vtep0" || desired.RouterOf(name) != "leaf1" {
		t.Errorf("%s: endpoint %s of %s", name, desired.KeyOf(name), desired.RouterOf(name))
	}
	if got := desired.VXLANName(16777215); got != "vxlan16777215" || len(got) > 15 {
		t.Errorf("got %s", got)
	}
}
