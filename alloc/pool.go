package alloc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Reclaim is what becomes of an allocation whose claim goes.
type Reclaim string

// The reclaim policies. "" is Recycle.
const (
	Recycle Reclaim = "recycle" // it goes, and the value is free
	Retain  Reclaim = "retain"  // it stays, unbound, and the value is taken
)

// Pool is a set of values to allocate from.
type Pool struct {
	Name string
	Kind Kind
	// Entries, in order of preference: index pools "64512..64999" (inclusive) or "65010"; address and prefix pools a CIDR.
	Entries []string
	Length  int // prefix pools: the length of every prefix handed out
	// Exclude takes values, ranges ("10.0.0.1..10.0.0.9", or with "-") and CIDRs out. A prefix that contains any part of one is out.
	Exclude []string
	Reclaim Reclaim
}

// Place is where in a set of pools something is.
type Place struct {
	Pool  string
	Field string // "ranges", "addresses", "prefixes", "exclude", "length", "kind", "reclaim", or "" for the pool itself
	Index int    // into the field's list; -1 when the field has none
}

func (p Place) String() string {
	switch {
	case p.Field == "":
		return "pool " + p.Pool
	case p.Index < 0:
		return fmt.Sprintf("pool %s: %s", p.Pool, p.Field)
	}
	return fmt.Sprintf("pool %s: %s[%d]", p.Pool, p.Field, p.Index)
}

// Problem is one thing that is wrong with a set of pools.
type Problem struct {
	At    Place
	Other *Place // the second place, when two don't fit together
	What  string // without the places
}

func (p Problem) Error() string {
	if p.Other != nil {
		return fmt.Sprintf("%s: %s (%s)", p.At, p.What, *p.Other)
	}
	return fmt.Sprintf("%s: %s", p.At, p.What)
}

// Problems are all of them.
type Problems []Problem

func (p Problems) Error() string {
	s := make([]string, len(p))
	for i := range p {
		s[i] = p[i].Error()
	}
	return strings.Join(s, "\n")
}

// span is a stretch of one family, both ends included: of numbers, addresses, or, in a compiled prefix pool, of prefixes of one
// length counted from zero.
type span struct {
	f      family
	lo, hi u128
}

func (s span) overlaps(t span) bool { return s.f == t.f && !t.hi.less(s.lo) && !s.hi.less(t.lo) }

// segment is a span of a pool with the position of its first value.
type segment struct {
	span
	base u128
}

// compiled is a Pool ready for questions. Positions count its usable values in the order of its entries.
type compiled struct {
	Pool
	spans    []span // the entries
	segments []segment
	byValue  []int // into segments, sorted by family and first value
	total    u128
}

// Pools is a valid, immutable set of pools.
type Pools struct {
	byName map[string]*compiled
	names  []string
}

func fieldOf(k Kind) string {
	return map[Kind]string{KindIndex: "ranges", KindAddress: "addresses", KindPrefix: "prefixes"}[k]
}

// NewPools checks pools, in any order. The error is Problems, all of them.
func NewPools(pools ...Pool) (*Pools, error) {
	pools = slices.Clone(pools)
	slices.SortStableFunc(pools, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	ps := &Pools{byName: map[string]*compiled{}}
	var problems Problems
	type placed struct {
		span
		at   Place
		text string
	}
	var all []placed
	for _, p := range pools {
		bad := func(field string, i int, format string, args ...any) {
			problems = append(problems, Problem{At: Place{p.Name, field, i}, What: fmt.Sprintf(format, args...)})
		}
		if err := checkPoolName(p.Name); err != nil {
			bad("", -1, "%v", err)
		}
		if ps.byName[p.Name] != nil {
			bad("", -1, "there are two pools of this name")
			continue
		}
		field := fieldOf(p.Kind)
		if field == "" {
			bad("kind", -1, "%q is not a kind; index, address or prefix would be right", p.Kind)
			continue
		}
		switch p.Reclaim {
		case "":
			p.Reclaim = Recycle
		case Recycle, Retain:
		default:
			bad("reclaim", -1, "%q is not a policy; recycle or retain would be right", p.Reclaim)
		}
		switch {
		case p.Kind == KindPrefix && (p.Length < 1 || p.Length > 128):
			bad("length", -1, "%d is not a prefix length; 1 to 128 would be right", p.Length)
			continue
		case p.Kind != KindPrefix && p.Length != 0:
			bad("length", -1, "only a prefix pool has one")
		}
		if len(p.Entries) == 0 {
			bad(field, -1, "a pool needs at least one entry")
		}
		c := &compiled{Pool: p}
		for i, e := range p.Entries {
			s, err := parseEntry(p.Kind, e, p.Length)
			if err != nil {
				bad(field, i, "%v", err)
				continue
			}
			c.spans = append(c.spans, s)
			all = append(all, placed{s, Place{p.Name, field, i}, strings.TrimSpace(e)})
		}
		var exclude []span
		for i, e := range p.Exclude {
			s, err := parseExclude(p.Kind, e)
			if err != nil {
				bad("exclude", i, "%v", err)
				continue
			}
			exclude = append(exclude, s)
		}
		c.compile(exclude)
		ps.byName[p.Name] = c
		ps.names = append(ps.names, p.Name)
	}

	// Sorted by its first value, an entry overlaps an earlier one exactly when it overlaps the one that reaches furthest.
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.f, b.f), a.lo.cmp(b.lo), b.hi.cmp(a.hi))
	})
	furthest := 0
	for i := 1; i < len(all); i++ {
		if x, y := all[furthest], all[i]; x.overlaps(y.span) {
			what := fmt.Sprintf("%s overlaps %s", y.text, x.text)
			if x.span == y.span {
				what = fmt.Sprintf("%s is there twice", y.text)
			}
			problems = append(problems, Problem{At: y.at, Other: &x.at, What: what})
		}
		if all[i].f != all[furthest].f || all[furthest].hi.less(all[i].hi) {
			furthest = i
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return ps, nil
}

func parseCIDR(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR; %s would be right for one address", s, netip.PrefixFrom(a, a.BitLen()))
	}
	if !strings.Contains(s, "/") {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", s)
	}
	if _, _, err := Canonical(s); err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(s)
}

