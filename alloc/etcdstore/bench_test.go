package etcdstore

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vtepd/alloc"
)

// BenchmarkClaim is one claim and its release beside that many live allocations: two transactions and the looks before and after them.
// txn/op is that in round trips of the smallest transaction there is, measured beside it.
func BenchmarkClaim(b *testing.B) {
	for _, live := range []int{10, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			e := server(b, nil)
			s := open(b, Options{Endpoints: endpoints(e), Timeout: time.Minute})
			fill(b, s, live)
			c := alloc.NewClaimer(s, mustPools(b, "10.0.0.0/8"))
			if _, err := c.Pools(b.Context()); err != nil {
				b.Fatal(err)
			}
			cli, err := s.client(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			const samples = 500
			began := time.Now()
			for range samples {
				if _, err := cli.Txn(b.Context()).Then(clientv3.OpPut("/bare", "")).Commit(); err != nil {
					b.Fatal(err)
				}
			}
			bare := time.Since(began) / samples
			for b.Loop() {
				a, wrote, err := c.Acquire(b.Context(), alloc.Claim{Name: "new/x", Pool: "p"})
				if err != nil || !wrote {
					b.Fatal(wrote, err)
				}
				if err := c.Release(b.Context(), a.Name, "new/x", ""); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(bare.Nanoseconds()), "ns/txn")
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(bare), "txn/op")
		})
	}
}

// fill writes allocations as a Store would, many at once.
func fill(b *testing.B, s *Store, live int) {
	b.Helper()
	if err := s.Health(b.Context()); err != nil { // a head, and a mark
		b.Fatal(err)
	}
	cli, err := s.client(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var ops []clientv3.Op
	for i := range live {
		a := sample(0)
		a.Value = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		a.Name, a.Holders[0].Claim = alloc.Name("p", a.Value), fmt.Sprintf("leaf%d/x", i)
		data, err := alloc.Marshal(a)
		if err != nil {
			b.Fatal(err)
		}
		if ops = append(ops, clientv3.OpPut(s.keys.allocations+a.Name, string(data))); len(ops) == 128 || i == live-1 {
			if _, err := cli.Txn(b.Context()).Then(ops...).Commit(); err != nil {
				b.Fatal(err)
			}
			ops = nil
		}
	}
}

// BenchmarkTransaction is the bare round trip.
func BenchmarkTransaction(b *testing.B) {
	e := server(b, nil)
	s := open(b, Options{Endpoints: endpoints(e)})
	cli, err := s.client(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := cli.Txn(b.Context()).Then(clientv3.OpPut("/bare", "")).Commit(); err != nil {
			b.Fatal(err)
		}
	}
}
