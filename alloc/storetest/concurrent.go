package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"vtepd/alloc"
)

// act is one thing that a router does in a concurrent history.
type act struct {
	claim   int
	prefer  string // of an acquire
	release bool
	restart bool
}

// concurrent lets several routers at one ledger at once, each with a history of its own. In which order they come can't be foreseen, and
// needn't be: what a router was told that it has is its own until it gives it up, whatever the others do, and in the end the ledger holds
// that and nothing else.
func concurrent(t *testing.T, ledger NewLedger) {
	pools := mustPools(t, address("p", "", nil, "10.0.0.0/29"))
	rapid.Check(t, func(t *rapid.T) {
		acts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) act {
			a := act{claim: rapid.IntRange(0, 2).Draw(t, "claim")}
			switch rapid.IntRange(0, 9).Draw(t, "act") {
			case 0, 1, 2:
				a.release = true
			case 3, 4:
				a.prefer = fmt.Sprintf("10.0.0.%d", rapid.IntRange(0, 7).Draw(t, "prefer"))
			case 5:
				a.restart = true
			}
			return a
		}), 1, 12)
		histories := rapid.SliceOfN(acts, 2, 4).Draw(t, "histories")
		open := ledger(t)
		held := make([]map[string]string, len(histories))
		problems := make([]error, len(histories))
		var wg sync.WaitGroup
		for i, h := range histories {
			held[i] = map[string]string{}
			r := newRouter(t, open, pools)
			wg.Go(func() { problems[i] = play(&r, open, pools, fmt.Sprintf("r%d", i), h, held[i]) })
		}
		wg.Wait()
		if err := errors.Join(problems...); err != nil {
			t.Fatalf("%v", err)
		}
		var want []string
		for _, h := range held {
			for claim, value := range h {
				want = append(want, fmt.Sprintf("%s [%s:u1]", alloc.Name("p", value), claim))
			}
		}
		slices.Sort(want)
		same(t, "ledger", newRouter(t, open, pools).ledger(), want)
	})
}

// play does what a history says, and keeps in held what the router was told.
func play(r *router, open func() (alloc.Store, error), pools *alloc.Pools, name string, h []act, held map[string]string) error {
	ctx := r.t.Context()
	for _, a := range h {
		c := claim(fmt.Sprintf("%s/%d", name, a.claim), "p", a.prefer)
		had := held[c.Name]
		switch {
		case a.restart:
			s, err := open()
			if err != nil {
				return err
			}
			r.t.Cleanup(func() { _ = s.Close() })
			*r = router{r.t, alloc.NewClaimer(s, pools), s}
		case a.release && had != "":
			if err := r.Release(ctx, alloc.Name("p", had), c.Name, c.UID); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			delete(held, c.Name)
		case a.release:
		default:
			got, wrote, err := r.Acquire(ctx, c)
			var k *alloc.Condition
			switch {
			case errors.As(err, &k) && (k.Reason == alloc.PoolExhausted || k.Reason == alloc.PreferredValueUnavailable) && (had == "" || a.prefer != "" && a.prefer != had):
				continue
			case err != nil:
				return fmt.Errorf("%s holds %q and gets %w", c.Name, had, err)
			case had != "" && (a.prefer == "" || a.prefer == had) && (got.Value != had || wrote):
				return fmt.Errorf("%s held %s, and is renumbered to %s", c.Name, had, got.Value)
			case a.prefer != "" && got.Value != a.prefer:
				return fmt.Errorf("%s prefers %s, and gets %s", c.Name, a.prefer, got.Value)
			case had != "" && got.Value != had:
				// A move: the old value is given up once the new one is there.
				if err := r.Release(ctx, alloc.Name("p", had), c.Name, c.UID); err != nil {
					return fmt.Errorf("release: %w", err)
				}
			}
			held[c.Name] = got.Value
		}
	}
	return nil
}
