package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/renameio/v2"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/disk"
	"vtepd/daemon/journal"
	"vtepd/daemon/state"
)

// LedgerOptions are what a StoreLedger is made of.
type LedgerOptions struct {
	// Open opens the store that a config names. cache is a file that may keep what the claims of node hold, "" for none; what is
	// known from it, a store that has it says by Known.
	Open func(s config.Store, cache, node string) (alloc.Store, error)
	// State is the directory that keeps which store the claims of this router are in; "" keeps it in memory.
	State string
	// Default is the path of the directory that the zero config.Store is.
	Default string
	// Journal knows what is live.
	Journal *journal.Journal
	// ReadOnly writes nothing into State.
	ReadOnly bool
}

// StoreLedger is the Ledger over the alloc.Store that the config names. It owns the store, and which one that is changes only
// with the config, and only if every value that this router holds is in the new one already.
type StoreLedger struct {
	o       LedgerOptions
	syncDir func(dir string) error // tests see by it what is on disk, and when
	waits   atomic.Bool            // something would go on if the store changed

	mu      sync.Mutex
	at      *whereabouts  // nil: not read yet
	fresh   bool          // it was never written
	store   alloc.Store   // nil: not open
	changed chan struct{} // closed when store is another
	claimer *alloc.Claimer
	pools   []alloc.Pool // of claimer
	away    error
}

// whereabouts is which store the claims of this router are in.
type whereabouts struct {
	Version int          `json:"version"`
	Node    string       `json:"node"`
	Store   config.Store `json:"store"`
}

// Names in the state directory.
const (
	whereaboutsName = "store.json"
	cacheName       = "etcd.json"
)

const whereaboutsVersion = 1

// known is a store that remembers what its node's claims held when it was last reached, and says why it can't keep that.
type known interface {
	Known() []alloc.Allocation
	Unkept() error
}

// outdated is a store that can say whether another one, opened now, would be told more than it was: a new password, or that what it
// remembers is to be forgotten.
type outdated interface{ Outdated() bool }

var _ Ledger = (*StoreLedger)(nil)

// NewLedger opens nothing yet.
func NewLedger(o LedgerOptions) *StoreLedger {
	return &StoreLedger{o: o, syncDir: disk.SyncDir, changed: make(chan struct{})}
}

// Close lets go of the store.
func (l *StoreLedger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shut()
}

// shut closes the store that is open. l.mu is held.
func (l *StoreLedger) shut() error {
	if l.store == nil {
		return nil
	}
	err := l.store.Close()
	l.store, l.claimer, l.pools = nil, nil, nil
	close(l.changed)
	l.changed = make(chan struct{})
	return err
}

// where reads which store it is. Before it was ever written, it is the one by default. l.mu is held.
func (l *StoreLedger) where() (whereabouts, error) {
	if l.at != nil {
		return *l.at, nil
	}
	var w whereabouts
	if l.o.State != "" {
		path := filepath.Join(l.o.State, whereaboutsName)
		raw, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			l.fresh = true
		case err != nil:
			return w, fmt.Errorf("where the claims are: %w", err)
		default:
			if err := json.Unmarshal(raw, &w); err != nil {
				return w, fmt.Errorf("where the claims are: %s: %w: %w", path, journal.ErrDamaged, err)
			}
			if w.Version > whereaboutsVersion {
				return w, fmt.Errorf("where the claims are: %s: %w (version %d, this one knows %d)", path, journal.ErrNewer, w.Version, whereaboutsVersion)
			}
		}
	}
	l.at = &w
	return w, nil
}

// settle writes which store it is, on disk before anything is claimed there. l.mu is held.
func (l *StoreLedger) settle(w whereabouts) error {
	w.Version = whereaboutsVersion
	if l.o.State != "" && !l.o.ReadOnly {
		raw, err := json.MarshalIndent(w, "", "  ")
		if err == nil {
			err = renameio.WriteFile(filepath.Join(l.o.State, whereaboutsName), append(raw, '\n'), 0o600)
		}
		if err == nil {
			err = l.syncDir(l.o.State)
		}
		if err != nil {
			return fmt.Errorf("where the claims are: %w", err)
		}
	}
	l.at, l.fresh = &w, false
	return nil
}

func (l *StoreLedger) cache() string {
	if l.o.State == "" || l.o.ReadOnly {
		return ""
	}
	return filepath.Join(l.o.State, cacheName)
}

