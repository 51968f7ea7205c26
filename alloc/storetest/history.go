package storetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"vtepd/alloc"
)

// The model answers by trying every value of a pool in turn, and keeps what each claim holds in the order that it took it. It shares
// no code with what it judges.

type modelPool struct {
	alloc.Pool
	values []string // usable, in order
}

// configs are two states of the same pools: the second has shrunk here and grown there.
func configs() [2][]modelPool {
	return [2][]modelPool{
		{
			{
				alloc.Pool{Name: "a", Kind: alloc.KindAddress, Entries: []string{"10.0.1.0/31", "10.0.0.0/30"}, Exclude: []string{"10.0.0.1"}},
				[]string{"10.0.1.0", "10.0.1.1", "10.0.0.0", "10.0.0.2", "10.0.0.3"},
			},
			{
				alloc.Pool{Name: "i", Kind: alloc.KindIndex, Entries: []string{"7..8", "3"}, Reclaim: alloc.Retain},
				[]string{"7", "8", "3"},
			},
			{
				alloc.Pool{Name: "p", Kind: alloc.KindPrefix, Entries: []string{"2001:db8::/62"}, Length: 64, Exclude: []string{"2001:db8:0:2::9"}},
				[]string{"2001:db8::/64", "2001:db8:0:1::/64", "2001:db8:0:3::/64"},
			},
		},
		{
			{
				alloc.Pool{Name: "a", Kind: alloc.KindAddress, Entries: []string{"10.0.0.0/30", "10.0.2.0/32"}, Exclude: []string{"10.0.0.2..10.0.0.3"}},
				[]string{"10.0.0.0", "10.0.0.1", "10.0.2.0"},
			},
			{
				alloc.Pool{Name: "i", Kind: alloc.KindIndex, Entries: []string{"3..5"}, Reclaim: alloc.Recycle},
				[]string{"3", "4", "5"},
			},
		},
	}
}

// wishes are the values that claims prefer, some of them nobody's.
var wishes = map[string][]string{
	"a": {"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.2.0", "172.16.0.1", "7"},
	"i": {"3", "4", "7", "99", "10.0.0.0"},
	"p": {"2001:db8:0:1::/64", "2001:db8:0:2::/64", "2001:db8::/63", "x"},
	"n": {"10.0.0.0"},
}

type modelHolder struct{ claim, uid string }

type modelAlloc struct {
	pool, value, group, kept string
	allow, retain            bool
	holders                  []modelHolder
}

type model struct {
	pools []modelPool
	all   map[string]*modelAlloc
	held  map[modelHolder][]string // oldest first
}

func modelName(pool, value string) string {
	return pool + "@" + strings.ReplaceAll(strings.ReplaceAll(value, ":", "-"), "/", "_")
}

func (m *model) pool(name string) *modelPool {
	for i := range m.pools {
		if m.pools[i].Name == name {
			return &m.pools[i]
		}
	}
	return nil
}

// answer is the action and the name, or the reason.
func (m *model) answer(c alloc.Claim) (alloc.Action, string, alloc.Reason) {
	who := modelHolder{c.Name, c.UID}
	for _, n := range slices.Backward(m.held[who]) {
		if a := m.all[n]; a.pool == c.Pool && a.group == c.Group && (c.Prefer == "" || c.Prefer == a.value) {
			return alloc.Keep, n, ""
		}
	}
	p := m.pool(c.Pool)
	if p == nil {
		return "", "", alloc.PoolNotFound
	}
	if c.Kind != "" && c.Kind != p.Kind {
		return "", "", alloc.PoolRefInvalid
	}
	var kept []string
	for _, n := range slices.Sorted(maps.Keys(m.all)) {
		a := m.all[n]
		if a.pool != c.Pool || a.group != c.Group {
			continue
		}
		if c.Group != "" && len(a.holders) > 0 {
			if c.Prefer != "" && c.Prefer != a.value {
				return "", "", alloc.PreferredValueUnavailable
			}
			return alloc.Join, n, ""
		}
		mine := a.allow && len(a.holders) == 0 && (c.Group != "" || a.kept == c.Name) ||
			a.allow && c.Group == "" && len(a.holders) == 1 && a.holders[0].claim == c.Name
		if mine && (c.Prefer == "" || c.Prefer == a.value) && !slices.Contains(a.holders, who) {
			kept = append(kept, n)
		}
	}
	switch {
	case len(kept) > 1:
		return "", "", alloc.MultipleAllocations
	case len(kept) == 1:
		return alloc.Bind, kept[0], ""
	}
	for _, v := range p.values {
		if (c.Prefer == "" || c.Prefer == v) && m.all[modelName(c.Pool, v)] == nil {
			return alloc.Create, modelName(c.Pool, v), ""
		}
	}
	if c.Prefer != "" {
		return "", "", alloc.PreferredValueUnavailable
	}
	return "", "", alloc.PoolExhausted
}

