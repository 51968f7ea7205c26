package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vtepd/daemon/config"
	"vtepd/daemon/history"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
)

const (
	movedConfirm = moved + "transaction: {confirm: 60s}\n"
	movedBack    = home + "# again\n"
	home         = preamble + "endpoints: {vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps, prefer: 10.255.0.1}}}\nvnis: {100: {endpoint: vtep0}}\n"
	notInTime    = "confirm: step 9: not confirmed before the deadline; everything is as it was"
)

// goingBack is longer than the new endpoint drains for when a swap is undone.
const goingBack = 1100 * time.Millisecond

// inAMinute is what the board says while a change waits to be confirmed for 60s from now.
func inAMinute() string {
	return "waiting for `vtepd confirm` until " + time.Now().Add(time.Minute).Format(time.DateTime) + "; without it everything goes back"
}

func undone(why string) string {
	return "what was dropped last was undone (" + why + "); drop a file to go on"
}

// unconfirmed brings a daemon to where the change of the endpoint's address waits to be confirmed, and returns what was
// there before, and what the board says.
func (r *running) unconfirmed() (facts, says string) {
	r.t.Helper()
	r.write(firstVNI)
	r.start()
	facts, says = r.facts(r.t), inAMinute()
	r.log.took()
	r.drop(movedConfirm)
	r.is(status.Unconfirmed, says)
	if r.vtep() != at2 || len(r.endpoints()) != 2 {
		r.t.Fatalf("the VTEP is %s, endpoints %v", r.vtep(), r.endpoints())
	}
	return facts, says
}

// endpoints are the addresses of the endpoints that are there.
func (r *running) endpoints() []string {
	var out []string
	for _, l := range r.kernel.Links() {
		if strings.HasPrefix(l.Owner, "endpoint/") {
			out = append(out, l.Addrs[0].Addr().String())
		}
	}
	return out
}

// kept are the generations in the history.
func (r *running) kept(want ...uint64) {
	r.t.Helper()
	if got, err := r.d.History.Generations(); err != nil || !slices.Equal(got, want) {
		r.t.Errorf("kept: %v, want %v (%v)", got, want, err)
	}
}

func (r *running) same(facts string) {
	r.t.Helper()
	if got := r.facts(r.t); got != facts {
		r.t.Errorf("got\n%swant\n%s", got, facts)
	}
}

func TestConfirmed(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		_, says := r.unconfirmed()
		r.after(50 * time.Second)
		r.is(status.Unconfirmed, says)
		r.kept(1)
		if err := r.d.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.after(2 * time.Second) // the drain
		r.is(status.Idle)
		r.kept(1, 2)
		if got := r.endpoints(); !slices.Equal(got, []string{at2.String()}) {
			t.Errorf("endpoints %v", got)
		}
		r.after(10 * time.Minute)
		r.is(status.Idle)
		if err := r.d.Confirm(t.Context()); !errors.Is(err, ErrNothingToConfirm) {
			t.Errorf("confirmed twice: %v", err)
		}
		r.kept(1, 2)
	})
}

// TestUnconfirmed: at the deadline everything goes back, and the dropped file isn't tried again until there is another.
func TestUnconfirmed(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, says := r.unconfirmed()
		r.after(59 * time.Second)
		r.is(status.Unconfirmed, says)
		r.after(time.Second)
		r.after(goingBack)
		r.is(status.Failed, notInTime)
		r.same(facts)
		if s, _ := r.board.Get(); s.Generation != 1 || s.Transaction.Result != "rolled back" || s.Failure.Phase != plan.Confirm {
			t.Errorf("generation %d, %+v, %+v", s.Generation, s.Transaction, s.Failure)
		}
		r.log.took()
		r.hint()
		r.is(status.Idle, undone(notInTime))
		before := r.writes()
		for range 3 {
			r.hint()
			r.after(10 * time.Minute)
		}
		r.is(status.Idle, undone(notInTime))
		if lines := r.log.took(); r.writes() != before || len(lines) != 1 {
			t.Errorf("logged: %q; written:\n%s%s", lines, before, r.writes())
		}
		r.kept(1)
		// Files that are away for a moment are no others.
		if err := os.Rename(r.file, r.file+"~"); err != nil {
			t.Fatal(err)
		}
		r.hint()
		r.is(status.Idle, undone(notInTime))
		r.drop(movedConfirm)
		r.is(status.Idle, undone(notInTime))
		r.same(facts)
		// A daemon that starts does not try it either.
		r.halt()
		r.start()
		r.is(status.Idle, undone(notInTime))
		r.same(facts)
		r.drop(moved)
		r.after(2 * time.Second)
		r.is(status.Idle)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.drop(movedConfirm) // the pin is gone: this says the same as what is live
		r.is(status.Idle)
		r.kept(1, 2)
	})
}

