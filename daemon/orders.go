package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vtepd/daemon/config"
	"vtepd/daemon/history"
)

// What Confirm, Rollback and Apply can return, beside the history's errors and problems of a config.
var (
	ErrNothingToConfirm = errors.New("nothing waits to be confirmed")
	ErrBusy             = errors.New("a transaction is running, or a change waits to be confirmed; see `vtepd status`")
)

// orderTimeout is how long somebody who tells the daemon something waits for its loop.
const orderTimeout = 2 * time.Second

// Confirm says that the change that waits for it is good. ErrNothingToConfirm.
func (d *Daemon) Confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	select {
	case d.decide <- true:
		return nil
	case <-ctx.Done():
		return ErrNothingToConfirm
	}
}

// Rollback undoes a change that waits to be confirmed, or goes to the config before the live one; with to, to the config of
// that generation, one of those that are kept: 0 is that of a first file with nothing in it. Both are transactions like any
// other, and status says how they end. With allowDisruptive the config is gone to even where that isn't hitless: it is kept as
// it was dropped, and nobody can write that into it any more.
func (d *Daemon) Rollback(ctx context.Context, to *uint64, allowDisruptive bool) error {
	decide := d.decide
	if to != nil {
		decide = nil
	}
	return d.order(ctx, order{pin: history.Pin{AllowDisruptive: allowDisruptive}, back: true, to: to}, decide)
}

// Apply carries out srcs in place of what was dropped, until something else is dropped; the change waits for confirm to be
// confirmed, or for what srcs say themselves when confirm is 0. With allowDisruptive it is made even where it isn't hitless.
func (d *Daemon) Apply(ctx context.Context, srcs []config.Source, confirm time.Duration, allowDisruptive bool) error {
	cfg, err := config.ParseAll(srcs)
	if err != nil {
		return err
	}
	if confirm == 0 {
		confirm = cfg.Transaction.Confirm
	}
	return d.order(ctx, order{pin: history.Pin{
		Sources: srcs, Confirm: confirm, AllowDisruptive: allowDisruptive, Why: fmt.Sprintf("applied from %s; drop a file to go on", srcs[0].File),
	}}, nil)
}

// order gives o to the loop, or the word to go back to decide.
func (d *Daemon) order(ctx context.Context, o order, decide chan<- bool) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	done := make(chan error, 1)
	o.done = done
	select {
	case decide <- false:
		return nil
	case d.orders <- o:
		return <-done
	case <-ctx.Done():
		return ErrBusy
	}
}
