package daemon

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"vtepd/alloc"
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
	dir     string // of the journal
	kernel  *fake.Kernel
	cni     *fake.CNI
	frr     *frrtest.Fake
	store   *memstore.Store
	ports   Ports
	foes    []dataplane.Link // the operator's links
	confirm time.Duration    // of every plan
}

var remoteVTEP = netip.MustParseAddr("10.255.9.9")

func newWorld(dir string) *world {
	w := &world{dir: dir, kernel: fake.New(), frr: frrtest.New(65001, netip.MustParseAddr("10.0.0.1")), store: memstore.New().Open()}
	w.foes = []dataplane.Link{
		{Name: "eth1", Up: true, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/30")}},
		{Name: "eth2", Up: true, MTU: 9000},
		{Name: "lan0", Kind: dataplane.Bridge, Up: true, MTU: 1500},
	}
	w.kernel.Add(w.foes...)
	w.cni = fake.NewCNI(w.kernel)
	for _, parent := range []string{"eth1", "eth2"} {
		w.cni.SetFile("/etc/cni/"+parent, conflistOn(parent))
	}
	w.kernel.AddNetns("host", dataplane.Link{Name: "up0", Up: true, MTU: 1500})
	w.kernel.OnPing(func(_, to netip.Addr) bool { return to == remoteVTEP })
	w.frr.SetEVPN(true)
	w.frr.SetNetworks(frr.Network{Prefix: netip.MustParsePrefix("192.0.2.0/24")})
	w.frr.SetSessions(frr.Session{Peer: "10.1.0.2", Established: true, IPv4: true, EVPN: true, Local: netip.MustParseAddr("10.1.0.1")})
	w.frr.SetType3(frr.Type3{RD: "10.0.0.2:2", Origin: remoteVTEP, NextHop: remoteVTEP, Peer: "10.1.0.2", Valid: true})
	w.frr.SetPresent(func(p netip.Prefix) bool {
		return slices.ContainsFunc(w.kernel.Links(), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, p) })
	})
	w.frr.SetVNIs(func() []frr.VNI { return vnisOf(w.kernel.Links(), true) })
	w.frr.SetIdle(func() []frr.VNI { return vnisOf(w.kernel.Links(), false) })
	taken, err := alloc.NewPools(alloc.Pool{Name: "p2", Kind: alloc.KindAddress, Entries: []string{"10.250.0.1/32"}})
	if err == nil {
		_, _, err = alloc.NewClaimer(w.store, taken).Acquire(context.Background(), alloc.Claim{Name: "r2/loopback/lo0/ipv4", Pool: "p2"})
	}
	if err != nil {
		panic(err)
	}
	w.ports = Ports{Kernel: w.kernel, CNI: w.cni, FRR: w.frr, Ledger: ledgerOn(w.store), Journal: journal.In(dir)}
	return w
}

// vnisOf is what zebra makes of links: the VXLANs that BGP hears of, being up and in a bridge that is, or the others.
func vnisOf(links []dataplane.Link, live bool) []frr.VNI {
	var out []frr.VNI
	for _, l := range links {
		m, ok := dataplane.Find(links, l.Master)
		if l.Kind == dataplane.VXLAN && (l.Up && ok && m.Up) == live {
			out = append(out, frr.VNI{VNI: l.VNI, Device: l.Name, Local: l.Local})
		}
	}
	return out
}

// conflistOn is one that can be accepted.
func conflistOn(parent string) string {
	return `{"cniVersion": "1.0.0", "name": "uplink", "plugins": [{"type": "ipvlan", "mode": "l3", "master": "` + parent +
		`", "ipam": {"type": "static"}, "capabilities": {"ips": true}}]}`
}

// runner says yes to a change that waits for it.
func (w *world) runner(j txn.Journal) *txn.Runner {
	yes := make(chan bool, 1)
	yes <- true
	return &txn.Runner{Kernel: w.kernel, CNI: w.cni, FRR: w.frr, Ledger: w.ports.Ledger, Journal: j, Netns: []string{"host"}, Decide: yes}
}