// open is the claimer on the store that the claims are in, which is opened anew where that one is outdated. l.mu is held.
func (l *StoreLedger) open() (*alloc.Claimer, error) {
	if l.claimer != nil {
		if o, ok := l.store.(outdated); !ok || !o.Outdated() {
			return l.claimer, nil
		}
	}
	w, err := l.where()
	if err != nil {
		return nil, err
	}
	store, err := l.o.Open(w.Store, l.cache(), w.Node)
	if err != nil {
		return nil, err
	}
	list := l.pools
	pools, err := alloc.NewPools(list...)
	if err == nil {
		err = l.shut()
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	l.store, l.claimer, l.pools = store, alloc.NewClaimer(store, pools), list
	close(l.changed)
	l.changed = make(chan struct{})
	return l.claimer, nil
}

// get is open for those that don't hold l.mu.
func (l *StoreLedger) get() (*alloc.Claimer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open()
}

// use opens the store that cfg names, and goes over to it from another if that renumbers nobody.
func (l *StoreLedger) use(ctx context.Context, cfg *config.Config) (*alloc.Claimer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, err := l.where()
	if err != nil {
		return nil, err
	}
	last, err := l.o.Journal.Committed()
	if err != nil {
		return nil, err
	}
	if err := renamed(last.State.Claims, cfg); err != nil {
		return nil, err
	}
	if !l.named(w.Store).Equal(l.named(cfg.Store)) {
		if err := l.move(ctx, w, cfg); err != nil {
			return nil, err
		}
	} else if w.Node != cfg.Node.Name {
		if err := errors.Join(l.shut(), l.settle(whereabouts{Node: cfg.Node.Name, Store: cfg.Store})); err != nil {
			return nil, err
		}
	}
	c, err := l.open()
	if err != nil {
		return nil, err
	}
	list := Pools(cfg)
	if !reflect.DeepEqual(list, l.pools) {
		pools, err := alloc.NewPools(list...)
		if err != nil {
			return nil, err
		}
		c.SetPools(pools)
		l.pools = list
	}
	return c, nil
}

// renamed refuses a config that calls the router otherwise than the claims that are live: they would be claims of a router that is
// gone, and the router would be renumbered.
func renamed(live []state.Claim, cfg *config.Config) error {
	var names, values []string
	for _, c := range live {
		if router := desired.RouterOf(c.Name); router != cfg.Node.Name {
			names, values = append(names, router), append(values, fmt.Sprintf("%s of pool %s", c.Value, c.Pool))
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	old := strings.Join(slices.Compact(names), ", ")
	return config.Problems{cfg.Problem("node.name", fmt.Sprintf(
		"is %s, and what is live is claimed by %s: %s; name it %[2]s again, or change to a config of that name first that claims nothing (the values excluded from their pools and given as static ones, say)",
		cfg.Node.Name, old, listed(values)))}
}

// listed is the first few of texts, and how many more there are.
func listed(texts []string) string {
	const most = 5
	if len(texts) > most {
		return fmt.Sprintf("%s, and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
	}
	return strings.Join(texts, ", ")
}

// move goes over to the store of cfg. What this router holds, by what is live and by the old store if that can be asked, must be in
// the new one under the same claims.
func (l *StoreLedger) move(ctx context.Context, old whereabouts, cfg *config.Config) error {
	last, err := l.o.Journal.Committed()
	if err != nil {
		return err
	}
	holds := slices.Clone(last.State.Claims)
	if !l.fresh || last.Generation > 0 {
		// Where the old store can't be asked, what is live says it.
		if c, err := l.open(); err == nil {
			for _, router := range []string{cfg.Node.Name, old.Node} {
				held, err := c.Held(ctx, router)
				if err == nil {
					holds = append(holds, claimsIn(held, router)...)
				}
			}
		}
	}
	next, err := l.o.Open(cfg.Store, "", cfg.Node.Name)
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range slices.Compact(state.State{Claims: holds}.Normal().Claims) {
		a, err := next.Get(ctx, alloc.Name(c.Pool, c.Value))
		switch {
		case errors.Is(err, alloc.ErrNotFound):
			missing = append(missing, fmt.Sprintf("%s holds %s of pool %s, which is nobody's there", c.Name, c.Value, c.Pool))
		case errors.Is(err, alloc.ErrDamaged):
			missing = append(missing, fmt.Sprintf("%s holds %s of pool %s, and there is %v", c.Name, c.Value, c.Pool, err))
		case err != nil:
			return errors.Join(err, next.Close())
		case !a.HeldBy(c.Name, ""):
			missing = append(missing, fmt.Sprintf("%s holds %s of pool %s, which is another's there", c.Name, c.Value, c.Pool))
		}
	}
	if err := next.Close(); err != nil {
		return err
	}
	if len(missing) > 0 {
		return strandedError{from: l.named(old.Store), to: l.named(cfg.Store), missing: missing}
	}
	if err := l.shut(); err != nil {
		return err
	}
	// What is known of the old store must not be taken for the new one's.
	if path := l.cache(); path != "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("what is known of %s: %w", l.named(old.Store), err)
		}
	}
	return l.settle(whereabouts{Node: cfg.Node.Name, Store: cfg.Store})
}

// strandedError is a change of the store that would leave values behind.
type strandedError struct {
	from, to config.Store
	missing  []string
}

func (e strandedError) Error() string {
	return fmt.Sprintf("the claims are in %s, and %s hasn't what this router holds: %s; copy them with `vtepd store copy --from %s --to %s`, or name the old store again",
		e.from, e.to, listed(e.missing), e.from, e.to)
}

// named is a store with the path of the one by default.
func (l *StoreLedger) named(s config.Store) config.Store {
	if s.Directory == "" && !s.IsEtcd() {
		s.Directory = l.o.Default
	}
	return s
}

// Claimed are the claims that cfg makes, and the addresses that it gives without one.
func Claimed(cfg *config.Config) (claims []alloc.Claim, statics []alloc.Static) {
	add := func(name string, a config.Address) {
		if addr, ok := a.Fixed(); ok {
			statics = append(statics, alloc.Static{Object: name, Value: addr.String()})
			return
		}
		c := alloc.Claim{Name: name, Pool: a.Pool, Kind: alloc.KindAddress, Group: a.Group}
		if a.Prefer.IsValid() {
			c.Prefer = a.Prefer.String()
		}
		claims = append(claims, c)
	}
	for _, e := range cfg.Endpoints {
		add(desired.ClaimName(cfg.Node.Name, e.Name), e.Address)
	}
	for _, l := range cfg.Loopbacks {
		for _, f := range l.Families() {
			add(desired.LoopbackClaimName(cfg.Node.Name, l.Name, f.Key), f.Address)
		}
	}
	return claims, statics
}

// Pools are the pools of cfg.
func Pools(cfg *config.Config) []alloc.Pool {
	var out []alloc.Pool
	for _, p := range cfg.Pools {
		a := alloc.Pool{Name: p.Name, Kind: alloc.Kind(p.Kind()), Reclaim: alloc.Reclaim(p.Reclaim), Length: p.Length}
		for _, prefix := range slices.Concat(p.Addresses, p.Prefixes) {
			a.Entries = append(a.Entries, prefix.String())
		}
		for _, r := range p.Ranges {
			a.Entries = append(a.Entries, r.String())
		}
		for _, r := range p.Exclude {
			a.Exclude = append(a.Exclude, r.First.String()+"-"+r.Last.String())
		}
		for _, r := range p.ExcludeRanges {
			a.Exclude = append(a.Exclude, r.String())
		}
		out = append(out, a)
	}
	return out
}

// Propose implements Ledger. An error is config.Problems where cfg would take from others what they hold; one that wraps
// alloc.ErrUnavailable goes by itself.
func (l *StoreLedger) Propose(ctx context.Context, cfg *config.Config) ([]alloc.Proposal, error) {
	// Before the look: a hint that comes during it must not be lost.
	l.waits.Store(true)
	proposals, err := l.propose(ctx, cfg)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = nil
	if errors.Is(err, alloc.ErrUnavailable) {
		claims, _ := Claimed(cfg)
		if kept, ok := l.kept(claims, cfg.Node.Name); ok {
			l.away = fmt.Errorf("%w; what is claimed already stays", located(cfg, err))
			return kept, nil
		}
	}
	if err != nil {
		return nil, located(cfg, err)
	}
	if k, ok := l.store.(known); ok {
		if err := k.Unkept(); err != nil {
			l.away = fmt.Errorf("%w; a start while the store is away would have to wait for it", located(cfg, err))
		}
	}
	l.waits.Store(slices.ContainsFunc(proposals, func(p alloc.Proposal) bool { return p.Condition != nil }))
	return proposals, nil
}

// located is err with the place of the store in the config.
func located(cfg *config.Config, err error) error {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err
	}
	return fmt.Errorf("%s: store: %w", cfg.At("store"), err)
}

func (l *StoreLedger) propose(ctx context.Context, cfg *config.Config) ([]alloc.Proposal, error) {
	c, err := l.use(ctx, cfg)
	if err != nil {
		return nil, err
	}
	claims, statics := Claimed(cfg)
	if err := l.keepLive(ctx, c, claims, cfg.Node.Name); err != nil {
		return nil, err
	}
	thefts, err := c.Check(ctx, cfg.Node.Name, claims, statics)
	if err != nil {
		return nil, err
	}
	var problems config.Problems
	for _, t := range thefts {
		field := "pools"
		if t.By != "" {
			field = desired.FieldOf(t.By)
		}
		problems = append(problems, cfg.Problem(field, t.Error()+"; move the holder first, or use another address"))
	}
	if problems != nil {
		return nil, problems
	}
	return c.Plan(ctx, claims)
}

// keepLive lets claims that the ledger has forgotten, as when it was lost or an operator released them, ask for the value that is live
// and no other: nobody is renumbered because of it.
func (l *StoreLedger) keepLive(ctx context.Context, c *alloc.Claimer, claims []alloc.Claim, router string) error {
	last, err := l.o.Journal.Committed()
	if err != nil || len(last.State.Claims) == 0 {
		return err
	}
	held, err := c.Held(ctx, router)
	if err != nil {
		return err
	}
	holds := claimsIn(held, router)
	for i, cl := range claims {
		if cl.Prefer != "" || slices.ContainsFunc(holds, func(h state.Claim) bool { return h.Name == cl.Name }) {
			continue
		}
		for _, live := range last.State.Claims {
			if live.Name == cl.Name && live.Pool == cl.Pool {
				claims[i].Prefer = live.Value
			}
		}
	}
	return nil
}

// kept answers claims from what is known of a store that can't be reached: only if they are exactly what the router held, so that
// nothing needs the store. l.mu is held.
func (l *StoreLedger) kept(claims []alloc.Claim, router string) ([]alloc.Proposal, bool) {
	k, ok := l.store.(known)
	if !ok {
		return nil, false
	}
	held := k.Known()
	if len(claimsIn(held, router)) != len(claims) {
		return nil, false
	}
	var out []alloc.Proposal
	for _, c := range claims {
		i := slices.IndexFunc(held, func(a alloc.Allocation) bool {
			return a.HeldBy(c.Name, c.UID) && a.Pool == c.Pool && a.Group == c.Group && (c.Prefer == "" || c.Prefer == a.Value)
		})
		if i < 0 {
			return nil, false
		}
		out = append(out, alloc.Proposal{Claim: c, Action: alloc.Keep, Allocation: held[i], Held: []string{held[i].Name}})
	}
	slices.SortFunc(out, func(a, b alloc.Proposal) int { return strings.Compare(a.Claim.Name, b.Claim.Name) })
	return out, true
}

// Away implements Ledger.
func (l *StoreLedger) Away() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

// Watch passes the store's hints on, whenever somebody waits for one, until ctx ends.
func (l *StoreLedger) Watch(ctx context.Context, hints chan<- struct{}) error {
	for {
		l.mu.Lock()
		store, changed := l.store, l.changed
		l.mu.Unlock()
		var c <-chan struct{}
		pass := func() {
			if l.waits.Load() {
				select {
				case hints <- struct{}{}:
				default: // one that is waiting already stands for all
				}
			}
		}
		if store != nil {
			// It fails only at an end, the store's or ctx's, of which there is word below. What changed before counts too.
			c, _ = store.Watch(ctx)
			pass()
		}
		for same := true; same; {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
				same = false
			case _, ok := <-c:
				if !ok {
					c = nil
					continue
				}
				pass()
			}
		}
	}
}

