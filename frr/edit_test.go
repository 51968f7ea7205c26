package frr

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func observed(nets ...Network) Observation {
	return Observation{
		Instance: Instance{ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.1")},
		RouteMap: RouteMap{Present: true, Ours: true},
		Networks: nets,
	}
}

func TestCheck(t *testing.T) {
	p := netip.MustParsePrefix("10.255.0.1/32")
	add, remove := Edit{Verb: AddNetwork, ASN: 65001, Prefix: p}, Edit{Verb: RemoveNetwork, ASN: 65001, Prefix: p}
	noMap, foreignMap, none, other := observed(), observed(), Observation{}, observed()
	noMap.RouteMap, foreignMap.RouteMap.Ours, other.Instance.ASN = RouteMap{}, false, 65002
	id := func(a, was string) Edit {
		e := Edit{Verb: SetRouterID, ASN: 65001, Prefix: netip.MustParsePrefix(a + "/32")}
		if was != "" {
			e.Was = netip.MustParseAddr(was)
		}
		return e
	}
	configured := func(a string) Observation {
		o := observed()
		o.Instance.Configured = netip.MustParseAddr(a)
		return o
	}
	for name, tt := range map[string]struct {
		edit    Edit
		obs     Observation
		differs bool
		is      error
		text    string
	}{
		"add":                        {add, observed(), true, nil, ""},
		"add what is there":          {add, observed(Network{p, Mark}), false, nil, ""},
		"add below the operator's":   {add, observed(Network{p, ""}), false, ErrInTheWay, "in the way: there is a line for it without a route map, not made by vtepd"},
		"add below another map":      {add, observed(Network{p, "X"}), false, ErrInTheWay, "in the way: there is a line for it with route-map X, not made by vtepd"},
		"add without the map":        {add, noMap, false, nil, "route-map VTEPD must be there first: FRR accepts a network line without it and never announces it"},
		"add with another's map":     {add, foreignMap, false, ErrNotOurs, "not vtepd's: the route map VTEPD is not the one that vtepd makes"},
		"no instance":                {add, none, false, ErrInstance, "not the BGP instance that was planned for: no BGP instance in the default VRF, router bgp 65001 was there"},
		"another instance":           {add, other, false, ErrInstance, "not the BGP instance that was planned for: router bgp 65002 runs, router bgp 65001 was there"},
		"remove":                     {remove, observed(Network{p, Mark}), true, nil, ""},
		"remove what is not there":   {remove, observed(), false, nil, ""},
		"remove the operator's":      {remove, observed(Network{p, ""}), false, ErrNotOurs, "not vtepd's: the line for it has no route-map VTEPD"},
		"map":                        {Edit{Verb: AddRouteMap, ASN: 65001}, noMap, true, nil, ""},
		"map there":                  {Edit{Verb: AddRouteMap, ASN: 65001}, observed(), false, nil, ""},
		"map of another":             {Edit{Verb: AddRouteMap, ASN: 65001}, foreignMap, false, ErrNotOurs, `not vtepd's: a route map VTEPD is there without the description "vtepd marks its host routes with this map" alone on one entry`},
		"no map":                     {Edit{Verb: RemoveRouteMap, ASN: 65001}, observed(), true, nil, ""},
		"no map there":               {Edit{Verb: RemoveRouteMap, ASN: 65001}, noMap, false, nil, ""},
		"no map of another":          {Edit{Verb: RemoveRouteMap, ASN: 65001}, foreignMap, false, ErrNotOurs, "not vtepd's: the route map VTEPD is not the one that vtepd makes"},
		"no map in use":              {Edit{Verb: RemoveRouteMap, ASN: 65001}, observed(Network{p, Mark}), false, ErrInTheWay, "in the way: network 10.255.0.1/32 still uses it"},
		"evpn":                       {Edit{Verb: AddEVPN, ASN: 65001}, observed(), true, nil, ""},
		"no evpn":                    {Edit{Verb: RemoveEVPN, ASN: 65001}, observed(), false, nil, ""},
		"router id":                  {id("10.0.0.5", ""), observed(), true, nil, ""},
		"router id there":            {id("10.0.0.5", ""), configured("10.0.0.5"), false, nil, ""},
		"router id for our own":      {id("10.0.0.5", "10.0.0.4"), configured("10.0.0.4"), true, nil, ""},
		"router id of the operator":  {id("10.0.0.5", "10.0.0.4"), configured("10.0.0.9"), false, ErrInTheWay, "in the way: bgp router-id 10.0.0.9 is there, not made by vtepd"},
		"no router id":               {id("10.0.0.5", "").Inverse(), configured("10.0.0.5"), true, nil, ""},
		"no router id there":         {id("10.0.0.5", "").Inverse(), configured("10.0.0.9"), false, nil, ""},
		"no router id of IPv6":       {Edit{Verb: SetRouterID, ASN: 65001, Prefix: netip.MustParsePrefix("2001:db8::1/128")}, observed(), false, errInvalid, "invalid edit: 2001:db8::1/128 is no router id"},
		"unknown verb":               {Edit{Verb: "clear", ASN: 65001}, observed(), false, errInvalid, `invalid edit: unknown verb "clear"`},
		"no ASN":                     {Edit{Verb: AddEVPN}, observed(), false, errInvalid, "invalid edit: no ASN"},
		"no prefix":                  {Edit{Verb: AddNetwork, ASN: 65001}, observed(), false, errInvalid, "invalid edit: invalid Prefix is not a prefix that a network line can have"},
		"host bits":                  {Edit{Verb: AddNetwork, ASN: 65001, Prefix: netip.MustParsePrefix("10.0.0.1/24")}, observed(), false, errInvalid, "invalid edit: 10.0.0.1/24 is not a prefix that a network line can have"},
		"mapped":                     {Edit{Verb: AddNetwork, ASN: 65001, Prefix: netip.MustParsePrefix("::ffff:10.0.0.1/128")}, observed(), false, errInvalid, "invalid edit: ::ffff:10.0.0.1/128 is not a prefix that a network line can have"},
		"a prefix where none can be": {Edit{Verb: AddEVPN, ASN: 65001, Prefix: p}, observed(), false, errInvalid, "invalid edit: add-evpn takes no prefix"},
	} {
		differs, err := tt.edit.Check(tt.obs)
		if differs != tt.differs || (err == nil) != (tt.text == "") || err != nil && err.Error() != tt.text || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s: %v, %v", name, differs, err)
		}
	}
}