// TestUnconfirmedFirst: with nothing to go back to, nothing is left.
func TestUnconfirmedFirst(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts := r.facts(t)
		r.write(movedConfirm)
		says := inAMinute()
		r.start()
		r.is(status.Unconfirmed, says)
		r.after(time.Minute)
		s, _ := r.board.Get()
		why := s.Messages[0]
		if s.Condition != status.Failed || !strings.HasSuffix(why, "not confirmed before the deadline; everything is as it was") {
			t.Errorf("%s: %s", s.Condition, why)
		}
		r.same(facts)
		r.after(10 * time.Minute)
		r.is(status.Failed, undone(why))
		r.same(facts)
		r.kept()
		r.drop(firstVNI)
		r.is(status.Idle)
	})
}

// TestAnotherFileMeanwhile: one that is dropped during the wait is another, and its turn comes.
func TestAnotherFileMeanwhile(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.unconfirmed()
		r.write(movedBack)
		r.hints <- struct{}{}
		r.after(time.Minute)
		r.after(goingBack)
		r.is(status.Idle)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		if p, err := r.d.History.Pinned(); p != nil || err != nil {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// TestRollbackWhileWaiting: the word to go back is followed at once; others have to wait.
func TestRollbackWhileWaiting(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, says := r.unconfirmed()
		srcs := []config.Source{{File: "other.yaml", Data: []byte(firstVNI)}}
		for what, err := range map[string]error{
			"apply": r.d.Apply(t.Context(), srcs, 0, false), "to": r.d.Rollback(t.Context(), new(uint64(1)), false),
		} {
			if !errors.Is(err, ErrBusy) {
				t.Errorf("%s: %v", what, err)
			}
		}
		r.is(status.Unconfirmed, says)
		began := time.Now()
		if err := r.d.Rollback(t.Context(), nil, false); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		const why = "confirm: step 9: told to go back; everything is as it was"
		r.after(goingBack)
		r.is(status.Failed, why)
		r.same(facts)
		if took := time.Since(began); took > goingBack {
			t.Errorf("after %s", took)
		}
		r.after(time.Minute)
		r.is(status.Idle, undone(why))
		r.same(facts)
	})
}

// TestStopWhileWaiting: a daemon that is told to stop goes back, and the next one asks again: nobody has said no.
func TestStopWhileWaiting(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, _ := r.unconfirmed()
		r.halt()
		r.same(facts)
		if rec, err := r.ports.Journal.Load(); rec != nil || err != nil {
			t.Errorf("%v, %v", rec, err)
		}
		says := inAMinute()
		r.start()
		r.is(status.Unconfirmed, says)
	})
}

// killedWaiting is a router whose daemon was killed while a change waited to be confirmed.
func (r *running) killedWaiting() (facts, says string) {
	r.t.Helper()
	r.write(firstVNI)
	r.start()
	r.halt()
	facts, says = r.facts(r.t), inAMinute()
	r.write(movedConfirm)
	r.killedAt(func(e txn.Event) bool { return e.Phase == plan.Confirm })
	if r.vtep() != at2 {
		r.t.Fatalf("the VTEP is %s", r.vtep())
	}
	return facts, says
}

// killedAt carries out what is dropped until it dies of the event.
func (r *running) killedAt(when func(txn.Event) bool) {
	r.t.Helper()
	srcs, err := config.Read(r.file)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg, err := config.ParseAll(srcs)
	if err != nil {
		r.t.Fatal(err)
	}
	prep, err := Prepare(r.t.Context(), r.ports, cfg, cfg.Transaction.Confirm)
	if err != nil || len(prep.Refusals)+len(prep.Waiting) > 0 {
		r.t.Fatal(err, prep)
	}
	prep.Plan.Dropped = history.Fingerprint(srcs)
	if err := history.In(filepath.Join(r.state, "history")).Propose(prep.Plan.Generation, srcs); err != nil {
		r.t.Fatal(err)
	}
	x := r.runner(r.ports.Journal)
	x.Decide = nil
	x.Report = func(e txn.Event) {
		if when(e) {
			panic(killed{})
		}
	}
	func() {
		defer func() {
			if v := recover(); v != (killed{}) {
				r.t.Fatalf("recovered %v", v)
			}
		}()
		r.t.Errorf("it wasn't killed: %v", x.Run(r.t.Context(), prep.Plan))
	}()
	r.kernel.Restart()
}

