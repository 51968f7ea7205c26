package txn_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"vtepd/alloc"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
	"vtepd/frr/frrtest"
)

var (
	oldVTEP    = netip.MustParseAddr("10.255.0.11")
	newVTEP    = netip.MustParseAddr("10.255.0.12")
	remote     = netip.MustParseAddr("10.255.9.9")
	errRefused = fmt.Errorf("injected: %w", syscall.EBUSY)
)

// router is fakes that know of each other, with a re-address of two VNIs ahead: p leads from what is there to to.
type router struct {
	*txn.Runner
	kernel  *fake.Kernel
	frr     *frrtest.Fake
	bent    *bent
	ledger  *ledger
	journal *memory
	mu      sync.Mutex // of events while Run goes on
	events  []event
	from    state.State
	p       plan.Plan
}

type event struct {
	at time.Duration
	txn.Event
}

// bent is FRR whose answers a test changes.
type bent struct {
	*frrtest.Fake
	bend func(*frr.Observation)
}

func (b *bent) Observe(ctx context.Context, q frr.Query) (frr.Observation, error) {
	o, err := b.Fake.Observe(ctx, q)
	if err == nil && b.bend != nil {
		b.bend(&o)
	}
	return o, err
}

// ledger is claims by value.
type ledger struct {
	held []state.Claim
	fail error
}

func (l *ledger) Held(context.Context, string) ([]state.Claim, error) {
	return slices.Clone(l.held), l.fail
}

func (l *ledger) Acquire(_ context.Context, p alloc.Proposal) error {
	if l.fail == nil && !slices.Contains(l.held, state.ClaimOf(p)) {
		l.held = append(l.held, state.ClaimOf(p))
	}
	return l.fail
}

func (l *ledger) Unacquire(ctx context.Context, p alloc.Proposal) error {
	return l.Release(ctx, state.ClaimOf(p))
}

func (l *ledger) Release(_ context.Context, c state.Claim) error {
	l.held = slices.DeleteFunc(l.held, func(h state.Claim) bool { return h == c })
	return l.fail
}

// memory is a journal whose writes fail when a test wants it.
type memory struct {
	rec       *journal.Record
	committed []journal.Committed
	fail      func(what string) error
}

func (m *memory) failed(what string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail(what)
}

func (m *memory) Begin(p plan.Plan) error {
	if err := m.failed("begin"); err != nil {
		return err
	}
	m.rec = &journal.Record{Plan: p}
	return nil
}

func (m *memory) Mark(k journal.Mark) error {
	what := "forward"
	switch {
	case k.Do != nil:
		what = fmt.Sprint("do ", *k.Do)
		k.Do = new(*k.Do)
	case k.Undo != nil:
		what = fmt.Sprint("undo ", *k.Undo)
		k.Undo = new(*k.Undo)
	}
	if err := m.failed(what); err != nil {
		return err
	}
	m.rec.Marks = append(m.rec.Marks, k)
	return nil
}

func (m *memory) Commit(c journal.Committed) error {
	if err := m.failed("commit"); err != nil {
		return err
	}
	m.committed = append(m.committed, c)
	return nil
}

