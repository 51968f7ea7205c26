package etcdstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"vtepd/alloc"
)

// quick is a timeout for tests in which etcd is away: three tries of half a second.
const quick = 1500 * time.Millisecond

func sample(n int) alloc.Allocation {
	value := fmt.Sprintf("10.0.%d.%d", n>>8, n&255)
	return alloc.Allocation{
		Name: alloc.Name("p", value), Pool: "p", Value: value, Created: time.Unix(1700000000, 5).UTC(),
		Holders: []alloc.Holder{{Claim: fmt.Sprintf("leaf1/%d", n), UID: "u"}},
	}
}

func mustPools(t testing.TB, cidr string) *alloc.Pools {
	t.Helper()
	p, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{cidr}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually tries f until it succeeds.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx := t.Context()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

func await(t *testing.T, hints <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-hints:
	case <-time.After(30 * time.Second):
		t.Fatalf("no hint of %s", what)
	}
}

func drain(hints <-chan struct{}) {
	for {
		select {
		case <-hints:
		default:
			return
		}
	}
}

// proxy is a way to etcd that can be cut.
type proxy struct {
	to string
	l  net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
	shut  bool
	// onRequest and onAnswer see each piece that passes; false cuts the connection instead of passing it on.
	onRequest, onAnswer func() bool
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	address, _ := hostOf(to)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	yes := func() bool { return true }
	p := &proxy{to: address, l: l, conns: map[net.Conn]bool{}, onRequest: yes, onAnswer: yes}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		tasks.Wait()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.l.Addr().String() }

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	if p.shut {
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	s, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer s.Close()
	p.mu.Lock()
	p.conns[c], p.conns[s] = true, true
	shut := p.shut
	p.mu.Unlock()
	if shut {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(s, c, func() bool { return p.onRequest() }) })
	both.Go(func() { p.pass(c, s, func() bool { return p.onAnswer() }) })
	both.Wait()
	p.mu.Lock()
	delete(p.conns, c)
	delete(p.conns, s)
	p.mu.Unlock()
}

func (p *proxy) pass(to, from net.Conn, ok func() bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		pass := ok()
		p.mu.Unlock()
		if !pass {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cut ends all connections, and whoever comes is sent away.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = false
}

// etcd isn't there when the Store is opened: every call says so, soon, and the first that finds it goes on.
func TestNotThereYet(t *testing.T) {
	cfg := member(t, nil)
	url := cfg.ListenClientUrls[0].String()
	var e *embed.Etcd
	t.Cleanup(func() { e.Close() })
	s := open(t, Options{Endpoints: []string{url}, Timeout: quick})
	hints, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cause := "etcd " + url + ": connection refused"
	_, gerr := s.Get(t.Context(), "p@10.0.0.1")
	_, cerr := s.Create(t.Context(), sample(1))
	_, rerr := s.Changes(t.Context(), 0)
	for what, err := range map[string]error{"get p@10.0.0.1": gerr, "create p@10.0.0.1": cerr, "read": rerr, "health": s.Health(t.Context())} {
		if !errors.Is(err, alloc.ErrUnavailable) || err.Error() != what+": ledger unavailable: "+cause {
			t.Errorf("%s: %v, want %s", what, err, cause)
		}
	}
	if d := time.Since(began); d > 4*quick {
		t.Errorf("that took %s", d)
	}
	c := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
	_, _, err = c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"})
	var k *alloc.Condition
	if !errors.As(err, &k) || k.Reason != alloc.LedgerUnavailable || k.Message != "read: ledger unavailable: "+cause {
		t.Errorf("acquire: %v", err)
	}
	drain(hints)
	e = start(t, cfg)
	// A hint wakes those that wait, though nothing has changed in the ledger.
	eventually(t, "acquire", func() error {
		_, _, err := c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"})
		return err
	})
}

// A silent host: nothing refuses, and nothing answers.
func TestSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := "http://" + l.Addr().String()
	s := open(t, Options{Endpoints: []string{url}, Timeout: quick})
	began := time.Now()
	_, err = s.Create(t.Context(), sample(1))
	if want := "create p@10.0.0.1: ledger unavailable: etcd " + url + ": no answer within 1.5s"; text(err) != want {
		t.Errorf("create: %v, want %s", err, want)
	}
	if d := time.Since(began); d > 2*quick {
		t.Errorf("that took %s", d)
	}
}