// TestTendedWhileWaiting: what a bgpd that restarts has lost while a change waits to be confirmed is put back for both addresses, in
// the first daemon and in one that takes it up, and a yes counts.
func TestTendedWhileWaiting(t *testing.T) {
	for _, later := range []bool{false, true} {
		in(t, func(t *testing.T, r *running) {
			_, says := r.unconfirmed()
			full, err := r.frr.Observe(t.Context(), frr.Query{Config: true, Sessions: true})
			if err != nil {
				t.Fatal(err)
			}
			operators := slices.DeleteFunc(slices.Clone(full.Networks), func(n frr.Network) bool { return n.RouteMap == frr.Mark })
			if len(full.Networks)-len(operators) != 2 {
				t.Fatalf("lines: %v", full.Networks)
			}
			if later {
				r.halt()
				says = inAMinute()
				r.start()
				r.is(status.Unconfirmed, says)
			}
			r.after(3 * time.Second)
			r.frr.SetUnreachable(fmt.Errorf("frr: bgpd: socket x: %w", frr.ErrUnreachable))
			r.after(3 * time.Second)
			r.frr.SetInstance(frr.Instance{})
			r.frr.SetUnreachable(nil)
			r.after(3 * time.Second)
			r.frr.SetInstance(full.Instance)
			r.frr.SetSessions(full.Sessions...)
			r.frr.SetNetworks(operators...)
			r.frr.SetEVPN(true)
			r.after(4 * time.Second)
			r.is(status.Unconfirmed, says)
			now, err := r.frr.Observe(t.Context(), frr.Query{Config: true})
			if err != nil || !slices.Equal(now.Networks, full.Networks) || !now.EVPN {
				t.Errorf("lines: %v, were %v (%v)", now.Networks, full.Networks, err)
			}
			if err := r.d.Confirm(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.after(2 * time.Second)
			r.is(status.Idle)
			if got := r.endpoints(); !slices.Equal(got, []string{at2.String()}) {
				t.Errorf("endpoints %v", got)
			}
		})
	}
}

// TestKilledRetiring: what a daemon had verified when it was killed is what was verified last for the next one, which finishes it.
func TestKilledRetiring(t *testing.T) {
	for _, phase := range []plan.Phase{plan.Drain, plan.Retire} {
		in(t, func(t *testing.T, r *running) {
			r.write(firstVNI)
			r.start()
			r.halt()
			r.write(moved)
			r.killedAt(func(e txn.Event) bool { return e.Phase == phase })
			r.write("nonsense")
			r.start()
			r.after(3 * time.Second) // the drain
			s, _ := r.board.Get()
			if s.Condition != status.Invalid || s.Messages[len(s.Messages)-1] != "running on the config of generation 2, which was verified last" {
				t.Errorf("%s: %q", s.Condition, s.Messages)
			}
			if r.vtep() != at2 {
				t.Errorf("the VTEP is %s", r.vtep())
			}
			r.kept(1, 2)
			if e, err := r.d.History.Newest(); err != nil || string(e.Sources[0].Data) != moved {
				t.Errorf("the newest is %q (%v)", e.Sources, err)
			}
		})
	}
}

// TestKilledWhileWaiting: the deadline is the same for the next daemon.
func TestKilledWhileWaiting(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, says := r.killedWaiting()
		r.after(20 * time.Second)
		r.start()
		r.is(status.Unconfirmed, says)
		if lines := r.log.took(); len(lines) != 1 || lines[0] != "INFO recovering: undoing the transaction of generation 2 that was left after 9 of 14 steps" {
			t.Errorf("logged: %q", lines)
		}
		r.after(39 * time.Second)
		r.is(status.Unconfirmed, says)
		r.after(time.Second)
		r.after(goingBack)
		r.is(status.Idle, undone(notInTime))
		r.same(facts)
		r.after(10 * time.Minute)
		r.is(status.Idle, undone(notInTime))
		r.same(facts)
		r.kept(1)
		r.drop(moved)
		r.after(2 * time.Second)
		r.is(status.Idle)
		r.kept(1, 2)
	})
}

// TestKilledAndConfirmed: the next daemon takes the word as well, and finishes.
func TestKilledAndConfirmed(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		_, says := r.killedWaiting()
		r.start()
		r.is(status.Unconfirmed, says)
		if err := r.d.Apply(t.Context(), []config.Source{{File: "x", Data: []byte(firstVNI)}}, 0, false); !errors.Is(err, ErrBusy) {
			t.Errorf("%v", err)
		}
		if err := r.d.Confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.after(2 * time.Second)
		r.is(status.Idle)
		if got := r.endpoints(); !slices.Equal(got, []string{at2.String()}) {
			t.Errorf("endpoints %v", got)
		}
		if s, _ := r.board.Get(); s.Generation != 2 {
			t.Errorf("generation %d", s.Generation)
		}
		r.kept(1, 2)
		if e, err := r.d.History.Get(1); err != nil || string(e.Sources[0].Data) != firstVNI {
			t.Errorf("generation 1 is %q now (%v)", e.Sources, err)
		}
	})
}

// TestKilledAndLate: nobody ran at the deadline; the next daemon goes back at once.
func TestKilledAndLate(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, _ := r.killedWaiting()
		r.after(time.Hour)
		r.start()
		r.after(goingBack)
		r.is(status.Idle, undone(notInTime))
		r.same(facts)
	})
}

// TestKilledAndStopped: a stop is nobody's no, in the second daemon as in the first.
func TestKilledAndStopped(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, says := r.killedWaiting()
		r.start()
		r.is(status.Unconfirmed, says)
		r.halt()
		r.same(facts)
		says = inAMinute()
		r.start()
		r.is(status.Unconfirmed, says)
	})
}

// TestKilledGoingBack: what wasn't confirmed isn't tried again by a daemon that finds it half undone.
func TestKilledGoingBack(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.halt()
		facts := r.facts(t)
		r.write(movedConfirm)
		r.killedAt(func(e txn.Event) bool { return e.Undo && e.Phase == plan.Announce })
		r.start()
		r.after(goingBack)
		r.is(status.Idle, undone("not confirmed before the deadline"))
		r.same(facts)
		r.after(10 * time.Minute)
		r.is(status.Idle, undone("not confirmed before the deadline"))
		r.same(facts)
	})
}

