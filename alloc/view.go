package alloc

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// groupKey names the claims that share one value.
type groupKey struct{ pool, group string }

// view is the ledger as last seen, indexed. It does no I/O.
type view struct {
	pools   *Pools
	all     map[string]*Allocation
	damaged map[string]Damage
	claims  map[string][]*Allocation // by claim name: held, and for unbound ones kept for
	routers map[string][]*Allocation // by router: held by claims of it
	groups  map[groupKey][]*Allocation
	taken   map[string]*runs // by pool that exists: positions of allocations and of damage
	perPool map[string]*tally
}

// tally counts what a pool name has in the ledger, whether the pool exists or not.
type tally struct{ outside, damaged uint64 }

func newView(pools *Pools) *view {
	v := &view{all: map[string]*Allocation{}, damaged: map[string]Damage{}}
	v.index(pools)
	return v
}

// index builds everything that follows from pools, all and damaged.
func (v *view) index(pools *Pools) {
	v.pools = pools
	v.claims, v.routers, v.groups = map[string][]*Allocation{}, map[string][]*Allocation{}, map[groupKey][]*Allocation{}
	v.taken, v.perPool = map[string]*runs{}, map[string]*tally{}
	for n := range pools.byName {
		v.taken[n] = &runs{}
	}
	// In order, so that the runs grow at their ends.
	for _, n := range slices.Sorted(maps.Keys(v.all)) {
		v.link(v.all[n])
	}
	for _, d := range v.damaged {
		v.linkDamage(d)
	}
}

func (v *view) apply(ch Changes) {
	if ch.Reset {
		v.all, v.damaged = make(map[string]*Allocation, len(ch.Set)), map[string]Damage{}
		for i := range ch.Set {
			v.all[ch.Set[i].Name] = &ch.Set[i]
		}
		for _, d := range ch.Damaged {
			v.damaged[d.Name] = d
		}
		v.index(v.pools)
		return
	}
	for _, n := range ch.Gone {
		v.remove(n)
	}
	for _, a := range ch.Set {
		v.set(a)
	}
	for _, d := range ch.Damaged {
		v.damage(d)
	}
}

func (v *view) set(a Allocation) {
	v.remove(a.Name)
	v.all[a.Name] = &a
	v.link(&a)
}

func (v *view) damage(d Damage) {
	v.remove(d.Name)
	v.damaged[d.Name] = d
	v.linkDamage(d)
}

func (v *view) remove(name string) {
	if a := v.all[name]; a != nil {
		delete(v.all, name)
		v.unlink(a)
	}
	if d, ok := v.damaged[name]; ok {
		delete(v.damaged, name)
		if d.Pool != "" {
			v.tally(d.Pool).damaged--
			v.give(d.Pool, d.Value)
		}
	}
}

func (v *view) tally(pool string) *tally {
	t := v.perPool[pool]
	if t == nil {
		t = &tally{}
		v.perPool[pool] = t
	}
	return t
}

func (v *view) take(pool, value string) bool {
	c := v.pools.byName[pool]
	if c == nil {
		return false
	}
	pos, ok := c.position(value)
	if ok {
		v.taken[pool].insert(pos)
	}
	return ok
}

func (v *view) give(pool, value string) bool {
	c := v.pools.byName[pool]
	if c == nil {
		return false
	}
	pos, ok := c.position(value)
	if ok {
		v.taken[pool].remove(pos)
	}
	return ok
}

func (v *view) linkDamage(d Damage) {
	if d.Pool != "" {
		v.tally(d.Pool).damaged++
		v.take(d.Pool, d.Value)
	}
}

func (v *view) link(a *Allocation) {
	for _, n := range names(a) {
		v.claims[n] = append(v.claims[n], a)
	}
	for _, r := range routers(a) {
		v.routers[r] = append(v.routers[r], a)
	}
	if a.Group != "" {
		k := groupKey{a.Pool, a.Group}
		v.groups[k] = append(v.groups[k], a)
	}
	if !v.take(a.Pool, a.Value) {
		v.tally(a.Pool).outside++
	}
}

func (v *view) unlink(a *Allocation) {
	for _, n := range names(a) {
		drop(v.claims, n, a)
	}
	for _, r := range routers(a) {
		drop(v.routers, r, a)
	}
	if a.Group != "" {
		drop(v.groups, groupKey{a.Pool, a.Group}, a)
	}
	if !v.give(a.Pool, a.Value) {
		v.tally(a.Pool).outside--
	}
}