// Lost and back between, and during, everything that a move consists of.
func TestLostAndBack(t *testing.T) {
	e := server(t, nil)
	p := newProxy(t, endpoints(e)[0])
	s := open(t, Options{Endpoints: []string{p.url()}, Timeout: quick})
	there := open(t, Options{Endpoints: endpoints(e)})
	hints, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pools := mustPools(t, "10.0.0.0/24")
	c, other := alloc.NewClaimer(s, pools), alloc.NewClaimer(there, pools)
	x := func(prefer string) alloc.Claim {
		return alloc.Claim{Name: "leaf1/x", UID: "u", Pool: "p", Prefer: prefer}
	}
	steps := []struct {
		what string
		do   func() error
		want []string
	}{
		{"claim", func() error { _, _, err := c.Acquire(t.Context(), x("10.0.0.1")); return err }, []string{"p@10.0.0.1"}},
		{"move", func() error { _, _, err := c.Acquire(t.Context(), x("10.0.0.2")); return err }, []string{"p@10.0.0.1", "p@10.0.0.2"}},
		{"retire", func() error { return c.Release(t.Context(), "p@10.0.0.1", "leaf1/x", "u") }, []string{"p@10.0.0.2"}},
		{"release", func() error { return c.Release(t.Context(), "p@10.0.0.2", "leaf1/x", "u") }, nil},
	}
	ledger := func() []string {
		all, _, err := other.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, a := range all {
			out = append(out, a.Name)
		}
		return out
	}
	var before []string
	for _, st := range steps {
		p.cut()
		if err := st.do(); !errors.Is(err, alloc.ErrUnavailable) {
			t.Errorf("%s without etcd: %v", st.what, err)
		}
		if got := ledger(); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("%s without etcd: %v, want %v", st.what, got, before)
		}
		drain(hints)
		p.mend()
		await(t, hints, "etcd being back")
		eventually(t, st.what, st.do)
		if got := ledger(); fmt.Sprint(got) != fmt.Sprint(st.want) {
			t.Errorf("%s with etcd back: %v, want %v", st.what, got, st.want)
		}
		before = st.want
	}
}

// etcd stops and starts on the same data: nothing has changed, and what has meanwhile shows.
func TestRestarted(t *testing.T) {
	cfg := member(t, nil)
	e := start(t, cfg)
	t.Cleanup(func() { e.Close() }) // whichever it is by then, after its clients
	p := newProxy(t, endpoints(e)[0])
	s := open(t, Options{Endpoints: []string{p.url()}, Timeout: quick})
	first, err := s.Changes(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.Create(t.Context(), sample(1))
	if err != nil {
		t.Fatal(err)
	}
	p.cut() // or etcd would wait for its clients
	e.Close()
	if _, err := s.Get(t.Context(), made.Name); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("stopped: %v", err)
	}
	if err := s.Health(t.Context()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("health while stopped: %v", err)
	}
	e = start(t, cfg)
	p.mend()
	eventually(t, "get", func() error {
		got, err := s.Get(t.Context(), made.Name)
		if err == nil && got.Version != made.Version {
			t.Errorf("version %s, was %s", got.Version, made.Version)
		}
		return err
	})
	if _, err := open(t, Options{Endpoints: endpoints(e)}).Create(t.Context(), sample(2)); err != nil {
		t.Fatal(err)
	}
	ch, err := s.Changes(t.Context(), first.Next)
	if err != nil || len(ch.Set) != 2 || len(ch.Gone) != 0 {
		t.Errorf("changes: %+v %v", ch, err)
	}
	if err := s.Health(t.Context()); err != nil {
		t.Errorf("health: %v", err)
	}
}

