package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"vtepd/daemon/config"
	"vtepd/daemon/history"
	"vtepd/daemon/status"
)

// wanted is the config that is to be carried out, and why it isn't the dropped one where it isn't.
type wanted struct {
	cfg     *config.Config // nil: nothing is to be done
	sources []config.Source
	files   string // what a glance compares: of the files as they were read
	dropped string // fingerprint of the dropped files, "" when they can't be read
	// verdict is on what was asked for, where this is what was verified last and stands in for it; "" where it doesn't.
	verdict status.Condition
	failure *status.Failure // the same, of a transaction that was rolled back
	repair  bool            // it is what was verified last: nobody asked for a change
	why     []string        // for people
	confirm time.Duration
}

// condition is c, or the verdict on what w stands in for.
func (w wanted) condition(c status.Condition) status.Condition { return cmp.Or(w.verdict, c) }

// final reports whether only other files can bring something else than w: it is what was asked for, or that has problems.
func (w wanted) final() bool { return w.verdict == "" || w.verdict == status.Invalid }

// wanted reads what was dropped. Where a pin stands in for it, that is wanted; where it has problems, the config that was
// verified last. An error is one of the history's.
func (d *Daemon) wanted() (wanted, error) {
	srcs, readErr := config.Read(d.Config)
	w := wanted{sources: srcs, files: filesSeen(srcs, readErr)}
	if readErr == nil {
		w.dropped = history.Fingerprint(srcs)
	}
	pin, err := d.History.Pinned()
	if err != nil {
		return w, err
	}
	// Files that are away for a moment, as while somebody replaces them, are not others.
	if pin != nil && pin.Over != w.dropped && readErr == nil {
		if err := d.History.SetPin(nil); err != nil {
			return w, err
		}
		pin = nil
	}
	if pin != nil {
		w.sources, w.confirm, w.why = pin.Sources, pin.Confirm, []string{pin.Why}
		if len(pin.Sources) == 0 {
			return w, nil
		}
		w.cfg, err = config.ParseAll(pin.Sources)
		if err == nil && pin.AllowDisruptive {
			w.cfg.Transaction.AllowDisruptive = true
		}
		return w, err
	}
	if readErr == nil {
		w.cfg, readErr = config.ParseAll(srcs)
	}
	if readErr == nil {
		w.confirm = w.cfg.Transaction.Confirm
		return w, nil
	}
	w.verdict, w.why = status.Invalid, lines(readErr)
	good, err := d.History.Newest()
	if errors.Is(err, history.ErrNone) {
		return w, nil
	}
	if err != nil {
		return w, err
	}
	w.why = append(w.why, fmt.Sprintf("running on the config of generation %d, which was verified last", good.Generation))
	w.sources = good.Sources
	w.cfg, err = config.ParseAll(good.Sources)
	return w, err
}

// order is what somebody tells the daemon to carry out in place of what was dropped.
type order struct {
	pin  history.Pin
	back bool    // its config is an earlier one
	to   *uint64 // that of this generation; nil: the one before the live one
	done chan<- error
}

// pin makes o the wanted config.
func (d *Daemon) pin(o order) error {
	w, err := d.wanted()
	if err != nil {
		return err
	}
	p := o.pin
	p.Over = w.dropped
	if o.back {
		e, err := d.earlier(o.to)
		if err != nil {
			return err
		}
		p.Sources, p.Why = e.Sources, fmt.Sprintf("rolled back to the config of generation %d; drop a file to go on", e.Generation)
	}
	return d.History.SetPin(&p)
}

// earlier is the config of a generation, or for nil the one before the live one.
func (d *Daemon) earlier(to *uint64) (history.Entry, error) {
	if to != nil {
		return d.History.Get(*to)
	}
	all, err := d.History.Generations()
	if err != nil {
		return history.Entry{}, err
	}
	if len(all) < 2 {
		return history.Entry{}, fmt.Errorf("nothing to go back to: %w", history.ErrNone)
	}
	return d.History.Get(all[len(all)-2])
}

// reject pins the config that was verified last in place of the dropped one that wasn't confirmed.
func (d *Daemon) reject(dropped string, why error) error {
	p := history.Pin{Over: dropped, Why: fmt.Sprintf("what was dropped last was undone (%v); drop a file to go on", why)}
	good, err := d.History.Newest()
	if err != nil && !errors.Is(err, history.ErrNone) {
		return err
	}
	p.Sources = good.Sources
	return d.History.SetPin(&p)
}