// plan prepares text, which must be a config that can be reached.
func (w *world) plan(text string) (plan.Plan, error) {
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		return plan.Plan{}, err
	}
	p, err := Prepare(context.Background(), w.ports, cfg, w.confirm)
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
	fmt.Fprintf(&b, "%v %v %v %v %v\n%v\n%v\n", o.EVPN, o.Networks, o.RouteMap, o.VNIs, o.Type3, held, o.Instance)
	fmt.Fprintf(&b, "%s\n", strings.Join(w.cni.State(), "\n"))
	if s := w.kernel.Staged(); len(s) > 0 {
		fmt.Fprintf(&b, "shadow: %v\n", s)
	}
	return b.String()
}

// drawConfig makes a valid config out of few names and numbers, so that two of them have much in common.
func drawConfig(t *rapid.T, label string) string {
	var b strings.Builder
	b.WriteString("version: 1\nnode: {name: r1, index: 7}\npools:\n  p4: {addresses: [10.255.0.0/28]}\n  p1: {addresses: [10.251.0.0/30]}\n  p2: {addresses: [10.250.0.1/32]}\nvlanBridge: {name: br-evpn}\n")
	placements := []string{
		"ipvlan: {parent: eth1}", "ipvlan: {parent: eth2}", "ipvlan: {parent: up0, parentNetns: host}", "loopback: {}",
		"cni: {conflist: /etc/cni/eth1}", "cni: {conflist: /etc/cni/eth2, interfaceName: uplink}",
	}
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
	drawLoopbacks(t, label, &b)
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

// drawLoopbacks draws none, some or all of four loopbacks; the last one may wait for an address that another router has.
func drawLoopbacks(t *rapid.T, label string, b *strings.Builder) {
	var lines []string
	for _, l := range []string{
		"lo0: {role: router-id, ipv4: {static: 10.252.0.%d}, ipv6: {static: '2001:db8:252::%d'}}",
		"lo1: {role: vtep, ipv4: {pool: p4, prefer: 10.255.0.%d}}",
		"lo2: {role: anycast-vtep, ipv4: {pool: p1, group: g%d}}",
		"lo100: {role: anycast-rp, ipv4: {pool: p%d, group: h}}",
	} {
		if !rapid.Bool().Draw(t, label+" loopback") {
			continue
		}
		n := rapid.IntRange(1, 2).Draw(t, label+" loopback's address")
		if !strings.HasPrefix(l, "lo100") {
			n += 12
		}
		lines = append(lines, "  "+strings.ReplaceAll(l, "%d", fmt.Sprint(n))+"\n")
	}
	if len(lines) > 0 {
		b.WriteString("loopbacks:\n" + strings.Join(lines, ""))
	}
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

// tally counts the cases of the central test by how they ended.
type tally struct{ ran, a, b int }

// centralPairs is how many pairs the central test draws unless -rapid.checks or VTEPD_FAULTS_PAIRS says so.
const centralPairs = "12"

// TestCentral: for random a and b, whatever fails on the way from a to b, the router is in a again; whatever kills the
// daemon on the way, and the next one on its way back, the one after brings it to a or to b; what can't be undone is named,
// and undone when it can be; and getting there with nothing in the way leads to b, from which nothing is left to do.
func TestCentral(t *testing.T) {
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	seed := cmp.Or(os.Getenv("VTEPD_FAULTS_SEED"), fmt.Sprint(rand.Uint64()))
	pairs := cmp.Or(os.Getenv("VTEPD_FAULTS_PAIRS"), centralPairs)
	for name, value := range map[string]string{"rapid.checks": pairs, "rapid.seed": seed} {
		if f := flag.Lookup(name); !given[name] {
			was := f.Value.String()
			if err := f.Value.Set(value); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Value.Set(was) }() // it was its value
		}
	}
	t.Logf("central: -rapid.checks=%s -rapid.seed=%s", flag.Lookup("rapid.checks").Value, flag.Lookup("rapid.seed").Value)
	var sum tally
	defer func() { // when a case ends the test too
		t.Logf("fake=%d ended_a=%d ended_b=%d between=%d", sum.ran, sum.a, sum.b, sum.ran-sum.a-sum.b)
	}()
	synctest.Test(t, func(st *testing.T) {
		rapid.Check(t, func(t *rapid.T) { central(t, &sum, func() string { return memoryDir(st) }) })
	})
	if sum.a == 0 || sum.b == 0 {
		t.Error("the cases are not what they should be")
	}
}

// central is one pair.
func central(t *rapid.T, sum *tally, dir func() string) {
	a, b := pair(t, dir)
	var confirm time.Duration
	if rapid.Bool().Draw(t, "confirm") {
		confirm = time.Minute
	}
	way(t, sum, dir, a, b, confirm)
}

// way is the way from a to b, with all that can be in it. It returns the plan.
func way(t *rapid.T, sum *tally, dir func() string, a, b string, confirm time.Duration) (p plan.Plan) {
	fresh := func() *world {
		w := newWorld(dir())
		w.reach(t, a)
		w.confirm = confirm
		return w
	}

	w := fresh()
	inA := w.facts(t)
	p, err := w.plan(b)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if p.Empty() {
		return p
	}
	ops, edits, calls := w.kernel.Ops(), w.frr.Seen(), w.cni.Calls()
	w.reach(t, b)
	inB := w.facts(t)
	ops, edits, calls = w.kernel.Ops()-ops, w.frr.Seen()-edits, w.cni.Calls()-calls
	if p, err := w.plan(b); err != nil || !p.Empty() {
		t.Fatalf("after b there is still this to do (%v):\n%s", err, p)
	}
	for _, l := range w.foes {
		if got, _ := dataplane.Find(w.kernel.Links(), l.Name); !got.Same(l) {
			t.Fatalf("the operator's %s was changed: %+v", l.Name, got)
		}
	}
	c := cases{T: t, tally: sum, b: b, inA: inA, inB: inB}

	for k := 1; k <= ops; k++ {
		refuse := func() *world { w := fresh(); w.kernel.FailAt(w.kernel.Ops()+k, errInjected); return w }
		c.refused(refuse(), fmt.Sprintf("kernel op %d refused", k), nil)
		c.stuck(refuse(), fmt.Sprintf("kernel op %d refused, and the first undo", k), nil, -1)
	}
	for k := 1; k <= edits; k++ {
		refuse := func() *world { w := fresh(); w.frr.FailAt(k, errors.New("% injected")); return w }
		c.refused(refuse(), fmt.Sprintf("FRR edit %d refused", k), nil)
		c.stuck(refuse(), fmt.Sprintf("FRR edit %d refused, and the first undo", k), nil, -1)
	}
	for k, s := range p.Steps {
		c.refusedStep(fresh(), k, s)
		if s.Phase != plan.Drain && s.Phase != plan.Retire {
			c.robbed(fresh(), k, s)
		}
		if s.Undo != nil {
			noForward := func(_ int, m journal.Mark, write func() error) error {
				if m.Forward {
					return syscall.ENOSPC
				}
				return write()
			}
			c.stuck(fresh(), fmt.Sprintf("the last mark refused, and the undo of step %d", k+1), noForward, k)
		}
	}
	for k := 1; k <= calls; k++ {
		refuse := func() *world { w := fresh(); w.cni.FailAt(w.cni.Calls()+k, errInjected); return w }
		c.refused(refuse(), fmt.Sprintf("CNI call %d refused", k), nil)
		c.stuck(refuse(), fmt.Sprintf("CNI call %d refused, and the first undo", k), nil, -1)
		for _, when := range []fake.When{fake.Before, fake.After} {
			w := fresh()
			at := w.cni.Calls() + k
			w.cni.OnCall(func(n int, side fake.When, _ string, _ dataplane.Attachment) {
				if n == at && side == when {
					panic(killed{})
				}
			})
			c.killed(w, fmt.Sprintf("killed at CNI call %d (%v)", k, when), nil, k%2 == 0)
		}
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
			c.killed(w, fmt.Sprintf("killed at kernel op %d (%v)", k, when), nil, k%2 == 0)
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
		c.killed(w, fmt.Sprintf("killed at FRR edit %d", k), nil, k%2 == 0)
	}
	for k, more := 0, true; more; k++ {
		for name, at := range map[string]func(*world, func() error) error{
			"before": func(*world, func() error) error { panic(killed{}) },
			"torn":   func(w *world, write func() error) error { w.torn(t, write); panic(killed{}) },
			"after": func(_ *world, write func() error) error {
				if err := write(); err != nil {
					return err
				}
				panic(killed{})
			},
		} {
			w := fresh()
			more = false
			c.killed(w, fmt.Sprintf("killed %s journal write %d", name, k), func(n int, _ journal.Mark, write func() error) error {
				if n != k {
					return write()
				}
				more = true
				return at(w, write)
			}, k%2 == 0)
		}
		c.refused(fresh(), fmt.Sprintf("journal write %d failed", k), func(n int, _ journal.Mark, write func() error) error {
			if n == k {
				return syscall.ENOSPC
			}
			return write()
		})
		var full time.Time
		c.refused(fresh(), fmt.Sprintf("the disk is full for a while from journal write %d on", k), func(n int, m journal.Mark, write func() error) error {
			if n == k {
				full = time.Now()
			}
			if n >= k && m != (journal.Mark{}) && time.Since(full) < 20*time.Second { // a file can be removed from a full disk
				return syscall.ENOSPC
			}
			return write()
		})
		for at, again := k%3, true; again; at += 3 {
			again = c.killedTwice(fresh(), k, at)
		}
	}
	return p
}

// tap is a journal whose writes, numbered from 0, go through a function. The mark is zero for those that make and remove the
// file, and for the commit.
type tap struct {
	*journal.Journal
	n  int
	on func(n int, m journal.Mark, write func() error) error
}

func (j *tap) write(m journal.Mark, do func() error) error {
	n := j.n
	j.n++
	if j.on == nil {
		return do()
	}
	return j.on(n, m, do)
}

func (j *tap) Begin(p plan.Plan) error {
	return j.write(journal.Mark{}, func() error { return j.Journal.Begin(p) })
}

func (j *tap) Mark(m journal.Mark) error {
	return j.write(m, func() error { return j.Journal.Mark(m) })
}

func (j *tap) Commit(c journal.Committed) error {
	return j.write(journal.Mark{}, func() error { return j.Journal.Commit(c) })
}
func (j *tap) End() error { return j.write(journal.Mark{}, j.Journal.End) }

// torn is a line of the journal whose end didn't reach the disk. What isn't a line is written whole or not at all.
func (w *world) torn(t fataler, write func() error) {
	t.Helper()
	file := filepath.Join(w.dir, "journal")
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	if err := write(); err != nil {
		t.Fatalf("%v", err)
	}
	if after := size(); after > before {
		if err := os.Truncate(file, after-(after-before+1)/2); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// killed is the panic that stands for the death of the process.
type killed struct{}

// until runs f, and reports whether it died.
func until(f func()) (died bool) {
	defer func() {
		if r := recover(); r == (killed{}) {
			died = true
		} else if r != nil {
			panic(r)
		}
	}()
	f()
	return false
}

// cases are those of one pair.
type cases struct {
	*rapid.T
	*tally
	b, inA, inB string
}

// begin is the plan to b, and a runner for it whose journal is tapped.
func (c *cases) begin(w *world, what string, on func(int, journal.Mark, func() error) error) (plan.Plan, *txn.Runner) {
	c.Helper()
	p, err := w.plan(c.b)
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
	return p, w.runner(&tap{Journal: w.ports.Journal, on: on})
}

// ended holds the end of a case against a and b.
func (c *cases) ended(w *world, what string, may ...string) {
	c.Helper()
	got := w.facts(c)
	c.ran++
	switch {
	case !slices.Contains(may, got):
		c.Fatalf("%s: between the states:\ngot\n%sa\n%sb\n%s--- b\n%s", what, got, c.inA, c.inB, c.b)
	case got == c.inA:
		c.a++
	default:
		c.tally.b++
	}
	w.clean(c, what)
}

// refused: something fails on the way to b.
func (c *cases) refused(w *world, what string, on func(int, journal.Mark, func() error) error) {
	c.Helper()
	p, x := c.begin(w, what, on)
	err := x.Run(context.Background(), p)
	if err != nil && degraded(err) { // not even a full disk is in the way of going back
		c.Fatalf("%s: degraded: %v", what, err)
	}
	if err == nil {
		c.ended(w, what, c.inB) // the failure came past the point of no return, and was retried
		return
	}
	c.ended(w, what, c.inA)
}

// refusedStep: whatever step k asks of first is refused, once: a change of the kernel or of FRR, a claim, or an answer.
func (c *cases) refusedStep(w *world, k int, s plan.Step) {
	c.Helper()
	what := fmt.Sprintf("step %d (%s) refused", k+1, s.Phase)
	p, x := c.begin(w, what, nil)
	once := false
	x.Report = func(e txn.Event) {
		switch {
		case e.Step != k || e.Undo || e.Phase != s.Phase:
		case e.Done:
			w.refuse(nil, nil)
		case !once:
			once = true
			w.refuse(errInjected, nil)
			if s.Do.Await != nil {
				w.refuse(errInjected, frr.ErrGarbage)
			}
		}
	}
	err := x.Run(context.Background(), p)
	if err != nil && degraded(err) {
		c.Fatalf("%s: degraded: %v", what, err)
	}
	last := s.Phase == plan.Drain || s.Phase == plan.Retire
	if !once || last && err != nil || !last && err == nil && (len(s.Do.Acquire) > 0 || len(s.Do.FRR) > 0 || len(s.Do.Kernel) > 0 || len(s.Do.Attach) > 0 || s.Do.Await != nil) {
		c.Fatalf("%s: not as it should be: %v", what, err)
	}
	if err != nil {
		c.ended(w, what, c.inA)
	} else {
		c.ended(w, what, c.inB)
	}
}

// robbed: at step k bgpd restarts with the operator's lines alone, the endpoints go with their parents for a moment, and then
// a step of the transaction is refused.
func (c *cases) robbed(w *world, k int, s plan.Step) {
	c.Helper()
	what := fmt.Sprintf("robbed at step %d (%s)", k+1, s.Phase)
	p, x := c.begin(w, what, nil)
	x.Report = func(e txn.Event) {
		if e.Step != k || e.Undo || e.Phase != s.Phase {
			return
		}
		if e.Done {
			w.refuse(nil, nil)
			return
		}
		w.frr.SetNetworks(frr.Network{Prefix: netip.MustParsePrefix("192.0.2.0/24")})
		w.frr.SetRouteMap(frr.RouteMap{})
		for _, l := range p.Old.Endpoints() {
			w.kernel.Remove(l.Name)
		}
		w.refuse(errInjected, frr.ErrGarbage)
	}
	err := x.Run(context.Background(), p)
	if err != nil && degraded(err) {
		c.recovered(w, what, nil)
	}
	if err != nil {
		c.ended(w, what, c.inA)
		return
	}
	// The step had nothing to refuse, and the transaction got through: what was taken meanwhile is the next one's to put back.
	w.reach(c, c.b)
	c.ended(w, what, c.inB)
}

// refuse makes the next change fail with err, and every answer of FRR's with answer; nil: none does.
func (w *world) refuse(err, answer error) {
	var edit error
	if err != nil {
		edit = errors.New("% injected")
	}
	w.kernel.FailAt(w.kernel.Ops()+1, err)
	w.cni.FailAt(w.cni.Calls()+1, err)
	w.frr.FailAt(1, edit)
	w.frr.SetUnreachable(answer)
	w.store.Fail = nil
	if err != nil {
		w.store.Fail = func(op, _ string) error {
			if op == "create" || op == "update" || op == "delete" {
				return err
			}
			return nil
		}
	}
}

// recover is the next daemon, on what the last one left, after with, which may be nil, has changed its runner. A change that
// wasn't confirmed is undone without a failure.
func (c *cases) recover(w *world, what string, with func(*txn.Runner)) error {
	c.Helper()
	rec, err := w.ports.Journal.Load()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
	if rec == nil {
		return nil
	}
	x := w.runner(w.ports.Journal)
	if with != nil {
		with(x)
	}
	if err := x.Recover(context.Background(), *rec); err != nil && (!errors.Is(err, txn.ErrUnconfirmed) && !errors.Is(err, txn.ErrRejected) || degraded(err)) {
		return fmt.Errorf("recovery after %d of %d steps: %w\n%s", rec.Begun(), len(rec.Plan.Steps), err, rec.Plan)
	}
	return nil
}

// recovered is a recovery with nothing in the way.
func (c *cases) recovered(w *world, what string, with func(*txn.Runner)) {
	c.Helper()
	if err := c.recover(w, what, with); err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

func degraded(err error) bool {
	e, ok := errors.AsType[*txn.Error](err)
	return !ok || e.Degraded != nil
}

// stuck: something fails on the way to b, and then the undo of a step (-1: the first that has something to do) fails too. The
// object is named; once it can be undone, it is.
func (c *cases) stuck(w *world, what string, on func(int, journal.Mark, func() error) error, step int) {
	c.Helper()
	p, x := c.begin(w, what, on)
	refuse := w.refuseUndo(step)
	x.Report = refuse
	err := x.Run(context.Background(), p)
	if err == nil {
		c.ended(w, what, c.inB)
		return
	}
	failed, ok := errors.AsType[*txn.Error](err)
	if !ok {
		c.Fatalf("%s: %v", what, err)
	}
	if failed.Degraded == nil { // nothing was there to undo
		c.ended(w, what, c.inA)
		return
	}
	named := ""
	if e, ok := errors.AsType[*dataplane.OpError](failed.Degraded); ok {
		named = e.Op.Object()
	} else if e, ok := errors.AsType[*frr.EditError](failed.Degraded); ok {
		named = e.Edit.Object()
	} else if errors.Is(failed.Degraded, alloc.ErrUnavailable) {
		named = "giving back 10.25"
	} else if e, ok := errors.AsType[*dataplane.AttachError](failed.Degraded); ok {
		named = e.Attachment.Link
	}
	if text := failed.Error(); named == "" || !strings.Contains(text, "; going back failed: undo of ") || !strings.Contains(text, named) {
		c.Fatalf("%s: %q isn't named: %v", what, named, failed)
	}
	if c.recover(w, what, func(x *txn.Runner) { x.Report = refuse }) == nil {
		c.Fatalf("%s: recovered from what is still in the way", what)
	}
	c.recovered(w, what, nil)
	c.ended(w, what, c.inA)
}

// refuseUndo makes the first change of the undo of a step (-1: of each) fail, wherever it is.
func (w *world) refuseUndo(step int) func(txn.Event) {
	return func(e txn.Event) {
		switch {
		case !e.Undo || step >= 0 && e.Step != step:
		case e.Done:
			w.refuse(nil, nil)
		default:
			w.refuse(errInjected, nil)
		}
	}
}

// killed: the daemon dies on the way to b, and another one starts, to which nobody says yes if silent.
func (c *cases) killed(w *world, what string, on func(int, journal.Mark, func() error) error, silent bool) {
	c.Helper()
	p, x := c.begin(w, what, on)
	until(func() {
		if err := x.Run(context.Background(), p); err != nil {
			c.Fatalf("%s: %v", what, err)
		}
	})
	w.kernel.Restart()
	w.cni.Restart()
	w.frr.OnEdit(nil)
	c.recovered(w, what, func(x *txn.Runner) {
		if silent {
			x.Decide = nil
		}
	})
	c.ended(w, what, c.inA, c.inB)
}

// killedTwice: the daemon dies in journal write k (at is even) or after it, the next one at its event of number at, and a third one starts. It
// returns whether the second one died.
func (c *cases) killedTwice(w *world, k, at int) bool {
	c.Helper()
	what := fmt.Sprintf("killed in or after journal write %d, and at event %d of the recovery", k, at)
	p, x := c.begin(w, what, func(n int, _ journal.Mark, write func() error) error {
		if n != k {
			return write()
		}
		if at%2 == 0 {
			w.torn(c, write)
		} else if err := write(); err != nil {
			return err
		}
		panic(killed{})
	})
	until(func() {
		if err := x.Run(context.Background(), p); err != nil {
			c.Fatalf("%s: %v", what, err)
		}
	})
	w.kernel.Restart()
	w.cni.Restart()
	n := 0
	event := func() {
		if n++; n > at {
			panic(killed{})
		}
	}
	w.kernel.OnOp(func(int, fake.When, dataplane.Op) { event() })
	w.frr.OnEdit(func(int, frr.Edit) { event() })
	died := until(func() {
		c.recovered(w, what, func(x *txn.Runner) {
			x.Journal = &tap{Journal: w.ports.Journal, on: func(_ int, _ journal.Mark, write func() error) error {
				event()
				err := write()
				event()
				return err
			}}
			if k%2 == 0 {
				x.Decide = nil
			}
		})
	})
	w.kernel.Restart()
	w.cni.Restart()
	w.frr.OnEdit(nil)
	c.recovered(w, what, nil)
	c.ended(w, what, c.inA, c.inB)
	return died
}

// clean: no journal is left, and what is committed is what is there.
func (w *world) clean(t fataler, what string) {
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
	k, err := w.kernel.Observe(context.Background(), []string{"host"})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if k.Attached, err = w.cni.Attachments(context.Background()); err != nil {
		t.Fatalf("%v", err)
	}
	if diff := state.Diff(state.Observed(k, o, last.State, last.State.Claims), last.State); len(diff) > 0 {
		t.Fatalf("%s: the committed state isn't there: %v", what, diff)
	}
}