// TestUnconfirmedDegraded: nor is it after a way back that took two attempts.
func TestUnconfirmedDegraded(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		facts, _ := r.unconfirmed()
		gone := fmt.Errorf("bgpd: %w: EOF", frr.ErrUnreachable)
		r.frr.SetUnreachable(gone)
		r.after(2*time.Minute + time.Second) // the deadline, and how long the way back waits for BGP to follow
		s, _ := r.board.Get()
		const back = "undo of swap: step 7: not so after 1m0s: bgpd: FRR can't be reached: EOF"
		if s.Condition != status.Degraded || len(s.Messages) != 1 || !strings.Contains(s.Messages[0], back) {
			t.Fatalf("%s: %q", s.Condition, s.Messages)
		}
		r.after(time.Minute)
		r.frr.SetUnreachable(nil)
		r.after(time.Minute)
		r.is(status.Idle, undone("not confirmed before the deadline"))
		r.same(facts)
	})
}

// TestRebootWhileWaiting: in a namespace that is not the same any more there is nothing to confirm: the old config is carried
// out there at once.
func TestRebootWhileWaiting(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.ports.Journal.Place = "boot/1"
		r.killedWaiting()
		r.replaceNamespace("boot/2")
		r.start()
		r.is(status.Idle, undone("confirm: step 9: not confirmed before the deadline: the network namespace was replaced before; everything is as it was"))
		if got := r.endpoints(); !slices.Equal(got, []string{at1.String()}) || r.vtep() != at1 {
			t.Errorf("endpoints %v, VTEP %s", got, r.vtep())
		}
	})
}

// replaceNamespace takes away all links of vtepd's, as a container's restart does, and makes a journal that knows.
func (r *running) replaceNamespace(place string) {
	r.t.Helper()
	for _, l := range r.kernel.Links() {
		if l.Ours() {
			r.kernel.Remove(l.Name)
		}
	}
	r.kernel.Restart()
	r.ports.Journal = journal.In(r.state)
	r.ports.Journal.Place = place
}

// TestNamespaceReplaced: whatever a transaction had begun, its record doesn't keep the new namespace from being set up.
func TestNamespaceReplaced(t *testing.T) {
	for _, at := range []plan.Phase{plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Drain, plan.Retire} {
		t.Run(string(at), func(t *testing.T) {
			in(t, func(t *testing.T, r *running) {
				r.ports.Journal.Place = "boot/1"
				r.write(firstVNI)
				r.start()
				r.halt()
				r.write(moved)
				r.killedAt(func(e txn.Event) bool { return e.Phase == at })
				r.replaceNamespace("boot/2")
				r.start()
				r.after(2 * time.Second)
				r.is(status.Idle)
				if got := r.endpoints(); !slices.Equal(got, []string{at2.String()}) || r.vtep() != at2 {
					t.Errorf("endpoints %v, VTEP %s", got, r.vtep())
				}
				o, err := r.frr.Observe(t.Context(), frr.Query{Config: true})
				if err != nil || len(o.Networks) != 2 {
					t.Errorf("%v (%v)", o.Networks, err)
				}
				held, err := r.ports.Ledger.Held(t.Context(), "r1")
				if err != nil || len(held) != 1 || held[0].Value != at2.String() {
					t.Errorf("held: %v (%v)", held, err)
				}
			})
		})
	}
}

// TestRecoverElsewhere: a recovery looks for the parents where they are.
func TestRecoverElsewhere(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		there := strings.NewReplacer("parent: eth1", "parent: up0, parentNetns: host")
		r.kernel.AddNetns("host", dataplane.Link{Name: "up0", Up: true, MTU: 1500})
		r.write(there.Replace(firstVNI))
		r.start()
		r.is(status.Idle)
		r.halt()
		facts := r.facts(t)
		r.write(there.Replace(moved))
		r.killedAt(func(e txn.Event) bool { return e.Phase == plan.Verify })
		r.write(there.Replace(firstVNI))
		r.start()
		r.after(goingBack)
		r.is(status.Idle)
		r.same(facts)
	})
}

// TestFollow: the namespaces of parents are followed as long as the config or what is live has any there.
func TestFollow(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		var mu sync.Mutex
		var followed [][]string
		r.ports.Follow = func(names []string) {
			mu.Lock()
			defer mu.Unlock()
			followed = append(followed, names)
		}
		follows := func(what string, want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if len(followed) == 0 || !slices.Equal(followed[len(followed)-1], want) {
				t.Errorf("%s: %q, want %q", what, followed, want)
			}
			followed = nil
		}
		there := strings.NewReplacer("parent: eth1", "parent: up0, parentNetns: host").Replace(firstVNI)
		r.write(firstVNI)
		r.start()
		follows("none")
		r.drop(strings.ReplaceAll(there, "up0", "up1"))
		if s, _ := r.board.Get(); s.Condition != status.Refused {
			t.Errorf("%s", s.Condition)
		}
		follows("wanted", "host")
		r.drop(there)
		r.is(status.Idle)
		follows("wanted", "host")
		r.after(auditEvery)
		follows("live", "host")
		r.drop(firstVNI)
		r.is(status.Idle)
		follows("live still", "host")
		r.after(auditEvery)
		follows("not any more")
	})
}

