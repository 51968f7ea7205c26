package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
)

const (
	// most is the number of bytes that one write carries: far below the send buffer, beyond which the kernel refuses it.
	most = buffer / 4
	// answers is how long the kernel may take to answer what it has already done: it does a batch inside the write.
	answers = 30 * time.Second
)

// message is one message of a batch and the op that it belongs to.
type message struct {
	mdl.Message
	op     dataplane.Op
	gone   bool // it undoes: that what it is about isn't there is success
	number int  // of the op
}

// send writes messages in one batch, more only where one would be too big, and waits for the verdict. An error is an
// *OpError of the first op that failed; the kernel has gone on with those behind it.
func (k *Kernel) send(ctx context.Context, v *view, batch []message) error {
	for len(batch) > 0 {
		n := cut(batch, most)
		if err := k.write(ctx, v, batch[:n]); err != nil {
			return err
		}
		batch = batch[n:]
	}
	return nil
}

// cut returns how many messages fit into size bytes, never a part of an op's, and at least one op's.
func cut(batch []message, size int) int {
	total, whole := 0, 0
	for i, m := range batch {
		if i > 0 && m.number != batch[i-1].number {
			whole = i
		}
		total += unix.NLMSG_HDRLEN + len(m.Data)
		if total > size && whole > 0 {
			return whole
		}
	}
	return len(batch)
}

func (k *Kernel) write(ctx context.Context, v *view, batch []message) error {
	if err := ctx.Err(); err != nil {
		return &dataplane.OpError{Op: batch[0].op, Err: err}
	}
	msgs := make([]mdl.Message, len(batch))
	for i, m := range batch {
		msgs[i] = m.Message
	}
	// Only the last one is acknowledged; errors are always reported, and in order.
	last := len(msgs) - 1
	msgs[last].Header.Flags |= mdl.Acknowledge
	k.counts.Batches++
	k.counts.Messages += uint64(len(msgs))
	if err := v.c.SetReadDeadline(time.Now().Add(answers)); err != nil {
		return &dataplane.OpError{Op: batch[0].op, Err: err}
	}
	defer v.c.SetReadDeadline(time.Time{}) // what is read later has a time of its own
	msgs, err := v.c.SendMessages(msgs)
	if err != nil {
		return &dataplane.OpError{Op: batch[0].op, Err: err}
	}
	numbers := make(map[uint32]int, len(msgs))
	for i, m := range msgs {
		numbers[m.Header.Sequence] = i
	}
	var first error
	for {
		replies, err := v.c.Receive()
		var refusal *mdl.OpError
		switch {
		case errors.As(err, &refusal) && refusal.Sequence != 0:
			i, mine := numbers[refusal.Sequence]
			if !mine {
				continue
			}
			if first == nil && !(batch[i].gone && isGone(refusal.Err)) {
				first = &dataplane.OpError{Op: batch[i].op, Err: words(refusal)}
			}
			if i == last {
				return first
			}
		case err != nil:
			return errors.Join(first, &dataplane.OpError{Op: batch[last].op, Err: fmt.Errorf("no verdict from the kernel: %w", err)})
		}
		if slices.ContainsFunc(replies, func(m mdl.Message) bool {
			return m.Header.Type == mdl.Error && m.Header.Sequence == msgs[last].Header.Sequence
		}) {
			return first
		}
	}
}

func isGone(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENODEV)
}

// words is a refusal in the kernel's words: the errno and, where there is one, the extended ack.
func words(e *mdl.OpError) error {
	if e.Message == "" {
		return e.Err
	}
	return fmt.Errorf("%w (%s)", e.Err, e.Message)
}
