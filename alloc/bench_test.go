package alloc_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"vtepd/alloc"
	"vtepd/alloc/memstore"
)

// BenchmarkClaim is one claim and its release beside that many live allocations, without a disk: what the rules cost. cpu-ns/op is what
// it takes of a processor, the garbage collector's part included: the figure to compare on a machine that has other things to do.
func BenchmarkClaim(b *testing.B) {
	for _, pool := range []struct{ name, cidr string }{{"v4", "10.0.0.0/8"}, {"v6", "2001:db8::/64"}} {
		for _, live := range []int{10, 10_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/live=%d", pool.name, live), func(b *testing.B) {
				pools, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{pool.cidr}})
				if err != nil {
					b.Fatal(err)
				}
				c := alloc.NewClaimer(memstore.New().Open(), pools)
				for i := range live {
					if _, _, err := c.Acquire(b.Context(), alloc.Claim{Name: fmt.Sprintf("leaf%d/x", i), Pool: "p"}); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC() // what the claims above left behind is not this one's cost
				began := cpu(b)
				for b.Loop() {
					a, _, err := c.Acquire(b.Context(), alloc.Claim{Name: "new/x", Pool: "p"})
					if err != nil {
						b.Fatal(err)
					}
					if err := c.Release(b.Context(), a.Name, "new/x", ""); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// BenchmarkLook is all that a daemon asks in a change of one endpoint, beside that many live allocations of other routers in a pool that
// has a hole after each: what it holds, whom the config would rob, the plan, the claim taken, and the old value released.
func BenchmarkLook(b *testing.B) {
	for _, live := range []int{10, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			pools, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{"2001:db8::/64"}})
			if err != nil {
				b.Fatal(err)
			}
			store := memstore.New().Open()
			addr := netip.MustParseAddr("2001:db8::")
			for i := range live {
				if _, err := store.Create(b.Context(), alloc.Allocation{
					Name: alloc.Name("p", addr.String()), Pool: "p", Value: addr.String(), Holders: []alloc.Holder{{Claim: fmt.Sprintf("leaf%d/x", i)}},
				}); err != nil {
					b.Fatal(err)
				}
				addr = addr.Next().Next()
			}
			c := alloc.NewClaimer(store, pools)
			a, _, err := c.Acquire(b.Context(), alloc.Claim{Name: "new/x", Pool: "p"})
			if err != nil {
				b.Fatal(err)
			}
			// From one hole to another, and back.
			places := [2]string{a.Value, addr.Next().String()}
			runtime.GC()
			began := cpu(b)
			for i := 1; b.Loop(); i++ {
				claims := []alloc.Claim{{Name: "new/x", Pool: "p", Prefer: places[i%2]}}
				held, err := c.Held(b.Context(), "new")
				if err != nil || len(held) != 1 {
					b.Fatal(held, err)
				}
				if thefts, err := c.Check(b.Context(), "new", claims, []alloc.Static{{Object: "new/y", Value: "2001:db8::1:0:1"}}); err != nil || len(thefts) > 0 {
					b.Fatal(thefts, err)
				}
				plan, err := c.Plan(b.Context(), claims)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := c.Take(b.Context(), plan[0]); err != nil {
					b.Fatal(err)
				}
				if err := c.Release(b.Context(), held[0].Name, "new/x", ""); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is the processor time of this process so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
