package alloc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func addresses(name string, entries ...string) Pool {
	return Pool{Name: name, Kind: KindAddress, Entries: entries}
}

func TestNewPoolsProblems(t *testing.T) {
	for _, c := range []struct {
		what  string
		pools []Pool
		want  []string
	}{
		{"no name", []Pool{addresses("", "10.0.0.0/24")}, []string{"pool : a pool needs a name"}},
		{
			"a bad name",
			[]Pool{addresses("a b", "10.0.0.0/24")},
			[]string{`pool a b: pool name "a b": letters, digits, '.', '_' and '-' are allowed, and a letter or digit first`},
		},
		{"one name twice", []Pool{addresses("a", "10.0.0.0/24"), addresses("a", "10.1.0.0/24")}, []string{"pool a: there are two pools of this name"}},
		{"a kind that isn't", []Pool{{Name: "a", Kind: "vlan"}}, []string{`pool a: kind: "vlan" is not a kind; index, address or prefix would be right`}},
		{
			"a reclaim that isn't",
			[]Pool{{Name: "a", Kind: KindAddress, Entries: []string{"10.0.0.0/24"}, Reclaim: "delete"}},
			[]string{`pool a: reclaim: "delete" is not a policy; recycle or retain would be right`},
		},
		{"nothing in it", []Pool{addresses("a")}, []string{"pool a: addresses: a pool needs at least one entry"}},
		{
			"entries that aren't CIDRs",
			[]Pool{addresses("a", "10.0.0.1", "10.0.0.1/24", "ten", "0.0.0.0/0", "::ffff:10.0.0.0/120", "10.0.0.0/33", "fe80::1%eth0")},
			[]string{
				`pool a: addresses[0]: "10.0.0.1" is not a CIDR; 10.0.0.1/32 would be right for one address`,
				"pool a: addresses[1]: 10.0.0.1/24 has host bits set; 10.0.0.0/24 would be right",
				`pool a: addresses[2]: "ten" is not a CIDR`,
				"pool a: addresses[3]: 0.0.0.0/0 is everything there is; a longer prefix would be right",
				`pool a: addresses[4]: "::ffff:10.0.0.0/120" is IPv4 mapped into IPv6`,
				`pool a: addresses[5]: "10.0.0.0/33" is not a prefix`,
				`pool a: addresses[6]: "fe80::1%eth0" is not a CIDR`,
			},
		},
		{
			"ranges that aren't",
			[]Pool{{Name: "a", Kind: KindIndex, Entries: []string{"64999..64512", "-1", "1..2..3", "10.0.0.0/8"}}},
			[]string{
				"pool a: ranges[0]: 64999..64512 ends before it begins; 64512..64999 would be right",
				`pool a: ranges[1]: "-1" is not a number or a range; 64512..64999 would be right`,
				`pool a: ranges[2]: "1..2..3" is not a number or a range; 64512..64999 would be right`,
				`pool a: ranges[3]: "10.0.0.0/8" is not a number or a range; 64512..64999 would be right`,
			},
		},
		{
			"lengths that don't fit",
			[]Pool{
				{Name: "a", Kind: KindPrefix, Entries: []string{"10.0.0.0/24", "10.1.0.0/26"}, Length: 25},
				{Name: "b", Kind: KindPrefix, Entries: []string{"10.2.0.0/24"}, Length: 33},
				{Name: "c", Kind: KindPrefix, Entries: []string{"10.3.0.0/24"}},
				{Name: "d", Kind: KindAddress, Entries: []string{"10.4.0.0/24"}, Length: 26},
			},
			[]string{
				"pool a: prefixes[1]: 10.1.0.0/26 has no prefixes of length 25; 26 to 32 would be right",
				"pool b: prefixes[0]: 10.2.0.0/24 has no prefixes of length 33; 24 to 32 would be right",
				"pool c: length: 0 is not a prefix length; 1 to 128 would be right",
				"pool d: length: only a prefix pool has one",
			},
		},
		{
			"excludes that aren't",
			[]Pool{{
				Name: "a", Kind: KindAddress, Entries: []string{"10.0.0.0/24"},
				Exclude: []string{"10.0.0.300", "10.0.0.9..10.0.0.1", "10.0.0.1-::1", "10.0.0.1/30", "7"},
			}},
			[]string{
				`pool a: exclude[0]: "10.0.0.300" is not an address, a range of addresses or a CIDR`,
				"pool a: exclude[1]: 10.0.0.9..10.0.0.1 ends before it begins; 10.0.0.1..10.0.0.9 would be right",
				"pool a: exclude[2]: 10.0.0.1-::1 begins in one family and ends in another",
				"pool a: exclude[3]: 10.0.0.1/30 has host bits set; 10.0.0.0/30 would be right",
				`pool a: exclude[4]: "7" is not an address, a range of addresses or a CIDR`,
			},
		},
		{
			"overlaps inside a pool",
			[]Pool{addresses("a", "10.0.0.0/25", "10.0.0.0/24", "10.0.0.0/25", "10.0.1.0/24")},
			[]string{
				"pool a: addresses[0]: 10.0.0.0/25 overlaps 10.0.0.0/24 (pool a: addresses[1])",
				"pool a: addresses[2]: 10.0.0.0/25 overlaps 10.0.0.0/24 (pool a: addresses[1])",
			},
		},
		{
			"the same inside a pool, and between pools",
			[]Pool{
				{Name: "b", Kind: KindIndex, Entries: []string{"5", "5"}},
				{Name: "a", Kind: KindIndex, Entries: []string{"4..9"}},
			},
			[]string{"pool b: ranges[0]: 5 overlaps 4..9 (pool a: ranges[0])", "pool b: ranges[1]: 5 overlaps 4..9 (pool a: ranges[0])"},
		},
		{
			"twice",
			[]Pool{addresses("b", "2001:db8::/64"), addresses("a", "2001:0db8::/64")},
			[]string{"pool b: addresses[0]: 2001:db8::/64 is there twice (pool a: addresses[0])"},
		},
		{
			"an address pool in a prefix pool",
			[]Pool{
				addresses("a", "10.9.0.0/24"), {Name: "b", Kind: KindPrefix, Entries: []string{"10.0.0.0/8"}, Length: 24},
			},
			[]string{"pool a: addresses[0]: 10.9.0.0/24 overlaps 10.0.0.0/8 (pool b: prefixes[0])"},
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := NewPools(c.pools...)
			var ps Problems
			if !errors.As(err, &ps) {
				t.Fatalf("no problems: %v", err)
			}
			if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
	if _, err := NewPools(addresses("a", "10.0.0.0/24"), addresses("b", "10.0.1.0/24", "::a00:0/104"),
		Pool{Name: "c", Kind: KindIndex, Entries: []string{"0..18446744073709551615"}}); err != nil {
		t.Errorf("neighbours: %v", err)
	}
}

func TestPoolTotals(t *testing.T) {
	for _, c := range []struct {
		pool  Pool
		total u128
		first string
		last  string
	}{
		{addresses("a", "10.0.0.0/8"), u128{0, 1 << 24}, "10.0.0.0", "10.255.255.255"},
		{addresses("a", "2001:db8::/64"), u128{1, 0}, "2001:db8::", "2001:db8::ffff:ffff:ffff:ffff"},
		{addresses("a", "8000::/1"), u128{1 << 63, 0}, "8000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{Pool{Name: "a", Kind: KindIndex, Entries: []string{"0..18446744073709551615"}}, u128{1, 0}, "0", "18446744073709551615"},
		{Pool{Name: "a", Kind: KindPrefix, Entries: []string{"2001:db8::/32"}, Length: 64}, u128{0, 1 << 32}, "2001:db8::/64", "2001:db8:ffff:ffff::/64"},
		{Pool{Name: "a", Kind: KindPrefix, Entries: []string{"10.0.0.0/8"}, Length: 8}, u128{0, 1}, "10.0.0.0/8", "10.0.0.0/8"},
		{
			Pool{Name: "a", Kind: KindAddress, Entries: []string{"10.0.0.0/30"}, Exclude: []string{"10.0.0.0/31", "10.0.0.1..10.0.0.2", "10.0.0.2"}},
			u128{0, 1},
			"10.0.0.3", "10.0.0.3",
		},
	} {
		ps, err := NewPools(c.pool)
		if err != nil {
			t.Fatal(err)
		}
		p := ps.byName["a"]
		if p.total != c.total || p.value(u128{}) != c.first || p.value(p.total.dec()) != c.last {
			t.Errorf("%v: total %v, %s to %s; want %v, %s to %s", c.pool.Entries, p.total, p.value(u128{}), p.value(p.total.dec()), c.total, c.first, c.last)
		}
		for _, v := range []string{c.first, c.last} {
			if !ps.Contains("a", v) {
				t.Errorf("%v doesn't contain %s", c.pool.Entries, v)
			}
		}
	}
	ps, err := NewPools(Pool{Name: "a", Kind: KindAddress, Entries: []string{"10.0.0.0/31"}, Exclude: []string{"10.0.0.0/8"}})
	if err != nil || ps.byName["a"].total != (u128{}) {
		t.Errorf("everything excluded: %v", err)
	}
}

// Positions and values are each other's inverse, and excludes leave no gap, for small pools counted by hand.
func TestPositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ip := func(n int) string { return fmt.Sprintf("10.0.%d.%d", n/256, n%256) }
		p := Pool{Name: "a", Kind: KindAddress}
		starts := rapid.SliceOfNDistinct(rapid.IntRange(0, 15), 1, 4, rapid.ID).Draw(t, "starts")
		var want []string
		out := map[int]bool{}
		for range rapid.IntRange(0, 4).Draw(t, "excludes") {
			lo := rapid.IntRange(0, 255).Draw(t, "lo")
			hi := rapid.IntRange(lo, min(255, lo+20)).Draw(t, "hi")
			p.Exclude = append(p.Exclude, ip(lo)+".."+ip(hi))
			for n := lo; n <= hi; n++ {
				out[n] = true
			}
		}
		for _, s := range starts {
			p.Entries = append(p.Entries, ip(s*16)+"/28")
			for n := s * 16; n < s*16+16; n++ {
				if !out[n] {
					want = append(want, ip(n))
				}
			}
		}
		ps, err := NewPools(p)
		if err != nil {
			t.Fatal(err)
		}
		c := ps.byName["a"]
		if c.total.uint64() != uint64(len(want)) {
			t.Fatalf("total %d, want %d", c.total.uint64(), len(want))
		}
		for i, v := range want {
			if got := c.value(u128{0, uint64(i)}); got != v {
				t.Fatalf("value %d is %s, want %s", i, got, v)
			}
			if pos, ok := c.position(v); !ok || pos != (u128{0, uint64(i)}) {
				t.Fatalf("position of %s is %v %v, want %d", v, pos, ok, i)
			}
		}
		for n := range 256 {
			if _, ok := c.position(ip(n)); ok != slices.Contains(want, ip(n)) {
				t.Fatalf("position of %s: %v", ip(n), ok)
			}
		}
	})
}

