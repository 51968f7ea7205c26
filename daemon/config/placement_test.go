package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const placed = "version: 1\nnode: {name: r1, index: 7}\n" +
	"pools: {p4: {addresses: [10.255.0.0/24]}, p6: {addresses: ['2001:db8::/64']}, both: {addresses: [10.254.0.0/24, '2001:db8:1::/64']}, n: {ranges: ['1..9']}}\n"

func TestPlacements(t *testing.T) {
	cfg, err := Parse("f", []byte(placed+`endpoints:
  a: {cni: {conflist: /etc/cni/a.conflist}, address: {pool: p4}}
  b: {cni: {conflist: /etc/cni/b.conflist, interfaceName: uplink0, pluginDirs: [/a, /b], cacheDir: /c}, address: {static: 10.0.0.1}}
loopbacks:
  lo100: {role: anycast-rp, ipv6: {pool: p6, group: rp}}
  lo0: {role: router-id, ipv4: {pool: p4, prefer: 10.255.0.9}, ipv6: {static: '2001:db8:2::1'}}
`))
	if err != nil {
		t.Fatal(err)
	}
	wantEndpoints := []Endpoint{
		{
			Name: "a", Placement: PlacementCNI, Announce: AnnounceBGP, Address: Address{Kind: AddressPool, Pool: "p4"},
			CNI: CNI{Conflist: "/etc/cni/a.conflist", InterfaceName: "net1", PluginDirs: "/usr/lib/cni:/opt/cni/bin"},
		},
		{
			Name: "b", Placement: PlacementCNI, Announce: AnnounceBGP, Address: Address{Kind: AddressStatic, Static: netip.MustParseAddr("10.0.0.1")},
			CNI: CNI{Conflist: "/etc/cni/b.conflist", InterfaceName: "uplink0", PluginDirs: "/a:/b", CacheDir: "/c"},
		},
	}
	wantLoopbacks := []Loopback{
		{
			Name: "lo0", Role: RoleRouterID, IPv4: Address{Kind: AddressPool, Pool: "p4", Prefer: netip.MustParseAddr("10.255.0.9")},
			IPv6: Address{Kind: AddressStatic, Static: netip.MustParseAddr("2001:db8:2::1")},
		},
		{Name: "lo100", Role: RoleAnycastRP, IPv6: Address{Kind: AddressPool, Pool: "p6", Group: "rp"}},
	}
	equal := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
	if diff := cmp.Diff(wantEndpoints, cfg.Endpoints, equal); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(wantLoopbacks, cfg.Loopbacks, equal); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestPlacementProblems(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"cni", `endpoints:
  a: {cni: {}, address: {static: 10.0.0.1}}
  b: {cni: {conflist: b.conflist, interfaceName: a b, pluginDirs: [], cacheDir: /x/}, address: {static: 10.0.0.2}}
  c: {cni: {conflist: /c, pluginDirs: [bin, "/a:b", 7]}, loopback: {}, address: {static: 10.0.0.3}}
  d: {cni: {conflist: /c, pluginDirs: [bin, "/a:b"], ips: [10.0.0.4/32], addresses: [], disableCheck: true, srv6: {}, chain: x}, address: {static: 10.0.0.4}, srv6: {}}
srv6: {}
`, `
f:5:7: endpoints.a.cni.conflist: is missing; write the absolute path of a CNI network configuration list
f:6:23: endpoints.b.cni.conflist: "b.conflist" is not an absolute path; it must begin with '/'
f:6:50: endpoints.b.cni.interfaceName: "a b" can't name a link: it holds a space; use letters, digits, '-' and '_'
f:6:67: endpoints.b.cni.pluginDirs: is an empty list; name at least one directory, or leave it out
f:6:81: endpoints.b.cni.cacheDir: "/x/" is not a plain path; write it without '//', '.', '..' or a '/' at its end
f:7:7: endpoints.c.cni: stands beside loopback at f:7:58; an endpoint has exactly one of ipvlan, loopback and cni
f:8:40: endpoints.d.cni.pluginDirs[0]: "bin" is not an absolute path; it must begin with '/'
f:8:45: endpoints.d.cni.pluginDirs[1]: "/a:b" holds a colon, which separates directories in CNI_PATH; use another directory
f:8:54: endpoints.d.cni.ips: can't be set: the plugins are given the endpoint's own ` + "`address`" + `, as the capability ips; leave it out
f:8:74: endpoints.d.cni.addresses: can't be set: the plugins are given the endpoint's own ` + "`address`" + `, as the capability ips; leave it out
f:8:89: endpoints.d.cni.disableCheck: can't be set: CHECK is how drift is found; leave it out
f:8:109: endpoints.d.cni.srv6: can't be set: SRv6 is not supported over a CNI attachment, which carries VXLAN alone; leave it out
f:8:119: endpoints.d.cni.chain: is not a known key; known here: conflist, interfaceName, pluginDirs, cacheDir
f:8:159: endpoints.d.srv6: can't be set: SRv6 is not supported; an endpoint carries VXLAN alone; leave it out
f:9:1: srv6: can't be set: SRv6 is not supported; an endpoint carries VXLAN alone; leave it out`},
		{"loopbacks", `loopbacks:
  lo: {role: vtep, ipv4: {pool: p4}}
  a: {ipv4: {pool: p4}}
  b: {role: spine, ipv4: {pool: p4}}
  c: {role: vtep}
  d: {role: router-id, ipv6: {pool: p6}}
  e: {role: vtep, ipv4: {pool: p4, group: g}}
  f: {role: anycast-vtep, ipv4: {pool: p4}}
  g: {role: vtep, ipv4: {static: '2001:db8:9::1'}, ipv6: {cidr: 10.1.0.0/24, from: index}}
  h: {role: vtep, ipv4: {pool: both}, ipv6: {pool: n}}
  i: {role: vtep, ipv4: {pool: p4, prefer: '2001:db8::1'}}
`, `
f:5:3: loopbacks.lo: lo is the kernel's own; choose another name, such as lo0
f:6:3: loopbacks.a.role: is missing; write router-id, vtep, anycast-vtep or anycast-rp
f:7:13: loopbacks.b.role: is the text "spine"; must be router-id or vtep or anycast-vtep or anycast-rp
f:8:3: loopbacks.c: has neither ipv4 nor ipv6; must have at least one of the two
f:9:3: loopbacks.d.ipv4: is missing; a router id is an IPv4 address
f:9:13: loopbacks.d.role: router-id is the role of b at f:7:13; a router has one
f:10:43: loopbacks.e.ipv4.group: goes with the roles anycast-vtep and anycast-rp; a loopback of role vtep has an address of its own, leave it out
f:11:27: loopbacks.f.ipv4.group: is missing; name the group of routers that share the address
f:12:34: loopbacks.g.ipv4.static: 2001:db8:9::1 is not an IPv4 address; must be one
f:12:65: loopbacks.g.ipv6.cidr: 10.1.0.7 is not an IPv6 address; must be one
f:13:32: loopbacks.h.ipv4.pool: pool both at f:3:79 holds others than IPv4 addresses; must hold those alone
f:13:52: loopbacks.h.ipv6.pool: pool n at f:3:134 is of kind index; a loopback needs a pool with addresses
f:14:44: loopbacks.i.ipv4.prefer: 2001:db8::1 is not an IPv4 address; must be one
f:14:44: loopbacks.i.ipv4.prefer: 2001:db8::1 is outside of pool p4 at f:3:25, which holds 10.255.0.0/24`},
		{"clashes", `endpoints:
  a: {ipvlan: {parent: lo9}, address: {static: 10.0.0.1}}
vlanBridge: {name: br-evpn}
vnis: {100: {endpoint: a}, 200: {endpoint: a, vlan: 20}}
loopbacks:
  br-evpn: {role: vtep, ipv4: {static: 10.0.0.1}}
  br100: {role: router-id, ipv4: {static: 10.0.0.2}}
  vxlan200: {role: router-id, ipv4: {static: 10.255.0.2}}
  lo9: {role: anycast-vtep, ipv4: {pool: p4, group: g}}
  lo8: {role: anycast-rp, ipv4: {pool: p4, group: g}}
`, `
f:9:3: loopbacks.br-evpn: is the name of the VLAN-aware bridge at f:6:20; choose another
f:9:40: loopbacks.br-evpn.ipv4.static: 10.0.0.1 is the address of endpoint a at f:5:48; each loopback must have its own
f:10:3: loopbacks.br100: is the name of a link of VNI 100 at f:7:8; choose another
f:11:3: loopbacks.vxlan200: is the name of a link of VNI 200 at f:7:28; choose another
f:11:20: loopbacks.vxlan200.role: router-id is the role of br100 at f:10:17; a router has one
f:11:46: loopbacks.vxlan200.ipv4.static: 10.255.0.2 lies in pool p4 at f:3:26, which could give it to another endpoint; exclude it there or use one outside
f:12:3: loopbacks.lo9: is the name of the parent of endpoint a at f:5:24; choose another
f:13:51: loopbacks.lo8.ipv4.group: g is the group of loopback lo9 at f:12:53, and so has its address; a router can have a group's address once`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f", []byte(placed+c.text))
			got := ""
			if err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(strings.Split(c.want[1:], "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