func (m *model) hold(n string, h modelHolder) {
	a := m.all[n]
	a.kept = ""
	a.holders = append(a.holders, h)
	m.held[h] = append(m.held[h], n)
}

func (m *model) unhold(n string, h modelHolder) {
	m.all[n].holders = slices.DeleteFunc(m.all[n].holders, func(x modelHolder) bool { return x == h })
	m.held[h] = slices.DeleteFunc(m.held[h], func(x string) bool { return x == n })
}

// take does what answer says, and returns how it was before for undo.
func (m *model) take(c alloc.Claim, action alloc.Action, n string, value string) (before modelAlloc) {
	who := modelHolder{c.Name, c.UID}
	switch action {
	case alloc.Create:
		m.all[n] = &modelAlloc{pool: c.Pool, value: value, group: c.Group, retain: m.pool(c.Pool).Reclaim == alloc.Retain}
	case alloc.Bind:
		before = *m.all[n]
		before.holders = slices.Clone(before.holders)
		for _, h := range before.holders {
			m.unhold(n, h)
		}
	case alloc.Keep:
		return before
	}
	m.hold(n, who)
	return before
}

func (m *model) release(n string, h modelHolder) {
	a := m.all[n]
	if a == nil || !slices.Contains(a.holders, h) {
		return
	}
	m.unhold(n, h)
	if len(a.holders) > 0 {
		return
	}
	retain := a.retain
	if p := m.pool(a.pool); p != nil {
		retain = p.Reclaim == alloc.Retain
	}
	if !retain {
		delete(m.all, n)
		return
	}
	if a.group == "" {
		a.kept = h.claim
	}
}

func (m *model) undo(c alloc.Claim, action alloc.Action, n string, before modelAlloc) {
	h := modelHolder{c.Name, c.UID}
	a := m.all[n]
	if action == alloc.Keep || a == nil || !slices.Contains(a.holders, h) {
		return
	}
	m.unhold(n, h)
	switch {
	case action == alloc.Bind && len(a.holders) == 0:
		for _, x := range before.holders {
			m.hold(n, x)
		}
		a.kept = before.kept
	case len(a.holders) == 0:
		delete(m.all, n)
	}
}

// ledger is the model in the words of router.ledger, without the marks of moves.
func (m *model) ledger() []string {
	out := []string{}
	for _, n := range slices.Sorted(maps.Keys(m.all)) {
		a := m.all[n]
		var h []string
		for _, x := range a.holders {
			h = append(h, x.claim+":"+x.uid)
		}
		slices.Sort(h)
		s := fmt.Sprintf("%s [%s]", n, strings.Join(h, " "))
		if a.group != "" {
			s += " group " + a.group
		}
		if a.kept != "" {
			s += " for " + a.kept
		}
		if a.allow {
			s += " allow"
		}
		out = append(out, s)
	}
	return out
}

// change is one claim's part of a router's open transaction.
type change struct {
	proposal alloc.Proposal
	before   modelAlloc
}

// history is several routers, their ledger, and the model of it.
type history struct {
	t      *rapid.T
	open   func() (alloc.Store, error)
	m      model
	config int
	pools  [2]*alloc.Pools
	r      []router
	uids   map[string]string
	txn    [][]change // by router; nil when none is open
}

var modelRouters = []string{"r0", "r1", "r2"}

func (h *history) start(i int) {
	s, err := h.open()
	if err != nil {
		h.t.Fatalf("open: %v", err)
	}
	h.r[i] = router{h.t, alloc.NewClaimer(s, h.pools[h.config]), s}
}

