package alloc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vtepd/alloc"
	"vtepd/alloc/dirstore"
	"vtepd/alloc/memstore"
)

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// everything is a ledger as text, by name, each allocation as it is stored.
func everything(t fataler, s alloc.Store) map[string]string {
	t.Helper()
	ch, err := s.Changes(context.Background(), 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	out := map[string]string{}
	for _, a := range ch.Set {
		text, err := alloc.Marshal(a)
		if err != nil {
			t.Fatalf("%v", err)
		}
		out[a.Name] = string(text)
	}
	return out
}

func put(t fataler, s alloc.Store, as ...alloc.Allocation) {
	t.Helper()
	for _, a := range as {
		a.Name = alloc.Name(a.Pool, a.Value)
		if _, err := s.Create(context.Background(), a); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// drawLedger fills a store as claims, groups, moves in progress, retained and provisioned values do.
func drawLedger(t *rapid.T, s alloc.Store) {
	taken := map[string]bool{}
	n := rapid.IntRange(0, 12).Draw(t, "allocations")
	for i := range n {
		pool := rapid.SampledFrom([]string{"a", "i", "p"}).Draw(t, "pool")
		k := rapid.IntRange(0, 20).Draw(t, "value")
		value := map[string]string{
			"a": fmt.Sprintf("10.0.0.%d", k), "i": fmt.Sprint(64512 + k), "p": fmt.Sprintf("2001:db8:0:%x::/64", k+1),
		}[pool]
		if taken[pool+value] {
			continue
		}
		taken[pool+value] = true
		a := alloc.Allocation{
			Pool: pool, Value: value, Retain: rapid.Bool().Draw(t, "retain"), AllowBinding: rapid.Bool().Draw(t, "allow"),
			Created: time.Unix(int64(1e9+i), 0).UTC(),
		}
		h := alloc.Holder{Claim: fmt.Sprintf("leaf%d/endpoint/vtep0", i), UID: rapid.SampledFrom([]string{"", "u1"}).Draw(t, "uid")}
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			a.Holders = []alloc.Holder{h}
		case 1:
			a.For = rapid.SampledFrom([]string{"", h.Claim}).Draw(t, "for")
		case 2:
			a.Group = fmt.Sprintf("g%d", i)
			a.Holders = []alloc.Holder{h, {Claim: h.Claim + "z"}}
		case 3: // a claim on its way to another value
			next := alloc.Allocation{Pool: "q", Value: fmt.Sprintf("10.1.0.%d", i), Created: a.Created}
			next.Holders = []alloc.Holder{{Claim: h.Claim, UID: h.UID, Supersedes: []string{alloc.Name(pool, value)}}}
			a.Holders = []alloc.Holder{h}
			put(t, s, next)
		}
		put(t, s, a)
	}
}

// killed is a store whose process dies at the k-th write: before its effect, or after it.
type killed struct {
	alloc.Store
	left  int
	after bool
}

var errKilled = fmt.Errorf("%w: killed", alloc.ErrUnavailable)

func (k *killed) Create(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	k.left--
	if k.left > 0 {
		return k.Store.Create(ctx, a)
	}
	if k.left == 0 && k.after {
		_, _ = k.Store.Create(ctx, a)
	}
	return alloc.Allocation{}, errKilled
}

// TestCopyOfAny: the copy of a ledger is equal to it, twice is once, and one that was killed at any write is completed by another; what
// the target had of others stays.
func TestCopyOfAny(t *testing.T) {
	dir := t.TempDir()
	dirs := 0
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		var from, to alloc.Store = memstore.New().Open(), memstore.New().Open()
		if rapid.Bool().Draw(t, "to a directory") {
			dirs++
			d, err := dirstore.Open(filepath.Join(dir, fmt.Sprint(dirs)))
			if err != nil {
				t.Fatalf("%v", err)
			}
			defer d.Close()
			to = d
		}
		drawLedger(t, from)
		want := everything(t, from)
		total := len(want)
		if rapid.Bool().Draw(t, "the target has something") {
			put(t, to, alloc.Allocation{Pool: "a", Value: "10.9.9.9", Holders: []alloc.Holder{{Claim: "other/x"}}})
			for n, text := range everything(t, to) {
				want[n] = text
			}
		}
		k := &killed{Store: to, left: rapid.IntRange(1, total+1).Draw(t, "killed at"), after: rapid.Bool().Draw(t, "after its effect")}
		dies := k.left <= total
		if _, err := alloc.Copy(ctx, from, k); errors.Is(err, errKilled) != dies {
			t.Fatalf("killed: %v, %v", dies, err)
		}
		if n, err := alloc.Copy(ctx, from, to); err != nil || n.Made+n.Present != total || n.Joined != 0 {
			t.Fatalf("%+v of %d, %v", n, total, err)
		}
		if diff := cmp.Diff(want, everything(t, to)); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
		if n, err := alloc.Copy(ctx, from, to); err != nil || n != (alloc.Copied{Present: total}) {
			t.Fatalf("again: %+v of %d, %v", n, total, err)
		}
		if diff := cmp.Diff(want, everything(t, to)); diff != "" {
			t.Fatalf("again: -want +got:\n%s", diff)
		}
	})
}

