//go:build guest

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/judge"
	"vtepd/e2e/lab"
)

// How long a case of the matrix may take to come to its phase, and from its fault to its end.
const (
	toPhase = time.Minute
	toEnd   = 90 * time.Second
)

// fault is a way to fail, and the phases that it can strike in.
type fault struct {
	name   string
	phases []plan.Phase
	shape  shape
	strike func(*matrix, *trial) error
}

// shape is what a fault needs of the pair of configs.
type shape int

const (
	anyPair shape = iota
	addsVNI
	toSpare   // the parent that can be spared is the new one
	fromSpare // or the old one
)

// spare is a parent on which nothing else stands.
const spare = "sub0"

var (
	everyPhase = []plan.Phase{plan.Claim, plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Drain, plan.Retire}
	untilStage = everyPhase[:2]
	untilMade  = everyPhase[:3]
)

// The faults, in the order in which they are gone through: first those of vtepd alone, which cost no packet; then those that
// take away what it stands on.
var (
	aloneFaults = []fault{
		{"kill", everyPhase, anyPair, (*matrix).kill},
		{"term", everyPhase, anyPair, (*matrix).term},
		{"frr-refuses", everyPhase, anyPair, func(m *matrix, c *trial) error {
			return m.answered(c, 2, func(string) ([]byte, bool) { return fabric.Refusal("% injected refusal"), true }, nil)
		}},
		{"frr-hangs", everyPhase, anyPair, func(m *matrix, c *trial) error {
			lifted := make(chan struct{})
			return m.answered(c, 1, fabric.Hang(lifted), lifted)
		}},
		{"frr-garbage", everyPhase, anyPair, func(m *matrix, c *trial) error {
			nonsense := [][]byte{
				[]byte("{\"routes\": [\x00\x00\x00\x00"), []byte("\x7fELF\x00\x01\x02\x03\x04"), append([]byte("frr version 99\n!\nend\n"), 0, 0, 0, 0), {0, 0, 0, 7},
			}
			var n atomic.Int64 // of the lines of every connection
			return m.answered(c, 2, func(string) ([]byte, bool) { return nonsense[int(n.Add(1))%len(nonsense)], true }, nil)
		}},
		{"journal-full", everyPhase, anyPair, (*matrix).journalFull},
		{"ledger-full", everyPhase, anyPair, (*matrix).ledgerFull},
		{"address-taken", untilStage, anyPair, (*matrix).addressTaken},
		{"vni-taken", untilMade, addsVNI, (*matrix).vniTaken},
		{"name-taken", untilMade, anyPair, (*matrix).nameTaken},
		{"parent-busy", untilStage, toSpare, (*matrix).parentBusy},
	}
	otherFaults = []fault{
		{"new-parent-gone", everyPhase, toSpare, (*matrix).parentGone},
		{"old-parent-gone", everyPhase, fromSpare, (*matrix).parentGone},
	}
	frrFaults = []fault{
		{"bgpd-killed", everyPhase, anyPair, func(m *matrix, c *trial) error { return m.frrKilled(c, "bgpd") }},
		{"zebra-killed", everyPhase, anyPair, func(m *matrix, c *trial) error { return m.frrKilled(c, "zebra") }},
		{"frr-killed", everyPhase, anyPair, func(m *matrix, c *trial) error { return m.frrKilled(c, "zebra", "bgpd") }},
	}
)

// matrix is the lab, the state that leaf1 is in, and the count of what was done to it.
type matrix struct {
	*story
	seed    uint64
	rng     *rand.Rand
	grip    *fabric.Grip
	reader  *judge.Reader
	answers fabric.Answers
	now     judge.State
	octet   int // of the last address

	ran, missed, between int
	ended                [2]int
	leftovers            []string
	trials               []*trial
}

// trial is one case: a fault in a phase on the way from a to b.
type trial struct {
	fault
	phase      plan.Phase
	a, b       judge.State
	journal    *fabric.Journal // when the fault struck
	began, end time.Time
	verdict    judge.Verdict
	logged     int // length of vtepd's log when the fault struck
}

func (c *trial) String() string { return fmt.Sprintf("%s in %s", c.name, c.phase) }