func (m *memory) End() error {
	if err := m.failed("end"); err != nil {
		return err
	}
	m.rec = nil
	return nil
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func endpoint(name string, a netip.Addr) dataplane.Link {
	return dataplane.Link{
		Name: name, Kind: dataplane.IPVLAN, Owner: "endpoint/vtep0", Up: true, Parent: "eth1", Mode: "l3", Addrs: []netip.Prefix{host(a)},
	}
}

func vni(n uint32, local netip.Addr) []dataplane.Link {
	bridge := fmt.Sprint("br", n)
	return []dataplane.Link{
		{Name: bridge, Kind: dataplane.Bridge, Owner: "bridge/" + bridge, Up: true},
		{
			Name: fmt.Sprint("vxlan", n), Kind: dataplane.VXLAN, Owner: fmt.Sprint("vni/", n), Up: true, MTU: 1450, Master: bridge,
			VNI: n, Port: 4789, Local: local, NeighSuppress: true,
		},
	}
}

func stateOf(name string, a netip.Addr, vnis ...uint32) state.State {
	s := state.State{
		Claims: []state.Claim{{Name: "r1/endpoint/vtep0", Pool: "vteps", Value: a.String()}},
		Links:  []dataplane.Link{endpoint(name, a)},
		Routes: []netip.Prefix{host(a)},
	}
	for _, n := range vnis {
		s.Links = append(s.Links, vni(n, a)...)
	}
	return s.Normal()
}

func newRouter() *router {
	r := &router{
		kernel: fake.New(), frr: frrtest.New(65001, netip.MustParseAddr("10.0.0.1")),
		ledger: &ledger{}, journal: &memory{}, from: stateOf("vtep0-old", oldVTEP, 100, 101, 102),
	}
	r.kernel.Add(dataplane.Link{Name: "eth1", Up: true, MTU: 1500})
	r.kernel.Add(r.from.Links...)
	r.kernel.OnPing(func(_, to netip.Addr) bool { return to == remote })
	r.frr.SetEVPN(true)
	r.frr.SetRouteMap(frr.RouteMap{Present: true, Ours: true})
	r.frr.SetNetworks(frr.Network{Prefix: host(oldVTEP), RouteMap: frr.Mark})
	r.frr.SetSessions(
		frr.Session{Peer: "10.1.0.2", Established: true, IPv4: true, EVPN: true},
		frr.Session{Peer: "10.1.0.6", Established: true, IPv6: true},
		frr.Session{Peer: "10.1.0.10", IPv4: true},
	)
	r.frr.SetType3(frr.Type3{RD: "10.0.0.2:2", Origin: remote, NextHop: remote, Peer: "10.1.0.2", Valid: true})
	r.frr.SetPresent(func(p netip.Prefix) bool {
		return slices.ContainsFunc(r.kernel.Links(), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, p) })
	})
	r.frr.SetVNIs(r.vnis)
	r.frr.SetIdle(r.idle)
	r.ledger.held = slices.Clone(r.from.Claims)
	r.bent = &bent{Fake: r.frr}
	to := stateOf("vtep0-new", newVTEP, 100, 101)
	r.p = plan.Compute(r.from, to, plan.Input{
		VNIs:       []uint32{100},
		Generation: 2, Router: "r1", ASN: 65001,
		Drain: plan.Drained{Quiet: time.Second, Limit: 30 * time.Second},
		Proposals: []alloc.Proposal{{
			Claim:      alloc.Claim{Name: "r1/endpoint/vtep0", Pool: "vteps"},
			Allocation: alloc.Allocation{Pool: "vteps", Value: newVTEP.String()},
		}},
	})
	began := time.Now()
	r.Runner = &txn.Runner{
		Kernel: r.kernel, FRR: r.bent, Ledger: r.ledger, Journal: r.journal, Timeout: 3 * time.Second,
		Report: func(e txn.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, event{time.Since(began), e})
		},
	}
	return r
}

// vnis is what zebra makes of the links.
func (r *router) vnis() []frr.VNI {
	var out []frr.VNI
	links := r.kernel.Links()
	for _, l := range links {
		if m, ok := dataplane.Find(links, l.Master); l.Kind == dataplane.VXLAN && l.Up && ok && m.Up {
			out = append(out, frr.VNI{VNI: l.VNI, Device: l.Name, Local: l.Local})
		}
	}
	return out
}

// idle is what else zebra lists: VXLANs that are down or in no bridge.
func (r *router) idle() []frr.VNI {
	live := r.vnis()
	var out []frr.VNI
	for _, l := range r.kernel.Links() {
		v := frr.VNI{VNI: l.VNI, Device: l.Name, Local: l.Local}
		if l.Kind == dataplane.VXLAN && !slices.Contains(live, v) {
			out = append(out, v)
		}
	}
	return out
}

// is holds the router against a state: what is there of ours, and that nothing is staged.
func (r *router) is(t *testing.T, want state.State) {
	t.Helper()
	k, err := r.kernel.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.frr.Observe(t.Context(), frr.Query{Config: true})
	if err != nil {
		t.Fatal(err)
	}
	all := state.State{EVPN: true, Routes: []netip.Prefix{host(oldVTEP), host(newVTEP)}}
	got := state.Observed(k, f, all, r.ledger.held)
	got.EVPN = false // it was there, and the operator's
	if diff := state.Diff(got, want); len(diff) > 0 {
		t.Errorf("the router is not as it should be:\n%s", strings.Join(diff, "\n"))
	}
	if s := r.kernel.Staged(); s != nil {
		t.Errorf("the shadow is still there: %v", s)
	}
}

// step is the number, from 0, of the first step of a phase for which is holds.
func (r *router) step(phase plan.Phase, is func(plan.Action) bool) int {
	i := slices.IndexFunc(r.p.Steps, func(s plan.Step) bool { return s.Phase == phase && is(s.Do) })
	if i < 0 {
		panic("no such step:\n" + r.p.String())
	}
	return i
}

func TestCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		if r.journal.rec != nil || len(r.journal.committed) != 1 || r.journal.committed[0].Generation != 2 ||
			r.journal.committed[0].State.Hash() != r.p.New.Hash() {
			t.Errorf("journal %v, committed %v", r.journal.rec, r.journal.committed)
		}
		var got []string
		for _, e := range r.events {
			if !e.Done {
				got = append(got, fmt.Sprintf("%s %d", e.Phase, e.Step))
			} else if e.Err != nil || e.Retry || e.Undo {
				t.Errorf("%+v", e)
			}
		}
		want := []string{
			"claim 0", "stage 1", "expose 2", "announce 3", "announce 4", "announce 5", "swap 6", "verify 7",
			"verify 7", // the commit
			"drain 8", "retire 9", "retire 10", "retire 11", "retire 12", "retire 13", "retire 14", "retire 15",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events: -want +got:\n%s\n%s", diff, r.p)
		}
	})
}