func (h *history) drawClaim(router int, name string) alloc.Claim {
	c := alloc.Claim{Name: modelRouters[router] + "/" + name}
	c.UID = h.uids[c.Name]
	c.Pool = rapid.SampledFrom([]string{"a", "a", "a", "i", "p", "n"}).Draw(h.t, "pool")
	if rapid.IntRange(0, 2).Draw(h.t, "prefers") == 0 {
		c.Prefer = rapid.SampledFrom(wishes[c.Pool]).Draw(h.t, "prefer")
	}
	if name == "g" {
		c.Group = rapid.SampledFrom([]string{"g1", "g1", "g2", ""}).Draw(h.t, "group")
	}
	if rapid.IntRange(0, 9).Draw(h.t, "kinded") == 0 {
		c.Kind = alloc.KindAddress
	}
	return c
}

func (h *history) check() {
	h.t.Helper()
	reader := rapid.IntRange(0, len(h.r)-1).Draw(h.t, "reader")
	got := h.r[reader].ledger()
	for i, l := range got {
		// The marks are judged by what they are for: that every claim is answered as the model says.
		if open, end := strings.IndexByte(l, '['), strings.IndexByte(l, ']'); open >= 0 {
			hs := strings.Fields(l[open+1 : end])
			for j := range hs {
				hs[j], _, _ = strings.Cut(hs[j], "<")
			}
			got[i] = l[:open+1] + strings.Join(hs, " ") + l[end:]
		}
	}
	same(h.t, "ledger", got, h.m.ledger())
}

func (h *history) judge(c alloc.Claim, err error, reason alloc.Reason) {
	h.t.Helper()
	var k *alloc.Condition
	switch {
	case err == nil && reason != "":
		h.t.Fatalf("%+v: no refusal, want %s", c, reason)
	case err != nil && (!errors.As(err, &k) || k.Reason != reason):
		h.t.Fatalf("%+v: %v, want %q", c, err, reason)
	}
}

func (h *history) acquire(i int) {
	if h.txn[i] != nil {
		return
	}
	c := h.drawClaim(i, rapid.SampledFrom([]string{"x", "y", "g"}).Draw(h.t, "name"))
	action, name, reason := h.m.answer(c)
	a, wrote, err := h.r[i].Acquire(h.t.Context(), c)
	h.judge(c, err, reason)
	if reason != "" {
		return
	}
	if a.Name != name || wrote != (action != alloc.Keep) {
		h.t.Fatalf("%+v: %s wrote=%v, want %s %s", c, a.Name, wrote, action, name)
	}
	h.m.take(c, action, name, a.Value)
}

// begin plans several claims of a router at once and takes what is proposed.
func (h *history) begin(i int) {
	if h.txn[i] != nil {
		return
	}
	var claims []alloc.Claim
	for _, n := range []string{"x", "y", "g"} {
		claims = append(claims, h.drawClaim(i, n))
	}
	before := h.r[i].ledger()
	plan, err := h.r[i].Plan(h.t.Context(), claims)
	if err != nil {
		h.t.Fatalf("plan: %v", err)
	}
	same(h.t, "ledger after planning", h.r[i].ledger(), before)
	h.txn[i] = []change{}
	for _, p := range plan {
		if p.Condition != nil {
			continue // judged one at a time in acquire
		}
		a, wrote, err := h.r[i].Take(h.t.Context(), p)
		if err != nil || a.Name != p.Allocation.Name || wrote != (p.Action != alloc.Keep) {
			h.t.Fatalf("take %+v: %s wrote=%v %v", p, a.Name, wrote, err)
		}
		if p.Action == alloc.Create && h.m.all[a.Name] != nil {
			h.t.Fatalf("%s was taken twice", a.Name)
		}
		h.txn[i] = append(h.txn[i], change{p, h.m.take(p.Claim, p.Action, a.Name, a.Value)})
	}
}

func (h *history) end(i int, commit bool) {
	for _, ch := range slices.Backward(h.txn[i]) {
		p := ch.proposal
		who := modelHolder{p.Claim.Name, p.Claim.UID}
		if !commit {
			if err := h.r[i].Undo(h.t.Context(), p); err != nil {
				h.t.Fatalf("undo: %v", err)
			}
			h.m.undo(p.Claim, p.Action, p.Allocation.Name, ch.before)
			continue
		}
		for _, n := range p.Supersedes() {
			if err := h.r[i].Release(h.t.Context(), n, who.claim, who.uid); err != nil {
				h.t.Fatalf("release: %v", err)
			}
			h.m.release(n, who)
		}
	}
	h.txn[i] = nil
}

