// Package txn runs a Plan through its phases and, on an error before the point of no return, its undos. One goroutine owns
// a transaction; what it did is in the journal before it is done, so a daemon that dies can be followed by one that undoes
// or finishes. It decides nothing about what the plan should be.
package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vtepd/alloc"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// Ledger holds the claims of this router. Its methods are idempotent.
type Ledger interface {
	// Held lists what the router of that name holds.
	Held(ctx context.Context, router string) ([]state.Claim, error)
	// Acquire takes exactly the value that was proposed; an error when somebody else has it by now.
	Acquire(ctx context.Context, p alloc.Proposal) error
	// Unacquire makes the ledger what it was before Acquire, whether that was done or not.
	Unacquire(ctx context.Context, p alloc.Proposal) error
	// Release gives a value back as its pool reclaims; what this router doesn't hold is success.
	Release(ctx context.Context, c state.Claim) error
}

// Journal is what outlives the process: journal.Journal, or a fake of it that fails.
type Journal interface {
	Begin(p plan.Plan) error
	Mark(m journal.Mark) error
	Commit(c journal.Committed) error
	End() error
}

// Event is a step that begins, or how it ended, for status and log.
type Event struct {
	Phase plan.Phase
	Step  int  // number in the plan, from 0
	Undo  bool // its inverse
	Done  bool // it ended; with Err if it failed
	Err   error
	// Deadline is until when a step that begins waits to be confirmed; zero for any other.
	Deadline time.Time
	Retry    bool   // it failed and will be tried again
	Note     string // what was done beside the plan while the step waits; of an event that is about nothing else
	Looks    uint64 // how often conditions were looked at by now, in this transaction
}

// Runner has the ports of a transaction. Its zero durations mean the defaults.
type Runner struct {
	Kernel  dataplane.Kernel
	CNI     dataplane.CNI // nil: there are no plugins, and nothing is attached
	FRR     frr.Router
	Ledger  Ledger
	Journal Journal
	Netns   []string      // the namespaces of parents, for reading back
	Timeout time.Duration // longest wait for FRR, its peers and the remote VTEPs in one step; default 60s
	Report  func(Event)   // may be nil
	// Beat is called every now and then while something is waited for, as a sign of life; may be nil.
	Beat func()
	// Lost: the namespace that the record of Recover speaks of is gone, with all links in it.
	Lost bool
	// Decide brings the word that a change that waits for it is good (true) or shall be undone (false).
	Decide <-chan bool
	// Reject is told why a change that waited to be confirmed is undone, before the journal forgets it: who takes it up again must not
	// carry it out once more. Its error is one of the way back. May be nil.
	Reject func(why error) error

	router   string
	rejected error     // why the change was undone, if it waited to be confirmed
	tampered bool      // the last look saw links that weren't as they had been made
	unsent   time.Time // since when only scouts are waited for; zero: they aren't
	looks    uint64
	answered map[plan.Move][]remote
}

// UndoTimeout bounds a whole rollback, under a context that cancellation doesn't reach.
const UndoTimeout = 3 * time.Minute

