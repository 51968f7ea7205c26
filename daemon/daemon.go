// Package daemon is the loop: one goroutine owns the router and turns wake-ups into transactions. What a config means, what
// a plan is and how it is carried out are the business of the packages below it.
package daemon

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/history"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/status"
	"vtepd/daemon/txn"
	"vtepd/frr"
)

// Daemon is the owner of one router. Make it with New, and Run it once.
type Daemon struct {
	Options
	orders     chan order
	decide     chan bool
	generation uint64 // live
	told       string // what was logged last: one line a transition
	backoff    time.Duration
	repairs    damper
	seen       seen      // by the last look
	due        time.Time // until then hints wait
	// What FRR had while all was well, whether it may lack some of it because it went away, and since when it is back then.
	instance  frr.Instance
	peers     []string
	away      bool
	back      time.Time           // zero while it can't be reached
	lastLines string              // fingerprint of FRR's lines while it is coming back
	failed    map[string]obstacle // plans that were rolled back, each until it is tried again
	beat      atomic.Int64        // when the loop gave its last sign of life, in nanoseconds since 1970
}

// Options are what a Daemon is made of.
type Options struct {
	Ports
	Config  string          // the file or directory
	Hints   <-chan struct{} // something may have changed: the file, the kernel, FRR
	Looks   <-chan struct{} // look at everything: the ledger, a daemon of FRR's that came or went; may be nil
	History *history.History
	Board   *status.Board
	Log     *slog.Logger
}

// New returns a Daemon that has done nothing yet.
func New(o Options) *Daemon {
	return &Daemon{Options: o, orders: make(chan order), decide: make(chan bool)}
}

// How long the loop waits before it looks again by itself.
const (
	lookFirst   = 500 * time.Millisecond // for FRR, a pool, a parent; doubling
	lookMost    = 15 * time.Second
	retryFailed = 30 * time.Second // the same plan after a rollback
	auditEvery  = time.Minute      // for what gave no hint
	unseenLook  = 2 * time.Second  // for what FRR is still to make of links that are there
	tiredLook   = time.Second      // between looks while somebody else keeps changing things
	beatEvery   = 10 * time.Second // a sign of life of a loop that waits
)

// LastBeat is when the loop gave its last sign of life: it does so at least every minute, unless it hangs.
func (d *Daemon) LastBeat() time.Time { return time.Unix(0, d.beat.Load()) }

func (d *Daemon) beats() { d.beat.Store(time.Now().UnixNano()) }

