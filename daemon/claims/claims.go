// Package claims provides what an operator sees of a ledger and does to it: lists of claims and of pools, as values with their
// renderings, and what a release, a provision or a permission would do before it is done. It owns no state, asks nobody, and never
// decides by itself that something may go.
package claims

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"vtepd/alloc"
)

// Claim is one line of a list: a value with who holds it, a value that nobody holds, or a claim without a value.
type Claim struct {
	Claim      string `json:"claim,omitempty"` // router/object; "" for a value that nobody holds
	UID        string `json:"uid,omitempty"`
	Group      string `json:"group,omitempty"`
	Pool       string `json:"pool,omitempty"`
	Value      string `json:"value,omitempty"` // "" for a claim without one
	Allocation string `json:"allocation,omitempty"`
	// KeptFor is the claim that a value nobody holds is kept for.
	KeptFor      string `json:"keptFor,omitempty"`
	AllowBinding bool   `json:"allowBinding,omitempty"`
	// Condition is why there is no value, or whether the value is its pool's; nil when the pools aren't known.
	Condition *alloc.Condition `json:"condition,omitempty"`
	Created   time.Time        `json:"created,omitzero"`
}

// List is a ledger for people, sorted by pool, allocation and claim.
type List struct {
	Store   string   `json:"store"`
	Claims  []Claim  `json:"claims"`
	Damaged []Damage `json:"damaged,omitempty"`
}

// Damage is something in the ledger that can't be read; a value that its name says is taken.
type Damage struct {
	Name  string `json:"name"`
	Pool  string `json:"pool,omitempty"`
	Value string `json:"value,omitempty"`
	Why   string `json:"why"`
}

// Filter says which lines of a List to keep; "" is any.
type Filter struct{ Router, Pool string }

// Of lists what a ledger has, and beside it those of wanted that it has no value for. known: the claimer has the pools.
func Of(ctx context.Context, c *alloc.Claimer, wanted []alloc.Claim, known bool) (List, error) {
	all, damaged, err := c.List(ctx)
	if err != nil {
		return List{}, err
	}
	out := List{Claims: []Claim{}}
	for _, d := range damaged {
		out.Damaged = append(out.Damaged, Damage(d))
	}
	for _, a := range all {
		line := Claim{
			Group: a.Group, Pool: a.Pool, Value: a.Value, Allocation: a.Name, KeptFor: a.For, AllowBinding: a.AllowBinding, Created: a.Created,
		}
		if known {
			line.Condition = &a.Condition
		}
		for _, h := range a.Holders {
			line.Claim, line.UID = h.Claim, h.UID
			out.Claims = append(out.Claims, line)
		}
		if !a.Bound() {
			out.Claims = append(out.Claims, line)
		}
	}
	if known {
		plan, err := c.Plan(ctx, wanted)
		if err != nil {
			return List{}, err
		}
		for _, p := range plan {
			if p.Condition != nil {
				out.Claims = append(out.Claims, Claim{Claim: p.Claim.Name, Pool: p.Claim.Pool, Group: p.Claim.Group, Condition: p.Condition})
			}
		}
	}
	slices.SortStableFunc(out.Claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), compareValues(a.Value, b.Value), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.UID, b.UID))
	})
	return out, nil
}

// compareValues orders values as people count: 10.0.0.9 before 10.0.0.10.
func compareValues(a, b string) int {
	x, errX := (alloc.Allocation{Value: a}).Addr()
	y, errY := (alloc.Allocation{Value: b}).Addr()
	if errX == nil && errY == nil {
		return x.Compare(y)
	}
	p, errP := (alloc.Allocation{Value: a}).Prefix()
	q, errQ := (alloc.Allocation{Value: b}).Prefix()
	if errP == nil && errQ == nil {
		return cmp.Or(p.Addr().Compare(q.Addr()), cmp.Compare(p.Bits(), q.Bits()))
	}
	i, errI := strconv.ParseUint(a, 10, 64)
	j, errJ := strconv.ParseUint(b, 10, 64)
	if errI == nil && errJ == nil {
		return cmp.Compare(i, j)
	}
	return cmp.Compare(a, b)
}

// Only keeps the lines that f asks for. A value that is kept for a router's claim is the router's too; what can't be read stays when
// it may be what is asked for.
func (l List) Only(f Filter) List {
	l.Claims = slices.DeleteFunc(slices.Clone(l.Claims), func(c Claim) bool {
		name := cmp.Or(c.Claim, c.KeptFor)
		return f.Pool != "" && c.Pool != f.Pool || f.Router != "" && RouterOf(name) != f.Router
	})
	l.Damaged = slices.DeleteFunc(slices.Clone(l.Damaged), func(d Damage) bool {
		return f.Pool != "" && d.Pool != "" && d.Pool != f.Pool
	})
	return l
}

