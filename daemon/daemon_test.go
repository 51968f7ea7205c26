package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/daemon/history"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/status"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
)

// running is a daemon at work on a world, in a bubble of synthetic time.
type running struct {
	*world
	d     *Daemon
	t     *testing.T
	state string // the directory of the journal
	file  string // the config
	board *status.Board
	log   *logged
	hints chan struct{}
	stop  context.CancelFunc
	done  chan error
}

// logged keeps what is logged, as "LEVEL message: why".
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo || r.Message == "step" {
		return nil
	}
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "why" || a.Key == "note" || a.Key == "what" {
			line += ": " + a.Value.String()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// took is what was logged since the last call.
func (l *logged) took() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// in runs f in a bubble, on a router that no daemon has seen yet.
func in(t *testing.T, f func(t *testing.T, r *running)) {
	t.Helper()
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		r := &running{t: t, state: filepath.Join(dir, "state"), file: filepath.Join(dir, "config.yaml")}
		r.world = newWorld(r.state)
		defer func() {
			if r.stop != nil {
				r.halt()
			}
		}()
		f(t, r)
	})
}

// start starts a daemon and waits until it has nothing to do at this moment.
func (r *running) start() {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	r.board, r.log, r.stop, r.done = &status.Board{}, &logged{}, stop, make(chan error, 1)
	r.hints = make(chan struct{}, 1)
	r.d = New(Options{
		Ports: r.ports, Config: r.file, Hints: r.hints, History: history.In(filepath.Join(r.state, "history")),
		Board: r.board, Log: slog.New(r.log),
	})
	go func() { r.done <- r.d.Run(ctx) }()
	synctest.Wait()
}

// halt tells the daemon to stop, and waits until it has.
func (r *running) halt() {
	r.t.Helper()
	r.stop()
	r.stop = nil
	if err := <-r.done; err != nil {
		r.t.Errorf("the daemon ended with: %v", err)
	}
}

// drop writes the config and tells the daemon of it.
func (r *running) drop(text string) {
	r.t.Helper()
	r.write(text)
	r.hint()
}

func (r *running) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) hint() {
	r.hints <- struct{}{}
	synctest.Wait()
}

// after lets time pass.
func (r *running) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// is holds the board to a condition and its messages, with the config's path as FILE.
func (r *running) is(want status.Condition, messages ...string) {
	r.t.Helper()
	s, _ := r.board.Get()
	for i, m := range s.Messages {
		s.Messages[i] = strings.ReplaceAll(m, r.file, "FILE")
	}
	if diff := cmp.Diff(messages, s.Messages, cmpopts.EquateEmpty()); s.Condition != want || diff != "" {
		r.t.Fatalf("%s, want %s: -want +got:\n%s", s.Condition, want, diff)
	}
}

