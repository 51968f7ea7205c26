package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/status"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/frr"
)

// Ledger is a txn.Ledger that can also say, writing nothing, which values it would give.
type Ledger interface {
	txn.Ledger
	// Propose answers the claim of every endpoint of cfg that asks a pool: with the value that it holds or would be given,
	// or with the condition why not. Nothing is written.
	Propose(ctx context.Context, cfg *config.Config) ([]alloc.Proposal, error)
	// Away is why the last answer of Propose is what the router is known to hold, and not the ledger's, or why that couldn't be known at
	// the next start; nil if all is well.
	Away() error
	// Watch sends a hint whenever what Propose had no value for may be there, or the ledger itself may be, until ctx ends.
	Watch(ctx context.Context, hints chan<- struct{}) error
}

// Ports are what the daemon works on.
type Ports struct {
	Kernel  dataplane.Kernel
	CNI     dataplane.CNI // nil: no endpoint can be on an attachment
	FRR     frr.Router
	Ledger  Ledger
	Journal *journal.Journal
	// Follow is told which namespaces beside the router's are looked at, before they are, so that what happens in them from then on
	// is a hint; nil: they are looked at without one.
	Follow func(names []string)
}

// Prepared is a config turned into a plan, with nothing touched.
type Prepared struct {
	Plan     plan.Plan
	Refusals []config.Problem // why the plan can't be carried out; the plan is empty then
	Waiting  []string         // the same, where only time is missing: values of a pool
	Ailing   []string         // what is wrong below a plan that is empty: a live endpoint's parent that is down, a loopback that waits
	Unseen   []string         // what FRR doesn't show of the VXLANs of a plan that is empty: it has just come back, say
	// What was looked at; zero when it didn't come to that.
	Kernel dataplane.Observation
	FRR    frr.Observation
	// Loopbacks are those of the config, each with its own condition, sorted by name.
	Loopbacks []status.Loopback
}

// Prepare looks at the kernel, at FRR and at the ledger, and plans the way to cfg, with a wait to be confirmed unless confirm
// is 0. It changes nothing. Errors wrap frr.ErrUnreachable where FRR is to be waited for, alloc.ErrUnavailable where the ledger is.
func Prepare(ctx context.Context, p Ports, cfg *config.Config, confirm time.Duration) (Prepared, error) {
	lists, problems := conflists(p.CNI, cfg)
	if len(problems) > 0 {
		return Prepared{Refusals: problems}, nil
	}
	proposals, err := p.Ledger.Propose(ctx, cfg)
	if err != nil {
		return Prepared{}, err
	}
	addrs, waiting, los, err := addresses(cfg, proposals)
	if err != nil || len(waiting) > 0 {
		return Prepared{Waiting: waiting}, err
	}
	last, err := p.Journal.Committed()
	if err != nil {
		return Prepared{}, err
	}
	var out Prepared
	v, err := see(ctx, p, last, namespaces(cfg, last.State), hosts(addrs), cfg.Node.Name)
	out.Kernel, out.FRR = v.kernel, v.frr
	if err != nil {
		return out, err
	}
	k, f := v.kernel, v.frr

	a := state.Observed(k, f, last.State, v.held)
	b := desired.Compute(cfg, desired.Given{Addrs: addrs, Claims: los.claims(proposals), Conflists: lists}, k)
	b.EVPN = b.EVPN && (a.EVPN || !f.EVPN) // an instance that the operator made is the operator's
	los.keep(&b, a, last.State, cfg)
	los.routerID(&b, a, f, cfg)
	var notes []string
	b.Routes, notes = notTheirs(b.Routes, a.Routes, last.State.Routes, f.Networks)

	refused, err := v.plan(ctx, p, a, b, proposals, confirm, cfg, &out)
	if err != nil {
		return out, err
	}
	for _, r := range refused {
		out.Refusals = append(out.Refusals, cfg.Problem(r.Field, r.Msg))
	}
	out.Loopbacks = los.conditions(b, k, f)
	if len(out.Refusals) > 0 {
		return out, nil
	}
	out.Plan.Notes = append(notes, out.Plan.Notes...)
	for _, r := range plan.Ailments(b, k) {
		out.Ailing = append(out.Ailing, cfg.Problem(r.Field, r.Msg).Error())
	}
	out.Ailing = append(out.Ailing, los.waiting()...)
	if err := p.Ledger.Away(); err != nil {
		out.Ailing = append(out.Ailing, err.Error())
	}
	if len(out.Plan.Disruptions) > 0 && !cfg.Transaction.AllowDisruptive {
		for _, d := range out.Plan.Disruptions {
			out.Refusals = append(out.Refusals, cfg.Problem("transaction.allowDisruptive", "not hitless: "+d.String()+"; set it to true to allow that, or give --allow-disruptive to `vtepd apply` or `vtepd rollback`"))
		}
	}
	return out, nil
}

