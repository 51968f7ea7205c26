// Package memstore provides an allocation ledger in memory, for tests and for looking at what a plan would do. A Ledger owns
// the state, every Store opened on it stands for one process, and nothing is ever written anywhere.
package memstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"vtepd/alloc"
)

// Ledger is what the Stores share.
type Ledger struct {
	mu       sync.Mutex
	all      map[string]alloc.Allocation
	log      []string // names, in the order of their changes; cursors count it
	version  uint64
	watchers map[chan struct{}]bool
}

// New is an empty ledger.
func New() *Ledger {
	return &Ledger{all: map[string]alloc.Allocation{}, watchers: map[chan struct{}]bool{}}
}

// Store is one process's handle on a Ledger.
type Store struct {
	l *Ledger
	// Fail, if set, is asked before each call ("changes", "get", "create", "update", "delete") with the allocation's name; its
	// error is returned instead, wrapped as ErrUnavailable.
	Fail func(op, name string) error

	closed   chan struct{}
	close    sync.Once
	watching sync.WaitGroup
}

// Open is a new handle.
func (l *Ledger) Open() *Store { return &Store{l: l, closed: make(chan struct{})} }

var _ alloc.Store = (*Store)(nil)

func (s *Store) enter(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.closed:
		return fmt.Errorf("%s: %w: closed", op, alloc.ErrUnavailable)
	default:
	}
	if s.Fail != nil {
		if err := s.Fail(op, name); err != nil {
			return fmt.Errorf("%s %s: %w: %w", op, name, alloc.ErrUnavailable, err)
		}
	}
	return nil
}

// Changes implements alloc.Store.
func (s *Store) Changes(ctx context.Context, since alloc.Cursor) (alloc.Changes, error) {
	if err := s.enter(ctx, "changes", ""); err != nil {
		return alloc.Changes{}, err
	}
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	// Zero is the beginning, so cursors are one more than what they count.
	ch := alloc.Changes{Next: alloc.Cursor(len(l.log) + 1)}
	if since == 0 || since > ch.Next {
		ch.Reset = true
		ch.Set = slices.Collect(maps.Values(l.all))
		for i := range ch.Set {
			ch.Set[i] = clone(ch.Set[i])
		}
		slices.SortFunc(ch.Set, byName)
		return ch, nil
	}
	names := slices.Clone(l.log[since-1:])
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		if a, ok := l.all[n]; ok {
			ch.Set = append(ch.Set, clone(a))
		} else {
			ch.Gone = append(ch.Gone, n)
		}
	}
	return ch, nil
}

func byName(a, b alloc.Allocation) int {
	if a.Name < b.Name {
		return -1
	}
	return 1
}

func clone(a alloc.Allocation) alloc.Allocation {
	a.Holders = slices.Clone(a.Holders)
	for i := range a.Holders {
		a.Holders[i].Supersedes = slices.Clone(a.Holders[i].Supersedes)
	}
	return a
}

// Get implements alloc.Store.
func (s *Store) Get(ctx context.Context, name string) (alloc.Allocation, error) {
	if err := s.enter(ctx, "get", name); err != nil {
		return alloc.Allocation{}, err
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	a, ok := s.l.all[name]
	if !ok {
		return alloc.Allocation{}, fmt.Errorf("get %s: %w", name, alloc.ErrNotFound)
	}
	return clone(a), nil
}

// put stores what decoding the encoded a gives, as a store on disk would.
func (l *Ledger) put(a alloc.Allocation) (alloc.Allocation, error) {
	b, err := alloc.Marshal(a)
	if err != nil {
		return alloc.Allocation{}, err
	}
	if a, err = alloc.Unmarshal(a.Name, b); err != nil {
		return alloc.Allocation{}, err
	}
	l.version++
	a.Version = strconv.FormatUint(l.version, 10)
	l.all[a.Name] = a
	l.changed(a.Name)
	return clone(a), nil
}

func (l *Ledger) changed(name string) {
	l.log = append(l.log, name)
	for w := range l.watchers {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}

// Create implements alloc.Store.
func (s *Store) Create(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	if err := s.enter(ctx, "create", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if _, ok := s.l.all[a.Name]; ok {
		return alloc.Allocation{}, fmt.Errorf("create %s: %w", a.Name, alloc.ErrExists)
	}
	return s.l.put(a)
}

func (l *Ledger) compare(op, name, version string) error {
	switch cur, ok := l.all[name]; {
	case !ok:
		return fmt.Errorf("%s %s: %w", op, name, alloc.ErrNotFound)
	case cur.Version != version:
		return fmt.Errorf("%s %s: %w", op, name, alloc.ErrConflict)
	}
	return nil
}

// Update implements alloc.Store.
func (s *Store) Update(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	if err := s.enter(ctx, "update", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if err := s.l.compare("update", a.Name, a.Version); err != nil {
		return alloc.Allocation{}, err
	}
	return s.l.put(a)
}

// Delete implements alloc.Store.
func (s *Store) Delete(ctx context.Context, name, version string) error {
	if err := s.enter(ctx, "delete", name); err != nil {
		return err
	}
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if err := s.l.compare("delete", name, version); err != nil {
		return err
	}
	delete(s.l.all, name)
	s.l.changed(name)
	return nil
}

// Watch implements alloc.Store.
func (s *Store) Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := s.enter(ctx, "watch", ""); err != nil {
		return nil, err
	}
	w := make(chan struct{}, 1)
	s.l.mu.Lock()
	s.l.watchers[w] = true
	s.l.mu.Unlock()
	s.watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.closed:
		}
		s.l.mu.Lock()
		delete(s.l.watchers, w)
		s.l.mu.Unlock()
		close(w)
	})
	return w, nil
}

// Health implements alloc.Store.
func (s *Store) Health(ctx context.Context) error { return s.enter(ctx, "health", "") }

// Close implements alloc.Store.
func (s *Store) Close() error {
	s.close.Do(func() { close(s.closed) })
	s.watching.Wait()
	return nil
}
