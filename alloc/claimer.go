package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Action is what a Proposal would do to the ledger.
type Action string

// The actions. Keep does nothing.
const (
	Keep   Action = "keep"   // the claim has it already
	Create Action = "create" // a free value is taken
	Bind   Action = "bind"   // an allocation that allows it is bound to the claim
	Join   Action = "join"   // the claim joins its group's allocation
)

// Proposal is the answer to a claim before anything is written, as data: a journal that holds it can take it or undo it after
// a crash. Either Condition is set, or Allocation and Action are.
type Proposal struct {
	Claim      Claim       `json:"claim"`
	Action     Action      `json:"action,omitempty"`
	Allocation Allocation  `json:"allocation"`
	Before     *Allocation `json:"before,omitempty"` // Bind: what it was
	// Held names what the claim held before, newest first. What isn't Allocation.Name of it is superseded: the claim goes on
	// holding it until it is released, after the move is done.
	Held      []string   `json:"held,omitempty"`
	Condition *Condition `json:"condition,omitempty"`
}

// Supersedes names the allocations to release once the change that needs Allocation is done.
func (p Proposal) Supersedes() []string {
	if p.Condition != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Held), func(n string) bool { return n == p.Allocation.Name })
}

// Claimer answers claims from pools and a ledger that others may write to at the same time. It is safe for concurrent use.
type Claimer struct {
	store Store
	now   func() time.Time

	mu     sync.Mutex
	v      *view
	cursor Cursor
}

// NewClaimer reads nothing yet. The store stays the caller's to close.
func NewClaimer(store Store, pools *Pools) *Claimer {
	return &Claimer{store: store, now: time.Now, v: newView(pools)}
}

// SetPools replaces the pools. What is allocated stays so.
func (c *Claimer) SetPools(pools *Pools) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.v.index(pools)
}

func (c *Claimer) sync(ctx context.Context) error {
	ch, err := c.store.Changes(ctx, c.cursor)
	if err != nil {
		return err
	}
	c.v.apply(ch)
	c.cursor = ch.Next
	return nil
}

// refused turns a store's error into the claim's condition; a context's error, and what isn't the store's, stays itself.
func refused(cl Claim, err error) error {
	var d Damage
	switch {
	case errors.As(err, &d):
		k := refuse(cl, LedgerDamaged, "%v", d)
		k.err = err
		return k
	case errors.Is(err, ErrUnavailable) || errors.Is(err, ErrReadOnly):
		k := refuse(cl, LedgerUnavailable, "%v", err)
		k.err = err
		return k
	}
	return err
}