// TestNotSo: each condition that is never met is named, after the timeout, and the router is as it was.
func TestNotSo(t *testing.T) {
	moved := func(l netip.Addr) bool { return l == newVTEP }
	for _, c := range []struct {
		name string
		set  func(r *router)
		want string
	}{
		{
			"host route not in BGP",
			func(r *router) { r.frr.SetPresent(func(p netip.Prefix) bool { return p != host(newVTEP) }) },
			"announce: step 6: not so after 3s: host route 10.255.0.12/32 is not in BGP",
		},
		{
			"host route not sent",
			func(r *router) { r.frr.SetSent(func(p netip.Prefix, _ string) bool { return p != host(newVTEP) }) },
			"announce: step 6: not so after 3s: host route 10.255.0.12/32 is not sent to peer 10.1.0.2",
		},
		{
			"remote VTEP silent",
			func(r *router) {
				r.kernel.OnPing(func(from, to netip.Addr) bool { return to == remote && from == oldVTEP })
			},
			"announce: step 6: not so after 3s: VTEP 10.255.9.9 answers 10.255.0.11 but not 10.255.0.12",
		},
		{
			"zebra doesn't know the VNI",
			func(r *router) {
				r.frr.SetVNIs(func() []frr.VNI {
					return slices.DeleteFunc(r.vnis(), func(v frr.VNI) bool { return v.VNI == 101 && moved(v.Local) })
				})
			},
			"verify: step 8: not so after 3s: zebra doesn't know VNI 101",
		},
		{
			"zebra has another device",
			func(r *router) {
				r.frr.SetVNIs(func() []frr.VNI {
					v := r.vnis()
					for i := range v {
						if v[i].VNI == 100 && moved(v[i].Local) {
							v[i].Device = "vx"
						}
					}
					return v
				})
			},
			"verify: step 8: not so after 3s: zebra has VNI 100 on vx, not on vxlan100",
		},
		{
			"the operator makes a VNI that of a VRF",
			func(r *router) {
				r.frr.SetVNIs(func() []frr.VNI {
					v := r.vnis()
					for i := range v {
						v[i].L3 = v[i].VNI == 101 && moved(v[i].Local)
					}
					return v
				})
			},
			"verify: step 8: not so after 3s: zebra has VNI 101 as the L3 VNI of a VRF",
		},
		{
			"zebra has the old VTEP",
			func(r *router) {
				r.frr.SetVNIs(func() []frr.VNI {
					v := r.vnis()
					for i := range v {
						if v[i].VNI < 200 {
							v[i].Local = oldVTEP
						}
					}
					return v
				})
			},
			"verify: step 8: not so after 3s: zebra has VTEP 10.255.0.11 for VNI 100, not 10.255.0.12; zebra has VTEP 10.255.0.11 for VNI 101, not 10.255.0.12",
		},
		{
			"no type-3 route",
			func(r *router) {
				r.bent.bend = func(o *frr.Observation) {
					o.Type3 = slices.DeleteFunc(o.Type3, func(x frr.Type3) bool { return moved(x.Origin) && x.VNI == 100 })
				}
			},
			"verify: step 8: not so after 3s: BGP has no type-3 route of its own for VNI 100",
		},
		{
			"type-3 route with the old next hop",
			func(r *router) {
				r.bent.bend = func(o *frr.Observation) {
					for i, x := range o.Type3 {
						if moved(x.Origin) && x.VNI == 100 {
							o.Type3[i].NextHop = oldVTEP
						}
					}
				}
			},
			"verify: step 8: not so after 3s: BGP's type-3 route for VNI 100 has next hop 10.255.0.11, not 10.255.0.12",
		},
		{
			"type-3 route not sent",
			func(r *router) {
				r.bent.bend = func(o *frr.Observation) {
					for i, x := range o.Type3 {
						if moved(x.Origin) && x.VNI == 100 {
							o.Type3[i].AdvertisedTo = nil
						}
					}
				}
			},
			"verify: step 8: not so after 3s: the type-3 route for VNI 100 is not sent to peer 10.1.0.2",
		},
		{
			"somebody takes a host route away",
			func(r *router) {
				r.bent.bend = func(o *frr.Observation) {
					if slices.ContainsFunc(r.vnis(), func(v frr.VNI) bool { return moved(v.Local) }) {
						o.Networks = slices.DeleteFunc(o.Networks, func(n frr.Network) bool { return n.Prefix == host(newVTEP) })
					}
				}
			},
			"verify: step 8: not so after 3s: host route 10.255.0.12/32 is missing",
		},
		{
			"FRR can't be reached",
			func(r *router) {
				// It goes away while the new host route is waited for, and is back for the way back.
				report := r.Report
				r.Report = func(e txn.Event) {
					if e.Phase == plan.Announce && e.Step == 5 && !e.Done {
						r.frr.SetUnreachable(fmt.Errorf("bgpd: %w: connection refused", frr.ErrUnreachable))
					} else if e.Err != nil {
						r.frr.SetUnreachable(nil)
					}
					report(e)
				}
			},
			"announce: step 6: not so after 3s: bgpd: FRR can't be reached: connection refused",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRouter()
				c.set(r)
				began := time.Now()
				err := r.Run(t.Context(), r.p)
				var failed *txn.Error
				if !errors.As(err, &failed) {
					t.Fatalf("got %v", err)
				}
				if took := time.Since(began); failed.Degraded == nil && (took < 3*time.Second || took > 4*time.Second) {
					t.Errorf("it took %s", took)
				}
				if want := c.want + "; everything is as it was"; err.Error() != want {
					t.Errorf("got\n%v\nwant\n%s", err, want)
				}
				r.is(t, r.from)
				if r.journal.rec != nil || len(r.journal.committed) > 0 {
					t.Errorf("journal %v, committed %v", r.journal.rec, r.journal.committed)
				}
			})
		})
	}
}