func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r runs
		in := map[uint64]bool{}
		base := u128{rapid.SampledFrom([]uint64{0, 1 << 40}).Draw(t, "base"), 0}
		span := rapid.SampledFrom([]uint64{8, 64, 4096}).Draw(t, "span")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range rapid.IntRange(1, 3000).Draw(t, "steps") {
			x := rnd.Uint64N(span)
			pos := base.add(u128{0, x})
			if r.has(pos) != in[x] {
				t.Fatalf("has %d: %v", x, r.has(pos))
			}
			if rnd.IntN(5) > 1 {
				if r.insert(pos) == in[x] {
					t.Fatalf("insert %d", x)
				}
				in[x] = true
			} else {
				if r.remove(pos) != in[x] {
					t.Fatalf("remove %d", x)
				}
				delete(in, x)
			}
			if r.count != uint64(len(in)) {
				t.Fatalf("count %d, want %d", r.count, len(in))
			}
			lowest := u128{}
			if base == (u128{}) {
				for in[lowest.lo] {
					lowest.lo++
				}
			}
			if r.lowest() != lowest {
				t.Fatalf("lowest %v, want %v", r.lowest(), lowest)
			}
		}
		// Maximal, in order, and in chunks of the promised size.
		var last *run
		for _, c := range r.chunks {
			if len(c) == 0 || len(c) > chunkMax {
				t.Fatalf("a chunk of %d", len(c))
			}
			for i := range c {
				if c[i].hi.less(c[i].lo) || last != nil && !last.hi.inc().less(c[i].lo) {
					t.Fatalf("%v after %v", c[i], last)
				}
				last = &c[i]
			}
		}
	})
}

