package daemon

import (
	"context"
	"fmt"
	"slices"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/state"
)

// ledger is the Ledger over an alloc.Store.
type ledger struct {
	claimer *alloc.Claimer
}

// NewLedger answers claims from a store. The store stays the caller's to close.
func NewLedger(store alloc.Store) (Ledger, error) {
	none, err := alloc.NewPools()
	if err != nil {
		return nil, err
	}
	return &ledger{claimer: alloc.NewClaimer(store, none)}, nil
}

func (l *ledger) Propose(ctx context.Context, cfg *config.Config) ([]alloc.Proposal, error) {
	pools, err := pools(cfg)
	if err != nil {
		return nil, err
	}
	l.claimer.SetPools(pools)
	var wanted []alloc.Claim
	for _, e := range cfg.Endpoints {
		if e.Address.Kind != config.AddressPool {
			continue
		}
		c := alloc.Claim{Name: desired.ClaimName(cfg.Node.Name, e.Name), Pool: e.Address.Pool, Kind: alloc.KindAddress, Group: e.Address.Group}
		if e.Address.Prefer.IsValid() {
			c.Prefer = e.Address.Prefer.String()
		}
		wanted = append(wanted, c)
	}
	return l.claimer.Plan(ctx, wanted)
}

func pools(cfg *config.Config) (*alloc.Pools, error) {
	var out []alloc.Pool
	for _, p := range cfg.Pools {
		a := alloc.Pool{Name: p.Name, Kind: alloc.Kind(p.Kind()), Reclaim: alloc.Reclaim(p.Reclaim), Length: p.Length}
		for _, prefix := range slices.Concat(p.Addresses, p.Prefixes) {
			a.Entries = append(a.Entries, prefix.String())
		}
		for _, r := range p.Ranges {
			a.Entries = append(a.Entries, r.String())
		}
		for _, r := range p.Exclude {
			a.Exclude = append(a.Exclude, r.First.String()+"-"+r.Last.String())
		}
		for _, r := range p.ExcludeRanges {
			a.Exclude = append(a.Exclude, r.String())
		}
		out = append(out, a)
	}
	return alloc.NewPools(out...)
}

func (l *ledger) Held(ctx context.Context, router string) ([]state.Claim, error) {
	held, err := l.claimer.Held(ctx, router)
	if err != nil {
		return nil, err
	}
	var out []state.Claim
	for _, a := range held {
		for _, h := range a.Holders {
			if h.UID == "" && desired.RouterOf(h.Claim) == router {
				out = append(out, state.Claim{Name: h.Claim, Pool: a.Pool, Value: a.Value})
			}
		}
	}
	return out, nil
}

func (l *ledger) Acquire(ctx context.Context, p alloc.Proposal) error {
	_, _, err := l.claimer.Take(ctx, p)
	if err != nil {
		return fmt.Errorf("claim %s: %w", state.ClaimOf(p), err)
	}
	return nil
}

func (l *ledger) Unacquire(ctx context.Context, p alloc.Proposal) error {
	if err := l.claimer.Undo(ctx, p); err != nil {
		return fmt.Errorf("giving back %s: %w", state.ClaimOf(p), err)
	}
	return nil
}

func (l *ledger) Release(ctx context.Context, c state.Claim) error {
	if err := l.claimer.Release(ctx, alloc.Name(c.Pool, c.Value), c.Name, ""); err != nil {
		return fmt.Errorf("releasing %s: %w", c, err)
	}
	return nil
}