// TestScoutNotSent: where a policy lets no peer have the scouts, the change goes on without them after a while, and says so.
func TestScoutNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.bent.bend = func(o *frr.Observation) {
			for i, x := range o.Type3 {
				if x.VNI > 102 {
					o.Type3[i].AdvertisedTo = nil
				}
			}
		}
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		var notes []string
		var after time.Duration
		for _, e := range r.events {
			if e.Note != "" {
				notes = append(notes, e.Note)
				after = e.at
			}
		}
		want := []string{"remote VTEPs may drop packets for a moment at the swap, for the new next hop can't be made known to them before: " +
			"the type-3 route for VNI 16777215 is not sent to peer 10.1.0.2; the type-3 route for VNI 16777214 is not sent to peer 10.1.0.2"}
		if diff := cmp.Diff(want, notes); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if after < 500*time.Millisecond || after > time.Second {
			t.Errorf("after %s", after)
		}
	})
}

// TestManyUnmet: the error names five, and counts the rest.
func TestManyUnmet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		a := state.State{}
		var b state.State
		for n := range uint32(8) {
			b.Links = append(b.Links, vni(200+n, oldVTEP)...)
		}
		b.Claims = r.from.Claims
		a.Claims = r.from.Claims
		r.kernel.Remove("vxlan100", "vxlan101", "vxlan102", "br100", "br101", "br102", "vtep0-old")
		r.frr.SetNetworks()
		r.frr.SetVNIs(func() []frr.VNI { return nil })
		p := plan.Compute(a, b, plan.Input{Generation: 3, Router: "r1", ASN: 65001})
		err := r.Run(t.Context(), p)
		const want = "verify: step 4: not so after 3s: zebra doesn't know VNI 200; zebra doesn't know VNI 201; zebra doesn't know VNI 202; " +
			"zebra doesn't know VNI 203; zebra doesn't know VNI 204; and 3 more; everything is as it was"
		if err == nil || err.Error() != want {
			t.Errorf("got\n%v\nwant\n%s\n%s", err, want, p)
		}
	})
}

// TestRefused: a port's own words, and which object they are about.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, want, object string
		phase              plan.Phase
		set                func(r *router)
	}{
		{
			"ledger", "claim: step 1: pool is gone; everything is as it was", "", plan.Claim,
			func(r *router) {
				r.ledger.fail = errors.New("pool is gone")
				r.journal.fail = func(what string) error {
					if what == "undo 0" {
						r.ledger.fail = nil
					}
					return nil
				}
			},
		},
		{
			"staging", "stage: step 2: create vtep0-new: device or resource busy; everything is as it was", "vtep0-new", plan.Stage,
			func(r *router) { r.kernel.FailAt(1, syscall.EBUSY) },
		},
		{
			"FRR", `announce: step 4: network 10.255.0.12/32: line "network 10.255.0.12/32 route-map VTEPD": % Unknown command; everything is as it was`,
			"network 10.255.0.12/32", plan.Announce,
			func(r *router) { r.frr.FailAt(2, errors.New("% Unknown command")) },
		},
		{
			"swap", "swap: step 7: set vxlan100: injected: device or resource busy; everything is as it was", "vxlan100", plan.Swap,
			func(r *router) {
				r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
					if when == fake.Before && op.Verb == dataplane.Set && op.Link.Name == "vxlan100" && op.Link.Local == newVTEP {
						r.kernel.FailAt(n, errRefused)
					}
				})
			},
		},
		{
			"journal, at the first mark", "claim: step 1: no space left on device; everything is as it was", "", plan.Claim,
			func(r *router) { r.journal.fail = failOnce("do 0") },
		},
		{
			"journal, at the swap", "swap: step 7: no space left on device; everything is as it was", "", plan.Swap,
			func(r *router) { r.journal.fail = failOnce("do 6") },
		},
		{
			"journal, at the point of no return", "verify: step 8: no space left on device; everything is as it was", "", plan.Verify,
			func(r *router) { r.journal.fail = failOnce("forward") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRouter()
				c.set(r)
				err := r.Run(t.Context(), r.p)
				var failed *txn.Error
				if !errors.As(err, &failed) || err.Error() != c.want || failed.Phase != c.phase || failed.Object != c.object {
					t.Fatalf("got\n%v\nwant\n%s\n%+v", err, c.want, failed)
				}
				r.is(t, r.from)
				if r.journal.rec != nil || len(r.journal.committed) > 0 {
					t.Errorf("journal %v, committed %v", r.journal.rec, r.journal.committed)
				}
			})
		})
	}
}

