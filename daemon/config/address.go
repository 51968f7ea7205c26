package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// unusable is what can't be a tunnel endpoint's address.
var unusable = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/32"), "the unspecified address"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast address"},
	{netip.MustParsePrefix("::/128"), "the unspecified address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("::ffff:0:0/96"), "an IPv4-mapped IPv6 address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
}

// parseAddr reads an endpoint's address, or says why s is none.
func parseAddr(s string) (addr netip.Addr, why string) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		if p, err := netip.ParsePrefix(s); err == nil {
			return addr, fmt.Sprintf("%s is a prefix; must be an address alone, such as %s", quote(s), p.Addr())
		}
		return addr, fmt.Sprintf("%s is not an IP address; must be one such as 10.255.0.11 or 2001:db8::11", quote(s))
	}
	if addr.Zone() != "" {
		return addr, fmt.Sprintf("%s has a zone; must be an address alone", quote(s))
	}
	for _, u := range unusable {
		if u.prefix.Addr().BitLen() == addr.BitLen() && u.prefix.Overlaps(netip.PrefixFrom(addr, addr.BitLen())) {
			return addr, fmt.Sprintf("%s is %s; must be a unicast address that the fabric can route", s, u.what)
		}
	}
	return addr, ""
}

// parsePrefix reads a prefix to take endpoints' addresses from, or says why s
// is none.
func parsePrefix(s string) (prefix netip.Prefix, why string) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return netip.Prefix{}, fmt.Sprintf("%s has no length; must be a prefix such as %s/%d", quote(s), a, a.BitLen())
		}
		return netip.Prefix{}, fmt.Sprintf("%s is not a prefix; must be one such as 10.255.0.0/24 or 2001:db8::/64", quote(s))
	}
	if m := prefix.Masked(); m != prefix {
		return netip.Prefix{}, fmt.Sprintf("%s has bits set after its length; must be %s", s, m)
	}
	for _, u := range unusable {
		if u.prefix.Overlaps(prefix) {
			return netip.Prefix{}, fmt.Sprintf("%s holds %s (%s); must hold only unicast addresses that the fabric can route", s, u.what, u.prefix)
		}
	}
	return prefix, ""
}

// parseRange reads what a pool excludes: an address, FIRST-LAST or a prefix.
func parseRange(s string) (r Range, why string) {
	switch {
	case strings.Contains(s, "/"):
		p, err := netip.ParsePrefix(s)
		if err != nil {
			break
		}
		if m := p.Masked(); m != p {
			return r, fmt.Sprintf("%s has bits set after its length; must be %s", s, m)
		}
		return Range{p.Addr(), last(p)}, ""
	case strings.Contains(s, "-"):
		a, b, _ := strings.Cut(s, "-")
		first, err1 := netip.ParseAddr(strings.TrimSpace(a))
		last, err2 := netip.ParseAddr(strings.TrimSpace(b))
		if err1 != nil || err2 != nil || first.Zone() != "" || last.Zone() != "" {
			break
		}
		if first.BitLen() != last.BitLen() {
			return r, fmt.Sprintf("%s goes from one address family to the other; both ends must be of one family", quote(s))
		}
		if last.Less(first) {
			return r, fmt.Sprintf("%s ends before it begins; must be %s-%s", quote(s), last, first)
		}
		return Range{first, last}, ""
	default:
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			return Range{a, a}, ""
		}
	}
	return r, fmt.Sprintf("%s is not an address, a range or a prefix; must be one such as 10.255.0.1, 10.255.0.5-10.255.0.9 or 10.255.0.64/28", quote(s))
}

// last is the highest address of p.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// excludes reports whether a is excluded from the pool.
func (p Pool) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(p.Exclude, func(r Range) bool {
		return r.First.BitLen() == a.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
	})
}

func prefixes(ps []netip.Prefix) string {
	names := make([]string, len(ps))
	for i, p := range ps {
		names[i] = p.String()
	}
	return listing(names)
}

// span is an entry of a pool with its place.
type span struct {
	prefix netip.Prefix
	pool   string
	field  string
	pos    Pos
	whole  bool // it is handed out in prefixes
}

func (s span) taker() string {
	if s.whole {
		return "somebody else, in a prefix"
	}
	return "another endpoint"
}

// poolOverlaps refuses pools that hold an address twice, and more entries
// than can be handled. It leaves d.entries sorted by their first addresses, of
// two that overlap the one that holds the other first.
func (d *decoder) poolOverlaps() {
	excludes := 0
	for _, p := range d.cfg.Pools {
		excludes += len(p.Exclude) + len(p.ExcludeRanges)
	}
	for _, n := range []struct {
		have, most int
		what       string
	}{{len(d.entries) + len(d.numbers), maxPoolEntries, "addresses, ranges and prefixes"}, {excludes, maxExcludes, "exclude"}} {
		if n.have > n.most {
			d.bad(d.cfg.At("pools"), "pools", "all pools together have %d entries under %s; at most %d are possible", n.have, n.what, n.most)
			clear(d.usable)
			d.entries, d.numbers = nil, nil
			return
		}
	}
	slices.SortFunc(d.entries, func(a, b span) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), a.pos.compare(b.pos))
	})
	var outer span
	for i, s := range d.entries {
		if i == 0 || !outer.prefix.Overlaps(s.prefix) {
			outer = s
			continue
		}
		// Blame the later of the two in the file.
		here, there := s, outer
		if here.pos.compare(there.pos) < 0 {
			here, there = there, here
		}
		d.bad(here.pos, here.field, "%s overlaps %s of pool %s at %s; an address must be in one entry only", here.prefix, there.prefix, bare(there.pool), there.pos)
	}
}