// Run works until ctx ends, then finishes or undoes what runs, and leaves the data plane as it is. It returns an error only
// for what no wait mends: a state directory that can't be read or was written by a newer vtepd.
func (d *Daemon) Run(ctx context.Context) error {
	last, err := d.Journal.Committed()
	if err != nil {
		return err
	}
	d.generation = last.Generation
	if last.Generation > 0 {
		d.live(last.State, wanted{})
	}
	if err := d.recover(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	for {
		d.beats()
		wait := d.reconcile(ctx)
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		if !d.sleep(ctx, again) {
			return nil
		}
	}
}

// sleep returns when there is something to look at; false when ctx has ended.
func (d *Daemon) sleep(ctx context.Context, again <-chan time.Time) bool {
	alive := time.NewTicker(beatEvery)
	defer alive.Stop()
	lines := time.After(glanceEvery)
	var due <-chan time.Time // a hint that waits
	for {
		d.beats()
		select {
		case <-ctx.Done():
			return false
		case <-again:
			return true
		case <-d.Looks:
			return true
		case o := <-d.orders:
			o.done <- d.pin(o)
			return true
		case <-alive.C:
			continue
		case <-lines:
			began := time.Now()
			if d.changed(ctx, false) {
				return true
			}
			lines = time.After(max(glanceEvery, linesShare*time.Since(began)))
			continue
		case <-d.Hints:
			if wait := time.Until(d.due); wait > 0 {
				if due == nil {
					due = time.After(wait)
				}
				continue
			}
		case <-due:
			due = nil
		}
		if d.changed(ctx, true) {
			return true
		}
	}
}

// recover undoes or finishes what an earlier daemon, or a rollback that got stuck, left, for as long as that takes.
func (d *Daemon) recover(ctx context.Context) error {
	rec, err := d.Journal.Load()
	if err != nil {
		return err
	}
	if rec == nil {
		return nil
	}
	word := "undoing"
	if rec.Forward() {
		word = "finishing"
	}
	msg := fmt.Sprintf("%s the transaction of generation %d that was left after %d of %d steps",
		word, rec.Plan.Generation, rec.Begun(), len(rec.Plan.Steps))
	d.Log.Info("recovering", "generation", rec.Plan.Generation, "what", msg)
	d.Board.Update(func(s *status.Snapshot) {
		if s.Condition != status.Degraded { // what is in the way says more
			s.Condition, s.Messages = status.Recovering, []string{msg}
		}
	})
	for wait := lookFirst; ; wait = min(2*wait, lookMost) {
		r, done := d.runner(rec.Plan, time.Minute)
		r.Lost = rec.Place != d.Journal.Place
		err := r.Recover(ctx, *rec)
		failed, ok := errors.AsType[*txn.Error](err)
		switch {
		case err == nil:
			done("recovered")
			last, err := d.Journal.Committed() // it may have been confirmed just now
			if err != nil {
				return err
			}
			d.generation = last.Generation
			return nil
		case errors.Is(err, txn.ErrStopped):
			return nil
		case ok && failed.Degraded == nil: // it was still to be confirmed
			done("rolled back")
			return nil
		}
		d.degraded(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		// More marks may be there by now.
		if again, err := d.Journal.Load(); err != nil {
			return err
		} else if again != nil {
			rec = again
		}
	}
}

func (d *Daemon) degraded(err error) {
	d.say(slog.LevelError, "degraded", err.Error())
	d.Board.Update(func(s *status.Snapshot) {
		s.Condition = status.Degraded
		s.Failure = failure(err)
		s.Messages = []string{err.Error()}
	})
}

// obstacle is why a config can't be carried out now.
type obstacle struct {
	condition status.Condition
	msgs      []string
	failure   *status.Failure
	wait      time.Duration // until it is tried again without a hint
	until     time.Time     // the same, of a plan that was rolled back
}

// reconcile looks at everything once and carries out what is to be done. Where what is wanted can't be, what was verified last is
// looked after meanwhile. It returns when to look again without a hint; 0: not at all.
func (d *Daemon) reconcile(ctx context.Context) time.Duration {
	d.seen = seen{blind: true}
	if err := d.History.Accept(d.generation); err != nil { // what is newest there would be taken for what is live
		d.settle(obstacle{condition: status.Degraded, msgs: []string{err.Error()}})
		return d.later()
	}
	w, err := d.wanted()
	if err != nil {
		d.settle(obstacle{condition: status.Refused, msgs: lines(err)})
		return d.later()
	}
	if w.cfg == nil {
		d.settle(obstacle{condition: w.condition(status.Failed), msgs: w.why})
		return 0
	}
	if w.repair, err = d.verified(w); err != nil {
		d.settle(obstacle{condition: status.Refused, msgs: lines(err)})
		return d.later()
	}
	if w.repair {
		w.confirm = 0
	}
	d.Board.Update(func(s *status.Snapshot) { s.Node = w.cfg.Node.Name })
	wait, no := d.attempt(ctx, w, Prepare)
	if no == nil {
		return wait
	}
	if ctx.Err() == nil && !w.repair && d.generation > 0 {
		live := w
		live.repair, live.verdict, live.failure = true, no.condition, no.failure
		live.why = no.msgs
		wait, still := d.attempt(ctx, live, func(ctx context.Context, p Ports, cfg *config.Config, _ time.Duration) (Prepared, error) {
			return PrepareLive(ctx, p, cfg)
		})
		if still == nil {
			return min(cmp.Or(wait, no.wait), no.wait)
		}
		for _, msg := range still.msgs[len(no.msgs):] {
			if !slices.ContainsFunc(no.msgs, func(m string) bool { return strings.Contains(m, msg) }) { // it is in the way of both
				no.msgs = append(no.msgs, msg)
			}
		}
	}
	d.settle(*no)
	return no.wait
}

// attempt looks at everything once, with prepare, and carries out what is to be done on behalf of w. It returns when to look again
// without a hint, 0 for not at all; or what is in the way.
func (d *Daemon) attempt(ctx context.Context, w wanted, prepare func(context.Context, Ports, *config.Config, time.Duration) (Prepared, error)) (time.Duration, *obstacle) {
	began := time.Now()
	prep, err := prepare(ctx, d.Ports, w.cfg, w.confirm)
	d.rested(time.Since(began))
	if prep.FRR.Fingerprint != "" || errors.Is(err, frr.ErrUnreachable) {
		d.saw(prep, w.files)
	}
	if err == nil && len(prep.Waiting) == 0 {
		d.Board.Update(func(s *status.Snapshot) {
			// What a transaction is about to make or take away is told once it is done.
			if prep.Plan.Empty() || len(s.Loopbacks) == 0 {
				s.Loopbacks = prep.Loopbacks
			}
		})
	}
	if errors.Is(err, frr.ErrUnreachable) {
		d.away, d.back = true, time.Time{}
	}
	var lacks []string
	if err == nil && prep.FRR.Fingerprint != "" {
		if lacks = d.ready(prep.FRR); len(lacks) == 0 {
			d.remember(prep.FRR)
		}
	}
	switch {
	case ctx.Err() != nil:
		return 0, nil
	case errors.Is(err, frr.ErrUnreachable): // for what was verified last as well
		d.settle(obstacle{condition: status.Waiting, msgs: append(w.why, err.Error())})
		return d.later(), nil
	case errors.Is(err, alloc.ErrUnavailable):
		return 0, d.blocked(w, status.Waiting, err.Error())
	case err != nil:
		return 0, d.blocked(w, status.Refused, err.Error())
	case len(lacks) > 0:
		d.settle(obstacle{condition: status.Waiting, msgs: append(w.why, "FRR is back, and "+strings.Join(lacks, ", ")+": waiting for its configuration")})
		return lookFirst, nil
	case len(prep.Waiting) > 0:
		return 0, d.blocked(w, status.Waiting, prep.Waiting...)
	case len(prep.Refusals) > 0:
		var msgs []string
		for _, r := range prep.Refusals {
			msgs = append(msgs, r.Error())
		}
		c := status.Refused
		if w.repair { // what ran already can run again once what it stood on is back
			c = status.Waiting
		}
		return 0, d.blocked(w, c, msgs...)
	case !prep.Plan.Empty():
		return d.carryOut(ctx, prep.Plan, prep.Ailing, w)
	}
	d.live(prep.Plan.New, w)
	switch {
	case len(prep.Unseen) > 0:
		d.rest(w, status.Waiting, slices.Concat(prep.Ailing, brief(prep.Unseen))...)
		return unseenLook, nil
	case len(prep.Ailing) > 0:
		d.rest(w, status.Waiting, prep.Ailing...)
		return auditEvery, nil
	}
	// While another config waits for its turn, anything may be what it waits for.
	d.seen.calm, d.repairs.tired = w.final(), false
	if !w.repair { // a config that changes nothing is verified too
		if err := d.History.Add(d.generation, w.sources); err != nil {
			return 0, d.blocked(w, status.Degraded, err.Error())
		}
	}
	d.rest(w, status.Idle, prep.Plan.Notes...)
	return auditEvery, nil
}

// blocked is that w can't be carried out now.
func (d *Daemon) blocked(w wanted, c status.Condition, msgs ...string) *obstacle {
	return &obstacle{condition: w.condition(c), msgs: append(w.why, msgs...), failure: w.failure, wait: d.later()}
}

// rest puts on the board how it stands while w is live.
func (d *Daemon) rest(w wanted, c status.Condition, msgs ...string) {
	d.settle(obstacle{condition: w.condition(c), msgs: append(w.why, msgs...), failure: w.failure})
}

// verified reports whether w is the config that was verified last: what there is to do is a repair then.
func (d *Daemon) verified(w wanted) (bool, error) {
	good, err := d.History.Newest()
	if errors.Is(err, history.ErrNone) {
		return false, nil
	}
	return err == nil && history.Fingerprint(good.Sources) == history.Fingerprint(w.sources), err
}

// carryOut runs p, unless it is one that was rolled back a moment ago. ailing is what p doesn't mend. It returns what attempt does.
func (d *Daemon) carryOut(ctx context.Context, p plan.Plan, ailing []string, w wanted) (time.Duration, *obstacle) {
	now := time.Now()
	maps.DeleteFunc(d.failed, func(_ string, no obstacle) bool { return !now.Before(no.until) })
	hash := w.cfg.Hash()
	key := hex.EncodeToString(hash[:]) + p.Old.Hash() + p.New.Hash()
	if no, ok := d.failed[key]; ok {
		no.wait = time.Until(no.until)
		return 0, &no
	}
	var diff []string
	if w.repair {
		var about []string
		about, diff = objects(p.Old, p.New)
		if wait, times := d.repairs.wait(now, about); wait > 0 {
			d.due = now.Add(tiredLook)
			msg := fmt.Sprintf("somebody else keeps changing what is vtepd's: repaired %d times, next at %s", times, now.Add(wait).Format(time.TimeOnly))
			d.settle(obstacle{condition: status.Degraded, msgs: slices.Concat(w.why, []string{msg}, brief(diff))})
			return wait, nil
		}
		d.say(slog.LevelWarn, "repairing", strings.Join(brief(diff), "\n"))
	}
	d.say(slog.LevelInfo, "transaction", fmt.Sprintf("generation %d, %d steps", p.Generation, len(p.Steps)))
	for _, n := range p.Notes {
		d.Log.Info("note", "generation", p.Generation, "note", n)
	}
	propose := func() error { return d.History.Propose(p.Generation, w.sources) }
	if w.repair { // of what is kept already
		propose = d.History.Withdraw
	}
	if err := propose(); err != nil {
		return 0, d.blocked(w, status.Failed, err.Error())
	}
	p.Dropped = w.dropped
	d.seen = seen{} // whatever comes of it
	r, done := d.runner(p, w.cfg.Transaction.Timeout)
	err := r.Run(ctx, p)
	var failed *txn.Error
	switch {
	case err == nil:
		done("committed")
		d.generation, d.failed = p.Generation, nil
		if err := d.History.Accept(p.Generation); err != nil { // the next look does it, or says what is in the way
			d.Log.Error("the config is not kept", "generation", p.Generation, "err", err)
		}
		if w.repair {
			d.repaired(diff)
		}
		d.live(p.New, w)
		if len(ailing) > 0 {
			d.rest(w, status.Waiting, ailing...)
			return lookFirst, nil
		}
		d.rest(w, status.Idle, p.Notes...)
		if s, _ := d.Board.Get(); len(w.cfg.Loopbacks)+len(s.Loopbacks) > 0 { // each has a condition
			return lookFirst, nil
		}
		return auditEvery, nil
	case errors.Is(err, txn.ErrStopped):
		d.Log.Warn("stopped", "generation", p.Generation, "err", err)
		return 0, nil
	case !errors.As(err, &failed) || failed.Degraded != nil:
		done("degraded")
		d.degraded(err)
		if err := d.recover(ctx); err != nil {
			d.degraded(err)
			return d.later(), nil
		}
		return lookFirst, nil
	}
	done("rolled back")
	switch {
	case errors.Is(err, alloc.ErrConflict): // another router was faster: the next value is there at once
		return 0, d.blocked(w, status.Waiting, err.Error())
	case w.repair && errors.Is(err, txn.ErrTampered): // the damper says when it is tried again
		d.settle(obstacle{condition: status.Degraded, msgs: append(w.why, "a repair doesn't last: "+err.Error())})
		return tiredLook, nil
	}
	no := obstacle{
		condition: w.condition(status.Failed), msgs: append(w.why, err.Error()), failure: cmp.Or(w.failure, failure(err)),
		wait: retryFailed, until: time.Now().Add(retryFailed),
	}
	if d.failed == nil {
		d.failed = map[string]obstacle{}
	}
	d.failed[key] = no
	return 0, &no
}

// runner is a txn.Runner whose events go to the board and the log; done ends the transaction on the board.
func (d *Daemon) runner(p plan.Plan, timeout time.Duration) (r *txn.Runner, done func(result string)) {
	began, trips := time.Now(), d.FRR.RoundTrips()
	d.Board.Update(func(s *status.Snapshot) {
		if s.Condition != status.Recovering && s.Condition != status.Degraded {
			s.Condition, s.Messages, s.Failure = status.Running, nil, nil
		}
		s.Transaction = &status.Transaction{Generation: p.Generation, Began: began, Steps: len(p.Steps)}
	})
	swap := d.Kernel.Counts()
	event := func(e txn.Event) {
		if e.Note != "" {
			d.Log.Warn("step waits", "generation", p.Generation, "phase", e.Phase, "note", e.Note)
			return
		}
		now := d.Kernel.Counts()
		if e.Phase == plan.Swap && !e.Undo && !e.Done {
			swap = now
		}
		d.Board.Update(func(s *status.Snapshot) {
			t := s.Transaction
			t.RoundTrips, t.Looks = d.FRR.RoundTrips()-trips, e.Looks
			if e.Phase == plan.Swap && !e.Undo && e.Done {
				t.SwapBatches, t.SwapMessages = now.Batches-swap.Batches, now.Messages-swap.Messages
			}
			if i := len(t.Phases) - 1; i >= 0 && t.Phases[i].Phase == e.Phase && t.Phases[i].Undo == e.Undo {
				t.Phases[i].Took = time.Since(t.Phases[i].Began)
			} else if !e.Done {
				t.Phases = append(t.Phases, status.Phase{Phase: e.Phase, Undo: e.Undo, Began: time.Now()})
			}
			if e.Phase == plan.Confirm && !e.Undo {
				s.Condition, s.Messages = status.Running, nil
				if !e.Done {
					s.Condition = status.Unconfirmed
					s.Messages = []string{"waiting for `vtepd confirm` until " + e.Deadline.Format(time.DateTime) + "; without it everything goes back"}
				}
			}
			if e.Retry {
				s.Condition, s.Failure = status.Degraded, failure(e.Err)
				s.Failure.Phase, s.Failure.Step = e.Phase, e.Step+1
				s.Messages = []string{fmt.Sprintf("%s: step %d: %v; it is tried again", e.Phase, e.Step+1, e.Err)}
			} else if e.Done && e.Err == nil && s.Condition == status.Degraded && !e.Undo {
				s.Condition, s.Messages, s.Failure = status.Running, nil, nil
			}
		})
		d.logEvent(p.Generation, e)
	}
	done = func(result string) {
		d.Board.Update(func(s *status.Snapshot) {
			t := s.Transaction
			t.Ended, t.Result, t.RoundTrips = time.Now(), result, d.FRR.RoundTrips()-trips
		})
		d.Log.Info("transaction ended", "generation", p.Generation, "result", result, "took", time.Since(began).Round(time.Millisecond))
	}
	return &txn.Runner{
		Kernel: d.Kernel, CNI: d.CNI, FRR: d.FRR, Ledger: d.Ledger, Journal: d.Journal, Netns: namespacesOf(p), Timeout: timeout, Report: event,
		Decide: d.decide, Beat: d.beats, Reject: func(why error) error { return d.reject(p.Dropped, why) },
	}, done
}

// repaired counts a repair on the board.
func (d *Daemon) repaired(what []string) {
	d.Board.Update(func(s *status.Snapshot) {
		s.Repairs.Count++
		s.Repairs.Last, s.Repairs.What = time.Now(), brief(what)
	})
}

// brief is lines cut to what a person reads.
func brief(lines []string) []string {
	const most = 10
	if n := len(lines); n > most {
		return append(lines[:most-1:most-1], fmt.Sprintf("and %d more", n-most+1))
	}
	return lines
}

func (d *Daemon) logEvent(gen uint64, e txn.Event) {
	attrs := []any{"generation", gen, "phase", e.Phase, "step", e.Step + 1}
	if e.Undo {
		attrs = append(attrs, "undo", true)
	}
	switch {
	case e.Err != nil:
		d.Log.Warn("step failed", append(attrs, "err", e.Err)...)
	case e.Done:
		d.Log.Debug("step done", attrs...)
	default:
		d.Log.Info("step", attrs...)
	}
}

// settle puts a condition that isn't a running transaction on the board, and logs it when it is news.
func (d *Daemon) settle(o obstacle) {
	level := slog.LevelWarn
	switch o.condition {
	case status.Idle:
		level = slog.LevelInfo
	case status.Failed:
		level = slog.LevelError
	}
	d.say(level, string(o.condition), strings.Join(o.msgs, "\n"))
	d.Board.Update(func(s *status.Snapshot) { s.Condition, s.Messages, s.Failure = o.condition, o.msgs, o.failure })
}

// later is when to look again, a little later each time.
func (d *Daemon) later() time.Duration {
	d.backoff = min(max(2*d.backoff, lookFirst), lookMost)
	return d.backoff
}

// say logs a transition once.
func (d *Daemon) say(level slog.Level, what, why string) {
	if news := what + "\n" + why; news != d.told {
		d.told = news
		d.Log.Log(context.Background(), level, what, "why", why)
	}
}

// live puts the state that is live on the board. Nothing is waited for then, unless w stands in for something that can't be carried out.
func (d *Daemon) live(s state.State, w wanted) {
	if w.final() {
		d.backoff = 0
	}
	var endpoints []status.Endpoint
	for _, l := range s.Endpoints() {
		if !strings.HasPrefix(l.Owner, state.EndpointOwner) || len(l.Addrs) == 0 {
			continue
		}
		addr := l.Addrs[0]
		endpoints = append(endpoints, status.Endpoint{
			Name: strings.TrimPrefix(l.Owner, "endpoint/"), Link: l.Name, Address: addr.Addr(), Parent: l.Parent,
			Announced: slices.Contains(s.Routes, addr),
		})
	}
	slices.SortFunc(endpoints, func(a, b status.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	var vnis []status.VNI
	for _, l := range s.VXLANs() {
		vnis = append(vnis, status.VNI{VNI: l.VNI, Device: l.Name, VTEP: l.Local, Bridge: l.Master, VLAN: l.VLAN})
	}
	slices.SortFunc(vnis, func(a, b status.VNI) int { return int(a.VNI) - int(b.VNI) })
	d.Board.Update(func(b *status.Snapshot) {
		b.Generation, b.State, b.Endpoints, b.VNIs = d.generation, s.Hash(), endpoints, vnis
	})
}

func failure(err error) *status.Failure {
	f := &status.Failure{Message: err.Error()}
	if e, ok := errors.AsType[*txn.Error](err); ok {
		f.Phase, f.Step, f.Object = e.Phase, e.Step+1, e.Object
		f.Message = e.Err.Error()
		if e.Degraded != nil {
			f.Message += "; going back failed: " + e.Degraded.Error()
		}
	}
	return f
}

// lines are the problems of a config one by one, or the error.
func lines(err error) []string {
	if ps, ok := errors.AsType[config.Problems](err); ok {
		var out []string
		for _, p := range ps {
			out = append(out, p.Error())
		}
		return out
	}
	return []string{err.Error()}
}