func failOnce(at string) func(string) error {
	return func(what string) error {
		if what == at {
			at = ""
			return syscall.ENOSPC
		}
		return nil
	}
}

func TestBeginFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.journal.fail = failOnce("begin")
		err := r.Run(t.Context(), r.p)
		if !errors.Is(err, syscall.ENOSPC) || err.Error() != "claim: step 1: no space left on device; everything is as it was" {
			t.Errorf("got %v", err)
		}
		if len(r.events) > 0 || r.kernel.Counts() != (dataplane.Counts{}) || r.frr.RoundTrips() > 0 {
			t.Errorf("something was done: %v", r.events)
		}
	})
}

// TestCommitRetried: once the point of no return is marked, a write that fails is tried again, not undone.
func TestCommitRetried(t *testing.T) {
	for _, at := range []string{"commit", "do 8", "end"} {
		synctest.Test(t, func(t *testing.T) {
			r := newRouter()
			r.journal.fail = failOnce(at)
			if err := r.Run(t.Context(), r.p); err != nil {
				t.Fatalf("%s: %v", at, err)
			}
			r.is(t, r.p.New)
			if r.journal.rec != nil || len(r.journal.committed) != 1 {
				t.Errorf("%s: journal %v, committed %v", at, r.journal.rec, r.journal.committed)
			}
			if n := len(slices.DeleteFunc(r.events, func(e event) bool { return !e.Retry })); n != 1 {
				t.Errorf("%s: %d retries were reported", at, n)
			}
		})
	}
}

func TestDrain(t *testing.T) {
	for _, c := range []struct {
		name    string
		packets time.Duration // how long there are some
		stop    time.Duration // when the daemon is told to stop; 0: never
		least   time.Duration
		most    time.Duration
	}{
		{"quiet from the start", 0, 0, time.Second, 1200 * time.Millisecond},
		{"quiet after a while", 5 * time.Second, 0, 6 * time.Second, 6300 * time.Millisecond},
		{"never quiet", time.Hour, 0, 30 * time.Second, 30 * time.Second},
		{"told to stop", time.Hour, 2 * time.Second, 7 * time.Second, 7 * time.Second},
		{"told to stop, and quiet", 3 * time.Second, 2 * time.Second, 4 * time.Second, 4300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRouter()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				drain := r.step(plan.Drain, func(a plan.Action) bool { return a.Drain != nil })
				var began, ended time.Time
				var over atomic.Bool
				r.Report = func(e txn.Event) {
					if e.Phase != plan.Drain {
						return
					}
					if e.Step != drain {
						t.Errorf("%+v", e)
					}
					if e.Done {
						ended = time.Now()
						over.Store(true)
						return
					}
					began = time.Now()
					if c.stop > 0 {
						time.AfterFunc(c.stop, cancel)
					}
					var tick func()
					count, start := uint64(0), began
					tick = func() {
						if time.Since(start) < c.packets && !over.Load() {
							count++
							r.kernel.SetReceived("vtep0-old", count)
							time.AfterFunc(50*time.Millisecond, tick)
						}
					}
					tick()
				}
				if err := r.Run(ctx, r.p); err != nil {
					t.Fatal(err)
				}
				if took := ended.Sub(began); took < c.least || took > c.most {
					t.Errorf("it took %s, want %s to %s", took, c.least, c.most)
				}
				r.is(t, r.p.New)
				cancel()
			})
		})
	}
}

// TestRetireRetried: what is past the point of no return is tried again, a little later each time, and every failure is told.
func TestRetireRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		failures := 0
		r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
			if when == fake.Before && op.Verb == dataplane.Delete && op.Link.Name == "vtep0-old" && failures < 9 {
				failures++
				r.kernel.FailAt(n, errRefused)
			}
		})
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		var gaps []time.Duration
		var last time.Duration
		for _, e := range r.events {
			if !e.Retry {
				continue
			}
			if want := "delete vtep0-old: injected: device or resource busy"; e.Err == nil || e.Err.Error() != want || e.Phase != plan.Retire {
				t.Errorf("%s %v, want %s", e.Phase, e.Err, want)
			}
			if last > 0 {
				gaps = append(gaps, e.at-last)
			}
			last = e.at
		}
		ms := time.Millisecond
		want := []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 10000 * ms, 10000 * ms}
		if !slices.Equal(gaps, want) {
			t.Errorf("tried again after %v, want %v", gaps, want)
		}
	})
}

// TestStillThere: a VNI that FRR doesn't withdraw holds the retirement up.
func TestStillThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		until := time.Now().Add(10 * time.Second)
		r.frr.SetVNIs(func() []frr.VNI {
			v := r.vnis()
			if time.Now().Before(until) && !slices.ContainsFunc(v, func(v frr.VNI) bool { return v.VNI == 102 }) {
				v = append(v, frr.VNI{VNI: 102, Device: "vxlan102", Local: oldVTEP})
			}
			return v
		})
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		told := slices.DeleteFunc(r.events, func(e event) bool { return !e.Retry })
		if len(told) == 0 || told[0].Err.Error() != "not so after 3s: BGP still has a type-3 route of its own for VNI 102" {
			t.Errorf("told: %v", told)
		}
	})
}