// RouterOf is the router that makes a claim.
func RouterOf(claim string) string {
	router, _, ok := strings.Cut(claim, "/")
	if !ok {
		return ""
	}
	return router
}

// JSON writes l for programs.
func (l List) JSON(w io.Writer) error { return writeJSON(w, l) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Text writes l for people, as seen at the time now.
func (l List) Text(w io.Writer, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tVALUE\tCLAIM\tCONDITION\tAGE")
	for _, c := range l.Claims {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", cmp.Or(c.Pool, "-"), cmp.Or(c.Value, "-"), c.who(), c.word(), age(c.Created, now))
	}
	for _, d := range l.Damaged {
		fmt.Fprintf(t, "%s\t%s\t-\t%s (%s)\t-\n", cmp.Or(d.Pool, "-"), cmp.Or(d.Value, d.Name), alloc.LedgerDamaged, d.Why)
	}
	return t.Flush()
}

func (c Claim) who() string {
	who := c.Claim
	switch {
	case who != "" && c.UID != "":
		who += " (UID " + c.UID + ")"
	case who == "" && c.KeptFor != "":
		who = "(" + c.KeptFor + ")"
	case who == "":
		who = "-"
	}
	if c.Group != "" {
		who += " in group " + c.Group
	}
	return who
}

// word is the condition in a word or two.
func (c Claim) word() string {
	word := "Bound"
	if c.Claim == "" {
		word = "Unbound"
	}
	if c.Condition != nil && !c.Condition.Status {
		word = string(c.Condition.Reason)
	}
	if c.AllowBinding {
		word += ", allows binding"
	}
	return word
}

// age is how long ago t was, in its largest unit.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	switch d := max(now.Sub(t), 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// Pool is a pool for people.
type Pool struct {
	alloc.PoolStatus
	Retained uint64 `json:"retained"`       // values that nobody holds and that are taken all the same
	Next     string `json:"next,omitempty"` // the value that the next claim without a preference would get
	Why      string `json:"why,omitempty"`  // there is no next one
}

// Pools are the pools of a config, sorted by name.
type Pools struct {
	Store string `json:"store"`
	Pools []Pool `json:"pools"`
}

// PoolsOf looks at all pools that c knows.
func PoolsOf(ctx context.Context, c *alloc.Claimer) (Pools, error) {
	all, err := c.Pools(ctx)
	if err != nil {
		return Pools{}, err
	}
	list, _, err := c.List(ctx)
	if err != nil {
		return Pools{}, err
	}
	out := Pools{Pools: []Pool{}}
	var next []alloc.Claim
	for _, p := range all {
		next = append(next, alloc.Claim{Name: "next/" + p.Name, Pool: p.Name})
	}
	plan, err := c.Plan(ctx, next)
	if err != nil {
		return Pools{}, err
	}
	retained := map[string]uint64{}
	for _, a := range list {
		if !a.Bound() {
			retained[a.Pool]++
		}
	}
	for _, p := range all {
		row := Pool{PoolStatus: p, Retained: retained[p.Name]}
		for _, n := range plan {
			if n.Claim.Pool != p.Name {
				continue
			}
			if row.Next = n.Allocation.Value; n.Condition != nil {
				row.Why = n.Condition.Message
			}
		}
		out.Pools = append(out.Pools, row)
	}
	return out, nil
}

// JSON writes p for programs.
func (p Pools) JSON(w io.Writer) error { return writeJSON(w, p) }

// Text writes p for people.
func (p Pools) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POOL\tKIND\tSIZE\tUSED\tFREE\tRETAINED\tOUTSIDE\tNEXT")
	for _, r := range p.Pools {
		next := r.Next
		if r.Why != "" {
			next = fmt.Sprintf("- (%s)", r.Why)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%s\n", r.Name, r.Kind, count(r.Total), r.Allocated, count(r.Free), r.Retained, r.OutOfRange, next)
	}
	return t.Flush()
}

// count is a number that is as large as can be shown when it is larger.
func count(n uint64) string {
	if n == math.MaxUint64 {
		return "2^64 or more"
	}
	return strconv.FormatUint(n, 10)
}

// Held is what a name means to an operator: allocations, each with those of its holders that are meant.
type Held struct {
	Allocation alloc.Allocation
	Holders    []alloc.Holder // none: nobody holds it
}

// String says who holds what.
func (h Held) String() string {
	value := fmt.Sprintf("%s of pool %s", h.Allocation.Value, h.Allocation.Pool)
	if len(h.Holders) == 0 {
		if h.Allocation.For != "" {
			return value + ", kept for " + h.Allocation.For
		}
		if h.Allocation.Group != "" {
			return value + ", kept for group " + h.Allocation.Group
		}
		return value + ", held by nobody"
	}
	var names []string
	for _, x := range h.Holders {
		names = append(names, x.Claim)
	}
	text := value + ", held by " + strings.Join(names, ", ")
	if rest := len(h.Allocation.Holders) - len(h.Holders); rest > 0 {
		text += fmt.Sprintf(", which %d more of group %s keep", rest, h.Allocation.Group)
	}
	return text
}

// Routers are the routers of the holders, sorted.
func (h Held) Routers() []string {
	var out []string
	for _, x := range h.Holders {
		if r := RouterOf(x.Claim); r != "" {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Find is what name means: the allocation of that name (POOL@VALUE) with all of its holders, or all that the claim of that name
// holds. An error says what there is instead.
func Find(ctx context.Context, c *alloc.Claimer, name string) ([]Held, error) {
	all, damaged, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []Held
	var kept []string
	for _, a := range all {
		if a.Name == name {
			return []Held{{a.Allocation, a.Holders}}, nil
		}
		h := Held{Allocation: a.Allocation}
		for _, x := range a.Holders {
			if x.Claim == name {
				h.Holders = append(h.Holders, x)
			}
		}
		if len(h.Holders) > 0 {
			out = append(out, h)
		} else if a.For == name {
			kept = append(kept, a.Name)
		}
	}
	for _, d := range damaged {
		if d.Name == name {
			return nil, d
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case len(kept) > 0:
		return nil, fmt.Errorf("%s holds nothing; kept for it: %s", name, strings.Join(kept, ", "))
	case strings.Contains(name, "@"):
		return nil, fmt.Errorf("there is no allocation %s; `vtepd claims -o json` names all", name)
	}
	return nil, fmt.Errorf("there is no claim %s that holds anything; `vtepd claims` lists all", name)
}

// Release lets go of h by the pool's reclaim, or frees a value that nobody holds, and says what has become of it.
func Release(ctx context.Context, c *alloc.Claimer, h Held) (string, error) {
	value := fmt.Sprintf("%s of pool %s", h.Allocation.Value, h.Allocation.Pool)
	if len(h.Holders) == 0 {
		if err := c.Delete(ctx, h.Allocation.Name); err != nil {
			return "", changed(err)
		}
		return value + " is free", nil
	}
	for _, x := range h.Holders {
		if err := c.Release(ctx, h.Allocation.Name, x.Claim, x.UID); err != nil {
			return "", err
		}
	}
	all, _, err := c.List(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(a alloc.AllocationStatus) bool { return a.Name == h.Allocation.Name })
	switch {
	case i < 0:
		return value + " is free", nil
	case all[i].Bound():
		return fmt.Sprintf("%s is still held by %d of group %s", value, len(all[i].Holders), all[i].Group), nil
	}
	return fmt.Sprintf("%s is held by nobody and retained by its pool; `vtepd claims release %s` frees it", value, h.Allocation.Name), nil
}

// AllowBinding sets whether a claim of the same name and another UID may have what h is.
func AllowBinding(ctx context.Context, c *alloc.Claimer, h Held, allow bool) error {
	_, err := c.AllowBinding(ctx, h.Allocation.Name, allow)
	return changed(err)
}

// changed says what to do about a change that came between looking and doing.
func changed(err error) error {
	if errors.Is(err, alloc.ErrConflict) || errors.Is(err, alloc.ErrNotFound) {
		return fmt.Errorf("%w; somebody was faster, look again", err)
	}
	return err
}

// Provision takes a value of a pool for the claim or for the group of that name, or with neither for nobody, and says who has it where
// it is taken.
func Provision(ctx context.Context, c *alloc.Claimer, pool, value, claim, group string) (alloc.Allocation, error) {
	a, err := c.Provision(ctx, pool, value, claim, group)
	if !errors.Is(err, alloc.ErrExists) {
		return a, err
	}
	canonical, _, cerr := alloc.Canonical(value)
	if cerr != nil {
		return a, err
	}
	found, ferr := Find(ctx, c, alloc.Name(pool, canonical))
	if ferr != nil {
		return a, errors.Join(err, ferr)
	}
	return a, fmt.Errorf("taken already: %s", found[0])
}
