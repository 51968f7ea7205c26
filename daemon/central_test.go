package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"vtepd/alloc/memstore"
	"vtepd/daemon/config"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
	"vtepd/frr/frrtest"
)

// world is a router in memory: a kernel, FRR that sees it, a ledger and a journal on disk.
type world struct {
	kernel *fake.Kernel
	frr    *frrtest.Fake
	ports  Ports
	foes   []dataplane.Link // the operator's links
}

var remoteVTEP = netip.MustParseAddr("10.255.9.9")

func newWorld(dir string) *world {
	w := &world{kernel: fake.New(), frr: frrtest.New(65001, netip.MustParseAddr("10.0.0.1"))}
	w.foes = []dataplane.Link{
		{Name: "eth1", Up: true, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/30")}},
		{Name: "eth2", Up: true, MTU: 9000},
		{Name: "lan0", Kind: dataplane.Bridge, Up: true, MTU: 1500},
	}
	w.kernel.Add(w.foes...)
	w.kernel.OnPing(func(_, to netip.Addr) bool { return to == remoteVTEP })
	w.frr.SetEVPN(true)
	w.frr.SetNetworks(frr.Network{Prefix: netip.MustParsePrefix("192.0.2.0/24")})
	w.frr.SetSessions(frr.Session{Peer: "10.1.0.2", Established: true, IPv4: true, EVPN: true, Local: netip.MustParseAddr("10.1.0.1")})
	w.frr.SetType3(frr.Type3{RD: "10.0.0.2:2", Origin: remoteVTEP, NextHop: remoteVTEP, Peer: "10.1.0.2", Valid: true})
	w.frr.SetPresent(func(p netip.Prefix) bool {
		return slices.ContainsFunc(w.kernel.Links(), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, p) })
	})
	w.frr.SetVNIs(func() []frr.VNI {
		var out []frr.VNI
		links := w.kernel.Links()
		for _, l := range links {
			if m, ok := dataplane.Find(links, l.Master); l.Kind == dataplane.VXLAN && l.Up && ok && m.Up {
				out = append(out, frr.VNI{VNI: l.VNI, Device: l.Name, Local: l.Local})
			}
		}
		return out
	})
	ledger, err := NewLedger(memstore.New().Open())
	if err != nil {
		panic(err)
	}
	w.ports = Ports{Kernel: w.kernel, FRR: w.frr, Ledger: ledger, Journal: journal.In(dir)}
	return w
}

func (w *world) runner(j txn.Journal) *txn.Runner {
	return &txn.Runner{Kernel: w.kernel, FRR: w.frr, Ledger: w.ports.Ledger, Journal: j}
}

// plan prepares text, which must be a config that can be reached.
func (w *world) plan(text string) (plan.Plan, error) {
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		return plan.Plan{}, err
	}
	p, err := Prepare(context.Background(), w.ports, cfg, 0)
	if err == nil && len(p.Refusals)+len(p.Waiting) > 0 {
		err = fmt.Errorf("refused: %v %v", p.Refusals, p.Waiting)
	}
	return p.Plan, err
}