// TestStoppedBefore: a daemon that is told to stop before the point of no return undoes.
func TestStoppedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.frr.SetSent(func(netip.Prefix, string) bool { return false })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		err := r.Run(ctx, r.p)
		const want = "announce: step 6: interrupted (context canceled) while waiting: host route 10.255.0.12/32 is not sent to peer 10.1.0.2; everything is as it was"
		if !errors.Is(err, context.Canceled) || err.Error() != want {
			t.Errorf("got\n%v\nwant\n%s", err, want)
		}
		r.is(t, r.from)
		if r.journal.rec != nil || len(r.journal.committed) > 0 {
			t.Errorf("journal %v, committed %v", r.journal.rec, r.journal.committed)
		}
	})
}

// TestStoppedAfter: one that is told to stop later finishes what works, and leaves what doesn't to the next start.
func TestStoppedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		ctx, cancel := context.WithCancel(t.Context())
		broken := true
		r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
			if when == fake.Before && op.Verb == dataplane.Delete && op.Link.Name == "vtep0-old" && broken {
				r.kernel.FailAt(n, errRefused)
				cancel()
			}
		})
		err := r.Run(ctx, r.p)
		const want = "stopped before the old objects were retired; the next start finishes: delete vtep0-old: injected: device or resource busy"
		if !errors.Is(err, txn.ErrStopped) || err.Error() != want {
			t.Fatalf("got\n%v\nwant\n%s", err, want)
		}
		if len(r.journal.committed) != 1 || r.journal.rec == nil || !r.journal.rec.Forward() {
			t.Fatalf("journal %v, committed %v", r.journal.rec, r.journal.committed)
		}
		broken = false
		r.kernel.Restart()
		if err := r.Recover(t.Context(), *r.journal.rec); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		if r.journal.rec != nil {
			t.Error("the journal is still there")
		}
	})
	// Told to stop at the very moment of no return, and nothing in the way: it is done, within bounds.
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		ctx, cancel := context.WithCancel(t.Context())
		r.journal.fail = func(what string) error {
			if what == "commit" {
				cancel()
			}
			return nil
		}
		if err := r.Run(ctx, r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
	})
}

// TestDegraded: an inverse that fails is named, the journal stays, and Recover heals once the obstacle is gone.
func TestDegraded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		broken := true
		// The first of the batch is done, the second refused; going back is refused at the first.
		r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
			if when == fake.Before && op.Verb == dataplane.Set && broken && (op.Link.Name == "vxlan101" && op.Link.Local == newVTEP || op.Link.Name == "vxlan100" && op.Link.Local == oldVTEP) {
				r.kernel.FailAt(n, errRefused)
			}
		})
		err := r.Run(t.Context(), r.p)
		var failed *txn.Error
		const want = "swap: step 7: set vxlan101: injected: device or resource busy; going back failed: " +
			"undo of swap: step 7: set vxlan100: injected: device or resource busy"
		if !errors.As(err, &failed) || failed.Degraded == nil || err.Error() != want || failed.Object != "vxlan101" {
			t.Fatalf("got\n%v\nwant\n%s", err, want)
		}
		if r.journal.rec == nil || r.journal.rec.Forward() {
			t.Fatalf("journal %v", r.journal.rec)
		}
		err = r.Recover(t.Context(), *r.journal.rec)
		if want := "undo of swap: step 7: set vxlan100: injected: device or resource busy"; err == nil || err.Error() != want {
			t.Errorf("recovery with the obstacle still there: %v", err)
		}
		broken = false
		if err := r.Recover(t.Context(), *r.journal.rec); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.from)
		if r.journal.rec != nil || len(r.journal.committed) > 0 {
			t.Errorf("journal %v, committed %v", r.journal.rec, r.journal.committed)
		}
	})
}