var hostPrefix = rapid.Custom(func(t *rapid.T) netip.Prefix {
	if rapid.Bool().Draw(t, "six") {
		a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "a"))
		a[0] = 0x20
		return netip.PrefixFrom(netip.AddrFrom16(a), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a"))), 32)
})

var anyEdit = rapid.Custom(func(t *rapid.T) Edit {
	e := Edit{ASN: rapid.Uint32Min(1).Draw(t, "asn")}
	e.Verb = rapid.SampledFrom([]Verb{AddRouteMap, RemoveRouteMap, AddNetwork, RemoveNetwork, AddEVPN, RemoveEVPN}).Draw(t, "verb")
	if e.Verb == AddNetwork || e.Verb == RemoveNetwork {
		e.Prefix = hostPrefix.Draw(t, "prefix")
	}
	return e
})

// After an edit nothing is left of it to do, its inverse brings back what was there, and its lines are safe to send.
func TestEditProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyEdit.Draw(t, "edit")
		o := observed()
		o.Instance.ASN = e.ASN
		if e.Verb == RemoveNetwork || rapid.Bool().Draw(t, "there") {
			o.Networks = []Network{{e.Prefix, Mark}}
		}
		if e.Verb == AddRouteMap || e.Verb == RemoveRouteMap {
			o.Networks = nil
			o.RouteMap = RouteMap{Present: e.Verb == RemoveRouteMap, Ours: e.Verb == RemoveRouteMap}
		}
		o.EVPN = e.Verb == RemoveEVPN
		differs, err := e.Check(o)
		if err != nil {
			t.Fatalf("%v: %v", e, err)
		}
		after := e.Applied(o)
		if again, err := e.Check(after); again || err != nil {
			t.Fatalf("%v, done: %v, %v", e, again, err)
		}
		if e.Inverse().Inverse() != e {
			t.Fatalf("%v: the inverse's inverse is %v", e, e.Inverse().Inverse())
		}
		if differs {
			back := e.Inverse().Applied(after)
			if !slices.Equal(back.Networks, o.Networks) || back.EVPN != o.EVPN || back.RouteMap != o.RouteMap {
				t.Fatalf("%v and back: %v, was %v", e, back, o)
			}
		}
		lines, err := Render(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if len(l) > 200 || strings.ContainsFunc(l, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("line %q", l)
			}
		}
	})
}

func TestRender(t *testing.T) {
	four, six := netip.MustParsePrefix("10.255.0.1/32"), netip.MustParsePrefix("2001:db8::1/128")
	for _, tt := range []struct {
		edit Edit
		want string
	}{
		{Edit{Verb: AddRouteMap, ASN: 65001}, "route-map VTEPD permit 10|description vtepd marks its host routes with this map"},
		{Edit{Verb: RemoveRouteMap, ASN: 65001}, "no route-map VTEPD"},
		{Edit{Verb: AddNetwork, ASN: 65001, Prefix: four}, "router bgp 65001|address-family ipv4 unicast|network 10.255.0.1/32 route-map VTEPD"},
		{Edit{Verb: RemoveNetwork, ASN: 65001, Prefix: four}, "router bgp 65001|address-family ipv4 unicast|no network 10.255.0.1/32 route-map VTEPD"},
		{Edit{Verb: AddNetwork, ASN: 4200000000, Prefix: six}, "router bgp 4200000000|address-family ipv6 unicast|network 2001:db8::1/128 route-map VTEPD"},
		{Edit{Verb: SetRouterID, ASN: 65001, Prefix: four}, "router bgp 65001|bgp router-id 10.255.0.1"},
		{Edit{Verb: RemoveRouterID, ASN: 65001, Prefix: four}, "router bgp 65001|no bgp router-id 10.255.0.1"},
		{Edit{Verb: AddEVPN, ASN: 65001}, "router bgp 65001|address-family l2vpn evpn|advertise-all-vni"},
		{Edit{Verb: RemoveEVPN, ASN: 65001}, "router bgp 65001|address-family l2vpn evpn|no advertise-all-vni"},
	} {
		lines, err := Render(tt.edit)
		if got := strings.Join(lines, "|"); err != nil || got != "configure terminal|"+tt.want+"|end" {
			t.Errorf("%v: %q, %v", tt.edit, got, err)
		}
	}
	if lines, err := Render(Edit{Verb: AddNetwork, ASN: 1}); err == nil || lines != nil {
		t.Errorf("an edit without a prefix is rendered: %q", lines)
	}
}