// writes counts what was changed anywhere: netlink messages, FRR's lines, and files of the state directory.
func (r *running) writes() string {
	r.t.Helper()
	text := fmt.Sprintln(r.kernel.Counts().Messages, r.kernel.Counts().Batches, len(r.frr.Edits()))
	err := filepath.WalkDir(r.state, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		text += fmt.Sprintln(path, info.Size(), info.ModTime().UnixNano())
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

const (
	preamble = "version: 1\nnode: {name: r1, index: 7}\npools: {vteps: {addresses: [10.255.0.0/30], exclude: [10.255.0.0]}}\n"
	firstVNI = preamble + "endpoints: {vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps}}}\nvnis: {100: {endpoint: vtep0}}\n"
	moved    = preamble + "endpoints: {vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps, prefer: 10.255.0.2}}}\nvnis: {100: {endpoint: vtep0}}\n"
)

var at1, at2 = netip.MustParseAddr("10.255.0.1"), netip.MustParseAddr("10.255.0.2")

// vtep is the address of the endpoint that is live.
func (r *running) vtep() netip.Addr {
	r.t.Helper()
	l, _ := dataplane.Find(r.kernel.Links(), "vxlan100")
	return l.Local
}

func TestFirstFile(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.start()
		r.is(status.Invalid, "stat FILE: no such file or directory")
		r.drop(firstVNI)
		r.is(status.Idle)
		s, _ := r.board.Get()
		if s.Generation != 1 || s.Node != "r1" || s.State == "" || s.Failure != nil || s.Transaction.Result != "committed" || s.Transaction.SwapBatches != 1 {
			t.Errorf("%+v\n%+v", s, s.Transaction)
		}
		link := slices.IndexFunc(r.kernel.Links(), func(l dataplane.Link) bool { return l.Owner == "endpoint/vtep0" })
		wantEndpoints := []status.Endpoint{{Name: "vtep0", Link: r.kernel.Links()[link].Name, Address: at1, Parent: "eth1", Announced: true}}
		wantVNIs := []status.VNI{{VNI: 100, Device: "vxlan100", VTEP: at1, Bridge: "br100"}}
		if diff := cmp.Diff(wantEndpoints, s.Endpoints, cmpopts.EquateComparable(netip.Addr{})) + cmp.Diff(wantVNIs, s.VNIs, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		var phases []plan.Phase
		for _, p := range s.Transaction.Phases {
			phases = append(phases, p.Phase)
		}
		// The end of the journal is the end of what retires.
		if want := []plan.Phase{plan.Claim, plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Retire}; !slices.Equal(phases, want) {
			t.Errorf("phases %v, want %v", phases, want)
		}
		want := []string{
			"WARN invalid: stat " + r.file + ": no such file or directory",
			"INFO transaction: generation 1, 8 steps",
			"INFO transaction ended",
			"INFO idle: ",
		}
		if diff := cmp.Diff(want, r.log.took()); diff != "" {
			t.Errorf("logged: -want +got:\n%s", diff)
		}
	})
}

// TestInvalid: an invalid file leaves all that runs as it is, and every problem is reported, once.
func TestInvalid(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		before, facts := r.writes(), r.facts(t)
		r.log.took()
		r.drop(strings.Replace(firstVNI, "100:", "0:", 1) + "vniss: {}\n")
		r.is(status.Invalid,
			"FILE:5:8: vnis.0: 0 is not a VNI; must be a decimal number from 1 to 16777215",
			"FILE:6:1: vniss: is not a known key; did you mean vnis?",
			"running on the config of generation 1, which was verified last")
		if r.writes() != before || r.facts(t) != facts {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
		r.hint()
		if lines := r.log.took(); len(lines) != 1 || !strings.HasPrefix(lines[0], "WARN invalid: ") {
			t.Errorf("logged: %q", lines)
		}
		r.drop(firstVNI)
		r.is(status.Idle)
		if r.writes() != before {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
	})
}

// TestNoDifference: a file that says the same changes no link, no line of FRR's, and begins no journal.
func TestNoDifference(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		kernel, edits, facts := r.kernel.Counts(), len(r.frr.Edits()), r.facts(t)
		committed, err := os.Stat(filepath.Join(r.state, "committed.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			"# a comment\n" + firstVNI,
			"vnis: {100: {endpoint: vtep0}}\n" + strings.Replace(firstVNI, "vnis: {100: {endpoint: vtep0}}\n", "", 1),
			strings.Replace(firstVNI, "{endpoint: vtep0}", "{endpoint: vtep0, port: 4789, bridge: br100}", 1),
		} {
			r.drop(text)
			r.is(status.Idle)
		}
		before := r.writes()
		for range 3 {
			r.hint()
		}
		r.after(10 * time.Minute)
		r.is(status.Idle)
		now := r.kernel.Counts()
		if now.Messages != kernel.Messages || now.Batches != kernel.Batches || len(r.frr.Edits()) != edits || r.facts(t) != facts {
			t.Errorf("changed: %+v, was %+v; %d edits, were %d", now, kernel, len(r.frr.Edits()), edits)
		}
		again, err := os.Stat(filepath.Join(r.state, "committed.json"))
		if err != nil || again.ModTime() != committed.ModTime() {
			t.Errorf("committed again: %v", err)
		}
		if _, err := os.Stat(filepath.Join(r.state, "journal")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a journal: %v", err)
		}
		if r.writes() != before {
			t.Errorf("looking again wrote something:\n%s%s", before, r.writes())
		}
	})
}

