// Package storetest provides the suite that every alloc.Store must pass: the contract of each method, the rules of claims and
// allocations row by row, races, calls that fail in the middle, and random histories of several routers against a model. It
// owns no state; each test runs on a new ledger.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/alloc"
)

// TB is what testing.T and rapid.T have in common.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Context() context.Context
}

// NewLedger makes a new, empty ledger and returns what opens it once more, as another process would. What is opened is closed by
// the suite; the ledger is removed by the TB's Cleanup.
type NewLedger func(TB) (open func() (alloc.Store, error))

// Run runs the whole suite.
func Run(t *testing.T, ledger NewLedger) {
	t.Run("Contract", func(t *testing.T) { contract(t, ledger) })
	t.Run("Rules", func(t *testing.T) { rules(t, ledger) })
	t.Run("Moves", func(t *testing.T) { moves(t, ledger) })
	t.Run("Failures", func(t *testing.T) { failures(t, ledger) })
	t.Run("Races", func(t *testing.T) { races(t, ledger) })
	t.Run("Histories", func(t *testing.T) { histories(t, ledger) })
	t.Run("Concurrent", func(t *testing.T) { concurrent(t, ledger) })
}

func mustOpen(t TB, open func() (alloc.Store, error)) alloc.Store {
	t.Helper()
	s, err := open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// sample is an allocation of 10.0.0.n.
func sample(n int, claim string) alloc.Allocation {
	value := fmt.Sprintf("10.0.0.%d", n)
	return alloc.Allocation{
		Name: alloc.Name("p", value), Pool: "p", Value: value,
		Holders: []alloc.Holder{{Claim: claim, UID: "u1"}},
		Created: time.Date(2024, 2, 29, 12, 0, 0, 123456789, time.UTC),
	}
}

var noVersion = cmpopts.IgnoreFields(alloc.Allocation{}, "Version")

func same(t TB, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, noVersion, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(alloc.Condition{})); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func wantIs(t TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want %v", what, err, target)
	}
}

func contract(t *testing.T, ledger NewLedger) {
	ctx := t.Context()
	setup := func(t *testing.T) (alloc.Store, alloc.Store) {
		open := ledger(t)
		return mustOpen(t, open), mustOpen(t, open)
	}
	t.Run("Create then Get, from both", func(t *testing.T) {
		a, b := setup(t)
		made, err := a.Create(ctx, sample(1, "r1/x"))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "created", made, sample(1, "r1/x"))
		for _, s := range []alloc.Store{a, b} {
			got, err := s.Get(ctx, made.Name)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "got", got, made)
			if got.Version != made.Version || got.Version == "" {
				t.Errorf("version %q, made %q", got.Version, made.Version)
			}
		}
	})
	t.Run("Create refuses what exists, whoever made it", func(t *testing.T) {
		a, b := setup(t)
		if _, err := a.Create(ctx, sample(1, "r1/x")); err != nil {
			t.Fatal(err)
		}
		for _, s := range []alloc.Store{a, b} {
			_, err := s.Create(ctx, sample(1, "r2/x"))
			wantIs(t, "create again", err, alloc.ErrExists)
		}
		got, err := a.Get(ctx, "p@10.0.0.1")
		if err != nil || !got.HeldBy("r1/x", "u1") {
			t.Errorf("after the refusals: %+v, %v", got, err)
		}
	})
	t.Run("Create refuses what isn't an allocation", func(t *testing.T) {
		a, _ := setup(t)
		for _, bad := range []alloc.Allocation{
			{},
			{Name: "../p@10.0.0.1", Pool: "../p", Value: "10.0.0.1"},
			{Name: "p@10.0.0.2", Pool: "p", Value: "10.0.0.1"},
			{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "a\nb"}}},
			{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "a"}, {Claim: "b"}}},
			{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Group: "g", Holders: []alloc.Holder{{Claim: "b"}, {Claim: "a"}}},
		} {
			if _, err := a.Create(ctx, bad); err == nil {
				t.Errorf("created %+v", bad)
			}
		}
		ch, err := a.Changes(ctx, 0)
		if err != nil || len(ch.Set)+len(ch.Damaged) != 0 {
			t.Errorf("left behind: %+v, %v", ch, err)
		}
	})
	t.Run("Get, Update and Delete of what isn't there", func(t *testing.T) {
		a, _ := setup(t)
		_, err := a.Get(ctx, "p@10.0.0.1")
		wantIs(t, "get", err, alloc.ErrNotFound)
		_, err = a.Update(ctx, sample(1, "r1/x"))
		wantIs(t, "update", err, alloc.ErrNotFound)
		wantIs(t, "delete", a.Delete(ctx, "p@10.0.0.1", "1"), alloc.ErrNotFound)
	})
	t.Run("Update and Delete compare", func(t *testing.T) {
		a, b := setup(t)
		v1, err := a.Create(ctx, sample(1, "r1/x"))
		if err != nil {
			t.Fatal(err)
		}
		change := v1
		change.AllowBinding = true
		v2, err := b.Update(ctx, change)
		if err != nil {
			t.Fatal(err)
		}
		if v2.Version == v1.Version || !v2.AllowBinding {
			t.Errorf("updated: %+v", v2)
		}
		change.AllowBinding = false
		_, err = a.Update(ctx, change)
		wantIs(t, "update of an old version", err, alloc.ErrConflict)
		wantIs(t, "delete of an old version", a.Delete(ctx, v1.Name, v1.Version), alloc.ErrConflict)
		if got, err := a.Get(ctx, v1.Name); err != nil || got.Version != v2.Version {
			t.Errorf("after the conflicts: %+v, %v", got, err)
		}
		if err := a.Delete(ctx, v2.Name, v2.Version); err != nil {
			t.Fatal(err)
		}
		wantIs(t, "delete again", b.Delete(ctx, v2.Name, v2.Version), alloc.ErrNotFound)
		if _, err := b.Create(ctx, sample(1, "r2/x")); err != nil {
			t.Errorf("the name isn't free again: %v", err)
		}
	})
	t.Run("Changes tell of every write, of anyone's, once", func(t *testing.T) {
		a, b := setup(t)
		first, err := b.Changes(ctx, 0)
		if err != nil || !first.Reset {
			t.Fatalf("first: %+v, %v", first, err)
		}
		one, err := a.Create(ctx, sample(1, "r1/x"))
		if err != nil {
			t.Fatal(err)
		}
		two, err := b.Create(ctx, sample(2, "r2/x"))
		if err != nil {
			t.Fatal(err)
		}
		ch, err := b.Changes(ctx, first.Next)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after two", ch, alloc.Changes{Set: []alloc.Allocation{one, two}, Next: ch.Next})
		if err := a.Delete(ctx, one.Name, one.Version); err != nil {
			t.Fatal(err)
		}
		two.AllowBinding = true
		if two, err = a.Update(ctx, two); err != nil {
			t.Fatal(err)
		}
		next, err := b.Changes(ctx, ch.Next)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after a deletion and an update", next,
			alloc.Changes{Set: []alloc.Allocation{two}, Gone: []string{one.Name}, Next: next.Next})
		quiet, err := b.Changes(ctx, next.Next)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after nothing", quiet, alloc.Changes{Next: next.Next})
		again, err := b.Changes(ctx, first.Next)
		if err != nil {
			t.Fatal(err)
		}
		if !again.Reset {
			same(t, "from an older cursor", again, alloc.Changes{Set: []alloc.Allocation{two}, Gone: []string{one.Name}, Next: next.Next})
		}
		all, err := a.Changes(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "everything", all, alloc.Changes{Reset: true, Set: []alloc.Allocation{two}, Next: all.Next})
	})
	t.Run("Changes tell that something went which they never told of, but another method did", func(t *testing.T) {
		for what, learn := range map[string]func(a, b alloc.Store) (alloc.Allocation, error){
			"created": func(a, _ alloc.Store) (alloc.Allocation, error) { return a.Create(ctx, sample(1, "r1/x")) },
			"got": func(a, b alloc.Store) (alloc.Allocation, error) {
				if _, err := b.Create(ctx, sample(1, "r1/x")); err != nil {
					return alloc.Allocation{}, err
				}
				return a.Get(ctx, "p@10.0.0.1")
			},
			"updated": func(a, b alloc.Store) (alloc.Allocation, error) {
				one, err := b.Create(ctx, sample(1, "r1/x"))
				if err != nil {
					return one, err
				}
				one.AllowBinding = true
				return a.Update(ctx, one)
			},
		} {
			a, b := setup(t)
			first, err := a.Changes(ctx, 0)
			if err != nil {
				t.Fatal(err)
			}
			one, err := learn(a, b)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Delete(ctx, one.Name, one.Version); err != nil {
				t.Fatal(err)
			}
			ch, err := a.Changes(ctx, first.Next)
			if err != nil {
				t.Fatal(err)
			}
			same(t, what, ch, alloc.Changes{Gone: []string{one.Name}, Next: ch.Next})
			// And made again exactly as it was, after one's own deletion.
			if one, err = b.Create(ctx, sample(1, "r1/x")); err != nil {
				t.Fatal(err)
			}
			if ch, err = a.Changes(ctx, ch.Next); err != nil || len(ch.Set) != 1 {
				t.Fatalf("%s: %+v %v", what, ch, err)
			}
			if err := a.Delete(ctx, one.Name, one.Version); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Create(ctx, sample(1, "r1/x")); err != nil {
				t.Fatal(err)
			}
			if ch, err = a.Changes(ctx, ch.Next); err != nil || len(ch.Set) != 1 {
				t.Errorf("%s, deleted and made again: %+v %v", what, ch, err)
			}
		}
	})
	t.Run("Watch hints at another's write and ends with its context", func(t *testing.T) {
		a, b := setup(t)
		ctx, cancel := context.WithCancel(ctx)
		hints, err := a.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		one, err := b.Create(ctx, sample(1, "r1/x"))
		if err != nil {
			t.Fatal(err)
		}
		await(t, hints, "a creation")
		drain(hints)
		if err := b.Delete(ctx, one.Name, one.Version); err != nil {
			t.Fatal(err)
		}
		await(t, hints, "a deletion")
		cancel()
		awaitClosed(t, hints)
	})
	t.Run("Close ends a watch, and every other method after it", func(t *testing.T) {
		a, b := setup(t)
		hints, err := a.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Health(ctx); err != nil {
			t.Errorf("health: %v", err)
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Fatal(err)
		}
		awaitClosed(t, hints)
		for what, err := range every(ctx, a) {
			wantIs(t, what, err, alloc.ErrUnavailable)
		}
		if _, err := b.Create(ctx, sample(1, "r1/x")); err != nil {
			t.Errorf("the other handle: %v", err)
		}
	})
	t.Run("every method returns the context's error", func(t *testing.T) {
		a, _ := setup(t)
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		for what, err := range every(ctx, a) {
			wantIs(t, what, err, context.Canceled)
		}
	})
}

