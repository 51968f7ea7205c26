package txn_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
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
		{"no", func(d chan bool, _ context.CancelFunc) { d <- false }, 0, "confirm: step 8: told to go back; everything is as it was", txn.ErrRejected},
		{"silence", func(chan bool, context.CancelFunc) {}, 40 * time.Second, "confirm: step 8: not confirmed before the deadline; everything is as it was", txn.ErrUnconfirmed},
		{"stop", func(_ chan bool, stop context.CancelFunc) { stop() }, 0, "confirm: step 8: stopped before it was confirmed: context canceled; everything is as it was", context.Canceled},
	} {
		for _, later := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, decide := asking()
					run := func(ctx context.Context) error { return r.Run(ctx, r.p) }
					deadline := time.Now().Add(time.Minute)
					if later {
						stopFirst, ended := waiting(t, run)
						rec := *r.journal.rec
						rec.Marks = append([]journal.Mark{}, rec.Marks...)
						if got := rec.Unconfirmed(); !got.Equal(deadline) || rec.Rejected() {
							t.Errorf("waits until %s, want %s", got, deadline)
						}
						at := r.kernel.Links()
						stopFirst()
						_ = ended() // what it undid on its way out is put back: it was killed
						r.kernel.Restart()
						r.kernel.Add(at...)
						r.ledger.held = append(r.ledger.held, r.p.New.Claims...)
						r.frr.SetNetworks(networks(host(oldVTEP), host(newVTEP))...)
						r.journal.rec = &rec
						r.events = nil
						run = func(ctx context.Context) error { return r.Recover(ctx, rec) }
					}
					time.Sleep(20 * time.Second)
					began := time.Now()
					stop, ended := waiting(t, run)
					defer stop()
					if !later {
						time.Sleep(20 * time.Second)
						began = time.Now()
					}
					last := r.events[len(r.events)-1]
					if later && !last.Deadline.Equal(deadline) || last.Phase != plan.Confirm || last.Done {
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
					if took := time.Since(began); took != c.took {
						t.Errorf("after %s, want %s", took, c.took)
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
