//go:build guest

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/judge"
	"vtepd/e2e/lab"
	"vtepd/frr/witness"
)

// drift is a story of what others do to a router that vtepd keeps: how long until it is put back, seen by eyes of its own.
type drift struct {
	*story
	ctx    context.Context
	reader *judge.Reader
	whole  []string // the facts while all is well
}

// drifting is a lab whose first leaf has an endpoint on eth1 with three VNIs, two of them with hosts, and, where more is
// true, another one on par0, and one on par0 of the namespace far.
func drifting(t *testing.T, more bool) *drift {
	t.Helper()
	d := &drift{story: deploy(t)}
	d.ctx = d.within(8 * time.Minute)
	d.reader = &judge.Reader{
		Leaf: d.one.Leaf, Sidecar: d.one.Sidecar, Peers: []string{"10.0.0.100"},
		Dir: filepath.Join(d.one.Sidecar.Path("/"), "var/lib/vtepd"),
	}
	one := d.overlay(3)
	if more {
		d.ip("link add par0 mtu 9214 type dummy", "link set par0 up")
		d.far("netns add far", "-n far link add par0 type dummy", "-n far link set par0 up")
		one.Endpoints = "  vtep1: {ipvlan: {parent: par0}, address: {static: 10.0.2.31}}\n" +
			"  vtep2: {ipvlan: {parent: par0, parentNetns: far}, address: {static: 10.0.2.32}}\n"
		one.MoreVNIs = "  3001: {endpoint: vtep1}\n"
		d.carry(d.one, one, "10.0.0.11")
	}
	d.whole = d.facts()
	return d
}

// ip runs ip on the leaf.
func (d *drift) ip(commands ...string) {
	d.Helper()
	for _, c := range commands {
		_, err := d.one.Leaf.Exec(d.ctx, append([]string{"ip"}, strings.Fields(c)...)...)
		d.must(err)
	}
}

// far runs ip where vtepd sees the names of namespaces.
func (d *drift) far(commands ...string) {
	d.Helper()
	for _, c := range commands {
		_, err := d.one.Sidecar.Exec(d.ctx, append([]string{"ip"}, strings.Fields(c)...)...)
		d.must(err)
	}
}

func (d *drift) facts() []string {
	d.Helper()
	facts, err := d.reader.Look(d.ctx, d.one.Proc.Pid())
	d.must(err)
	return facts
}

// back waits until the router is as it was, for an independent reader.
func (d *drift) back(what string) {
	d.Helper()
	d.must(lab.Eventually(d.ctx, what, func(ctx context.Context) error {
		now, err := d.reader.Look(ctx, d.one.Proc.Pid())
		if err == nil && !slices.Equal(now, d.whole) {
			err = fmt.Errorf("missing %q, beside %q", less(d.whole, now), less(now, d.whole))
		}
		return err
	}))
}

func less(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// endpoint is the name of the link of one of vtepd's endpoints.
func (d *drift) endpoint(name string) string {
	d.Helper()
	snap, err := d.one.Status(d.ctx)
	d.must(err)
	for _, e := range snap.Endpoints {
		if e.Name == name {
			return e.Link
		}
	}
	d.Fatalf("no endpoint %s", name)
	return ""
}

// logged is when the daemon first said a message that has all the words, after a time.
func (d *drift) logged(after time.Time, words ...string) (at time.Time, times int) {
	d.Helper()
	for line := range strings.Lines(d.one.Proc.Log()) {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		when, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || when.Before(after.Truncate(time.Millisecond)) || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			continue
		}
		if times++; times == 1 {
			at = when
		}
	}
	return at, times
}

// unaided is how soon what happens must be seen, for it to be known that vtepd was told: by itself it looks at everything once a
// minute. How fast it is beside that is told, not asserted: the guest has no clock to go by.
const unaided = 20 * time.Second

// mended does something to the router, and holds the daemon to putting it back, once, with a word in the log, and counted.
func (d *drift) mended(what string, do func(), says string) {
	d.Helper()
	d.mendedIn(1, what, do, says)
}