// every calls every method.
func every(ctx context.Context, s alloc.Store) func(func(string, error) bool) {
	return func(yield func(string, error) bool) {
		_, err := s.Changes(ctx, 0)
		_ = yield("changes", err)
		_, err = s.Get(ctx, "p@10.0.0.1")
		_ = yield("get", err)
		_, err = s.Create(ctx, sample(9, "r1/x"))
		_ = yield("create", err)
		_, err = s.Update(ctx, sample(1, "r1/x"))
		_ = yield("update", err)
		_ = yield("delete", s.Delete(ctx, "p@10.0.0.1", "1"))
		_, err = s.Watch(ctx)
		_ = yield("watch", err)
		_ = yield("health", s.Health(ctx))
	}
}

const patience = 20 * time.Second

func await(t TB, hints <-chan struct{}, what string) {
	t.Helper()
	select {
	case _, ok := <-hints:
		if !ok {
			t.Fatalf("the watch ended before %s", what)
		}
	case <-time.After(patience):
		t.Fatalf("no hint of %s", what)
	}
}

func drain(hints <-chan struct{}) {
	for {
		select {
		case <-hints:
		default:
			return
		}
	}
}

func awaitClosed(t TB, hints <-chan struct{}) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case _, ok := <-hints:
			if !ok {
				return
			}
		case <-deadline:
			t.Fatalf("the watch goes on")
		}
	}
}

// router is one daemon: a handle and a Claimer on it.
type router struct {
	t TB
	*alloc.Claimer
	store alloc.Store
}

func newRouter(t TB, open func() (alloc.Store, error), pools *alloc.Pools) router {
	t.Helper()
	s := mustOpen(t, open)
	return router{t, alloc.NewClaimer(s, pools), s}
}

func mustPools(t TB, pools ...alloc.Pool) *alloc.Pools {
	t.Helper()
	p, err := alloc.NewPools(pools...)
	if err != nil {
		t.Fatalf("pools: %v", err)
	}
	return p
}

func (r router) get(c alloc.Claim) alloc.Allocation {
	r.t.Helper()
	a, _, err := r.Acquire(r.t.Context(), c)
	if err != nil {
		r.t.Fatalf("acquire: %v", err)
	}
	return a
}

func (r router) want(c alloc.Claim, value string, wrote bool) {
	r.t.Helper()
	a, w, err := r.Acquire(r.t.Context(), c)
	if err != nil || a.Value != value || w != wrote {
		r.t.Errorf("%s of pool %s: %q wrote=%v, %v; want %q wrote=%v", c.Name, c.Pool, a.Value, w, err, value, wrote)
	}
}

func (r router) refused(c alloc.Claim, reason alloc.Reason, message string) {
	r.t.Helper()
	a, w, err := r.Acquire(r.t.Context(), c)
	var k *alloc.Condition
	if !errors.As(err, &k) || w {
		r.t.Errorf("%s of pool %s: %+v wrote=%v, %v; want %s", c.Name, c.Pool, a, w, err, reason)
		return
	}
	same(r.t, "condition", *k, alloc.Condition{Type: alloc.TypeAllocated, Reason: reason, Object: c.Name, Message: message})
}

func (r router) release(name string, c alloc.Claim) {
	r.t.Helper()
	if err := r.Release(r.t.Context(), name, c.Name, c.UID); err != nil {
		r.t.Fatalf("release: %v", err)
	}
}