func TestCopyClashes(t *testing.T) {
	held := func(pool, value string, claims ...string) alloc.Allocation {
		a := alloc.Allocation{Pool: pool, Value: value}
		for _, c := range claims {
			a.Holders = append(a.Holders, alloc.Holder{Claim: c})
		}
		return a
	}
	shared := func(value, group string, claims ...string) alloc.Allocation {
		a := held("p", value, claims...)
		a.Group = group
		return a
	}
	kept := func(value, claim string) alloc.Allocation {
		return alloc.Allocation{Pool: "p", Value: value, For: claim}
	}
	retained := func(a alloc.Allocation) alloc.Allocation {
		a.Retain = true
		return a
	}
	allowed := func(a alloc.Allocation) alloc.Allocation {
		a.AllowBinding = true
		return a
	}
	for _, test := range []struct {
		name     string
		from, to []alloc.Allocation
		want     string // the error, or the counts
	}{
		{"nothing", nil, nil, "{Made:0 Joined:0 Present:0}"},
		{
			"another value for a claim",
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x")},
			[]alloc.Allocation{held("q", "10.1.0.1", "leaf1/x")},
			"leaf1/x holds 10.0.0.1 of pool p in the source, and 10.1.0.1 of pool q in the target",
		},
		{
			"another claim for a value, and all that clashes",
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x"), held("p", "10.0.0.2", "leaf1/y"), held("p", "10.0.0.3", "leaf1/z")},
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf2/x"), kept("10.0.0.2", "leaf1/y")},
			"10.0.0.1 of pool p is held by leaf1/x in the source, and held by leaf2/x in the target\n" +
				"10.0.0.2 of pool p is held by leaf1/y in the source, and kept for leaf1/y in the target",
		},
		{
			"reserved there, held here",
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x")},
			[]alloc.Allocation{kept("10.0.0.1", "")},
			"10.0.0.1 of pool p is held by leaf1/x in the source, and reserved in the target",
		},
		{
			"a group with another value",
			[]alloc.Allocation{shared("10.0.0.1", "g", "leaf1/x")},
			[]alloc.Allocation{shared("10.0.0.2", "g", "leaf2/x")},
			"group g of pool p has 10.0.0.1 in the source, and 10.0.0.2 in the target",
		},
		{
			"another group for a value",
			[]alloc.Allocation{shared("10.0.0.1", "g", "leaf1/x")},
			[]alloc.Allocation{shared("10.0.0.1", "h", "leaf2/x")},
			"10.0.0.1 of pool p is held by group g (leaf1/x) in the source, and held by group h (leaf2/x) in the target",
		},
		{
			"a group's members come together",
			[]alloc.Allocation{shared("10.0.0.1", "g", "leaf1/x", "leaf3/x")},
			[]alloc.Allocation{shared("10.0.0.1", "g", "leaf2/x", "leaf3/x")},
			"{Made:0 Joined:1 Present:0}",
		},
		{
			"an operator's other word on binding",
			[]alloc.Allocation{allowed(held("p", "10.0.0.1", "leaf1/x")), kept("10.0.0.2", "leaf1/y")},
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x"), allowed(kept("10.0.0.2", "leaf1/y"))},
			"p@10.0.0.1 allows binding in the source, and not in the target; `vtepd claims allow-binding p@10.0.0.1` says it in both, with --off the contrary\n" +
				"p@10.0.0.2 allows binding in the target, and not in the source; `vtepd claims allow-binding p@10.0.0.2` says it in both, with --off the contrary",
		},
		{
			"the same word on binding",
			[]alloc.Allocation{allowed(held("p", "10.0.0.1", "leaf1/x"))},
			[]alloc.Allocation{allowed(held("p", "10.0.0.1", "leaf1/x"))},
			"{Made:0 Joined:0 Present:1}",
		},
		{
			"retained in one of the two",
			[]alloc.Allocation{retained(held("p", "10.0.0.1", "leaf1/x")), held("p", "10.0.0.2", "leaf2/x")},
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x"), retained(held("p", "10.0.0.2", "leaf2/x"))},
			"{Made:0 Joined:2 Present:0}",
		},
		{
			"the target went on with a claim", // a move that is not done yet there
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x")},
			[]alloc.Allocation{held("p", "10.0.0.1", "leaf1/x"), held("p", "10.0.0.2", "leaf1/x")},
			"{Made:0 Joined:0 Present:1}",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			from, to := memstore.New().Open(), memstore.New().Open()
			put(t, from, test.from...)
			put(t, to, test.to...)
			before := everything(t, to)
			n, err := alloc.Copy(t.Context(), from, to)
			got := fmt.Sprintf("%+v", n)
			if err != nil {
				got = err.Error()
				if diff := cmp.Diff(before, everything(t, to)); diff != "" {
					t.Errorf("refused, and yet:\n%s", diff)
				}
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if err != nil {
				return
			}
			for _, a := range test.from {
				there, err := to.Get(t.Context(), alloc.Name(a.Pool, a.Value))
				if err != nil || there.Retain != a.Retain || there.AllowBinding != a.AllowBinding {
					t.Errorf("of %+v there is %+v, %v", a, there, err)
				}
			}
			if n, err := alloc.Copy(t.Context(), from, to); err != nil || n != (alloc.Copied{Present: len(test.from)}) {
				t.Errorf("again: %+v, %v", n, err)
			}
		})
	}
}