func TestNothingToTell(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		before := r.writes()
		for what, c := range map[string]struct{ err, want error }{
			"confirm": {r.d.Confirm(t.Context()), ErrNothingToConfirm},
			"back":    {r.d.Rollback(t.Context(), nil, false), history.ErrNone},
			"to":      {r.d.Rollback(t.Context(), new(uint64(7)), false), history.ErrNone},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: %v, want %v", what, c.err, c.want)
			}
		}
		if err := r.d.Rollback(t.Context(), nil, false); err == nil || err.Error() != "nothing to go back to: no such config is kept" {
			t.Error(err)
		}
		if err := r.d.Rollback(t.Context(), new(uint64(7)), false); err == nil || err.Error() != "generation 7: no such config is kept; there are those of [1]" {
			t.Error(err)
		}
		err := r.d.Apply(t.Context(), []config.Source{{File: "x.yaml", Data: []byte(firstVNI + "vniss: {}\n")}}, 0, false)
		if err == nil || err.Error() != "x.yaml:6:1: vniss: is not a known key; did you mean vnis?" {
			t.Error(err)
		}
		r.is(status.Idle)
		if r.writes() != before {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
	})
}

// TestBack: to one of the configs that are kept, as a transaction, until something else is dropped.
func TestBack(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		const third = home + "transaction: {timeout: 20s}\n"
		vnis := func() int { s, _ := r.board.Get(); return len(s.VNIs) }
		r.write(preamble) // 0 steps: verified, as generation 0
		r.start()
		r.drop(home)
		r.drop(moved)
		r.after(2 * time.Second)
		r.is(status.Idle)
		r.kept(0, 1, 2)
		if err := r.d.Rollback(t.Context(), nil, false); err != nil { // the one before
			t.Fatal(err)
		}
		r.after(2 * time.Second)
		const to1 = "rolled back to the config of generation 1; drop a file to go on"
		r.is(status.Idle, to1)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.kept(0, 1, 2, 3)
		r.halt()
		before := r.writes()
		r.start()
		r.is(status.Idle, to1)
		if r.writes() != before {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
		if err := r.d.Rollback(t.Context(), new(uint64(2)), false); err != nil {
			t.Fatal(err)
		}
		r.after(2 * time.Second)
		r.is(status.Idle, "rolled back to the config of generation 2; drop a file to go on")
		if r.vtep() != at2 || vnis() != 1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.drop(third)
		r.after(2 * time.Second)
		r.is(status.Idle)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
	})
}

// TestBackToNothing: the first config had nothing in it, and is gone back to like any other, by its number or as the one before.
func TestBackToNothing(t *testing.T) {
	for name, to := range map[string]*uint64{"the one before": nil, "generation 0": new(uint64)} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *running) {
				facts := r.facts(t)
				r.write(preamble)
				r.start()
				r.drop(firstVNI)
				r.is(status.Idle)
				r.kept(0, 1)
				if err := r.d.Rollback(t.Context(), to, false); err != nil {
					t.Fatal(err)
				}
				r.after(2 * time.Second) // the drain
				const to0 = "rolled back to the config of generation 0; drop a file to go on"
				r.is(status.Idle, to0)
				r.same(facts)
				r.kept(0, 1, 2)
				// It is a config that is kept to, not the want of one.
				r.kernel.Add(dataplane.Link{Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100", Up: true, VNI: 100, Local: at1})
				r.hint()
				r.after(2 * time.Second)
				r.is(status.Idle, to0)
				r.same(facts)
				r.drop(home)
				r.is(status.Idle)
				if r.vtep() != at1 {
					t.Errorf("the VTEP is %s", r.vtep())
				}
			})
		})
	}
}

// anotherPort is what can't be done hitless, firstVNI and moved once more.
func anotherPort(text string) string {
	return strings.Replace(text, "{endpoint: vtep0}", "{endpoint: vtep0, port: 8472}", 1)
}

func (r *running) port() uint16 {
	l, _ := dataplane.Find(r.kernel.Links(), "vxlan100")
	return l.Port
}

// TestBackAnyway: the way back over a change that was allowed isn't hitless either. The config that is gone back to says nothing of
// that, so who goes back must.
func TestBackAnyway(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.drop(anotherPort(firstVNI) + "transaction: {allowDisruptive: true}\n")
		r.is(status.Idle)
		facts := r.facts(t)
		if err := r.d.Rollback(t.Context(), nil, false); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		s, _ := r.board.Get()
		if s.Condition != status.Refused || len(s.Messages) != 2 || !strings.Contains(s.Messages[1], "not hitless: vxlan100: the port can't change from 8472 to 4789 in place") ||
			!strings.HasSuffix(s.Messages[1], "; set it to true to allow that, or give --allow-disruptive to `vtepd apply` or `vtepd rollback`") {
			t.Fatalf("%s: %q", s.Condition, s.Messages)
		}
		r.same(facts)
		if err := r.d.Rollback(t.Context(), nil, true); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		r.is(status.Idle, "rolled back to the config of generation 1; drop a file to go on")
		if r.port() != 4789 {
			t.Errorf("port %d", r.port())
		}
		// What is dropped next is asked again.
		r.drop(anotherPort(firstVNI))
		if s, _ := r.board.Get(); s.Condition != status.Refused || r.port() != 4789 {
			t.Errorf("%s, port %d", s.Condition, r.port())
		}
	})
}