const (
	defaultTimeout = 60 * time.Second
	// tamperedMost is how long links may differ from what was made before the transaction gives up.
	tamperedMost = 2 * time.Second
	// poll is how often a condition is looked at that FRR gives no event for.
	poll = 100 * time.Millisecond
	// nudges is into how many parts a step's timeout is cut by nudges to FRR.
	nudges = 4
	// loaded is how long bgpd's lines don't change any more when it has read its configuration, at least.
	loaded = 2 * time.Second
	// confirmLook is how often FRR's lines are looked at while a change waits to be confirmed: FRR tells nobody when one goes.
	confirmLook = time.Second
	// lastDrain bounds the drain of a daemon that was told to stop.
	lastDrain = 5 * time.Second
	// retryFirst and retryMost bound the backoff of a step past the point of no return.
	retryFirst = 200 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Error is a transaction that failed. The router is in the old state, unless Degraded.
type Error struct {
	Phase  plan.Phase
	Step   int
	Object string // what the step was about, "" when it was about many
	Err    error  // the kernel's or FRR's own words are in it
	// Degraded is why the rollback didn't reach the old state, nil when it did: the journal is still there, and Recover
	// takes it up again.
	Degraded error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: step %d: %v", e.Phase, e.Step+1, e.Err)
	if e.Degraded != nil {
		return s + "; going back failed: " + e.Degraded.Error()
	}
	return s + "; everything is as it was"
}

func (e *Error) Unwrap() []error { return []error{e.Err, e.Degraded} }

// ErrStopped is a transaction past the point of no return that was told to stop before its retirement was done: the new
// state is live, the journal is still there, and the next start finishes.
var ErrStopped = errors.New("stopped before the old objects were retired; the next start finishes")

// Run executes p: afterwards the router is in p.New, and nil is returned; or it is in p.Old, and the error, an *Error,
// says which step failed; or it is between, and the *Error is Degraded. A ctx that ends before the point of no return is
// a failure like any other; after it, what is left is done within bounds.
func (r *Runner) Run(ctx context.Context, p plan.Plan) error {
	if err := r.Journal.Begin(p); err != nil {
		return &Error{Phase: p.Steps[0].Phase, Err: err}
	}
	r.router, r.answered = p.Router, map[plan.Move][]remote{}
	forward := forwardFrom(p)
	for k := range forward {
		m := journal.Mark{Do: &k}
		if c := p.Steps[k].Do.Confirm; c != nil {
			m.Deadline = time.Now().Add(c.Wait)
		}
		err := r.Journal.Mark(m)
		if err == nil {
			err = r.step(ctx, p, k, m.Deadline)
		}
		if err != nil {
			return r.failed(ctx, p, k, err)
		}
	}
	return r.proven(ctx, p, forward)
}

// proven passes the point of no return: the new state is there, and from here there is only forward.
func (r *Runner) proven(ctx context.Context, p plan.Plan, forward int) error {
	if err := r.Journal.Mark(journal.Mark{Forward: true}); err != nil {
		return r.failed(ctx, p, max(forward-1, 0), err)
	}
	if err := r.Kernel.Unstage(); err != nil {
		r.report(Event{Phase: plan.Stage, Done: true, Err: err})
	}
	return r.finish(ctx, p, forward)
}

// forwardFrom is the first step past the point of no return.
func forwardFrom(p plan.Plan) int {
	for k, s := range p.Steps {
		if s.Phase == plan.Drain || s.Phase == plan.Retire {
			return k
		}
	}
	return len(p.Steps)
}

// Recover takes up what a journal of an earlier daemon, or a degraded rollback, left. It returns nil once the router is
// wholly in the old or in the new state and the journal is gone. A change that was waiting to be confirmed goes on waiting,
// until the same deadline; one that isn't confirmed is an *Error, as in Run.
func (r *Runner) Recover(ctx context.Context, rec journal.Record) error {
	r.router, r.answered = rec.Plan.Router, map[plan.Move][]remote{}
	forward := forwardFrom(rec.Plan)
	if rec.Forward() {
		return r.finish(ctx, rec.Plan, max(forward, rec.Begun()-1))
	}
	if deadline := rec.Unconfirmed(); !deadline.IsZero() {
		err := errGone // nothing is there that could be confirmed
		if !r.Lost {
			err = r.step(ctx, rec.Plan, rec.Begun()-1, deadline)
		}
		if err != nil {
			return r.failed(ctx, rec.Plan, rec.Begun()-1, err)
		}
		return r.proven(ctx, rec.Plan, forward)
	}
	if rec.Rejected() {
		r.rejected = ErrUnconfirmed
	}
	return r.undo(ctx, rec.Plan, rec.Begun()-1)
}

func (r *Runner) report(e Event) {
	r.beat()
	if r.Report != nil {
		e.Looks = r.looks
		r.Report(e)
	}
}

// step does step k; deadline is that of its confirmation.
func (r *Runner) step(ctx context.Context, p plan.Plan, k int, deadline time.Time) error {
	s := p.Steps[k]
	r.report(Event{Phase: s.Phase, Step: k, Deadline: deadline})
	var err error
	if deadline.IsZero() {
		err = r.do(ctx, s.Do)
	} else {
		err = r.confirm(ctx, p, deadline)
	}
	r.report(Event{Phase: s.Phase, Step: k, Done: true, Err: err})
	return err
}

// What the error of a change that wasn't confirmed wraps.
var (
	ErrUnconfirmed = errors.New("not confirmed before the deadline")
	ErrRejected    = errors.New("told to go back")

	errGone = fmt.Errorf("%w: the network namespace was replaced before", ErrUnconfirmed)
)

// ErrTampered is what the error of a transaction wraps whose links didn't stay as it had made them.
var ErrTampered = errors.New("somebody else changed it meanwhile")

// confirm waits for a word until the deadline. Meanwhile it puts back FRR's lines that are lost with a bgpd that restarts. A yes
// counts when all that was verified still holds.
func (r *Runner) confirm(ctx context.Context, p plan.Plan, deadline time.Time) error {
	over := time.After(time.Until(deadline))
	look := time.NewTicker(confirmLook)
	defer look.Stop()
	var lines [2]string // fingerprints of FRR's: that which all is there with, and that of the last look
	for {
		select {
		case good := <-r.Decide:
			if !good {
				return ErrRejected
			}
			if err := r.tend(ctx, p); err != nil && !errors.Is(err, frr.ErrUnreachable) {
				return err
			}
			return r.await(ctx, proof(p))
		case <-over:
			return ErrUnconfirmed
		case <-ctx.Done():
			return fmt.Errorf("stopped before it was confirmed: %w", ctx.Err())
		case <-look.C:
		}
		r.beat()
		f, err := r.FRR.Observe(ctx, frr.Query{Lines: true})
		if err != nil { // it is waited for
			lines = [2]string{}
			continue
		}
		// A bgpd that has restarted is empty until it has loaded its configuration, line by line.
		if lines[0] != f.Fingerprint && lines[1] == f.Fingerprint {
			if err := r.tend(ctx, p); err != nil {
				r.report(Event{Phase: plan.Confirm, Note: fmt.Sprintf("FRR's lines: %v", err)})
				continue
			}
			if f, err = r.FRR.Observe(ctx, frr.Query{Lines: true}); err != nil {
				continue
			}
			lines[0] = f.Fingerprint
		}
		lines[1] = f.Fingerprint
	}
}

// proof is what was verified.
func proof(p plan.Plan) plan.Await {
	for _, s := range p.Steps {
		if s.Phase == plan.Verify && s.Do.Await != nil {
			return *s.Do.Await
		}
	}
	return plan.Await{}
}

func (r *Runner) beat() {
	if r.Beat != nil {
		r.Beat()
	}
}

// failed goes back from step k and makes the error of the transaction.
func (r *Runner) failed(ctx context.Context, p plan.Plan, k int, cause error) error {
	e := &Error{Phase: p.Steps[k].Phase, Step: k, Object: object(cause), Err: cause}
	if errors.Is(cause, ErrUnconfirmed) || errors.Is(cause, ErrRejected) {
		r.rejected = e
	}
	e.Degraded = r.undo(context.WithoutCancel(ctx), p, k)
	return e
}

// object is the thing that an error of a port is about.
func object(err error) string {
	if e, ok := errors.AsType[*dataplane.OpError](err); ok {
		return e.Op.Object()
	}
	if e, ok := errors.AsType[*frr.EditError](err); ok {
		return e.Edit.Object()
	}
	if e, ok := errors.AsType[*dataplane.AttachError](err); ok {
		return e.Attachment.Link
	}
	return ""
}

// undo does the inverses of steps k..0 and proves that the old state is back. It stops at the first inverse that fails:
// the ones before it stand on it.
func (r *Runner) undo(ctx context.Context, p plan.Plan, k int) error {
	ctx, cancel := context.WithTimeout(ctx, UndoTimeout)
	defer cancel()
	for ; k >= 0; k-- {
		s := p.Steps[k]
		if s.Undo == nil {
			continue
		}
		// A mark that can't be written doesn't stop the way back: without it, recovery does this inverse once more.
		if err := r.Journal.Mark(journal.Mark{Undo: &k}); err != nil {
			r.report(Event{Phase: s.Phase, Step: k, Undo: true, Done: true, Err: err})
		}
		if r.Lost && len(s.Undo.Kernel)+len(s.Undo.Attach) > 0 {
			continue
		}
		r.report(Event{Phase: s.Phase, Step: k, Undo: true})
		inverse, err := r.possible(ctx, *s.Undo)
		if err == nil {
			err = r.do(ctx, inverse)
		}
		r.report(Event{Phase: s.Phase, Step: k, Undo: true, Done: true, Err: err})
		if err != nil {
			return fmt.Errorf("undo of %s: step %d: %w", s.Phase, k+1, err)
		}
	}
	if err := r.Kernel.Unstage(); err != nil {
		return fmt.Errorf("shadow namespace: %w", err)
	}
	if !r.Lost {
		if err := r.back(ctx, p); err != nil {
			return fmt.Errorf("the old state is not back: %w", err)
		}
	}
	if r.rejected != nil && r.Reject != nil {
		if err := r.Reject(r.rejected); err != nil {
			return fmt.Errorf("what was undone would be carried out again: %w", err)
		}
	}
	return r.Journal.End()
}

// finish commits the new state and does what is past the point of no return, from step k, each step until it succeeds.
func (r *Runner) finish(ctx context.Context, p plan.Plan, k int) error {
	stop := ctx
	ctx = context.WithoutCancel(ctx)
	commit := func() error {
		return r.Journal.Commit(journal.Committed{Generation: p.Generation, State: p.New})
	}
	if err := r.until(stop, Event{Phase: plan.Verify, Step: max(k-1, 0)}, commit); err != nil {
		return err
	}
	for ; k < len(p.Steps); k++ {
		s := p.Steps[k]
		err := r.until(stop, Event{Phase: s.Phase, Step: k}, func() error {
			if err := r.Journal.Mark(journal.Mark{Do: &k}); err != nil {
				return err
			}
			if s.Do.Drain != nil {
				return r.drain(ctx, stop, *s.Do.Drain)
			}
			do, err := r.possible(ctx, s.Do)
			if err != nil {
				return err
			}
			return r.do(ctx, do)
		})
		if err != nil {
			return err
		}
	}
	return r.until(stop, Event{Phase: plan.Retire, Step: k}, r.Journal.End)
}

// until does f until it succeeds, backing off, or until stop ends after a failure.
func (r *Runner) until(stop context.Context, e Event, f func() error) error {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		r.report(e)
		err := f()
		ended := e
		ended.Done, ended.Err, ended.Retry = true, err, err != nil
		r.report(ended)
		if err == nil {
			return nil
		}
		select {
		case <-stop.Done():
			return fmt.Errorf("%w: %w", ErrStopped, err)
		case <-time.After(wait):
		}
	}
}