// TestOldStateNotBack: every inverse was done, and still the old state isn't there, since somebody took from it: that is put
// back; where it can't be, that is degraded, and says what is in the way.
func TestOldStateNotBack(t *testing.T) {
	const notSent = "announce: step 6: not so after 3s: host route 10.255.0.12/32 is not sent to peer 10.1.0.2; "
	for _, c := range []struct {
		name string
		take func(*router)
		give func(*router)
		want string
	}{
		{"a link was taken", func(r *router) { r.kernel.Remove("vxlan102") }, nil, notSent + "everything is as it was"},
		{"all of FRR's lines, and an endpoint", func(r *router) {
			r.frr.SetNetworks()
			r.frr.SetRouteMap(frr.RouteMap{})
			r.kernel.Remove(r.from.Endpoints()[0].Name)
		}, nil, notSent + "everything is as it was"},
		{
			"its VNI was taken too", func(r *router) {
				r.kernel.Remove("vxlan102")
				r.kernel.Add(dataplane.Link{Name: "foe0", Kind: dataplane.VXLAN, VNI: 102, Port: 4789, MTU: 1450})
			}, func(r *router) { r.kernel.Remove("foe0") },
			notSent + "going back failed: the old state is not back: not so after 3s: create vxlan102: " +
				"file exists (A VXLAN device with the specified VNI already exists)",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRouter()
				r.frr.SetSent(func(netip.Prefix, string) bool { return false })
				taken := false
				r.bent.bend = func(*frr.Observation) { // while it waits
					if !taken {
						taken = true
						c.take(r)
					}
				}
				err := r.Run(t.Context(), r.p)
				if err == nil || err.Error() != c.want {
					t.Fatalf("got\n%v\nwant\n%s", err, c.want)
				}
				if c.give != nil {
					c.give(r)
					if err := r.Recover(t.Context(), *r.journal.rec); err != nil {
						t.Fatal(err)
					}
				}
				r.is(t, r.from)
			})
		})
	}
}

// TestFRRGone: FRR that goes away under an edit can't take the others back; when it is there again, recovery does.
func TestFRRGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		gone := fmt.Errorf("bgpd: %w: EOF", frr.ErrUnreachable)
		r.frr.OnEdit(func(k int, _ frr.Edit) {
			if k == 2 {
				r.frr.SetUnreachable(gone)
			}
		})
		err := r.Run(t.Context(), r.p)
		const want = "announce: step 4: bgpd: FRR can't be reached: EOF; going back failed: undo of announce: step 4: bgpd: FRR can't be reached: EOF"
		if !errors.Is(err, frr.ErrUnreachable) || err.Error() != want {
			t.Fatalf("got\n%v\nwant\n%s", err, want)
		}
		r.frr.SetUnreachable(nil)
		if err := r.Recover(t.Context(), *r.journal.rec); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.from)
	})
	// One that is only away for a moment while a condition is waited for is no failure.
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.onceSwapped(func() {
			r.frr.SetUnreachable(fmt.Errorf("bgpd: %w: connection refused", frr.ErrUnreachable))
			time.AfterFunc(2*time.Second, func() { r.frr.SetUnreachable(nil) })
		})
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
	})
}

// onceSwapped calls f when the last change of the swap is done, once.
func (r *router) onceSwapped(f func()) {
	done := false
	r.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
		if when == fake.After && op.Verb == dataplane.Set && op.Link.Name == "vxlan101" && op.Link.Local == newVTEP && !done {
			done = true
			f()
		}
	})
}

// TestGarbage: an answer that makes no sense isn't waited for.
func TestGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.onceSwapped(func() { r.kernel.FailObserve(1, errors.New("dump interrupted")) })
		began := time.Now()
		err := r.Run(t.Context(), r.p)
		if want := "verify: step 8: dump interrupted; everything is as it was"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %s", took)
		}
		r.is(t, r.from)
	})
}

// TestOldAddressGone: where the old address is lost already, nobody answers it, and nobody has to answer the new one.
func TestOldAddressGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.kernel.Remove("vtep0-old")
		r.kernel.OnPing(func(netip.Addr, netip.Addr) bool { return false })
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
	})
}

// notes collects what is told beside the steps from now on.
func (r *router) notes() *[]string {
	var notes []string
	report := r.Report
	r.Report = func(e txn.Event) {
		if e.Note != "" {
			notes = append(notes, e.Note)
			return
		}
		report(e)
	}
	return &notes
}

// TestForgetfulBGP: a bgpd that is started while the new host route is waited for is given the line once more.
func TestForgetfulBGP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		notes := r.notes()
		report := r.Report
		r.Report = func(e txn.Event) {
			if e.Phase == plan.Announce && e.Step == 5 && !e.Done && e.Note == "" { // what its file has, and what went with the daemon's
				r.frr.SetNetworks(frr.Network{Prefix: host(oldVTEP), RouteMap: frr.Mark})
			}
			report(e)
		}
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		if want := []string{"BGP has nothing of network 10.255.0.12/32; written anew"}; !slices.Equal(*notes, want) {
			t.Errorf("told %q, would be %q", *notes, want)
		}
	})
}

// TestDeafBGP: a bgpd that has the line and doesn't take it up is given the line anew, once, and that is told.
func TestDeafBGP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		written := 0
		r.frr.OnEdit(func(_ int, e frr.Edit) {
			if e.Verb == frr.AddNetwork && e.Prefix == host(newVTEP) {
				written++
			}
		})
		r.frr.SetPresent(func(p netip.Prefix) bool { return p != host(newVTEP) || written > 1 })
		notes := r.notes()
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		if want := []string{"BGP has nothing of network 10.255.0.12/32; written anew"}; written != 2 || !slices.Equal(*notes, want) {
			t.Errorf("written %d times, told %q, would be 2 and %q", written, *notes, want)
		}
	})
}