func cidrSpan(p netip.Prefix) span {
	f, lo := fromAddr(p.Addr())
	host := f.bits() - p.Bits()
	if host == 128 {
		return span{f, lo, u128{^uint64(0), ^uint64(0)}}
	}
	return span{f, lo, lo.add(u128{0, 1}.shl(host).dec())}
}

// parseEntry reads an entry as numbers or addresses.
func parseEntry(k Kind, s string, length int) (span, error) {
	s = strings.TrimSpace(s)
	if k == KindIndex {
		return parseNumbers(s)
	}
	p, err := parseCIDR(s)
	if err != nil {
		return span{}, err
	}
	if p.Bits() == 0 {
		return span{}, fmt.Errorf("%s is everything there is; a longer prefix would be right", s)
	}
	if k == KindPrefix && (length < p.Bits() || length > p.Addr().BitLen()) {
		return span{}, fmt.Errorf("%s has no prefixes of length %d; %d to %d would be right", s, length, p.Bits(), p.Addr().BitLen())
	}
	return cidrSpan(p), nil
}

func parseNumbers(s string) (span, error) {
	lo, hi, ranged := strings.Cut(s, "..")
	if !ranged {
		hi = lo
	}
	l, err1 := strconv.ParseUint(strings.TrimSpace(lo), 10, 64)
	h, err2 := strconv.ParseUint(strings.TrimSpace(hi), 10, 64)
	if err1 != nil || err2 != nil {
		return span{}, fmt.Errorf("%q is not a number or a range; 64512..64999 would be right", s)
	}
	if h < l {
		return span{}, fmt.Errorf("%s ends before it begins; %d..%d would be right", s, h, l)
	}
	return span{numbers, u128{0, l}, u128{0, h}}, nil
}

func parseExclude(k Kind, s string) (span, error) {
	s = strings.TrimSpace(s)
	if k == KindIndex {
		return parseNumbers(s)
	}
	if strings.Contains(s, "/") {
		p, err := parseCIDR(s)
		if err != nil {
			return span{}, err
		}
		return cidrSpan(p), nil
	}
	lo, hi, ranged := strings.Cut(s, "..")
	if !ranged {
		lo, hi, ranged = strings.Cut(s, "-")
	}
	if !ranged {
		hi = lo
	}
	l, err1 := netip.ParseAddr(strings.TrimSpace(lo))
	h, err2 := netip.ParseAddr(strings.TrimSpace(hi))
	switch {
	case err1 != nil || err2 != nil || l.Zone() != "" || h.Zone() != "" || l.Is4In6() || h.Is4In6():
		return span{}, fmt.Errorf("%q is not an address, a range of addresses or a CIDR", s)
	case l.Is4() != h.Is4():
		return span{}, fmt.Errorf("%s begins in one family and ends in another", s)
	case h.Less(l):
		return span{}, fmt.Errorf("%s ends before it begins; %s..%s would be right", s, h, l)
	}
	f, x := fromAddr(l)
	_, y := fromAddr(h)
	return span{f, x, y}, nil
}

