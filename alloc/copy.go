package alloc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Copied counts what Copy found and did.
type Copied struct {
	Made    int `json:"made"`    // allocations that the target hadn't
	Joined  int `json:"joined"`  // allocations of the target's that got more members of their group, or the source's Retain
	Present int `json:"present"` // allocations that needed nothing
}

// Clashes is why a ledger can't take in another: all of it, one a line. Nothing was written then, unless somebody else wrote to one
// of the two meanwhile.
type Clashes []string

func (c Clashes) Error() string { return strings.Join(c, "\n") }

// copyRounds is how often Copy looks again when others write to the two ledgers at the same time.
const copyRounds = 10

// Copy makes every allocation of from in to, under the same claims, and changes nothing else of either: what to has beyond that
// stays. Members of a group are put together, and what the pool's reclaim was counts as in the source. It succeeds once to has been read and has all of it; twice is once, and a copy that
// was cut off is completed by another. Clashes when to has another value for a claim or a group, another claim for a value, or an
// operator's other word on binding, or when an allocation can't be read in either; otherwise an error is a Store's.
func Copy(ctx context.Context, from, to Store) (Copied, error) {
	var n Copied
	made := map[string]bool{}
	for range copyRounds {
		a, clashes, err := readLedger(ctx, from, "source")
		if err != nil {
			return n, err
		}
		b, unreadable, err := readLedger(ctx, to, "target")
		if err != nil {
			return n, err
		}
		clashes = append(clashes, b.blocks(a, unreadable)...)
		var writes []Allocation
		present := 0
		for _, name := range slices.Sorted(maps.Keys(a.all)) {
			w, clash := b.takes(a, *a.all[name])
			clashes = append(clashes, clash...)
			switch {
			case w != nil:
				writes = append(writes, *w)
			case !made[name]:
				present++
			}
		}
		for name := range made {
			if a.all[name] == nil && b.all[name] != nil {
				clashes = append(clashes, fmt.Sprintf("%s was let go in the source after it had been copied; release it in the target", name))
			}
		}
		if len(clashes) > 0 {
			slices.Sort(clashes)
			return n, clashes
		}
		if len(writes) == 0 {
			n.Present = present
			return n, verify(ctx, a, to)
		}
		for _, w := range writes {
			create := w.Version == ""
			if create {
				_, err = to.Create(ctx, w)
			} else {
				_, err = to.Update(ctx, w)
			}
			switch {
			case errors.Is(err, ErrExists), errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
				continue // the next round sees what is there
			case err != nil:
				return n, fmt.Errorf("after %d allocations: %w", n.Made+n.Joined, err)
			case create:
				n.Made++
			default:
				n.Joined++
			}
			made[w.Name] = true
		}
	}
	return n, errors.New("the two ledgers change faster than they can be copied; stop who writes to them, and copy again")
}

// readLedger reads all of a ledger, and says what of it can't be read.
func readLedger(ctx context.Context, s Store, which string) (*view, Clashes, error) {
	ch, err := s.Changes(ctx, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("the %s: %w", which, err)
	}
	none, err := NewPools()
	if err != nil {
		return nil, nil, err
	}
	v := newView(none)
	v.apply(ch)
	var bad Clashes
	for _, d := range v.damaged {
		bad = append(bad, fmt.Sprintf("the %s has something unreadable: %v", which, d))
	}
	return v, bad, nil
}

// blocks is those of what can't be read in v that may be something that from has.
func (v *view) blocks(from *view, unreadable Clashes) Clashes {
	if len(unreadable) == 0 {
		return nil
	}
	for _, d := range v.damaged {
		for _, a := range from.all {
			if d.Pool == "" || d.Pool == a.Pool {
				return unreadable
			}
		}
	}
	return nil
}

// takes is what to write to v, the target, so that it has a of the source: nil for nothing.
func (v *view) takes(from *view, a Allocation) (*Allocation, Clashes) {
	there := v.all[a.Name]
	if there == nil {
		var clashes Clashes
		for _, h := range a.Holders {
			for _, b := range v.claims[h.Claim] {
				if old := from.all[b.Name]; b.HeldBy(h.Claim, h.UID) && (old == nil || !old.HeldBy(h.Claim, h.UID)) {
					clashes = append(clashes, fmt.Sprintf("%s holds %s of pool %s in the source, and %s of pool %s in the target", h.Claim, a.Value, a.Pool, b.Value, b.Pool))
				}
			}
		}
		if a.Group != "" && a.Bound() {
			for _, b := range v.groups[groupKey{a.Pool, a.Group}] {
				if b.Bound() {
					clashes = append(clashes, fmt.Sprintf("group %s of pool %s has %s in the source, and %s in the target", a.Group, a.Pool, a.Value, b.Value))
				}
			}
		}
		w := a.clone()
		w.Version = ""
		return &w, clashes
	}
	var missing []Holder
	for _, h := range a.Holders {
		if !there.HeldBy(h.Claim, h.UID) {
			missing = append(missing, h)
		}
	}
	switch {
	case there.Group != a.Group, a.Bound() != there.Bound(), a.For != there.For, len(missing) > 0 && a.Group == "":
		return nil, Clashes{fmt.Sprintf("%s of pool %s is %s in the source, and %s in the target", a.Value, a.Pool, a.whose(), there.whose())}
	case there.AllowBinding != a.AllowBinding:
		// Which of the two is the later word isn't known.
		allows, not := "source", "target"
		if there.AllowBinding {
			allows, not = not, allows
		}
		return nil, Clashes{fmt.Sprintf("%s allows binding in the %s, and not in the %s; `vtepd claims allow-binding %[1]s` says it in both, with --off the contrary", a.Name, allows, not)}
	case len(missing) == 0 && there.Retain == a.Retain:
		return nil, nil
	}
	w := there.clone()
	w.Retain = a.Retain
	for _, h := range missing {
		w = w.with(h)
	}
	return &w, nil
}

// whose says what a is bound to, after "is".
func (a Allocation) whose() string {
	switch {
	case a.Bound():
		return "held by " + a.holders()
	case a.For != "":
		return "kept for " + a.For
	case a.Group != "":
		return "kept for group " + a.Group
	}
	return "reserved"
}

// verify reads what the ledger behind s has for each allocation of a, past what s remembers.
func verify(ctx context.Context, a *view, s Store) error {
	var bad Clashes
	for _, name := range slices.Sorted(maps.Keys(a.all)) {
		got, err := s.Get(ctx, name)
		if err != nil {
			return fmt.Errorf("reading back from the target: %w", err)
		}
		for _, h := range a.all[name].Holders {
			if !got.HeldBy(h.Claim, h.UID) {
				bad = append(bad, fmt.Sprintf("%s of pool %s is %s in the source, and was read back as %s", got.Value, got.Pool, a.all[name].whose(), got.whose()))
				break
			}
		}
	}
	if bad != nil {
		return bad
	}
	return nil
}