// mendedIn is mended where somebody takes one thing after the other, and can be answered as often.
func (d *drift) mendedIn(most int, what string, do func(), says string) {
	d.Helper()
	before, err := d.one.Status(d.ctx)
	d.must(err)
	began := time.Now()
	do()
	done := time.Now()
	snap, err := d.one.Settle(d.ctx, "mends: "+what, func(n status.Snapshot) error {
		if n.Repairs.Count == before.Repairs.Count || n.Condition != status.Idle {
			return fmt.Errorf("%d repairs", n.Repairs.Count)
		}
		return nil
	})
	d.must(err)
	d.back(what + " is put back")
	seen, times := d.logged(began, "msg=repairing", says)
	if n := int(snap.Repairs.Count - before.Repairs.Count); n > most || times > most || times == 0 || !strings.Contains(strings.Join(snap.Repairs.What, "\n"), says) {
		d.Errorf("%s: %d repairs, said %d times: %q, want one of %q", what, n, times, snap.Repairs.What, says)
	}
	if late := seen.Sub(done); late > unaided {
		d.Errorf("%s: seen %v after it was done: nobody told vtepd", what, late)
	}
	d.Logf("drift: %s: done in %v; seen after %v, repaired after %v", what, done.Sub(began).Round(time.Millisecond),
		seen.Sub(began).Round(time.Millisecond), snap.Repairs.Last.Sub(began).Round(time.Millisecond))
}