// ledger is the whole of it in short, sorted: name, holders, whom it is kept for.
func (r router) ledger() []string {
	r.t.Helper()
	all, bad, err := r.List(r.t.Context())
	if err != nil || len(bad) > 0 {
		r.t.Fatalf("list: %v, %v", bad, err)
	}
	out := make([]string, len(all))
	for i, a := range all {
		var h []string
		for _, x := range a.Holders {
			h = append(h, strings.Join(append([]string{x.Claim + ":" + x.UID}, x.Supersedes...), "<"))
		}
		out[i] = fmt.Sprintf("%s [%s]", a.Name, strings.Join(h, " "))
		if a.Group != "" {
			out[i] += " group " + a.Group
		}
		if a.For != "" {
			out[i] += " for " + a.For
		}
		if a.AllowBinding {
			out[i] += " allow"
		}
	}
	return out
}

func claim(name, pool, prefer string) alloc.Claim {
	return alloc.Claim{Name: name, UID: "u1", Pool: pool, Prefer: prefer}
}

func address(name string, reclaim alloc.Reclaim, exclude []string, cidrs ...string) alloc.Pool {
	return alloc.Pool{Name: name, Kind: alloc.KindAddress, Entries: cidrs, Exclude: exclude, Reclaim: reclaim}
}