// TestCopyDamaged: what can't be read is named, in either ledger, and nothing is copied around it.
func TestCopyDamaged(t *testing.T) {
	dir := t.TempDir()
	open := func(name string) *dirstore.Store {
		t.Helper()
		s, err := dirstore.Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	good, bad := open("good"), open("bad")
	put(t, good, alloc.Allocation{Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "leaf1/x"}}})
	if err := os.WriteFile(filepath.Join(dir, "bad", "p@10.0.0.9"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		from, to alloc.Store
		want     string
	}{
		{bad, memstore.New().Open(), "the source has something unreadable: p@10.0.0.9: "},
		{good, bad, "the target has something unreadable: p@10.0.0.9: "},
	} {
		n, err := alloc.Copy(t.Context(), test.from, test.to)
		if _, ok := errors.AsType[alloc.Clashes](err); !ok || !strings.HasPrefix(err.Error(), test.want) || n != (alloc.Copied{}) {
			t.Errorf("%+v, %v", n, err)
		}
		if all := everything(t, test.to); len(all) != 0 {
			t.Errorf("copied all the same: %v", all)
		}
	}
}

// TestCopyWhileInUse: what routers claim and release in the source meanwhile is copied too, or said to be gone.
func TestCopyWhileInUse(t *testing.T) {
	ledger := memstore.New()
	from, router, to := ledger.Open(), ledger.Open(), memstore.New().Open()
	put(t, from, alloc.Allocation{Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "leaf1/x"}}})
	busy := &killed{Store: to, left: 1 << 30}
	first := true
	to.Fail = func(op, _ string) error {
		if op == "create" && first {
			first = false
			put(t, router, alloc.Allocation{Pool: "p", Value: "10.0.0.2", Holders: []alloc.Holder{{Claim: "leaf2/x"}}})
		}
		return nil
	}
	if n, err := alloc.Copy(t.Context(), from, busy); err != nil || n != (alloc.Copied{Made: 2}) {
		t.Errorf("%+v, %v", n, err)
	}

	put(t, from, alloc.Allocation{Pool: "p", Value: "10.0.0.3", Holders: []alloc.Holder{{Claim: "leaf3/x"}}})
	to.Fail = func(op, name string) error {
		if op == "create" {
			a, err := router.Get(t.Context(), name)
			if err != nil {
				return err
			}
			return router.Delete(t.Context(), name, a.Version)
		}
		return nil
	}
	_, err := alloc.Copy(t.Context(), from, to)
	if want := "p@10.0.0.3 was let go in the source after it had been copied; release it in the target"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
