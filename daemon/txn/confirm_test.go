package txn_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/txn"
)

// asking is a router whose change waits a minute to be confirmed.
func asking() (r *router, decide chan bool) {
	r = newRouter()
	k := r.step(plan.Drain, func(plan.Action) bool { return true })
	ask := plan.Step{Phase: plan.Confirm, Do: plan.Action{Confirm: &plan.Confirmation{Wait: time.Minute}}}
	r.p.Steps = append(append(append([]plan.Step{}, r.p.Steps[:k]...), ask), r.p.Steps[k:]...)
	decide = make(chan bool)
	r.Decide = decide
	return r, decide
}

// dies carries out the plan until it is killed as a step of the phase begins.
func (r *router) dies(t *testing.T, at plan.Phase) {
	t.Helper()
	report := r.Report
	r.Report = func(e txn.Event) {
		if e.Phase == at {
			panic(at)
		}
	}
	func() {
		defer func() {
			if v := recover(); v != at {
				t.Fatalf("recovered %v", v)
			}
		}()
		t.Errorf("it wasn't killed: %v", r.Run(t.Context(), r.p))
	}()
	r.Report = report
	r.kernel.Restart()
}

// waiting starts run and waits until it does.
func waiting(t *testing.T, run func(context.Context) error) (stop context.CancelFunc, end func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("it didn't wait: %v", err)
	default:
	}
	return stop, func() error { return <-done }
}

// TestConfirm: what ends the wait, in the first daemon and in one that takes it up, and with which words.
func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(decide chan bool, stop context.CancelFunc)
		took time.Duration
		want string // "": confirmed
		is   error
	}{
		{"yes", func(d chan bool, _ context.CancelFunc) { d <- true }, 0, "", nil},
		{"no", func(d chan bool, _ context.CancelFunc) { d <- false }, 0, "confirm: step 9: told to go back; everything is as it was", txn.ErrRejected},
		{"silence", func(chan bool, context.CancelFunc) {}, 40 * time.Second, "confirm: step 9: not confirmed before the deadline; everything is as it was", txn.ErrUnconfirmed},
		{"stop", func(_ chan bool, stop context.CancelFunc) { stop() }, 0, "confirm: step 9: stopped before it was confirmed: context canceled; everything is as it was", context.Canceled},
	} {
		for _, later := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, decide := asking()
					deadline := time.Now().Add(time.Minute)
					run := func(ctx context.Context) error { return r.Run(ctx, r.p) }
					if later {
						r.dies(t, plan.Confirm)
						rec := *r.journal.rec
						if got := rec.Unconfirmed(); !got.Equal(deadline) || rec.Rejected() {
							t.Errorf("waits until %s, want %s", got, deadline)
						}
						run = func(ctx context.Context) error { return r.Recover(ctx, rec) }
						<-time.After(10 * time.Second)
					}
					stop, ended := waiting(t, run)
					defer stop()
					<-time.After(time.Until(deadline) - 40*time.Second)
					began := time.Now()
					r.mu.Lock()
					last := r.events[len(r.events)-1]
					r.mu.Unlock()
					if !last.Deadline.Equal(deadline) || last.Phase != plan.Confirm || last.Done {
						t.Errorf("%+v", last)
					}
					c.do(decide, stop)
					err := ended()
					if c.want == "" {
						if err != nil {
							t.Fatal(err)
						}
						r.is(t, r.p.New)
						if len(r.journal.committed) != 1 {
							t.Errorf("committed: %v", r.journal.committed)
						}
						return
					}
					var failed *txn.Error
					if !errors.As(err, &failed) || err.Error() != c.want || !errors.Is(err, c.is) || failed.Degraded != nil {
						t.Errorf("got\n%v\nwant\n%s", err, c.want)
					}
					quiet := time.Second // of the new endpoint, before it goes
					if took := time.Since(began); took != c.took+quiet {
						t.Errorf("after %s, want %s", took, c.took+quiet)
					}
					r.is(t, r.from)
					if r.journal.rec != nil || len(r.journal.committed) > 0 {
						t.Errorf("%+v, committed %v", r.journal.rec, r.journal.committed)
					}
				})
			})
		}
	}
}

// TestReject: that a change was refused is written down before the journal forgets it, and what can't be written is one of the way
// back's errors, in the first daemon and in one that takes it up.
func TestReject(t *testing.T) {
	for _, later := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, decide := asking()
			full := errors.New("no space left on device")
			var told []error
			r.Reject = func(why error) error {
				if r.journal.rec == nil {
					t.Error("the journal has forgotten it")
				}
				told = append(told, why)
				return full
			}
			_, ended := waiting(t, func(ctx context.Context) error { return r.Run(ctx, r.p) })
			decide <- false
			var failed *txn.Error
			if err := ended(); !errors.As(err, &failed) || !errors.Is(failed.Degraded, full) || r.journal.rec == nil || len(told) != 1 || !errors.Is(told[0], txn.ErrRejected) {
				t.Fatalf("%v, told %v", err, told)
			}
			full = nil
			if later {
				r.Runner = &txn.Runner{Kernel: r.Kernel, CNI: r.CNI, FRR: r.FRR, Ledger: r.Ledger, Journal: r.Journal, Reject: r.Reject}
			}
			if err := r.Recover(t.Context(), *r.journal.rec); err != nil || r.journal.rec != nil || len(told) != 2 {
				t.Errorf("%v, told %v", err, told)
			}
			r.is(t, r.from)
		})
	}
}

// TestLost: in another namespace than the record speaks of, the kernel's part of the way back is there already; FRR's and the
// ledger's is done.
func TestLost(t *testing.T) {
	for _, at := range []plan.Phase{plan.Claim, plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Confirm} {
		t.Run(string(at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := asking()
				r.dies(t, at)
				for _, l := range r.kernel.Links() {
					if l.Ours() {
						r.kernel.Remove(l.Name)
					}
				}
				r.Lost = true
				began, ops := time.Now(), r.kernel.Ops()
				err := r.Recover(t.Context(), *r.journal.rec)
				if at != plan.Confirm && err != nil || at == plan.Confirm && !errors.Is(err, txn.ErrUnconfirmed) {
					t.Error(err)
				}
				if at == plan.Confirm && err.Error() != "confirm: step 9: not confirmed before the deadline: the network namespace was replaced before; everything is as it was" {
					t.Error(err)
				}
				if time.Since(began) > 0 || r.kernel.Ops() != ops {
					t.Errorf("after %s and %d ops", time.Since(began), r.kernel.Ops()-ops)
				}
				r.is(t, state.State{Claims: r.from.Claims, Routes: r.from.Routes})
				if r.journal.rec != nil {
					t.Error("the journal is still there")
				}
			})
		})
	}
}

// TestLostForward: past the point of no return it is finished, in an empty namespace too.
func TestLostForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRouter()
		r.dies(t, plan.Drain)
		for _, l := range r.kernel.Links() {
			if l.Ours() {
				r.kernel.Remove(l.Name)
			}
		}
		r.Lost = true
		if err := r.Recover(t.Context(), *r.journal.rec); err != nil {
			t.Fatal(err)
		}
		r.is(t, state.State{Claims: r.p.New.Claims, Routes: r.p.New.Routes})
		if r.journal.rec != nil || len(r.journal.committed) != 2 {
			t.Errorf("%v, committed %v", r.journal.rec, r.journal.committed)
		}
	})
}