// TestFRRUnreachable: the daemon waits for FRR, says so once, and goes on by itself.
func TestFRRUnreachable(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		gone := fmt.Errorf("zebra: /var/run/frr/zebra.vty: %w: no such file or directory", frr.ErrUnreachable)
		r.frr.SetUnreachable(gone)
		r.write(firstVNI)
		r.start()
		r.is(status.Waiting, gone.Error())
		if n := r.kernel.Counts().Messages; n > 0 {
			t.Errorf("%d netlink messages", n)
		}
		for range 5 {
			r.hint()
		}
		r.after(5 * time.Minute)
		r.is(status.Waiting, gone.Error())
		if diff := cmp.Diff([]string{"WARN waiting: " + gone.Error()}, r.log.took()); diff != "" {
			t.Errorf("logged: -want +got:\n%s", diff)
		}
		r.frr.SetUnreachable(nil)
		r.after(15 * time.Second)
		r.is(status.Idle)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
	})
}

// TestRefused: what can't be reached touches nothing, and is looked at again by itself.
func TestRefused(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(strings.Replace(firstVNI, "eth1", "eth9", 1))
		r.start()
		why := "FILE:4:38: endpoints.vtep0.ipvlan.parent: no link eth9 in the router's namespace; links there: eth1, eth2"
		r.is(status.Refused, why)
		if r.kernel.Counts().Messages > 0 || len(r.frr.Edits()) > 0 {
			t.Error("something was touched")
		}
		if held, err := r.ports.Ledger.Held(t.Context(), "r1"); err != nil || len(held) > 0 {
			t.Errorf("claimed: %v (%v)", held, err)
		}
		r.after(5 * time.Minute)
		r.is(status.Refused, why)
		if lines := r.log.took(); len(lines) != 1 {
			t.Errorf("logged: %q", lines)
		}
		r.kernel.Add(dataplane.Link{Name: "eth9", Up: true, MTU: 1500})
		r.after(15 * time.Second)
		r.is(status.Idle)
	})
}

// TestLiveIsKept: what was committed last is put back, whatever keeps another file from being carried out.
func TestLiveIsKept(t *testing.T) {
	other := strings.Replace(firstVNI, "address: {pool: vteps}", "address: {pool: vteps, prefer: 10.255.0.2}", 1)
	crowded := strings.Replace(firstVNI, "endpoints: {", "endpoints: {"+ // more than the pool has
		"a: {ipvlan: {parent: eth1}, address: {pool: vteps}}, b: {ipvlan: {parent: eth1}, address: {pool: vteps}}, c: {ipvlan: {parent: eth1}, address: {pool: vteps}}, ", 1)
	for name, c := range map[string]struct {
		text      string
		condition status.Condition
		meanwhile func(*running)
	}{
		"refused":    {text: strings.Replace(firstVNI, "eth1", "eth9", 1), condition: status.Refused},
		"disruptive": {text: strings.Replace(firstVNI, "{endpoint: vtep0}", "{endpoint: vtep0, port: 8472}", 1), condition: status.Refused},
		"waiting":    {text: crowded, condition: status.Waiting},
		"failed": {text: other, condition: status.Failed, meanwhile: func(r *running) {
			r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
				if when == fake.Before && op.Link.VNI == 100 && op.Link.Local == at2 && (op.Verb == dataplane.Set || op.Verb == dataplane.Create) {
					r.kernel.FailAt(n, errInjected)
				}
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *running) {
				r.write(firstVNI)
				r.start()
				facts := r.facts(t)
				full, err := r.frr.Observe(t.Context(), frr.Query{Config: true})
				if err != nil {
					t.Fatal(err)
				}
				operators := slices.DeleteFunc(full.Networks, func(n frr.Network) bool { return n.RouteMap == frr.Mark })
				if c.meanwhile != nil {
					c.meanwhile(r)
				}
				r.drop(c.text)
				r.after(goingBack)
				before, _ := r.board.Get()
				if before.Condition != c.condition || len(before.Messages) != 1 {
					t.Fatalf("%s: %q", before.Condition, before.Messages)
				}
				// Both would be lost at once with a bgpd that restarts and an operator's slip.
				r.frr.SetNetworks(operators...)
				r.kernel.Remove("vxlan100")
				r.hint()
				r.after(3 * time.Second)
				r.same(facts)
				s, _ := r.board.Get()
				same := slices.Equal(s.Messages, before.Messages) || c.condition == status.Failed // it may fail at another step of another way
				if s.Condition != c.condition || !same || s.Repairs.Count != 1 || (s.Failure == nil) != (before.Failure == nil) {
					t.Errorf("%s: %q, %+v; %+v", s.Condition, s.Messages, s.Repairs, s.Failure)
				}
				r.after(10 * time.Minute)
				r.same(facts)
				// A start is no other moment.
				r.halt()
				r.frr.SetNetworks(operators...)
				r.kernel.Remove("vxlan100")
				r.start()
				r.after(3 * time.Second)
				r.same(facts)
				r.kept(1)
				r.drop(firstVNI)
				r.is(status.Idle)
			})
		})
	}
}