// TestApplyAnyway: the word that it may be disruptive outlives the daemon that was told it.
func TestApplyAnyway(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.frr.SetSent(func(p netip.Prefix, _ string) bool { return p.Addr() != at2 })
		srcs := []config.Source{{File: "/root/try.yaml", Data: []byte(anotherPort(moved))}}
		if err := r.d.Apply(t.Context(), srcs, 0, true); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		r.is(status.Running)
		r.halt()
		r.same(facts)
		r.frr.SetSent(nil)
		r.start()
		r.after(2 * time.Second)
		r.is(status.Idle, "applied from /root/try.yaml; drop a file to go on")
		if r.vtep() != at2 || r.port() != 8472 {
			t.Errorf("the VTEP is %s, the port %d", r.vtep(), r.port())
		}
	})
}

// TestApply: what is applied stands in for what is dropped, until something else is.
func TestApply(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		srcs := []config.Source{{File: "/root/try.yaml", Data: []byte(moved)}}
		says := inAMinute()
		if err := r.d.Apply(t.Context(), srcs, time.Minute, false); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		r.is(status.Unconfirmed, says)
		r.after(time.Minute)
		r.after(goingBack)
		r.is(status.Failed, "applied from /root/try.yaml; drop a file to go on", notInTime)
		r.after(time.Minute)
		r.is(status.Idle, undone(notInTime))
		r.same(facts)

		if err := r.d.Apply(t.Context(), srcs, 0, false); err != nil {
			t.Fatal(err)
		}
		r.after(2 * time.Second)
		const applied = "applied from /root/try.yaml; drop a file to go on"
		r.is(status.Idle, applied)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.hint()
		r.halt()
		r.start()
		r.is(status.Idle, applied)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.drop(movedBack)
		r.after(2 * time.Second)
		r.is(status.Idle)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		// What the file itself says about confirmation holds where nothing else is said.
		srcs[0].Data = []byte(movedConfirm)
		says = inAMinute()
		if err := r.d.Apply(t.Context(), srcs, 0, false); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		r.is(status.Unconfirmed, says)
	})
}

// TestBusy: during a transaction nobody is told anything else.
func TestBusy(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.frr.SetSent(func(p netip.Prefix, _ string) bool { return p.Addr() != at2 })
		r.drop(moved)
		r.is(status.Running)
		for what, c := range map[string]struct{ err, want error }{
			"apply":   {r.d.Apply(t.Context(), []config.Source{{File: "x", Data: []byte(firstVNI)}}, 0, false), ErrBusy},
			"back":    {r.d.Rollback(t.Context(), nil, false), ErrBusy},
			"to":      {r.d.Rollback(t.Context(), new(uint64(1)), false), ErrBusy},
			"confirm": {r.d.Confirm(t.Context()), ErrNothingToConfirm},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: %v", what, c.err)
			}
		}
	})
}

// TestLastGood: with a file that is broken the router is kept as the config that was verified last says.
func TestLastGood(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.after(2 * time.Minute)
		facts := r.facts(t)
		why := []string{
			"FILE:6:1: vniss: is not a known key; did you mean vnis?",
			"running on the config of generation 1, which was verified last",
		}
		r.drop(firstVNI + "vniss: {}\n")
		r.is(status.Invalid, why...)
		r.kernel.Remove("vxlan100")
		r.hint()
		r.is(status.Invalid, why...)
		r.same(facts)
		r.halt()
		r.kernel.Remove("vxlan100")
		r.start()
		r.is(status.Invalid, why...)
		r.same(facts)
		r.kept(1)
		if s, _ := r.board.Get(); len(s.VNIs) != 1 || s.Generation != 3 {
			t.Errorf("generation %d, %v", s.Generation, s.VNIs)
		}
		// What is in the way of that config is said too.
		r.kernel.Remove("eth1")
		r.hint()
		r.is(status.Invalid, append(slices.Clone(why), "FILE:4:38: endpoints.vtep0.ipvlan.parent: no link eth1 in the router's namespace; links there: eth2")...)
		looks := r.kernel.Counts().Dumps
		r.after(10 * time.Minute)
		if n := r.kernel.Counts().Dumps - looks; n < 30 || n > 50 {
			t.Errorf("looked %d times within 10m", n)
		}
		r.kernel.Add(r.foes[0])
		r.hint()
		r.is(status.Invalid, why...)
		r.same(facts)
		if err := os.Remove(r.file); err != nil {
			t.Fatal(err)
		}
		r.hint()
		r.is(status.Invalid, "stat FILE: no such file or directory", why[1])
		r.same(facts)
		r.drop(firstVNI)
		r.is(status.Idle)
	})
}

