package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// poolKeys are the fields that say what a pool holds, with what to write there and, in a list, for each.
var poolKeys = []struct{ key, list, each, example string }{
	{"addresses", "a list of prefixes such as [10.255.0.0/24]", "a prefix such as 10.255.0.0/24", "[10.255.0.0/24]"},
	{"ranges", `a list of ranges such as ["64512..64999"]`, `a range such as "64512..64999" or a number`, `["64512..64999"]`},
	{"prefixes", "a list of prefixes such as [10.0.0.0/16]", "a prefix such as 10.0.0.0/16", "[10.0.0.0/16]"},
}

func (d *decoder) readPool(e entry) {
	path := join("pools", e.key)
	before := len(d.probs)
	if why := badName(e.key); why != "" {
		d.bad(e.pos, path, "%s", why)
	}
	o, ok := d.object(e.val, e.pos, path, "pools.*")
	if !ok {
		return
	}
	p := Pool{Name: e.key, Reclaim: choice(o, "reclaim", ReclaimRecycle, ReclaimRetain)}
	var kinds []string
	for _, k := range poolKeys {
		if !o.has(k.key) {
			continue
		}
		kinds = append(kinds, k.key)
		if len(kinds) > 1 {
			o.bad(k.key, "stands beside %s at %s; a pool has exactly one of addresses, ranges and prefixes", kinds[0], o.at(kinds[0]))
		}
	}
	if len(kinds) == 0 {
		d.bad(e.pos, path, "has none of addresses, ranges and prefixes; list what to allocate from, such as addresses: [10.255.0.0/24]")
	}
	for _, k := range poolKeys {
		if len(kinds) != 1 || k.key != kinds[0] {
			continue
		}
		items, ok := o.list(k.key, k.list, k.each)
		if ok && len(items) == 0 && len(o.vals[k.key].val.items) == 0 {
			o.bad(k.key, "is an empty list; list what to allocate from, such as %s", k.example)
		}
		switch k.key {
		case "addresses":
			d.addressEntries(&p, items)
		case "ranges":
			d.rangeEntries(&p, items)
		case "prefixes":
			d.prefixEntries(o, &p, items)
		}
	}
	if len(kinds) > 0 && kinds[0] != "prefixes" && o.has("length") {
		o.bad("length", "goes with prefixes, which is not here; leave it out")
	}
	d.excludes(o, &p, len(kinds) > 0 && kinds[0] == "ranges")
	d.usable[e.key] = len(d.probs) == before
	d.cfg.Pools = append(d.cfg.Pools, p)
}

func (d *decoder) addressEntries(p *Pool, items []item) {
	for _, s := range items {
		prefix, why := parsePrefix(s.value)
		if why != "" {
			d.bad(s.pos, s.field, "%s", why)
			continue
		}
		p.Addresses = append(p.Addresses, prefix)
		d.entries = append(d.entries, span{prefix: prefix, pool: p.Name, field: s.field, pos: s.pos})
	}
}

func (d *decoder) rangeEntries(p *Pool, items []item) {
	for _, s := range items {
		r, why := parseSpan(s.value)
		if why != "" {
			d.bad(s.pos, s.field, "%s", why)
			continue
		}
		p.Ranges = append(p.Ranges, r)
		d.numbers = append(d.numbers, numbers{r, p.Name, s.field, s.pos})
	}
}

func (d *decoder) prefixEntries(o object, p *Pool, items []item) {
	length, ok := o.number("length", 1, 128, "")
	if !o.has("length") {
		o.missing("length", "write the length of the prefixes to hand out, such as length: 26")
	}
	p.Length = int(length)
	for _, s := range items {
		prefix, why := parseBlock(s.value)
		if why != "" {
			d.bad(s.pos, s.field, "%s", why)
			continue
		}
		if most := prefix.Addr().BitLen(); ok && (p.Length < prefix.Bits() || p.Length > most) {
			d.bad(s.pos, s.field, "%s has no prefixes of length %d, which length at %s asks for; the length must be from %d to %d",
				prefix, p.Length, o.at("length"), prefix.Bits(), most)
			continue
		}
		p.Prefixes = append(p.Prefixes, prefix)
		d.entries = append(d.entries, span{prefix: prefix, pool: p.Name, field: s.field, pos: s.pos, whole: true})
	}
}

