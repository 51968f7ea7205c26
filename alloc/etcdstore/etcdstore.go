// Package etcdstore provides an allocation ledger in etcd, which the routers of a whole fabric share: one key an allocation, made by
// one transaction that succeeds only where there is no such key. etcd is the state, and a Store only remembers what it has read; it
// never answers from memory alone, never overwrites a value that it can't read, and gives no allocation a lease: nothing is freed
// by time.
//
// The keys, below a prefix:
//
//	allocations/NAME   what alloc.Marshal says
//	head               which ledger this is; written anew with every change, so that its revision is the last change's
//	writers/ID         one for each Store that writes, with a lease of an hour; see writer
//
// Reading is linearizable: a member that is cut off from the others says so, and another one is asked.
package etcdstore

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vtepd/alloc"
)

// Store is a handle on a ledger in etcd.
type Store struct {
	opts Options
	tls  *tls.Config
	keys keys

	op     func(at string) // called before a write is sent, and once it is answered
	life   context.Context // ends with Close
	end    context.CancelFunc
	tasks  sync.WaitGroup
	follow sync.Once

	dialMu  sync.Mutex
	cli     *clientv3.Client
	dialing *dial

	writing chan struct{} // holds one token: writes go one at a time
	writer  writer        // under writing
	listing chan struct{} // the same for reading everything
	late    atomic.Int32  // how often in a row another was faster

	mu       sync.Mutex
	closed   bool
	seen     map[string]entry
	tombs    map[string]bool // of seen: what is gone, until the watch has come as far
	at       int64           // every change up to this revision is in seen; 0: nothing was read yet
	moved    chan struct{}   // closed and made anew when at grows
	log      alloc.Log
	watchers map[chan struct{}]bool
	rewatch  context.CancelFunc // ends the present watch, so that another is begun
	away     bool               // a call has failed, and those that watch are to be told when etcd is back
	top      int64              // the highest revision that any answer has shown
	ledger   string             // which ledger it is; "" when there was none yet
	headText string             // the head's value, as it was last read
	lost     *replaced          // once etcd has forgotten what it had
	strange  bool               // the last answer wasn't the ledger's that is known
	cache    cache
}

// keys are where things are.
type keys struct{ allocations, head, writers string }

// entry is what was last read under a name: an allocation, or why there is none.
type entry struct {
	a      alloc.Allocation
	damage string
	gone   bool
	rev    int64 // of the change that made it so
}

var _ alloc.Store = (*Store)(nil)

// Open checks the options and contacts nobody: that etcd is away is an error of each call, not of this one.
func Open(o Options) (*Store, error) {
	o, cfg, err := o.parse()
	if err != nil {
		return nil, err
	}
	s := &Store{
		opts: o, tls: cfg,
		keys:    keys{o.Prefix + "/allocations/", o.Prefix + "/head", o.Prefix + "/writers/"},
		writing: make(chan struct{}, 1), listing: make(chan struct{}, 1),
		seen: map[string]entry{}, tombs: map[string]bool{}, moved: make(chan struct{}), watchers: map[chan struct{}]bool{},
		cache: cache{path: o.Cache, node: o.Node}, op: func(string) {},
	}
	if err := s.cache.load(); err != nil {
		return nil, err
	}
	s.ledger, s.top = s.cache.Ledger, s.cache.Revision
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

// enter begins a call; what it returns ends with the call's context or with Close, and must be called.
func (s *Store) enter(ctx context.Context, op, name string) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, fmt.Errorf("%s: %w: closed", strings.TrimSpace(op+" "+name), alloc.ErrUnavailable)
	}
	if s.lost != nil {
		return nil, nil, s.fail(ctx, strings.TrimSpace(op+" "+name), s.lost)
	}
	s.tasks.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.tasks.Done()
	}, nil
}

var errClosed = fmt.Errorf("%w: closed", alloc.ErrUnavailable)

// leave is what a call returns for its error.
func (s *Store) leave(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), errClosed) {
		return fmt.Errorf("%s: %w", what, errClosed)
	}
	// The client mends a watch by itself, and in silence. Begun anew, it tells when etcd is back.
	if !refusal(err) {
		s.mu.Lock()
		s.away = true
		if s.rewatch != nil {
			s.rewatch()
		}
		s.mu.Unlock()
	}
	return s.fail(ctx, what, err)
}

