package alloc

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// A pool of a /64 with a million allocations is answered at once: two thousand answers in less time than one look at every allocation
// for each would take. BenchmarkClaim has the figures, and a /8's.
func TestMillion(t *testing.T) {
	const cidr = "2001:db8::/64"
	pools, err := NewPools(Pool{Name: "p", Kind: KindAddress, Entries: []string{cidr}})
	if err != nil {
		t.Fatal(err)
	}
	v := newView(pools)
	ch := Changes{Reset: true, Set: make([]Allocation, 1_000_000)}
	addr := netip.MustParsePrefix(cidr).Addr()
	for i := range ch.Set {
		value := addr.String()
		ch.Set[i] = Allocation{Name: Name("p", value), Pool: "p", Value: value, Holders: []Holder{{Claim: fmt.Sprintf("leaf/%d", i)}}}
		addr = addr.Next()
	}
	v.apply(ch)
	began := time.Now()
	for i := range 1000 {
		hole := ch.Set[i*997]
		v.remove(hole.Name)
		p := v.propose(Claim{Name: "new/x", Pool: "p"})
		if p.Condition != nil || p.Allocation.Value != hole.Value {
			t.Fatalf("%s: %+v, want the hole %s", cidr, p, hole.Value)
		}
		v.set(hole)
		if p = v.propose(Claim{Name: "new/x", Pool: "p"}); p.Condition != nil || p.Allocation.Value != addr.String() {
			t.Fatalf("%s: %+v, want the first after all, %s", cidr, p, addr)
		}
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("%s: 2000 answers took %s", cidr, d)
	}
}