// waits does something that isn't vtepd's to mend, and holds the daemon to naming it, until it is undone.
func (d *drift) waits(what string, do, undo func(), words ...string) {
	d.Helper()
	began := time.Now()
	do()
	done := time.Now()
	_, err := d.one.Settle(d.ctx, "waits: "+what, func(n status.Snapshot) error { return says(status.Waiting, words...)(n) })
	d.must(err)
	seen := time.Since(began)
	if late := time.Since(done); late > unaided {
		d.Errorf("%s: named %v after it was done: nobody told vtepd", what, late)
	}
	began = time.Now()
	undo()
	_, err = d.one.Settle(d.ctx, "goes on: "+what, idleOn("10.0.0.11"))
	d.must(err)
	idle := time.Since(began)
	d.back("all is well again: " + what)
	d.Logf("drift: %s: named after %v; idle %v after it was undone, and BGP as it was after %v", what, seen.Round(time.Millisecond),
		idle.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// TestDrift: what others do to vtepd's links is put back by itself, and what it stands on is waited for by its name.
func TestDrift(t *testing.T) {
	d := drifting(t, true)
	same := d.foreign()
	tr := d.traffic()
	// Beside live VNIs that must not notice.
	d.mended("VXLAN deleted", func() { d.ip("link del vxlan1000") }, "link vxlan1000 (vxlan of vni/1000) is missing")
	d.mended("VXLAN set down", func() { d.ip("link set vxlan1000 down") }, "up false, wanted true")
	d.mended("local changed", func() { d.ip("link set vxlan1000 type vxlan id 1000 local 10.0.2.99") }, "local 10.0.2.99, wanted 10.0.0.11")
	d.mended("bridge deleted", func() { d.ip("link del br1000") }, "link br1000 (bridge of bridge/br1000) is missing")
	d.mended("another endpoint deleted", func() { d.ip("link del " + d.endpoint("vtep1")) }, "(ipvlan of endpoint/vtep1) is missing")
	d.mended("another endpoint's address taken", func() { d.ip("addr del 10.0.2.31/32 dev " + d.endpoint("vtep1")) }, "addresses none, wanted 10.0.2.31/32")
	d.waits("parent deleted", func() { d.ip("link del par0") }, func() { d.ip("link add par0 mtu 9214 type dummy", "link set par0 up") },
		"endpoints.vtep1.ipvlan.parent: no link par0 in the router's namespace")
	far := func(do, undo []string, words ...string) {
		t.Helper()
		d.waits("in another namespace: "+do[0], func() { d.far(do...) }, func() { d.far(undo...) }, words...)
	}
	const parent = "endpoints.vtep2.ipvlan.parent: "
	again := []string{"-n far link add par0 type dummy", "-n far link set par0 up"}
	far([]string{"-n far link set par0 name up0"}, []string{"-n far link set up0 name par0"}, parent+"no link par0 in namespace far")
	far([]string{"-n far link set par0 down"}, []string{"-n far link set par0 up"}, parent+"par0 is down, and the endpoint with it; set it up")
	far([]string{"-n far link del par0"}, again, parent+"no link par0 in namespace far")
	far([]string{"netns del far"}, append([]string{"netns add far"}, again...), "endpoints.vtep2.ipvlan.parentNetns: namespace far: ")
	// It is the new one that is followed.
	far([]string{"-n far link set par0 name up0"}, []string{"-n far link set up0 name par0"}, parent+"no link par0 in namespace far")
	d.account(tr)

	// Under its own feet.
	d.mended("the endpoint deleted", func() { d.ip("link del " + d.endpoint("vtep0")) }, "(ipvlan of endpoint/vtep0) is missing")
	// The kernel takes the operator's route away with the link; no daemon's doing, and the operator's to put back.
	up := func() { d.ip("link set eth1 up", "route replace 198.51.100.0/24 via 10.1.1.0 dev eth1 metric 77") }
	d.waits("parent down", func() { d.ip("link set eth1 down") }, up,
		"endpoints.vtep0.ipvlan.parent: eth1 is down, and the endpoint with it; set it up")
	d.waits("parent renamed", func() { d.ip("link set eth1 name up1") }, func() { d.ip("link set up1 name eth1") },
		"endpoints.vtep0.ipvlan.parent: no link eth1 in the router's namespace")
	d.fight()
	same()
}

// fight lets somebody take back every repair, as fast as a shell can.
func (d *drift) fight() {
	d.Helper()
	began, cpu := time.Now(), d.cpu()
	foe, err := d.one.Leaf.Start(d.ctx, "/bin/sh", "-c", "while sleep 0.1; do ip link set vxlan1000 type vxlan id 1000 local 10.0.2.99; done")
	d.must(err)
	fight := func(n status.Snapshot) error {
		return says(status.Degraded, "somebody else keeps changing what is vtepd's: repaired", "link vxlan1000 (vxlan of vni/1000): local 10.0.2.99, wanted 10.0.0.11")(n)
	}
	snap, err := d.one.Settle(d.ctx, "says that it is a fight", fight)
	d.must(err)
	d.Logf("drift: fight: called one after %v, %v of CPU: %s", time.Since(began).Round(time.Millisecond), d.cpu()-cpu, snap.Messages[0])
	began, cpu = time.Now(), d.cpu()
	said := snap.Messages[0]
	snap, err = d.one.Settle(d.ctx, "goes on fighting", func(n status.Snapshot) error {
		if err := fight(n); err != nil {
			return err
		}
		if n.Messages[0] == said {
			return errors.New("not tried again yet")
		}
		return nil
	})
	d.must(err)
	// The foe writes some hundred times meanwhile. Three repairs are free, and each later one waits twice as long.
	var n int
	_, count, _ := strings.Cut(snap.Messages[0], "repaired ")
	_, err = fmt.Sscanf(count, "%d times", &n)
	d.must(err)
	d.Logf("drift: fight: tried once more within %v, %v of CPU: %s", time.Since(began).Round(time.Millisecond), d.cpu()-cpu, snap.Messages[0])
	if n < 4 || n > 10 {
		d.Errorf("%d repairs", n)
	}
	foe.Kill()
	began = time.Now()
	_, err = d.one.Settle(d.ctx, "is content", idleOn("10.0.0.11"))
	d.must(err)
	d.back("the foe's work is undone")
	d.Logf("drift: fight: over, and well again after %v", time.Since(began).Round(time.Millisecond))
}

// cpu is the time that vtepd has used.
func (d *drift) cpu() time.Duration {
	d.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.one.Proc.Pid()))
	d.must(err)
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	var ticks time.Duration
	for _, f := range fields[11:13] { // utime, stime: proc_pid_stat(5)
		n, err := strconv.Atoi(f)
		d.must(err)
		ticks += time.Duration(n)
	}
	return ticks * 10 * time.Millisecond // USER_HZ is 100
}