// PrepareLive is Prepare for what was committed last, whatever any config says now: it plans what puts that back. It asks the ledger
// for nothing, and of cfg takes how a transaction is carried out.
func PrepareLive(ctx context.Context, p Ports, cfg *config.Config) (Prepared, error) {
	last, err := p.Journal.Committed()
	if err != nil {
		return Prepared{}, err
	}
	router := cfg.Node.Name
	if len(last.State.Claims) > 0 {
		router = desired.RouterOf(last.State.Claims[0].Name)
	}
	var out Prepared
	v, err := see(ctx, p, last, namespaces(cfg, last.State), last.State.Routes, router)
	out.Kernel, out.FRR = v.kernel, v.frr
	if err != nil {
		return out, err
	}
	v.live = true
	a, b := state.Observed(v.kernel, v.frr, last.State, v.held), last.State
	b.Claims = v.held // nothing is claimed or given back
	b.EVPN = b.EVPN && (a.EVPN || !v.frr.EVPN)
	var notes []string
	b.Routes, notes = notTheirs(b.Routes, a.Routes, last.State.Routes, v.frr.Networks)
	refused, err := v.plan(ctx, p, a, b, nil, 0, cfg, &out)
	if err != nil {
		return out, err
	}
	out.Plan.Router = router
	out.Plan.Notes = append(notes, out.Plan.Notes...)
	for _, r := range append(refused, plan.Ailments(b, v.kernel)...) {
		out.Ailing = append(out.Ailing, r.String())
	}
	for _, d := range out.Plan.Disruptions {
		out.Ailing = append(out.Ailing, "not put back, for that isn't hitless: "+d.String())
	}
	if len(refused)+len(out.Plan.Disruptions) > 0 {
		out.Plan = plan.Plan{New: a}
	}
	return out, nil
}

// view is one look at everything, beside what was committed.
type view struct {
	last   journal.Committed
	kernel dataplane.Observation
	frr    frr.Observation
	held   []state.Claim // by the router
	live   bool          // on behalf of what is live alone
}

// see looks at the kernel with the namespaces, at FRR with the prefixes, and at what the ledger has of the router.
func see(ctx context.Context, p Ports, last journal.Committed, netns []string, prefixes []netip.Prefix, router string) (view, error) {
	v := view{last: last}
	if p.Follow != nil {
		p.Follow(netns)
	}
	var err error
	if v.kernel, err = p.Kernel.Observe(ctx, netns); err != nil {
		return v, err
	}
	if p.CNI != nil {
		if v.kernel.Attached, err = p.CNI.Attachments(ctx); err != nil {
			return v, err
		}
	}
	q := frr.Query{Config: true, Sessions: true, VNIs: true, Type3: true, Prefixes: prefixes}
	if v.frr, err = p.FRR.Observe(ctx, q); err != nil {
		return v, err
	}
	v.held, err = p.Ledger.Held(ctx, router)
	return v, err
}

// plan fills in out's Plan and what isn't as it should be in BGP, or returns why there can be no plan from a to b.
func (v view) plan(ctx context.Context, p Ports, a, b state.State, proposals []alloc.Proposal, confirm time.Duration, cfg *config.Config, out *Prepared) ([]plan.Refusal, error) {
	look := plan.Look{Kernel: v.kernel, FRR: v.frr, Shared: shared(proposals)}
	if err := unable(ctx, p, a, b, &look); err != nil {
		return nil, err
	}
	if refused := plan.Check(a, b, look); len(refused) > 0 {
		return refused, nil
	}
	var lost []dataplane.Attachment
	var drift []string
	if !v.live { // a plugin that fails at what is wanted may fail at what is live, which is none the worse for it
		var err error
		if lost, drift, err = drifted(ctx, p.CNI, a, b); err != nil {
			return nil, err
		}
	}
	k, f := v.kernel, v.frr
	theirs := func(n frr.Network) bool { return n.RouteMap == frr.Mark && !slices.Contains(a.Routes, n.Prefix) }
	in := plan.Input{
		Generation: max(v.last.Generation, plan.NewestGeneration(k.Links)) + 1,
		ASN:        f.Instance.ASN,
		Confirm:    confirm,
		Timeout:    cfg.Transaction.Timeout,
		Undo:       txn.UndoTimeout,
		Drain:      plan.Drained{Quiet: cfg.Transaction.DrainQuiet, Limit: cfg.Transaction.DrainLimit},
		Router:     cfg.Node.Name,
		Proposals:  proposals,
		Links:      k.Links, Sessions: f.Sessions, RouterID: f.Instance.RouterID, Configured: f.Instance.Configured.IsValid(),
		VNIs:      vnis(k.Links, f),
		MapShared: slices.ContainsFunc(f.Networks, theirs),
		Stale:     stale(k, a), Drifted: lost,
	}
	out.Plan = plan.Compute(a, b, in)
	out.Plan.Notes = drift
	// What somebody took away is no permission: others still count on what was committed.
	for _, d := range plan.Compute(v.last.State, b, in).Disruptions {
		if !out.Plan.Empty() && !slices.Contains(out.Plan.Disruptions, d) {
			out.Plan.Disruptions = append(out.Plan.Disruptions, d)
		}
	}
	for _, l := range b.VXLANs() {
		out.Unseen = append(out.Unseen, plan.Unseen(l, f)...)
	}
	return nil, nil
}