func TestNames(t *testing.T) {
	for value, want := range map[string]string{
		"10.255.0.11": "p@10.255.0.11", "2001:db8::1": "p@2001-db8--1", "::": "p@--", "64512": "p@64512",
		"10.0.0.0/26": "p@10.0.0.0_26", "2001:db8::/64": "p@2001-db8--_64",
	} {
		name := Name("p", value)
		if name != want {
			t.Errorf("%s: %s, want %s", value, name, want)
		}
		if pool, v, err := ParseName(name); err != nil || pool != "p" || v != value {
			t.Errorf("%s: %q %q %v", name, pool, v, err)
		}
	}
	for name, want := range map[string]string{
		"README":        `"README" is not the name of an allocation: POOL@VALUE expected`,
		"@10.0.0.1":     `"@10.0.0.1" is not the name of an allocation: a pool needs a name`,
		"../p@10.0.0.1": `"../p@10.0.0.1" is not the name of an allocation: pool name "../p": letters, digits, '.', '_' and '-' are allowed, and a letter or digit first`,
		"p@":            `"p@" is not the name of an allocation: "" is not a number, an address or a prefix`,
		"p@2001-DB8--1": `"p@2001-DB8--1" is not the name of an allocation: p@2001-db8--1 would be right`,
		"p@007":         `"p@007" is not the name of an allocation: p@7 would be right`,
		"p@10.0.0.1_26": `"p@10.0.0.1_26" is not the name of an allocation: 10.0.0.1/26 has host bits set; 10.0.0.0/26 would be right`,
		"p@fe80--1%a":   `"p@fe80--1%a" is not the name of an allocation: "fe80::1%a" has a zone`,
	} {
		if _, _, err := ParseName(name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestTypedValues(t *testing.T) {
	if a, err := (Allocation{Value: "2001:db8::1"}).Addr(); err != nil || a != netip.MustParseAddr("2001:db8::1") {
		t.Errorf("%v %v", a, err)
	}
	if p, err := (Allocation{Value: "10.0.0.0/26"}).Prefix(); err != nil || p != netip.MustParsePrefix("10.0.0.0/26") {
		t.Errorf("%v %v", p, err)
	}
	if n, err := (Allocation{Value: "64512"}).Index(); err != nil || n != 64512 {
		t.Errorf("%v %v", n, err)
	}
}

func TestFromIndex(t *testing.T) {
	for _, c := range []struct {
		cidr    string
		index   int
		exclude []string
		want    string
		err     string
	}{
		{"10.255.0.0/24", 1, nil, "10.255.0.1", ""},
		{"10.255.0.0/24", 0, nil, "10.255.0.0", ""},
		{"10.255.0.0/24", 255, nil, "10.255.0.255", ""},
		{"10.255.0.0/31", 1, nil, "10.255.0.1", ""},
		{"10.255.0.7/32", 0, nil, "10.255.0.7", ""},
		{"2001:db8::/64", 300, nil, "2001:db8::12c", ""},
		{"2001:db8::/32", 1 << 62, nil, "2001:db8:0:0:4000::", ""},
		{"10.255.0.0/24", 7, []string{"10.255.0.0", "10.255.0.8/29", "2001:db8::7"}, "10.255.0.7", ""},
		{"10.255.0.0/24", 256, nil, "", "index 256 is outside 10.255.0.0/24 (256 addresses, index 0 to 255)"},
		{"10.255.0.0/24", -1, nil, "", "index -1 is outside 10.255.0.0/24 (256 addresses, index 0 to 255)"},
		{"10.255.0.7/32", 1, nil, "", "index 1 is outside 10.255.0.7/32 (1 address, index 0)"},
		{"2001:db8::/64", -1, nil, "", "index -1 is outside 2001:db8::/64 (2^64 addresses)"},
		{"2001:db8::/66", 1 << 62, nil, "", "index 4611686018427387904 is outside 2001:db8::/66 (4611686018427387904 addresses, index 0 to 4611686018427387903)"},
		{"10.255.0.9/24", 1, nil, "", "index 1: 10.255.0.9/24 is not a CIDR"},
		{"10.255.0.0/24", 9, []string{"10.255.0.8/29"}, "", "index 9 of 10.255.0.0/24 (256 addresses, index 0 to 255) is 10.255.0.9, which 10.255.0.8/29 excludes"},
		{"10.255.0.0/24", 9, []string{"nine"}, "", `exclude: "nine" is not an address, a range of addresses or a CIDR`},
	} {
		got, err := FromIndex(netip.MustParsePrefix(c.cidr), c.index, c.exclude)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s %d: %v, want %s", c.cidr, c.index, err, c.err)
			}
		} else if err != nil || got.String() != c.want {
			t.Errorf("%s %d: %v %v, want %s", c.cidr, c.index, got, err, c.want)
		}
	}
	if err := NoIndex(netip.MustParsePrefix("10.255.0.0/24")); err.Error() != "no index given for 10.255.0.0/24 (256 addresses, index 0 to 255)" {
		t.Error(err)
	}
}

// The n-th address by index is the n-th of a pool of the same CIDR.
func TestFromIndexLikePool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cidr := rapid.SampledFrom([]string{"10.0.0.0/8", "192.0.2.0/30", "2001:db8::/48", "2001:db8::/127"}).Draw(t, "cidr")
		ps, err := NewPools(addresses("a", cidr))
		if err != nil {
			t.Fatal(err)
		}
		c := ps.byName["a"]
		n := rapid.Uint64Max(1<<40).Draw(t, "n")
		got, err := FromIndex(netip.MustParsePrefix(cidr), int(n), nil)
		if (u128{0, n}).less(c.total) != (err == nil) {
			t.Fatalf("%s %d: %v", cidr, n, err)
		}
		if err == nil && got.String() != c.value(u128{0, n}) {
			t.Fatalf("%s %d: %s, want %s", cidr, n, got, c.value(u128{0, n}))
		}
	})
}

