package daemon

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/server/v3/embed"

	"vtepd/alloc"
	"vtepd/alloc/dirstore"
	"vtepd/alloc/etcdstore"
	"vtepd/alloc/memstore"
	"vtepd/daemon/config"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/status"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
)

// ledgerOn is a Ledger on a store, whatever the config says.
func ledgerOn(store alloc.Store) *StoreLedger {
	return NewLedger(LedgerOptions{
		Open:    func(config.Store, string, string) (alloc.Store, error) { return lent{store}, nil },
		Journal: journal.In("/nonexistent"),
	})
}

// TestWhereaboutsSync: where the claims are is on disk, with its name, before anything is claimed there.
func TestWhereaboutsSync(t *testing.T) {
	dir := t.TempDir()
	store := memstore.New().Open()
	l := NewLedger(LedgerOptions{
		Open:  func(config.Store, string, string) (alloc.Store, error) { return lent{store}, nil },
		State: dir, Journal: journal.In(dir),
	})
	refuse, synced, sync := errors.New("the disk is gone"), 0, l.syncDir
	l.syncDir = func(of string) error {
		if _, err := os.Stat(filepath.Join(dir, whereaboutsName)); err != nil || of != dir {
			t.Errorf("%s is synced: %v", of, err)
		}
		synced++
		return errors.Join(refuse, sync(of))
	}
	cfg, err := config.Parse("f", []byte(firstVNI))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Propose(t.Context(), cfg); !errors.Is(err, refuse) || !strings.Contains(err.Error(), "store: where the claims are: ") {
		t.Errorf("refused: %v", err)
	}
	refuse = nil
	for range 2 {
		if _, err := l.Propose(t.Context(), cfg); err != nil {
			t.Error(err)
		}
	}
	if synced != 2 {
		t.Errorf("synced %d times, want once for each that was written", synced)
	}
}

// lent is a store that its opener closes.
type lent struct{ alloc.Store }

func (lent) Close() error { return nil }

// etcd runs one of one member until the test ends, and returns its URL; cut makes it unreachable, and reachable again.
func etcd(t *testing.T) (endpoint string, cut func(off bool)) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = memoryDir(t)
	cfg.LogLevel, cfg.LogOutputs = "fatal", []string{os.DevNull}
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 20, 200
	var urls [2]url.URL
	for i := range urls {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = url.URL{Scheme: "http", Host: l.Addr().String()}
		l.Close()
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[:1], urls[:1]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[1:], urls[1:]
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("etcd isn't ready")
	}
	return relay(t, urls[0].Host)
}

// relay passes connections on to a member, unless it is cut off.
func relay(t *testing.T, to string) (endpoint string, cut func(off bool)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	isOff := false
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		if open = append(open, c); isOff {
			c.Close()
		}
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			keep(in)
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			keep(out)
			for _, d := range [2][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(d[0], d[1])
					d[0].Close()
				}()
			}
		}
	}()
	cut = func(off bool) {
		mu.Lock()
		defer mu.Unlock()
		if isOff = off; off {
			for _, c := range open {
				c.Close()
			}
			open = nil
		}
	}
	t.Cleanup(func() {
		l.Close()
		cut(true)
	})
	return "http://" + l.Addr().String(), cut
}

// eachStore runs f with handles on one ledger, in memory, in a directory and in an etcd.
func eachStore(t *testing.T, f func(t *testing.T, open func() alloc.Store)) {
	t.Helper()
	must := func(t *testing.T, s alloc.Store, err error) alloc.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	t.Run("memory", func(t *testing.T) {
		l := memstore.New()
		f(t, func() alloc.Store { return must(t, l.Open(), nil) })
	})
	t.Run("directory", func(t *testing.T) {
		dir := filepath.Join(memoryDir(t), "ledger")
		f(t, func() alloc.Store { s, err := dirstore.Open(dir); return must(t, s, err) })
	})
	t.Run("etcd", func(t *testing.T) {
		endpoint, _ := etcd(t)
		f(t, func() alloc.Store {
			s, err := etcdstore.Open(etcdstore.Options{Endpoints: []string{endpoint}})
			return must(t, s, err)
		})
	})
}