// number is that of an environment variable; without it, another.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestFaults: whatever fails in whatever phase, the router is in the old state or in the new one, as somebody else reads it.
// VTEPD_FAULTS=all strikes in every phase; without it each fault strikes in one, on releases other than the newest some do.
// VTEPD_FAULTS_SEED repeats a run, VTEPD_FAULTS_ONLY is a pattern for the cases.
func TestFaults(t *testing.T) {
	seed := number(t, "VTEPD_FAULTS_SEED", rand.Uint64())
	t.Logf("faults: seed=%d", seed)
	m := &matrix{seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), octet: 20}
	defer func() {
		t.Logf("guest=%d ended_a=%d ended_b=%d between=%d leftovers=%d", m.ran, m.ended[0], m.ended[1], m.between, len(m.leftovers))
	}()
	groups := m.choose(t)
	m.deploy(t)

	alone := slices.Concat(groups[0])
	if len(alone) > 0 {
		bgpd, err := fabric.Interpose(m.one.Sidecar.Path("/var/run/frr"), "bgpd", m.answers.Answer)
		m.must(err)
		zebra, err := fabric.Interpose(m.one.Sidecar.Path("/var/run/frr"), "zebra", m.answers.Answer)
		m.must(err)
		m.restart()
		tr, err := m.lab.StartTraffic(m.within(2*time.Minute), lab.TrafficOptions{Flows: fabric.Hosts(), Ours: "leaf1", Interval: 50 * time.Millisecond})
		m.must(err)
		for _, c := range alone {
			m.try(c)
		}
		m.accountEach(tr)
		m.must(errors.Join(bgpd.Close(), zebra.Close()))
		m.restart()
	}
	tr, err := m.lab.StartTraffic(m.within(2*time.Minute), lab.TrafficOptions{Flows: fabric.Hosts(), Ours: "leaf1", Interval: 200 * time.Millisecond})
	m.must(err)
	for _, c := range slices.Concat(groups[1:]...) {
		m.try(c)
		if err := tr.WaitReceived(m.within(toEnd), 3); err != nil {
			t.Errorf("%s: the overlay doesn't come back: %v", c, err)
		}
	}
	if len(m.leftovers) > 0 {
		t.Errorf("leftovers: %q", m.leftovers)
	}
	t.Logf("%d phases were missed, and tried again", m.missed)
}

// choose draws the cases, in the three groups of faults.
func (m *matrix) choose(t *testing.T) (groups [3][]*trial) {
	t.Helper()
	only, err := regexp.Compile(os.Getenv("VTEPD_FAULTS_ONLY"))
	if err != nil {
		t.Fatalf("VTEPD_FAULTS_ONLY: %v", err)
	}
	all := os.Getenv("VTEPD_FAULTS") == "all" || os.Getenv("VTEPD_FAULTS_ONLY") != ""
	for i, faults := range [][]fault{aloneFaults, otherFaults, frrFaults} {
		faults = slices.Clone(faults)
		m.rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		if r := os.Getenv("VTEPD_FRR_RELEASE"); !all && r != "trixie" {
			faults = faults[:min(len(faults), 3-i)]
		}
		shift := m.rng.IntN(len(everyPhase))
		for n, f := range faults {
			phases := f.phases
			if !all {
				phases = phases[(n+shift)%len(phases):][:1] // so that they differ
			}
			for _, p := range phases {
				if c := (&trial{fault: f, phase: p}); only.MatchString(c.String()) {
					groups[i] = append(groups[i], c)
				}
			}
		}
		if all {
			m.rng.Shuffle(len(groups[i]), func(a, b int) { groups[i][a], groups[i][b] = groups[i][b], groups[i][a] })
		}
	}
	if len(slices.Concat(groups[:]...)) == 0 {
		t.Fatalf("VTEPD_FAULTS_ONLY: no case is like %q; they are called like %q", only, (&trial{fault: frrFaults[0], phase: plan.Swap}).String())
	}
	return groups
}

