package frr

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The directories of testdata: what real daemons of three versions answered, leaf1 of a spine and two leaves.
var versions = map[string]Version{"8.4.4": {8, 4, 4}, "10.3": {10, 3, 0}, "10.7.1": {10, 7, 1}}

func recorded(t testing.TB, version, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", version, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func forEachVersion(t *testing.T, do func(t *testing.T, name string, v Version)) {
	for name, v := range versions {
		t.Run(name, func(t *testing.T) { do(t, name, v) })
	}
}

var (
	prefix = netip.MustParsePrefix
	ip     = netip.MustParseAddr
	addrs  = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	nets   = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	// The kernel chose the link-local addresses of each recording.
	linkLocal = cmp.Comparer(func(a, b netip.Addr) bool { return a == b || a.IsLinkLocalUnicast() && b.IsLinkLocalUnicast() })
)

func TestParseConfig(t *testing.T) {
	forEachVersion(t, func(t *testing.T, name string, v Version) {
		ours := RouteMap{Present: true, Ours: true}
		id := ip("10.0.0.1")
		want := map[string]Observation{
			"config.txt": {
				Version: v, Instance: Instance{65001, id, id}, EVPN: true, RouteMap: ours,
				Networks: []Network{
					{prefix("10.0.0.1/32"), ""},
					{prefix("10.9.0.1/32"), "OPS"},
					{prefix("10.77.0.0/16"), ""},
					{prefix("10.255.0.11/32"), Mark},
					{prefix("10.255.0.22/32"), Mark},
					{prefix("2001:db8:77::/64"), ""},
					{prefix("2001:db8:ff::11/128"), Mark},
				},
			},
			"config-vrf.txt": {
				Version: v, Instance: Instance{4200000001, id, id}, RouteMap: RouteMap{Present: true},
				Networks: []Network{{prefix("10.255.0.11/32"), Mark}},
			},
			"config-asdot.txt": {Version: v, Instance: Instance{64086<<16 | 59905, id, id}, RouteMap: RouteMap{Present: true}},
			"bare-config.txt":  {Version: v, Instance: Instance{ASN: 65009}},
			"empty-config.txt": {Version: v},
		}
		if name == "8.4.4" { // knows no asdot, and kept the first instance
			delete(want, "config-asdot.txt")
			o := want["config.txt"]
			o.RouteMap.Ours = false
			want["config-vrf.txt"] = o
		}
		for file, want := range want {
			got, err := ParseConfig(recorded(t, name, file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, addrs, nets); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	})
}

func TestParseRouterID(t *testing.T) {
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		for file, want := range map[string]netip.Addr{"vrfs.json": ip("10.0.0.1"), "bare-vrfs.json": {}, "empty-vrfs.json": {}} {
			if got, err := ParseRouterID(recorded(t, name, file)); err != nil || got != want {
				t.Errorf("%s: %v, %v", file, got, err)
			}
		}
	})
}

func TestParseSessions(t *testing.T) {
	want := []Session{
		{Peer: "10.1.3.2", RouterID: ip("10.0.0.2"), Established: true, Local: ip("10.1.3.1"), IPv4: true},
		{Peer: "192.0.2.98", UpdateSource: "lo"},
		{Peer: "192.0.2.99", UpdateSource: "10.0.0.1"},
		{Peer: "n1", RouterID: ip("10.0.0.3"), Established: true, Local: ip("fe80::1"), IPv4: true, IPv6: true, EVPN: true},
	}
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		for file, want := range map[string][]Session{"neighbors.json": want, "bare-neighbors.json": nil, "empty-neighbors.json": nil} {
			got, err := ParseSessions(recorded(t, name, file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, linkLocal); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	})
}

