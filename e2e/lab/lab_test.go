//go:build guest

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vtepd/e2e/clab"
	"vtepd/frr/witness"
)

const topology = "../../containerlab/evpn-l2.clab.yml"

// roots lets these tests, but that of ipvlan, run on a machine's own kernel with
// the FRR of another root: VTEPD_LAB_ROOT is its directory.
func roots() map[string]string { return map[string]string{"": os.Getenv("VTEPD_LAB_ROOT")} }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// overlay makes VNI 100 on a leaf by hand, as vtepd will: the endpoint's
// address on lo, its host route, VXLAN and bridge, and as operator the host port.
func overlay(ctx context.Context, leaf *Node, endpoint string) error {
	if err := run(ctx, leaf, "ip addr add "+endpoint+"/32 dev lo"); err != nil {
		return err
	}
	return overlayOn(ctx, leaf, endpoint)
}

// run runs commands, one after the other.
func run(ctx context.Context, n *Node, commands ...string) error {
	for _, c := range commands {
		if _, err := n.Exec(ctx, strings.Fields(c)...); err != nil {
			return err
		}
	}
	return nil
}

// overlayOn is overlay for an address that is there.
func overlayOn(ctx context.Context, leaf *Node, endpoint string) error {
	if err := leaf.Configure(ctx, "router bgp 65000", "address-family ipv4 unicast", "network "+endpoint+"/32"); err != nil {
		return err
	}
	err := run(ctx, leaf,
		"ip link add br100 type bridge",
		"ip link add vxlan100 type vxlan id 100 local "+endpoint+" dstport 4789 nolearning",
		"ip link set vxlan100 master br100",
		"bridge link set dev vxlan100 learning off neigh_suppress on",
		"ip link set vxlan100 up",
		"ip link set br100 up")
	if err != nil {
		return err
	}
	return leaf.Enslave(ctx, "eth3", "br100")
}

// With FRR as its spine, the topology carries an overlay made by hand, its
// losses are laid at the right door, and its daemons come back.
func TestFRR(t *testing.T) {
	l := New(t, topology, Options{Roots: roots()})
	ctx := within(t, 8*time.Minute)
	if err := l.WaitBGP(ctx); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(overlay(ctx, l.Node("leaf1"), "10.255.0.11"), overlay(ctx, l.Node("leaf2"), "10.255.0.12")); err != nil {
		t.Fatal(err)
	}
	t.Run("Overlay", func(t *testing.T) { testOverlay(ctx, t, l) })
	t.Run("Operator", func(t *testing.T) { testOperator(ctx, t, l) })
	t.Run("Blame", func(t *testing.T) { testBlame(ctx, t, l) })
	t.Run("Daemons", func(t *testing.T) { testDaemons(ctx, t, l) })
}

// With GoBGP as its spine, everything is heard; an endpoint is reached on either
// uplink; nodes are apart.
func TestGoBGP(t *testing.T) {
	l := New(t, topology, Options{Roots: roots(), GoBGP: []string{"spine"}})
	ctx := within(t, 8*time.Minute)
	if err := l.WaitBGP(ctx); err != nil {
		t.Fatal(err)
	}
	t.Run("Operator", func(t *testing.T) { testOperator(ctx, t, l) })
	t.Run("Nodes", func(t *testing.T) { testNodes(ctx, t, l) })
	t.Run("Uplinks", func(t *testing.T) { testUplinks(ctx, t, l) })
}

