package alloc

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// quiet is a store in which nothing happens any more.
type quiet struct{ Store }

func (quiet) Changes(_ context.Context, since Cursor) (Changes, error) {
	return Changes{Next: since}, nil
}

// A pool of a /64 with a million allocations, side by side or with a hole after each, is answered at once: what a router asks in one
// look, a thousand times, takes less time than one look at every allocation for each would. BenchmarkClaim and BenchmarkLook have the
// figures, and a /8's.
func TestMillion(t *testing.T) {
	for name, step := range map[string]int{"side by side": 1, "checkerboard": 2} {
		t.Run(name, func(t *testing.T) { million(t, step) })
	}
}

func million(t *testing.T, step int) {
	const cidr = "2001:db8::/64"
	pools, err := NewPools(Pool{Name: "p", Kind: KindAddress, Entries: []string{cidr}})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClaimer(quiet{}, pools)
	v := c.v
	ch := Changes{Reset: true, Set: make([]Allocation, 1_000_000)}
	addr := netip.MustParsePrefix(cidr).Addr()
	for i := range ch.Set {
		value := addr.String()
		// A hundred for each router.
		ch.Set[i] = Allocation{Name: Name("p", value), Pool: "p", Value: value, Holders: []Holder{{Claim: fmt.Sprintf("leaf%d/%d", i/100, i)}}}
		for range step {
			addr = addr.Next()
		}
	}
	v.apply(ch)
	first := addr // that is free
	if step > 1 {
		first = netip.MustParsePrefix(cidr).Addr().Next()
	}
	began := time.Now()
	for i := range 1000 {
		hole := ch.Set[i*997]
		v.remove(hole.Name)
		want := hole.Value
		if step > 1 && i > 0 {
			want = first.String()
		}
		p := v.propose(Claim{Name: "new/x", Pool: "p"})
		if p.Condition != nil || p.Allocation.Value != want {
			t.Fatalf("%+v, want the hole %s", p, want)
		}
		v.set(hole)
		if p = v.propose(Claim{Name: "new/x", Pool: "p"}); p.Condition != nil || p.Allocation.Value != first.String() {
			t.Fatalf("%+v, want the first that is free, %s", p, first)
		}
		router := fmt.Sprintf("leaf%d", i)
		held, err := c.Held(t.Context(), router)
		if err != nil || len(held) != 100 {
			t.Fatalf("%s holds %d, %v", router, len(held), err)
		}
		statics := []Static{{Object: router + "/fixed", Value: ch.Set[i*997].Value}}
		thefts, err := c.Check(t.Context(), "new", nil, statics)
		if err != nil || len(thefts) != 1 || thefts[0].By != router+"/fixed" {
			t.Fatalf("%+v, %v", thefts, err)
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("1000 looks took %s", d)
	}
}