// reach goes to text with nothing in the way.
func (w *world) reach(t fataler, text string) {
	t.Helper()
	p, err := w.plan(text)
	if err == nil && !p.Empty() {
		err = w.runner(w.ports.Journal).Run(context.Background(), p)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// facts is all of the router that a transaction could change, ours or not, as text: read from the fakes themselves.
func (w *world) facts(t fataler) string {
	t.Helper()
	var b strings.Builder
	type fields dataplane.Link // a Link prints its name alone
	for _, l := range w.kernel.Links() {
		l.Group = 0
		fmt.Fprintf(&b, "%+v\n", fields(l))
	}
	o, err := w.frr.Observe(context.Background(), frr.Query{Config: true, VNIs: true, Type3: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	held, err := w.ports.Ledger.Held(context.Background(), "r1")
	if err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Fprintf(&b, "%v %v %v %v %v\n%v\n", o.EVPN, o.Networks, o.RouteMap, o.VNIs, o.Type3, held)
	if s := w.kernel.Staged(); len(s) > 0 {
		fmt.Fprintf(&b, "shadow: %v\n", s)
	}
	return b.String()
}

// drawConfig makes a valid config out of few names and numbers, so that two of them have much in common.
func drawConfig(t *rapid.T, label string) string {
	var b strings.Builder
	b.WriteString("version: 1\nnode: {name: r1, index: 7}\npools:\n  p4: {addresses: [10.255.0.0/28]}\nvlanBridge: {name: br-evpn}\n")
	placements := []string{"ipvlan: {parent: eth1}", "ipvlan: {parent: eth2}", "loopback: {}"}
	addresses := []string{"{pool: p4}", "{pool: p4, prefer: 10.255.0.%d}", "{static: 10.254.0.%d}", "{cidr: 10.253.%d.0/24, from: index}"}
	n := rapid.IntRange(0, 3).Draw(t, label+" endpoints")
	if n > 0 {
		b.WriteString("endpoints:\n")
	}
	for i := range n {
		addr := rapid.SampledFrom(addresses).Draw(t, label+" address")
		if strings.Contains(addr, "%d") {
			addr = fmt.Sprintf(addr, 1+i*4+rapid.IntRange(0, 3).Draw(t, label+" value"))
		}
		fmt.Fprintf(&b, "  e%d:\n    %s\n    address: %s\n    announce: %s\n", i,
			rapid.SampledFrom(placements).Draw(t, label+" placement"), addr,
			rapid.SampledFrom([]string{"bgp", "bgp", "none"}).Draw(t, label+" announce"))
	}
	vnis := 0
	for v := 100; n > 0 && v < 106; v++ {
		if !rapid.Bool().Draw(t, label+" vni") {
			continue
		}
		if vnis++; vnis == 1 {
			b.WriteString("vnis:\n")
		}
		fmt.Fprintf(&b, "  %d: {endpoint: e%d", v, rapid.IntRange(0, n-1).Draw(t, label+" endpoint"))
		switch rapid.IntRange(0, 3).Draw(t, label+" kind") {
		case 0:
			fmt.Fprintf(&b, ", vlan: %d", v-90)
		case 1:
			fmt.Fprintf(&b, ", mtu: %d", rapid.SampledFrom([]int{1400, 1450}).Draw(t, label+" mtu"))
		case 2:
			fmt.Fprintf(&b, ", port: %d", rapid.SampledFrom([]int{4789, 4790}).Draw(t, label+" port"))
		}
		b.WriteString("}\n")
	}
	fmt.Fprintf(&b, "frr: {evpn: %s}\n", rapid.SampledFrom([]string{"require", "create"}).Draw(t, label+" evpn"))
	b.WriteString("transaction: {allowDisruptive: true, timeout: 3s}\n")
	return b.String()
}

// pair draws two configs such that each can be reached, the second from the first.
func pair(t *rapid.T, dir func() string) (a, b string) {
	a, b = drawConfig(t, "a"), drawConfig(t, "b")
	w := newWorld(dir())
	for _, text := range []string{a, b} {
		p, err := w.plan(text)
		if err != nil {
			t.Skipf("not reachable: %v", err) // an address that moves between two endpoints of one parent, for one
		}
		if !p.Empty() {
			if err := w.runner(w.ports.Journal).Run(context.Background(), p); err != nil {
				t.Fatalf("%v\n--- a\n%s--- b\n%s", err, a, b)
			}
		}
	}
	return a, b
}

// memoryDir is a new directory on a filesystem in memory: what is counted here is what was written before a death of the
// process, and thousands of fsyncs of a disk would add nothing but time.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "vtepd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

var errInjected = fmt.Errorf("injected: %w", syscall.EBUSY)

// TestCentral: for random a and b, whatever fails on the way from a to b, the router is in a again; whatever kills the
// daemon on the way, the next one brings it to a or to b; and getting there with nothing in the way leads to b, from which
// nothing is left to do.
func TestCentral(t *testing.T) {
	synctest.Test(t, func(st *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			dir := func() string { return memoryDir(st) }
			a, b := pair(t, dir)
			fresh := func() *world { w := newWorld(dir()); w.reach(t, a); return w }

			w := fresh()
			inA := w.facts(t)
			ops, edits := w.kernel.Ops(), w.frr.Seen()
			w.reach(t, b)
			inB := w.facts(t)
			ops, edits = w.kernel.Ops()-ops, w.frr.Seen()-edits
			if p, err := w.plan(b); err != nil || !p.Empty() {
				t.Fatalf("after b there is still this to do (%v):\n%s", err, p)
			}
			for _, l := range w.foes {
				if got, _ := dataplane.Find(w.kernel.Links(), l.Name); !got.Same(l) {
					t.Fatalf("the operator's %s was changed: %+v", l.Name, got)
				}
			}

			for k := 1; k <= ops; k++ {
				w := fresh()
				w.kernel.FailAt(w.kernel.Ops()+k, errInjected)
				w.check(t, b, fmt.Sprintf("kernel op %d refused", k), inA, inB)
			}
			for k := 1; k <= edits; k++ {
				w := fresh()
				w.frr.FailAt(k, errors.New("% injected"))
				w.check(t, b, fmt.Sprintf("FRR edit %d refused", k), inA, inB)
			}
			for k := 1; k <= ops; k++ {
				for _, when := range []fake.When{fake.Before, fake.After} {
					w := fresh()
					at := w.kernel.Ops() + k
					w.kernel.OnOp(func(n int, side fake.When, _ dataplane.Op) {
						if n == at && side == when {
							panic(killed{})
						}
					})
					w.kill(t, b, fmt.Sprintf("killed at kernel op %d (%v)", k, when), w.ports.Journal, inA, inB)
				}
			}
			for k := 1; k <= edits; k++ {
				w := fresh()
				at := w.frr.Seen() + k
				w.frr.OnEdit(func(n int, _ frr.Edit) {
					if n == at {
						panic(killed{})
					}
				})
				w.kill(t, b, fmt.Sprintf("killed at FRR edit %d", k), w.ports.Journal, inA, inB)
			}
			for k, more := 0, true; more; k++ {
				for _, after := range []bool{false, true} {
					w := fresh()
					j := &deadly{Journal: w.ports.Journal, at: k, after: after}
					w.kill(t, b, fmt.Sprintf("killed around journal write %d (after: %t)", k, after), j, inA, inB)
					more = j.fired
				}
			}
		})
	})
}

// check runs the way to b, in which something was made to fail, and holds the outcome against what it may be.
func (w *world) check(t *rapid.T, b, what, inA, inB string) {
	t.Helper()
	p, err := w.plan(b)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	err = w.runner(w.ports.Journal).Run(context.Background(), p)
	var failed *txn.Error
	if errors.As(err, &failed) && failed.Degraded != nil {
		t.Fatalf("%s: degraded: %v", what, err)
	}
	want := inA
	if err == nil {
		want = inB // the failure came past the point of no return, and was retried
	}
	if got := w.facts(t); got != want {
		t.Fatalf("%s (%v):\ngot\n%swant\n%s%s", what, err, got, want, p)
	}
	w.clean(t, what)
}

// killed is the panic that stands for the death of the process.
type killed struct{}

// kill runs the way to b up to the death of the daemon, and starts another one.
func (w *world) kill(t *rapid.T, b, what string, j txn.Journal, inA, inB string) {
	t.Helper()
	p, err := w.plan(b)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if p.Empty() {
		return
	}
	func() {
		defer func() {
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		if err := w.runner(j).Run(context.Background(), p); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}()
	w.kernel.Restart()
	w.frr.OnEdit(nil)
	rec, err := w.ports.Journal.Load()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if rec != nil {
		if err := w.runner(w.ports.Journal).Recover(context.Background(), *rec); err != nil {
			t.Fatalf("%s: recovery after %d of %d steps: %v\n%s", what, rec.Begun(), len(p.Steps), err, p)
		}
	}
	if got := w.facts(t); got != inA && got != inB {
		t.Fatalf("%s: between the states:\ngot\n%sa\n%sb\n%s%s", what, got, inA, inB, p)
	}
	w.clean(t, what)
}

// clean: no journal is left, and what is committed is what is there.
func (w *world) clean(t *rapid.T, what string) {
	t.Helper()
	if rec, err := w.ports.Journal.Load(); err != nil || rec != nil {
		t.Fatalf("%s: the journal is still there: %v", what, err)
	}
	last, err := w.ports.Journal.Committed()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	o, err := w.frr.Observe(context.Background(), frr.Query{Config: true})
	if err != nil {
		t.Fatalf("%v", err)
	}
	k, err := w.kernel.Observe(context.Background(), nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if diff := state.Diff(state.Observed(k, o, last.State, last.State.Claims), last.State); len(diff) > 0 {
		t.Fatalf("%s: the committed state isn't there: %v", what, diff)
	}
}

// deadly is a journal whose write of number at, from 0, is the daemon's last.
type deadly struct {
	*journal.Journal
	at, n int
	after bool
	fired bool
}

func (d *deadly) write(f func() error) error {
	n := d.n
	d.n++
	if n != d.at {
		return f()
	}
	d.fired = true
	if d.after {
		if err := f(); err != nil {
			return err
		}
	}
	panic(killed{})
}

func (d *deadly) Begin(p plan.Plan) error { return d.write(func() error { return d.Journal.Begin(p) }) }
func (d *deadly) Mark(m journal.Mark) error {
	return d.write(func() error { return d.Journal.Mark(m) })
}
func (d *deadly) Commit(c journal.Committed) error {
	return d.write(func() error { return d.Journal.Commit(c) })
}
func (d *deadly) End() error { return d.write(d.Journal.End) }