// TestDisruptive: what isn't hitless waits for the operator's word.
func TestDisruptive(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		port := strings.Replace(firstVNI, "{endpoint: vtep0}", "{endpoint: vtep0, port: 8472}", 1)
		r.drop(port)
		r.is(status.Refused, "FILE:1:1: transaction.allowDisruptive: not hitless: vxlan100: the port can't change from 4789 to 8472 in place: "+
			"VNI 100 is deleted and made again, and its traffic stops until BGP has taught it the remote addresses again, "+
			"at most 1m0s until that is proven, or else 3m0s more until everything is as it was; "+
			"between it and a remote router it stops until that has the port too; set it to true to allow that, or give --allow-disruptive to `vtepd apply` or `vtepd rollback`")
		if got := r.facts(t); got != facts {
			t.Errorf("got\n%swant\n%s", got, facts)
		}
		r.drop(port + "transaction: {allowDisruptive: true}\n")
		r.is(status.Idle)
		if l, _ := dataplane.Find(r.kernel.Links(), "vxlan100"); l.Port != 8472 || !l.Up {
			t.Errorf("%+v", l)
		}
	})
}

// TestPoolExhausted: the daemon waits for a value, and takes it once it is free.
func TestPoolExhausted(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		three := strings.Replace(firstVNI, "pool: vteps}}}", "pool: vteps}}, v1: {loopback: {}, address: {pool: vteps}}, v2: {loopback: {}, address: {pool: vteps}}, v3: {loopback: {}, address: {pool: vteps}}}", 1)
		r.write(three)
		r.start()
		s, _ := r.board.Get()
		if s.Condition != status.Waiting || len(s.Messages) != 1 || !strings.Contains(s.Messages[0], "endpoints.vtep0.address.pool: pool vteps exhausted: r1/endpoint/vtep0: PoolExhausted: ") {
			t.Fatalf("%s: %q", s.Condition, s.Messages)
		}
		if n := r.kernel.Counts().Messages; n > 0 {
			t.Errorf("%d netlink messages", n)
		}
		r.drop(strings.Replace(three, "10.255.0.0/30", "10.255.0.0/29", 1))
		r.is(status.Idle)
	})
}

