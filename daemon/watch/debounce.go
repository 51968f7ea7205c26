package watch

import "time"

// debouncer says when a series of touches is over: quiet after the last one,
// or longest after the first one, whichever comes first. It belongs to one
// goroutine.
type debouncer struct {
	quiet, longest time.Duration
	timer          *time.Timer
	first          time.Time // of the touches that fire hasn't answered; zero if there are none
}

func newDebouncer(quiet, longest time.Duration) *debouncer {
	t := time.NewTimer(0)
	t.Stop()
	return &debouncer{quiet: quiet, longest: longest, timer: t}
}

// touch takes note of a change.
func (d *debouncer) touch() {
	now := time.Now()
	if d.first.IsZero() {
		d.first = now
	}
	d.timer.Reset(min(d.quiet, d.first.Add(d.longest).Sub(now)))
}

// fire delivers when a series is over; fired must follow.
func (d *debouncer) fire() <-chan time.Time { return d.timer.C }

// fired begins a new series.
func (d *debouncer) fired() { d.first = time.Time{} }

func (d *debouncer) stop() { d.timer.Stop() }