// do executes one action.
func (r *Runner) do(ctx context.Context, a plan.Action) error {
	for _, p := range a.Acquire {
		if err := r.Ledger.Acquire(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range a.Unacquire {
		if err := r.Ledger.Unacquire(ctx, p); err != nil {
			return err
		}
	}
	for _, c := range a.Release {
		if err := r.Ledger.Release(ctx, c); err != nil {
			return err
		}
	}
	if err := r.plug(ctx, a); err != nil {
		return err
	}
	switch {
	case a.Stage != nil:
		return r.Kernel.Stage(ctx, a.Stage.Links, a.Stage.Proofs)
	case len(a.Kernel) > 0:
		if err := r.deletable(ctx, a.Kernel); err != nil {
			return err
		}
		if err := r.Kernel.Apply(ctx, a.Kernel); err != nil {
			return err
		}
	case len(a.FRR) > 0:
		return r.FRR.Apply(ctx, a.FRR)
	}
	for _, x := range a.Check {
		if err := r.bounded(ctx, func(ctx context.Context) error { return r.CNI.Check(ctx, x) }); err != nil {
			return err
		}
	}
	if a.Await != nil {
		if err := r.await(ctx, *a.Await); err != nil {
			return err
		}
	}
	if a.Drain != nil {
		return r.drain(ctx, ctx, *a.Drain)
	}
	return nil
}

// plug has plugins take links away, or make them.
func (r *Runner) plug(ctx context.Context, a plan.Action) error {
	if len(a.Attach)+len(a.Detach)+len(a.Check) > 0 && r.CNI == nil {
		return errors.New("there is nothing here that runs CNI plugins")
	}
	for _, x := range a.Detach {
		if err := r.bounded(ctx, func(ctx context.Context) error { return r.CNI.Detach(ctx, x) }); err != nil {
			return err
		}
	}
	for _, x := range a.Attach {
		if err := r.bounded(ctx, func(ctx context.Context) error { return r.CNI.Attach(ctx, x) }); err != nil {
			return err
		}
	}
	return nil
}

// bounded gives plugins no longer than a step has for any other wait.
func (r *Runner) bounded(ctx context.Context, call func(context.Context) error) error {
	r.beat()
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Timeout, defaultTimeout))
	defer cancel()
	return call(ctx)
}