// What a watch missed and etcd has compacted is read anew.
func TestCompacted(t *testing.T) {
	e := server(t, nil)
	p := newProxy(t, endpoints(e)[0])
	s := open(t, Options{Endpoints: []string{p.url()}, Timeout: quick})
	there := open(t, Options{Endpoints: endpoints(e)})
	var made []alloc.Allocation
	for i := range 4 {
		a, err := there.Create(t.Context(), sample(i))
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, a)
	}
	first, err := s.Changes(t.Context(), 0)
	if err != nil || len(first.Set) != 4 {
		t.Fatalf("%+v %v", first, err)
	}
	hints, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.cut()
	if err := there.Delete(t.Context(), made[0].Name, made[0].Version); err != nil {
		t.Fatal(err)
	}
	made[1].AllowBinding = true
	if made[1], err = there.Update(t.Context(), made[1]); err != nil {
		t.Fatal(err)
	}
	if err := there.Delete(t.Context(), made[2].Name, made[2].Version); err != nil {
		t.Fatal(err)
	}
	if made[2], err = there.Create(t.Context(), sample(2)); err != nil {
		t.Fatal(err)
	}
	cli, err := there.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Compact(t.Context(), revision(made[2].Version)); err != nil {
		t.Fatal(err)
	}
	drain(hints)
	p.mend()
	await(t, hints, "etcd being back")
	var ch alloc.Changes
	eventually(t, "changes", func() (err error) { ch, err = s.Changes(t.Context(), first.Next); return err })
	if len(ch.Gone) != 1 || ch.Gone[0] != made[0].Name || len(ch.Set) != 2 || ch.Set[0].Version != made[1].Version || ch.Set[1].Version != made[2].Version || ch.Reset {
		t.Errorf("changes: %+v", ch)
	}
	if _, err := there.Create(t.Context(), sample(9)); err != nil {
		t.Fatal(err)
	}
	if ch, err = s.Changes(t.Context(), ch.Next); err != nil || len(ch.Set) != 1 || ch.Set[0].Name != "p@10.0.0.9" {
		t.Errorf("and then: %+v %v", ch, err)
	}
}