func rules(t *testing.T, ledger NewLedger) {
	// two is two routers with their own handles on one ledger.
	two := func(t *testing.T, pools ...alloc.Pool) (router, router) {
		open := ledger(t)
		p := mustPools(t, pools...)
		return newRouter(t, open, p), newRouter(t, open, p)
	}
	x, y, z := claim("leaf1/x", "p", ""), claim("leaf2/y", "p", ""), claim("leaf3/z", "p", "")

	t.Run("no preference: the lowest free value in the order of the entries", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.1.0/31", "2001:db8::/127", "10.0.0.0/32"),
			alloc.Pool{Name: "i", Kind: alloc.KindIndex, Entries: []string{"9", "3..4"}},
			alloc.Pool{Name: "l", Kind: alloc.KindPrefix, Entries: []string{"10.2.0.0/24", "10.1.0.0/24"}, Length: 25, Exclude: []string{"10.2.0.9"}})
		_ = b
		for i, v := range []string{"10.0.1.0", "10.0.1.1", "2001:db8::", "2001:db8::1", "10.0.0.0"} {
			r := []router{a, b}[i%2]
			r.want(claim(fmt.Sprintf("leaf1/%d", i), "p", ""), v, true)
		}
		a.release("p@2001-db8--", claim("leaf1/2", "p", ""))
		b.want(claim("leaf2/next", "p", ""), "2001:db8::", true)
		for i, v := range []string{"9", "3", "4"} {
			a.want(claim(fmt.Sprintf("leaf1/i%d", i), "i", ""), v, true)
		}
		a.want(claim("leaf1/lan", "l", ""), "10.2.0.128/25", true)
	})
	t.Run("network and broadcast address are usable, and exclude keeps them out", func(t *testing.T) {
		a, _ := two(t, address("p", "", nil, "10.0.0.0/31"),
			address("q", "", []string{"10.1.0.0", "10.1.0.3"}, "10.1.0.0/30"))
		a.want(x, "10.0.0.0", true)
		a.want(y, "10.0.0.1", true)
		a.want(claim("leaf1/q1", "q", ""), "10.1.0.1", true)
		a.want(claim("leaf1/q2", "q", ""), "10.1.0.2", true)
		a.refused(claim("leaf1/q3", "q", ""), alloc.PoolExhausted, "all 2 values of pool q are taken")
	})
	t.Run("the claim has an allocation already: the same value, whatever changed", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"))
		a.want(x, "10.0.0.0", true)
		a.want(y, "10.0.0.1", true)
		a.release("p@10.0.0.0", x)
		for _, pools := range [][]alloc.Pool{
			{address("p", "", nil, "10.0.9.0/24", "10.0.0.0/24")},
			{address("p", "", []string{"10.0.0.1"}, "10.0.0.0/24")},
			{address("p", "", nil, "10.0.8.0/24")},
			{address("other", "", nil, "10.0.0.0/24")},
		} {
			a.SetPools(mustPools(t, pools...))
			a.want(y, "10.0.0.1", false)
		}
		b.want(y, "10.0.0.1", false)
		b.want(claim("leaf2/y", "p", "10.0.0.1"), "10.0.0.1", false)
		b.want(y, "10.0.0.1", false)
	})
	t.Run("preferred value free: that one", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24", "2001:db8::/64"))
		a.want(claim("leaf1/x", "p", "10.0.0.77"), "10.0.0.77", true)
		b.want(claim("leaf2/y", "p", "2001:DB8:0::b"), "2001:db8::b", true)
		b.want(claim("leaf2/y", "p", "2001:db8::b"), "2001:db8::b", false)
	})
	t.Run("preferred value taken, excluded, outside, or not a value: refused, with no fallback", func(t *testing.T) {
		a, b := two(t, address("p", "", []string{"10.0.0.8/29"}, "10.0.0.0/24"),
			alloc.Pool{Name: "l", Kind: alloc.KindPrefix, Entries: []string{"10.2.0.0/16"}, Length: 26})
		a.want(claim("leaf1/x", "p", "10.0.0.7"), "10.0.0.7", true)
		for prefer, message := range map[string]string{
			"10.0.0.7":        "10.0.0.7 of pool p is held by leaf1/x",
			"10.0.0.9":        "pool p excludes 10.0.0.9",
			"10.0.1.0":        "10.0.1.0 is outside pool p",
			"vtep":            `pool p can't have that value: "vtep" is not a number, an address or a prefix`,
			"10.0.0.256":      `pool p can't have that value: "10.0.0.256" is not an address`,
			"10.0.0.0/26":     `pool p can't have that value: "10.0.0.0/26" is not an address`,
			"7":               `pool p can't have that value: "7" is not an address`,
			"::ffff:10.0.0.5": `pool p can't have that value: "::ffff:10.0.0.5" is IPv4 mapped into IPv6; 10.0.0.5 would be right`,
		} {
			b.refused(claim("leaf2/y", "p", prefer), alloc.PreferredValueUnavailable, message)
		}
		b.refused(claim("leaf2/l", "l", "10.2.0.0/25"), alloc.PreferredValueUnavailable, "pool l can't have that value: 10.2.0.0/25 is not a /26")
		a.release("p@10.0.0.7", x)
		b.want(claim("leaf2/y", "p", "10.0.0.7"), "10.0.0.7", true)
		b.want(claim("leaf2/y2", "p", ""), "10.0.0.0", true)
	})
	t.Run("pool exhausted: taken up again when a value is freed or the pool grows", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/31"))
		a.want(x, "10.0.0.0", true)
		a.want(y, "10.0.0.1", true)
		hints, err := b.store.Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.refused(z, alloc.PoolExhausted, "all 2 values of pool p are taken")
		drain(hints)
		a.release("p@10.0.0.0", x)
		await(t, hints, "the freed value")
		b.want(z, "10.0.0.0", true)
		a.refused(x, alloc.PoolExhausted, "all 2 values of pool p are taken")
		a.SetPools(mustPools(t, address("p", "", nil, "10.0.0.0/31", "10.0.5.0/24")))
		a.want(x, "10.0.5.0", true)
	})
	t.Run("pool missing or of the wrong kind: named", func(t *testing.T) {
		a, _ := two(t, address("p", "", nil, "10.0.0.0/24"), alloc.Pool{Name: "asns", Kind: alloc.KindIndex, Entries: []string{"64512..64999"}})
		a.refused(claim("leaf1/x", "vtep", ""), alloc.PoolNotFound, `there is no pool "vtep"; there are asns, p`)
		wrong := claim("leaf1/x", "asns", "")
		wrong.Kind = alloc.KindAddress
		a.refused(wrong, alloc.PoolRefInvalid, "pool asns is an index pool, and an address pool is needed")
		a.SetPools(mustPools(t))
		a.refused(x, alloc.PoolNotFound, `there is no pool "p", nor any other`)
	})
	t.Run("two allocations bound to one claim: nothing is guessed, both are named", func(t *testing.T) {
		a, _ := two(t, address("p", "", nil, "10.0.0.0/24"))
		for _, n := range []int{4, 9} {
			if _, err := a.store.Create(t.Context(), sample(n, "leaf1/x")); err != nil {
				t.Fatal(err)
			}
		}
		const message = "p@10.0.0.4 and p@10.0.0.9 are all bound to this claim; release all but one"
		a.refused(x, alloc.MultipleAllocations, message)
		a.refused(claim("leaf1/x", "p", "10.0.0.4"), alloc.MultipleAllocations, message)
		a.release("p@10.0.0.4", x)
		a.want(x, "10.0.0.9", false)
	})
	t.Run("claim deleted, recycle: the allocation goes", func(t *testing.T) {
		a, b := two(t, address("p", alloc.Recycle, nil, "10.0.0.0/24"))
		a.want(x, "10.0.0.0", true)
		a.release("p@10.0.0.0", x)
		a.release("p@10.0.0.0", x)
		same(t, "ledger", b.ledger(), []string{})
		b.want(y, "10.0.0.0", true)
		a.release("p@10.0.0.0", x)
		same(t, "ledger", a.ledger(), []string{"p@10.0.0.0 [leaf2/y:u1]"})
	})
	t.Run("claim deleted, retain: the allocation stays, unbound and taken", func(t *testing.T) {
		a, b := two(t, address("p", alloc.Retain, nil, "10.0.0.0/24"))
		a.want(x, "10.0.0.0", true)
		a.release("p@10.0.0.0", x)
		a.release("p@10.0.0.0", x)
		same(t, "ledger", b.ledger(), []string{"p@10.0.0.0 [] for leaf1/x"})
		b.want(y, "10.0.0.1", true)
		b.refused(claim("leaf3/z", "p", "10.0.0.0"), alloc.PreferredValueUnavailable, "10.0.0.0 of pool p is kept for leaf1/x and doesn't allow binding")
		if err := b.Delete(t.Context(), "p@10.0.0.1"); err == nil || err.Error() != "p@10.0.0.1 is held by leaf2/y; release it first" {
			t.Errorf("delete of a bound one: %v", err)
		}
		if err := b.Delete(t.Context(), "p@10.0.0.0"); err != nil {
			t.Fatal(err)
		}
		a.want(z, "10.0.0.0", true)
	})
	t.Run("claim deleted, pool gone: by what the pool said when the value was taken", func(t *testing.T) {
		a, _ := two(t, address("p", alloc.Retain, nil, "10.0.0.0/24"), address("q", alloc.Recycle, nil, "10.1.0.0/24"))
		a.get(x)
		a.get(claim("leaf1/q", "q", ""))
		a.SetPools(mustPools(t))
		a.release("p@10.0.0.0", x)
		a.release("q@10.1.0.0", claim("leaf1/q", "q", ""))
		same(t, "ledger", a.ledger(), []string{"p@10.0.0.0 [] for leaf1/x"})
	})
	t.Run("claim made again under the same name: not the stale allocation unless it allows binding", func(t *testing.T) {
		a, b := two(t, address("p", alloc.Retain, nil, "10.0.0.0/24"))
		a.want(x, "10.0.0.0", true)
		again := x
		again.UID = "u2"
		b.want(again, "10.0.0.1", true)
		again.UID, again.Prefer = "u3", "10.0.0.0"
		b.refused(again, alloc.PreferredValueUnavailable, `10.0.0.0 of pool p is held by an earlier leaf1/x (UID "u1") and doesn't allow binding`)
		if _, err := a.AllowBinding(t.Context(), "p@10.0.0.0", true); err != nil {
			t.Fatal(err)
		}
		again.Prefer = ""
		b.want(again, "10.0.0.0", true)
		same(t, "ledger", a.ledger(), []string{"p@10.0.0.0 [leaf1/x:u3] allow", "p@10.0.0.1 [leaf1/x:u2]"})
		// Retained: unbound, and still only for who is allowed.
		b.release("p@10.0.0.0", again)
		again.UID = "u4"
		a.want(again, "10.0.0.0", true)
		if _, err := a.AllowBinding(t.Context(), "p@10.0.0.0", false); err != nil {
			t.Fatal(err)
		}
		a.release("p@10.0.0.0", again)
		a.want(again, "10.0.0.2", true)
	})
	t.Run("allocation made by hand before the claim: static assignment", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"))
		if _, err := a.Provision(t.Context(), "p", "10.0.0.50", "leaf1/x", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Provision(t.Context(), "p", "10.0.0.0", "", ""); err != nil {
			t.Fatal(err)
		}
		_, err := b.Provision(t.Context(), "p", "10.0.0.50", "leaf2/y", "")
		wantIs(t, "provision what is taken", err, alloc.ErrExists)
		if _, err := b.Provision(t.Context(), "p", "10.0.1.1", "leaf2/y", ""); err == nil || err.Error() != "10.0.1.1 isn't among the values of pool p" {
			t.Errorf("provision outside: %v", err)
		}
		b.refused(claim("leaf2/y", "p", "10.0.0.0"), alloc.PreferredValueUnavailable, "10.0.0.0 of pool p is reserved")
		b.want(y, "10.0.0.1", true)
		b.want(x, "10.0.0.50", true)
		a.want(x, "10.0.0.50", false)
		for _, v := range []string{"10.0.0.60", "10.0.0.61"} {
			if _, err := a.Provision(t.Context(), "p", v, "leaf3/z", ""); err != nil {
				t.Fatal(err)
			}
		}
		b.refused(z, alloc.MultipleAllocations, "p@10.0.0.60 and p@10.0.0.61 are all kept for this claim; release all but one")
		b.want(claim("leaf3/z", "p", "10.0.0.61"), "10.0.0.61", true)
	})
	t.Run("allocation made by hand before the claims of a group: static assignment", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"))
		of := func(c alloc.Claim, prefer, group string) alloc.Claim {
			c.Prefer, c.Group = prefer, group
			return c
		}
		if _, err := a.Provision(t.Context(), "p", "10.0.0.50", "", "g"); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Provision(t.Context(), "p", "10.0.0.60", "leaf1/x", ""); err != nil {
			t.Fatal(err)
		}
		_, err := a.Provision(t.Context(), "p", "10.0.0.70", "leaf1/x", "g")
		if want := "for claim leaf1/x or for group g, but not for both: a group's value is for each of its claims"; err == nil || err.Error() != want {
			t.Errorf("for both: %v", err)
		}
		const unavailable = alloc.PreferredValueUnavailable
		b.refused(of(y, "10.0.0.50", ""), unavailable, "10.0.0.50 of pool p is kept for group g")
		b.refused(of(y, "10.0.0.50", "h"), unavailable, "10.0.0.50 of pool p is kept for group g")
		b.refused(of(y, "10.0.0.60", ""), unavailable, "10.0.0.60 of pool p is kept for leaf1/x")
		b.refused(of(x, "10.0.0.60", "h"), unavailable, "10.0.0.60 of pool p is kept for leaf1/x alone, and not for group h")
		b.want(of(y, "", "g"), "10.0.0.50", true)
		a.want(of(z, "10.0.0.50", "g"), "10.0.0.50", true)
		b.want(x, "10.0.0.60", true)
		b.refused(of(x, "10.0.0.60", "h"), unavailable, "10.0.0.60 of pool p is held by leaf1/x alone, and not for group h")
		same(t, "ledger", a.ledger(), []string{
			"p@10.0.0.50 [leaf2/y:u1 leaf3/z:u1] group g allow", "p@10.0.0.60 [leaf1/x:u1] allow",
		})
	})
	t.Run("pool shrinks below a live value: ValueOutOfRange, and the claim keeps it", func(t *testing.T) {
		a, _ := two(t, address("p", "", nil, "10.0.0.0/30"))
		for i := range 4 {
			a.want(claim(fmt.Sprintf("leaf1/%d", i), "p", ""), fmt.Sprintf("10.0.0.%d", i), true)
		}
		a.SetPools(mustPools(t, address("p", "", []string{"10.0.0.0"}, "10.0.0.0/31", "10.0.7.0/31")))
		var got []string
		all, _, err := a.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			got = append(got, fmt.Sprintf("%s %s=%v %s: %s", s.Name, s.Condition.Type, s.Condition.Status, s.Condition.Reason, s.Condition.Message))
		}
		same(t, "conditions", got, []string{
			"p@10.0.0.0 Valid=false ValueOutOfRange: pool p excludes 10.0.0.0; the holder keeps it",
			"p@10.0.0.1 Valid=true ValueInRange: 10.0.0.1 is in pool p",
			"p@10.0.0.2 Valid=false ValueOutOfRange: 10.0.0.2 is outside pool p; the holder keeps it",
			"p@10.0.0.3 Valid=false ValueOutOfRange: 10.0.0.3 is outside pool p; the holder keeps it",
		})
		for i := range 4 {
			a.want(claim(fmt.Sprintf("leaf1/%d", i), "p", ""), fmt.Sprintf("10.0.0.%d", i), false)
		}
		pools, err := a.Pools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "pool", pools, []alloc.PoolStatus{{
			Name: "p", Kind: alloc.KindAddress, Total: 3, Allocated: 1, Free: 2, OutOfRange: 3,
			Condition: alloc.Condition{Type: alloc.TypeAvailable, Status: true, Reason: alloc.HasCapacity, Object: "p", Message: "1 of 3 allocated"},
		}})
		a.want(claim("leaf1/new", "p", ""), "10.0.7.0", true)
		a.want(claim("leaf1/new2", "p", ""), "10.0.7.1", true)
		pools, err = a.Pools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "full pool", pools[0].Condition,
			alloc.Condition{Type: alloc.TypeAvailable, Reason: alloc.Exhausted, Object: "p", Message: "3 of 3 allocated"})
		a.SetPools(mustPools(t))
		same(t, "without the pool", a.Valid(all[0].Allocation),
			alloc.Condition{Type: alloc.TypeValid, Reason: alloc.PoolNotFound, Object: "p@10.0.0.0", Message: "there is no pool p"})
	})
	t.Run("a config would take a live address away: refused, both named, unless it moves the holder", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"))
		a.want(x, "10.0.0.0", true)
		b.want(y, "10.0.0.1", true)
		check := func(what string, claims []alloc.Claim, statics []alloc.Static, want ...string) {
			t.Helper()
			thefts, err := a.Check(t.Context(), "leaf1", claims, statics)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, th := range thefts {
				got = append(got, th.Error())
			}
			same(t, what, got, want)
		}
		check("nothing", []alloc.Claim{x}, nil)
		check("own object", []alloc.Claim{x}, []alloc.Static{{Object: "leaf1/x", Value: "10.0.0.0"}})
		check("static given to another", []alloc.Claim{x}, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.0"}},
			"10.0.0.0 is given to leaf1/w, but leaf1/x holds it (pool p)")
		check("another router's", []alloc.Claim{x}, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.1"}},
			"10.0.0.1 is given to leaf1/w, but leaf2/y holds it (pool p)")
		check("the holder moves", []alloc.Claim{claim("leaf1/x", "p", "10.0.0.9")}, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.0"}})
		check("the holder can't move", []alloc.Claim{claim("leaf1/x", "p", "10.0.0.1")}, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.0"}},
			"10.0.0.0 is given to leaf1/w, but leaf1/x holds it (pool p)")
		check("the holder goes", nil, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.0"}})
		a.SetPools(mustPools(t, address("q", "", nil, "10.1.0.0/24")))
		check("pool removed under a claim", []alloc.Claim{x}, nil, "10.0.0.0 of pool p is held by leaf1/x, and the config has no such pool")
		check("pool removed, the claim moves", []alloc.Claim{claim("leaf1/x", "q", "")}, nil)
		a.SetPools(mustPools(t, address("q", "", []string{"10.1.0.0"}, "10.1.0.0/32")))
		moves := claim("leaf1/x", "q", "")
		check("pool removed, the claim moves to a full one", []alloc.Claim{moves}, nil)
		plan, err := a.Plan(t.Context(), []alloc.Claim{moves})
		if err != nil {
			t.Fatal(err)
		}
		if k := plan[0].Condition; k == nil || k.Reason != alloc.PoolExhausted || !slices.Equal(plan[0].Held, []string{"p@10.0.0.0"}) {
			t.Errorf("moving to a full pool: %+v", plan[0])
		}
		check("pool removed, its value given to another", nil, []alloc.Static{{Object: "leaf1/w", Value: "10.0.0.1"}},
			"10.0.0.1 is given to leaf1/w, but leaf2/y holds it (pool p)")
	})
	t.Run("claims of a router that is gone: listed, and released by command", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"))
		a.get(x)
		a.get(claim("leaf1/w", "p", ""))
		a.get(claim("leaf10/w", "p", ""))
		gone, err := b.Held(t.Context(), "leaf1")
		if err != nil {
			t.Fatal(err)
		}
		if len(gone) != 2 || gone[0].Name != "p@10.0.0.0" || gone[1].Name != "p@10.0.0.1" {
			t.Errorf("held: %+v", gone)
		}
		for _, g := range gone {
			for _, h := range g.Holders {
				if err := b.Release(t.Context(), g.Name, h.Claim, h.UID); err != nil {
					t.Fatal(err)
				}
			}
		}
		same(t, "ledger", a.ledger(), []string{"p@10.0.0.2 [leaf10/w:u1]"})
	})
	t.Run("shared claim: one value for the group, freed with its last member", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/24"), address("q", "", nil, "10.1.0.0/24"))
		shared := func(name, pool, prefer, group string) alloc.Claim {
			c := claim(name, pool, prefer)
			c.Group = group
			return c
		}
		a.want(shared("leaf1/lo2", "p", "10.0.0.100", "anycast"), "10.0.0.100", true)
		b.want(shared("leaf2/lo2", "p", "", "anycast"), "10.0.0.100", true)
		b.want(shared("leaf2/lo2", "p", "", "anycast"), "10.0.0.100", false)
		b.want(shared("leaf3/lo2", "p", "", "rp"), "10.0.0.0", true)
		b.refused(shared("leaf3/lo3", "p", "10.0.0.5", "anycast"), alloc.PreferredValueUnavailable,
			"group anycast (leaf1/lo2, leaf2/lo2) shares 10.0.0.100 already; a group has one value, and another value needs another group")
		b.refused(claim("leaf3/z", "p", "10.0.0.100"), alloc.PreferredValueUnavailable,
			"10.0.0.100 of pool p is held by group anycast (leaf1/lo2, leaf2/lo2)")
		a.want(shared("leaf1/lo9", "q", "", "anycast"), "10.1.0.0", true)
		a.release("p@10.0.0.100", shared("leaf1/lo2", "p", "", "anycast"))
		same(t, "ledger", b.ledger(), []string{
			"p@10.0.0.0 [leaf3/lo2:u1] group rp", "p@10.0.0.100 [leaf2/lo2:u1] group anycast", "q@10.1.0.0 [leaf1/lo9:u1] group anycast",
		})
		b.release("p@10.0.0.100", shared("leaf2/lo2", "p", "", "anycast"))
		same(t, "ledger", a.ledger(), []string{"p@10.0.0.0 [leaf3/lo2:u1] group rp", "q@10.1.0.0 [leaf1/lo9:u1] group anycast"})
	})
	t.Run("the plan doesn't depend on the order of claims, and writes nothing", func(t *testing.T) {
		a, b := two(t, address("p", "", nil, "10.0.0.0/29"))
		a.want(claim("leaf1/m", "p", ""), "10.0.0.0", true)
		claims := []alloc.Claim{
			claim("leaf1/a", "p", ""), claim("leaf1/b", "p", "10.0.0.1"), claim("leaf1/c", "p", "10.0.0.1"), claim("leaf1/m", "p", ""),
			{Name: "leaf1/s", UID: "u1", Pool: "p", Group: "g"},
			{Name: "leaf1/t", UID: "u1", Pool: "p", Group: "g", Prefer: "10.0.0.6"},
		}
		before := b.ledger()
		for i := range claims {
			slices.Reverse(claims)
			claims = append(claims[i:], claims[:i]...)
			plan, err := a.Plan(t.Context(), claims)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range plan {
				s := fmt.Sprintf("%s %s %s", p.Claim.Name, p.Action, p.Allocation.Value)
				if p.Condition != nil {
					s = p.Condition.Error()
				}
				got = append(got, s)
			}
			same(t, "plan", got, []string{
				"leaf1/a create 10.0.0.2", "leaf1/b create 10.0.0.1",
				"leaf1/c: PreferredValueUnavailable: 10.0.0.1 of pool p is held by leaf1/b", "leaf1/m keep 10.0.0.0",
				"leaf1/s create 10.0.0.6", "leaf1/t join 10.0.0.6",
			})
			same(t, "holders", plan[4].Allocation.Holders, []alloc.Holder{{Claim: "leaf1/s", UID: "u1"}})
			same(t, "holders", plan[5].Allocation.Holders, []alloc.Holder{{Claim: "leaf1/s", UID: "u1"}, {Claim: "leaf1/t", UID: "u1"}})
		}
		same(t, "ledger", b.ledger(), before)
		if _, err := a.Plan(t.Context(), []alloc.Claim{x, x}); err == nil || err.Error() != "two claims named leaf1/x" {
			t.Errorf("a claim twice: %v", err)
		}
		if _, err := a.Plan(t.Context(), []alloc.Claim{claim("a b", "p", "")}); err == nil ||
			err.Error() != `claim name "a b" has a space or control character` {
			t.Errorf("a claim with a space: %v", err)
		}
	})
}