func (d *decoder) excludes(o object, p *Pool, ofNumbers bool) {
	if ofNumbers {
		items, _ := o.list("exclude", "a list of numbers and ranges", "a number or a range")
		for _, s := range items {
			r, why := parseSpan(s.value)
			if why != "" {
				d.bad(s.pos, s.field, "%s", why)
				continue
			}
			p.ExcludeRanges = append(p.ExcludeRanges, r)
		}
		slices.SortFunc(p.ExcludeRanges, compareSpans)
		p.ExcludeRanges = slices.Compact(p.ExcludeRanges)
		return
	}
	items, _ := o.list("exclude", "a list of addresses, ranges and prefixes", "an address, a range or a prefix")
	for _, s := range items {
		r, why := parseRange(s.value)
		if why != "" {
			d.bad(s.pos, s.field, "%s", why)
			continue
		}
		p.Exclude = append(p.Exclude, r)
	}
	slices.SortFunc(p.Exclude, func(a, b Range) int { return cmp.Or(a.First.Compare(b.First), a.Last.Compare(b.Last)) })
	p.Exclude = slices.Compact(p.Exclude)
}

// parseBlock reads a prefix to hand out prefixes from, or says why s is none. What they are for isn't known here, so that
// any but the whole of an address family will do.
func parseBlock(s string) (prefix netip.Prefix, why string) {
	prefix, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Sprintf("%s is not a prefix; must be one such as 10.0.0.0/16 or 2001:db8::/48", quote(s))
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Sprintf("%s is an IPv4 prefix mapped into IPv6; write it as IPv4", s)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Sprintf("%s has bits set after its length; must be %s", s, prefix.Masked())
	case prefix.Bits() == 0:
		return netip.Prefix{}, fmt.Sprintf("%s is everything there is; must be a longer prefix", s)
	}
	return prefix, ""
}

// parseSpan reads a number, or FIRST..LAST.
func parseSpan(s string) (r Span, why string) {
	first, last, ranged := strings.Cut(s, "..")
	if !ranged {
		last = first
	}
	a, ok1 := parseNumber(first)
	b, ok2 := parseNumber(last)
	if !ok1 || !ok2 {
		return r, fmt.Sprintf("%s is neither a number nor a range; must be one such as 65010 or 64512..64999", quote(s))
	}
	if b < a {
		return r, fmt.Sprintf("%s ends before it begins; must be %d..%d", quote(s), b, a)
	}
	return Span{a, b}, ""
}

func parseNumber(s string) (uint64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > 1 && s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

// String is the number, or FIRST..LAST.
func (r Span) String() string {
	if r.First == r.Last {
		return strconv.FormatUint(r.First, 10)
	}
	return fmt.Sprintf("%d..%d", r.First, r.Last)
}

func compareSpans(a, b Span) int {
	return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// numbers is an entry of a pool of numbers with its place.
type numbers struct {
	Span
	pool  string
	field string
	pos   Pos
}

// numberOverlaps refuses pools that hold a number twice.
func (d *decoder) numberOverlaps() {
	slices.SortFunc(d.numbers, func(a, b numbers) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(b.Last, a.Last), a.pos.compare(b.pos))
	})
	// Sorted so, an entry overlaps an earlier one exactly when it overlaps the one that reaches furthest.
	furthest := 0
	for i := 1; i < len(d.numbers); i++ {
		if f, s := d.numbers[furthest], d.numbers[i]; s.First <= f.Last {
			here, there := s, f // blame the later of the two in the file
			if here.pos.compare(there.pos) < 0 {
				here, there = there, here
			}
			d.bad(here.pos, here.field, "%s overlaps %s of pool %s at %s; a number must be in one entry only", here.Span, there.Span, bare(there.pool), there.pos)
		}
		if d.numbers[i].Last > d.numbers[furthest].Last {
			furthest = i
		}
	}
}