func TestParseVNIs(t *testing.T) {
	vni := func(n uint32, l3 bool) VNI {
		return VNI{VNI: n, Device: fmt.Sprint("vx", n), Local: ip("10.255.0.11"), L3: l3}
	}
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		all := []VNI{vni(100, false), vni(200, false), vni(5000, name == "8.4.4")}
		for file, want := range map[string][]VNI{"vnis.json": all, "bare-vnis.json": nil, "empty-vnis.json": nil} {
			got, err := ParseVNIs(recorded(t, name, file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, addrs); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	})
}

func TestParseType3(t *testing.T) {
	want := []Type3{
		{RD: "10.0.0.1:2", VNI: 100, Origin: ip("10.255.0.11"), NextHop: ip("10.255.0.11"), Local: true, Valid: true, AdvertisedTo: []string{"n1"}},
		{RD: "10.0.0.2:2", VNI: 100, Origin: ip("10.255.0.22"), NextHop: ip("10.255.0.22"), Peer: "n1", Valid: true},
		{RD: "10.0.0.1:3", VNI: 200, Origin: ip("10.255.0.11"), NextHop: ip("10.255.0.11"), Local: true, Valid: true, AdvertisedTo: []string{"n1"}},
	}
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		all := slices.Clone(want)
		all[1].Valid = false // leaf2's VTEP was put on leaf1's loopback before the recording
		if name != "8.4.4" { // where 5000 is a layer 3 VNI, which has no type-3 route
			last := all[2]
			last.RD, last.VNI = "10.0.0.1:4", 5000
			all = append(all, last)
		}
		for file, want := range map[string][]Type3{"type3.json": all, "type3-reflected.json": want, "bare-type3.json": nil} {
			got, err := ParseType3(recorded(t, name, file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, addrs); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	})
}

func TestParseRoute(t *testing.T) {
	both := []string{"10.1.3.2", "n1"}
	leaf2 := []Source{
		{Peer: "10.1.3.2", RouterID: ip("10.0.0.2"), Origin: ip("10.0.0.2"), ASPath: "65002", NextHop: ip("10.1.3.2")},
		{Peer: "n1", RouterID: ip("10.0.0.3"), Origin: ip("10.0.0.3"), ASPath: "65000 65002", NextHop: ip("fe80::1")},
	}
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		for file, want := range map[string]Route{
			"route-local.json":          {Prefix: prefix("10.255.0.11/32"), Local: true, AdvertisedTo: both},
			"route-both.json":           {Prefix: prefix("10.255.0.22/32"), Local: true, AdvertisedTo: both, Others: leaf2},
			"route-foreign.json":        {Prefix: prefix("10.0.0.2/32"), AdvertisedTo: both, Others: leaf2},
			"route-absent.json":         {Prefix: prefix("10.9.9.9/32")},
			"bare-route.json":           {Prefix: prefix("10.9.9.9/32")},
			"empty-route.json":          {Prefix: prefix("10.9.9.9/32")},
			"route-unresolved.json":     {Prefix: prefix("10.9.0.1/32")},
			"route-local6.json":         {Prefix: prefix("2001:db8:ff::11/128"), Local: true, AdvertisedTo: []string{"n1"}},
			"route-redistributed6.json": {Prefix: prefix("2001:db8:88::1/128"), Local: true, AdvertisedTo: []string{"n1"}},
			"route-absent6.json":        {Prefix: prefix("2001:db8:9::/64")},
			"route-reflected.json": {
				Prefix: prefix("10.255.0.22/32"),
				Others: []Source{{Peer: "n1", RouterID: ip("10.0.0.3"), Origin: ip("10.0.0.2"), NextHop: ip("fe80::1")}},
			},
		} {
			got, err := ParseRoute(want.Prefix, recorded(t, name, file))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if diff := cmp.Diff(want, got, linkLocal, nets); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	})
}

