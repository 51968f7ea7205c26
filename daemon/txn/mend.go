package txn

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// back proves that the old state is there, once every inverse is done. What it lacks then, others took from it meanwhile: a
// bgpd that restarted has only the lines of the operator's file, an endpoint goes with its parent. That is put back here,
// or the way back would never come to its end.
func (r *Runner) back(ctx context.Context, p plan.Plan) error {
	w := plan.Await{State: &p.Old, Own: p.New.Routes, OwnID: p.New.RouterID}
	return r.wait(ctx, wait{
		look: func(ctx context.Context) ([]string, error) { return r.look(ctx, w) },
		mend: func(ctx context.Context) error { return r.mend(ctx, p) },
	})
}

// notTheirs is prefixes less those for which the operator has put a line in the place of ours: it announces them as well.
func notTheirs(prefixes []netip.Prefix, f frr.Observation) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		return slices.ContainsFunc(f.Networks, func(n frr.Network) bool { return n.Prefix == p && n.RouteMap != frr.Mark })
	})
}

// mend does the first half of the plan from what is there to the old state: what adds and changes. What is too much is left
// for the proof to name. It writes no journal: the record of p stays until the proof holds, and a recovery comes here again.
func (r *Runner) mend(ctx context.Context, p plan.Plan) error {
	f, err := r.FRR.Observe(ctx, frr.Query{Config: true, Sessions: true})
	if err != nil || f.Instance.ASN == 0 { // it is being started
		return err
	}
	k, err := r.Kernel.Observe(ctx, r.Netns)
	if err != nil {
		return err
	}
	if r.CNI != nil {
		if k.Attached, err = r.CNI.Attachments(ctx); err != nil {
			return err
		}
	}
	held, err := r.Ledger.Held(ctx, r.router)
	if err != nil {
		return err
	}
	return r.add(ctx, p, state.Observed(k, f, p.Old, held), p.Old, k, f)
}

// tend puts back what FRR has lost of the lines that p's old and new state have, while both are there.
func (r *Runner) tend(ctx context.Context, p plan.Plan) error {
	f, err := r.FRR.Observe(ctx, frr.Query{Config: true, Sessions: true})
	if err != nil || f.Instance.ASN == 0 {
		return err
	}
	both := state.State{Routes: slices.Concat(p.Old.Routes, p.New.Routes), EVPN: p.Old.EVPN || p.New.EVPN, RouterID: p.New.RouterID}
	got := state.Observed(dataplane.Observation{}, f, both, nil)
	want := both.Normal()
	want.Routes = slices.Compact(notTheirs(want.Routes, f))
	want.EVPN = want.EVPN && (got.EVPN || !f.EVPN)
	return r.add(ctx, p, got, want, dataplane.Observation{}, f)
}

// add does the first half of the plan from got to want.
func (r *Runner) add(ctx context.Context, p plan.Plan, got, want state.State, k dataplane.Observation, f frr.Observation) error {
	if len(state.Diff(got, want)) == 0 {
		return nil
	}
	q := plan.Compute(got, want, plan.Input{
		Generation: max(p.Generation, plan.NewestGeneration(k.Links)) + 1, Router: p.Router, ASN: f.Instance.ASN,
		Links: k.Links, Sessions: f.Sessions, RouterID: f.Instance.RouterID, Configured: f.Instance.Configured.IsValid(),
		MapShared: true, // the map stays
	})
	for _, s := range q.Steps {
		if slices.Index(plan.Phases, s.Phase) >= slices.Index(plan.Phases, plan.Verify) {
			break
		}
		do := s.Do
		do.Await, do.Drain = nil, nil
		if err := r.do(ctx, do); err != nil {
			return err
		}
	}
	return r.Kernel.Unstage()
}

// nudge has FRR take up again what it seems to have missed.
func (r *Runner) nudge(ctx context.Context, w plan.Await) error {
	if len(w.Announced) > 0 {
		if err := r.announceAnew(ctx, w.Announced); err != nil {
			return err
		}
	}
	if len(w.Gone) > 0 {
		return r.downAnew(ctx, w.Gone)
	}
	return nil
}

// announceAnew writes those of the prefixes' lines anew that have nothing in BGP. A line can be gone, with a bgpd that was started meanwhile
// and has what the operator's file has. Or it is there and bgpd doesn't take it up: it asks zebra once for the route behind a line
// (`bgp network import-check`) and then waits to be told of a change; under load, one of 8.4.4 was seen waiting for a minute beside a
// zebra that had the address. Nobody hears of the line that is taken out for that: what isn't in BGP was sent to nobody. One that a kill
// leaves out is one that the undo, which follows, would take out.
func (r *Runner) announceAnew(ctx context.Context, prefixes []netip.Prefix) error {
	f, err := r.FRR.Observe(ctx, frr.Query{Config: true, Prefixes: prefixes})
	if err != nil || f.Instance.ASN == 0 { // it is waited for, like anything else
		return nil
	}
	var out, in []frr.Edit
	var names []string
	for _, route := range f.Routes {
		e := frr.Edit{Verb: frr.RemoveNetwork, ASN: f.Instance.ASN, Prefix: route.Prefix}
		if _, err := e.Check(f); err != nil || route.Local { // an error: the line is somebody else's
			continue
		}
		out, in, names = append(out, e), append(in, e.Inverse()), append(names, e.Object())
	}
	if in == nil {
		return nil
	}
	r.report(Event{Phase: plan.Announce, Note: fmt.Sprintf("BGP has nothing of %s; written anew", strings.Join(names, ", "))})
	if err := r.FRR.Apply(ctx, out); err != nil {
		return err
	}
	return r.FRR.Apply(ctx, append([]frr.Edit{{Verb: frr.AddRouteMap, ASN: f.Instance.ASN}}, in...))
}