func FuzzUnmarshal(f *testing.F) {
	for _, a := range []Allocation{
		{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Holders: []Holder{{Claim: "leaf1/x", UID: "u", Supersedes: []string{"p@10.0.0.2"}}}},
		{Name: "p@2001-db8--_64", Pool: "p", Value: "2001:db8::/64", For: "leaf1/x", AllowBinding: true, Retain: true},
		{Name: "p@7", Pool: "p", Value: "7", Group: "g", Holders: []Holder{{Claim: "a"}, {Claim: "a", UID: "u"}, {Claim: "b"}}},
	} {
		b, err := Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Name, b)
		f.Add(a.Name, b[:len(b)/2])
	}
	f.Add("p@7", []byte(`{"version":1,"name":"p@7","pool":"p","value":"7","created":"2024-02-29T12:00:00.5+01:00","holders":[]}`))
	f.Add("p@7", []byte(`{"version":99}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		a, err := Unmarshal(name, data)
		if err != nil {
			return
		}
		if a.Name != name {
			t.Fatalf("%q read as %q", name, a.Name)
		}
		b, err := Marshal(a)
		if err != nil {
			t.Fatalf("read and not written: %v", err)
		}
		again, err := Unmarshal(name, b)
		if err != nil {
			t.Fatalf("written and not read: %v", err)
		}
		if fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", a) {
			t.Fatalf("%+v became %+v", a, again)
		}
	})
}