// unit turns a span of addresses into one of the pool's values.
func (c *compiled) unit(s span) span {
	if c.Kind == KindPrefix {
		if n := s.f.bits() - c.Length; n >= 0 {
			s.lo, s.hi = s.lo.shr(n), s.hi.shr(n)
		}
	}
	return s
}

func (c *compiled) compile(exclude []span) {
	for i := range exclude {
		exclude[i] = c.unit(exclude[i])
	}
	slices.SortFunc(exclude, func(a, b span) int { return cmp.Or(cmp.Compare(a.f, b.f), a.lo.cmp(b.lo)) })
	for _, e := range c.spans {
		e = c.unit(e)
		done := false
		for _, x := range exclude {
			if !x.overlaps(e) {
				continue
			}
			if e.lo.less(x.lo) {
				c.addSegment(span{e.f, e.lo, x.lo.dec()})
			}
			if !x.hi.less(e.hi) {
				done = true
				break
			}
			e.lo = x.hi.inc()
		}
		if !done {
			c.addSegment(e)
		}
	}
	c.byValue = make([]int, len(c.segments))
	for i := range c.byValue {
		c.byValue[i] = i
	}
	slices.SortFunc(c.byValue, func(i, j int) int {
		return cmp.Or(cmp.Compare(c.segments[i].f, c.segments[j].f), c.segments[i].lo.cmp(c.segments[j].lo))
	})
}

func (c *compiled) addSegment(s span) {
	c.segments = append(c.segments, segment{s, c.total})
	c.total = c.total.add(s.hi.sub(s.lo)).inc()
}

// parse reads a value of the pool's kind; the pool needn't have it.
func (c *compiled) parse(value string) (family, u128, error) {
	canonical, kind, err := Canonical(value)
	if err != nil {
		return 0, u128{}, err
	}
	if kind != c.Kind {
		return 0, u128{}, fmt.Errorf("%q is not %s", value, article(c.Kind))
	}
	switch kind {
	case KindIndex:
		n, err := strconv.ParseUint(canonical, 10, 64)
		return numbers, u128{0, n}, err
	case KindAddress:
		a, err := netip.ParseAddr(canonical)
		f, n := fromAddr(a)
		return f, n, err
	default:
		p, err := netip.ParsePrefix(canonical)
		if err != nil {
			return 0, u128{}, err
		}
		if p.Bits() != c.Length {
			return 0, u128{}, fmt.Errorf("%s is not a /%d", value, c.Length)
		}
		f, n := fromAddr(p.Addr())
		return f, n.shr(f.bits() - c.Length), nil
	}
}

func article(k Kind) string {
	if k == KindPrefix {
		return "a prefix"
	}
	return "an " + string(k)
}

// position is where among the pool's usable values one is.
func (c *compiled) position(value string) (u128, bool) {
	f, n, err := c.parse(value)
	if err != nil {
		return u128{}, false
	}
	i := sort.Search(len(c.byValue), func(k int) bool {
		s := c.segments[c.byValue[k]]
		return s.f > f || s.f == f && n.less(s.lo)
	}) - 1
	if i < 0 {
		return u128{}, false
	}
	s := c.segments[c.byValue[i]]
	if s.f != f || s.hi.less(n) {
		return u128{}, false
	}
	return s.base.add(n.sub(s.lo)), true
}

// excluded reports whether a value would be the pool's but for its excludes.
func (c *compiled) excluded(value string) bool {
	f, n, err := c.parse(value)
	if err != nil {
		return false
	}
	if _, ok := c.position(value); ok {
		return false
	}
	return slices.ContainsFunc(c.spans, func(s span) bool { return c.unit(s).overlaps(span{f, n, n}) })
}

// value is the one at a position below total.
func (c *compiled) value(pos u128) string {
	i := sort.Search(len(c.segments), func(k int) bool { return pos.less(c.segments[k].base) }) - 1
	s := c.segments[i]
	n := s.lo.add(pos.sub(s.base))
	switch c.Kind {
	case KindIndex:
		return strconv.FormatUint(n.lo, 10)
	case KindAddress:
		return toAddr(s.f, n).String()
	default:
		return netip.PrefixFrom(toAddr(s.f, n.shl(s.f.bits()-c.Length)), c.Length).String()
	}
}

// Names are the pools' names, sorted.
func (p *Pools) Names() []string { return slices.Clone(p.names) }

// Get is the pool of that name.
func (p *Pools) Get(name string) (Pool, bool) {
	c, ok := p.byName[name]
	if !ok {
		return Pool{}, false
	}
	return c.Pool, true
}

// Contains reports whether the pool has the value and doesn't exclude it.
func (p *Pools) Contains(pool, value string) bool {
	c, ok := p.byName[pool]
	if !ok {
		return false
	}
	_, ok = c.position(value)
	return ok
}