// TestDrift: what somebody else changed of vtepd's is put back at once, without a word from anybody.
func TestDrift(t *testing.T) {
	change := func(name string, f func(*dataplane.Link)) func(*running) {
		return func(r *running) {
			l, ok := dataplane.Find(r.kernel.Links(), name)
			if !ok {
				r.t.Fatalf("no link %s", name)
			}
			f(&l)
			r.kernel.Add(l)
		}
	}
	endpoint := func(r *running) string {
		for _, l := range r.kernel.Links() {
			if l.Owner == "endpoint/vtep0" {
				return l.Name
			}
		}
		r.t.Fatal("no endpoint")
		return ""
	}
	for name, c := range map[string]struct {
		do   func(*running)
		what string // "NAME" for the endpoint's
	}{
		"VXLAN gone":    {func(r *running) { r.kernel.Remove("vxlan100") }, "link vxlan100 (vxlan of vni/100) is missing"},
		"bridge gone":   {func(r *running) { r.kernel.Remove("br100") }, "link br100 (bridge of bridge/br100) is missing\nlink vxlan100 (vxlan of vni/100): master none, wanted br100, neighbour suppression false, wanted true"},
		"endpoint gone": {func(r *running) { r.kernel.Remove(endpoint(r)) }, "link NAME (ipvlan of endpoint/vtep0) is missing"},
		"VXLAN down":    {change("vxlan100", func(l *dataplane.Link) { l.Up = false }), "link vxlan100 (vxlan of vni/100): up false, wanted true"},
		"local":         {change("vxlan100", func(l *dataplane.Link) { l.Local = remoteVTEP }), "link vxlan100 (vxlan of vni/100): local 10.255.9.9, wanted 10.255.0.1"},
		"address taken": {func(r *running) { change(endpoint(r), func(l *dataplane.Link) { l.Addrs = nil })(r) }, "link NAME (ipvlan of endpoint/vtep0): addresses none, wanted 10.255.0.1/32"},
		"network line":  {func(r *running) { r.frr.SetNetworks(frr.Network{Prefix: operatorsPrefix}) }, "host route 10.255.0.1/32 is missing"},
		"route map":     {func(r *running) { r.frr.SetRouteMap(frr.RouteMap{}) }, "host route 10.255.0.1/32 is missing"},
		"all lines, reloaded": {func(r *running) {
			r.frr.SetNetworks(frr.Network{Prefix: operatorsPrefix})
			r.frr.SetRouteMap(frr.RouteMap{})
		}, "host route 10.255.0.1/32 is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *running) {
				r.write(firstVNI + "transaction: {confirm: 60s}\n")
				r.start()
				if err := r.d.Confirm(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.after(time.Minute)
				r.is(status.Idle)
				facts := r.facts(t)
				r.log.took()
				what := strings.ReplaceAll(c.what, "NAME", endpoint(r))
				for n := 1; n <= freeRepairs; n++ {
					c.do(r)
					if r.facts(t) == facts {
						t.Fatalf("%d: nothing was changed: %v", n, r.kernel.Links())
					}
					r.hint()
					r.is(status.Idle)
					r.same(facts)
					lines := r.log.took()
					if len(lines) != 4 || lines[0] != "WARN repairing: "+what || lines[3] != "INFO idle: " {
						t.Errorf("logged: %q, want %q", lines, what)
					}
					if s, _ := r.board.Get(); s.Repairs.Count != uint64(n) || strings.Join(s.Repairs.What, "\n") != what {
						t.Errorf("repairs: %+v, want %d: %s", s.Repairs, n, what)
					}
				}
				r.kept(1)
				r.hint()
				if lines := r.log.took(); len(lines) > 0 {
					t.Errorf("logged: %q", lines)
				}
			})
		})
	}
}

var operatorsPrefix = netip.MustParsePrefix("192.0.2.0/24")

// TestAudit: what gave no hint is found all the same.
func TestAudit(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.kernel.Remove("vxlan100")
		r.after(auditEvery)
		r.same(facts)
	})
}

// TestFight: a writer that never gives in is answered less and less often, and named as far as that goes.
func TestFight(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		l, _ := dataplane.Find(r.kernel.Links(), "vxlan100")
		foe := l
		foe.Local = remoteVTEP
		var repairs atomic.Int32
		r.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
			if when == fake.After && op.Verb == dataplane.Set && op.Link.Name == "vxlan100" {
				repairs.Add(1)
			}
		})
		// The other writer undoes each repair within 50 ms.
		count := func(d time.Duration) int32 {
			before := repairs.Load()
			for end := time.Now().Add(d); time.Now().Before(end); {
				if got, _ := dataplane.Find(r.kernel.Links(), "vxlan100"); got.Local != remoteVTEP {
					r.kernel.Add(foe)
					r.hint()
				}
				r.after(50 * time.Millisecond)
			}
			return repairs.Load() - before
		}
		if n := count(10 * time.Second); n < freeRepairs || n > freeRepairs+4 {
			t.Errorf("%d repairs within 10s", n)
		}
		s, _ := r.board.Get()
		if s.Condition != status.Degraded || len(s.Messages) != 2 ||
			!strings.HasPrefix(s.Messages[0], fmt.Sprintf("somebody else keeps changing what is vtepd's: repaired %d times, next at ", repairs.Load())) ||
			s.Messages[1] != "link vxlan100 (vxlan of vni/100): local 10.255.9.9, wanted 10.255.0.1" {
			t.Errorf("%s: %q", s.Condition, s.Messages)
		}
		count(5 * time.Minute)
		if n := count(30 * time.Minute); n < 29 || n > 31 {
			t.Errorf("%d repairs within 30m", n)
		}
		r.after(2 * time.Minute) // the other gives in
		r.is(status.Idle)
		r.same(facts)
		r.after(2 * peaceAfter)
		r.kernel.OnOp(nil)
		r.kernel.Add(foe)
		r.hint()
		r.is(status.Idle)
		r.same(facts)
	})
}