// holders is a ledger as text: "vteps@10.255.0.1 r1/endpoint/vtep0", sorted.
func holders(t fataler, s alloc.Store) []string {
	t.Helper()
	ch, err := s.Changes(context.Background(), 0)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var out []string
	for _, a := range ch.Set {
		line := a.Name
		for _, h := range a.Holders {
			line += " " + h.Claim
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", what, diff)
	}
}

// TestLedgerInTransaction: on each kind of store, a claim is there from phase claim on, is gone after a rollback, and the old one goes
// in phase retire and not before; what another router left stays.
func TestLedgerInTransaction(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() alloc.Store) {
		w := newWorld(memoryDir(t))
		w.ports.Ledger = ledgerOn(open())
		eyes := open()
		gone := alloc.Allocation{Name: "vteps@10.255.0.3", Pool: "vteps", Value: "10.255.0.3", Holders: []alloc.Holder{{Claim: "r9/endpoint/vtep0"}}}
		if _, err := eyes.Create(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
		const old, other, next = "vteps@10.255.0.1 r1/endpoint/vtep0", "vteps@10.255.0.3 r9/endpoint/vtep0", "vteps@10.255.0.2 r1/endpoint/vtep0"
		quick := strings.NewReplacer("endpoints:", "transaction: {drain: {quiet: 1ms, limit: 5ms}}\nendpoints:")
		w.reach(t, quick.Replace(firstVNI))
		same(t, "first", holders(t, eyes), []string{old, other})

		p, err := w.plan(quick.Replace(moved))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "planned", holders(t, eyes), []string{old, other})
		w.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
			if when == fake.Before && op.Verb == dataplane.Set && op.Link.Local == at2 {
				w.kernel.FailAt(n, errInjected)
			}
		})
		if err := w.runner(w.ports.Journal).Run(t.Context(), p); !errors.Is(err, errInjected) {
			t.Fatalf("the swap didn't fail: %v", err)
		}
		same(t, "rolled back", holders(t, eyes), []string{old, other})
		w.kernel.OnOp(nil)

		if p, err = w.plan(quick.Replace(moved)); err != nil {
			t.Fatal(err)
		}
		run := w.runner(w.ports.Journal)
		seen := map[plan.Phase]bool{}
		run.Report = func(e txn.Event) {
			want := []string{old, next, other}
			switch {
			case e.Phase == plan.Claim:
				return
			case e.Phase == plan.Retire && seen[plan.Retire]: // from its first step on it may be gone
				return
			}
			seen[e.Phase] = true
			same(t, string(e.Phase), holders(t, eyes), want)
		}
		if err := run.Run(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if !seen[plan.Swap] || !seen[plan.Drain] || !seen[plan.Retire] {
			t.Errorf("phases: %v", seen)
		}
		same(t, "moved", holders(t, eyes), []string{next, other})
		w.reach(t, "version: 1\nnode: {name: r1}\n")
		same(t, "emptied", holders(t, eyes), []string{other})
	})
}

