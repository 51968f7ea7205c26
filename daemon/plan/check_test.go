package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// sight is what Check looks at, as it is before anything is wrong with it.
func sight(links ...dataplane.Link) plan.Look {
	return plan.Look{
		Kernel: dataplane.Observation{Links: slices.Concat(uplinks.Links, links)},
		FRR: frr.Observation{
			Version:  frr.Version{Major: 10, Minor: 3},
			Instance: frr.Instance{ASN: 65001, RouterID: addr("10.0.0.9")},
			EVPN:     true,
		},
	}
}

func addr(s string) netip.Addr   { return netip.MustParseAddr(s) }
func host(s string) netip.Prefix { return netip.PrefixFrom(addr(s), addr(s).BitLen()) }

func foreign(name string, kind dataplane.Kind, addrs ...netip.Prefix) dataplane.Link {
	return dataplane.Link{Name: name, Kind: kind, Up: true, Addrs: addrs}
}

// inNetns is a config whose parent is in another namespace.
const inNetns = "endpoints:\n  vtep0: {ipvlan: {parent: eth1, parentNetns: host}, address: {pool: vteps, prefer: 10.255.0.11}}\n"

// TestCheck holds each refusal to its words. The config is one endpoint and one VNI unless the case has another.
func TestCheck(t *testing.T) {
	const vni = "vnis:\n  100: {endpoint: vtep0}\n"
	for _, c := range []struct {
		name string
		from string // what runs; "": nothing
		text string // "": one and vni
		look func() plan.Look
		want []string
	}{
		{name: "nothing wrong", look: func() plan.Look { return sight() }},
		{
			name: "parent missing",
			look: func() plan.Look {
				l := sight(foreign("lo", "", host("127.0.0.1")), foreign("br0", dataplane.Bridge), foreign("ipvl0", dataplane.IPVLAN))
				l.Kernel.Links = slices.DeleteFunc(l.Kernel.Links, func(l dataplane.Link) bool { return l.Name == "eth1" })
				return l
			},
			want: []string{"endpoints.vtep0.ipvlan.parent: no link eth1 in the router's namespace; links there: eth2"},
		},
		{
			name: "parent missing in another namespace",
			text: inNetns,
			look: func() plan.Look {
				l := sight()
				l.Kernel.Netns = []dataplane.Netns{{Name: "host", Links: []dataplane.Link{
					foreign("ens1", ""), foreign("ens2", ""), foreign("ens3", ""), foreign("ens4", ""),
				}}}
				return l
			},
			want: []string{"endpoints.vtep0.ipvlan.parent: no link eth1 in namespace host; links there: ens1, ens2 … ens4"},
		},
		{
			name: "the parent's namespace can't be read",
			text: inNetns,
			look: func() plan.Look {
				l := sight()
				l.Kernel.Netns = []dataplane.Netns{{Name: "host", Err: "open /run/netns/host: no such file or directory"}}
				return l
			},
			want: []string{"endpoints.vtep0.ipvlan.parentNetns: namespace host: open /run/netns/host: no such file or directory"},
		},
		{
			name: "parent down",
			look: func() plan.Look { l := sight(); l.Kernel.Links[0].Up = false; return l },
			want: []string{"endpoints.vtep0.ipvlan.parent: eth1 is down; set it up first"},
		},
		{
			name: "parent is a bridge port",
			look: func() plan.Look {
				l := sight(foreign("lan0", dataplane.Bridge))
				l.Kernel.Links[0].Master = "lan0"
				return l
			},
			want: []string{"endpoints.vtep0.ipvlan.parent: eth1 is a port of bridge lan0, and the kernel lets no ipvlan onto a bridge port; " +
				"take it out of the bridge, or name another parent"},
		},
		{
			name: "a parent in a VRF is fine",
			look: func() plan.Look { l := sight(foreign("red", "vrf")); l.Kernel.Links[0].Master = "red"; return l },
		},
		{
			name: "parent is an ipvlan",
			look: func() plan.Look {
				l := sight()
				l.Kernel.Links[0].Kind, l.Kernel.Links[0].Parent, l.Kernel.Links[0].Mode = dataplane.IPVLAN, "eth2", "l3"
				return l
			},
			want: []string{"endpoints.vtep0.ipvlan.parent: eth1 is an ipvlan itself; name its parent eth2"},
		},
		{
			name: "a sibling in mode l2",
			look: func() plan.Look {
				return sight(
					dataplane.Link{Name: "ipvl0", Kind: dataplane.IPVLAN, Parent: "eth1", Mode: "l2"},
					dataplane.Link{Name: "ipvl1", Kind: dataplane.IPVLAN, Parent: "eth2", Mode: "l2"},
				)
			},
			want: []string{"endpoints.vtep0.ipvlan.parent: eth1 has the ipvlan ipvl0 in mode l2, and all ipvlans of a parent share one mode; vtepd needs l3"},
		},
		{
			name: "address on the parent",
			look: func() plan.Look {
				l := sight()
				l.Kernel.Links[0].Addrs = []netip.Prefix{host("10.255.0.11")}
				return l
			},
			want: []string{"endpoints.vtep0.address: 10.255.0.11 is on the parent eth1 itself; take another address"},
		},
		{
			name: "address on the parent in another namespace",
			text: inNetns,
			look: func() plan.Look {
				l := sight()
				l.Kernel.Netns = []dataplane.Netns{{Name: "host", Links: []dataplane.Link{foreign("eth1", "", netip.MustParsePrefix("10.255.0.11/24"))}}}
				return l
			},
			want: []string{"endpoints.vtep0.address: 10.255.0.11 is on the parent eth1 itself; take another address"},
		},
		{
			name: "address on somebody else's link",
			look: func() plan.Look { return sight(foreign("dummy0", dataplane.Dummy, host("10.255.0.11"))) },
			want: []string{"endpoints.vtep0.address: 10.255.0.11 is on dummy0 already, which vtepd doesn't own; take another address, or remove it there"},
		},
		{
			name: "address on a sibling",
			text: "endpoints:\n  vtep9: {ipvlan: {parent: eth1}, address: {static: 10.0.0.1}}\n",
			from: "endpoints:\n  vtep0: {ipvlan: {parent: eth1}, address: {static: 10.0.0.1}}\n",
			look: func() plan.Look { return sight() },
			want: []string{"endpoints.vtep9.address: 10.0.0.1 is on vtep0-ejz6j (endpoint/vtep0), and an address is unique among the ipvlans of one parent; " +
				"take another address or another parent"},
		},
		{
			name: "the same on another parent is fine",
			text: "endpoints:\n  vtep0: {ipvlan: {parent: eth2}, address: {static: 10.0.0.1}}\n",
			from: "endpoints:\n  vtep0: {ipvlan: {parent: eth1}, address: {static: 10.0.0.1}}\n",
			look: func() plan.Look { return sight() },
		},
		{
			name: "announced by another router",
			look: func() plan.Look {
				l := sight()
				l.FRR.Routes = []frr.Route{{Prefix: host("10.255.0.11"), Others: []frr.Source{
					{Peer: "10.1.0.2", RouterID: addr("10.0.0.2"), Origin: addr("10.0.0.3"), ASPath: "65100 65003"},
					{Peer: "10.1.0.6", RouterID: addr("10.0.0.4")},
				}}}
				return l
			},
			want: []string{"endpoints.vtep0.address: 10.255.0.11/32 is announced by another router already: " +
				"peer 10.1.0.2 (router id 10.0.0.2), originated by 10.0.0.3, AS path 65100 65003; a VTEP address belongs to one router"},
		},
		{
			name: "our own announcement, reflected, is fine",
			look: func() plan.Look {
				l := sight()
				l.FRR.Routes = []frr.Route{{Prefix: host("10.255.0.11"), Others: []frr.Source{
					{Peer: "10.1.0.2", RouterID: addr("10.0.0.2"), Origin: addr("10.0.0.9")},
				}}}
				return l
			},
		},
		{
			name: "VTEP of another router",
			look: func() plan.Look {
				l := sight()
				l.FRR.Type3 = []frr.Type3{
					{RD: "10.0.0.9:2", Origin: addr("10.255.0.11"), NextHop: addr("10.255.0.11"), Local: true, Valid: true},
					{RD: "10.0.0.2:2", Origin: addr("10.255.0.11"), NextHop: addr("10.255.0.11"), Peer: "10.1.0.2", Valid: true},
				}
				return l
			},
			want: []string{"endpoints.vtep0.address: 10.255.0.11 is the VTEP of another router already (type-3 route 10.0.0.2:2 from peer 10.1.0.2); " +
				"a VTEP address belongs to one router"},
		},
		{
			name: "names taken",
			look: func() plan.Look {
				return sight(foreign("vtep0-z3eji", dataplane.Dummy), foreign("br100", dataplane.Bridge), foreign("vxlan100", ""))
			},
			want: []string{
				"endpoints.vtep0: the name vtep0-z3eji is taken by a link that vtepd didn't make (a dummy); rename that one, or choose another name",
				"bridge br100: the name br100 is taken by a link that vtepd didn't make (a bridge); rename that one, or choose another name",
				"vnis.100: the name vxlan100 is taken by a link that vtepd didn't make (a port); rename that one, or choose another name",
			},
		},
		{
			name: "somebody else's VXLAN has the VNI",
			look: func() plan.Look {
				return sight(dataplane.Link{Name: "vx", Kind: dataplane.VXLAN, VNI: 100, Port: 8472}, dataplane.Link{Name: "vy", Kind: dataplane.VXLAN, VNI: 101})
			},
			want: []string{"vnis.100: VNI 100 is on vx already, which vtepd didn't make; remove that link, or choose another VNI"},
		},
		{
			name: "no instance",
			look: func() plan.Look { l := sight(); l.FRR.Instance = frr.Instance{}; l.FRR.EVPN = false; return l },
			want: []string{"frr: FRR has no `router bgp` in the default VRF; configure it and its neighbours there, vtepd never makes the instance"},
		},
		{
			name: "no EVPN",
			look: func() plan.Look { l := sight(); l.FRR.EVPN = false; return l },
			want: []string{"frr.evpn: `router bgp 65001` has no `advertise-all-vni` below `address-family l2vpn evpn`; configure it, or let vtepd do it with `evpn: create`"},
		},
		{
			name: "no EVPN, to be made",
			text: one + vni + "frr: {evpn: create}\n",
			look: func() plan.Look { l := sight(); l.FRR.EVPN = false; return l },
		},
		{
			name: "no EVPN and no VNI is fine",
			text: one,
			look: func() plan.Look { l := sight(); l.FRR.EVPN = false; return l },
		},
		{
			name: "nothing of FRR's wanted",
			text: "endpoints: {vtep0: {loopback: {}, address: {static: 10.0.0.1}, announce: none}}\n",
			look: func() plan.Look { l := sight(); l.FRR = frr.Observation{}; return l },
		},
		{
			name: "IPv6 before 10.6",
			text: "endpoints: {vtep0: {loopback: {}, address: {static: \"2001:db8::1\"}}}\n" + vni,
			look: func() plan.Look { l := sight(); l.FRR.Version = frr.Version{Major: 10, Minor: 5, Patch: 2}; return l },
			want: []string{"vnis.100.endpoint: VTEP 2001:db8::1 is IPv6, which needs FRR 10.6 or newer; this is 10.5.2"},
		},
		{
			name: "IPv6 with 10.6",
			text: "endpoints: {vtep0: {loopback: {}, address: {static: \"2001:db8::1\"}}}\n" + vni,
			look: func() plan.Look { l := sight(); l.FRR.Version = frr.Version{Major: 10, Minor: 6}; return l },
		},
		{
			name: "somebody else's route-map",
			look: func() plan.Look { l := sight(); l.FRR.RouteMap = frr.RouteMap{Present: true}; return l },
			want: []string{"frr: the route-map VTEPD in FRR is not vtepd's, which marks its host routes with that name; rename yours"},
		},
		{
			name: "somebody else's route-map, but nothing to announce",
			text: strings.Replace(one, "}\n", ", announce: none}\n", 1) + vni,
			look: func() plan.Look { l := sight(); l.FRR.RouteMap = frr.RouteMap{Present: true}; return l },
		},
		{
			name: "a bridge becomes VLAN-aware",
			from: one + "vnis: {100: {endpoint: vtep0, bridge: lan}}\n",
			text: one + "vlanBridge: {name: lan}\nvnis: {100: {endpoint: vtep0, vlan: 10}}\n",
			look: func() plan.Look { return sight() },
			want: []string{"vlanBridge: bridge lan can't change between VLAN-aware and not while it is there; give the new one another name"},
		},
		{
			name: "all at once",
			look: func() plan.Look {
				l := sight(foreign("dummy0", dataplane.Dummy, host("10.255.0.11")), dataplane.Link{Name: "vx", Kind: dataplane.VXLAN, VNI: 100})
				l.Kernel.Links[0].Up = false
				l.FRR.EVPN = false
				return l
			},
			want: []string{
				"endpoints.vtep0.ipvlan.parent: eth1 is down; set it up first",
				"endpoints.vtep0.address: 10.255.0.11 is on dummy0 already, which vtepd doesn't own; take another address, or remove it there",
				"vnis.100: VNI 100 is on vx already, which vtepd didn't make; remove that link, or choose another VNI",
				"frr.evpn: `router bgp 65001` has no `advertise-all-vni` below `address-family l2vpn evpn`; configure it, or let vtepd do it with `evpn: create`",
			},
		},
		{
			name: "what runs is not judged again",
			from: one + vni,
			text: one + vni,
			look: func() plan.Look {
				l := sight(foreign("dummy0", dataplane.Dummy, host("10.255.0.11")), dataplane.Link{Name: "vx", Kind: dataplane.VXLAN, VNI: 100})
				l.Kernel.Links[0].Up = false
				l.FRR.RouteMap = frr.RouteMap{Present: true}
				return l
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.text == "" {
				c.text = one + vni
			}
			var a state.State
			if c.from != "" {
				a, _ = wanted(t, c.from)
			}
			b, _ := wanted(t, c.text)
			look := c.look()
			look.Kernel.Links = slices.Concat(look.Kernel.Links, a.Links)
			var got []string
			for _, r := range plan.Check(a, b, look) {
				got = append(got, r.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDisruptions(t *testing.T) {
	const v4, v6 = "endpoints: {vtep0: {loopback: {}, address: {static: 10.0.0.1}}}\n", "endpoints: {vtep0: {loopback: {}, address: {static: \"2001:db8::1\"}}}\n"
	session := func(s frr.Session) func(*plan.Input) {
		return func(in *plan.Input) {
			in.Sessions = []frr.Session{{Peer: "10.1.0.6", Local: addr("10.1.0.5"), UpdateSource: "eth2"}, s, {Peer: "swp3"}}
		}
	}
	for _, c := range []struct {
		name, a, b string
		in         func(*plan.Input)
		want       []string
	}{
		{name: "re-address", a: one + vnis, b: readdressed + vnis},
		{name: "re-parent", a: one + vnis, b: reparented + vnis},
		{name: "another MTU", a: one + "vnis: {100: {endpoint: vtep0}}\n", b: one + "vnis: {100: {endpoint: vtep0, mtu: 1400}}\n"},
		{
			name: "another port", a: one + "vnis: {100: {endpoint: vtep0}}\n", b: one + "vnis: {100: {endpoint: vtep0, port: 8472}}\n",
			want: []string{"vxlan100: the port can't change from 4789 to 8472 in place: VNI 100 is deleted and made again, " +
				"and its traffic stops until BGP has taught it the remote addresses again, at most 20s until that is proven, or else 3m0s more until everything is as it was; " +
				"between it and a remote router it stops until that has the port too"},
		},
		{
			name: "another family", a: v4 + "vnis: {100: {endpoint: vtep0}}\n", b: v6 + "vnis: {100: {endpoint: vtep0}}\n",
			want: []string{"vxlan100: can't be changed in place (vxlan): it is deleted and made again, and what runs over it stops until then, at most 20s until that is proven, or else 3m0s more until everything is as it was"},
		},
		{
			name: "another bridge", a: one + "vnis: {100: {endpoint: vtep0}}\n", b: one + "vnis: {100: {endpoint: vtep0, bridge: lan}}\n",
			want: []string{"vxlan100: moves from bridge br100 to lan: the hosts on br100 lose VNI 100 for as long as their ports, which are yours, stay there"},
		},
		{
			name: "another VLAN", a: one + "vlanBridge: {name: lan}\nvnis: {100: {endpoint: vtep0, vlan: 10}}\n", b: one + "vlanBridge: {name: lan}\nvnis: {100: {endpoint: vtep0, vlan: 11}}\n",
			want: []string{"vxlan100: moves from VLAN 10 to 11: the hosts in VLAN 10 lose VNI 100 for as long as their ports, which are yours, stay there"},
		},
		{
			name: "another VNI on the bridge", a: one + "vnis: {100: {endpoint: vtep0, bridge: lan}}\n", b: one + "vnis: {101: {endpoint: vtep0, bridge: lan}}\n",
			want: []string{"vxlan100: gives its place on bridge lan to another VNI: what VNI 100 carries ends for good when the other begins"},
		},
		{
			name: "a bridge that goes has others' ports", a: one + "vnis: {100: {endpoint: vtep0}}\n", b: one,
			in: func(in *plan.Input) {
				in.Links = []dataplane.Link{{Name: "h1", Master: "br100"}, {Name: "vxlan100", Master: "br100", Owner: "vni/100"}, {Name: "h2", Master: "br100"}, {Name: "h3", Master: "lan"}}
			},
			want: []string{"br100: still has ports that vtepd doesn't own (h1, h2), and they lose their bridge for as long as you give them no other; take them out first"},
		},
		{
			name: "a session's local end", a: one, b: readdressed,
			in:   session(frr.Session{Peer: "10.1.0.2", Local: addr("10.255.0.11")}),
			want: []string{"10.255.0.11: is the local end of the BGP sessions with 10.1.0.2: they go down, for as long as they aren't configured otherwise"},
		},
		{
			name: "an update-source, as address", a: one, b: readdressed,
			in:   session(frr.Session{Peer: "10.1.0.2", UpdateSource: "10.255.0.11"}),
			want: []string{"10.255.0.11: is the local end of the BGP sessions with 10.1.0.2: they go down, for as long as they aren't configured otherwise"},
		},
		{
			name: "an update-source, as interface", a: one, b: readdressed,
			in:   session(frr.Session{Peer: "10.1.0.2", UpdateSource: "vtep0-z3eji"}),
			want: []string{"10.255.0.11: is the local end of the BGP sessions with 10.1.0.2: they go down, for as long as they aren't configured otherwise"},
		},
		{
			name: "an update-source, as interface, whose address stays", a: one, b: reparented,
			in:   session(frr.Session{Peer: "10.1.0.2", UpdateSource: "vtep0-z3eji"}),
			want: []string{"vtep0-z3eji: is the update-source of the BGP sessions with 10.1.0.2: they go down, for as long as they aren't configured otherwise"},
		},
		{
			name: "the router id", a: one, b: "",
			in:   func(in *plan.Input) { in.RouterID = addr("10.255.0.11") },
			want: []string{"10.255.0.11: is FRR's router id: all BGP sessions restart when FRR chooses another one, and are away until they connect again by FRR's and the peers' own timers (`timers connect`)"},
		},
		{
			name: "the address stays on another parent", a: one, b: reparented,
			in: func(in *plan.Input) {
				in.RouterID = addr("10.255.0.11")
				in.Sessions = []frr.Session{{Peer: "10.1.0.2", Local: addr("10.255.0.11")}}
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := wanted(t, c.a)
			b, proposals := wanted(t, c.b)
			in := input(proposals)
			if c.in != nil {
				c.in(&in)
			}
			var got []string
			for _, d := range plan.Compute(a, b, in).Disruptions {
				got = append(got, d.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