// vnis are those that a device here has, or that FRR knows of, from anybody.
func vnis(links []dataplane.Link, f frr.Observation) []uint32 {
	var out []uint32
	for _, l := range links {
		if l.Kind == dataplane.VXLAN {
			out = append(out, l.VNI)
		}
	}
	for _, v := range f.VNIs {
		out = append(out, v.VNI)
	}
	for _, t := range f.Type3 {
		out = append(out, t.VNI)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// notTheirs is the wanted host routes less those for which the operator has a line already, with a note on each.
func notTheirs(want, ours, owned []netip.Prefix, lines []frr.Network) ([]netip.Prefix, []string) {
	var notes []string
	want = slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool {
		theirs := !slices.Contains(ours, p) && slices.ContainsFunc(lines, func(n frr.Network) bool {
			return n.Prefix == p && (n.RouteMap != frr.Mark || !slices.Contains(owned, p)) // ours may lack its map
		})
		if theirs {
			notes = append(notes, fmt.Sprintf("FRR has a `network %s` line that vtepd didn't write: it is left as it is, and announces the endpoint", p))
		}
		return theirs
	})
	return want, notes
}

// addresses are those of cfg's endpoints by name, or why some have none yet, and those of its loopbacks that have all of theirs.
func addresses(cfg *config.Config, proposals []alloc.Proposal) (addrs map[string]netip.Addr, waiting []string, los loopbacks, err error) {
	addrs, los = map[string]netip.Addr{}, newLoopbacks(cfg)
	for _, e := range cfg.Endpoints {
		if a, ok := e.Address.Fixed(); ok {
			addrs[e.Name] = a
		}
	}
	for _, l := range cfg.Loopbacks {
		for _, f := range l.Families() {
			if a, ok := f.Fixed(); ok {
				addrs[desired.LoopbackKey(l.Name, f.Key)] = a
			}
		}
	}
	for _, p := range proposals {
		field := desired.FieldOf(p.Claim.Name) + ".pool"
		if c := p.Condition; c != nil {
			msg := c.Error()
			if c.Reason == alloc.PoolExhausted {
				msg = fmt.Sprintf("pool %s exhausted: %s", p.Claim.Pool, msg)
			}
			msg = cfg.Problem(field, msg).Error()
			if lo := desired.LoopbackOf(p.Claim.Name); lo != "" {
				los.wait(lo, string(c.Reason), msg)
			} else {
				waiting = append(waiting, msg)
			}
			continue
		}
		if addrs[desired.KeyOf(p.Claim.Name)], err = p.Allocation.Addr(); err != nil {
			return nil, nil, nil, fmt.Errorf("allocation %s: %w", p.Allocation.Name, err)
		}
	}
	for _, l := range cfg.Loopbacks {
		if los.waits(l.Name) {
			for _, f := range l.Families() {
				delete(addrs, desired.LoopbackKey(l.Name, f.Key))
			}
		}
	}
	return addrs, waiting, los, nil
}

// shared are the addresses that other routers may have too.
func shared(proposals []alloc.Proposal) []string {
	var out []string
	for _, p := range proposals {
		if p.Claim.Group != "" {
			out = append(out, p.Allocation.Value)
		}
	}
	return out
}

// namespaces are those that the parents of cfg's endpoints are in, and those of the links that were committed last: they
// may have to be put back.
func namespaces(cfg *config.Config, last state.State) []string {
	var out []string
	for _, e := range cfg.Endpoints {
		out = append(out, e.ParentNetns)
	}
	return parentsOf(last.Links, out)
}

// namespacesOf are those that the parents of p's endpoints are in: the ones that were looked at when p was made.
func namespacesOf(p plan.Plan) []string {
	return parentsOf(slices.Concat(p.Old.Links, p.New.Links), nil)
}

// parentsOf is names and the namespaces that the parents of links are in, sorted, without the router's own.
func parentsOf(links []dataplane.Link, names []string) []string {
	for _, l := range links {
		names = append(names, l.ParentNetns)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "" })
}

// hosts are the host routes of addrs, sorted.
func hosts(addrs map[string]netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(out, frr.ComparePrefixes)
	return slices.Compact(out)
}
