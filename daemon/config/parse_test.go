package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const head = "version: 1\nnode: {name: leaf1, index: 1}\n"

// base is a config with one of everything, for tests that break one thing.
const base = head + `pools:
  vteps: {addresses: [10.255.0.0/24], exclude: [10.255.0.0]}
endpoints:
  vtep0:
    ipvlan: {parent: eth1}
    address: {pool: vteps}
vnis:
  100: {endpoint: vtep0}
`

var netipEqual = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.IgnoreUnexported(Config{}),
}

func TestParse(t *testing.T) {
	// CRLF and a byte order mark are what editors of other systems leave.
	got, err := Parse("a.yaml", []byte("\ufeff"+strings.ReplaceAll(base, "\n", "\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Node: Node{Name: "leaf1", Index: 1, HasIndex: true},
		Pools: []Pool{{
			Name: "vteps", Reclaim: ReclaimRecycle,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.255.0.0/24")},
			Exclude:   []Range{{netip.MustParseAddr("10.255.0.0"), netip.MustParseAddr("10.255.0.0")}},
		}},
		Endpoints:   []Endpoint{{Name: "vtep0", Placement: PlacementIPVLAN, Parent: "eth1", Address: Address{Kind: AddressPool, Pool: "vteps"}, Announce: AnnounceBGP}},
		VNIs:        []VNI{{VNI: 100, Endpoint: "vtep0", Port: 4789, Bridge: "br100"}},
		FRR:         FRR{EVPN: EVPNRequire},
		Transaction: Transaction{DrainQuiet: time.Second, DrainLimit: 30 * time.Second, Timeout: time.Minute},
	}
	if diff := cmp.Diff(want, got, netipEqual); diff != "" {
		t.Error(diff)
	}
	for field, at := range map[string]string{
		"endpoints.vtep0.ipvlan.parent": "a.yaml:7:22",
		"endpoints.vtep0.ipvlan":        "a.yaml:7:5",
		"endpoints.vtep0.announce":      "a.yaml:6:3",
		"vnis.100.endpoint":             "a.yaml:10:19",
		"vnis.100.bridge":               "a.yaml:10:3",
		"pools.vteps.addresses[0]":      "a.yaml:4:23",
		"pools.vteps.addresses[7]":      "a.yaml:4:22",
		"frr.evpn":                      "a.yaml:1:1",
		"":                              "a.yaml:1:1",
	} {
		if got := got.At(field).String(); got != at {
			t.Errorf("At(%q) = %s, want %s", field, got, at)
		}
	}
	p := got.Problem("endpoints.vtep0.ipvlan.parent", "eth1 is a port of bridge br0; must be a link of its own")
	if got, want := p.Error(), "a.yaml:7:22: endpoints.vtep0.ipvlan.parent: eth1 is a port of bridge br0; must be a link of its own"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// problems checks the exact text of all problems of several files.
func problems(t *testing.T, want string, srcs ...Source) {
	t.Helper()
	c, err := ParseAll(srcs)
	if err == nil {
		t.Fatalf("accepted:\n%+v\nwant:\n%s", c, want)
	}
	if c != nil {
		t.Error("a config beside an error")
	}
	var ps Problems
	if !errors.As(err, &ps) {
		t.Fatalf("%T is not Problems", err)
	}
	if got, want := err.Error(), strings.TrimSpace(want); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestProblems(t *testing.T) {
	long := strings.Repeat("x", 70)
	for _, test := range []struct{ name, in, want string }{
		{"empty", "", `f:1:1: the file is empty; it must hold a mapping that begins with version: 1`},
		{"only comments", "# nothing\n\n", `f:1:1: the file is empty; it must hold a mapping that begins with version: 1`},
		{"only a marker", "---\n", `f:1:1: the file is empty; it must hold a mapping that begins with version: 1`},
		{"cut off before the version", "node: {name: leaf1}\n", `f:1:1: version: is missing; write version: 1, once in all files; without it a file that was cut off could pass for a whole one`},
		{"cut off after the version", "version: 1\n", `f:1:1: node: is missing; write node: {name: NAME}, the name of this router in claims`},
		{"cut off after a key", head + "endpoints:\n", `f:3:1: endpoints: is empty; must be a mapping from endpoint names to their settings, or left out`},
		{"cut off in an endpoint", head + "endpoints:\n  vtep0:\n", `f:4:3: endpoints.vtep0: is empty; must be a mapping of ipvlan, loopback, cni, address, announce`},
		{"cut off in a flow", head + "endpoints: {vtep0: {ipvlan: {parent: eth1", `f:3:42: not valid YAML: did not find expected ',' or '}' while parsing a flow mapping that begins at column 29`},
		{"second document", base + "---\n" + base, `f:11:1: a second YAML document begins here; one file holds one document`},
		{"broken second document", base + "---\n}\n", `f:12:1: not valid YAML: did not find expected node content while parsing a block node`},
		{"list", "- version: 1\n", `f:1:1: the file is a list; must be a mapping that begins with version: 1`},
		{"text", "hello\n", `f:1:1: the file is the text "hello"; must be a mapping that begins with version: 1`},
		{"not UTF-8", "version: 1\n# caf\xe9\n", `f:2:6: the byte 0xe9 is not UTF-8; the file must be UTF-8 text`},
		{"UTF-16", "\xff\xfev\x00", `f:1:1: the byte 0xff is not UTF-8; the file must be UTF-8 text`},
		{"NUL", "version: 1\x00\n", `f:1:11: the character U+0000; the file must be plain text without control characters`},
		{"line separator", "version: 1 #\u2028\n", `f:1:13: the character U+2028; the file must be plain text without control characters`},
		{"carriage return", "version: 1\rnode: x\n", `f:1:11: a carriage return without a newline; lines end with a newline`},
		{"too long", strings.Repeat("#", maxFile+1), `f:1:1: the file is longer than 1048576 bytes; no config needs that much`},
		{"tab", "version: 1\nnode:\n\tname: x\n", `f:3:1: not valid YAML: a tab can't indent; use spaces`},
		{"open quote", "version: 1\nnode: {name: \"leaf1}\n\nfrr: {}\n", `f:2:14: not valid YAML: this quote is never closed`},
		{"open bracket", "version: 1\nnode: {name: leaf1\nfrr: {}\n", `f:3:4: not valid YAML: did not find expected ',' or '}' while parsing a flow mapping that begins at line 2`},
		{"indented too far", "version: 1\nnode:\n  name: a\n   index: 3\n", `f:4:9: not valid YAML: mapping values are not allowed in this context`},
		{"neither key nor value", "version: 1\nnode: {name: a}\nendpoints\n", `f:3:1: not valid YAML: could not find expected ':'`},
		{"in the first line", "version: 1: 2\n", `f:1:11: not valid YAML: mapping values are not allowed in this context`},
		{"anchor and alias", head + "pools: &p {}\nvnis: *p\n", `
f:3:8: pools: anchors, aliases and merge keys are not accepted; write the values out
f:4:7: vnis: anchors, aliases and merge keys are not accepted; write the values out`},
		{"alias of nothing", head + "pools: *p\n", `f:3:8: anchors, aliases and merge keys are not accepted; write the values out`},
		{"merge key", head + "pools:\n  <<: {a: b}\n", `f:4:3: pools: anchors, aliases and merge keys are not accepted; write the values out`},
		{"tag", "version: !!int 1\nnode: !x {name: leaf1}\n", `
f:1:10: version: the tag "!!int" is not accepted; leave it out
f:2:7: node: the tag "!x" is not accepted; leave it out`},
		{"too deep", head + "x: [[[[[[[[[[[[]]]]]]]]]]]]\n", `f:3:12: x[0][0][0][0][0][0][0][0]: is nested more than 8 levels deep; nothing in a config is`},
		{"key is a list", head + "? [a]\n: b\n", `f:3:3: a key is a list or a mapping; must be a name`},
		{"duplicate key", base + "  100: {endpoint: vtep0}\n", `f:11:3: vnis.100: is here a second time, the first is at f:10:3; keep one`},
		{"duplicate quoted key", base + "  \"100\": {endpoint: vtep0}\n", `f:11:3: vnis.100: is here a second time, the first is at f:10:3; keep one`},
		{"duplicate section", base + "node: {name: x}\n", `f:11:1: node: is here a second time, the first is at f:2:1; keep one`},

		{"version 2", "version: 2\nnode: 5\nvrfs: {}\n", `f:1:10: version: is 2; must be 1, the only version known here`},
		{"version of the wrong type", "version: \"1\"\nnode: {name: x}\n", `f:1:10: version: is the text "1"; must be the number 1`},
		{"version with a fraction", "version: 1.0\nnode: {name: x}\n", `f:1:10: version: is 1.0; must be the number 1`},
		{"unknown key", head + "vrfs: {red: {vni: 5000}}\n", `f:3:1: vrfs: is not a known key; known here: version, node, store, pools, endpoints, loopbacks, vlanBridge, vnis, frr, transaction`},
		{"unknown keys, close", head + "vnsi: {}\nfrr: {evnp: create}\nendpoints:\n  a: {loopback: {mtu: 1}, adress: {}, address: {static: 10.0.0.1}}\n", `
f:3:1: vnsi: is not a known key; did you mean vnis?
f:4:7: frr.evnp: is not a known key; did you mean evpn?
f:6:18: endpoints.a.loopback.mtu: is not a known key; there are none here
f:6:27: endpoints.a.adress: is not a known key; did you mean address?`},
		{"unknown key of a strange kind", head + "\"a\\nb\": 1\n\"\": 2\n", `
f:3:1: "a\nb": is not a known key; known here: version, node, store, pools, endpoints, loopbacks, vlanBridge, vnis, frr, transaction
f:4:1: "": is not a known key; known here: version, node, store, pools, endpoints, loopbacks, vlanBridge, vnis, frr, transaction`},
		{"wrong types", "version: 1\nnode: leaf1\npools: []\nendpoints: 5\nvlanBridge: br\nvnis: x\nfrr: true\ntransaction: 1s\n", `
f:2:7: node: is the text "leaf1"; must be a mapping of name, index
f:3:8: pools: is a list; must be a mapping from pool names to their addresses, or left out
f:4:12: endpoints: is 5; must be a mapping from endpoint names to their settings, or left out
f:5:13: vlanBridge: is the text "br"; must be a mapping of name
f:6:7: vnis: is the text "x"; must be a mapping from VNIs to their settings, or left out
f:7:6: frr: is true; must be a mapping of evpn
f:8:14: transaction: is the text "1s"; must be a mapping of drain, timeout, confirm, allowDisruptive`},
		{"wrong scalar types", "version: 1\nnode: {name: 5, index: \"1\"}\nfrr: {evpn: yes}\ntransaction: {allowDisruptive: yes}\n", `
f:2:14: node.name: is 5; must be a name, in quotes if it looks like a number or a date
f:2:24: node.index: is the text "1"; must be a decimal number from 0 to 2147483647
f:3:13: frr.evpn: is the text "yes"; must be require or create
f:4:32: transaction.allowDisruptive: is the text "yes"; must be true or false`},

		{"node", "version: 1\nnode: {index: -1}\n", `
f:2:1: node.name: is missing; give the name of this router in claims
f:2:15: node.index: is -1; must be a decimal number from 0 to 2147483647`},
		{"node names", "version: 1\nnode: {name: \"leaf 1\"}\n", `f:2:14: node.name: "leaf 1" can't be a name here: it holds a space; use letters, digits, '.', '-' and '_', at most 63, the first a letter or a digit`},
		{"node name too long", "version: 1\nnode: {name: " + long + "}\n", `f:2:14: node.name: "` + long[:64] + `..." is 70 bytes long; use letters, digits, '.', '-' and '_', at most 63, the first a letter or a digit`},

		{"durations", head + "transaction: {drain: {quiet: 0s, limit: 30}, timeout: 48h}\n", `
f:3:30: transaction.drain.quiet: is the text "0s"; must be a duration over 0s and up to 1h, such as 1s
f:3:41: transaction.drain.limit: is 30; must be a duration over 0s and up to 24h, such as 30s, with its unit
f:3:55: transaction.timeout: is the text "48h"; must be a duration over 0s and up to 24h, such as 1m`},
		{"quiet over limit", head + "transaction: {drain: {quiet: 1m}}\n", `f:3:30: transaction.drain.quiet: quiet is 1m and limit is 30s; quiet must not be longer than limit`},
		{"limit under quiet", head + "transaction: {drain: {limit: 500ms}}\n", `f:3:30: transaction.drain.limit: quiet is 1s and limit is 500ms; quiet must not be longer than limit`},

		{"pools", head + `pools:
  a: {}
  b: {addresses: 10.0.0.0/24}
  c: {addresses: [10.0.0.1, 10.0.0.1/24, x, 127.0.0.0/8, 0.0.0.0/0, [], 10.9.0.0/24], reclaim: keep, exclude: [10.0.0.9-10.0.0.5, "10.0.0.1-::1", x-y, 10.0.0.1/24, fe80::1%a]}
  "d e": {addresses: []}
`, `
f:4:3: pools.a: has none of addresses, ranges and prefixes; list what to allocate from, such as addresses: [10.255.0.0/24]
f:5:18: pools.b.addresses: is the text "10.0.0.0/24"; must be a list of prefixes such as [10.255.0.0/24]
f:6:19: pools.c.addresses[0]: "10.0.0.1" has no length; must be a prefix such as 10.0.0.1/32
f:6:29: pools.c.addresses[1]: 10.0.0.1/24 has bits set after its length; must be 10.0.0.0/24
f:6:42: pools.c.addresses[2]: "x" is not a prefix; must be one such as 10.255.0.0/24 or 2001:db8::/64
f:6:45: pools.c.addresses[3]: 127.0.0.0/8 holds a loopback address (127.0.0.0/8); must hold only unicast addresses that the fabric can route
f:6:58: pools.c.addresses[4]: 0.0.0.0/0 holds the unspecified address (0.0.0.0/32); must hold only unicast addresses that the fabric can route
f:6:69: pools.c.addresses[5]: is a list; must be a prefix such as 10.255.0.0/24
f:6:96: pools.c.reclaim: is the text "keep"; must be recycle or retain
f:6:112: pools.c.exclude[0]: "10.0.0.9-10.0.0.5" ends before it begins; must be 10.0.0.5-10.0.0.9
f:6:131: pools.c.exclude[1]: "10.0.0.1-::1" goes from one address family to the other; both ends must be of one family
f:6:147: pools.c.exclude[2]: "x-y" is not an address, a range or a prefix; must be one such as 10.255.0.1, 10.255.0.5-10.255.0.9 or 10.255.0.64/28
f:6:152: pools.c.exclude[3]: 10.0.0.1/24 has bits set after its length; must be 10.0.0.0/24
f:6:165: pools.c.exclude[4]: "fe80::1%a" is not an address, a range or a prefix; must be one such as 10.255.0.1, 10.255.0.5-10.255.0.9 or 10.255.0.64/28
f:7:3: pools."d e": "d e" can't be a name here: it holds a space; use letters, digits, '.', '-' and '_', at most 63, the first a letter or a digit
f:7:22: pools."d e".addresses: is an empty list; list what to allocate from, such as [10.255.0.0/24]`},
		{"overlaps", head + `pools:
  z: {addresses: [10.0.0.0/24, 2001:db8::/64]}
  a: {addresses: [10.0.0.128/25, 10.1.0.0/16, 10.1.0.0/16, 2001:db8::/32]}
`, `
f:5:19: pools.a.addresses[0]: 10.0.0.128/25 overlaps 10.0.0.0/24 of pool z at f:4:19; an address must be in one entry only
f:5:47: pools.a.addresses[2]: 10.1.0.0/16 overlaps 10.1.0.0/16 of pool a at f:5:34; an address must be in one entry only
f:5:60: pools.a.addresses[3]: 2001:db8::/32 overlaps 2001:db8::/64 of pool z at f:4:32; an address must be in one entry only`},
		{"overlap beside a broken entry", head + "pools:\n  a: {addresses: [x, 10.0.0.0/24, 10.0.0.0/25]}\n", `
f:4:19: pools.a.addresses[0]: "x" is not a prefix; must be one such as 10.255.0.0/24 or 2001:db8::/64
f:4:35: pools.a.addresses[2]: 10.0.0.0/25 overlaps 10.0.0.0/24 of pool a at f:4:22; an address must be in one entry only`},

		{"kinds of pools", head + `pools:
  a: {addresses: [10.0.0.0/24], ranges: ["1..2"]}
  b: {ranges: [1..5, 5..9, 7, 010, x, 9..8, "-1", 18446744073709551616, {}, 100], length: 4, exclude: [6..7, 10.0.0.1]}
  c: {prefixes: [10.1.0.0/16, 10.2.0.0/28, "2001:db8::/16", 10.3.0.1/24, 0.0.0.0/0, "::ffff:10.0.0.0/104", 10.1.128.0/20], length: 24}
  d: {prefixes: [10.4.0.0/16]}
  e: {prefixes: [], length: 0}
  f: {addresses: [10.1.4.0/24], length: 24}
  g: {ranges: []}
  h: {ranges: [100..200], exclude: 1}
  i: {prefixes: [169.254.0.0/16], length: 31, exclude: [1..5]}
endpoints:
  a: {loopback: {}, address: {pool: h}}
  b: {loopback: {}, address: {static: 10.4.0.1}}
  c: {loopback: {}, address: {static: 10.1.0.1}}
`, `
f:4:41: pools.a.ranges: stands beside addresses at f:4:18; a pool has exactly one of addresses, ranges and prefixes
f:5:22: pools.b.ranges[1]: 5..9 overlaps 1..5 of pool b at f:5:16; a number must be in one entry only
f:5:28: pools.b.ranges[2]: 7 overlaps 5..9 of pool b at f:5:22; a number must be in one entry only
f:5:31: pools.b.ranges[3]: "010" is neither a number nor a range; must be one such as 65010 or 64512..64999
f:5:36: pools.b.ranges[4]: "x" is neither a number nor a range; must be one such as 65010 or 64512..64999
f:5:39: pools.b.ranges[5]: "9..8" ends before it begins; must be 8..9
f:5:45: pools.b.ranges[6]: "-1" is neither a number nor a range; must be one such as 65010 or 64512..64999
f:5:51: pools.b.ranges[7]: "18446744073709551616" is neither a number nor a range; must be one such as 65010 or 64512..64999
f:5:73: pools.b.ranges[8]: is a mapping; must be a range such as "64512..64999" or a number
f:5:91: pools.b.length: goes with prefixes, which is not here; leave it out
f:5:110: pools.b.exclude[1]: "10.0.0.1" is neither a number nor a range; must be one such as 65010 or 64512..64999
f:6:31: pools.c.prefixes[1]: 10.2.0.0/28 has no prefixes of length 24, which length at f:6:132 asks for; the length must be from 28 to 32
f:6:44: pools.c.prefixes[2]: 2001:db8::/16 has bits set after its length; must be 2001::/16
f:6:61: pools.c.prefixes[3]: 10.3.0.1/24 has bits set after its length; must be 10.3.0.0/24
f:6:74: pools.c.prefixes[4]: 0.0.0.0/0 is everything there is; must be a longer prefix
f:6:85: pools.c.prefixes[5]: ::ffff:10.0.0.0/104 is an IPv4 prefix mapped into IPv6; write it as IPv4
f:6:108: pools.c.prefixes[6]: 10.1.128.0/20 overlaps 10.1.0.0/16 of pool c at f:6:18; an address must be in one entry only
f:7:3: pools.d.length: is missing; write the length of the prefixes to hand out, such as length: 26
f:8:17: pools.e.prefixes: is an empty list; list what to allocate from, such as [10.0.0.0/16]
f:8:29: pools.e.length: is 0; must be a decimal number from 1 to 128
f:9:19: pools.f.addresses[0]: 10.1.4.0/24 overlaps 10.1.0.0/16 of pool c at f:6:18; an address must be in one entry only
f:9:41: pools.f.length: goes with prefixes, which is not here; leave it out
f:10:15: pools.g.ranges: is an empty list; list what to allocate from, such as ["64512..64999"]
f:11:16: pools.h.ranges[0]: 100..200 overlaps 100 of pool b at f:5:77; a number must be in one entry only
f:11:36: pools.h.exclude: is 1; must be a list of numbers and ranges
f:12:57: pools.i.exclude[0]: "1..5" is not an address, a range or a prefix; must be one such as 10.255.0.1, 10.255.0.5-10.255.0.9 or 10.255.0.64/28
f:15:39: endpoints.b.address.static: 10.4.0.1 lies in pool d at f:7:18, which could give it to somebody else, in a prefix; exclude it there or use one outside
f:16:39: endpoints.c.address.static: 10.1.0.1 lies in pool c at f:6:18, which could give it to somebody else, in a prefix; exclude it there or use one outside`},
		{"pools that are not for endpoints", head + `pools:
  n: {ranges: [1..9]}
  p: {prefixes: [10.0.0.0/16], length: 24}
endpoints:
  a: {loopback: {}, address: {pool: n}}
  b: {loopback: {}, address: {pool: p, prefer: 10.0.0.1}}
`, `
f:7:37: endpoints.a.address.pool: pool n at f:4:3 is of kind index; an endpoint needs a pool with addresses
f:8:37: endpoints.b.address.pool: pool p at f:5:3 is of kind prefix; an endpoint needs a pool with addresses`},
		{"groups", head + `pools:
  p: {addresses: [10.0.0.0/24]}
  q: {addresses: [10.0.1.0/24]}
endpoints:
  a: {loopback: {}, address: {pool: p, group: g}}
  b: {loopback: {}, address: {pool: q, group: g}}
  c: {loopback: {}, address: {pool: p, group: g}}
  d: {loopback: {}, address: {pool: p, group: "g h"}}
  e: {loopback: {}, address: {static: 10.1.0.1, group: g}}
`, `
f:9:47: endpoints.c.address.group: g is the group of endpoint a at f:7:47, and so has its address; a router can have a group's address once
f:10:47: endpoints.d.address.group: "g h" can't be a name here: it holds a space; use letters, digits, '.', '-' and '_', at most 63, the first a letter or a digit
f:11:56: endpoints.e.address.group: goes with pool, which is not here; leave it out`},

		{"store", head + "store: {}\n", `f:3:1: store: has neither directory nor etcd; must have exactly one of the two, or be left out`},
		{"two stores", head + "store: {directory: /a, etcd: {endpoints: [a:1]}}\n", `f:3:24: store.etcd: stands beside directory at f:3:20; a store is exactly one of the two`},
		{"store of another type", head + "store: /var/lib\n", `f:3:8: store: is the text "/var/lib"; must be a mapping of directory, etcd`},
		{"directory", head + "store: {directory: a/b}\n", `f:3:20: store.directory: "a/b" is not an absolute path; it must begin with '/'`},
		{"directory that climbs", head + "store: {directory: /a/../b}\n", `f:3:20: store.directory: "/a/../b" is not a plain path; write it without '//', '.', '..' or a '/' at its end`},
		{"etcd without endpoints", head + "store: {etcd: {}}\n", `f:3:9: store.etcd.endpoints: is missing; list the members to ask, such as [https://10.0.0.1:2379]`},
		{"etcd with no endpoint", head + "store: {etcd: {endpoints: []}}\n", `f:3:27: store.etcd.endpoints: is an empty list; list the members to ask, such as [https://10.0.0.1:2379]`},
		{"etcd", head + `store:
  etcd:
    endpoints: [10.0.0.1, "https://a:2379/x", "https://root:secret@a:1", "ftp://a:1", "a:0", a:1, "https://a:1", "http://b:1", "http://[fe80::1%eth0]:1", 5, []]
    prefix: vtepd/
    tls: {ca: ca.pem, cert: /a}
    username: ""
`, `
f:5:17: store.etcd.endpoints[0]: "10.0.0.1" has no host or no port; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:27: store.etcd.endpoints[1]: "https://a:2379/x" has more than a host and a port; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:47: store.etcd.endpoints[2]: has a user or a password in it, which end up in logs; write username and passwordFile instead
f:5:74: store.etcd.endpoints[3]: "ftp://a:1" is neither http nor https; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:87: store.etcd.endpoints[4]: "a:0" has no host or no port; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:99: store.etcd.endpoints[6]: https://a:1 is here a second time, the first is at f:5:94; keep one
f:5:114: store.etcd.endpoints[7]: http://b:1 is not https, and tls at f:7:5 asks for it; write https://
f:5:128: store.etcd.endpoints[8]: is not a URL; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:155: store.etcd.endpoints[9]: "5" has no host or no port; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379
f:5:158: store.etcd.endpoints[10]: is a list; must be a URL such as https://10.0.0.1:2379
f:6:13: store.etcd.prefix: "vtepd/" can't be a prefix of keys; must begin with '/', end without, have no empty part and at most 255 bytes, such as /vtepd
f:7:15: store.etcd.tls.ca: "ca.pem" is not an absolute path; it must begin with '/'
f:7:29: store.etcd.tls.cert: goes with key, which is missing; write both or neither
f:8:15: store.etcd.username: "" can't be a name; must be text without control characters
f:8:15: store.etcd.username: goes with passwordFile, which is missing; write both or neither`},
		{"etcd with two schemes", head + "store: {etcd: {endpoints: [\"https://a:1\", \"http://b:1\"], prefix: \"/a b\"}}\n", `
f:3:43: store.etcd.endpoints[1]: http://b:1 has another scheme than https://a:1; all endpoints must be http, or all https
f:3:66: store.etcd.prefix: "/a b" can't be a prefix of keys: it holds a space; must be one such as /vtepd`},

		{"endpoint names", head + `endpoints:
  "vtep 0": {loopback: {}, address: {static: 10.0.0.1}}
  "vtep\n0": {loopback: {}, address: {static: 10.0.0.2}}
  vtep4567890123456: {loopback: {}, address: {static: 10.0.0.3}}
  ..: {loopback: {}, address: {static: 10.0.0.4}}
  a/b: {loopback: {}, address: {static: 10.0.0.5}}
  a:b: {loopback: {}, address: {static: 10.0.0.6}}
  "": {loopback: {}, address: {static: 10.0.0.7}}
  "a\x01": {loopback: {}, address: {static: 10.0.0.8}}
  vtep456789012345: {loopback: {}, address: {static: 10.0.0.9}}
  vtép: {loopback: {}, address: {static: 10.0.0.10}}
  eth%d: {loopback: {}, address: {static: 10.0.0.11}}
`, `
f:4:3: endpoints."vtep 0": "vtep 0" can't name a link: it holds a space; use letters, digits, '-' and '_'
f:5:3: endpoints."vtep\n0": "vtep\n0" can't name a link: it holds a newline; use letters, digits, '-' and '_'
f:6:3: endpoints.vtep4567890123456: "vtep4567890123456" is 17 bytes long; a link name has at most 15
f:7:3: endpoints...: ".." can't name a link; use letters, digits, '-' and '_'
f:8:3: endpoints.a/b: "a/b" can't name a link: it holds '/'; use letters, digits, '-' and '_'
f:9:3: endpoints.a:b: "a:b" can't name a link: it holds ':'; use letters, digits, '-' and '_'
f:10:3: endpoints."": is an empty name; must be a link name of 1 to 15 bytes
f:11:3: endpoints."a\x01": "a\x01" can't name a link: it holds a control character; use letters, digits, '-' and '_'
f:12:3: endpoints.vtep456789012345: "vtep456789012345" is 16 bytes long; a link name has at most 15
f:13:3: endpoints."vt\u00e9p": "vt\u00e9p" can't name a link: it holds a character that is not ASCII; use letters, digits, '-' and '_'
f:14:3: endpoints.eth%d: "eth%d" can't name a link: it holds '%'; use letters, digits, '-' and '_'`},
		{"placement", head + `endpoints:
  a: {address: {static: 10.0.0.1}}
  b: {ipvlan: {parent: eth1}, loopback: {}, address: {static: 10.0.0.2}}
  c: {ipvlan: {}, address: {static: 10.0.0.3}}
  d: {loopback: , address: {static: 10.0.0.4}}
  e: {ipvlan: {parent: "eth 1", parentNetns: a/b}, address: {static: 10.0.0.5}}
  f: {ipvlan: {parent: 5, parentNetns: /run/../x}, address: {static: 10.0.0.6}, announce: ospf}
  g: {ipvlan: {parent: eth1, parentNetns: "a b"}, address: {static: 10.0.0.7}}
`, `
f:4:3: endpoints.a: has none of ipvlan, loopback and cni; must have exactly one of the three
f:5:31: endpoints.b.loopback: stands beside ipvlan at f:5:7; an endpoint has exactly one of ipvlan, loopback and cni
f:6:7: endpoints.c.ipvlan.parent: is missing; name the link to sit on, such as eth1
f:7:7: endpoints.d.loopback: is empty; must be {}
f:8:24: endpoints.e.ipvlan.parent: "eth 1" can't name a link: it holds a space; use letters, digits, '-' and '_'
f:8:46: endpoints.e.ipvlan.parentNetns: "a/b" is neither a name nor an absolute path; write a name under /run/netns, or an absolute path
f:9:24: endpoints.f.ipvlan.parent: is 5; must be a link name, in quotes if it looks like a number or a date
f:9:40: endpoints.f.ipvlan.parentNetns: "/run/../x" is not a plain path; write it without '//', '.', '..' or a '/' at its end
f:9:91: endpoints.f.announce: is the text "ospf"; must be bgp or none
f:10:43: endpoints.g.ipvlan.parentNetns: "a b" can't name a network namespace: it holds a space; write a name under /run/netns, or an absolute path`},
		{"addresses", head + `endpoints:
  a: {loopback: {}}
  b: {loopback: {}, address: {}}
  c: {loopback: {}, address: {static: 10.0.0.1, cidr: 10.0.0.0/24, from: index}}
  d: {loopback: {}, address: {static: 10.0.0.2, prefer: 10.0.0.3, from: index}}
  e: {loopback: {}, address: {cidr: 10.0.0.0/24}}
  f: {loopback: {}, address: {cidr: 10.0.1.0/24, from: name}}
  g: {loopback: {}, address: 10.0.0.1}
`, `
f:4:3: endpoints.a.address: is missing; write {pool: NAME}, {static: ADDRESS} or {cidr: PREFIX, from: index}
f:5:21: endpoints.b.address: has none of pool, static and cidr; must have exactly one of the three
f:6:55: endpoints.c.address.cidr: stands beside static at f:6:39; an address has exactly one of pool, static and cidr
f:7:57: endpoints.d.address.prefer: goes with pool, which is not here; leave it out
f:7:73: endpoints.d.address.from: goes with cidr, which is not here; leave it out
f:8:21: endpoints.e.address.from: is missing; write from: index, the only way there is
f:9:56: endpoints.f.address.from: is the text "name"; must be index
f:10:30: endpoints.g.address: is the text "10.0.0.1"; must be a mapping of pool, prefer, group, static, cidr, from, exclude`},
		{"unusable addresses", head + `endpoints:
  a: {loopback: {}, address: {static: 0.0.0.0}}
  b: {loopback: {}, address: {static: 224.0.0.1}}
  c: {loopback: {}, address: {static: 127.0.0.1}}
  d: {loopback: {}, address: {static: 169.254.0.1}}
  e: {loopback: {}, address: {static: "::ffff:10.0.0.1"}}
  f: {loopback: {}, address: {static: "::"}}
  g: {loopback: {}, address: {static: "::1"}}
  h: {loopback: {}, address: {static: fe80::1}}
  i: {loopback: {}, address: {static: ff02::1}}
  j: {loopback: {}, address: {static: 10.0.0.1/32}}
  k: {loopback: {}, address: {static: 10.0.0}}
  l: {loopback: {}, address: {static: 10.0}}
  m: {loopback: {}, address: {static: "2001:db8::1%eth0"}}
  n: {loopback: {}, address: {static: 255.255.255.255}}
  o: {loopback: {}, address: {static: 010.0.0.1}}
`, `
f:4:39: endpoints.a.address.static: 0.0.0.0 is the unspecified address; must be a unicast address that the fabric can route
f:5:39: endpoints.b.address.static: 224.0.0.1 is a multicast address; must be a unicast address that the fabric can route
f:6:39: endpoints.c.address.static: 127.0.0.1 is a loopback address; must be a unicast address that the fabric can route
f:7:39: endpoints.d.address.static: 169.254.0.1 is a link-local address; must be a unicast address that the fabric can route
f:8:39: endpoints.e.address.static: ::ffff:10.0.0.1 is an IPv4-mapped IPv6 address; must be a unicast address that the fabric can route
f:9:39: endpoints.f.address.static: :: is the unspecified address; must be a unicast address that the fabric can route
f:10:39: endpoints.g.address.static: ::1 is a loopback address; must be a unicast address that the fabric can route
f:11:39: endpoints.h.address.static: fe80::1 is a link-local address; must be a unicast address that the fabric can route
f:12:39: endpoints.i.address.static: ff02::1 is a multicast address; must be a unicast address that the fabric can route
f:13:39: endpoints.j.address.static: "10.0.0.1/32" is a prefix; must be an address alone, such as 10.0.0.1
f:14:39: endpoints.k.address.static: "10.0.0" is not an IP address; must be one such as 10.255.0.11 or 2001:db8::11
f:15:39: endpoints.l.address.static: is 10.0; must be an IP address, in quotes if it looks like a number or a date
f:16:39: endpoints.m.address.static: "2001:db8::1%eth0" has a zone; must be an address alone
f:17:39: endpoints.n.address.static: 255.255.255.255 is the broadcast address; must be a unicast address that the fabric can route
f:18:39: endpoints.o.address.static: "010.0.0.1" is not an IP address; must be one such as 10.255.0.11 or 2001:db8::11`},
		{"two endpoints with one address", head + `endpoints:
  b: {loopback: {}, address: {static: 10.0.0.1}}
  a: {ipvlan: {parent: eth1}, address: {static: 10.0.0.1}}
  c: {loopback: {}, address: {cidr: 10.0.0.0/24, from: index}}
`, `
f:5:49: endpoints.a.address.static: 10.0.0.1 is the address of endpoint b at f:4:39; each endpoint must have its own
f:6:37: endpoints.c.address.cidr: 10.0.0.1 is the address of endpoint b at f:4:39; each endpoint must have its own`},
		{"addresses and pools", head + `pools:
  p: {addresses: [10.0.0.0/24, "2001:db8::/64"], exclude: [10.0.0.2, 10.0.0.8-10.0.0.9]}
endpoints:
  a: {loopback: {}, address: {static: 10.0.0.1}}
  b: {loopback: {}, address: {static: 10.0.0.2}}
  c: {loopback: {}, address: {pool: p, prefer: 10.0.1.3}}
  d: {loopback: {}, address: {pool: p, prefer: 10.0.0.9}}
  e: {loopback: {}, address: {pool: p, prefer: 10.0.0.10}}
  f: {loopback: {}, address: {pool: p, prefer: 10.0.0.10}}
  g: {loopback: {}, address: {static: "2001:db8::1:0"}}
  h: {loopback: {}, address: {pool: p, prefer: x}}
`, `
f:6:39: endpoints.a.address.static: 10.0.0.1 lies in pool p at f:4:19, which could give it to another endpoint; exclude it there or use one outside
f:8:48: endpoints.c.address.prefer: 10.0.1.3 is outside of pool p at f:4:18, which holds 10.0.0.0/24, 2001:db8::/64
f:9:48: endpoints.d.address.prefer: 10.0.0.9 is excluded from pool p at f:4:59
f:11:48: endpoints.f.address.prefer: 10.0.0.10 is the address of endpoint e at f:10:48; each endpoint must have its own
f:12:39: endpoints.g.address.static: 2001:db8::1:0 lies in pool p at f:4:32, which could give it to another endpoint; exclude it there or use one outside
f:13:48: endpoints.h.address.prefer: "x" is not an IP address; must be one such as 10.255.0.11 or 2001:db8::11`},
		{"index outside", "version: 1\nnode: {name: a, index: 4}\nendpoints:\n  a: {loopback: {}, address: {cidr: 10.0.0.0/30, from: index}}\n", `f:4:37: endpoints.a.address.cidr: node.index at f:2:24: index 4 is outside 10.0.0.0/30 (4 addresses, index 0 to 3)`},
		{"index outside of one", "version: 1\nnode: {name: a, index: 1}\nendpoints:\n  a: {loopback: {}, address: {cidr: \"2001:db8::1/128\", from: index}}\n", `f:4:37: endpoints.a.address.cidr: node.index at f:2:24: index 1 is outside 2001:db8::1/128 (1 address, index 0)`},
		{"index missing", "version: 1\nnode: {name: a}\nendpoints:\n  a: {loopback: {}, address: {cidr: 10.0.0.0/30, from: index}}\n", `f:4:37: endpoints.a.address.cidr: no index given for 10.0.0.0/30 (4 addresses, index 0 to 3); node.index says which of them is this router's`},
		{"index negative", "version: 1\nnode: {name: a, index: -1}\nendpoints:\n  a: {loopback: {}, address: {cidr: 10.0.0.0/30, from: index}}\n", `
f:2:24: node.index: is -1; must be a decimal number from 0 to 2147483647
f:4:37: endpoints.a.address.cidr: no index given for 10.0.0.0/30 (4 addresses, index 0 to 3): what stands at f:2:24 is none`},
		{"index excluded", head + `endpoints:
  a: {loopback: {}, address: {cidr: 10.0.0.0/30, from: index, exclude: [10.0.0.0 - 10.0.0.1]}}
  b: {loopback: {}, address: {cidr: 10.0.1.0/30, from: index, exclude: [10.0.1.0, 10.0.1.3]}}
  c: {loopback: {}, address: {cidr: 10.0.2.0/30, from: index, exclude: [x, 10.0.2.1]}}
  d: {loopback: {}, address: {static: 10.0.3.1, exclude: [10.0.3.1]}}
  e: {loopback: {}, address: {cidr: 10.0.4.0/30, from: index, exclude: 10.0.4.1}}
`, `
f:4:37: endpoints.a.address.cidr: node.index at f:2:28: index 1 of 10.0.0.0/30 (4 addresses, index 0 to 3) is 10.0.0.1, which 10.0.0.0 - 10.0.0.1 excludes
f:6:73: endpoints.c.address.exclude[0]: "x" is not an address, a range or a prefix; must be one such as 10.255.0.1, 10.255.0.5-10.255.0.9 or 10.255.0.64/28
f:7:58: endpoints.d.address.exclude: goes with cidr, which is not here; leave it out
f:8:72: endpoints.e.address.exclude: is the text "10.0.4.1"; must be a list of addresses, ranges and prefixes`},

		{"unknown references", base + "  200: {endpoint: vtep1}\n  300: {endpoint: spine}\n  400: {endpoint: 5}\n  500: {}\n", `
f:11:19: vnis.200.endpoint: there is no endpoint "vtep1"; did you mean vtep0?
f:12:19: vnis.300.endpoint: there is no endpoint "spine"; this config has vtep0
f:13:19: vnis.400.endpoint: is 5; must be the name of an endpoint, in quotes if it looks like a number or a date
f:14:3: vnis.500.endpoint: is missing; name the endpoint that carries it`},
		{"unknown pool", head + "endpoints:\n  a: {loopback: {}, address: {pool: x}}\nvnis:\n  1: {endpoint: a}\n", `f:4:37: endpoints.a.address.pool: there is no pool "x"; this config has no pools`},
		{"reference to a broken section", head + "pools: 5\nendpoints:\n  a: {loopback: {}, address: {pool: x}}\n", `f:3:8: pools: is 5; must be a mapping from pool names to their addresses, or left out`},
		{"VNIs out of range", base + "  0: {endpoint: vtep0}\n  16777216: {endpoint: vtep0}\n  16777215: {endpoint: vtep0}\n", `
f:11:3: vnis.0: 0 is not a VNI; must be a decimal number from 1 to 16777215
f:12:3: vnis.16777216: 16777216 is not a VNI; must be a decimal number from 1 to 16777215`},
		{"VNIs spelled otherwise", base + "  0100: {endpoint: vtep0}\n  0x64: {endpoint: vtep0}\n  +100: {endpoint: vtep0}\n  1e2: {endpoint: vtep0}\n  99999999999999999999: {endpoint: vtep0}\n  \"1\\n\": {endpoint: vtep0}\n", `
f:11:3: vnis.0100: 0100 is not a VNI; must be a decimal number from 1 to 16777215
f:12:3: vnis.0x64: 0x64 is not a VNI; must be a decimal number from 1 to 16777215
f:13:3: vnis.+100: +100 is not a VNI; must be a decimal number from 1 to 16777215
f:14:3: vnis.1e2: 1e2 is not a VNI; must be a decimal number from 1 to 16777215
f:15:3: vnis.99999999999999999999: 99999999999999999999 is not a VNI; must be a decimal number from 1 to 16777215
f:16:3: vnis."1\n": "1\n" is not a VNI; must be a decimal number from 1 to 16777215`},
		{"VNI fields", base + "  1: {endpoint: vtep0, port: 0}\n  2: {endpoint: vtep0, port: 65536}\n  3: {endpoint: vtep0, port: \"4789\"}\n  4: {endpoint: vtep0, mtu: 67}\n  5: {endpoint: vtep0, mtu: 65536}\n  6: {endpoint: vtep0, mtu: 1e3}\n  7: {endpoint: vtep0, bridge: \"br 7\"}\n", `
f:11:30: vnis.1.port: is 0; must be a decimal number from 1 to 65535
f:12:30: vnis.2.port: is 65536; must be a decimal number from 1 to 65535
f:13:30: vnis.3.port: is the text "4789"; must be a decimal number from 1 to 65535
f:14:29: vnis.4.mtu: is 67; must be a decimal number from 68 to 65535 bytes, or 0 to derive it
f:15:29: vnis.5.mtu: is 65536; must be a decimal number from 68 to 65535 bytes, or 0 to derive it
f:16:29: vnis.6.mtu: is 1e3; must be a decimal number from 68 to 65535 bytes, or 0 to derive it
f:17:32: vnis.7.bridge: "br 7" can't name a link: it holds a space; use letters, digits, '-' and '_'`},
		{"MTU over IPv6", head + "pools:\n  p: {addresses: [\"2001:db8::/64\"]}\nendpoints:\n  a: {loopback: {}, address: {pool: p}}\n  b: {loopback: {}, address: {static: 2001:db9::1}}\nvnis:\n  1: {endpoint: a, mtu: 1279}\n  2: {endpoint: b, mtu: 1279}\n  3: {endpoint: b, mtu: 1280}\n", `
f:9:25: vnis.1.mtu: is 1279, and endpoint a has an IPv6 address; must be at least 1280
f:10:25: vnis.2.mtu: is 1279, and endpoint b has an IPv6 address; must be at least 1280`},
		{"two VNIs with one bridge", base + "  50: {endpoint: vtep0, bridge: br100}\n  60: {endpoint: vtep0, bridge: eth1}\n  70: {endpoint: vtep0, bridge: br50}\n", `
f:10:3: vnis.100.bridge: br100 is the bridge of VNI 50 at f:11:33; each VNI must have a bridge of its own
f:12:33: vnis.60.bridge: eth1 is the parent of endpoint vtep0 at f:7:22; each VNI must have a bridge of its own`},
		{"VLANs", base + "  1: {endpoint: vtep0, vlan: 5, bridge: br5}\n  2: {endpoint: vtep0, vlan: 5}\n  3: {endpoint: vtep0, vlan: 0}\n  4: {endpoint: vtep0, vlan: 4095}\n  5: {endpoint: vtep0, bridge: br-evpn}\nvlanBridge: {name: br-evpn}\n", `
f:11:30: vnis.1.vlan: stands beside bridge at f:11:41; a VNI has at most one of the two
f:12:30: vnis.2.vlan: VLAN 5 is VNI 1's at f:11:30; each VNI must have its own
f:13:30: vnis.3.vlan: is 0; must be a decimal number from 1 to 4094
f:14:30: vnis.4.vlan: is 4095; must be a decimal number from 1 to 4094
f:15:32: vnis.5.bridge: br-evpn is the VLAN-aware bridge at f:16:20; each VNI must have a bridge of its own`},
		{"VLAN without a bridge", base + "  1: {endpoint: vtep0, vlan: 5}\n", `f:11:30: vnis.1.vlan: needs vlanBridge, which is missing; write vlanBridge: {name: br-evpn} or leave vlan out`},
		{"VLAN bridge", base + "vlanBridge: {}\n", `f:11:1: vlanBridge.name: is missing; name the bridge, such as br-evpn`},
		{"VLAN bridge as a parent", base + "vlanBridge: {name: eth1}\n", `f:7:22: endpoints.vtep0.ipvlan.parent: eth1 is the VLAN-aware bridge at f:11:20; an endpoint can't sit on a bridge that it carries`},
	} {
		t.Run(test.name, func(t *testing.T) { problems(t, test.want, Source{"f", []byte(test.in)}) })
	}
}

func TestLimits(t *testing.T) {
	many := func(n int, head, each string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n {
			fmt.Fprintf(&b, each, i+1)
		}
		return b.String()
	}
	for _, test := range []struct {
		in, want string
	}{
		{many(maxEndpoints, head+"endpoints:\n", " e%[1]d: {loopback: {}, address: {static: 2001:db8::%[1]d}}\n"), ""},
		{many(maxEndpoints+1, head+"endpoints:\n", " e%[1]d: {loopback: {}, address: {static: 2001:db8::%[1]d}}\n"), "f:3:1: endpoints: holds 4097 entries; at most 4096 are possible"},
		{many(maxVNIs, head+"endpoints: {a: {loopback: {}, address: {static: 10.0.0.1}}}\nvnis:\n", " %d: {endpoint: a}\n"), ""},
		{many(maxVNIs+1, head+"vnis:\n", " %d: {endpoint: a}\n"), "f:3:1: vnis: holds 16385 entries; at most 16384 are possible"},
		{many(maxPools+1, head+"pools:\n", " p%d: {addresses: []}\n"), "f:3:1: pools: holds 257 entries; at most 256 are possible"},
		{many(maxPoolEntries+1, head+"pools:\n p:\n  addresses:\n", "  - 2001:db8::%d/128\n"), "f:3:1: pools: all pools together have 4097 entries under addresses, ranges and prefixes; at most 4096 are possible"},
		{many(maxExcludes+1, head+"pools:\n p:\n  addresses: [2001:db8::/64]\n  exclude:\n", "  - 2001:db8::%x\n"), "f:3:1: pools: all pools together have 16385 entries under exclude; at most 16384 are possible"},
	} {
		_, err := Parse("f", []byte(test.in))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("got  %.200s\nwant %s", got, test.want)
		}
	}
}

func TestMerge(t *testing.T) {
	a := Source{"a.yaml", []byte("version: 1\nnode: {name: leaf1}\nendpoints:\n  b: {loopback: {}, address: {static: 10.0.0.2}}\n")}
	b := Source{"b.yaml", []byte("endpoints:\n  a: {loopback: {}, address: {static: 10.0.0.1}}\nvnis:\n  2: {endpoint: a}\n")}
	c := Source{"c.yaml", []byte("vnis:\n  1: {endpoint: b}\n")}
	cfg, err := ParseAll([]Source{a, b, c})
	if err != nil {
		t.Fatal(err)
	}
	one, err := Parse("one", []byte("vnis: {1: {endpoint: b}, 2: {endpoint: a}}\nendpoints:\n  a: {loopback: {}, address: {static: 10.0.0.1}}\n  b: {loopback: {}, address: {static: 10.0.0.2}}\nnode: {name: leaf1}\nversion: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.Equal(one) || cfg.Hash() != one.Hash() {
		t.Errorf("three files and one give different configs:\n%+v\n%+v", cfg, one)
	}
	if got, want := cfg.At("vnis.1.endpoint").String(), "c.yaml:2:17"; got != want {
		t.Errorf("At = %s, want %s", got, want)
	}

	problems(t, `
b.yaml:2:3: endpoints.b: is here a second time, the first is at a.yaml:4:3; keep one
b.yaml:3:1: node: is here a second time, the first is at a.yaml:2:1; keep one
b.yaml:4:1: version: is here a second time, the first is at a.yaml:1:1; keep one
b.yaml:5:1: vrfs: is not a known key; known here: version, node, store, pools, endpoints, loopbacks, vlanBridge, vnis, frr, transaction
c.yaml:1:1: vrfs: is here a second time, the first is at b.yaml:5:1; keep one`,
		a,
		Source{"b.yaml", []byte("endpoints:\n  b: {loopback: {}, address: {static: 10.0.0.2}}\nnode: {name: leaf1}\nversion: 1\nvrfs: {}\n")},
		Source{"c.yaml", []byte("vrfs: {}\n")})
	problems(t, `
b.yaml:1:1: endpoints: is here a second time, the first is at a.yaml:3:1; keep one
c.yaml:1:8: pools: is the text "x"; must be a mapping from pool names to their addresses, or left out`,
		a, Source{"b.yaml", []byte("endpoints: []\n")}, Source{"c.yaml", []byte("pools: x")})
	problems(t, `
b.yaml:1:1: the file is empty; it must hold a mapping that begins with version: 1
c.yaml:1:2: not valid YAML: did not find expected node content while parsing a flow node`,
		a, Source{"b.yaml", nil}, Source{"c.yaml", []byte("{")})
	problems(t, `config:1:1: there is no file; at least one is needed`)
}

// Every field makes a difference to Equal and Hash; places and order don't.
func TestEqual(t *testing.T) {
	parse := func(s string) *Config {
		t.Helper()
		c, err := Parse("f", []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	full := string(Reference)
	one := parse(full)
	two := parse("# moved\n" + strings.Replace(full, "[10.255.0.0, 10.255.0.255,", "[10.255.0.255, 10.255.0.0, 10.255.0.0,", 1))
	if !one.Equal(two) || one.Hash() != two.Hash() {
		t.Error("comments and the order of excludes make a difference")
	}
	for _, edit := range [][2]string{
		{"name: leaf1", "name: leaf2"},
		{"index: 1", "index: 2"},
		{"10.0.0.3:2379", "10.0.0.4:2379"},
		{"prefix: /vtepd", "prefix: /other"},
		{"ca: /etc/vtepd/pki/ca.pem", "ca: /etc/vtepd/ca.pem"},
		{"cert: /etc/vtepd/pki/leaf1.pem", "cert: /etc/vtepd/leaf1.pem"},
		{"key: /etc/vtepd/pki/leaf1.key", "key: /etc/vtepd/leaf1.key"},
		{"username: vtepd", "username: other"},
		{"passwordFile: /etc/vtepd/etcd.password", "passwordFile: /etc/vtepd/password"},
		{"64512..64999", "64512..64998"},
		{"64600..64609", "64600..64608"},
		{"10.128.0.0/16", "10.129.0.0/16"},
		{"length: 26", "length: 27"},
		{"group: gateways", "group: others"},
		{"  vteps:\n", "  vtepz:\n"},
		{"[10.255.0.0/24, 10.255.2.0/25]", "[10.255.2.0/25, 10.255.0.0/24]"},
		{"10.255.0.5-10.255.0.9", "10.255.0.5-10.255.0.8"},
		{"reclaim: recycle", "reclaim: retain"},
		{"  vtep1:", "  vtep7:"},
		{"parent: eth1", "parent: eth3"},
		{"parentNetns: host", "parentNetns: other"},
		{"prefer: 10.255.0.11", "prefer: 10.255.0.12"},
		{"static: 10.0.0.1", "static: 10.0.0.2"},
		{"cidr: 10.255.1.0/24", "cidr: 10.255.3.0/24"},
		{"announce: none", "announce: bgp"},
		{"ipvlan: {parent: eth2}", "loopback: {}"},
		{"name: br-evpn", "name: br-other"},
		{"  300:", "  301:"},
		{"endpoint: vtep6", "endpoint: vtep2"},
		{"port: 4789", "port: 4790"},
		{"bridge: br100", "bridge: br101"},
		{"vlan: 20", "vlan: 21"},
		{"mtu: 1430", "mtu: 1400"},
		{"evpn: require", "evpn: create"},
		{"quiet: 1s", "quiet: 2s"},
		{"limit: 30s", "limit: 20s"},
		{"timeout: 60s", "timeout: 61s"},
		{"allowDisruptive: false", "allowDisruptive: true"},
	} {
		if !strings.Contains(full, edit[0]) {
			t.Fatalf("the reference file has no %q", edit[0])
		}
		other := strings.Replace(full, edit[0], edit[1], 1)
		if edit[0] == "  vteps:\n" {
			other = strings.Replace(other, "pool: vteps\n", "pool: vtepz\n", 1)
		}
		if c := parse(other); one.Equal(c) || one.Hash() == c.Hash() {
			t.Errorf("%s or %s: no difference", edit[0], edit[1])
		}
	}
}

func TestStore(t *testing.T) {
	for _, test := range []struct {
		in   string
		want Store
		text string
	}{
		{"", Store{}, "dir:"},
		{"store: {directory: /srv/claims}", Store{Directory: "/srv/claims"}, "dir:/srv/claims"},
		{
			`store: {etcd: {endpoints: [b:2, "http://a:02/", "[2001:db8::1]:1"]}}`,
			Store{Etcd: Etcd{Endpoints: []string{"http://[2001:db8::1]:1", "http://a:2", "http://b:2"}, Prefix: "/vtepd"}},
			"etcd:http://[2001:db8::1]:1,http://a:2,http://b:2/vtepd",
		},
		{
			"store: {etcd: {endpoints: [a:1], prefix: /x/y, tls: {}, username: u, passwordFile: /p}}",
			Store{Etcd: Etcd{Endpoints: []string{"https://a:1"}, Prefix: "/x/y", Username: "u", PasswordFile: "/p"}},
			"etcd:https://a:1/x/y",
		},
	} {
		c, err := Parse("f", []byte(head+test.in))
		if err != nil {
			t.Errorf("%s: %v", test.in, err)
			continue
		}
		if diff := cmp.Diff(test.want, c.Store); diff != "" || c.Store.String() != test.text {
			t.Errorf("%s: %s, %s", test.in, c.Store, diff)
		}
	}
	for in, want := range map[string]string{
		"dir:/a":                   "dir:/a",
		"etcd:a:1":                 "etcd:https://a:1/vtepd",
		"etcd:b:1,http://a:2/x/y":  "some endpoints are http and some https; all must be the same",
		"etcd:https://b:1,a:2/x/y": "etcd:https://a:2,https://b:1/x/y",
		"etcd:a:1,a:1":             "etcd:https://a:1/vtepd",
		"dir:a":                    `dir:a: "a" is not an absolute path; it must begin with '/'`,
		"etcd:":                    `etcd:: "" has no host or no port; must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379`,
		"etcd:u:p@a:1":             "etcd:u:p@a:1: has a user or a password in it, which end up in logs; write username and passwordFile instead",
		"etcd:a:1/":                `etcd:a:1/: "/" can't be a prefix of keys; must begin with '/', end without, have no empty part and at most 255 bytes, such as /vtepd`,
		"/var/lib":                 `"/var/lib" is not a store; must be dir:PATH or etcd:ENDPOINT[,ENDPOINT...][/PREFIX]`,
	} {
		s, err := ParseStore(in, "https")
		got := s.String()
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", in, got, want)
		}
		if again, err2 := ParseStore(got, "https"); err == nil && (err2 != nil || !again.Equal(s)) {
			t.Errorf("%s isn't read as it is written: %v, %v", got, again, err2)
		}
	}
}

func TestManyProblems(t *testing.T) {
	_, err := Parse("f", []byte(head+strings.Repeat("vnis: {}\n", 151)))
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 150 {
		t.Fatalf("%d problems, want 150", len(ps))
	}
	lines := strings.Split(err.Error(), "\n")
	if got, want := lines[len(lines)-1], "and 50 more problems"; len(lines) != 101 || got != want {
		t.Errorf("%d lines, the last %q; want 101 and %q", len(lines), got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Reference)
	f.Add([]byte(base))
	for _, s := range []string{"", "a: &x [*x]", "\ufeff---\n...\n", "a: #\n #b\n- c", "a: |\n x\n#y\nb: {", "? [a]\n: b", "\xff\xfe", "vnis: {0: }"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data)
		if err == nil {
			again, err := Parse("g", data)
			if err != nil || !c.Equal(again) || c.Hash() != again.Hash() {
				t.Fatal("the same bytes give another config")
			}
			return
		}
		var ps Problems
		if c != nil || !errors.As(err, &ps) || len(ps) == 0 {
			t.Fatalf("config %v, error %#v", c, err)
		}
		lines := strings.Split(string(data), "\n")
		for _, p := range ps {
			if p.Pos.File != "f" || p.Pos.Line < 1 || p.Pos.Line > len(lines) ||
				p.Pos.Column < 1 || p.Pos.Column > utf8.RuneCountInString(lines[p.Pos.Line-1])+1 {
				t.Errorf("outside of the file: %s", p.Error())
			}
			if msg := p.Error(); strings.ContainsFunc(msg, func(r rune) bool { return r < ' ' || r == utf8.RuneError }) || !utf8.ValidString(msg) {
				t.Errorf("unprintable: %q", msg)
			}
			for _, word := range []string{"yaml.Node", "reflect", "!!int into", "unmarshal", "config.", "internal error"} {
				if strings.Contains(p.Msg, word) && !strings.Contains(string(data), word) {
					t.Errorf("speaks of its insides: %s", p.Msg)
				}
			}
		}
		if !slices.IsSortedFunc(ps, func(a, b Problem) int { return a.Pos.compare(b.Pos) }) {
			t.Error("not sorted")
		}
	})
}