// deploy makes the lab. vtepd's state and its ledger are on small filesystems of their own, and what is there before it starts
// is the operator's.
func (m *matrix) deploy(t *testing.T) {
	t.Helper()
	m.story = &story{T: t, lab: lab.New(t, topology, lab.Options{GoBGP: []string{"spine"}})}
	m.one, m.two = fabric.Sides(m.lab)
	ctx := m.within(3 * time.Minute)
	m.must(m.lab.WaitBGP(ctx))
	m.must(m.two.Start(ctx))
	m.leaf("ip", "link", "add", spare, "mtu", "9214", "type", "dummy")
	m.leaf("ip", "link", "set", spare, "up")
	for _, args := range []string{
		"mount -t tmpfs -o size=1m,mode=700 vtepd /var/lib/vtepd", "mkdir /var/lib/vtepd/ledger",
		"mount -t tmpfs -o size=64k,mode=750 ledger /var/lib/vtepd/ledger",
	} {
		_, err := m.one.Sidecar.Exec(ctx, strings.Fields(args)...)
		m.must(err)
	}
	m.reader = &judge.Reader{
		Leaf: m.one.Leaf, Sidecar: m.one.Sidecar, Peers: []string{"10.0.0.100"},
		Dir: filepath.Join(m.one.Sidecar.Path("/"), "var/lib/vtepd"),
	}
	m.must(m.reader.Open(ctx))
	var err error
	m.grip, err = fabric.NewGrip(m.reader.Dir)
	m.must(err)
	t.Cleanup(func() { m.grip.Close() })

	m.must(m.one.Start(ctx))
	for _, side := range []*fabric.Side{m.one, m.two} {
		m.must(lab.Eventually(ctx, "vtepd's socket", func(ctx context.Context) error { _, err := side.Status(ctx); return err }))
	}
	m.carry(m.two, fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: fabric.VNIs(6)}, "10.0.0.12")
	m.now = judge.State{Node: "leaf1", Endpoint: "vtep0", Pool: "vteps", Parent: "eth1", Address: fabric.Addr("10.0.0.20"), VNIs: []int{100, 200, 1000, 1001}}
	m.must(m.settle(m.now))
	m.must(m.one.Enslave(ctx))
	m.must(m.two.Enslave(ctx))
	v, err := m.reader.Judge(ctx, m.one.Proc.Pid(), m.now)
	m.must(err)
	if !v.Clean() { // check the checker
		t.Fatalf("with nothing in the way: %s", v)
	}
}

func (m *matrix) leaf(args ...string) {
	m.Helper()
	_, err := m.one.Leaf.Exec(m.within(time.Minute), args...)
	m.must(err)
}

// drop drops the file of a state.
func (m *matrix) drop(s judge.State) error {
	return m.one.Drop(fabric.Config{
		Node: s.Node, Parent: s.Parent, Address: fabric.Prefer(s.Address.String()), VNIs: s.VNIs,
		More: "transaction: {timeout: 10s, drain: {quiet: 200ms, limit: 5s}}\n",
	}.YAML())
}

// settle drops the file of a state and waits until vtepd says that it is there.
func (m *matrix) settle(s judge.State) error {
	if err := m.drop(s); err != nil {
		return err
	}
	_, err := m.one.Settle(m.within(toEnd), "is on "+s.String(), func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return errors.New("not idle")
		}
		if len(n.VNIs) != len(s.VNIs) || len(n.Endpoints) != 1 || n.Endpoints[0].Parent != s.Parent {
			return fmt.Errorf("it has %v and %v", n.Endpoints, n.VNIs)
		}
		return fabric.Has(n, s.Address.String(), s.VNIs)
	})
	return err
}

// restart ends vtepd and starts it again.
func (m *matrix) restart() {
	m.Helper()
	m.must(m.one.Proc.Stop(m.within(time.Minute)))
	m.must(m.one.Start(m.within(time.Minute)))
	m.must(m.settle(m.now))
}

// draw makes the next state out of the live one: always another address, often another parent and other VNIs.
func (m *matrix) draw(s shape) judge.State {
	b := m.now
	if m.octet++; m.octet > 99 {
		m.octet = 20
	}
	b.Address = netip.AddrFrom4([4]byte{10, 0, 0, byte(m.octet)})
	parents := []string{"eth1", "eth2", spare}
	switch s {
	case toSpare:
		parents = parents[2:]
	case fromSpare:
		parents = parents[:2]
	}
	b.Parent = parents[m.rng.IntN(len(parents))]
	b.VNIs = []int{100, 200}
	for v := 1000; v < 1004; v++ {
		if m.rng.IntN(2) == 0 {
			b.VNIs = append(b.VNIs, v)
		}
	}
	if s == addsVNI && added(m.now, b) == 0 {
		for v := 1000; v < 1004; v++ {
			if !slices.Contains(m.now.VNIs, v) {
				b.VNIs = append(b.VNIs, v)
				break
			}
		}
	}
	slices.Sort(b.VNIs)
	return b
}

