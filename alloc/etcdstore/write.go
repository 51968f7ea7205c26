package etcdstore

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// writer is a Store's mark in etcd. Every write is a transaction that also replaces the mark, and only if it is still the one that
// this Store left last. So of a write whose answer was lost it can be found out whether it took place, and one that hasn't yet never
// will, once the mark is replaced: neither a create that arrives late nor one that is tried twice can leave a value that nobody
// knows of.
type writer struct {
	key   string
	rev   int64 // the mark's revision; 0: there is none
	lease clientv3.LeaseID
	open  bool // a write went out, and its answer hasn't come
}

// patience is how long one waits before going on who has come late for a value that often in a row: at random, so that of eight who race
// for the next one not all are in vain again.
func patience(late int) time.Duration {
	return time.Duration(rand.Int64N(int64(time.Millisecond) << min(late, 5)))
}

// The mark's values: what the transaction was that left it.
const (
	markWrite = "write"
	markFence = "fence"
)

// markTTL is how long the mark of a Store that was killed stays. The mark of one that lives longer is made anew, and nothing but the
// mark has a lease.
const markTTL = time.Hour

// errUnsure is a write of which it could not be found out whether it took place.
var errUnsure = errors.New("whether it was written isn't known")

// write makes one guarded change. rev is its revision, or 0 when the guard didn't hold; then there is what key has instead, if anything.
func (s *Store) write(ctx context.Context, guard clientv3.Cmp, change clientv3.Op, key string) (rev int64, there *mvccpb.KeyValue, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if err := take(ctx, s.writing); err != nil {
		return 0, nil, s.timedOut(err)
	}
	defer func() { <-s.writing }()
	var last error
	for {
		if err := s.mark(ctx); err != nil {
			return 0, nil, err
		}
		w := &s.writer
		before, text := s.before(), s.head()
		w.open = true
		s.op("send")
		var resp *clientv3.TxnResponse
		err := s.once(ctx, func(ctx context.Context, cli *clientv3.Client) (err error) {
			resp, err = cli.Txn(ctx).
				If(guard, w.is(), clientv3.Compare(clientv3.Value(s.keys.head), "=", text)).
				Then(change, clientv3.OpPut(w.key, markWrite, clientv3.WithIgnoreLease()), clientv3.OpPut(s.keys.head, text)).
				Else(clientv3.OpGet(key), clientv3.OpGet(w.key), clientv3.OpGet(s.keys.head)).Commit()
			return err
		})
		s.op("sent")
		switch {
		case err == nil && resp.Succeeded:
			w.open, w.rev = false, resp.Header.Revision
			return resp.Header.Revision, nil, nil
		case err == nil:
			w.open = false
			if err := s.meet(resp.Header, before, first(resp.Responses[2])); err != nil {
				return 0, nil, err
			}
			if m := first(resp.Responses[1]); m == nil || m.ModRevision != w.rev {
				*w = writer{} // its lease has run out
				continue
			}
			if string(first(resp.Responses[2]).Value) != text {
				continue
			}
			return 0, first(resp.Responses[0]), nil
		case refusal(err):
			w.open = false
			return 0, nil, err
		}
		last = worse(last, err)
		rev, err := s.resolve(ctx)
		if rev != 0 || err != nil {
			if err != nil && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)) {
				err = s.timedOut(last)
			}
			return rev, nil, err
		}
		if !wait(ctx, pause) {
			return 0, nil, s.timedOut(last)
		}
	}
}

func (w *writer) is() clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(w.key), "=", w.rev) }

// resolve finds out whether the write that is open took place, and makes sure that it won't any more if it hasn't: rev is 0 then.
func (s *Store) resolve(ctx context.Context) (rev int64, err error) {
	w := &s.writer
	err = s.read(ctx, func(ctx context.Context, cli *clientv3.Client) error {
		before := s.before()
		resp, err := cli.Txn(ctx).If(w.is()).
			Then(clientv3.OpPut(w.key, markFence, clientv3.WithIgnoreLease()), clientv3.OpGet(s.keys.head)).
			Else(clientv3.OpGet(w.key), clientv3.OpGet(s.keys.head)).Commit()
		if err != nil {
			return err
		}
		if err := s.meet(resp.Header, before, first(resp.Responses[1])); err != nil {
			return err
		}
		m := first(resp.Responses[0])
		switch {
		case resp.Succeeded:
			w.open, w.rev = false, resp.Header.Revision
		case m == nil:
			*w = writer{}
			return errUnsure
		default:
			// Only one transaction can have followed the one that left w.rev: the write, or a fence whose answer was lost.
			w.open, w.rev = false, m.ModRevision
			if string(m.Value) == markWrite {
				rev = m.ModRevision
			}
		}
		return nil
	})
	return rev, err
}

// mark sees to it that there is a mark, and no write open.
func (s *Store) mark(ctx context.Context) error {
	w := &s.writer
	if w.open {
		if _, err := s.resolve(ctx); err != nil && !errors.Is(err, errUnsure) {
			return err
		}
	}
	if w.rev != 0 {
		return nil
	}
	// A try whose answer is lost leaves a mark that nobody uses, until its lease runs out.
	return s.read(ctx, func(ctx context.Context, cli *clientv3.Client) error {
		s.op("mark")
		lease, err := cli.Grant(ctx, int64(markTTL/time.Second))
		if err != nil {
			return err
		}
		fresh := writer{key: s.keys.writers + crand.Text(), lease: lease.ID}
		value, err := json.Marshal(head{headVersion, crand.Text()})
		if err != nil {
			return err
		}
		before := s.before()
		resp, err := cli.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(s.keys.head), "=", s.begun())).
			Then(clientv3.OpPut(s.keys.head, string(value)), clientv3.OpGet(s.keys.head)).
			Else(clientv3.OpGet(s.keys.head)).Commit()
		if err != nil {
			return err
		}
		if err := s.meet(resp.Header, before, first(resp.Responses[len(resp.Responses)-1])); err != nil {
			return err
		}
		put, err := cli.Put(ctx, fresh.key, markFence, clientv3.WithLease(lease.ID))
		if err != nil {
			return err
		}
		s.op("marked")
		fresh.rev = put.Header.Revision
		*w = fresh
		return nil
	})
}

// beat writes nothing but the mark.
func (s *Store) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	if err := take(ctx, s.writing); err != nil {
		return s.timedOut(err)
	}
	defer func() { <-s.writing }()
	if err := s.mark(ctx); err != nil {
		return err
	}
	_, err := s.resolve(ctx)
	if errors.Is(err, errUnsure) {
		return s.mark(ctx)
	}
	return err
}

// retire removes the mark, if that takes no time: its lease would do it too.
func (s *Store) retire() {
	if s.writer.lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.try()/2)
	defer cancel()
	_, _ = s.cli.Revoke(ctx, s.writer.lease)
}

// begun is the revision that the head key has to have been created at for this Store to create it: 0, that is not at all, and what no
// key has once the ledger is known.
func (s *Store) begun() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger != "" {
		return -1
	}
	return 0
}

// head is the head key's value as last read.
func (s *Store) head() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.headText
}
