// Package frrtest holds what tests of FRR's users need: a Router in memory that behaves like FRR, a vty server that
// answers from a script, and the suite that the fake and the real FRR both pass. It owns no daemon that a test didn't start.
package frrtest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"vtepd/frr"
)

// Fake is a frr.Router in memory. It holds FRR to what was measured of the real one: a network line is announced only
// while its address is on an interface and its route map exists, a VNI is in BGP only with advertise-all-vni. It has
// no delays. Its methods may be called from several goroutines.
type Fake struct {
	mu      sync.Mutex
	obs     frr.Observation // the Config part, and Sessions
	present func(netip.Prefix) bool
	sent    func(netip.Prefix, string) bool
	vnis    func() []frr.VNI
	idle    func() []frr.VNI
	sources map[netip.Prefix][]frr.Source
	foreign []frr.Type3
	down    error
	failAt  int
	failErr error
	onEdit  func(int, frr.Edit)
	seen    int // edits that Apply came to
	done    []frr.Edit
	trips   uint64
	chosen  netip.Addr // the router id while none is configured
}

var _ frr.Router = (*Fake)(nil)

// New returns FRR 10.3 with an instance, and nothing else: no sessions, no lines, no VNIs. Every address is taken to be
// on an interface until SetPresent says otherwise. An ASN of 0 is a bgpd without an instance.
func New(asn uint32, routerID netip.Addr) *Fake {
	f := &Fake{sources: map[netip.Prefix][]frr.Source{}}
	f.obs.Version = frr.Version{Major: 10, Minor: 3}
	f.obs.Instance, f.chosen = frr.Instance{ASN: asn, RouterID: routerID}, routerID
	return f
}

// SetVersion says which FRR it is.
func (f *Fake) SetVersion(v frr.Version) { f.set(func() { f.obs.Version = v }) }

// SetInstance replaces the instance; the zero value takes it away with its lines, as a bgpd does that has restarted and
// hasn't read its configuration yet.
func (f *Fake) SetInstance(i frr.Instance) {
	f.set(func() {
		f.obs.Instance = i
		if i.ASN == 0 {
			f.obs.Networks, f.obs.EVPN, f.obs.RouteMap, f.obs.Sessions = nil, false, frr.RouteMap{}, nil
		}
	})
}

// SetEVPN puts advertise-all-vni there or takes it away, as the operator does.
func (f *Fake) SetEVPN(on bool) { f.set(func() { f.obs.EVPN = on }) }

// SetNetworks replaces all network lines, as the operator does.
func (f *Fake) SetNetworks(nets ...frr.Network) {
	f.set(func() { f.obs.Networks = slices.Clone(nets); frr.SortNetworks(f.obs.Networks) })
}

// SetRouteMap says what is there under frr.Mark.
func (f *Fake) SetRouteMap(m frr.RouteMap) { f.set(func() { f.obs.RouteMap = m }) }

// SetSessions replaces the neighbours.
func (f *Fake) SetSessions(s ...frr.Session) { f.set(func() { f.obs.Sessions = slices.Clone(s) }) }

// SetPresent installs the hook that says whether the host route of a prefix is on an interface of the router's
// namespace. It is called while an Observe runs, and must not call the fake.
func (f *Fake) SetPresent(has func(netip.Prefix) bool) { f.set(func() { f.present = has }) }

// SetSent installs the hook that says whether a prefix that is announced has been sent to a peer that is established, or
// still waits for it (Route.Queued); without one, it has. It must not call the fake.
func (f *Fake) SetSent(sent func(p netip.Prefix, peer string) bool) { f.set(func() { f.sent = sent }) }

// SetVNIs installs the hook that gives what zebra knows: every VXLAN that is up and in a bridge, with its local address.
// It must not call the fake.
func (f *Fake) SetVNIs(vnis func() []frr.VNI) { f.set(func() { f.vnis = vnis }) }

// SetIdle installs the hook that gives what zebra lists beside those, while EVPN is on: the VXLANs that are down or in no bridge. BGP
// has nothing of them. It must not call the fake.
func (f *Fake) SetIdle(vnis func() []frr.VNI) { f.set(func() { f.idle = vnis }) }

// SetSources says who else announces a prefix.
func (f *Fake) SetSources(p netip.Prefix, s ...frr.Source) {
	f.set(func() { f.sources[p] = slices.Clone(s) })
}

// SetType3 replaces the type-3 routes received from others.
func (f *Fake) SetType3(t ...frr.Type3) { f.set(func() { f.foreign = slices.Clone(t) }) }

// SetUnreachable makes every Observe and Apply fail with err until it is called with nil. An err that should look like
// the real thing wraps frr.ErrUnreachable.
func (f *Fake) SetUnreachable(err error) { f.set(func() { f.down = err }) }

// FailAt makes the k-th edit from now on (the first is 1) fail with err, once; edits that change nothing count. It
// comes wrapped in a *frr.EditError.
func (f *Fake) FailAt(k int, err error) { f.set(func() { f.failAt, f.failErr = f.seen+k, err }) }

// OnEdit installs a hook that is called before each edit with its number since New, from 1. It may call the fake, and
// panic to stand for the process's death.
func (f *Fake) OnEdit(hook func(k int, e frr.Edit)) { f.set(func() { f.onEdit = hook }) }

// Edits returns the edits that changed something, in order.
func (f *Fake) Edits() []frr.Edit {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.done)
}