// asker is an endpoint or a loopback, and its address.
type asker struct {
	Address
	kind, name string
	field      string // of the address
}

func (a asker) String() string { return a.kind + " " + bare(a.name) }

func (d *decoder) askers() []asker {
	var out []asker
	for _, e := range d.cfg.Endpoints {
		out = append(out, asker{e.Address, "endpoint", e.Name, join("endpoints", e.Name) + ".address"})
	}
	for _, l := range d.cfg.Loopbacks {
		for _, f := range l.Families() {
			out = append(out, asker{f.Address, "loopback", l.Name, join("loopbacks", l.Name) + "." + f.Key})
		}
	}
	return out
}

// addressClashes refuses two endpoints with one address, and a fixed address
// that a pool could give to somebody else.
func (d *decoder) addressClashes() {
	type user struct {
		asker
		addr  netip.Addr
		fixed bool
		field string
		pos   Pos
	}
	var users []user
	for _, a := range d.askers() {
		addr, fixed := a.Fixed()
		key := string(a.Kind)
		if !fixed {
			addr, key = a.Prefer, "prefer"
		}
		if addr.IsValid() {
			field := a.field + "." + key
			users = append(users, user{a, addr, fixed, field, d.cfg.At(field)})
		}
	}
	d.groupClashes()
	slices.SortFunc(users, func(a, b user) int { return a.pos.compare(b.pos) })
	first := map[netip.Addr]user{}
	for _, u := range users {
		if f, ok := first[u.addr]; ok {
			d.bad(u.pos, u.field, "%s is the address of %s at %s; each %s must have its own", u.addr, f.asker, f.pos, u.kind)
			continue
		}
		first[u.addr] = u
		if !u.fixed {
			continue
		}
		// Entries don't overlap (or that is reported already), so only the
		// last one that doesn't begin after the address can hold it.
		i, found := slices.BinarySearchFunc(d.entries, u.addr, func(s span, a netip.Addr) int { return s.prefix.Addr().Compare(a) })
		if !found {
			i--
		}
		if i < 0 {
			continue
		}
		if s := d.entries[i]; s.prefix.Contains(u.addr) && !d.pool(s.pool).excludes(u.addr) {
			d.bad(u.pos, u.field, "%s lies in pool %s at %s, which could give it to %s; exclude it there or use one outside",
				u.addr, bare(s.pool), s.pos, s.taker())
		}
	}
}

// groupClashes refuses two endpoints of one group: a router has a group's address once.
func (d *decoder) groupClashes() {
	type key struct{ pool, group string }
	type user struct {
		asker
		key
		field string
		pos   Pos
	}
	var users []user
	for _, a := range d.askers() {
		if a.Group != "" {
			field := a.field + ".group"
			users = append(users, user{a, key{a.Pool, a.Group}, field, d.cfg.At(field)})
		}
	}
	slices.SortFunc(users, func(a, b user) int { return a.pos.compare(b.pos) })
	first := map[key]user{}
	for _, u := range users {
		if f, ok := first[u.key]; ok {
			d.bad(u.pos, u.field, "%s is the group of %s at %s, and so has its address; a router can have a group's address once", bare(u.group), f.asker, f.pos)
			continue
		}
		first[u.key] = u
	}
}

// bridgeClashes refuses two VNIs with one bridge or one VLAN, and a bridge
// that is something else as well.
func (d *decoder) bridgeClashes() {
	type user struct{ what, field string }
	links := map[string]user{}
	if d.cfg.VLANBridge != "" {
		links[d.cfg.VLANBridge] = user{"the VLAN-aware bridge", "vlanBridge.name"}
	}
	for _, e := range d.cfg.Endpoints {
		if e.Parent == "" || e.ParentNetns != "" {
			continue
		}
		field := join("endpoints", e.Name) + ".ipvlan.parent"
		if e.Parent == d.cfg.VLANBridge {
			d.bad(d.cfg.At(field), field, "%s is the VLAN-aware bridge at %s; an endpoint can't sit on a bridge that it carries", e.Parent, d.cfg.At("vlanBridge.name"))
		} else if _, ok := links[e.Parent]; !ok {
			links[e.Parent] = user{"the parent of endpoint " + bare(e.Name), field}
		}
	}
	vlans := map[uint16]string{} // the field of the VNI
	for _, v := range d.cfg.VNIs {
		field := fmt.Sprintf("vnis.%d", v.VNI)
		if first, ok := vlans[v.VLAN]; ok {
			at := field + ".vlan"
			d.bad(d.cfg.At(at), at, "VLAN %d is VNI %s's at %s; each VNI must have its own", v.VLAN, strings.TrimPrefix(first, "vnis."), d.cfg.At(first+".vlan"))
		} else if v.VLAN != 0 {
			vlans[v.VLAN] = field
		}
		if v.Bridge == "" {
			continue
		}
		at := field + ".bridge"
		if first, ok := links[v.Bridge]; ok {
			d.bad(d.cfg.At(at), at, "%s is %s at %s; each VNI must have a bridge of its own", v.Bridge, first.what, d.cfg.At(first.field))
			continue
		}
		links[v.Bridge] = user{fmt.Sprintf("the bridge of VNI %d", v.VNI), at}
	}
}
