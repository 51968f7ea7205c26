package claims

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vtepd/alloc"
	"vtepd/alloc/memstore"
)

// desk is a claimer on pools of each kind, over a ledger in memory.
func desk(t *testing.T) (*alloc.Claimer, *memstore.Ledger) {
	t.Helper()
	pools, err := alloc.NewPools(
		alloc.Pool{Name: "vteps", Kind: alloc.KindAddress, Entries: []string{"10.0.0.0/28"}, Exclude: []string{"10.0.0.0"}},
		alloc.Pool{Name: "kept", Kind: alloc.KindIndex, Entries: []string{"1..2"}, Reclaim: alloc.Retain},
		alloc.Pool{Name: "lans", Kind: alloc.KindPrefix, Entries: []string{"10.1.0.0/24"}, Length: 26},
		alloc.Pool{Name: "full", Kind: alloc.KindAddress, Entries: []string{"10.2.0.1/32"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	l := memstore.New()
	return alloc.NewClaimer(l.Open(), pools), l
}

func acquire(t *testing.T, c *alloc.Claimer, claims ...alloc.Claim) {
	t.Helper()
	for _, cl := range claims {
		if _, _, err := c.Acquire(t.Context(), cl); err != nil {
			t.Fatal(err)
		}
	}
}

func TestList(t *testing.T) {
	c, ledger := desk(t)
	acquire(t, c,
		alloc.Claim{Name: "leaf1/endpoint/vtep0", Pool: "vteps", Prefer: "10.0.0.10"},
		alloc.Claim{Name: "leaf2/endpoint/vtep0", Pool: "vteps", Prefer: "10.0.0.9"},
		alloc.Claim{Name: "leaf2/asn", Pool: "kept"},
		alloc.Claim{Name: "leaf1/endpoint/any", Pool: "full", Group: "gw"},
		alloc.Claim{Name: "leaf3/endpoint/any", Pool: "full", Group: "gw"},
	)
	if _, err := c.Provision(t.Context(), "lans", "10.1.0.64/26", "leaf1/lan", ""); err != nil {
		t.Fatal(err)
	}
	other := ledger.Open()
	old := alloc.Allocation{Name: "gone@7", Pool: "gone", Value: "7", Holders: []alloc.Holder{{Claim: "leaf9/x", UID: "u"}}, Created: time.Unix(0, 0)}
	if _, err := other.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	wanted := []alloc.Claim{{Name: "leaf1/endpoint/more", Pool: "full"}, {Name: "leaf1/endpoint/vtep0", Pool: "vteps"}, {Name: "leaf1/endpoint/new", Pool: "vteps"}}
	l, err := Of(t.Context(), c, wanted, true)
	if err != nil {
		t.Fatal(err)
	}
	text := func(l List) string {
		var b strings.Builder
		if err := l.Text(&b, time.Now().Add(90*time.Minute)); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	days := age(time.Unix(0, 0), time.Now().Add(90*time.Minute))
	want := strings.ReplaceAll(`POOL   VALUE         CLAIM                           CONDITION                DAYS
full   -             leaf1/endpoint/more             PoolExhausted            -
full   10.2.0.1      leaf1/endpoint/any in group gw  Bound                    1h
full   10.2.0.1      leaf3/endpoint/any in group gw  Bound                    1h
gone   7             leaf9/x (UID u)                 PoolNotFound             `+days+`
kept   1             leaf2/asn                       Bound                    1h
lans   10.1.0.64/26  (leaf1/lan)                     Unbound, allows binding  1h
vteps  10.0.0.9      leaf2/endpoint/vtep0            Bound                    1h
vteps  10.0.0.10     leaf1/endpoint/vtep0            Bound                    1h
`, "DAYS", "AGE")
	if diff := cmp.Diff(want, text(l)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, test := range []struct {
		f    Filter
		want []string
	}{
		{Filter{Router: "leaf1"}, []string{"leaf1/endpoint/more", "leaf1/endpoint/any", "leaf1/lan", "leaf1/endpoint/vtep0"}},
		{Filter{Router: "leaf1", Pool: "full"}, []string{"leaf1/endpoint/more", "leaf1/endpoint/any"}},
		{Filter{Router: "leaf"}, nil},
		{Filter{Pool: "kept"}, []string{"leaf2/asn"}},
	} {
		var got []string
		for _, c := range l.Only(test.f).Claims {
			got = append(got, c.Claim+c.KeptFor)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: %q, want %q", test.f, got, test.want)
		}
	}
	// Without the pools nothing is said of them.
	if l, err = Of(t.Context(), c, wanted, false); err != nil {
		t.Fatal(err)
	}
	for _, c := range l.Claims {
		if c.Condition != nil || c.Value == "" {
			t.Errorf("%+v", c)
		}
	}
}

func TestPools(t *testing.T) {
	c, _ := desk(t)
	acquire(t, c, alloc.Claim{Name: "a/x", Pool: "vteps"}, alloc.Claim{Name: "a/y", Pool: "full"}, alloc.Claim{Name: "a/z", Pool: "kept"})
	if err := c.Release(t.Context(), "kept@1", "a/z", ""); err != nil {
		t.Fatal(err)
	}
	p, err := PoolsOf(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := p.Text(&b); err != nil {
		t.Fatal(err)
	}
	want := `POOL   KIND     SIZE  USED  FREE  RETAINED  OUTSIDE  NEXT
full   address  1     1     0     0         0        - (all 1 values of pool full are taken)
kept   index    2     1     1     1         0        2
lans   prefix   4     0     4     0         0        10.1.0.0/26
vteps  address  15    1     14    0         0        10.0.0.2
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestRelease(t *testing.T) {
	c, _ := desk(t)
	acquire(t, c,
		alloc.Claim{Name: "a/x", Pool: "vteps"}, alloc.Claim{Name: "a/z", Pool: "kept"},
		alloc.Claim{Name: "a/g", Pool: "full", Group: "g"}, alloc.Claim{Name: "b/g", Pool: "full", Group: "g"},
	)
	for _, test := range []struct{ name, is, done string }{
		{"a/x", "10.0.0.1 of pool vteps, held by a/x", "10.0.0.1 of pool vteps is free"},
		{"a/x", "", "there is no claim a/x that holds anything; `vtepd claims` lists all"},
		{"a/z", "1 of pool kept, held by a/z", "1 of pool kept is held by nobody and retained by its pool; `vtepd claims release kept@1` frees it"},
		{"a/z", "", "a/z holds nothing; kept for it: kept@1"},
		{"kept@1", "1 of pool kept, kept for a/z", "1 of pool kept is free"},
		{"kept@1", "", "there is no allocation kept@1; `vtepd claims -o json` names all"},
		{"b/g", "10.2.0.1 of pool full, held by b/g, which 1 more of group g keep", "10.2.0.1 of pool full is still held by 1 of group g"},
		{"full@10.2.0.1", "10.2.0.1 of pool full, held by a/g", "10.2.0.1 of pool full is free"},
	} {
		found, err := Find(t.Context(), c, test.name)
		if test.is == "" {
			if err == nil || err.Error() != test.done {
				t.Errorf("%s: %v, want %s", test.name, err, test.done)
			}
			continue
		}
		if err != nil || len(found) != 1 || found[0].String() != test.is {
			t.Errorf("%s: %v, %v; want %s", test.name, found, err, test.is)
			continue
		}
		if done, err := Release(t.Context(), c, found[0]); err != nil || done != test.done {
			t.Errorf("%s: %q, %v; want %q", test.name, done, err, test.done)
		}
	}
	// Somebody was faster.
	if _, err := c.Provision(t.Context(), "vteps", "10.0.0.3", "", ""); err != nil {
		t.Fatal(err)
	}
	found, err := Find(t.Context(), c, "vteps@10.0.0.3")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Release(t.Context(), c, found[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Release(t.Context(), c, found[0]); !errors.Is(err, alloc.ErrNotFound) || !strings.HasSuffix(err.Error(), "; somebody was faster, look again") {
		t.Errorf("%v", err)
	}
}

// TestOrder: values are in the order that people count in, whatever their kind.
func TestOrder(t *testing.T) {
	in := []string{"9", "64512", "10.0.0.9", "10.0.0.10", "2001:db8::9", "2001:db8::10", "10.0.0.0/24", "10.0.0.0/26", "10.0.0.64/26"}
	rapid.Check(t, func(t *rapid.T) {
		i, j := rapid.IntRange(0, len(in)-1).Draw(t, "i"), rapid.IntRange(0, len(in)-1).Draw(t, "j")
		a, b := in[i], in[j]
		_, kindA, _ := alloc.Canonical(a)
		_, kindB, _ := alloc.Canonical(b)
		got := compareValues(a, b)
		if got != -compareValues(b, a) || (got == 0) != (i == j) {
			t.Fatalf("%s and %s: %d", a, b, got)
		}
		if kindA == kindB && (got < 0) != (i < j) {
			t.Fatalf("%s and %s: %d", a, b, got)
		}
	})
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Hour: "0s", 59 * time.Second: "59s", time.Minute: "1m", 61 * time.Minute: "1h", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "-" {
		t.Errorf("never: %s", got)
	}
}