func (h *history) release(i int) {
	if h.txn[i] != nil {
		return
	}
	name := modelRouters[i] + "/" + rapid.SampledFrom([]string{"x", "y", "g"}).Draw(h.t, "name")
	who := modelHolder{name, h.uids[name]}
	n := "a@10.0.0.0"
	if held := h.m.held[who]; len(held) > 0 {
		n = rapid.SampledFrom(held).Draw(h.t, "held")
	}
	if err := h.r[i].Release(h.t.Context(), n, who.claim, who.uid); err != nil {
		h.t.Fatalf("release: %v", err)
	}
	h.m.release(n, who)
}

func (h *history) operator(i int) {
	ctx := h.t.Context()
	names := slices.Sorted(maps.Keys(h.m.all))
	if rapid.Bool().Draw(h.t, "provision") || len(names) == 0 {
		pool := rapid.SampledFrom([]string{"a", "i", "p"}).Draw(h.t, "pool")
		value := rapid.SampledFrom(wishes[pool]).Draw(h.t, "value")
		who := rapid.SampledFrom([]string{"", "r0/x", "r1/x", "r1/y", "r2/y"}).Draw(h.t, "for")
		_, err := h.r[i].Provision(ctx, pool, value, who, "")
		n := modelName(pool, value)
		p := h.m.pool(pool)
		ok := p != nil && slices.Contains(p.values, value) && h.m.all[n] == nil
		if (err == nil) != ok {
			h.t.Fatalf("provision %s for %q: %v", n, who, err)
		}
		if ok {
			h.m.all[n] = &modelAlloc{pool: pool, value: value, kept: who, allow: who != "", retain: p.Reclaim == alloc.Retain}
		}
		return
	}
	n := rapid.SampledFrom(names).Draw(h.t, "allocation")
	a := h.m.all[n]
	if rapid.Bool().Draw(h.t, "allow") {
		a.allow = !a.allow
		if _, err := h.r[i].AllowBinding(ctx, n, a.allow); err != nil {
			h.t.Fatalf("allow binding: %v", err)
		}
		return
	}
	if err := h.r[i].Delete(ctx, n); (err == nil) != (len(a.holders) == 0) {
		h.t.Fatalf("delete %s, held by %v: %v", n, a.holders, err)
	}
	if len(a.holders) == 0 {
		delete(h.m.all, n)
	}
}

func histories(t *testing.T, ledger NewLedger) {
	var pools [2]*alloc.Pools
	for i, c := range configs() {
		var specs []alloc.Pool
		for _, p := range c {
			specs = append(specs, p.Pool)
		}
		pools[i] = mustPools(t, specs...)
		for _, p := range c {
			for _, v := range p.values {
				if !pools[i].Contains(p.Name, v) {
					t.Fatalf("the model's pool %s has %s", p.Name, v)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		h := &history{
			t: t, open: ledger(t), pools: pools,
			m:    model{pools: configs()[0], all: map[string]*modelAlloc{}, held: map[modelHolder][]string{}},
			r:    make([]router, len(modelRouters)),
			txn:  make([][]change, len(modelRouters)),
			uids: map[string]string{},
		}
		for i := range h.r {
			h.start(i)
		}
		t.Cleanup(func() {
			for _, r := range h.r {
				_ = r.store.Close()
			}
		})
		who := rapid.IntRange(0, len(h.r)-1)
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		for range steps {
			i := who.Draw(t, "router")
			switch rapid.SampledFrom([]string{
				"acquire", "acquire", "acquire", "begin", "begin", "commit", "rollback", "release", "operator", "restart", "pools", "uid",
			}).Draw(t, "step") {
			case "acquire":
				h.acquire(i)
			case "begin":
				h.begin(i)
			case "commit":
				h.end(i, true)
			case "rollback":
				h.end(i, false)
			case "release":
				h.release(i)
			case "operator":
				h.operator(i)
			case "restart":
				if err := h.r[i].store.Close(); err != nil {
					t.Fatalf("close: %v", err)
				}
				h.start(i)
			case "pools":
				h.config = 1 - h.config
				h.m.pools = configs()[h.config]
				for _, r := range h.r {
					r.SetPools(pools[h.config])
				}
			case "uid":
				if h.txn[i] == nil {
					n := modelRouters[i] + "/" + rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name")
					h.uids[n] += "'"
				}
			}
			h.check()
		}
	})
}
