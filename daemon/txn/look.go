package txn

import (
	"cmp"
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

type remote = netip.Addr

// pingTimeout is how long remote VTEPs have for an answer; silence is asked again until the step's own timeout.
const pingTimeout = time.Second

func equal(a, b []uint64) bool { return b != nil && slices.Equal(a, b) }

// look says what of w doesn't hold now. One observation of FRR serves all of it.
func (r *Runner) look(ctx context.Context, w plan.Await) ([]string, error) {
	vxlans := w.State != nil || len(w.VTEPs)+len(w.Scouts) > 0 // in zebra, in BGP, and sent
	q := frr.Query{
		Config:   w.State != nil,
		Sessions: vxlans || len(w.Announced) > 0,
		VNIs:     vxlans,
		Type3:    vxlans || len(w.Gone)+len(w.Reachable) > 0,
		Prefixes: w.Announced,
	}
	f, err := r.FRR.Observe(ctx, q)
	if err != nil {
		return nil, err
	}
	unmet := append(notAnnounced(w.Announced, f), notGone(w.Gone, f)...)
	for _, l := range w.VTEPs {
		unmet = append(unmet, notInFRR(l, f)...)
	}
	if w.State != nil {
		more, err := r.notState(ctx, w, f)
		if err != nil {
			return nil, err
		}
		unmet = append(unmet, more...)
	}
	if len(unmet) > 0 {
		return unmet, nil // pings wait until the routes are there
	}
	for _, m := range w.Reachable {
		more, err := r.silent(ctx, m, f)
		if err != nil {
			return nil, err
		}
		unmet = append(unmet, more...)
	}
	if len(unmet) > 0 {
		return unmet, nil
	}
	return r.unscouted(w.Scouts, f), nil
}

// unscouted says what FRR doesn't show of the scouts, or hasn't told its peers, while they are waited for.
func (r *Runner) unscouted(scouts []dataplane.Link, f frr.Observation) []string {
	var unmet []string
	for _, l := range scouts {
		unmet = append(unmet, notInFRR(l, f)...)
	}
	switch {
	case len(unmet) == 0:
		return nil
	case r.unsent.IsZero():
		r.unsent = time.Now()
	case time.Since(r.unsent) > cmp.Or(r.Timeout, defaultTimeout)/6:
		r.report(Event{Phase: plan.Announce, Note: fmt.Sprintf("remote VTEPs may drop packets for a moment at the swap, for the new next hop can't be made known to them before: %v", unmetError(unmet))})
		return nil
	}
	return unmet
}

func notAnnounced(prefixes []netip.Prefix, f frr.Observation) []string {
	var out []string
	for _, r := range f.Routes {
		if !slices.Contains(prefixes, r.Prefix) {
			continue
		}
		if !r.Local {
			out = append(out, fmt.Sprintf("host route %s is not in BGP", r.Prefix))
			continue
		}
		for _, s := range f.Sessions {
			family := s.IPv4
			if r.Prefix.Addr().Is6() {
				family = s.IPv6
			}
			if s.Established && family && !slices.Contains(r.AdvertisedTo, s.Peer) {
				out = append(out, fmt.Sprintf("host route %s is not sent to peer %s", r.Prefix, s.Peer))
			}
		}
	}
	return out
}

// notGone is about BGP alone: zebra goes on listing a VNI whose device is down.
func notGone(vnis []uint32, f frr.Observation) []string {
	var out []string
	for _, v := range vnis {
		if slices.ContainsFunc(f.Type3, func(t frr.Type3) bool { return t.Local && t.VNI == v }) {
			out = append(out, fmt.Sprintf("BGP still has a type-3 route of its own for VNI %d", v))
		}
	}
	return out
}

// notState compares the kernel and FRR with w.State, and the VXLANs in it with what FRR makes of them. The host routes and
// the EVPN instance of the plan's states count as owned: they are, or this transaction wrote them.
func (r *Runner) notState(ctx context.Context, w plan.Await, f frr.Observation) ([]string, error) {
	k, err := r.Kernel.Observe(ctx, r.Netns)
	if err != nil {
		return nil, err
	}
	if r.CNI != nil {
		if k.Attached, err = r.CNI.Attachments(ctx); err != nil {
			return nil, err
		}
	}
	held, err := r.Ledger.Held(ctx, r.router)
	if err != nil {
		return nil, err
	}
	owned := *w.State
	owned.Routes = slices.Concat(owned.Routes, w.Own)
	if w.Retiring != nil {
		owned.Routes = slices.Concat(owned.Routes, w.Retiring.Routes)
		owned.EVPN = owned.EVPN || w.Retiring.EVPN
		w.OwnID = cmp.Or(w.OwnID, w.Retiring.RouterID)
	}
	owned.RouterID = cmp.Or(owned.RouterID, w.OwnID)
	got := state.Observed(k, f, owned, held)
	if w.Retiring != nil {
		got = without(got, *w.Retiring)
	}
	diff := state.Differences(got, *w.State)
	r.tampered = slices.ContainsFunc(diff, func(d state.Difference) bool { return strings.HasPrefix(d.Object, "link ") })
	var out []string
	for _, d := range diff {
		out = append(out, d.String())
	}
	for _, l := range w.State.VXLANs() {
		if l.Up {
			out = append(out, notInFRR(l, f)...)
		}
	}
	return out, nil
}

// without is s less what is in gone. A link without a kind in gone stands for its addresses alone.
func without(s, gone state.State) state.State {
	s.Links = slices.DeleteFunc(slices.Clone(s.Links), func(l dataplane.Link) bool {
		g, ok := dataplane.Find(gone.Links, l.Name)
		return ok && g.Kind != ""
	})
	for i, l := range s.Links {
		if g, ok := dataplane.Find(gone.Links, l.Name); ok {
			s.Links[i].Addrs = slices.DeleteFunc(slices.Clone(l.Addrs), func(p netip.Prefix) bool { return slices.Contains(g.Addrs, p) })
		}
	}
	s.Attachments = slices.DeleteFunc(slices.Clone(s.Attachments), func(a dataplane.Attachment) bool { return slices.Contains(gone.Attachments, a) })
	if gone.RouterID.IsValid() && s.RouterID == gone.RouterID {
		s.RouterID = netip.Addr{}
	}
	s.Routes = slices.DeleteFunc(slices.Clone(s.Routes), func(p netip.Prefix) bool { return slices.Contains(gone.Routes, p) })
	s.Claims = slices.DeleteFunc(slices.Clone(s.Claims), func(c state.Claim) bool { return slices.Contains(gone.Claims, c) })
	s.EVPN = s.EVPN && !gone.EVPN
	return s
}

// notInFRR says what FRR doesn't show of a VXLAN, or hasn't told its peers.
func notInFRR(l dataplane.Link, f frr.Observation) []string {
	if out := plan.Unseen(l, f); len(out) > 0 {
		return out
	}
	for _, t := range f.Type3 {
		if t.Local && t.VNI == l.VNI && t.Origin == l.Local && t.NextHop == l.Local {
			return notSent(t, f.Sessions)
		}
	}
	return nil
}

// notSent names the peers that a type-3 route of ours is still to be sent to.
func notSent(t frr.Type3, sessions []frr.Session) []string {
	var out []string
	for _, s := range sessions {
		if s.Established && s.EVPN && !slices.Contains(t.AdvertisedTo, s.Peer) {
			out = append(out, fmt.Sprintf("the type-3 route for VNI %d is not sent to peer %s", t.VNI, s.Peer))
		}
	}
	return out
}

// silent names the remote VTEPs that answered a ping from m.Old and don't answer one from m.New. Who answers the old
// address is asked once a transaction, before the swap; an old address that is not there any more has no answers to keep.
func (r *Runner) silent(ctx context.Context, m plan.Move, f frr.Observation) ([]string, error) {
	before, asked := r.answered[m]
	if !asked {
		var err error
		if before, err = r.ping(ctx, m.Old, vteps(f.Type3, m.New.Is4())); err != nil {
			if !r.lacks(ctx, m.Old) {
				return nil, err
			}
			before = nil
		}
		r.answered[m] = before
	}
	if len(before) == 0 {
		return nil, nil
	}
	now, err := r.ping(ctx, m.New, before)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, a := range before {
		if !slices.Contains(now, a) {
			out = append(out, fmt.Sprintf("VTEP %s answers %s but not %s", a, m.Old, m.New))
		}
	}
	return out, nil
}

func (r *Runner) ping(ctx context.Context, from netip.Addr, to []netip.Addr) ([]netip.Addr, error) {
	if len(to) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return r.Kernel.Ping(ctx, from, to)
}

// lacks reports whether no link of the router's namespace has the address.
func (r *Runner) lacks(ctx context.Context, a netip.Addr) bool {
	k, err := r.Kernel.Observe(ctx, nil)
	return err == nil && !slices.ContainsFunc(k.Links, func(l dataplane.Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// vteps are the remote VTEPs that BGP knows, of one family, sorted.
func vteps(routes []frr.Type3, v4 bool) []netip.Addr {
	var out []netip.Addr
	for _, t := range routes {
		if !t.Local && t.Valid && t.NextHop.Is4() == v4 {
			out = append(out, t.NextHop)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