func take(ctx context.Context, token chan struct{}) error {
	select {
	case token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// head is the value of the head key.
type head struct {
	Version int    `json:"version"`
	Ledger  string `json:"ledger"`
}

const headVersion = 1

// replaced is etcd having forgotten what it once had: going on would hand out values that are in use.
type replaced struct{ why string }

func (r *replaced) Error() string { return r.why }

// meet judges an answer by what was known before it was asked for: kv is the head key in it, or nil when it isn't there.
func (s *Store) meet(h *etcdserverpb.ResponseHeader, before int64, kv *mvccpb.KeyValue) error {
	var got head
	if kv != nil {
		if err := json.Unmarshal(kv.Value, &got); err != nil || got.Ledger == "" {
			return &replaced{fmt.Sprintf("%s is not the head of a ledger", s.keys.head)}
		}
		if got.Version > headVersion {
			return &replaced{fmt.Sprintf("%s: format version %d is newer than %d, the newest known here", s.keys.head, got.Version, headVersion)}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strange = true
	switch {
	case s.ledger != "" && kv == nil:
		return &replaced{fmt.Sprintf("%s is gone, and with it the ledger%s", s.keys.head, s.cache.advice())}
	case s.ledger != "" && got.Ledger != s.ledger:
		return &replaced{fmt.Sprintf("%s is another ledger than before%s", s.opts.Prefix, s.cache.advice())}
	case h.Revision < before:
		// Revisions only grow. What is read from now on would be mixed up with what was read before, so there is no way back.
		s.lost = &replaced{fmt.Sprintf("at revision %d, after revision %d: it was restored from an older copy%s", h.Revision, before, s.cache.advice())}
		return s.lost
	}
	s.strange = false
	if s.ledger == "" && got.Ledger != "" {
		s.ledger = got.Ledger
		s.cache.changed = true
	}
	if kv != nil {
		s.headText = string(kv.Value)
	}
	s.top = max(s.top, h.Revision)
	return nil
}

func (s *Store) before() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.top
}

// checkName refuses what would be a key of something else.
func checkName(op, name string) error {
	if _, _, err := alloc.ParseName(name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (s *Store) writable(op, name string) error {
	if s.opts.ReadOnly {
		return fmt.Errorf("%s %s: %w", op, name, alloc.ErrReadOnly)
	}
	return nil
}

// parse is what a key's value means.
func parse(name string, kv *mvccpb.KeyValue) entry {
	e := entry{rev: kv.ModRevision}
	if _, _, err := alloc.ParseName(name); err != nil {
		e.damage = "foreign: not the name of an allocation"
		return e
	}
	a, err := alloc.Unmarshal(name, kv.Value)
	if err != nil {
		e.damage = err.Error()
		return e
	}
	a.Version = version(kv.ModRevision)
	e.a = a
	return e
}

func version(rev int64) string { return strconv.FormatInt(rev, 10) }

// revision is what version was made from; what it wasn't made for is a revision that no key has.
func revision(version string) int64 {
	rev, err := strconv.ParseInt(version, 10, 64)
	if err != nil || rev <= 0 {
		return -1
	}
	return rev
}

func damageOf(name string, e entry) alloc.Damage {
	d := alloc.Damage{Name: name, Why: e.damage}
	d.Pool, d.Value, _ = alloc.ParseName(name)
	return d
}

// Get implements alloc.Store.
func (s *Store) Get(ctx context.Context, name string) (alloc.Allocation, error) {
	ctx, done, err := s.enter(ctx, "get", name)
	if err != nil {
		return alloc.Allocation{}, err
	}
	defer done()
	if err := checkName("get", name); err != nil {
		return alloc.Allocation{}, err
	}
	before := s.before()
	var e entry
	err = s.read(ctx, func(ctx context.Context, cli *clientv3.Client) error {
		resp, err := cli.Txn(ctx).Then(clientv3.OpGet(s.keys.allocations+name), clientv3.OpGet(s.keys.head)).Commit()
		if err != nil {
			return err
		}
		e = entry{gone: true, rev: resp.Header.Revision}
		if kv := first(resp.Responses[0]); kv != nil {
			e = parse(name, kv)
		}
		return s.meet(resp.Header, before, first(resp.Responses[1]))
	})
	if err != nil {
		return alloc.Allocation{}, s.leave(ctx, "get "+name, err)
	}
	s.note(name, e)
	switch {
	case e.gone:
		return alloc.Allocation{}, fmt.Errorf("get %s: %w", name, alloc.ErrNotFound)
	case e.damage != "":
		return alloc.Allocation{}, fmt.Errorf("get: %w", damageOf(name, e))
	}
	return e.a, nil
}

// first is the key that a range of one found.
func first(r *etcdserverpb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// Create implements alloc.Store.
func (s *Store) Create(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	return s.put(ctx, "create", a, func(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) })
}

// Update implements alloc.Store.
func (s *Store) Update(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	return s.put(ctx, "update", a, func(key string) clientv3.Cmp {
		return clientv3.Compare(clientv3.ModRevision(key), "=", revision(a.Version))
	})
}

func (s *Store) put(ctx context.Context, op string, a alloc.Allocation, guard func(key string) clientv3.Cmp) (alloc.Allocation, error) {
	ctx, done, err := s.enter(ctx, op, a.Name)
	if err != nil {
		return alloc.Allocation{}, err
	}
	defer done()
	if err := s.writable(op, a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	data, err := alloc.Marshal(a)
	if err != nil {
		return alloc.Allocation{}, fmt.Errorf("%s %s: %w", op, a.Name, err)
	}
	key := s.keys.allocations + a.Name
	rev, there, err := s.write(ctx, guard(key), clientv3.OpPut(key, string(data)), key)
	switch {
	case err != nil:
		return alloc.Allocation{}, s.leave(ctx, op+" "+a.Name, err)
	case rev == 0 && op == "create":
		wait(ctx, patience(int(s.late.Add(1))))
		return alloc.Allocation{}, fmt.Errorf("%s %s: %w", op, a.Name, alloc.ErrExists)
	case rev == 0:
		return alloc.Allocation{}, stale(op, a.Name, there)
	}
	s.late.Store(0)
	e := parse(a.Name, &mvccpb.KeyValue{Value: data, ModRevision: rev})
	s.note(a.Name, e)
	return e.a, nil
}

// stale says why a guarded change found something else than was meant.
func stale(op, name string, there *mvccpb.KeyValue) error {
	if there == nil {
		return fmt.Errorf("%s %s: %w", op, name, alloc.ErrNotFound)
	}
	if e := parse(name, there); e.damage != "" {
		return fmt.Errorf("%s: %w", op, damageOf(name, e))
	}
	return fmt.Errorf("%s %s: %w", op, name, alloc.ErrConflict)
}

// Delete implements alloc.Store.
func (s *Store) Delete(ctx context.Context, name, version string) error {
	ctx, done, err := s.enter(ctx, "delete", name)
	if err != nil {
		return err
	}
	defer done()
	if err := errors.Join(s.writable("delete", name), checkName("delete", name)); err != nil {
		return err
	}
	key := s.keys.allocations + name
	rev, there, err := s.write(ctx, clientv3.Compare(clientv3.ModRevision(key), "=", revision(version)), clientv3.OpDelete(key), key)
	switch {
	case err != nil:
		return s.leave(ctx, "delete "+name, err)
	case rev == 0:
		return stale("delete", name, there)
	}
	s.note(name, entry{gone: true, rev: rev})
	return nil
}

// Changes implements alloc.Store.
func (s *Store) Changes(ctx context.Context, since alloc.Cursor) (alloc.Changes, error) {
	ctx, done, err := s.enter(ctx, "changes", "")
	if err != nil {
		return alloc.Changes{}, err
	}
	defer done()
	s.begin()
	if err := s.catchUp(ctx); err != nil {
		return alloc.Changes{}, s.leave(ctx, "read", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names, next, reset := s.log.Since(since)
	ch := alloc.Changes{Next: next, Reset: reset}
	if reset {
		ch.Set = make([]alloc.Allocation, 0, len(s.seen))
		names = slices.Sorted(maps.Keys(s.seen))
	}
	for _, n := range names {
		switch e, ok := s.seen[n]; {
		case !ok || e.gone:
			if !ch.Reset {
				ch.Gone = append(ch.Gone, n)
			}
		case e.damage != "":
			ch.Damaged = append(ch.Damaged, damageOf(n, e))
		default:
			ch.Set = append(ch.Set, e.a)
		}
	}
	return ch, nil
}

// Watch implements alloc.Store. That etcd is back after having been away is a hint too.
func (s *Store) Watch(ctx context.Context) (<-chan struct{}, error) {
	callers, done, err := s.enter(ctx, "watch", "")
	if err != nil {
		return nil, err
	}
	w := make(chan struct{}, 1)
	s.mu.Lock()
	s.watchers[w] = true
	s.mu.Unlock()
	s.begin()
	go func() {
		defer done()
		<-callers.Done()
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
		close(w)
	}()
	return w, nil
}

// Health implements alloc.Store: by writing, because a full or a frozen etcd still reads.
func (s *Store) Health(ctx context.Context) error {
	ctx, done, err := s.enter(ctx, "health", "")
	if err != nil {
		return err
	}
	defer done()
	if err := s.writable("health of", s.opts.Prefix); err != nil {
		return err
	}
	if err := s.beat(ctx); err != nil {
		return s.leave(ctx, "health", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache.err != nil {
		return fmt.Errorf("health: %w: %w", alloc.ErrUnavailable, s.cache.err)
	}
	return nil
}

// Close implements alloc.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.tasks.Wait()
	if s.cli == nil {
		return nil
	}
	s.retire()
	if err := s.cli.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