// TestDriftLines: what others do to vtepd's lines in FRR, and to FRR itself.
func TestDriftLines(t *testing.T) {
	d := drifting(t, false)
	same := d.foreign()
	const ours = "network 10.0.0.11/32 route-map VTEPD"
	bgp := func(line string) func() {
		return func() { d.must(d.one.Leaf.Configure(d.ctx, "router bgp 65000", "address-family ipv4 unicast", line)) }
	}
	reload := func(file string) func() {
		return func() {
			_, err := d.one.Leaf.Exec(d.ctx, "/usr/lib/frr/frr-reload.py", "--reload", "--stdout", file)
			// At its end it writes /etc/frr/frr.conf anew, which nobody can in the lab.
			if err != nil && !strings.Contains(err.Error(), `returned status 1 for command "write"`) {
				d.Fatal(err)
			}
		}
	}
	d.mended("network line taken", bgp("no "+ours), "host route 10.0.0.11/32 is missing")
	d.mendedIn(2, "frr-reload with the operator's file", reload("/etc/frr/frr.conf"), "host route 10.0.0.11/32 is missing")

	// The operator writes our lines into their file: what is there already.
	text, err := d.one.Leaf.RunningConfig(d.ctx)
	d.must(err)
	_, text, _ = strings.Cut(text, "Current configuration:\n")
	if !strings.Contains(text, ours) {
		t.Fatalf("no line of ours in\n%s", text)
	}
	d.must(d.one.Leaf.Drop("/tmp/theirs.conf", text))
	heard := d.lab.Node("spine").Speaker()
	quiet := func(what string, do func(), note string) {
		t.Helper()
		before, err := d.one.Status(d.ctx)
		d.must(err)
		mark := heard.Len()
		do()
		snap, err := d.one.Settle(d.ctx, what, func(n status.Snapshot) error { return says(status.Idle, note)(n) })
		d.must(err)
		if snap.Repairs.Count != before.Repairs.Count || snap.Generation != before.Generation && note == "" {
			t.Errorf("%s: %d repairs, generation %d after %d: %q", what, snap.Repairs.Count-before.Repairs.Count, snap.Generation, before.Generation, snap.Repairs.What)
		}
		if n := changes(heard.Since(mark), "10.0.0.11/32"); n > 1 { // one: the line is another one, and bgpd announces it anew
			t.Errorf("%s: the spine heard %d changes of the host route", what, n)
		}
		t.Logf("lines: %s: no quarrel", what)
	}
	quiet("frr-reload with our lines in the operator's file", reload("/tmp/theirs.conf"), "")
	quiet("a line of the operator's in the place of ours", bgp("network 10.0.0.11/32"), "FRR has a `network 10.0.0.11/32` line that vtepd didn't write")
	d.mended("the operator's line goes again", bgp("no network 10.0.0.11/32"), "host route 10.0.0.11/32 is missing")

	for _, daemons := range [][]string{{"bgpd"}, {"zebra"}, {"zebra", "bgpd"}} {
		what := strings.Join(daemons, " and ")
		before, err := d.one.Status(d.ctx)
		d.must(err)
		began := time.Now()
		for _, name := range daemons {
			d.must(d.one.Leaf.KillDaemon(name))
		}
		_, err = d.one.Settle(d.ctx, "sees the end of "+what, func(n status.Snapshot) error { return says(status.Waiting, daemons[len(daemons)-1]+".vty")(n) })
		d.must(err)
		seen := time.Since(began)
		if seen > unaided {
			t.Errorf("the end of %s: seen after %v: nobody told vtepd", what, seen)
		}
		for _, name := range daemons {
			d.must(d.one.Leaf.StartDaemon(d.ctx, name))
		}
		began = time.Now()
		snap, err := d.one.Settle(d.ctx, "goes on with "+what, idleOn("10.0.0.11"))
		d.must(err)
		well := time.Since(began)
		d.must(d.lab.WaitBGP(d.ctx))
		d.back("all is well again with " + what)
		t.Logf("lines: %s killed: seen after %v; started and loaded: idle after %v, all as it was after %v; %d repairs", what,
			seen.Round(time.Millisecond), well.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), snap.Repairs.Count-before.Repairs.Count)
	}
	same()
}

// changes counts the announcements and withdrawals of a host route.
func changes(events []witness.Event, prefix string) (n int) {
	for _, e := range events {
		if (e.Kind == witness.Announce || e.Kind == witness.Withdraw) && e.Prefix.String() == prefix {
			n++
		}
	}
	return n
}