// await waits until the conditions of w hold.
func (r *Runner) await(ctx context.Context, w plan.Await) error {
	r.unsent = time.Time{}
	return r.wait(ctx, wait{
		look:  func(ctx context.Context) ([]string, error) { return r.look(ctx, w) },
		nudge: func(ctx context.Context) error { return r.nudge(ctx, w) },
	})
}

// wait is something to wait for.
type wait struct {
	look  func(context.Context) ([]string, error) // what doesn't hold
	mend  func(context.Context) error             // done whenever something doesn't hold; what is wrong with it is what didn't hold. May be nil
	nudge func(context.Context) error             // done now and then while something doesn't hold. May be nil
}

// wait looks again and again, the slower the longer a look takes, until nothing is wrong; the error after the timeout says what was.
func (r *Runner) wait(ctx context.Context, w wait) error {
	timeout := cmp.Or(r.Timeout, defaultTimeout)
	limit, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var why error
	var tampered time.Time // since when
	nudge := time.NewTicker(timeout / nudges)
	defer nudge.Stop()
	for {
		began := time.Now()
		r.beat()
		r.looks++
		r.tampered = false
		unmet, err := w.look(limit)
		switch {
		case err == nil && len(unmet) == 0:
			return nil
		case limit.Err() != nil && why != nil: // cut short: what was seen before says more
		case err == nil:
			before := why
			why = unmetError(unmet)
			// The kernel has no delay: what it doesn't show right after it took it was changed by somebody else, and no
			// wait brings it back.
			switch {
			case w.mend != nil:
				if err := w.mend(limit); err != nil && limit.Err() == nil {
					why = err
				} else if err != nil {
					why = cmp.Or(before, why)
				}
			case !r.tampered:
				tampered = time.Time{}
			case tampered.IsZero():
				tampered = began
			case time.Since(tampered) > tamperedMost:
				return fmt.Errorf("%w: %w", ErrTampered, why)
			}
		case limit.Err() == nil && !errors.Is(err, frr.ErrUnreachable):
			return err
		default:
			why = err
		}
		select {
		case <-nudge.C:
			if w.nudge == nil {
				continue
			}
			if err := w.nudge(limit); err != nil && limit.Err() == nil {
				return err
			}
		case <-limit.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted (%w) while waiting: %w", context.Cause(ctx), why)
			}
			return fmt.Errorf("not so after %s: %w", timeout, why)
		case <-time.After(max(poll, 2*time.Since(began))): // FRR has work of its own to do
		}
	}
}

// unmetError lists what doesn't hold, cut to what a person reads.
func unmetError(unmet []string) error {
	const most = 5
	if n := len(unmet); n > most {
		unmet = append(unmet[:most:most], fmt.Sprintf("and %d more", n-most))
	}
	return errors.New(strings.Join(unmet, "; "))
}

// drain waits until the links have received nothing for the quiet time, at most the limit; when stop ends, at most
// lastDrain more.
func (r *Runner) drain(ctx, stop context.Context, d plan.Drained) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	limit := time.NewTimer(d.Limit)
	defer limit.Stop()
	stopped := stop.Done()
	var last []uint64
	since := time.Now()
	for {
		r.beat()
		now, err := r.Kernel.Received(ctx, d.Links)
		if err != nil {
			return err
		}
		if !equal(now, last) {
			last, since = now, time.Now()
		}
		if time.Since(since) >= d.Quiet {
			return nil
		}
		select {
		case <-limit.C:
			return nil
		case <-stopped:
			stopped = nil
			limit.Reset(min(lastDrain, d.Limit))
		case <-tick.C:
		}
	}
}