// TestHoldOff: a plan that was rolled back isn't tried again at once, whoever wakes the loop; another one is.
func TestHoldOff(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.log.took()
		var fixed atomic.Bool
		var tries atomic.Int32
		r.kernel.OnOp(func(n int, when fake.When, op dataplane.Op) {
			if when == fake.Before && op.Verb == dataplane.Set && op.Link.VNI == 100 && op.Link.Local == at2 && !fixed.Load() {
				tries.Add(1)
				r.kernel.FailAt(n, errInjected)
			}
		})
		r.drop(moved)
		const why = "swap: step 7: set vxlan100: injected: device or resource busy; everything is as it was"
		r.after(goingBack)
		r.is(status.Failed, why)
		s, _ := r.board.Get()
		if diff := cmp.Diff(&status.Failure{Phase: plan.Swap, Step: 7, Object: "vxlan100", Message: "set vxlan100: injected: device or resource busy"}, s.Failure); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if s.Transaction.Result != "rolled back" || s.Generation != 1 || r.facts(t) != facts {
			t.Errorf("generation %d, %+v", s.Generation, s.Transaction)
		}
		for range 5 {
			r.hint()
			r.after(5 * time.Second)
		}
		r.is(status.Failed, why)
		if n := tries.Load(); n != 1 {
			t.Errorf("tried %d times within 25s", n)
		}
		r.after(6 * time.Second)
		if n := tries.Load(); n != 2 {
			t.Errorf("tried %d times after 31s", n)
		}
		r.is(status.Failed, why)
		want := []string{
			"INFO transaction: generation 2, 13 steps", "WARN step failed", "INFO transaction ended", "ERROR failed: " + why,
			"INFO transaction: generation 2, 13 steps", "WARN step failed", "INFO transaction ended", "ERROR failed: " + why,
		}
		if diff := cmp.Diff(want, r.log.took()); diff != "" {
			t.Errorf("logged: -want +got:\n%s", diff)
		}
		// Another file is tried at once.
		fixed.Store(true)
		r.drop(moved + "transaction: {timeout: 30s}\n")
		r.after(2 * time.Second) // the drain
		r.is(status.Idle)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
	})
}

// TestOperatorsLine: a network line that the operator made for the endpoint's address stays theirs, to the end.
func TestOperatorsLine(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		theirs := []frr.Network{{Prefix: netip.MustParsePrefix("10.255.0.1/32")}, {Prefix: netip.MustParsePrefix("192.0.2.0/24")}}
		r.frr.SetNetworks(theirs...)
		r.write(firstVNI)
		r.start()
		const note = "FRR has a `network 10.255.0.1/32` line that vtepd didn't write: it is left as it is, and announces the endpoint"
		r.is(status.Idle, note)
		if s, _ := r.board.Get(); s.Endpoints[0].Announced {
			t.Error("vtepd takes the line for its own")
		}
		r.drop(preamble)
		r.after(2 * time.Second) // the drain
		r.is(status.Idle)
		if o, err := r.frr.Observe(t.Context(), frr.Query{Config: true}); err != nil || !slices.Equal(o.Networks, theirs) {
			t.Errorf("%v, want %v (%v)", o.Networks, theirs, err)
		}
	})
}

// TestOperatorsMap: with a line of the operator's on the map that vtepd marks its lines with, the map outlives vtepd's.
func TestOperatorsMap(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		theirs := []frr.Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), RouteMap: frr.Mark}}
		r.frr.SetRouteMap(frr.RouteMap{Present: true, Ours: true})
		r.frr.SetNetworks(theirs...)
		r.write(firstVNI)
		r.start()
		r.is(status.Idle)
		r.drop(preamble)
		r.after(2 * time.Second) // the drain
		r.is(status.Idle)
		o, err := r.frr.Observe(t.Context(), frr.Query{Config: true})
		if err != nil || !slices.Equal(o.Networks, theirs) || !o.RouteMap.Present {
			t.Errorf("%v, map %t (%v)", o.Networks, o.RouteMap.Present, err)
		}
	})
}

// TestStopAndStart: a daemon that is told to stop leaves everything running, and the next one changes nothing.
func TestStopAndStart(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.halt()
		before, facts := r.writes(), r.facts(t)
		r.start()
		r.is(status.Idle)
		if s, _ := r.board.Get(); s.Generation != 1 || len(s.VNIs) != 1 || s.Transaction != nil {
			t.Errorf("%+v", s)
		}
		if r.writes() != before || r.facts(t) != facts {
			t.Errorf("something was written:\n%s%s", before, r.writes())
		}
	})
}

// TestStopInTheMiddle: one that is told to stop while it waits goes back, and the next one does it all.
func TestStopInTheMiddle(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		r.frr.SetSent(func(p netip.Prefix, _ string) bool { return p.Addr() != at2 })
		r.write(moved)
		r.hints <- struct{}{}
		r.after(time.Second)
		r.is(status.Running)
		r.halt()
		if got := r.facts(t); got != facts {
			t.Errorf("got\n%swant\n%s", got, facts)
		}
		r.frr.SetSent(nil)
		r.start()
		r.after(5 * time.Second)
		r.is(status.Idle)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
	})
}