func TestDamper(t *testing.T) {
	now := time.Unix(1000, 0)
	var d damper
	var at []time.Duration
	one, other := []string{"link one"}, []string{"link other"}
	for end := now.Add(4 * time.Minute); now.Before(end); {
		wait, _ := d.wait(now, one)
		if d.tired != (wait > 0) {
			t.Fatalf("tired: %t with a wait of %s", d.tired, wait)
		}
		if wait == 0 {
			at = append(at, now.Sub(time.Unix(1000, 0)))
			wait = time.Millisecond // changed again
		}
		if wait > repairMost {
			t.Fatalf("wait of %s", wait)
		}
		now = now.Add(wait)
	}
	var gaps []time.Duration
	for i, a := range at[1:] {
		gaps = append(gaps, (a - at[i]).Round(time.Second))
	}
	if want := []time.Duration{0, 0, 1e9, 2e9, 4e9, 8e9, 16e9, 32e9, 60e9, 60e9}; !slices.Equal(gaps[:10], want) {
		t.Errorf("%v, want %v", gaps, want)
	}
	// Nobody else is kept waiting for it.
	if wait, _ := d.wait(now, other); wait > 0 {
		t.Errorf("another object waits %s", wait)
	}
	if wait, times := d.wait(d.objects[one[0]].last.Add(1), slices.Concat(one, other)); wait == 0 || times < 10 {
		t.Errorf("both waits %s, repaired %d times", wait, times)
	}
	count := func() int { return d.objects[one[0]].count }
	last := d.objects[one[0]].last
	if wait, _ := d.wait(last.Add(peaceAfter), one); wait > 0 || count() < 10 {
		t.Errorf("within the time of peace it is the same fight: %+v", d)
	}
	last = d.objects[one[0]].last
	if wait, _ := d.wait(last.Add(peaceAfter+1), one); wait > 0 || count() != 1 || len(d.objects) != 2 {
		t.Errorf("after it, another: %+v", d)
	}
	// Whoever takes another object each time is slowed down too.
	now = now.Add(time.Hour)
	made := 0
	for i := range 2 * freeAll {
		if wait, _ := d.wait(now, []string{fmt.Sprint("link ", i)}); wait == 0 {
			made++
		}
	}
	if made != freeAll {
		t.Errorf("%d repairs of as many objects at once", made)
	}
}

// TestParentDown: what isn't vtepd's is never set up, only waited for, by its name.
func TestParentDown(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.log.took()
		down := r.foes[0]
		down.Up = false
		r.kernel.Add(down)
		before := r.writes()
		const why = "FILE:4:38: endpoints.vtep0.ipvlan.parent: eth1 is down, and the endpoint with it; set it up"
		for range 3 {
			r.hint()
			r.is(status.Waiting, why)
			r.after(time.Minute)
		}
		if lines := r.log.took(); len(lines) != 1 {
			t.Errorf("logged: %q", lines)
		}
		if r.writes() != before {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
		// It is watched over meanwhile.
		r.kernel.Remove("vxlan100")
		r.after(time.Minute)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		r.kernel.Add(r.foes[0])
		r.hint()
		r.is(status.Idle)
		r.same(facts)
	})
}

// TestParentGone: the endpoint comes back with it, whether there is a hint or not.
func TestParentGone(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.log.took()
		r.kernel.Remove("eth1")
		r.hint()
		const why = "FILE:4:38: endpoints.vtep0.ipvlan.parent: no link eth1 in the router's namespace; links there: eth2"
		r.is(status.Waiting, why)
		r.after(10 * time.Minute)
		r.is(status.Waiting, why)
		if lines := r.log.took(); len(lines) != 1 {
			t.Errorf("logged: %q", lines)
		}
		r.kernel.Add(r.foes[0])
		r.after(lookMost)
		r.is(status.Idle)
		r.same(facts)
		// The next time it is looked for as soon as the first time.
		r.kernel.Remove("eth1")
		r.hint()
		r.is(status.Waiting, why)
		r.kernel.Add(r.foes[0])
		r.after(lookFirst)
		r.is(status.Idle)
		r.same(facts)
	})
}

// TestHistoryUnreadable: nothing is carried out on a guess.
func TestHistoryUnreadable(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		path := filepath.Join(r.state, "history", "00000000000000000001.json")
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		facts := r.facts(t)
		r.drop(moved)
		r.is(status.Refused, "history: "+path+" is not what vtepd writes (unexpected end of JSON input); move it away")
		r.same(facts)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		r.after(lookMost)
		r.after(2 * time.Second)
		r.is(status.Idle)
	})
}
