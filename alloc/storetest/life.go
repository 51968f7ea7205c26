package storetest

import (
	"context"
	"fmt"
	"strings"

	"vtepd/alloc"
)

// LifePools are the pools of a Life, with room for more.
func LifePools() *alloc.Pools {
	p, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{"10.0.0.0/8"}})
	if err != nil {
		panic(err)
	}
	return p
}

// Life is what a claim goes through: claimed, moved, the old value released, moved back while another joins a group, released. Each step
// can be done again.
func Life(ctx context.Context, c *alloc.Claimer) []func() error {
	x := func(prefer string) alloc.Claim {
		return alloc.Claim{Name: "leaf1/x", UID: "u", Pool: "p", Prefer: prefer}
	}
	g := alloc.Claim{Name: "leaf1/g", UID: "u", Pool: "p", Group: "any"}
	acquire := func(cl alloc.Claim) func() error {
		return func() error { _, _, err := c.Acquire(ctx, cl); return err }
	}
	release := func(name, claim string) func() error {
		return func() error { return c.Release(ctx, name, claim, "u") }
	}
	return []func() error{
		acquire(x("10.0.0.1")), acquire(x("10.0.0.2")), release("p@10.0.0.1", "leaf1/x"),
		acquire(g), acquire(x("10.0.0.1")), release("p@10.0.0.2", "leaf1/x"), release("p@10.0.0.0", "leaf1/g"),
	}
}

// LifeStates are the values that the ledger has before the first step of a Life and after each. A step that was killed leaves the one
// before or the one after; between the release of a move's old value and the removal of its mark is what they don't show.
var LifeStates = []string{
	"", "10.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.2", "10.0.0.0 10.0.0.2", "10.0.0.0 10.0.0.1 10.0.0.2", "10.0.0.0 10.0.0.1", "10.0.0.1",
}

// CheckLife judges a ledger after acked steps of a Life were reported done and the next was cut off, lives the rest, and judges again.
func CheckLife(ctx context.Context, s alloc.Store, acked int) error {
	c := alloc.NewClaimer(s, LifePools())
	values := func() (string, error) {
		all, bad, err := c.List(ctx)
		if err != nil || len(bad) > 0 {
			return "", fmt.Errorf("list: damage %v, %w", bad, err)
		}
		var out []string
		for _, a := range all {
			out = append(out, a.Value)
		}
		return strings.Join(out, " "), nil
	}
	got, err := values()
	if err != nil {
		return err
	}
	if got != LifeStates[acked] && got != LifeStates[acked+1] {
		return fmt.Errorf("after %d steps: %q, want %q or %q", acked, got, LifeStates[acked], LifeStates[acked+1])
	}
	for i, step := range Life(ctx, c)[acked:] {
		if err := step(); err != nil {
			return fmt.Errorf("step %d again: %w", acked+i, err)
		}
	}
	if got, err = values(); err != nil || got != LifeStates[len(LifeStates)-1] {
		return fmt.Errorf("finished: %q, %w", got, err)
	}
	return nil
}

// ClaimMany makes n claims, named for the router, and returns their values.
func ClaimMany(ctx context.Context, s alloc.Store, router string, n int) ([]string, error) {
	c := alloc.NewClaimer(s, LifePools())
	var out []string
	for i := range n {
		a, wrote, err := c.Acquire(ctx, alloc.Claim{Name: fmt.Sprintf("%s/%d", router, i), Pool: "p"})
		if err != nil {
			return out, err
		}
		if !wrote {
			return out, fmt.Errorf("%s wasn't written by us", a.Name)
		}
		out = append(out, a.Value)
	}
	return out, nil
}

// CheckMany judges a ledger in which only ClaimMany was at work, by values, what each router was given: each value to one router, which
// holds it, and none of the pool's lowest passed over.
func CheckMany(ctx context.Context, s alloc.Store, values map[string][]string) error {
	holder := map[string]string{}
	for router, vs := range values {
		for _, v := range vs {
			if first, ok := holder[v]; ok {
				return fmt.Errorf("%s was given to %s and %s", v, first, router)
			}
			holder[v] = router
		}
	}
	all, bad, err := alloc.NewClaimer(s, LifePools()).List(ctx)
	if err != nil || len(bad) > 0 || len(all) != len(holder) {
		return fmt.Errorf("%d allocations of %d values, damage %v, %w", len(all), len(holder), bad, err)
	}
	for _, a := range all {
		if got, _, _ := strings.Cut(a.Holders[0].Claim, "/"); got != holder[a.Value] {
			return fmt.Errorf("%s is held by %s, and was given to %q", a.Name, got, holder[a.Value])
		}
	}
	for i := range len(holder) {
		v := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		if _, ok := holder[v]; !ok {
			return fmt.Errorf("%s was passed over", v)
		}
	}
	return nil
}