// downAnew sets the VXLANs of the VNIs up and down once more: a zebra that was started while they were down has nothing to take back,
// and bgpd, which has outlived it, goes on announcing their type-3 routes (8.4.4, 10.3).
func (r *Runner) downAnew(ctx context.Context, vnis []uint32) error {
	k, err := r.Kernel.Observe(ctx, r.Netns)
	if err != nil {
		return err
	}
	var up, down []dataplane.Op
	var names []string
	for _, l := range k.Links {
		if l.Kind == dataplane.VXLAN && l.Owner != "" && !l.Up && slices.Contains(vnis, l.VNI) {
			down, names = append(down, dataplane.Op{Verb: dataplane.Set, Link: l}), append(names, l.Name)
			l.Up = true
			up = append(up, dataplane.Op{Verb: dataplane.Set, Link: l})
		}
	}
	if up == nil {
		return nil
	}
	r.report(Event{Phase: plan.Retire, Note: fmt.Sprintf("BGP doesn't withdraw the type-3 routes of %s; they are set down anew", strings.Join(names, ", "))})
	if err := r.Kernel.Apply(ctx, up); err != nil {
		return err
	}
	return r.Kernel.Apply(ctx, down)
}

// deletable waits until FRR can be without the VXLANs that ops delete. When bgpd goes, zebra keeps what it knows of a VNI, with a
// pointer to its device, and doesn't notice that the device is deleted: when bgpd is back, zebra 10.3 dies, or lists the VNI
// under a name of garbage, 8.4.4 without one. And a zebra that knew nothing of the device has nothing to take back from bgpd, which
// announces the VNI for ever. So bgpd has to be there with its instance, and zebra has to list the VNIs; it lists those of
// devices that are down or in no bridge too. Only where EVPN is off for good, so that zebra has nothing of them, is that not asked.
func (r *Runner) deletable(ctx context.Context, ops []dataplane.Op) error {
	deletes := func(o dataplane.Op) bool { return o.Verb == dataplane.Delete || o.Verb == dataplane.GroupDelete }
	if !slices.ContainsFunc(ops, deletes) {
		return nil
	}
	k, err := r.Kernel.Observe(ctx, r.Netns)
	if err != nil {
		return err
	}
	doomed := slices.DeleteFunc(slices.Clone(k.Links), func(l dataplane.Link) bool {
		return l.Kind != dataplane.VXLAN || !slices.ContainsFunc(ops, func(o dataplane.Op) bool {
			return o.Verb == dataplane.Delete && o.Link.Name == l.Name || o.Verb == dataplane.GroupDelete && o.Group == l.Group
		})
	})
	if len(doomed) == 0 {
		return nil
	}
	var lines string // bgpd's, while EVPN is off in them
	var since time.Time
	return r.wait(ctx, wait{look: func(ctx context.Context) ([]string, error) {
		f, err := r.FRR.Observe(ctx, frr.Query{Config: true, VNIs: true})
		switch {
		case err != nil:
			return nil, err
		case f.Instance.ASN == 0:
			return []string{"bgpd has no instance"}, nil
		case !f.EVPN:
			if f.Fingerprint != lines {
				lines, since = f.Fingerprint, time.Now()
			}
			if time.Since(since) < loaded {
				return []string{"advertise-all-vni isn't there, and bgpd may still be loading its configuration"}, nil
			}
			return nil, nil
		}
		lines = ""
		var unmet []string
		for _, l := range doomed {
			if !slices.ContainsFunc(f.VNIs, func(v frr.VNI) bool { return v.VNI == l.VNI }) {
				unmet = append(unmet, fmt.Sprintf("zebra doesn't list VNI %d, and would keep %s when it is deleted", l.VNI, l.Name))
			}
		}
		return unmet, nil
	}})
}

// possible is an action less what it would set of links that somebody else has deleted meanwhile. On the way back mend makes
// those anew; past the point of no return the next transaction does, when this one isn't stuck at them for ever.
func (r *Runner) possible(ctx context.Context, a plan.Action) (plan.Action, error) {
	sets := func(o dataplane.Op) bool { return o.Verb == dataplane.Set }
	if !slices.ContainsFunc(a.Kernel, sets) {
		return a, nil
	}
	k, err := r.Kernel.Observe(ctx, r.Netns)
	if err != nil {
		return a, err
	}
	var ops []dataplane.Op
	made := map[string]bool{}
	for _, o := range a.Kernel {
		_, there := dataplane.Find(k.Links, o.Link.Name)
		if made[o.Link.Name] = made[o.Link.Name] || o.Verb == dataplane.Create; !sets(o) || there || made[o.Link.Name] {
			ops = append(ops, o)
		}
	}
	a.Kernel = ops
	return a, nil
}