// added is a VNI of b that a doesn't have, 0 for none.
func added(a, b judge.State) int {
	for _, v := range b.VNIs {
		if !slices.Contains(a.VNIs, v) {
			return v
		}
	}
	return 0
}

// try carries out one case: until its fault has struck in its phase, then to its end.
func (m *matrix) try(c *trial) {
	m.Helper()
	const tries = 8
	for range tries {
		fits := map[shape]bool{
			anyPair: true, addsVNI: len(m.now.VNIs) < 6, toSpare: m.now.Parent != spare, fromSpare: m.now.Parent == spare,
		}[c.shape]
		if !fits {
			before := m.now
			before.Parent = map[shape]string{toSpare: "eth1", fromSpare: spare, addsVNI: before.Parent}[c.shape]
			before.VNIs = []int{100, 200, 1000}
			m.must(m.settle(before))
			m.now = before
		}
		c.a, c.b, c.began = m.now, m.draw(c.shape), time.Now()
		m.grip.Catch(m.one.Proc, string(c.phase))
		m.must(m.drop(c.b))
		var err error
		c.journal, err = m.grip.Held(m.within(toPhase))
		if err == nil && c.journal.Phase() != string(c.phase) {
			err = errors.Join(fabric.ErrMissed, m.one.Proc.Signal(syscall.SIGCONT))
		}
		if err == nil {
			c.logged = len(m.one.Proc.Log())
			err = c.strike(m, c)
		}
		if errors.Is(err, fabric.ErrMissed) {
			m.grip.Let()
			m.missed++
			m.must(m.settle(c.b))
			m.now = c.b
			continue
		}
		if err != nil { // it never came to an end
			m.Errorf("%s, on the way from %s to %s: %v", c, c.a, c.b, err)
			c.verdict.In = -1
		}
		m.ends(c)
		return
	}
	m.Fatalf("%s: missed %d times", c, tries)
}

// ends counts a case and leaves the router, and the file, in the state that it ended in.
func (m *matrix) ends(c *trial) {
	m.Helper()
	c.end = time.Now()
	m.ran++
	m.trials = append(m.trials, c)
	m.now = c.b
	switch c.verdict.In {
	case -1:
		m.between++
		m.Errorf("%s, on the way from %s to %s: %s\nlog:\n%s", c, c.a, c.b, c.verdict, tail(m.one.Proc.Log()))
	default:
		m.ended[c.verdict.In]++
		if c.verdict.In == 0 {
			m.now = c.a
		}
		for _, l := range c.verdict.Leftovers {
			m.Errorf("%s, on the way from %s to %s, ended_%c: left over: %s\nlog:\n%s", c, c.a, c.b, 'a'+c.verdict.In, l, tail(m.one.Proc.Log()))
			m.leftovers = append(m.leftovers, fmt.Sprintf("%s: %s", c, l))
		}
	}
	m.grip.Let()
	m.must(m.drop(m.now))
	if !m.one.Proc.Running() {
		m.must(m.one.Start(m.within(time.Minute)))
	}
	m.must(m.one.Proc.Signal(syscall.SIGCONT))
	m.must(m.settle(m.now))
	m.Logf("%-28s ended_%s in %4.1fs (%4.1fs in all): %s to %s", c, map[int]string{-1: "between", 0: "a", 1: "b"}[c.verdict.In],
		c.end.Sub(c.began).Seconds(), time.Since(c.began).Seconds(), c.a, c.b)
}

func tail(log string) string {
	const most = 6000
	return log[max(0, len(log)-most):]
}

// overAndJudged waits for the end of the transaction, at which vtepd stops, and has the router judged as it is then.
func (m *matrix) overAndJudged(c *trial) error {
	if _, err := m.grip.Held(m.within(toEnd)); err != nil {
		return err
	}
	return m.judged(c)
}

func (m *matrix) judged(c *trial) (err error) {
	c.verdict, err = m.reader.Judge(m.within(time.Minute), m.one.Proc.Pid(), c.a, c.b)
	return err
}