// TestLedgerWakes: a value that somebody lets go of is a hint to the one that waits for it, and to nobody else.
func TestLedgerWakes(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() alloc.Store) {
		other := open()
		taken, err := other.Create(t.Context(), alloc.Allocation{
			Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "r2/endpoint/v"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		l := ledgerOn(open())
		cfg := parsed(t, "version: 1\nnode: {name: r1}\npools: {p: {addresses: [10.0.0.1/32]}}\nendpoints: {v: {loopback: {}, address: {pool: p}}}\n")
		ps, err := l.Propose(t.Context(), cfg)
		if err != nil || ps[0].Condition == nil || ps[0].Condition.Reason != alloc.PoolExhausted {
			t.Fatalf("%+v, %v", ps, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		hints, done := make(chan struct{}, 1), make(chan error, 1)
		go func() { done <- l.Watch(ctx, hints) }()
		if err := other.Delete(t.Context(), taken.Name, taken.Version); err != nil {
			t.Fatal(err)
		}
		for deadline := time.After(30 * time.Second); ; {
			select {
			case <-hints:
			case <-deadline:
				t.Fatal("no hint")
			}
			if ps, err = l.Propose(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			if ps[0].Condition == nil {
				break
			}
		}
		// Nothing waits now: what is written wakes nobody.
		if err := l.Acquire(t.Context(), ps[0]); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		select {
		case <-hints:
		default:
		}
		if l.waits.Load() {
			t.Error("it waits, with all that it asked for")
		}
	})
}

func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// settled is a ledger of a router with a state directory, on the stores that its configs name.
type settled struct {
	*StoreLedger
	t       *testing.T
	dir     string
	timeout time.Duration // of etcd
}

func (s *settled) start() {
	s.t.Helper()
	s.StoreLedger = NewLedger(LedgerOptions{
		Open: func(c config.Store, cache, node string) (alloc.Store, error) {
			if !c.IsEtcd() {
				if c.Directory == "" {
					c.Directory = filepath.Join(s.dir, "ledger")
				}
				return dirstore.Open(c.Directory)
			}
			return etcdstore.Open(etcdstore.Options{
				Endpoints: c.Etcd.Endpoints, Prefix: c.Etcd.Prefix, Cache: cache, Node: node, Timeout: s.timeout,
			})
		},
		State: s.dir, Default: filepath.Join(s.dir, "ledger"), Journal: journal.In(s.dir),
	})
}

// gets proposes for cfg and takes what is proposed, which must be one value by one action.
func (s *settled) gets(cfg *config.Config, action alloc.Action, value string) {
	s.t.Helper()
	ps, err := s.Propose(s.t.Context(), cfg)
	if err != nil || len(ps) != 1 || ps[0].Condition != nil || ps[0].Action != action || ps[0].Allocation.Value != value {
		s.t.Fatalf("%+v, %v; want %s %s", ps, err, action, value)
	}
	if action != alloc.Keep {
		if err := s.Acquire(s.t.Context(), ps[0]); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *settled) refuses(cfg *config.Config, want string) {
	s.t.Helper()
	_, err := s.Propose(s.t.Context(), cfg)
	if err == nil || err.Error() != want {
		s.t.Fatalf("got  %v\nwant %s", err, want)
	}
}

// restart is a new process; what is live is as it was.
func (s *settled) restart() {
	s.t.Helper()
	if err := s.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

// TestStoreChanges: claims go to another store by a copy and not otherwise, no value changes, and a restart finds them where they are.
func TestStoreChanges(t *testing.T) {
	endpoint, _ := etcd(t)
	s := &settled{t: t, dir: memoryDir(t)}
	s.start()
	defer func() { s.Close() }()
	const rest = "pools: {p: {addresses: [10.0.0.0/29]}}\nendpoints: {v: {loopback: {}, address: {pool: p%s}}}\n"
	in := func(store, prefer string) *config.Config {
		t.Helper()
		return parsed(t, "version: 1\nnode: {name: r1}\n"+store+fmt.Sprintf(rest, prefer))
	}
	inEtcd := fmt.Sprintf("store: {etcd: {endpoints: [%q]}}\n", endpoint)
	directory, there := "dir:"+s.dir+"/ledger", "etcd:"+endpoint+"/vtepd"
	s.gets(in("", ", prefer: 10.0.0.5"), alloc.Create, "10.0.0.5")
	// What is live counts, whether the old store can be asked or not.
	live := journal.Committed{Generation: 1, State: state.State{Claims: []state.Claim{{Name: "r1/endpoint/v", Pool: "p", Value: "10.0.0.5"}}}}
	if err := s.o.Journal.Commit(live); err != nil {
		t.Fatal(err)
	}
	// The default by its path is the same store.
	s.gets(in("store: {directory: "+s.dir+"/ledger}\n", ""), alloc.Keep, "10.0.0.5")

	why := "f:3:1: store: the claims are in %s, and %s hasn't what this router holds: %s; " +
		"copy them with `vtepd store copy --from %[1]s --to %[2]s`, or name the old store again"
	stranded := fmt.Sprintf(why, directory, there, "r1/endpoint/v holds 10.0.0.5 of pool p, which is nobody's there")
	s.refuses(in(inEtcd, ""), stranded)
	s.restart()
	s.refuses(in(inEtcd, ""), stranded)
	if err := os.Rename(filepath.Join(s.dir, "ledger"), filepath.Join(s.dir, "away")); err != nil {
		t.Fatal(err)
	}
	s.restart()
	s.refuses(in(inEtcd, ""), stranded)
	s.Close()
	if err := os.Remove(filepath.Join(s.dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(s.dir, "away"), filepath.Join(s.dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	s.start()

	from, err := dirstore.Open(filepath.Join(s.dir, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := etcdstore.Open(etcdstore.Options{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	// Another's under the same value.
	a, err := to.Create(t.Context(), alloc.Allocation{Name: "p@10.0.0.5", Pool: "p", Value: "10.0.0.5", Holders: []alloc.Holder{{Claim: "r2/endpoint/v"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.refuses(in(inEtcd, ""), fmt.Sprintf(why, directory, there, "r1/endpoint/v holds 10.0.0.5 of pool p, which is another's there"))
	if err := to.Delete(t.Context(), a.Name, a.Version); err != nil {
		t.Fatal(err)
	}
	if _, err := alloc.Copy(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	s.gets(in(inEtcd, ""), alloc.Keep, "10.0.0.5")
	same(t, "in the directory", holders(t, from), []string{"p@10.0.0.5 r1/endpoint/v"})
	s.gets(in(inEtcd, ", prefer: 10.0.0.6"), alloc.Create, "10.0.0.6")
	if err := s.Release(t.Context(), live.State.Claims[0]); err != nil {
		t.Fatal(err)
	}
	same(t, "in etcd", holders(t, to), []string{"p@10.0.0.6 r1/endpoint/v"})
	live.State.Claims[0].Value = "10.0.0.6"
	if err := s.o.Journal.Commit(live); err != nil {
		t.Fatal(err)
	}
	// Before any config is read, as in a recovery, they are known to be in etcd.
	s.restart()
	held, err := s.Held(t.Context(), "r1")
	if err != nil || !slices.Equal(held, live.State.Claims) {
		t.Errorf("%v, %v", held, err)
	}
	// And back: not to the directory as it was left, but to a copy.
	s.refuses(in("", ""), strings.Replace(fmt.Sprintf(why, there, directory, "r1/endpoint/v holds 10.0.0.6 of pool p, which is nobody's there"), "f:3:1", "f:1:1", 1))
	fresh, err := dirstore.Open(filepath.Join(s.dir, "fresh"))
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if _, err := alloc.Copy(t.Context(), to, fresh); err != nil {
		t.Fatal(err)
	}
	s.gets(in("store: {directory: "+s.dir+"/fresh}\n", ""), alloc.Keep, "10.0.0.6")
	if _, err := os.Stat(filepath.Join(s.dir, cacheName)); !os.IsNotExist(err) {
		t.Errorf("what was known of etcd: %v", err)
	}
}

// TestEtcdAway: while etcd is away, what is claimed stays, through restarts too; what needs a new value waits, and says for whom.
func TestEtcdAway(t *testing.T) {
	endpoint, cut := etcd(t)
	s := &settled{t: t, dir: memoryDir(t)}
	s.start()
	defer func() { s.Close() }()
	text := fmt.Sprintf("version: 1\nnode: {name: r1}\nstore: {etcd: {endpoints: [%q]}}\npools: {p: {addresses: [10.0.0.0/29]}}\n", endpoint)
	cfg := parsed(t, text+"endpoints: {v: {loopback: {}, address: {pool: p, group: g}}}\n")
	s.gets(cfg, alloc.Create, "10.0.0.0")
	s.gets(cfg, alloc.Keep, "10.0.0.0")
	if s.Away() != nil {
		t.Errorf("away: %v", s.Away())
	}
	s.timeout = time.Second
	s.restart()
	s.gets(cfg, alloc.Keep, "10.0.0.0")
	cut(true)
	for _, started := range []bool{false, true} { // as it ran, and started again
		s.gets(cfg, alloc.Keep, "10.0.0.0")
		if err := s.Away(); err == nil || !errors.Is(err, alloc.ErrUnavailable) || !strings.HasPrefix(err.Error(), "f:3:1: store: ") ||
			!strings.Contains(err.Error(), endpoint) || !strings.HasSuffix(err.Error(), "; what is claimed already stays") {
			t.Errorf("away: %v", err)
		}
		held, err := s.Held(t.Context(), "r1")
		if want := []state.Claim{{Name: "r1/endpoint/v", Pool: "p", Value: "10.0.0.0"}}; err != nil || !slices.Equal(held, want) {
			t.Errorf("%v, %v", held, err)
		}
		if !started {
			s.timeout = 100 * time.Millisecond
			s.restart()
			continue
		}
		for _, needs := range []string{
			"endpoints: {v: {loopback: {}, address: {pool: p}}}\n", // an address of its own
			"endpoints: {w: {loopback: {}, address: {pool: p, group: g}}}\n",
			"endpoints: {v: {loopback: {}, address: {pool: p, group: g}}, w: {loopback: {}, address: {pool: p}}}\n",
			"", // to release one needs etcd too
		} {
			ps, err := s.Propose(t.Context(), parsed(t, text+needs))
			if !errors.Is(err, alloc.ErrUnavailable) || !strings.HasPrefix(err.Error(), "f:3:1: store: ") || !strings.Contains(err.Error(), endpoint) {
				t.Errorf("%q: %v, %v", needs, ps, err)
			}
			if !s.waits.Load() {
				t.Errorf("%q: nobody waits for etcd", needs)
			}
		}
	}
}

// TestEtcdWiped: an etcd that has lost its ledger is not taken for an empty one, and what is said to be done about it works without a
// restart, renumbering nobody.
func TestEtcdWiped(t *testing.T) {
	endpoint, _ := etcd(t)
	s := &settled{t: t, dir: memoryDir(t)}
	s.start()
	defer func() { s.Close() }()
	text := fmt.Sprintf("version: 1\nnode: {name: r1}\nstore: {etcd: {endpoints: [%q]}}\npools: {p: {addresses: [10.0.0.0/29]}}\n", endpoint)
	cfg := parsed(t, text+"endpoints: {v: {loopback: {}, address: {pool: p, prefer: 10.0.0.5}}}\n")
	s.gets(cfg, alloc.Create, "10.0.0.5")
	live := journal.Committed{Generation: 1, State: state.State{Claims: []state.Claim{{Name: "r1/endpoint/v", Pool: "p", Value: "10.0.0.5"}}}}
	if err := s.o.Journal.Commit(live); err != nil {
		t.Fatal(err)
	}
	cfg = parsed(t, text+"endpoints: {v: {loopback: {}, address: {pool: p}}}\n")
	s.gets(cfg, alloc.Keep, "10.0.0.5")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	key := func(k string) string { return base64.StdEncoding.EncodeToString([]byte(k)) }
	resp, err := http.Post(endpoint+"/v3/kv/deleterange", "application/json", strings.NewReader(fmt.Sprintf(`{"key": %q, "range_end": %q}`, key("/vtepd/"), key("/vtepd0"))))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("deleting all: %s", resp.Status)
	}
	s.start()
	cache := filepath.Join(s.dir, cacheName)
	for range 2 {
		s.gets(cfg, alloc.Keep, "10.0.0.5")
		if err := s.Away(); err == nil || !strings.Contains(err.Error(), "; if that is meant, remove "+cache+"; what is claimed already stays") {
			t.Errorf("away: %v", err)
		}
	}
	if err := os.Remove(cache); err != nil {
		t.Fatal(err)
	}
	s.gets(cfg, alloc.Create, "10.0.0.5")
	if err := s.Away(); err != nil {
		t.Errorf("away: %v", err)
	}
	s.gets(cfg, alloc.Keep, "10.0.0.5")
}

// TestOutdated: a store that says it is outdated is opened anew, with the pools and with those that watch it; one that can't be is
// an error.
func TestOutdated(t *testing.T) {
	ledger := memstore.New()
	var opened []*old
	var broken error
	l := NewLedger(LedgerOptions{
		Open: func(config.Store, string, string) (alloc.Store, error) {
			if broken != nil {
				return nil, broken
			}
			opened = append(opened, &old{Store: ledger.Open()})
			return opened[len(opened)-1], nil
		},
		Journal: journal.In("/nonexistent"),
	})
	defer l.Close()
	cfg := parsed(t, "version: 1\nnode: {name: r1}\npools: {p: {addresses: [10.0.0.0/29]}}\nendpoints: {v: {loopback: {}, address: {pool: p}}}\n")
	proposed := func() {
		t.Helper()
		if ps, err := l.Propose(t.Context(), cfg); err != nil || ps[0].Allocation.Value != "10.0.0.0" {
			t.Fatalf("%+v, %v", ps, err)
		}
	}
	proposed()
	proposed()
	if len(opened) != 1 {
		t.Fatalf("%d were opened", len(opened))
	}
	changed := l.changed
	opened[0].outdated = true
	broken = errors.New("passwordFile: f is empty")
	if _, err := l.Propose(t.Context(), cfg); err == nil || err.Error() != "f:1:1: store: passwordFile: f is empty" {
		t.Errorf("%v", err)
	}
	broken = nil
	proposed()
	if len(opened) != 2 {
		t.Fatalf("%d were opened", len(opened))
	}
	if err := opened[0].Health(t.Context()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("the old one is open: %v", err)
	}
	select {
	case <-changed:
	default:
		t.Error("who watches isn't told")
	}
}

// old is a store that is told whether it is outdated.
type old struct {
	*memstore.Store
	outdated bool
}

func (o *old) Outdated() bool { return o.outdated }

// forgetful is a store that can't keep what it knows.
type forgetful struct {
	*memstore.Store
	why error
}

func (f *forgetful) Known() []alloc.Allocation { return nil }
func (f *forgetful) Unkept() error             { return f.why }

// TestUnkept: that what is known of a store can't be kept on disk is said in the status, holds up nothing, and is over by itself.
func TestUnkept(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		store := &forgetful{r.store, errors.New("cache f: no space left on device")}
		l := ledgerOn(nil)
		l.o.Open = func(config.Store, string, string) (alloc.Store, error) { return store, nil }
		r.ports.Ledger = l
		r.write(firstVNI)
		r.start()
		r.after(5 * time.Second)
		r.is(status.Waiting, "FILE:1:1: store: cache f: no space left on device; a start while the store is away would have to wait for it")
		if r.vtep() != at1 {
			t.Errorf("VTEP %s", r.vtep())
		}
		store.why = nil
		r.hint()
		r.after(time.Minute)
		r.is(status.Idle)
	})
}

// TestLedgerThefts: a config that gives away what another router holds is refused, with both places named.
func TestLedgerThefts(t *testing.T) {
	store := memstore.New().Open()
	a := alloc.Allocation{Name: "p@10.0.0.1", Pool: "p", Value: "10.0.0.1", Holders: []alloc.Holder{{Claim: "r2/endpoint/v"}}}
	if _, err := store.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	for asks, where := range map[string]string{
		"endpoints: {w: {loopback: {}, address: {static: 10.0.0.1}}}":   "f:4:31: endpoints.w.address: 10.0.0.1 is given to r1/endpoint/w",
		"loopbacks: {lo1: {role: router-id, ipv4: {static: 10.0.0.1}}}": "f:4:36: loopbacks.lo1.ipv4: 10.0.0.1 is given to r1/loopback/lo1/ipv4",
	} {
		_, err := ledgerOn(store).Propose(t.Context(), parsed(t, `version: 1
node: {name: r1}
pools: {p: {addresses: [10.0.0.0/24], exclude: [10.0.0.1]}}
`+asks+"\n"))
		want := where + ", but r2/endpoint/v holds it (pool p); move the holder first, or use another address"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestMoveToFullPool: an endpoint and a loopback that ask another pool, which is full, while theirs goes from the config, wait with what
// they have, and move once there is room.
func TestMoveToFullPool(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		l := ledgerOn(r.store)
		l.o.Journal = r.ports.Journal
		r.ports.Ledger = l
		text := func(pools, pool string) string {
			return "version: 1\nnode: {name: r1}\npools: {" + pools + "}\n" +
				"endpoints: {vtep0: {ipvlan: {parent: eth1}, address: {pool: " + pool + "}}}\nvnis: {100: {endpoint: vtep0}}\n" +
				"loopbacks: {lo9: {role: anycast-rp, ipv4: {pool: " + pool + ", group: rp}}}\n"
		}
		r.write(text("p: {addresses: [10.255.0.0/29]}", "p"))
		r.start()
		r.after(5 * time.Second)
		r.is(status.Idle)
		facts, ledger := r.facts(t), holders(t, r.store)
		taken, err := r.store.Create(t.Context(), alloc.Allocation{Name: "q@10.254.0.0", Pool: "q", Value: "10.254.0.0"})
		if err != nil {
			t.Fatal(err)
		}
		r.drop(text("q: {addresses: [10.254.0.0/32]}", "q"))
		r.after(time.Minute)
		r.is(status.Waiting, "FILE:4:61: endpoints.vtep0.address.pool: pool q exhausted: r1/endpoint/vtep0: PoolExhausted: all 1 values of pool q are taken")
		if got := r.facts(t); got != facts {
			t.Errorf("got\n%s\nwant\n%s", got, facts)
		}
		if err := r.store.Delete(t.Context(), taken.Name, taken.Version); err != nil {
			t.Fatal(err)
		}
		same(t, "ledger", holders(t, r.store), ledger)
		// Of one value the endpoint has the better claim, and the loopback waits alone, with what it had.
		const others, endpoint = "p2@10.250.0.1 r2/loopback/lo0/ipv4", "q@10.254.0.0 r1/endpoint/vtep0"
		r.after(time.Minute)
		r.is(status.Waiting, "FILE:6:50: loopbacks.lo9.ipv4.pool: pool q exhausted: r1/loopback/lo9/ipv4: PoolExhausted: all 1 values of pool q are taken")
		same(t, "ledger", holders(t, r.store), []string{others, "p@10.255.0.1 r1/loopback/lo9/ipv4", endpoint})
		r.drop(text("q: {addresses: [10.254.0.0/31]}", "q"))
		r.after(time.Minute)
		r.is(status.Idle)
		same(t, "ledger", holders(t, r.store), []string{others, endpoint, "q@10.254.0.1 r1/loopback/lo9/ipv4"})
	})
}

// TestValueFreed: the daemon that waits for a value goes on at the moment when another router lets go of one.
func TestValueFreed(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		ledger := memstore.New()
		other := ledger.Open()
		var taken []alloc.Allocation
		for i := range 3 {
			v := fmt.Sprintf("10.255.0.%d", i+1)
			a, err := other.Create(t.Context(), alloc.Allocation{
				Name: "vteps@" + v, Pool: "vteps", Value: v, Holders: []alloc.Holder{{Claim: fmt.Sprintf("r%d/endpoint/v", 10+i)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, a)
		}
		l := ledgerOn(ledger.Open())
		r.ports.Ledger = l
		r.write(firstVNI)
		r.start()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.Watch(ctx, r.hints) //nolint:errcheck // it ends with ctx
		s, _ := r.board.Get()
		if s.Condition != status.Waiting || len(s.Messages) != 1 || !strings.HasSuffix(s.Messages[0], "pool vteps exhausted: r1/endpoint/vtep0: PoolExhausted: all 3 values of pool vteps are taken") {
			t.Fatalf("%s: %q", s.Condition, s.Messages)
		}
		r.after(10 * time.Minute)
		before := time.Now()
		if err := other.Delete(t.Context(), taken[1].Name, taken[1].Version); err != nil {
			t.Fatal(err)
		}
		r.after(time.Millisecond)
		if s, _ := r.board.Get(); s.Transaction == nil || s.Transaction.Began.Sub(before) > time.Millisecond {
			t.Errorf("after a millisecond: %s: %q", s.Condition, s.Messages)
		}
		r.after(2 * time.Second)
		r.is(status.Idle)
		if got := r.vtep().String(); got != "10.255.0.2" {
			t.Errorf("it got %s", got)
		}
		stop()
	})
}

// TestStoreAway: a store that is away is waited for, what is live isn't touched, and nothing is forgotten once it is back.
func TestStoreAway(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts, writes := r.facts(t), r.writes()
		store := r.store
		store.Fail = func(string, string) error { return errors.New("connection refused") }
		r.drop(moved)
		r.is(status.Waiting, "FILE:1:1: store: changes : ledger unavailable: connection refused")
		r.after(time.Hour)
		r.is(status.Waiting, "FILE:1:1: store: changes : ledger unavailable: connection refused")
		store.Fail = nil
		if r.facts(t) != facts || r.writes() != writes {
			t.Error("what is live was touched")
		}
		r.after(lookMost + 5*time.Second)
		r.is(status.Idle)
		if r.vtep() != at2 {
			t.Errorf("VTEP %s", r.vtep())
		}
	})
}

// TestFasterRouter: of two routers that want one value, the one that comes later takes the next, at once.
func TestFasterRouter(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		ledger := memstore.New()
		mine, other := ledger.Open(), ledger.Open()
		var once sync.Once
		mine.Fail = func(op, name string) (err error) {
			if op == "create" {
				once.Do(func() {
					_, err = other.Create(t.Context(), alloc.Allocation{
						Name: name, Pool: "vteps", Value: strings.TrimPrefix(name, "vteps@"), Holders: []alloc.Holder{{Claim: "r2/endpoint/v"}},
					})
				})
			}
			return err
		}
		r.store, r.ports.Ledger = mine, ledgerOn(mine)
		r.write(firstVNI)
		r.start()
		r.after(5 * time.Second)
		r.is(status.Idle)
		same(t, "ledger", holders(t, other), []string{"vteps@10.255.0.1 r2/endpoint/v", "vteps@10.255.0.2 r1/endpoint/vtep0"})
	})
}

// TestAnycast: routers with endpoints of one group have one address, and that another one announces it is no clash.
func TestAnycast(t *testing.T) {
	ledger := memstore.New()
	text := strings.Replace(firstVNI, "{pool: vteps}", "{pool: vteps, group: gw}", 1)
	var values []string
	for _, router := range []string{"r1", "r2"} {
		w := newWorld(memoryDir(t))
		w.store = ledger.Open()
		w.ports.Ledger = ledgerOn(w.store)
		w.reach(t, strings.Replace(text, "name: r1", "name: "+router, 1))
		held, err := w.ports.Ledger.Held(t.Context(), router)
		if err != nil || len(held) != 1 {
			t.Fatalf("%v, %v", held, err)
		}
		values = append(values, held[0].Value)
	}
	same(t, "values", values, []string{"10.255.0.1", "10.255.0.1"})
	same(t, "ledger", holders(t, ledger.Open()), []string{"vteps@10.255.0.1 r1/endpoint/vtep0 r2/endpoint/vtep0"})
}

// TestEtcdLostInEveryPhase: etcd goes away as a phase begins, and comes back later. What was in phase claim is as if it had never been;
// from then on the change goes through, and what the ledger is told at its end waits for it.
func TestEtcdLostInEveryPhase(t *testing.T) {
	endpoint, cut := etcd(t)
	quick := strings.NewReplacer("endpoints:", "transaction: {drain: {quiet: 1ms, limit: 5ms}}\nendpoints:")
	for _, phase := range []plan.Phase{plan.Claim, plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Drain, plan.Retire} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(memoryDir(t))
			s := &settled{t: t, dir: memoryDir(t), timeout: 2 * time.Second}
			s.start()
			defer func() { s.Close() }()
			w.ports.Ledger = s.StoreLedger
			store := fmt.Sprintf("store: {etcd: {endpoints: [%q], prefix: /%s}}\n", endpoint, phase)
			eyes, err := etcdstore.Open(etcdstore.Options{Endpoints: []string{endpoint}, Prefix: "/" + string(phase)})
			if err != nil {
				t.Fatal(err)
			}
			defer eyes.Close()
			const old, next = "vteps@10.255.0.1 r1/endpoint/vtep0", "vteps@10.255.0.2 r1/endpoint/vtep0"
			w.reach(t, quick.Replace(firstVNI)+store)
			facts := w.facts(t)
			p, err := w.plan(quick.Replace(moved) + store)
			if err != nil {
				t.Fatal(err)
			}
			defer cut(false)
			run := w.runner(w.ports.Journal)
			var once sync.Once
			run.Report = func(e txn.Event) {
				if e.Phase == phase && !e.Undo {
					once.Do(func() { cut(true) })
				}
				if e.Retry {
					cut(false)
				}
			}
			err = run.Run(t.Context(), p)
			cut(false)
			if phase == plan.Claim {
				if !errors.Is(err, alloc.ErrUnavailable) {
					t.Fatalf("it claimed without a ledger: %v", err)
				}
				rec, err := w.ports.Journal.Load()
				if err != nil {
					t.Fatal(err)
				}
				if rec != nil { // giving back had to wait for etcd too
					if err := w.runner(w.ports.Journal).Recover(t.Context(), *rec); err != nil {
						t.Fatal(err)
					}
				}
				if got := w.facts(t); got != facts {
					t.Errorf("got\n%s\nwant\n%s", got, facts)
				}
				same(t, "ledger", holders(t, eyes), []string{old})
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same(t, "ledger", holders(t, eyes), []string{next})
			held, err := s.Held(t.Context(), "r1")
			if want := []state.Claim{{Name: "r1/endpoint/vtep0", Pool: "vteps", Value: "10.255.0.2"}}; err != nil || !slices.Equal(held, want) {
				t.Errorf("%v, %v", held, err)
			}
		})
	}
}

// TestForgottenClaims: a ledger that doesn't know of what is live, as when it was lost or an operator released it, renumbers nobody.
func TestForgottenClaims(t *testing.T) {
	ledger := memstore.New()
	l, other := ledgerOn(ledger.Open()), ledger.Open()
	l.o.Journal = journal.In(memoryDir(t))
	live := journal.Committed{Generation: 1, State: state.State{Claims: []state.Claim{{Name: "r1/endpoint/v", Pool: "p", Value: "10.0.0.5"}}}}
	if err := l.o.Journal.Commit(live); err != nil {
		t.Fatal(err)
	}
	cfg := parsed(t, "version: 1\nnode: {name: r1}\npools: {p: {addresses: [10.0.0.0/29]}}\nendpoints: {v: {loopback: {}, address: {pool: p}}}\n")
	ps, err := l.Propose(t.Context(), cfg)
	if err != nil || ps[0].Allocation.Value != "10.0.0.5" || ps[0].Action != alloc.Create {
		t.Errorf("%+v, %v", ps, err)
	}
	a, err := other.Create(t.Context(), alloc.Allocation{Name: "p@10.0.0.5", Pool: "p", Value: "10.0.0.5", Holders: []alloc.Holder{{Claim: "r2/endpoint/v"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := "r1/endpoint/v: PreferredValueUnavailable: 10.0.0.5 of pool p is held by r2/endpoint/v"
	if ps, err = l.Propose(t.Context(), cfg); err != nil || ps[0].Condition == nil || ps[0].Condition.Error() != want {
		t.Errorf("%+v, %v", ps, err)
	}
	if err := other.Delete(t.Context(), a.Name, a.Version); err != nil {
		t.Fatal(err)
	}
	// A claim of another pool, or with a preference of its own, moves.
	for text, value := range map[string]string{"pool: p, prefer: 10.0.0.6": "10.0.0.6", "pool: q": "10.0.1.0"} {
		cfg := parsed(t, "version: 1\nnode: {name: r1}\npools: {p: {addresses: [10.0.0.0/29]}, q: {addresses: [10.0.1.0/29]}}\nendpoints: {v: {loopback: {}, address: {"+text+"}}}\n")
		if ps, err = l.Propose(t.Context(), cfg); err != nil || ps[0].Allocation.Value != value {
			t.Errorf("%s: %+v, %v", text, ps, err)
		}
	}
}

// TestRouterRenamed: a router under another name is refused while what is live is claimed under the old one, whether its store can be
// asked or not, and the way that the refusal names renumbers nobody and leaves nothing behind.
func TestRouterRenamed(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		l := ledgerOn(r.store)
		l.o.Journal = r.ports.Journal
		r.ports.Ledger = l
		r.write(firstVNI)
		r.start()
		r.after(5 * time.Second)
		r.is(status.Idle)
		facts, writes := r.facts(t), r.writes()
		as := func(text, name string) string { return strings.Replace(text, "name: r1", "name: "+name, 1) }
		const others = "p2@10.250.0.1 r2/loopback/lo0/ipv4"
		const why = "FILE:2:14: node.name: is r3, and what is live is claimed by r1: 10.255.0.1 of pool vteps; name it r1 again, or change to a " +
			"config of that name first that claims nothing (the values excluded from their pools and given as static ones, say)"
		refused := func(why ...string) {
			t.Helper()
			r.drop(as(firstVNI, "r3"))
			r.after(time.Hour)
			r.is(status.Refused, why...)
		}
		refused(why)
		r.store.Fail = func(string, string) error { return errors.New("connection refused") }
		refused(why, "changes : ledger unavailable: connection refused") // which keeps what is live from being looked after
		r.store.Fail = nil
		if r.facts(t) != facts || r.writes() != writes {
			t.Error("what is live was touched")
		}
		same(t, "ledger", holders(t, r.store), []string{others, "vteps@10.255.0.1 r1/endpoint/vtep0"})

		fixed := strings.NewReplacer("{pool: vteps}", "{static: 10.255.0.1}", "exclude: [10.255.0.0]", "exclude: [10.255.0.0, 10.255.0.1]").Replace(firstVNI)
		for _, name := range []string{"r1", "r3"} {
			r.drop(as(fixed, name))
			r.after(time.Minute)
			r.is(status.Idle)
			same(t, "ledger of "+name, holders(t, r.store), []string{others})
		}
		r.drop(as(firstVNI, "r3"))
		r.after(time.Minute)
		r.is(status.Idle)
		same(t, "ledger", holders(t, r.store), []string{others, "vteps@10.255.0.1 r3/endpoint/vtep0"})
		// The facts name what r1 holds.
		if want := strings.Replace(facts, "[10.255.0.1 of pool vteps for r1/endpoint/vtep0]", "[]", 1); r.facts(t) != want {
			t.Errorf("got\n%s\nwant\n%s", r.facts(t), want)
		}
	})
}

// TestColdStart: three routers that share a pool start at once, two of which want one address: one has it, the other says why not,
// and goes on once told otherwise.
func TestColdStart(t *testing.T) {
	dirs := []string{memoryDir(t), memoryDir(t), memoryDir(t)}
	synctest.Test(t, func(t *testing.T) {
		ledger := memstore.New()
		var rs []*running
		for i, dir := range dirs {
			r := &running{t: t, state: filepath.Join(dir, "state"), file: filepath.Join(dir, "config.yaml")}
			r.world = newWorld(r.state)
			l := ledgerOn(ledger.Open())
			l.o.Journal = r.ports.Journal
			r.ports.Ledger = l
			text := moved
			if i == 2 {
				text = firstVNI
			}
			r.write(strings.Replace(text, "name: r1", fmt.Sprintf("name: r%d", i+1), 1))
			rs = append(rs, r)
		}
		ctx, stop := context.WithCancel(t.Context())
		for _, r := range rs {
			r.start()
			go r.ports.Ledger.Watch(ctx, r.hints) //nolint:errcheck // it ends with ctx
		}
		rs[0].after(10 * time.Second)
		rs[0].is(status.Idle)
		rs[2].is(status.Idle)
		rs[1].is(status.Waiting, "FILE:4:61: endpoints.vtep0.address.pool: r2/endpoint/vtep0: PreferredValueUnavailable: 10.255.0.2 of pool vteps is held by r1/endpoint/vtep0")
		rs[1].drop(strings.Replace(firstVNI, "name: r1", "name: r2", 1))
		rs[1].after(10 * time.Second)
		rs[1].is(status.Idle)
		same(t, "ledger", holders(t, ledger.Open()), []string{
			"vteps@10.255.0.1 r3/endpoint/vtep0", "vteps@10.255.0.2 r1/endpoint/vtep0", "vteps@10.255.0.3 r2/endpoint/vtep0",
		})
		stop()
		for _, r := range rs {
			r.halt()
		}
	})
}