// Seen returns the number of edits that Apply has come to, those that changed nothing included.
func (f *Fake) Seen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *Fake) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Observe implements frr.Router.
func (f *Fake) Observe(ctx context.Context, q frr.Query) (frr.Observation, error) {
	if err := ctx.Err(); err != nil {
		return frr.Observation{}, fmt.Errorf("frr: fake: %w: %w", frr.ErrUnreachable, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return frr.Observation{}, f.down
	}
	var o frr.Observation
	if q.Config || q.Lines {
		f.trips++
		o.Fingerprint = f.fingerprint()
		o.Version, o.Instance, o.EVPN, o.RouteMap = f.obs.Version, f.obs.Instance, f.obs.EVPN, f.obs.RouteMap
		o.Networks = slices.Clone(f.obs.Networks)
	}
	if q.Sessions {
		f.trips++
		o.Sessions = slices.Clone(f.obs.Sessions)
		slices.SortFunc(o.Sessions, func(a, b frr.Session) int { return frr.ComparePeers(a.Peer, b.Peer) })
	}
	if q.VNIs {
		f.trips++
		o.VNIs = f.zebraVNIs()
		if f.idle != nil && f.obs.EVPN {
			o.VNIs = append(o.VNIs, f.idle()...)
			slices.SortStableFunc(o.VNIs, func(a, b frr.VNI) int { return int(a.VNI) - int(b.VNI) })
		}
	}
	if q.Type3 {
		f.trips++
		o.Type3 = f.type3()
	}
	for _, p := range q.Prefixes {
		f.trips++
		o.Routes = append(o.Routes, f.route(p))
	}
	return o, nil
}

// fingerprint is of what a running configuration shows: the neighbours are in it, whether they are established is not.
func (f *Fake) fingerprint() string {
	var peers []string
	for _, s := range f.obs.Sessions {
		peers = append(peers, s.Peer)
	}
	return fmt.Sprint(f.obs.Version, f.obs.Instance.ASN, f.obs.EVPN, f.obs.Networks, f.obs.RouteMap, peers)
}

func (f *Fake) zebraVNIs() []frr.VNI {
	// zebra learns of VNIs from the kernel whether or not EVPN is on, but reports none until bgpd asks for them.
	if f.vnis == nil || !f.obs.EVPN {
		return nil
	}
	v := slices.Clone(f.vnis())
	slices.SortFunc(v, func(a, b frr.VNI) int { return int(a.VNI) - int(b.VNI) })
	return v
}

func (f *Fake) type3() []frr.Type3 {
	var out []frr.Type3
	for i, v := range f.zebraVNIs() {
		if !v.Local.IsValid() {
			continue
		}
		t := frr.Type3{
			RD: fmt.Sprintf("%s:%d", f.obs.Instance.RouterID, i+2), VNI: v.VNI,
			Origin: v.Local, NextHop: v.Local, Local: true, Valid: true,
		}
		for _, s := range f.obs.Sessions {
			if s.Established && s.EVPN {
				t.AdvertisedTo = append(t.AdvertisedTo, s.Peer)
			}
		}
		slices.SortFunc(t.AdvertisedTo, frr.ComparePeers)
		out = append(out, t)
	}
	out = append(out, f.foreign...)
	frr.SortType3(out)
	return out
}

func (f *Fake) route(p netip.Prefix) frr.Route {
	r := frr.Route{Prefix: p, Others: slices.Clone(f.sources[p])}
	i := slices.IndexFunc(f.obs.Networks, func(n frr.Network) bool { return n.Prefix == p })
	if i < 0 || f.present != nil && !f.present(p) {
		return r
	}
	if f.obs.Networks[i].RouteMap == frr.Mark && !f.obs.RouteMap.Present {
		return r
	}
	r.Local = true
	for _, s := range f.obs.Sessions {
		switch {
		case !s.Established || p.Addr().Is4() && !s.IPv4 || p.Addr().Is6() && !s.IPv6:
		case f.sent == nil || f.sent(p, s.Peer):
			r.AdvertisedTo = append(r.AdvertisedTo, s.Peer)
		default:
			r.Queued = append(r.Queued, s.Peer)
		}
	}
	slices.SortFunc(r.Queued, frr.ComparePeers)
	slices.SortFunc(r.AdvertisedTo, frr.ComparePeers)
	return r
}

// Apply implements frr.Router.
func (f *Fake) Apply(ctx context.Context, edits []frr.Edit) error {
	for _, e := range edits {
		if err := f.apply(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) apply(ctx context.Context, e frr.Edit) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("frr: fake: %w: %w", frr.ErrUnreachable, err)
	}
	f.mu.Lock()
	if f.down != nil {
		defer f.mu.Unlock()
		return f.down
	}
	f.seen++
	k, hook := f.seen, f.onEdit
	f.mu.Unlock()
	if hook != nil {
		hook(k, e)
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil { // the hook took FRR away
		return f.down
	}
	if f.failErr != nil && k == f.failAt {
		err := f.failErr
		f.failErr = nil
		return &frr.EditError{Edit: e, Line: line(e), Err: err}
	}
	f.trips++
	differs, err := e.Check(f.obs)
	if err != nil {
		return &frr.EditError{Edit: e, Err: err}
	}
	if differs {
		f.trips++
		f.obs = e.Applied(f.obs)
		if e.Verb == frr.RemoveRouterID {
			f.obs.Instance.RouterID = f.chosen
		}
		f.done = append(f.done, e)
	}
	return nil
}

// line is the one that FRR would refuse: the last before `end`.
func line(e frr.Edit) string {
	lines, err := frr.Render(e)
	if err != nil {
		return ""
	}
	return lines[len(lines)-2]
}

// RoundTrips implements frr.Router: one a part of a query, one to look at an edit and one to make it.
func (f *Fake) RoundTrips() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trips
}

// Close implements frr.Router. What the fake holds stays, as FRR outlives its client.
func (f *Fake) Close() error { return nil }