// judgedRunning judges while vtepd is at work: what was taken from under it is put back after the transaction too.
func (m *matrix) judgedRunning(c *trial) error {
	return lab.Eventually(m.within(toEnd), c.String(), func(context.Context) error {
		if err := m.judged(c); err != nil {
			return err
		}
		if time.Since(c.began) < toEnd && !c.verdict.Clean() {
			return errors.New(c.verdict.String())
		}
		return nil
	})
}

// felt waits until vtepd has failed so many steps more, or its transaction is over, or for a while.
func (m *matrix) felt(c *trial, failures int) {
	ctx, cancel := context.WithTimeout(m.Context(), 12*time.Second)
	defer cancel()
	_ = lab.Eventually(ctx, "a failure", func(context.Context) error { // that there is none is fine
		j, err := fabric.ReadJournal(filepath.Join(m.reader.Dir, "journal"))
		if log := m.one.Proc.Log(); strings.Count(log[c.logged:], "step failed") < failures && (j != nil || err != nil) {
			return errors.New("none")
		}
		return nil
	})
}

// inTheWay lets vtepd go on with something in its way, until it has felt it, and then without.
func (m *matrix) inTheWay(c *trial, failures int, clear func() error) error {
	m.grip.CatchEnd(m.one.Proc)
	if err := m.one.Proc.Signal(syscall.SIGCONT); err != nil {
		return errors.Join(err, clear())
	}
	m.felt(c, failures)
	if err := clear(); err != nil {
		return err
	}
	return m.overAndJudged(c)
}

// recovered starts another vtepd after one that has ended, and judges what it makes of the journal. Before the point of no return
// the file is the old one by then, so that nothing follows.
func (m *matrix) recovered(c *trial, j *fabric.Journal) error {
	if !j.Forward {
		if err := m.drop(c.a); err != nil {
			return err
		}
	}
	if err := m.one.Start(m.within(time.Minute)); err != nil {
		return err
	}
	m.grip.CatchEnd(m.one.Proc)
	if err := m.overAndJudged(c); err != nil {
		return err
	}
	if want := map[bool]int{false: 0, true: 1}[j.Forward]; c.verdict.In >= 0 && c.verdict.In != want {
		return fmt.Errorf("%s, and the journal says otherwise", c.verdict)
	}
	return nil
}

func (m *matrix) kill(c *trial) error {
	m.one.Proc.Kill()
	return m.recovered(c, c.journal)
}

