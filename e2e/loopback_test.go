//go:build guest

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// threeRouters is the lab with a vtepd beside the spine too, and one ledger for all three.
func threeRouters(t *testing.T) string {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(topology)
	must(err)
	dir := t.TempDir()
	abs, err := filepath.Abs(filepath.Dir(topology))
	must(err)
	must(os.Symlink(filepath.Join(abs, "evpn-l2"), filepath.Join(dir, "evpn-l2")))
	for _, d := range []string{"ledger", "spine-run", "spine-drop", "spine-state"} {
		must(os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	const ledger = "        - ledger:/ledger\n"
	out := string(text)
	for _, leaf := range []string{"leaf1", "leaf2"} {
		bind := "        - evpn-l2/" + leaf + "/state:/var/lib/vtepd\n"
		out = strings.Replace(out, bind, bind+ledger, 1)
	}
	conf := "        - evpn-l2/spine/frr.conf:/etc/frr/frr.conf:ro\n"
	out = strings.Replace(out, conf, conf+"        - spine-run:/var/run/frr\n", 1)
	out = strings.Replace(out, "    host1:\n", "    vtepd3:\n      kind: linux\n      group: sidecar\n      network-mode: container:spine\n      binds:\n"+
		"        - spine-drop:/etc/vtepd\n        - spine-state:/var/lib/vtepd\n        - spine-run:/var/run/frr\n"+ledger+"    host1:\n", 1)
	if strings.Count(out, ledger) != 3 {
		t.Fatal("the topology isn't as this test knows it")
	}
	file := filepath.Join(dir, "three.clab.yml")
	must(os.WriteFile(file, []byte(out), 0o644))
	return file
}

// TestLoopbacks: three routers of one fabric have their loopbacks from shared pools, both families, two of them shared; one that
// waits for an address holds nobody up; all goes without a trace.
func TestLoopbacks(t *testing.T) {
	s := &story{T: t, lab: lab.New(t, threeRouters(t), lab.Options{})}
	s.one, s.two = fabric.Sides(s.lab)
	three := &fabric.Side{Leaf: s.lab.Node("spine"), Sidecar: s.lab.Node("vtepd3"), Loopback: fabric.Addr("10.0.0.100")}
	sides := []*fabric.Side{s.one, s.two, three}
	ctx := s.within(8 * time.Minute)
	// leaf2's operator leaves the router id to vtepd.
	s.must(s.two.Leaf.Configure(ctx, "router bgp 65000", "no bgp router-id 10.0.0.2"))
	s.must(s.lab.WaitBGP(ctx))
	trace := func(side *fabric.Side) string {
		t.Helper()
		links, err := side.Leaf.Exec(ctx, "ip", "-br", "addr")
		s.must(err)
		config, err := side.Leaf.RunningConfig(ctx)
		s.must(err)
		return links + config
	}
	var before []string
	for _, side := range sides {
		before = append(before, trace(side))
		s.must(side.Start(ctx))
		s.must(lab.Eventually(ctx, "vtepd's socket", func(ctx context.Context) error { _, err := side.Status(ctx); return err }))
	}

	config := func(i int, vteps, allow string) string {
		los := "  lo0: {role: router-id, ipv4: {pool: ids}, ipv6: {pool: ids6}}\n  lo1: {role: vtep, ipv4: {pool: vteps}, ipv6: {pool: vteps6}}\n"
		if i < 2 {
			los += "  lo2: {role: anycast-vtep, ipv4: {pool: any, group: pair1}, ipv6: {pool: any6, group: pair1}}\n"
		}
		if i > 0 {
			los += "  lo100: {role: anycast-rp, ipv4: {pool: any, group: rp}, ipv6: {pool: any6, group: rp}}\n"
		}
		return fmt.Sprintf("version: 1\nnode: {name: r%d}\nstore: {directory: /ledger}\npools:\n  ids: {addresses: [10.254.0.0/24]}\n  ids6: {addresses: ['fd00:254::/64']}\n"+
			"  vteps: {addresses: [%s]}\n  vteps6: {addresses: ['fd00:254:1::/64']}\n  any: {addresses: [10.254.2.0/24]}\n  any6: {addresses: ['fd00:254:2::/64']}\n"+
			"loopbacks:\n%s%s", i+1, vteps, los, allow)
	}
	ready := func(reasons ...string) func(status.Snapshot) error {
		return func(n status.Snapshot) error {
			var got []string
			for _, l := range n.Loopbacks {
				got = append(got, l.Name+" "+l.Reason)
			}
			if len(n.Loopbacks) != len(reasons) || strings.Join(got, ", ") != strings.Join(reasons, ", ") {
				return fmt.Errorf("loopbacks %q, not %q", got, reasons)
			}
			return nil
		}
	}
	// Two addresses for three routers: whoever is last waits.
	allow := "transaction: {allowDisruptive: true}\n"
	s.must(s.one.Drop(config(0, "10.254.1.0/31", allow)))
	_, err := s.one.Settle(ctx, "has its loopbacks", ready("lo0 Ready", "lo1 Ready", "lo2 Ready"))
	s.must(err)
	s.must(three.Drop(config(2, "10.254.1.0/31", allow)))
	_, err = three.Settle(ctx, "has its loopbacks", ready("lo0 Ready", "lo1 Ready", "lo100 Ready"))
	s.must(err)
	s.must(s.two.Drop(config(1, "10.254.1.0/31", "")))
	n, err := s.two.Settle(ctx, "has what it can have", func(n status.Snapshot) error {
		if n.Condition == status.Running {
			return errors.New("a change is under way")
		}
		return ready("lo0 RouterIDInUse", "lo1 PoolExhausted", "lo100 Ready", "lo2 Ready")(n)
	})
	s.must(err)
	if why := strings.Join(n.Messages, "\n"); n.Condition != status.Waiting || !strings.Contains(why, "loopbacks.lo1.ipv4.pool: pool vteps exhausted") ||
		!strings.Contains(why, "loopbacks.lo0.role: FRR's sessions run with the router id ") {
		t.Errorf("%s: %s", n.Condition, why)
	}

	t.Log("the pool grows, and the router id may change")
	for i, side := range sides {
		s.must(side.Drop(config(i, "10.254.1.0/30", allow)))
	}
	n, err = s.two.Settle(ctx, "has all of them", func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return errors.New("not idle")
		}
		return ready("lo0 Ready", "lo1 Ready", "lo100 Ready", "lo2 Ready")(n)
	})
	s.must(err)
	s.must(s.lab.WaitBGP(ctx))
	shared := map[string]string{}
	for _, side := range sides {
		n, err := side.Status(ctx)
		s.must(err)
		for _, l := range n.Loopbacks {
			got := fmt.Sprint(l.Addresses)
			if was, ok := shared[l.Name]; ok && (was == got) != strings.HasPrefix(l.Role, "anycast") {
				t.Errorf("%s of %s is %s, and %s elsewhere", l.Name, side.Leaf.Name, got, was)
			}
			shared[l.Name] = got
			if len(l.Addresses) != 2 || !l.Addresses[0].Is4() || !l.Addresses[1].Is6() {
				t.Errorf("%s of %s: %v", l.Name, side.Leaf.Name, l.Addresses)
			}
		}
	}
	t.Logf("%v", shared)
	running, err := s.two.Leaf.RunningConfig(ctx)
	s.must(err)
	if id := fmt.Sprintf("bgp router-id %s\n", n.Loopbacks[0].Addresses[0]); !strings.Contains(running, id) {
		t.Errorf("FRR of leaf2 has no %s", id)
	}
	// The other routers have the host routes, both families.
	for _, l := range n.Loopbacks[:2] {
		for _, a := range l.Addresses {
			family := "ipv4"
			if a.Is6() {
				family = "ipv6"
			}
			s.must(lab.Eventually(ctx, "leaf1 has the route of leaf2's "+l.Name, func(ctx context.Context) error {
				out, err := s.one.Leaf.Vtysh(ctx, fmt.Sprintf("show bgp %s unicast %s/%d", family, a, a.BitLen()))
				if err == nil && !strings.Contains(out, "best") {
					err = errors.New(out)
				}
				return err
			}))
		}
	}

	t.Log("all of it goes")
	for i, side := range sides {
		s.must(side.Drop(fmt.Sprintf("version: 1\nnode: {name: r%d}\nstore: {directory: /ledger}\n%s", i+1, allow)))
		_, err := side.Settle(ctx, "has none", func(n status.Snapshot) error {
			if n.Condition != status.Idle {
				return errors.New("not idle")
			}
			return ready()(n)
		})
		s.must(err)
		if after := trace(side); after != before[i] {
			t.Errorf("%s: something is left:\n%s\nbefore:\n%s", side.Leaf.Name, after, before[i])
		}
	}
	out, err := s.one.Sidecar.Exec(ctx, "find", "/ledger", "-name", "*@*")
	s.must(err)
	if out != "" {
		t.Errorf("claims are left: %s", out)
	}
}