// retiring is a router that gives up VNIs 101 and 102, and nothing else: in retire their VXLANs go down, are waited for, and are deleted.
func retiring() *router {
	r := newRouter()
	r.p = plan.Compute(r.from, stateOf("vtep0-old", oldVTEP, 100), plan.Input{
		VNIs:       []uint32{100},
		Generation: 2, Router: "r1", ASN: 65001, Drain: plan.Drained{Quiet: time.Second, Limit: 30 * time.Second},
	})
	return r
}

// TestNothingIsDeletedBehindFRR: a VXLAN is deleted only while bgpd is there and zebra lists its VNI; till then it is waited for.
func TestNothingIsDeletedBehindFRR(t *testing.T) {
	down := fmt.Errorf("bgpd: %w: connection refused", frr.ErrUnreachable)
	for name, c := range map[string]struct {
		take, give func(*router)
		why        string
	}{
		"bgpd is gone": {
			func(r *router) { r.frr.SetUnreachable(down) },
			func(r *router) { r.frr.SetUnreachable(nil) },
			"not so after 3s: " + down.Error(),
		},
		"bgpd is being started": {
			func(r *router) { r.frr.SetInstance(frr.Instance{}) },
			func(r *router) {
				r.frr.SetInstance(frr.Instance{ASN: 65001})
				r.frr.SetEVPN(true)
				r.frr.SetRouteMap(frr.RouteMap{Present: true, Ours: true})
				r.frr.SetNetworks(frr.Network{Prefix: host(oldVTEP), RouteMap: frr.Mark})
			},
			"not so after 3s: bgpd has no instance",
		},
		"bgpd is loading its configuration": {
			func(r *router) {
				r.frr.SetEVPN(false)
				var again func() // a line a second
				again = func() {
					r.frr.SetNetworks(frr.Network{Prefix: host(oldVTEP), RouteMap: frr.Mark}, frr.Network{Prefix: host(netip.AddrFrom4([4]byte{192, 0, 2, byte(r.frr.RoundTrips())}))})
					if o, err := r.frr.Observe(context.Background(), frr.Query{Config: true}); err == nil && !o.EVPN {
						time.AfterFunc(time.Second, again)
					}
				}
				again()
			},
			func(r *router) {
				r.frr.SetEVPN(true)
				r.frr.SetNetworks(frr.Network{Prefix: host(oldVTEP), RouteMap: frr.Mark})
			},
			"not so after 3s: advertise-all-vni isn't there, and bgpd may still be loading its configuration",
		},
		"zebra is being started": {
			func(r *router) {
				r.frr.SetVNIs(func() []frr.VNI { return nil })
				r.frr.SetIdle(func() []frr.VNI { return nil })
			},
			func(r *router) { r.frr.SetVNIs(r.vnis); r.frr.SetIdle(r.idle) },
			"not so after 3s: zebra doesn't list VNI 101, and would keep vxlan101 when it is deleted; zebra doesn't list VNI 102, and would keep vxlan102 when it is deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := retiring()
				var said []string
				report, away := r.Report, false
				r.Report = func(e txn.Event) {
					deletes := func(o dataplane.Op) bool { return o.Verb == dataplane.GroupDelete }
					if e.Step < len(r.p.Steps) && !e.Done && !away && slices.ContainsFunc(r.p.Steps[e.Step].Do.Kernel, deletes) {
						away = true
						c.take(r)
						time.AfterFunc(5*time.Second, func() {
							if _, ok := dataplane.Find(r.kernel.Links(), "vxlan101"); !ok {
								t.Error("vxlan101 was deleted meanwhile")
							}
							c.give(r)
						})
					}
					if e.Err != nil {
						said = append(said, e.Err.Error())
					}
					report(e)
				}
				if err := r.Run(t.Context(), r.p); err != nil {
					t.Fatal(err)
				}
				if want := []string{c.why}; !slices.Equal(said, want) {
					t.Errorf("said %q, would be %q", said, want)
				}
				r.is(t, r.p.New)
			})
		})
	}
}

// TestZebraMissedTheEnd: a zebra that was started while a VXLAN was down lets bgpd announce it for ever, unless it is set up and down.
func TestZebraMissedTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := retiring()
		ups := 0
		r.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
			if when == fake.After && op.Verb == dataplane.Set && op.Link.Name == "vxlan101" && op.Link.Up {
				ups++
			}
		})
		r.bent.bend = func(o *frr.Observation) {
			if ups == 0 && !slices.ContainsFunc(o.Type3, func(x frr.Type3) bool { return x.Local && x.VNI == 101 }) {
				o.Type3 = append(o.Type3, frr.Type3{VNI: 101, Origin: oldVTEP, NextHop: oldVTEP, Local: true, Valid: true})
			}
		}
		notes := r.notes()
		if err := r.Run(t.Context(), r.p); err != nil {
			t.Fatal(err)
		}
		r.is(t, r.p.New)
		if want := []string{"BGP doesn't withdraw the type-3 routes of vxlan101, vxlan102; they are set down anew"}; ups != 1 || !slices.Equal(*notes, want) {
			t.Errorf("set up %d times, told %q, would be once and %q", ups, *notes, want)
		}
	})
}