func TestParseUpdateGroups(t *testing.T) {
	p := prefix("10.255.0.11/32")
	forEachVersion(t, func(t *testing.T, name string, _ Version) {
		for file, want := range map[string][]string{"waiting": {"10.1.3.2"}, "sent": nil} {
			groups, err := ParseUpdateGroups(CommandUpdates(p), recorded(t, name, "updates-"+file+".txt"))
			if err != nil || len(groups) != 2 {
				t.Fatal(groups, err)
			}
			waits, err := ParseQueue(p, recorded(t, name, "queue-"+file+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			sent, queued := Unsent([]string{"10.1.3.2", "n1"}, groups, func(g UpdateGroup) bool { return slices.Contains(waits, g.Subgroup) })
			if !slices.Equal(queued, want) || len(sent)+len(queued) != 2 {
				t.Errorf("%s: sent to %v, waits for %v", file, sent, queued)
			}
			if other, err := ParseQueue(prefix("10.0.0.1/32"), recorded(t, name, "queue-"+file+".txt")); err != nil || other != nil {
				t.Errorf("%s: another prefix waits in %v, %v", file, other, err)
			}
		}
	})
}

func TestGarbage(t *testing.T) {
	p := prefix("10.255.0.11/32")
	long := strings.Repeat("word é ", 100)
	for name, tt := range map[string]struct {
		parse  func(string) error
		answer string
		want   string
	}{
		"config":           {parseConfigErr, "hello\nfrr version 8.4.4\n", `FRR's answer makes no sense: show running-config: no frr version on the first line: "hello frr version 8.4.4"`},
		"config, nothing":  {parseConfigErr, "", `FRR's answer makes no sense: show running-config: no frr version on the first line: nothing`},
		"config, version":  {parseConfigErr, "frr version ten\n", `FRR's answer makes no sense: show running-config: not a version: "frr version ten"`},
		"config, ASN":      {parseConfigErr, "frr version 10.3\nrouter bgp x\n", `FRR's answer makes no sense: show running-config: not an AS number: "router bgp x"`},
		"config, network":  {parseConfigErr, "frr version 10.3\nrouter bgp 1\n address-family ipv4 unicast\n  network ::/0\n", `FRR's answer makes no sense: show running-config: not a network: "network ::/0"`},
		"config, id":       {parseConfigErr, "frr version 10.3\nrouter bgp 1\n bgp router-id me\n", `FRR's answer makes no sense: show running-config: not a router id: "bgp router-id me"`},
		"long":             {parseConfigErr, long, `FRR's answer makes no sense: show running-config: no frr version on the first line: "` + strings.TrimSuffix(strings.Repeat("word é ", 10), " ") + `…"`},
		"vrfs":             {func(s string) error { _, err := ParseRouterID(s); return err }, "% Ambiguous command", `FRR's answer makes no sense: show bgp vrfs json: not JSON: "% Ambiguous command"`},
		"vrfs, other":      {func(s string) error { _, err := ParseRouterID(s); return err }, "{}", `FRR's answer makes no sense: show bgp vrfs json: no vrfs: "{}"`},
		"vrfs, id":         {func(s string) error { _, err := ParseRouterID(s); return err }, `{"vrfs":{"default":{"routerId":"x"}}}`, `FRR's answer makes no sense: show bgp vrfs json: not a router id: "x"`},
		"sessions, number": {func(s string) error { _, err := ParseSessions(s); return err }, `5`, `FRR's answer makes no sense: show bgp neighbors json: the answer is a number: "5"`},
		"sessions, state":  {func(s string) error { _, err := ParseSessions(s); return err }, `{"10.0.0.1":{}}`, `FRR's answer makes no sense: show bgp neighbors json: a neighbour without a state: "{}"`},
		"vnis":             {func(s string) error { _, err := ParseVNIs(s); return err }, `[{"type":"L2"}]`, `FRR's answer makes no sense: show evpn vni detail json: a VNI without its number: "[{\"type\":\"L2\"}]"`},
		"vnis, two":        {func(s string) error { _, err := ParseVNIs(s); return err }, `[][]`, `FRR's answer makes no sense: show evpn vni detail json: more follows the JSON: "[]"`},
		"type 3":           {func(s string) error { _, err := ParseType3(s); return err }, `{"1:1":{"[3]:x":{"ip":"x"}}}`, `FRR's answer makes no sense: show bgp l2vpn evpn route detail type multicast json: a route without its origin: "{\"ip\":\"x\"}"`},
		"route":            {func(s string) error { _, err := ParseRoute(p, s); return err }, `{"prefix":"10.0.0.0/8"}`, `FRR's answer makes no sense: show bgp ipv4 unicast 10.255.0.11/32 json: the answer is about another prefix: "10.0.0.0/8"`},
		"route, type":      {func(s string) error { _, err := ParseRoute(p, s); return err }, `{"paths":3}`, `FRR's answer makes no sense: show bgp ipv4 unicast 10.255.0.11/32 json: paths is a number: "{\"paths\":3}"`},
		"updates":          {func(s string) error { _, err := ParseUpdateGroups(CommandUpdates(p), s); return err }, `% Unknown`, `FRR's answer makes no sense: show bgp ipv4 unicast update-groups: not a list of update groups: "% Unknown"`},
		"queue":            {func(s string) error { _, err := ParseQueue(p, s); return err }, `% Unknown`, `FRR's answer makes no sense: show bgp ipv4 unicast update-groups advertise-queue: not a list of update groups: "% Unknown"`},
	} {
		if err := tt.parse(tt.answer); err == nil || !errors.Is(err, ErrGarbage) || err.Error() != tt.want {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, tt.want)
		}
	}
}

func parseConfigErr(s string) error { _, err := ParseConfig(s); return err }

func TestParseVersion(t *testing.T) {
	for s, want := range map[string]string{"10.3": "10.3", "8.4.4": "8.4.4", "10.7.1-1~deb13u1": "10.7.1", "10.6-dev": "10.6", "10.3.0": "10.3"} {
		if v, ok := parseVersion(s); !ok || v.String() != want {
			t.Errorf("%s: %v, %v", s, v, ok)
		}
	}
	for _, s := range []string{"", "10", "x.y", "-1.2", "10.99999999"} {
		if v, ok := parseVersion(s); ok {
			t.Errorf("%q: %v", s, v)
		}
	}
}

// seed gives every recorded answer to a fuzz target.
func seed(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*")
	if err != nil || len(files) < 60 {
		f.Fatal(len(files), err)
	}
	for _, name := range files {
		if filepath.Dir(name) == "testdata/fuzz" {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
}

// Whatever the answer, a parser ends, and an error wraps ErrGarbage.
func fuzz(f *testing.F, parse func(*testing.T, string) error) {
	seed(f)
	f.Fuzz(func(t *testing.T, answer string) {
		if err := parse(t, answer); err != nil && !errors.Is(err, ErrGarbage) {
			t.Error(err)
		}
	})
}

func FuzzParseConfig(f *testing.F) {
	fuzz(f, func(t *testing.T, s string) error {
		o, err := ParseConfig(s)
		for _, n := range o.Networks {
			if !n.Prefix.IsValid() {
				t.Error(n)
			}
		}
		if o.RouteMap.Ours && !o.RouteMap.Present {
			t.Error(o.RouteMap)
		}
		return err
	})
}

func FuzzParseRouterID(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error { _, err := ParseRouterID(s); return err })
}

func FuzzParseSessions(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error { _, err := ParseSessions(s); return err })
}

func FuzzParseVNIs(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error { _, err := ParseVNIs(s); return err })
}

func FuzzParseType3(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error { _, err := ParseType3(s); return err })
}

func FuzzParseRoute(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error { _, err := ParseRoute(prefix("10.255.0.11/32"), s); return err })
}

func FuzzParseUpdateGroups(f *testing.F) {
	fuzz(f, func(_ *testing.T, s string) error {
		_, err := ParseUpdateGroups(CommandEVPNUpdates, s)
		_, err2 := ParseQueue(prefix("10.255.0.11/32"), s)
		return errors.Join(err, err2)
	})
}