// names are the claims that a can be found by, each once.
func names(a *Allocation) []string {
	if !a.Bound() {
		if a.For == "" {
			return nil
		}
		return []string{a.For}
	}
	n := make([]string, len(a.Holders))
	for i, h := range a.Holders {
		n[i] = h.Claim
	}
	return slices.Compact(n)
}

// routers are those whose claims hold a, each once.
func routers(a *Allocation) []string {
	var out []string
	for _, h := range a.Holders {
		if r, ok := routerOf(h.Claim); ok && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// routerOf is the router that makes a claim: what stands before the first slash.
func routerOf(claim string) (string, bool) {
	router, _, ok := strings.Cut(claim, "/")
	return router, ok
}

// drop takes a out of what an index has under a key.
func drop[K comparable](index map[K][]*Allocation, key K, a *Allocation) {
	s := index[key]
	if i := slices.Index(s, a); i >= 0 {
		s = slices.Delete(s, i, i+1)
	}
	if index[key] = s; len(s) == 0 {
		delete(index, key)
	}
}

// named are the allocations of one value, whatever pools they are of.
func (v *view) named(value string) []*Allocation {
	var out []*Allocation
	add := func(pool string) {
		if a := v.all[Name(pool, value)]; a != nil {
			out = append(out, a)
		}
	}
	for _, n := range v.pools.names {
		add(n)
	}
	for n := range v.perPool { // whatever is of a pool that there isn't is counted
		if v.pools.byName[n] == nil {
			add(n)
		}
	}
	return out
}

// heldBy is what a claim holds, newest first. More than one is right only as a move in progress: every one but the oldest says
// that it supersedes all that are older.
func (v *view) heldBy(c Claim) ([]*Allocation, *Condition) {
	var held []*Allocation
	for _, a := range v.claims[c.Name] {
		if a.HeldBy(c.Name, c.UID) {
			held = append(held, a)
		}
	}
	if len(held) < 2 {
		return held, nil
	}
	older := func(a *Allocation) int {
		n := 0
		for _, s := range a.Holders[a.holder(c.Name, c.UID)].Supersedes {
			if s != a.Name && slices.ContainsFunc(held, func(b *Allocation) bool { return b.Name == s }) {
				n++
			}
		}
		return n
	}
	slices.SortFunc(held, func(a, b *Allocation) int {
		if d := older(b) - older(a); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	for i, a := range held {
		if older(a) != len(held)-1-i {
			return nil, multiple(c, held, "are all bound to this claim")
		}
	}
	return held, nil
}

func multiple(c Claim, as []*Allocation, what string) *Condition {
	names := make([]string, len(as))
	for i, a := range as {
		names[i] = a.Name
	}
	slices.Sort(names)
	return refuse(c, MultipleAllocations, "%s %s; release all but one", strings.Join(names, " and "), what)
}

func (v *view) poolStatus(name string) PoolStatus {
	c := v.pools.byName[name]
	s := PoolStatus{Name: name, Kind: c.Kind, Total: c.total.uint64(), Allocated: v.taken[name].count}
	s.Free = c.total.sub(u128{0, s.Allocated}).uint64()
	s.OutOfRange = v.tally(name).outside
	s.Condition = Condition{Type: TypeAvailable, Status: s.Free > 0, Reason: HasCapacity, Object: name}
	if s.Free == 0 {
		s.Condition.Reason = Exhausted
	}
	s.Condition.Message = fmt.Sprintf("%d of %d allocated", s.Allocated, s.Total)
	return s
}

func (v *view) valid(a Allocation) Condition {
	k := Condition{Type: TypeValid, Object: a.Name}
	switch c := v.pools.byName[a.Pool]; {
	case c == nil:
		k.Reason, k.Message = PoolNotFound, fmt.Sprintf("there is no pool %s", a.Pool)
	case v.pools.Contains(a.Pool, a.Value):
		k.Status, k.Reason, k.Message = true, ValueInRange, fmt.Sprintf("%s is in pool %s", a.Value, a.Pool)
	case c.excluded(a.Value):
		k.Reason, k.Message = ValueOutOfRange, fmt.Sprintf("pool %s excludes %s; the holder keeps it", a.Pool, a.Value)
	default:
		k.Reason, k.Message = ValueOutOfRange, fmt.Sprintf("%s is outside pool %s; the holder keeps it", a.Value, a.Pool)
	}
	return k
}