// An etcd that has lost the ledger isn't taken for an empty one.
func TestForgotten(t *testing.T) {
	cfg := member(t, nil)
	e := start(t, cfg)
	t.Cleanup(func() { e.Close() }) // whichever it is by then, after its clients
	p := newProxy(t, endpoints(e)[0])
	url := p.url()
	cache := filepath.Join(t.TempDir(), "claims.json")
	o := Options{Endpoints: []string{url}, Timeout: quick, Cache: cache, Node: "leaf1"}
	s := open(t, o)
	bare := open(t, Options{Endpoints: []string{url}, Timeout: quick})
	for i := range 3 {
		if _, err := s.Create(t.Context(), sample(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := bare.Changes(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	cli, err := s.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check := func(s *Store, want string) {
		t.Helper()
		want = "ledger unavailable: etcd " + url + ": " + want
		eventually(t, "etcd", func() error {
			_, err := s.Changes(t.Context(), 0)
			_, cerr := s.Create(t.Context(), sample(9))
			if text(err) != "read: "+want && text(err) != "changes: "+want || text(cerr) != "create p@10.0.0.9: "+want {
				return fmt.Errorf("%w; %w; want %s", err, cerr, want)
			}
			return nil
		})
	}
	advice := "; if that is meant, remove " + cache
	was, err := cli.Get(t.Context(), "/vtepd/head")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cli.Delete(t.Context(), "/vtepd/head"); err != nil {
		t.Fatal(err)
	}
	check(bare, "/vtepd/head is gone, and with it the ledger")
	check(open(t, o), "/vtepd/head is gone, and with it the ledger"+advice)
	if _, err := cli.Put(t.Context(), "/vtepd/head", `{"version":1,"ledger":"another"}`); err != nil {
		t.Fatal(err)
	}
	check(bare, "/vtepd is another ledger than before")
	check(open(t, o), "/vtepd is another ledger than before"+advice)
	if _, err := cli.Put(t.Context(), "/vtepd/head", `{"version":2,"ledger":"another"}`); err != nil {
		t.Fatal(err)
	}
	check(bare, "/vtepd/head: format version 2 is newer than 1, the newest known here")
	// Put back, it goes on.
	if _, err := cli.Put(t.Context(), "/vtepd/head", string(was.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if _, err := bare.Create(t.Context(), sample(5)); err != nil {
		t.Error(err)
	}

	// The same ledger, as it was long ago.
	p.cut()
	e.Close()
	cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	e = start(t, cfg)
	p.mend()
	fresh := open(t, Options{Endpoints: []string{url}, Prefix: "/elsewhere"})
	if _, err := fresh.Create(t.Context(), sample(1)); err != nil {
		t.Fatal(err)
	}
	there, err := fresh.client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put, err := there.Put(t.Context(), "/vtepd/head", string(was.Kvs[0].Value))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd", func() error {
		_, err := bare.Changes(t.Context(), 0)
		top := bare.before() // what its watch had under way is in it by now
		if put.Header.Revision >= top {
			return fmt.Errorf("revision %d, not below %d", put.Header.Revision, top)
		}
		if want := fmt.Sprintf("changes: ledger unavailable: etcd %s: at revision %d, after revision %d: it was restored from an older copy", url, put.Header.Revision, top); text(err) != want {
			return fmt.Errorf("%w; want %s", err, want)
		}
		return nil
	})
	if known := open(t, o).Known(); len(known) != 3 {
		t.Errorf("known: %+v", known)
	}
}

// What the claims of this node hold is known without etcd.
func TestCache(t *testing.T) {
	e := server(t, nil)
	p := newProxy(t, endpoints(e)[0])
	o := Options{Endpoints: []string{p.url()}, Timeout: quick, Cache: filepath.Join(t.TempDir(), "claims.json"), Node: "leaf1"}
	names := func(s *Store) string {
		var out []string
		for _, a := range s.Known() {
			out = append(out, a.Name+" "+a.Holders[0].Claim)
		}
		return fmt.Sprint(out)
	}
	want := func(what string, s *Store, w string) {
		t.Helper()
		if got := names(s); got != w {
			t.Errorf("%s: %s, want %s", what, got, w)
		}
	}
	s := open(t, o)
	want("nothing", s, "[]")
	there := open(t, Options{Endpoints: endpoints(e)})
	mine, err := s.Create(t.Context(), sample(1))
	if err != nil {
		t.Fatal(err)
	}
	theirs := sample(2)
	theirs.Holders[0].Claim = "leaf10/x"
	if _, err := s.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Create(t.Context(), sample(3)); err != nil {
		t.Fatal(err)
	}
	want("its own", open(t, o), "[p@10.0.0.1 leaf1/1]")
	if _, err := s.Changes(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	p.cut()
	away := open(t, o)
	want("without etcd", away, "[p@10.0.0.1 leaf1/1 p@10.0.0.3 leaf1/3]")
	// Another process releases one by an operator's word; it is known once etcd is back.
	if err := there.Delete(t.Context(), mine.Name, mine.Version); err != nil {
		t.Fatal(err)
	}
	p.mend()
	eventually(t, "changes", func() error { _, err := away.Changes(t.Context(), 0); return err })
	want("back", away, "[p@10.0.0.3 leaf1/3]")
	want("and on disk", open(t, o), "[p@10.0.0.3 leaf1/3]")
}

func TestCacheUnusable(t *testing.T) {
	e := server(t, nil)
	dir := t.TempDir()
	s := open(t, Options{Endpoints: endpoints(e), Cache: filepath.Join(dir, "no/such/file"), Node: "leaf1"})
	// A claim isn't refused because of it, and Health tells.
	if _, err := s.Create(t.Context(), sample(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Health(t.Context()); !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("health: %v", err)
	}
	if err := s.Unkept(); err == nil || !strings.HasPrefix(err.Error(), "cache "+dir+"/no/such/file: ") {
		t.Errorf("unkept: %v", err)
	}
	// Once it can be written it is, although nothing has changed since.
	if err := os.MkdirAll(filepath.Join(dir, "no/such"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Unkept(), s.Health(t.Context())); err != nil {
		t.Errorf("unkept: %v", err)
	}
	if known := open(t, Options{Endpoints: endpoints(e), Cache: filepath.Join(dir, "no/such/file"), Node: "leaf1"}).Known(); len(known) != 1 {
		t.Errorf("known: %+v", known)
	}
	if _, err := Open(Options{Endpoints: endpoints(e), Cache: dir, Node: "leaf1"}); err == nil {
		t.Error("a directory is taken for a cache")
	}
}