// TestDegradedAndBack: FRR goes away under an edit, so not even the way back works; once it is there again, all is well.
func TestDegradedAndBack(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		gone := fmt.Errorf("bgpd: %w: EOF", frr.ErrUnreachable)
		edits := r.frr.Seen()
		r.frr.OnEdit(func(k int, _ frr.Edit) {
			if k == edits+2 {
				r.frr.SetUnreachable(gone)
			}
		})
		r.drop(moved)
		const back = "undo of announce: step 4: bgpd: FRR can't be reached: EOF"
		s, _ := r.board.Get()
		if s.Condition != status.Degraded || len(s.Messages) != 1 || !strings.Contains(s.Messages[0], back) {
			t.Fatalf("%s: %q", s.Condition, s.Messages)
		}
		r.after(time.Minute)
		if s, _ := r.board.Get(); s.Condition != status.Degraded {
			t.Errorf("%s: %q", s.Condition, s.Messages)
		}
		r.frr.SetUnreachable(nil)
		r.after(time.Minute)
		r.is(status.Idle)
		if r.vtep() != at2 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		if o, err := r.frr.Observe(t.Context(), frr.Query{Config: true}); err != nil || len(o.Networks) != 2 {
			t.Errorf("%v (%v)", o.Networks, err)
		}
	})
}

// TestLeftovers: what a killed daemon left is undone or finished before anything else, and said.
func TestLeftovers(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.halt()
		p, err := r.plan(moved)
		if err != nil {
			t.Fatal(err)
		}
		r.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
			if when == fake.After && op.Verb == dataplane.Set && op.Link.VNI == 100 && op.Link.Local == at2 {
				panic(killed{})
			}
		})
		func() {
			defer func() {
				if v := recover(); v != (killed{}) {
					t.Errorf("recovered %v", v)
				}
			}()
			_ = r.runner(r.ports.Journal).Run(t.Context(), p) // it doesn't return
		}()
		r.kernel.Restart()
		if r.vtep() != at2 {
			t.Fatalf("the VTEP is %s: nothing to recover from", r.vtep())
		}
		r.start()
		r.after(goingBack)
		r.is(status.Idle)
		if r.vtep() != at1 {
			t.Errorf("the VTEP is %s", r.vtep())
		}
		if lines := r.log.took(); len(lines) == 0 || lines[0] != "INFO recovering: undoing the transaction of generation 2 that was left after 7 of 13 steps" {
			t.Errorf("logged: %q", lines)
		}
	})
}

// TestStateUnreadable: what no wait mends ends the daemon, before it touches anything.
func TestStateUnreadable(t *testing.T) {
	for name, want := range map[string]string{
		"committed.json": "committed state %s: damaged: unexpected end of JSON input",
		"journal": "journal %s: damaged: line 1 is not what was written, and lines follow it; " +
			"move the file away once you have seen to the router's state",
	} {
		in(t, func(t *testing.T, r *running) {
			if err := os.MkdirAll(r.state, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(r.state, name)
			if err := os.WriteFile(path, []byte(map[string]string{"committed.json": "", "journal": "x\ny\n"}[name]), 0o600); err != nil {
				t.Fatal(err)
			}
			r.write(firstVNI)
			r.start()
			err := <-r.done
			if err == nil || err.Error() != fmt.Sprintf(want, path) || !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("got\n%v\nwant\n"+want, err, path)
			}
			if n := r.kernel.Counts().Messages; n > 0 {
				t.Errorf("%d netlink messages", n)
			}
			r.stop()
			r.stop = nil
		})
	}
}

// TestFingerprint: the fingerprint on the board is that of what is there.
func TestFingerprint(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		last, err := r.ports.Journal.Committed()
		if err != nil {
			t.Fatal(err)
		}
		s, _ := r.board.Get()
		if s.State != last.State.Hash() || s.State == (state.State{}).Hash() {
			t.Errorf("%s on the board, %s committed", s.State, last.State.Hash())
		}
	})
}