// Plan answers all claims at once and writes nothing. The proposals are sorted by claim and don't depend on the order of
// claims: what is held stays, then what is kept for a claim, then preferences, then the lowest free values. An error is the
// ledger's (ErrUnavailable, the context's) or a claim without a proper name.
func (c *Claimer) Plan(ctx context.Context, claims []Claim) ([]Proposal, error) {
	claims = slices.Clone(claims)
	slices.SortFunc(claims, func(a, b Claim) int { return cmp.Compare(a.Name, b.Name) })
	for i, cl := range claims {
		if err := cl.check(); err != nil {
			return nil, err
		}
		if i > 0 && claims[i-1].Name == cl.Name {
			return nil, fmt.Errorf("two claims named %s", cl.Name)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	return c.plan(claims), nil
}

// plan tries claims on the view, one turn after another, and puts the view back.
func (c *Claimer) plan(claims []Claim) []Proposal {
	type undo struct {
		name   string
		before *Allocation
	}
	var undos []undo
	out := make([]Proposal, len(claims))
	done := make([]bool, len(claims))
	turns := []func(Proposal) bool{
		func(p Proposal) bool { return p.Action == Keep },
		func(p Proposal) bool { return p.Action == Bind || p.Action == Join },
		func(p Proposal) bool { return p.Claim.Prefer != "" },
		func(Proposal) bool { return true },
	}
	for _, turn := range turns {
		for i, cl := range claims {
			if done[i] {
				continue
			}
			p := c.v.propose(cl)
			if !turn(p) {
				continue
			}
			out[i], done[i] = p, true
			if p.Condition == nil && p.Action != Keep {
				undos = append(undos, undo{p.Allocation.Name, c.v.all[p.Allocation.Name]})
				c.v.set(p.Allocation)
			}
		}
	}
	for _, u := range slices.Backward(undos) {
		c.v.remove(u.name)
		if u.before != nil {
			c.v.set(*u.before)
		}
	}
	inOrder(out)
	return out
}

// inOrder lets the first claim of a new group be the one that makes or binds its allocation, whichever's turn decided the value, so
// that proposals can be taken in the order that they come in.
func inOrder(ps []Proposal) {
	for i := range ps {
		maker := &ps[i]
		if maker.Claim.Group == "" || maker.Action != Create && maker.Action != Bind {
			continue
		}
		for j := range ps[:i] {
			if ps[j].Action == Join && ps[j].Allocation.Name == maker.Allocation.Name {
				first := &ps[j]
				first.Action, maker.Action = maker.Action, Join
				first.Before, maker.Before = maker.Before, nil
				break
			}
		}
		// Each proposal shows the allocation as it is once that one has been taken.
		var sofar *Allocation
		for j := range ps {
			p := &ps[j]
			if p.Condition != nil || p.Action == Keep || p.Allocation.Name != maker.Allocation.Name {
				continue
			}
			h := p.Allocation.Holders[p.Allocation.holder(p.Claim.Name, p.Claim.UID)]
			if sofar == nil {
				bare := p.Allocation.clone()
				bare.Holders = nil
				sofar = &bare
			}
			p.Allocation = sofar.with(h)
			sofar = &p.Allocation
		}
	}
}

// propose answers one claim from what is known.
func (v *view) propose(cl Claim) Proposal {
	p := Proposal{Claim: cl}
	held, k := v.heldBy(cl)
	for _, a := range held {
		p.Held = append(p.Held, a.Name)
	}
	if k == nil {
		k = v.answer(cl, held, &p)
	}
	if k != nil {
		p.Action, p.Allocation, p.Before, p.Condition = "", Allocation{}, nil, k
	}
	return p
}

func (v *view) answer(cl Claim, held []*Allocation, p *Proposal) *Condition {
	prefer := cl.Prefer
	if canonical, _, err := Canonical(prefer); err == nil {
		prefer = canonical
	}
	for _, a := range held {
		if a.Pool == cl.Pool && a.Group == cl.Group && (prefer == "" || prefer == a.Value) {
			p.Action, p.Allocation = Keep, a.clone()
			return nil
		}
	}

	pool := v.pools.byName[cl.Pool]
	switch {
	case pool == nil && len(v.pools.names) == 0:
		return refuse(cl, PoolNotFound, "there is no pool %q, nor any other", cl.Pool)
	case pool == nil:
		return refuse(cl, PoolNotFound, "there is no pool %q; there are %s", cl.Pool, strings.Join(v.pools.names, ", "))
	case cl.Kind != "" && cl.Kind != pool.Kind:
		return refuse(cl, PoolRefInvalid, "pool %s is %s pool, and %s pool is needed", cl.Pool, article(pool.Kind), article(cl.Kind))
	}

	holder := Holder{Claim: cl.Name, UID: cl.UID, Supersedes: slices.Clone(p.Held)}
	if cl.Group != "" {
		shared := slices.DeleteFunc(slices.Clone(v.groups[groupKey{cl.Pool, cl.Group}]), func(a *Allocation) bool { return !a.Bound() })
		if len(shared) > 1 {
			return multiple(cl, shared, "are all bound to group "+cl.Group)
		}
		if len(shared) == 1 {
			a := shared[0]
			if prefer != "" && prefer != a.Value {
				return refuse(cl, PreferredValueUnavailable, "%s shares %s already; a group has one value, and another value needs another group",
					a.holders(), a.Value)
			}
			p.Action, p.Allocation = Join, a.with(holder)
			return nil
		}
	}

	var kept []*Allocation
	for _, a := range v.claims[cl.Name] {
		if cl.Group == "" && a.Pool == cl.Pool && a.Group == "" && a.AllowBinding && !a.HeldBy(cl.Name, cl.UID) {
			kept = append(kept, a)
		}
	}
	if cl.Group != "" {
		for _, a := range v.groups[groupKey{cl.Pool, cl.Group}] {
			if a.AllowBinding && !a.Bound() {
				kept = append(kept, a)
			}
		}
	}
	if prefer != "" {
		kept = slices.DeleteFunc(kept, func(a *Allocation) bool { return a.Value != prefer })
	}
	if len(kept) > 1 {
		return multiple(cl, kept, "are all kept for this claim")
	}
	if len(kept) == 1 {
		before := kept[0].clone()
		after := before.clone()
		after.Holders = nil
		p.Action, p.Before, p.Allocation = Bind, &before, after.with(holder)
		return nil
	}

	value, k := v.free(cl, prefer, pool, len(held) > 0)
	if k != nil {
		return k
	}
	p.Action, p.Allocation = Create, Allocation{
		Name: Name(cl.Pool, value), Pool: cl.Pool, Value: value, Group: cl.Group,
		Holders: []Holder{holder}, Retain: pool.Reclaim == Retain,
	}
	return nil
}

// free is the value that a new allocation would have.
func (v *view) free(cl Claim, prefer string, pool *compiled, moves bool) (string, *Condition) {
	if prefer != "" {
		_, _, err := pool.parse(prefer)
		name := Name(cl.Pool, prefer)
		switch a := v.all[name]; {
		case err != nil:
			return "", refuse(cl, PreferredValueUnavailable, "pool %s can't have that value: %v", cl.Pool, err)
		case a != nil && a.Bound():
			return "", refuse(cl, PreferredValueUnavailable, "%s of pool %s is held by %s", prefer, cl.Pool, a.stranger(cl))
		case a != nil:
			return "", refuse(cl, PreferredValueUnavailable, "%s of pool %s is %s", prefer, cl.Pool, a.reserved(cl))
		case v.damaged[name].Name != "":
			return "", refuse(cl, PreferredValueUnavailable, "%s of pool %s is taken by something unreadable: %v", prefer, cl.Pool, v.damaged[name])
		case pool.excluded(prefer):
			return "", refuse(cl, PreferredValueUnavailable, "pool %s excludes %s", cl.Pool, prefer)
		case !v.pools.Contains(cl.Pool, prefer):
			return "", refuse(cl, PreferredValueUnavailable, "%s is outside pool %s", prefer, cl.Pool)
		}
		return prefer, nil
	}
	if t := v.tally(cl.Pool); t.damaged > 0 && !moves {
		var bad []string
		for _, d := range v.damaged {
			if d.Pool == cl.Pool {
				bad = append(bad, d.Error())
			}
		}
		slices.Sort(bad)
		return "", refuse(cl, LedgerDamaged, "what this claim had may be in %s", strings.Join(bad, "; "))
	}
	pos := v.taken[cl.Pool].lowest()
	if !pos.less(pool.total) {
		return "", refuse(cl, PoolExhausted, "all %d values of pool %s are taken", pool.total.uint64(), cl.Pool)
	}
	return pool.value(pos), nil
}

// stranger says who holds a, where the name alone would read as the claim itself.
func (a Allocation) stranger(cl Claim) string {
	h := a.Holders[0]
	switch {
	case a.Group != "" || h.Claim != cl.Name:
		return a.holders()
	case h.UID == cl.UID:
		return cl.Name + " alone, and not for group " + cl.Group
	case a.AllowBinding:
		return fmt.Sprintf("an earlier %s (UID %q) alone, and not for group %s", cl.Name, h.UID, cl.Group)
	}
	return fmt.Sprintf("an earlier %s (UID %q) and doesn't allow binding", cl.Name, h.UID)
}

// reserved says what the claim doesn't get a for, which nobody holds.
func (a Allocation) reserved(cl Claim) string {
	who := a.For
	if a.Group != "" {
		who = "group " + a.Group
	}
	switch {
	case who == "":
		return "reserved"
	case !a.AllowBinding:
		return "kept for " + who + " and doesn't allow binding"
	case cl.Group != "" && a.For == cl.Name:
		return "kept for " + who + " alone, and not for group " + cl.Group
	}
	return "kept for " + who
}

// Acquire gives the claim its value: what it holds, or else what Plan would propose, made in the ledger; when another is
// faster, the next. wrote tells whether the ledger was changed. A refusal is a *Condition.
func (c *Claimer) Acquire(ctx context.Context, cl Claim) (a Allocation, wrote bool, err error) {
	if err := cl.check(); err != nil {
		return Allocation{}, false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.sync(ctx); err != nil {
			return Allocation{}, false, refused(cl, err)
		}
		p := c.v.propose(cl)
		if p.Condition != nil {
			return Allocation{}, false, p.Condition
		}
		a, wrote, err := c.take(ctx, p)
		if !errors.Is(err, ErrConflict) {
			return a, wrote, refused(cl, err)
		}
		if err := ctx.Err(); err != nil {
			return Allocation{}, false, err
		}
	}
}

// Take makes a proposal so, exactly: ErrConflict when the ledger no longer fits it, and then nothing is changed and planning
// again is right. Twice is once; wrote is true only for the call that changed the ledger.
func (c *Claimer) Take(ctx context.Context, p Proposal) (a Allocation, wrote bool, err error) {
	if p.Condition != nil {
		return Allocation{}, false, p.Condition
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return Allocation{}, false, refused(p.Claim, err)
	}
	a, wrote, err = c.take(ctx, p)
	return a, wrote, refused(p.Claim, err)
}

func (c *Claimer) take(ctx context.Context, p Proposal) (Allocation, bool, error) {
	cl, name := p.Claim, p.Allocation.Name
	cur := c.v.all[name]
	switch {
	case cur != nil && cur.HeldBy(cl.Name, cl.UID):
		return cur.clone(), false, nil
	case p.Action == Keep:
		return Allocation{}, false, fmt.Errorf("%s: %w: %s no longer holds it", name, ErrConflict, cl.Name)
	case cur == nil && p.Action != Create:
		return Allocation{}, false, fmt.Errorf("%s: %w: it is gone", name, ErrConflict)
	}
	// A mark left over from an earlier move would, with this one's, read as a circle.
	if err := c.tidy(ctx, cl.Name, cl.UID); err != nil {
		return Allocation{}, false, err
	}
	holder := p.Allocation.Holders[p.Allocation.holder(cl.Name, cl.UID)]
	var got Allocation
	var err error
	switch p.Action {
	case Create:
		a := p.Allocation.clone()
		a.Holders = []Holder{holder}
		a.Created = c.now().UTC().Round(0)
		got, err = c.store.Create(ctx, a)
	case Join:
		if cur.Group != cl.Group || !cur.Bound() {
			return Allocation{}, false, fmt.Errorf("%s: %w: group %s left it", name, ErrConflict, cl.Group)
		}
		got, err = c.store.Update(ctx, cur.with(holder))
	case Bind:
		if !sameHolders(cur.Holders, p.Before.Holders) || cur.For != p.Before.For || cur.Group != p.Before.Group || !cur.AllowBinding {
			return Allocation{}, false, fmt.Errorf("%s: %w: it is no longer kept for %s", name, ErrConflict, cl.Name)
		}
		a := cur.clone()
		a.Holders = nil
		got, err = c.store.Update(ctx, a.with(holder))
	default:
		return Allocation{}, false, fmt.Errorf("%s: unknown action %q", name, p.Action)
	}
	switch {
	case errors.Is(err, ErrExists), errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
		if rerr := c.reread(ctx, name); rerr != nil {
			return Allocation{}, false, rerr
		}
		if cur := c.v.all[name]; cur != nil && cur.HeldBy(cl.Name, cl.UID) {
			return cur.clone(), false, nil // an earlier call that was cut off after its write
		}
		return Allocation{}, false, fmt.Errorf("%s: %w: %w", name, ErrConflict, err)
	case err != nil:
		return Allocation{}, false, err
	}
	c.v.set(got)
	if p.Action != Create {
		return got.clone(), true, nil
	}

	// Two processes acting for one claim, or one group, may both have found nothing and taken different values. Whoever finds
	// the other's gives its own back; the later of the two is sure to.
	if err := c.sync(ctx); err != nil {
		return Allocation{}, false, err
	}
	if c.rival(p) {
		if err := c.store.Delete(ctx, name, got.Version); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrConflict) {
			return Allocation{}, false, err
		}
		if err := c.reread(ctx, name); err != nil {
			return Allocation{}, false, err
		}
		return Allocation{}, false, fmt.Errorf("%s: %w: another process acquired for %s too", name, ErrConflict, cl.Name)
	}
	return got.clone(), true, nil
}

// rival reports whether the ledger has another answer to a claim that was just answered by creating.
func (c *Claimer) rival(p Proposal) bool {
	cl := p.Claim
	for _, a := range c.v.claims[cl.Name] {
		if a.Name != p.Allocation.Name && a.HeldBy(cl.Name, cl.UID) && !slices.Contains(p.Held, a.Name) {
			return true
		}
	}
	if cl.Group == "" {
		return false
	}
	return slices.ContainsFunc(c.v.groups[groupKey{cl.Pool, cl.Group}], func(a *Allocation) bool {
		return a.Bound() && a.Name != p.Allocation.Name
	})
}

// reread looks at one allocation past whatever Changes says.
func (c *Claimer) reread(ctx context.Context, name string) error {
	a, err := c.store.Get(ctx, name)
	var d Damage
	switch {
	case err == nil:
		c.v.set(a)
	case errors.Is(err, ErrNotFound):
		c.v.remove(name)
	case errors.As(err, &d):
		c.v.damage(d)
	default:
		return err
	}
	return nil
}

// tidy removes the marks of moves that are over from what a claim holds.
func (c *Claimer) tidy(ctx context.Context, claim, uid string) error {
	for _, a := range slices.Clone(c.v.claims[claim]) {
		for {
			i := a.holder(claim, uid)
			if i < 0 {
				break
			}
			n := a.clone()
			n.Holders[i].Supersedes = slices.DeleteFunc(n.Holders[i].Supersedes, func(s string) bool {
				old := c.v.all[s]
				return s == a.Name || old == nil || !old.HeldBy(claim, uid)
			})
			if len(n.Holders[i].Supersedes) == len(a.Holders[i].Supersedes) {
				break
			}
			got, err := c.store.Update(ctx, n)
			if err == nil {
				c.v.set(got)
				break
			}
			if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotFound) {
				return err
			}
			if err := c.reread(ctx, a.Name); err != nil {
				return err
			}
			if a = c.v.all[a.Name]; a == nil {
				break
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Release lets go of what a claim holds, by the pool's reclaim: the allocation goes, or stays unbound; a group's goes or stays
// with its last member. It is a success when the claim doesn't hold it, or there is no such allocation: twice is once, and
// what another has taken since isn't touched.
func (c *Claimer) Release(ctx context.Context, name, claim, uid string) error {
	return c.release(ctx, name, claim, uid, func(cur Allocation) (Allocation, bool) {
		after := cur.without(claim, uid)
		retain := cur.Retain
		if p := c.v.pools.byName[cur.Pool]; p != nil {
			retain = p.Reclaim == Retain
		}
		if !after.Bound() && cur.Group == "" {
			after.For = claim
		}
		return after, after.Bound() || retain
	})
}

// Undo puts the ledger back as it was for the proposal's claim before the proposal was taken, or does nothing if it wasn't.
// Nobody has used the value yet, so it is free whatever the pool's reclaim.
func (c *Claimer) Undo(ctx context.Context, p Proposal) error {
	if p.Condition != nil || p.Action == Keep || slices.Contains(p.Held, p.Allocation.Name) {
		return nil
	}
	cl := p.Claim
	return c.release(ctx, p.Allocation.Name, cl.Name, cl.UID, func(cur Allocation) (Allocation, bool) {
		after := cur.without(cl.Name, cl.UID)
		if p.Action == Bind && !after.Bound() {
			after.Holders, after.For = p.Before.clone().Holders, p.Before.For
			return after, true
		}
		return after, after.Bound()
	})
}

// release replaces an allocation that a claim holds by what after makes of it, or deletes it.
func (c *Claimer) release(ctx context.Context, name, claim, uid string, after func(Allocation) (Allocation, bool)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return err
	}
	for {
		cur := c.v.all[name]
		if cur == nil || !cur.HeldBy(claim, uid) {
			if d, ok := c.v.damaged[name]; ok {
				return d
			}
			return c.tidy(ctx, claim, uid)
		}
		next, stays := after(*cur)
		err := c.replace(ctx, *cur, next, stays)
		if err != nil && !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err != nil {
			if err := c.reread(ctx, name); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (c *Claimer) replace(ctx context.Context, cur, next Allocation, stays bool) error {
	if !stays {
		if err := c.store.Delete(ctx, cur.Name, cur.Version); err != nil {
			return err
		}
		c.v.remove(cur.Name)
		return nil
	}
	got, err := c.store.Update(ctx, next)
	if err != nil {
		return err
	}
	c.v.set(got)
	return nil
}

// Held is what a router's claims hold (claims named router/…), sorted by name: also a router's that is gone.
func (c *Claimer) Held(ctx context.Context, router string) ([]Allocation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	var out []Allocation
	for _, a := range c.v.routers[router] {
		out = append(out, a.clone())
	}
	slices.SortFunc(out, func(a, b Allocation) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// List is the whole ledger: allocations with their conditions and what can't be read, each sorted by name.
func (c *Claimer) List(ctx context.Context) ([]AllocationStatus, []Damage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return nil, nil, err
	}
	out := make([]AllocationStatus, 0, len(c.v.all))
	for _, a := range c.v.all {
		out = append(out, AllocationStatus{a.clone(), c.v.valid(*a)})
	}
	slices.SortFunc(out, func(a, b AllocationStatus) int { return strings.Compare(a.Name, b.Name) })
	bad := make([]Damage, 0, len(c.v.damaged))
	for _, d := range c.v.damaged {
		bad = append(bad, d)
	}
	slices.SortFunc(bad, func(a, b Damage) int { return strings.Compare(a.Name, b.Name) })
	return out, bad, nil
}

// Valid is the condition of an allocation under the present pools.
func (c *Claimer) Valid(a Allocation) Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.v.valid(a)
}

// Pools are the pools' conditions and counts, sorted by name.
func (c *Claimer) Pools(ctx context.Context) ([]PoolStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sync(ctx); err != nil {
		return nil, err
	}
	out := make([]PoolStatus, len(c.v.pools.names))
	for i, n := range c.v.pools.names {
		out[i] = c.v.poolStatus(n)
	}
	return out, nil
}

// Provision takes a value by hand, unbound: for the claim of that name, or for the first claim of that group, and so for the group,
// which then gets it; or with neither for nobody. The pool must have the value. ErrExists when it is taken.
func (c *Claimer) Provision(ctx context.Context, pool, value, claim, group string) (Allocation, error) {
	if err := errors.Join(checkText("claim name", claim), checkText("group", group)); err != nil {
		return Allocation{}, err
	}
	if claim != "" && group != "" {
		return Allocation{}, fmt.Errorf("for claim %s or for group %s, but not for both: a group's value is for each of its claims", claim, group)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.v.pools.byName[pool]
	if p == nil {
		return Allocation{}, fmt.Errorf("there is no pool %q", pool)
	}
	if _, _, err := p.parse(value); err != nil {
		return Allocation{}, fmt.Errorf("pool %s can't have that value: %w", pool, err)
	}
	value, _, _ = Canonical(value)
	if !c.v.pools.Contains(pool, value) {
		return Allocation{}, fmt.Errorf("%s isn't among the values of pool %s", value, pool)
	}
	a, err := c.store.Create(ctx, Allocation{
		Name: Name(pool, value), Pool: pool, Value: value, Group: group, For: claim, AllowBinding: claim != "" || group != "",
		Retain: p.Reclaim == Retain, Created: c.now().UTC().Round(0),
	})
	if err != nil {
		return Allocation{}, err
	}
	c.v.set(a)
	return a.clone(), nil
}

// AllowBinding sets whether another UID of the allocation's claim may have it. ErrNotFound, ErrConflict.
func (c *Claimer) AllowBinding(ctx context.Context, name string, allow bool) (Allocation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.store.Get(ctx, name)
	if err != nil {
		return Allocation{}, err
	}
	a.AllowBinding = allow
	if a, err = c.store.Update(ctx, a); err != nil {
		return Allocation{}, err
	}
	c.v.set(a)
	return a.clone(), nil
}

// Delete frees an unbound value. One that is bound is refused: releasing it is the way. ErrNotFound, ErrConflict, a Damage.
func (c *Claimer) Delete(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, err := c.store.Get(ctx, name)
	if err != nil {
		return err
	}
	if a.Bound() {
		return fmt.Errorf("%s is held by %s; release it first", name, a.holders())
	}
	if err := c.store.Delete(ctx, name, a.Version); err != nil {
		return err
	}
	c.v.remove(name)
	return nil
}

// Static is an address that a config gives to an object without a claim.
type Static struct {
	Object string // as a claim would be named
	Value  string
}

// Theft is a live value that a config would take from its holder.
type Theft struct {
	Allocation Allocation
	Holder     string // the claim that has it
	By         string // the object that a static gives it to, or "" when the pool is gone
}

func (t Theft) Error() string {
	if t.By == "" {
		return fmt.Sprintf("%s of pool %s is held by %s, and the config has no such pool", t.Allocation.Value, t.Allocation.Pool, t.Holder)
	}
	return fmt.Sprintf("%s is given to %s, but %s holds it (pool %s)", t.Allocation.Value, t.By, t.Holder, t.Allocation.Pool)
}

// Check finds what a config, with the present pools, would take from a live holder: a value that a static gives to another
// object, or a pool removed under a claim that goes on asking for it. It is none if the same config moves the holder, by its Plan: to
// another value, or to a static of its own. Of a claim that asks another pool and has no value there yet, the value stays what it is,
// pool or not. Claims that router makes and the config has no longer are about to be released, and can't be robbed. Sorted by allocation.
func (c *Claimer) Check(ctx context.Context, router string, claims []Claim, statics []Static) ([]Theft, error) {
	plan, err := c.Plan(ctx, claims)
	if err != nil {
		return nil, err
	}
	wants := map[string]Proposal{}
	for _, p := range plan {
		wants[p.Claim.Name] = p
	}
	leaves := func(h Holder, a Allocation) bool {
		p, ok := wants[h.Claim]
		if !ok || p.Claim.UID != h.UID {
			r, _ := routerOf(h.Claim)
			return r == router
		}
		return p.Condition == nil && p.Allocation.Name != a.Name
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Theft
	for _, st := range statics {
		value, _, err := Canonical(st.Value)
		if err != nil {
			continue
		}
		for _, a := range c.v.named(value) {
			for _, h := range a.Holders {
				if h.Claim != st.Object && !leaves(h, *a) {
					out = append(out, Theft{a.clone(), h.Claim, st.Object})
				}
			}
		}
	}
	for _, cl := range claims {
		for _, a := range c.v.claims[cl.Name] {
			if a.Pool == cl.Pool && c.v.pools.byName[a.Pool] == nil && a.HeldBy(cl.Name, cl.UID) && !leaves(Holder{Claim: cl.Name, UID: cl.UID}, *a) {
				out = append(out, Theft{a.clone(), cl.Name, ""})
			}
		}
	}
	slices.SortFunc(out, func(a, b Theft) int {
		return cmp.Or(cmp.Compare(a.Allocation.Name, b.Allocation.Name), cmp.Compare(a.Holder, b.Holder), cmp.Compare(a.By, b.By))
	})
	return out, nil
}