// testOverlay: no packet is lost, and every stage of each was seen: the account
// rests on all captures.
func testOverlay(ctx context.Context, t *testing.T, l *Lab) {
	tr, err := l.StartTraffic(ctx, TrafficOptions{
		Ours:  "leaf1",
		Flows: append(Between("host1", "172.16.100.1", "host2", "172.16.100.2"), Between("host1", "fd00:100::1", "host2", "fd00:100::2")...),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.WaitReceived(ctx, 100); err != nil {
		t.Fatal(err)
	}
	report, err := tr.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if report.Sent < 400 || report.Received != report.Sent || len(report.Losses) != 0 {
		t.Errorf("%v: %v", report, report.Losses)
	}
	for _, r := range tr.flows {
		for _, p := range r.packets[r.base:] {
			for s, at := range p.At {
				if at.IsZero() {
					t.Fatalf("flow %s: packet %d was not seen %v", r.Name, p.Seq, Stage(s))
				}
			}
		}
	}
	if _, err := tr.Stop(ctx); err == nil || err.Error() != "this traffic has been stopped before" {
		t.Errorf("stopped twice: %v", err)
	}
	for _, opt := range []struct {
		o    TrafficOptions
		want string
	}{
		{TrafficOptions{Ours: "spine", Flows: Between("host1", "172.16.100.1", "host2", "172.16.100.2")}, `our leaf "spine" has no host of these flows`},
		{TrafficOptions{Ours: "leaf1", Flows: Between("host1", "172.16.100.9", "host2", "172.16.100.2")}, "node host1 has no address 172.16.100.9 on a link of the topology"},
		{TrafficOptions{Ours: "leaf1", Flows: Between("host3", "172.16.100.1", "host2", "172.16.100.2")}, `no node "host3"`},
	} {
		if _, err := l.StartTraffic(ctx, opt.o); err == nil || err.Error() != opt.want {
			t.Errorf("StartTraffic: %v, want %s", err, opt.want)
		}
	}
}

// heard checks what the spine heard of the overlay, and when.
func heard(ctx context.Context, t *testing.T, l *Lab, mark int) {
	t.Helper()
	s := l.Node("spine").Speaker()
	for leaf, endpoint := range map[string]string{"10.0.0.1": "10.255.0.11", "10.0.0.2": "10.255.0.12"} {
		peer, a := netip.MustParseAddr(leaf), netip.MustParseAddr(endpoint)
		route, err := s.WaitSince(ctx, mark, func(e witness.Event) bool {
			return e.Kind == witness.Announce && e.Peer == peer && e.Prefix == netip.PrefixFrom(a, 32)
		})
		if err != nil || route.NextHop != peer {
			t.Errorf("host route of %s: %v, %v", leaf, route, err)
		}
		multicast, err := s.WaitSince(ctx, mark, func(e witness.Event) bool {
			return e.Kind == witness.Announce && e.Peer == peer && e.Type == 3 && e.VNI == 100
		})
		if err != nil || multicast.NextHop != a || multicast.IP != a {
			t.Errorf("type 3 of %s: %v, %v", leaf, multicast, err)
		}
		if route.Time.Before(l.started) || time.Now().Before(route.Time) {
			t.Errorf("host route heard at %v", route.Time)
		}
	}
	for _, e := range s.Since(mark) {
		if e.Kind == witness.Withdraw || e.Kind == witness.Down {
			t.Errorf("unexpected: %v", e)
		}
	}
	// A foreign router's route reaches the leaves; and is gone when withdrawn.
	foreign := witness.Route{Prefix: netip.MustParsePrefix("10.255.0.99/32"), NextHop: netip.MustParseAddr("10.0.0.100")}
	has := func(want bool) func(context.Context) error {
		return func(ctx context.Context) error {
			var routes map[string]json.RawMessage
			if err := l.Node("leaf1").VtyshJSON(ctx, &routes, "show ip route 10.255.0.99/32 json"); err != nil {
				return err
			}
			if _, ok := routes["10.255.0.99/32"]; ok != want {
				return fmt.Errorf("leaf1 has it: %v, want %v", ok, want)
			}
			return nil
		}
	}
	if err := errors.Join(s.Announce(ctx, foreign), Eventually(ctx, "the foreign route", has(true)),
		s.Withdraw(ctx, foreign), Eventually(ctx, "its end", has(false))); err != nil {
		t.Error(err)
	}
	if err := s.Announce(ctx, witness.Route{}); err == nil || err.Error() != "a route without next hop" {
		t.Errorf("Announce of nothing: %v", err)
	}
}

// testOperator: what the operator has on the leaves works; the stories look that
// nobody touches it.
func testOperator(ctx context.Context, t *testing.T, l *Lab) {
	t.Helper()
	err := Eventually(ctx, "VNI 999 of the operator", func(ctx context.Context) error {
		fdb, err := l.Node("leaf1").Exec(ctx, "bridge", "fdb", "show", "dev", "vxlan999")
		if err != nil {
			return err
		}
		if !strings.Contains(fdb, "dst 10.0.1.2") {
			return fmt.Errorf("leaf2 is not in the flood list of leaf1: %s", fdb)
		}
		_, err = l.Node("leaf1").Exec(ctx, "ping", "-c", "1", "-W", "5", "-I", "10.0.1.1", "10.0.1.2")
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// testDaemons: a daemon that was killed comes back with its configuration.
func testDaemons(ctx context.Context, t *testing.T, l *Lab) {
	leaf := l.Node("leaf1")
	const extra = "  network 10.255.0.11/32\n" // a line that no file has
	before, err := leaf.RunningConfig(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(before, extra) {
		t.Fatalf("without %q:\n%s", extra, before)
	}
	before = strings.Replace(before, extra, "", 1)
	for _, name := range []string{"bgpd", "staticd", "zebra"} {
		if err := leaf.KillDaemon(name); err != nil {
			t.Fatal(err)
		}
		if err := leaf.KillDaemon(name); err == nil || err.Error() != "leaf1: no "+name+" is running" {
			t.Errorf("killed twice: %v", err)
		}
		if err := leaf.StartDaemon(ctx, name); err != nil {
			t.Fatal(err)
		}
		err := Eventually(ctx, "the configuration after the end of "+name, func(ctx context.Context) error {
			after, err := leaf.RunningConfig(ctx)
			if err == nil && after != before {
				err = fmt.Errorf("it was\n%s\nand is\n%s", before, after)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.WaitBGP(ctx); err != nil {
		t.Fatal(err)
	}
}

// testBlame: packets that a leaf keeps are laid at its door.
func testBlame(ctx context.Context, t *testing.T, l *Lab) {
	leaf := l.Node("leaf2")
	tr, err := l.StartTraffic(ctx, TrafficOptions{Ours: "leaf1", Flows: Between("host1", "172.16.100.1", "host2", "172.16.100.2")})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.WaitReceived(ctx, 20); err != nil {
		t.Fatal(err)
	}
	// From now on leaf2 has nobody to give packets to, and forwards none of its
	// host's; leaf1 floods what it knows no place for.
	if _, err := leaf.Exec(ctx, "ip", "link", "set", "eth3", "nomaster"); err != nil {
		t.Fatal(err)
	}
	sent, _ := tr.Progress()
	err = tr.wait(ctx, func() error {
		var packets int
		for _, r := range tr.flows {
			packets += len(r.packets) - int(r.base)
		}
		if packets < sent+60 {
			return fmt.Errorf("%d packets sent", packets)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := tr.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if report.LostRemote < 40 || report.LostHere != 0 || report.Sent != report.Received+report.LostRemote {
		t.Errorf("leaf2 had its host port outside of its bridge: %v", report)
	}
	for _, loss := range report.Losses[:min(3, len(report.Losses))] {
		t.Log(loss)
	}
}

// testUplinks: an ipvlan endpoint is reached on either uplink, moves between them
// without a loss, and outlives the other uplink.
func testUplinks(ctx context.Context, t *testing.T, l *Lab) {
	mark := l.Node("spine").Speaker().Len()
	leaf, spine := l.Node("leaf1"), l.Node("spine")
	const endpoint = "10.255.0.11"
	err := errors.Join(
		run(ctx, leaf, "ip link add one link eth1 type ipvlan mode l3", "ip link set one up", "ip addr add "+endpoint+"/32 dev one"),
		overlayOn(ctx, leaf, endpoint), overlay(ctx, l.Node("leaf2"), "10.255.0.12"))
	if err != nil {
		t.Fatal(err)
	}
	heard(ctx, t, l, mark)
	start := func() *Traffic {
		tr, err := l.StartTraffic(ctx, TrafficOptions{Ours: "leaf1", Flows: Between("host1", "172.16.100.1", "host2", "172.16.100.2")})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	tr := start()
	err = errors.Join(tr.WaitReceived(ctx, 50),
		run(ctx, leaf, "ip link add two link eth2 type ipvlan mode l3", "ip link set two up", "ip addr add "+endpoint+"/32 dev two"),
		tr.WaitReceived(ctx, 50), run(ctx, leaf, "ip link del one"), tr.WaitReceived(ctx, 50))
	if err != nil {
		t.Fatal(err)
	}
	report, err := tr.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if len(report.Losses) != 0 {
		t.Errorf("moved from eth1 to eth2: %v", report.Losses)
	}

	// Its packets came by eth1 all the same; without that they come by eth2.
	err = errors.Join(run(ctx, spine, "ip link set eth1 down"),
		Eventually(ctx, "the way over eth2", func(ctx context.Context) error {
			route, err := spine.Exec(ctx, "ip", "route", "get", endpoint)
			if err == nil && !strings.Contains(route, "dev eth2") {
				err = errors.New(route)
			}
			if err != nil {
				return err
			}
			return run(ctx, leaf, "ping -c 1 -W 1 -I "+endpoint+" 10.255.0.12")
		}))
	if err != nil {
		t.Fatal(err)
	}
	tr = start()
	if err := tr.WaitReceived(ctx, 50); err != nil {
		t.Fatal(err)
	}
	if report, err = tr.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	if len(report.Losses) != 0 {
		t.Errorf("on eth2 alone: %v", report.Losses)
	}
	if err := l.WaitBGP(ctx); err != nil {
		t.Errorf("BGP runs between loopbacks: %v", err)
	}
}

// testNodes: nodes are apart, and share what the topology says they share.
func testNodes(ctx context.Context, t *testing.T, l *Lab) {
	leaf, side := l.Node("leaf1"), l.Node("vtepd1")

	if err := side.Drop("/etc/vtepd/a.yaml", "x: 1\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := side.Exec(ctx, "cat", "/etc/vtepd/a.yaml"); err != nil || got != "x: 1\n" {
		t.Errorf("the dropped file has %q, %v", got, err)
	}
	if got, err := side.Exec(ctx, "ls", "-A", "/etc/vtepd"); err != nil || got != "a.yaml\n" {
		t.Errorf("the drop directory has %q, %v", got, err)
	}
	if _, err := leaf.Exec(ctx, "ls", "/etc/vtepd"); err == nil {
		t.Error("the leaf has the sidecar's drop directory")
	}
	// FRR's sockets are where the sidecar looks for them.
	if _, err := side.Exec(ctx, "test", "-S", "/var/run/frr/bgpd.vty"); err != nil {
		t.Error(err)
	}
	c, err := side.Dial(ctx, "/var/run/frr/bgpd.vty")
	if err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	ns := func(n *Node, name string) string {
		out, err := n.Exec(ctx, "readlink", "/proc/self/ns/"+name)
		if err != nil {
			t.Error(err)
		}
		return out
	}
	if ns(leaf, "net") != ns(side, "net") {
		t.Error("the sidecar is not in the leaf's network namespace")
	}
	for _, name := range []string{"mnt", "pid", "uts"} {
		if ns(leaf, name) == ns(side, name) {
			t.Errorf("the sidecar is in the leaf's %s namespace", name)
		}
	}
	// What a node writes is in no other, and in no image.
	if _, err := leaf.Exec(ctx, "sh", "-c", "echo x >/etc/left-over"); err != nil {
		t.Error(err)
	}
	if _, err := l.Node("leaf2").Exec(ctx, "test", "-e", "/etc/left-over"); err == nil {
		t.Error("leaf2 has a file of leaf1's")
	}
	if _, err := os.Stat(filepath.Join("/", os.Getenv("VTEPD_LAB_ROOT"), "etc/left-over")); err == nil {
		t.Error("the image has a file of leaf1's")
	}
	if got, err := os.ReadFile(leaf.Path("/etc/left-over")); err != nil || string(got) != "x\n" {
		t.Errorf("through Path: %q, %v", got, err)
	}
	if _, err := leaf.Exec(ctx, "sh", "-c", "echo x >/etc/frr/frr.conf"); err == nil {
		t.Error("a read-only bind was written to")
	}
	if got, err := leaf.Exec(ctx, "hostname"); err != nil || got != "leaf1\n" {
		t.Errorf("host name %q, %v", got, err)
	}

	// Processes.
	p, err := side.Start(ctx, "sh", "-c", "echo started; trap 'echo asked; exit 3' TERM; while :; do sleep 0.1; done")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := p.WaitLog(ctx, "start"); err != nil || line != "started" {
		t.Errorf("log line %q, %v", line, err)
	}
	if !p.Running() {
		t.Error("it isn't running")
	}
	if err := p.Stop(ctx); err == nil || err.Error() != "vtepd1: sh: exit status 3" {
		t.Errorf("Stop: %v", err)
	}
	if !strings.Contains(p.Log(), "asked") {
		t.Errorf("log %q", p.Log())
	}
	if _, err := p.WaitLog(ctx, "never"); err == nil || err.Error() != `vtepd1: sh: a line with "never": the process has ended` {
		t.Errorf("WaitLog of a process that has ended: %v", err)
	}
	if _, err := side.Exec(ctx, "sh", "-c", "echo out; echo err >&2; exit 7"); err == nil ||
		err.Error() != "vtepd1: sh -c echo out; echo err >&2; exit 7: exit status 7: out\nerr" {
		t.Errorf("Exec: %v", err)
	}
	if _, err := side.Start(ctx, "/no/such"); err == nil || !strings.Contains(err.Error(), "vtepd1: start /no/such: ") {
		t.Errorf("Start: %v", err)
	}
	short, cancel := context.WithTimeoutCause(ctx, 100*time.Millisecond, errors.New("too long"))
	defer cancel()
	if _, err := side.Exec(short, "sleep", "1000"); err == nil || !strings.Contains(err.Error(), "too long: signal: killed") {
		t.Errorf("Exec past its time: %v", err)
	}
	if _, err := leaf.Vtysh(ctx, "show nonsense"); err == nil || !strings.Contains(err.Error(), "% Unknown command") {
		t.Errorf("Vtysh: %v", err)
	}
	if got := len(l.Routers()); got != 2 {
		t.Errorf("%d nodes run FRR, want the two leaves", got)
	}
}

// Whatever a lab leaves behind is said; and one that can't be made leaves
// nothing.
func TestResidue(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	small := func(extra string) *clab.Topology {
		topo, err := clab.Parse("small", []byte("name: small\ntopology:\n  nodes:\n    n1: {kind: linux, image: i, network-mode: none, "+extra+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		return topo
	}
	scratch := func() []string {
		dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "vtepd-lab-*"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	before := scratch()
	l, err := Deploy(ctx, small(""), ".", Options{Roots: roots()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Node("n1").Start(ctx, "sleep", "1000"); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", l.Node("n1").holder))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range l.closers {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	if err := l.residue(); err == nil || !strings.Contains(err.Error(), "the network namespace of node n1 is held by /proc/") {
		t.Errorf("with the namespace held: %v", err)
	}
	held.Close()
	if err := errors.Join(l.Destroy(ctx), l.Destroy(ctx)); err != nil {
		t.Error(err)
	}

	for _, tt := range []struct{ name, extra, want string }{
		{"exec", "exec: [false]", "n1: false: exit status 1"},
		{"bind", "binds: [nowhere:/x]", "bind source nowhere: lstat nowhere: no such file or directory"},
		{"sysctl", "sysctls: {net.no.such: 1}", "node n1: make its root: sysctl net.no.such: open /proc/sys/net/no/such: no such file or directory"},
	} {
		if _, err := Deploy(ctx, small(tt.extra), ".", Options{Roots: roots()}); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	if _, err := Deploy(ctx, small(""), ".", Options{GoBGP: []string{"n2"}}); err == nil || err.Error() != `no node "n2" to replace by GoBGP` {
		t.Errorf("GoBGP for no node: %v", err)
	}
	if after := scratch(); !slices.Equal(before, after) {
		t.Errorf("scratch directories: %v before, %v after", before, after)
	}
}

// A node with another's process namespace sees that one's processes, and by them its network, and ends by itself. A watch
// sees what passes a port, both ways.
func TestProcessesOfAnother(t *testing.T) {
	topo, err := clab.Parse("pids", []byte(`name: pids
topology:
  defaults: {kind: linux, image: i, network-mode: none}
  nodes:
    n1: {exec: [ip addr add 192.0.2.1/24 dev eth1]}
    n2:
      pid-mode: container:n1
      stages: {create: {wait-for: [{node: n1, stage: create}]}}
      exec: [ip addr add 192.0.2.2/24 dev eth1]
  links:
    - type: veth
      endpoints: [{node: n1, interface: eth1, mac: "02:00:00:00:00:01"}, {node: n2, interface: eth1, mac: "02:00:00:00:00:02"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 5*time.Minute)
	l, err := Deploy(ctx, topo, ".", Options{Roots: roots()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	// One that nobody waits for, and that isn't this program's child.
	if _, err := l.Node("n2").Exec(ctx, "sh", "-c", "sleep 1000 </dev/null >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"n1": "/proc/self/ns/net", "n2": "/proc/1/ns/net"} {
		if id, err := l.Node(name).Exec(ctx, "readlink", path); err != nil || strings.TrimSpace(id) != l.Node("n1").ns.id {
			t.Errorf("%s: %s is %q, not n1's %q: %v", name, path, id, l.Node("n1").ns.id, err)
		}
	}
	if id, err := l.Node("n2").Exec(ctx, "readlink", "/proc/self/ns/net"); err != nil || strings.TrimSpace(id) != l.Node("n2").ns.id {
		t.Errorf("n2's own network namespace is %q, not %q: %v", id, l.Node("n2").ns.id, err)
	}

	w, err := l.Node("n1").Watch("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Node("n2").Exec(ctx, "ping", "-n", "-c", "3", "-i", "0.1", "-p", "c10d", "192.0.2.1"); err != nil {
		t.Error(err)
	}
	frames, err := w.Stop()
	if err != nil {
		t.Error(err)
	}
	seen := map[string]int{}
	for _, f := range frames {
		if strings.Contains(string(f.Data), "\xc1\x0d\xc1\x0d\xc1\x0d") {
			seen[fmt.Sprintf("%s > %s out=%v", f.Src, f.Dst, f.Out)]++
		}
	}
	want := map[string]int{"02:00:00:00:00:02 > 02:00:00:00:00:01 out=false": 3, "02:00:00:00:00:01 > 02:00:00:00:00:02 out=true": 3}
	if !maps.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
}

// FRR's own start-up, as a container runs it, takes the files as they are.
func TestOwnStart(t *testing.T) {
	topo, err := clab.ReadFile(topology)
	if err != nil {
		t.Fatal(err)
	}
	topo.Links = nil
	topo.Nodes = slices.DeleteFunc(topo.Nodes, func(n clab.Node) bool { return n.Name != "leaf1" })
	leaf := &topo.Nodes[0]
	leaf.Exec = nil
	for i := range leaf.Binds { // not where New looks for it: this start is FRR's
		leaf.Binds[i].Target = strings.Replace(leaf.Binds[i].Target, "/etc/frr/daemons", "/tmp/daemons", 1)
	}
	l, err := Deploy(within(t, time.Minute), topo, filepath.Dir(topology), Options{Roots: roots(), Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	ctx := within(t, 5*time.Minute)
	n := l.Node("leaf1")
	if _, err := n.Exec(ctx, "cp", "/tmp/daemons", "/etc/frr/daemons"); err != nil {
		t.Fatal(err)
	}
	p, err := n.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = Eventually(ctx, "FRR", func(ctx context.Context) error {
		if !p.Running() {
			return Final(errors.New(p.Log()))
		}
		conf, err := n.RunningConfig(ctx)
		if err == nil && !strings.Contains(conf, "advertise-all-vni") {
			err = errors.New(conf)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