// Held implements txn.Ledger. While the store can't be reached, it is what is known of it.
func (l *StoreLedger) Held(ctx context.Context, router string) ([]state.Claim, error) {
	c, err := l.get()
	if err != nil {
		return nil, err
	}
	held, err := c.Held(ctx, router)
	if errors.Is(err, alloc.ErrUnavailable) {
		l.mu.Lock()
		k, ok := l.store.(known)
		l.mu.Unlock()
		if ok {
			held, err = k.Known(), nil
		}
	}
	if err != nil {
		return nil, err
	}
	return claimsIn(held, router), nil
}

// claimsIn are the claims of a router that hold some of as.
func claimsIn(as []alloc.Allocation, router string) []state.Claim {
	var out []state.Claim
	for _, a := range as {
		for _, h := range a.Holders {
			if h.UID == "" && desired.RouterOf(h.Claim) == router {
				out = append(out, state.Claim{Name: h.Claim, Pool: a.Pool, Value: a.Value})
			}
		}
	}
	return out
}

// Acquire implements txn.Ledger.
func (l *StoreLedger) Acquire(ctx context.Context, p alloc.Proposal) error {
	c, err := l.get()
	if err == nil {
		_, _, err = c.Take(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("claim %s: %w", state.ClaimOf(p), err)
	}
	return nil
}

// Unacquire implements txn.Ledger.
func (l *StoreLedger) Unacquire(ctx context.Context, p alloc.Proposal) error {
	c, err := l.get()
	if err == nil {
		err = c.Undo(ctx, p)
	}
	if err != nil {
		return fmt.Errorf("giving back %s: %w", state.ClaimOf(p), err)
	}
	return nil
}

// Release implements txn.Ledger.
func (l *StoreLedger) Release(ctx context.Context, c state.Claim) error {
	claimer, err := l.get()
	if err == nil {
		err = claimer.Release(ctx, alloc.Name(c.Pool, c.Value), c.Name, "")
	}
	if err != nil {
		return fmt.Errorf("releasing %s: %w", c, err)
	}
	return nil
}
