package etcdstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// pageSize is how many allocations are read at once.
const pageSize = 2000

// set is what a name means now. s.mu is held.
func (s *Store) set(name string, e entry) {
	if e.gone && e.rev <= s.at {
		delete(s.seen, name)
		delete(s.tombs, name)
	} else {
		s.seen[name] = e
		if e.gone {
			s.tombs[name] = true
		} else {
			delete(s.tombs, name)
		}
	}
	s.cache.note(name, e)
	s.tell(name)
}

// tell logs that a name has changed. s.mu is held.
func (s *Store) tell(name string) {
	s.log.Add(name)
	s.hint()
}

// hint wakes those that watch. s.mu is held.
func (s *Store) hint() {
	for w := range s.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// note takes in what a call other than a watch has found under a name.
func (s *Store) note(name string, e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.cache.save(s.ledger) }()
	cur, ok := s.seen[name]
	switch {
	case ok && cur.rev >= e.rev:
	case ok && cur.gone && e.gone:
	case !ok && e.gone:
	case !ok && e.rev <= s.at:
		s.tell(name) // it has gone since
	default:
		s.set(name, e)
	}
}

// advance is called once every change up to rev is in seen. s.mu is held.
func (s *Store) advance(rev int64) {
	if rev <= s.at {
		return
	}
	s.at = rev
	s.top = max(s.top, rev)
	for n := range s.tombs {
		if s.seen[n].rev <= rev {
			delete(s.seen, n)
			delete(s.tombs, n)
		}
	}
	close(s.moved)
	s.moved = make(chan struct{})
}

// position is how far seen has come, and what tells when it has come further.
func (s *Store) position() (int64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.moved
}

// catchUp makes seen contain every write that had returned before the call. The head's revision, read from a majority, says which
// was the last, and the watch brings it; a watch that doesn't in time is given up, and everything read anew.
func (s *Store) catchUp(ctx context.Context) error {
	if at, _ := s.position(); at == 0 {
		if listed, err := s.list(ctx, 1); listed || err != nil {
			return err
		}
	}
	before := s.before()
	var want int64
	err := s.read(ctx, func(ctx context.Context, cli *clientv3.Client) error {
		resp, err := cli.Get(ctx, s.keys.head)
		if err != nil {
			return err
		}
		var kv *mvccpb.KeyValue
		if len(resp.Kvs) > 0 {
			kv, want = resp.Kvs[0], resp.Kvs[0].ModRevision
		}
		return s.meet(resp.Header, before, kv)
	})
	if err != nil {
		return err
	}
	late := time.NewTimer(s.try() / 2)
	defer late.Stop()
	for {
		at, moved := s.position()
		if at >= want {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			s.mu.Lock()
			if s.rewatch != nil {
				s.rewatch()
			}
			s.mu.Unlock()
			_, err := s.list(ctx, want)
			return err
		}
	}
}

// list reads everything, unless seen has come as far as want meanwhile: then listed is false.
func (s *Store) list(ctx context.Context, want int64) (listed bool, err error) {
	if err := take(ctx, s.listing); err != nil {
		return false, err
	}
	defer func() { <-s.listing }()
	for {
		if at, _ := s.position(); at >= want {
			return false, nil
		}
		again, err := s.listOnce(ctx)
		if err != nil || !again {
			return err == nil, err
		}
	}
}

// listOnce reads all pages as of one revision; again when that was compacted meanwhile.
func (s *Store) listOnce(ctx context.Context) (again bool, err error) {
	found := map[string]entry{}
	var rev int64
	from := s.keys.allocations
	for more := true; more; {
		before := s.before()
		err := s.read(ctx, func(ctx context.Context, cli *clientv3.Client) error {
			// Both in one transaction, or the head could be of a ledger that came between.
			resp, err := cli.Txn(ctx).Then(
				clientv3.OpGet(from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.keys.allocations)), clientv3.WithLimit(pageSize), clientv3.WithRev(rev)),
				clientv3.OpGet(s.keys.head)).Commit()
			if err != nil {
				return err
			}
			if err := s.meet(resp.Header, before, first(resp.Responses[1])); err != nil {
				return err
			}
			if rev == 0 {
				rev = resp.Header.Revision
			}
			page := resp.Responses[0].GetResponseRange()
			more = page.More
			for _, kv := range page.Kvs {
				name := strings.TrimPrefix(string(kv.Key), s.keys.allocations)
				found[name] = parse(name, kv)
				from = string(kv.Key) + "\x00"
			}
			return nil
		})
		if errors.Is(err, rpctypes.ErrCompacted) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.cache.save(s.ledger) }()
	if rev <= s.at {
		return false, nil // the watch was faster
	}
	for n, e := range found {
		if cur, ok := s.seen[n]; !ok || cur.rev < e.rev {
			s.set(n, e)
		}
	}
	for n, cur := range s.seen {
		if _, ok := found[n]; !ok && !cur.gone && cur.rev <= rev {
			s.set(n, entry{gone: true, rev: rev})
		}
	}
	s.advance(rev)
	s.cache.whole(s.seen)
	return false, nil
}

// begin starts following the ledger, once.
func (s *Store) begin() {
	s.follow.Do(func() {
		s.tasks.Go(func() {
			for again := false; ; again = true {
				d := pause
				if err := s.track(again); err != nil {
					d = pauseAway
				}
				if !wait(s.life, d) {
					return
				}
			}
		})
	})
}

// track reads everything if need be, and then what changes, until that is lost.
func (s *Store) track(again bool) error {
	if at, _ := s.position(); at == 0 || again {
		if err := s.catchUp(s.life); err != nil {
			s.mu.Lock()
			s.away = true
			s.mu.Unlock()
			return err
		}
	}
	cli, err := s.client(s.life)
	if err != nil {
		return err
	}
	// A member that is cut off would be silent for ever.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.life))
	defer cancel()
	s.mu.Lock()
	at := s.at
	s.rewatch = cancel
	if s.away {
		s.away = false
		s.hint()
	}
	s.mu.Unlock()
	// Not the writers' marks, which come after the head.
	watch := cli.Watch(ctx, s.keys.allocations, clientv3.WithRange(s.keys.head+"\x00"), clientv3.WithRev(at+1))
	for resp := range watch {
		if resp.CompactRevision != 0 {
			// What has changed since can't be had any more.
			_, err := s.list(s.life, at+1)
			return err
		}
		if err := resp.Err(); err != nil {
			return err
		}
		s.apply(resp.Events)
	}
	return nil
}

// apply takes in what a watch tells: whole revisions, in their order.
func (s *Store) apply(events []*clientv3.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.cache.save(s.ledger) }()
	last := s.at
	for _, ev := range events {
		rev := ev.Kv.ModRevision
		last = max(last, rev)
		name, ok := strings.CutPrefix(string(ev.Kv.Key), s.keys.allocations)
		if !ok || rev <= s.at {
			continue
		}
		cur, known := s.seen[name]
		switch {
		case known && cur.rev >= rev:
		case ev.Type == clientv3.EventTypeDelete && known:
			s.set(name, entry{gone: true, rev: rev})
		case ev.Type == clientv3.EventTypeDelete:
		default:
			s.set(name, parse(name, ev.Kv))
		}
	}
	s.advance(last)
}