func (m *matrix) term(c *trial) error {
	if err := errors.Join(m.one.Proc.Signal(syscall.SIGTERM), m.one.Proc.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	if err := m.one.Proc.Wait(m.within(toEnd)); err != nil {
		return err
	}
	j, err := fabric.ReadJournal(filepath.Join(m.reader.Dir, "journal"))
	if err != nil {
		return err
	}
	if j != nil {
		return m.recovered(c, j)
	}
	if err := m.judged(c); err != nil {
		return err
	}
	if c.verdict.In == 0 {
		if err := m.drop(c.a); err != nil {
			return err
		}
	}
	return m.one.Start(m.within(time.Minute))
}

// answered has vtepd's lines to FRR answered until it has failed so many steps; then what was held up is lifted.
func (m *matrix) answered(c *trial, failures int, with func(string) ([]byte, bool), lifted chan struct{}) error {
	m.answers.Set(with)
	return m.inTheWay(c, failures, func() error {
		m.answers.Set(nil)
		if lifted != nil {
			close(lifted)
		}
		return nil
	})
}

func (m *matrix) journalFull(c *trial) error {
	fill, err := fabric.FillJournal(m.reader.Dir)
	if err != nil {
		return err
	}
	return m.inTheWay(c, 2, func() error { return os.Remove(fill) })
}

func (m *matrix) ledgerFull(c *trial) error {
	dir := filepath.Join(m.reader.Dir, "ledger", ".tmp")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fill, err := fabric.Fill(dir)
	if err != nil {
		return err
	}
	return m.inTheWay(c, 1, func() error { return os.Remove(fill) })
}

// foreigner makes a thing of somebody else's, which is taken away again once it has been in the way. One that the kernel refuses
// comes too late: what it would be in the way of is there.
func (m *matrix) foreigner(c *trial, away []string, things ...[]string) error {
	ctx := m.within(time.Minute)
	clear := func() error {
		_, err := m.one.Leaf.Exec(ctx, away...)
		return err
	}
	for i, args := range things {
		if _, err := m.one.Leaf.Exec(ctx, args...); err != nil {
			late := errors.Join(fabric.ErrMissed, err, m.one.Proc.Signal(syscall.SIGCONT))
			if i > 0 {
				late = errors.Join(late, clear())
			}
			return late
		}
	}
	return m.inTheWay(c, 1, clear)
}

func (m *matrix) addressTaken(c *trial) error {
	return m.foreigner(
		c, strings.Fields("ip netns del foe"), strings.Fields("ip netns add foe"),
		strings.Fields("ip link add foe0 link "+c.b.Parent+" netns foe type ipvlan mode l3"),
		strings.Fields("ip -n foe addr add "+c.b.Address.String()+"/32 dev foe0"), strings.Fields("ip -n foe link set foe0 up"),
	)
}

func (m *matrix) vniTaken(c *trial) error {
	return m.foreigner(c, strings.Fields("ip link del foe0"),
		strings.Fields(fmt.Sprintf("ip link add foe0 type vxlan id %d local 10.0.1.1 dstport 4789 nolearning", added(c.a, c.b))))
}

func (m *matrix) nameTaken(c *trial) error {
	i := slices.IndexFunc(c.journal.Adds, func(name string) bool { return strings.HasPrefix(name, "vtep0-") })
	if i < 0 {
		return fmt.Errorf("no endpoint in %q", c.journal.Adds)
	}
	name := c.journal.Adds[i]
	return m.foreigner(c, []string{"ip", "link", "del", name}, []string{"ip", "link", "add", name, "type", "dummy"})
}

func (m *matrix) parentBusy(c *trial) error {
	return m.foreigner(c, strings.Fields("ip link del foe0"),
		strings.Fields("ip link add foe0 type bridge"), strings.Fields("ip link set "+spare+" master foe0"))
}

// parentGone: the operator deletes the parent of one of the endpoints, and makes it again a little later.
func (m *matrix) parentGone(c *trial) error {
	ctx := m.within(time.Minute)
	_, err := m.one.Leaf.Exec(ctx, "ip", "link", "del", spare)
	if err := errors.Join(err, m.one.Proc.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	m.felt(c, 1)
	for _, args := range []string{"ip link add " + spare + " mtu 9214 type dummy", "ip link set " + spare + " up"} {
		if _, err := m.one.Leaf.Exec(ctx, strings.Fields(args)...); err != nil {
			return err
		}
	}
	return m.judgedRunning(c)
}

// frrKilled: daemons of FRR die, and are started again with the operator's configuration.
func (m *matrix) frrKilled(c *trial, daemons ...string) error {
	ctx := m.within(toEnd)
	for _, d := range daemons {
		if err := m.one.Leaf.KillDaemon(d); err != nil {
			return err
		}
	}
	if err := m.one.Proc.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	for _, d := range daemons {
		if err := m.one.Leaf.StartDaemon(ctx, d); err != nil {
			return err
		}
	}
	if err := m.lab.WaitBGP(ctx); err != nil {
		return err
	}
	return m.judgedRunning(c)
}

// accountEach stops the traffic, and lays what was lost at the door of each case.
func (m *matrix) accountEach(tr *lab.Traffic) {
	m.Helper()
	m.must(tr.WaitReceived(m.within(time.Minute), 10))
	r, err := tr.Stop(m.within(time.Minute))
	m.must(err)
	m.Logf("traffic: %s", r)
	for _, l := range r.Losses {
		during := "between two cases"
		for _, c := range m.trials {
			if !l.Time.Before(c.began) && l.Time.Before(c.end.Add(5*time.Second)) {
				during = c.String()
			}
		}
		switch {
		case l.Class != lab.LostByRemote:
			m.Errorf("%s: %s", during, l)
		case l.FDB == nil:
			m.Errorf("%s: nothing explains it: %s", during, l)
		default:
			m.Logf("%s: %s", during, l)
		}
	}
	if r.LostHere != 0 || r.Sent == 0 {
		m.Errorf("lost_here=%d of %d", r.LostHere, r.Sent)
	}
	m.Logf("%d cases of vtepd alone, lost_here=%d of %d", len(m.trials), r.LostHere, r.Sent)
}