func moves(t *testing.T, ledger NewLedger) {
	one := func(t *testing.T) (router, func() (alloc.Store, error), *alloc.Pools) {
		open := ledger(t)
		p := mustPools(t, address("p", "", nil, "10.0.0.0/24"), address("q", alloc.Retain, nil, "10.1.0.0/24"))
		return newRouter(t, open, p), open, p
	}
	plan1 := func(t *testing.T, r router, c alloc.Claim) alloc.Proposal {
		t.Helper()
		ps, err := r.Plan(t.Context(), []alloc.Claim{c})
		if err != nil || ps[0].Condition != nil {
			t.Fatalf("plan: %+v, %v", ps, err)
		}
		return ps[0]
	}
	take := func(t *testing.T, r router, p alloc.Proposal, wrote bool) {
		t.Helper()
		a, w, err := r.Take(t.Context(), p)
		if err != nil || a.Name != p.Allocation.Name || w != wrote {
			t.Fatalf("take: %+v %v %v, want %s %v", a, w, err, p.Allocation.Name, wrote)
		}
	}

	t.Run("another preference: both are held until the old one is released", func(t *testing.T) {
		r, open, pools := one(t)
		c := claim("leaf1/x", "p", "10.0.0.1")
		r.get(c)
		c.Prefer = "10.0.0.2"
		p := plan1(t, r, c)
		same(t, "superseded", p.Supersedes(), []string{"p@10.0.0.1"})
		take(t, r, p, true)
		take(t, r, p, false)
		both := []string{"p@10.0.0.1 [leaf1/x:u1]", "p@10.0.0.2 [leaf1/x:u1<p@10.0.0.1]"}
		same(t, "during the move", r.ledger(), both)
		// A daemon that starts here finds the new value by any wish but the old one's.
		fresh := newRouter(t, open, pools)
		for prefer, value := range map[string]string{"10.0.0.2": "10.0.0.2", "": "10.0.0.2", "10.0.0.1": "10.0.0.1"} {
			fresh.want(claim("leaf1/x", "p", prefer), value, false)
		}
		fresh.release("p@10.0.0.1", c)
		same(t, "after the move", r.ledger(), []string{"p@10.0.0.2 [leaf1/x:u1]"})
		// And back again: no mark of the first move may read as a circle.
		c.Prefer = "10.0.0.1"
		r.get(c)
		same(t, "moving back", r.ledger(), []string{"p@10.0.0.1 [leaf1/x:u1<p@10.0.0.2]", "p@10.0.0.2 [leaf1/x:u1]"})
		r.want(c, "10.0.0.1", false)
	})
	t.Run("a mark that a killed release left means nothing", func(t *testing.T) {
		r, _, _ := one(t)
		a := sample(2, "leaf1/x")
		a.Holders[0].Supersedes = []string{"p@10.0.0.1"}
		if _, err := r.store.Create(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		c := claim("leaf1/x", "p", "10.0.0.1")
		r.want(c, "10.0.0.1", true)
		same(t, "ledger", r.ledger(), []string{"p@10.0.0.1 [leaf1/x:u1<p@10.0.0.2]", "p@10.0.0.2 [leaf1/x:u1]"})
		r.want(c, "10.0.0.1", false)
		r.want(claim("leaf1/x", "p", ""), "10.0.0.1", false)
	})
	t.Run("undone: the new value is free again and the old one held", func(t *testing.T) {
		r, _, _ := one(t)
		c := claim("leaf1/x", "p", "10.0.0.1")
		r.get(c)
		// Retained by its pool when released, but undone it was never live.
		c.Pool, c.Prefer = "q", ""
		p := plan1(t, r, c)
		for range 2 {
			if err := r.Undo(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			same(t, "undone before it was taken", r.ledger(), []string{"p@10.0.0.1 [leaf1/x:u1]"})
		}
		take(t, r, p, true)
		for range 2 {
			if err := r.Undo(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			same(t, "undone", r.ledger(), []string{"p@10.0.0.1 [leaf1/x:u1]"})
		}
		// Undoing what another has taken since touches nothing.
		r.want(claim("leaf2/y", "q", ""), "10.1.0.0", true)
		if err := r.Undo(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		same(t, "of another", r.ledger(), []string{"p@10.0.0.1 [leaf1/x:u1]", "q@10.1.0.0 [leaf2/y:u1]"})
	})
	t.Run("to another pool, and on before the first move is done", func(t *testing.T) {
		r, open, pools := one(t)
		r.get(claim("leaf1/x", "p", ""))
		r.get(claim("leaf1/x", "q", ""))
		r.get(claim("leaf1/x", "q", "10.1.0.9"))
		same(t, "ledger", r.ledger(), []string{
			"p@10.0.0.0 [leaf1/x:u1]", "q@10.1.0.0 [leaf1/x:u1<p@10.0.0.0]", "q@10.1.0.9 [leaf1/x:u1<q@10.1.0.0<p@10.0.0.0]",
		})
		fresh := newRouter(t, open, pools)
		fresh.want(claim("leaf1/x", "q", ""), "10.1.0.9", false)
		fresh.want(claim("leaf1/x", "p", ""), "10.0.0.0", false)
		fresh.release("q@10.1.0.0", claim("leaf1/x", "", ""))
		fresh.release("p@10.0.0.0", claim("leaf1/x", "", ""))
		same(t, "ledger", r.ledger(), []string{"q@10.1.0.0 [] for leaf1/x", "q@10.1.0.9 [leaf1/x:u1]"})
	})
	t.Run("undo of a binding gives it back to whom it was kept for", func(t *testing.T) {
		r, _, _ := one(t)
		if _, err := r.Provision(t.Context(), "p", "10.0.0.7", "leaf1/x", ""); err != nil {
			t.Fatal(err)
		}
		before := r.ledger()
		p := plan1(t, r, claim("leaf1/x", "p", ""))
		take(t, r, p, true)
		same(t, "bound", r.ledger(), []string{"p@10.0.0.7 [leaf1/x:u1] allow"})
		if err := r.Undo(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		same(t, "undone", r.ledger(), before)
	})
	t.Run("undo of joining a group leaves it, and of the first member keeps it for the second", func(t *testing.T) {
		r, _, _ := one(t)
		c1 := alloc.Claim{Name: "leaf1/lo2", Pool: "p", Group: "g"}
		c2 := alloc.Claim{Name: "leaf2/lo2", Pool: "p", Group: "g"}
		p1 := plan1(t, r, c1)
		take(t, r, p1, true)
		p2 := plan1(t, r, c2)
		take(t, r, p2, true)
		if err := r.Undo(t.Context(), p1); err != nil {
			t.Fatal(err)
		}
		same(t, "first undone", r.ledger(), []string{"p@10.0.0.0 [leaf2/lo2:] group g"})
		if err := r.Undo(t.Context(), p2); err != nil {
			t.Fatal(err)
		}
		same(t, "both undone", r.ledger(), []string{})
	})
	t.Run("a proposal that another was faster than is a conflict", func(t *testing.T) {
		r, open, pools := one(t)
		other := newRouter(t, open, pools)
		p := plan1(t, r, claim("leaf1/x", "p", ""))
		other.want(claim("leaf2/y", "p", ""), "10.0.0.0", true)
		_, wrote, err := r.Take(t.Context(), p)
		wantIs(t, "take", err, alloc.ErrConflict)
		if wrote {
			t.Error("it says that it wrote")
		}
		same(t, "ledger", r.ledger(), []string{"p@10.0.0.0 [leaf2/y:u1]"})
		if err := r.Undo(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		same(t, "ledger", r.ledger(), []string{"p@10.0.0.0 [leaf2/y:u1]"})
		r.want(claim("leaf1/x", "p", ""), "10.0.0.1", true)
	})
}

// cut fails the k-th writing call and all after it: before its effect, or, as when the answer is lost, after it.
type cut struct {
	alloc.Store
	left  int
	after bool
}

var errCut = fmt.Errorf("%w: cut off", alloc.ErrUnavailable)

func (c *cut) do(f func() error) error {
	c.left--
	switch {
	case c.left > 0:
		return f()
	case c.left == 0 && c.after:
		_ = f()
	}
	return errCut
}

func (c *cut) Create(ctx context.Context, a alloc.Allocation) (out alloc.Allocation, err error) {
	err = c.do(func() (err error) { out, err = c.Store.Create(ctx, a); return err })
	return out, err
}

func (c *cut) Update(ctx context.Context, a alloc.Allocation) (out alloc.Allocation, err error) {
	err = c.do(func() (err error) { out, err = c.Store.Update(ctx, a); return err })
	return out, err
}

func (c *cut) Delete(ctx context.Context, name, version string) error {
	return c.do(func() error { return c.Store.Delete(ctx, name, version) })
}

// rival is a process that acts for the same claim, or the same group, between another's look and its write.
type rival struct {
	alloc.Store
	other alloc.Store
	first alloc.Allocation
	once  sync.Once
}

func (r *rival) Create(ctx context.Context, a alloc.Allocation) (out alloc.Allocation, err error) {
	r.once.Do(func() { _, err = r.other.Create(ctx, r.first) })
	if err != nil {
		return alloc.Allocation{}, err
	}
	return r.Store.Create(ctx, a)
}

// failures cuts a whole move at every call, and a new daemon must then be able to finish it, and to undo it.
func failures(t *testing.T, ledger NewLedger) {
	type step func(context.Context, *alloc.Claimer) error
	pools := mustPools(t, address("p", "", nil, "10.0.0.0/24"), address("q", alloc.Retain, nil, "10.1.0.0/24"))
	x := claim("leaf1/x", "p", "10.0.0.1")
	moved := claim("leaf1/x", "p", "10.0.0.2")
	again := claim("leaf1/x", "q", "")
	acquire := func(c alloc.Claim) step {
		return func(ctx context.Context, r *alloc.Claimer) error { _, _, err := r.Acquire(ctx, c); return err }
	}
	release := func(name string) step {
		return func(ctx context.Context, r *alloc.Claimer) error { return r.Release(ctx, name, x.Name, x.UID) }
	}
	history := []step{
		acquire(x), acquire(moved), release("p@10.0.0.1"), acquire(x), release("p@10.0.0.2"), acquire(again), release("p@10.0.0.1"),
		release("q@10.1.0.0"), acquire(moved),
	}
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut at every write, effect=%v", after), func(t *testing.T) {
			for k := 1; ; k++ {
				open := ledger(t)
				c := &cut{mustOpen(t, open), k, after}
				first := alloc.NewClaimer(c, pools)
				failed := -1
				for i, s := range history {
					if err := s(t.Context(), first); err != nil {
						var cond *alloc.Condition
						if !errors.Is(err, alloc.ErrUnavailable) || errors.As(err, &cond) && cond.Reason != alloc.LedgerUnavailable {
							t.Fatalf("cut at %d, step %d: %v", k, i, err)
						}
						failed = i
						break
					}
				}
				r := newRouter(t, open, pools)
				if failed >= 0 {
					for i, s := range history[failed:] {
						if err := s(t.Context(), r.Claimer); err != nil {
							t.Fatalf("cut at %d, step %d again: %v", k, failed+i, err)
						}
					}
				}
				same(t, fmt.Sprintf("cut at %d", k), r.ledger(), []string{"p@10.0.0.2 [leaf1/x:u1]", "q@10.1.0.0 [] for leaf1/x"})
				if failed < 0 {
					return
				}
			}
		})
		t.Run(fmt.Sprintf("cut and undone, effect=%v", after), func(t *testing.T) {
			for k := 1; k <= 3; k++ {
				open := ledger(t)
				r := newRouter(t, open, pools)
				r.get(x)
				before := r.ledger()
				plan, err := r.Plan(t.Context(), []alloc.Claim{moved, {Name: "leaf1/g", Pool: "q", Group: "g"}, {Name: "leaf1/h", Pool: "q", Group: "g"}})
				if err != nil {
					t.Fatal(err)
				}
				c := alloc.NewClaimer(&cut{r.store, k, after}, pools)
				for _, p := range plan {
					if _, _, err := c.Take(t.Context(), p); err != nil {
						break
					}
				}
				fresh := newRouter(t, open, pools)
				for _, p := range slices.Backward(plan) {
					if err := fresh.Undo(t.Context(), p); err != nil {
						t.Fatal(err)
					}
				}
				same(t, fmt.Sprintf("cut at %d", k), fresh.ledger(), before)
			}
		})
	}
	t.Run("a ledger that can't be read refuses with LedgerUnavailable", func(t *testing.T) {
		s := mustOpen(t, ledger(t))
		r := router{t, alloc.NewClaimer(s, pools), s}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, _, err := r.Acquire(t.Context(), x)
		var k *alloc.Condition
		if !errors.As(err, &k) || k.Reason != alloc.LedgerUnavailable || !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("acquire: %v", err)
		}
		_, err = r.Plan(t.Context(), []alloc.Claim{x})
		wantIs(t, "plan", err, alloc.ErrUnavailable)
		wantIs(t, "release", r.Release(t.Context(), "p@10.0.0.1", x.Name, x.UID), alloc.ErrUnavailable)
	})
}

func races(t *testing.T, ledger NewLedger) {
	t.Run("eight routers, one pool, exactly one winner a value", func(t *testing.T) {
		const routers, each = 8, 16
		open := ledger(t)
		pools := mustPools(t, address("p", "", nil, "10.0.0.0/25"))
		all := make([]router, routers)
		for i := range all {
			all[i] = newRouter(t, open, pools)
		}
		var wg sync.WaitGroup
		for i, r := range all {
			wg.Go(func() {
				for j := range each {
					if _, wrote, err := r.Acquire(t.Context(), claim(fmt.Sprintf("r%d/%d", i, j), "p", "")); err != nil || !wrote {
						t.Errorf("acquire: wrote=%v %v", wrote, err)
					}
				}
			})
		}
		wg.Wait()
		if l := all[0].ledger(); len(l) != routers*each {
			t.Errorf("%d allocations, want %d", len(l), routers*each)
		}
		all[0].refused(claim("late/x", "p", ""), alloc.PoolExhausted, "all 128 values of pool p are taken")
	})
	t.Run("eight routers, one group, one value", func(t *testing.T) {
		open := ledger(t)
		pools := mustPools(t, address("p", "", nil, "10.0.0.0/25"))
		var wg sync.WaitGroup
		for i := range 8 {
			r := newRouter(t, open, pools)
			wg.Go(func() {
				c := alloc.Claim{Name: fmt.Sprintf("r%d/lo2", i), Pool: "p", Group: "anycast"}
				if a, wrote, err := r.Acquire(t.Context(), c); err != nil || !wrote || a.Value != "10.0.0.0" {
					t.Errorf("acquire: %q wrote=%v %v", a.Value, wrote, err)
				}
			})
		}
		wg.Wait()
		r := newRouter(t, open, pools)
		if l := r.ledger(); len(l) != 1 {
			t.Errorf("ledger: %q", l)
		}
		for i := range 8 {
			wg.Go(func() {
				if err := r.Release(t.Context(), "p@10.0.0.0", fmt.Sprintf("r%d/lo2", i), ""); err != nil {
					t.Errorf("release: %v", err)
				}
			})
		}
		wg.Wait()
		same(t, "ledger", r.ledger(), []string{})
	})
	t.Run("another value made meanwhile for the same claim, or group: one's own is given back", func(t *testing.T) {
		pools := mustPools(t, address("p", "", nil, "10.0.0.0/25"))
		for _, group := range []string{"", "anycast"} {
			open := ledger(t)
			first := sample(9, "r1/x")
			first.Group = group
			c := alloc.Claim{Name: "r1/x", UID: "u1", Pool: "p", Group: group}
			if group != "" {
				c.Name = "r2/x"
			}
			r := router{Claimer: alloc.NewClaimer(&rival{Store: mustOpen(t, open), other: mustOpen(t, open), first: first}, pools), t: t}
			r.want(c, "10.0.0.9", group != "")
			if l := r.ledger(); len(l) != 1 {
				t.Errorf("ledger: %q", l)
			}
		}
	})
	t.Run("eight processes for one claim: one value, made once", func(t *testing.T) {
		open := ledger(t)
		pools := mustPools(t, address("p", "", nil, "10.0.0.0/25"))
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		values := map[string]bool{}
		for range 8 {
			r := newRouter(t, open, pools)
			wg.Go(func() {
				a, wrote, err := r.Acquire(t.Context(), claim("r1/x", "p", ""))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("acquire: %v", err)
				}
				values[a.Value] = true
				if wrote {
					made++
				}
			})
		}
		wg.Wait()
		if made != 1 || len(values) != 1 {
			t.Errorf("made %d, values %v", made, values)
		}
	})
}
