//go:build guest

package e2e

import (
	"strings"
	"testing"
	"time"

	"vtepd/e2e/fabric"
)

// TestSwap is the main job: a first file, then changes of every kind under traffic, with the operator's own things beside.
func TestSwap(t *testing.T) {
	s := deploy(t)
	same := s.foreign()
	one := s.overlay(20)
	heard := s.lab.Node("spine").Speaker()
	tr := s.traffic()

	t.Log("re-address 20 VNIs' endpoint")
	mark := heard.Len()
	one.Address = fabric.Prefer("10.0.0.21")
	spent := s.carry(s.one, one, "10.0.0.21")
	if spent.Batches != 1 || spent.Messages != 20 {
		t.Errorf("the swap took %d batches and %d changes, not 1 and 20", spent.Batches, spent.Messages)
	}
	s.must(fabric.Move{Leaf: s.one.Loopback, From: fabric.Addr("10.0.0.11"), To: fabric.Addr("10.0.0.21"), VNIs: 20}.Order(heard.Since(mark)))

	t.Log("move it to another parent, the address kept")
	mark = heard.Len()
	one.Parent = "eth2"
	s.carry(s.one, one, "10.0.0.21")
	for _, e := range heard.Since(mark) {
		if fabric.Lost(e, s.one.Loopback) {
			t.Errorf("the parent's change withdrew something: %v", e)
		}
	}

	t.Log("and back to the parent on which the packets come in, the address kept")
	one.Parent = "eth1"
	s.carry(s.one, one, "10.0.0.21")

	t.Log("another address on another parent at once")
	mark = heard.Len()
	one.Parent, one.Address = "eth2", fabric.Prefer("10.0.0.22")
	s.carry(s.one, one, "10.0.0.22")
	s.must(fabric.Move{Leaf: s.one.Loopback, From: fabric.Addr("10.0.0.21"), To: fabric.Addr("10.0.0.22"), VNIs: 20}.Order(heard.Since(mark)))

	t.Log("VNIs added, removed and changed, an endpoint added, the address changed: all in one file")
	one.VNIs = one.VNIs[:15]
	one.Address = fabric.Prefer("10.0.0.23")
	one.Endpoints = "  vtep1: {loopback: {}, address: {static: 10.0.2.31}}\n"
	one.MoreVNIs = "  3001: {endpoint: vtep1}\n  3002: {endpoint: vtep0, mtu: 1400}\n  3003: {endpoint: vtep1, vlan: 33}\n"
	one.More = "vlanBridge: {name: br-evpn}\n"
	s.carry(s.one, one, "10.0.0.23")

	t.Log("and back: the added endpoint and its VNIs removed, one VNI moved")
	one.Endpoints, one.More = "", ""
	one.MoreVNIs = "  3001: {endpoint: vtep0}\n"
	s.carry(s.one, one, "10.0.0.23")

	s.account(tr)
	same()
}

// TestHundredVNIs: the swap is one batch whatever the number of VNIs, and FRR isn't asked once for each.
func TestHundredVNIs(t *testing.T) {
	s := deploy(t)
	one := s.overlay(10)
	one.Address = fabric.Prefer("10.0.0.21")
	few := s.carry(s.one, one, "10.0.0.21")

	one.VNIs = fabric.VNIs(100)
	s.carry(s.one, one, "10.0.0.21")
	s.carry(s.two, fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: fabric.VNIs(100)}, "10.0.0.12")
	tr := s.traffic()
	heard := s.lab.Node("spine").Speaker()
	mark := heard.Len()
	one.Address = fabric.Prefer("10.0.0.22")
	many := s.carry(s.one, one, "10.0.0.22")
	s.must(fabric.Move{Leaf: s.one.Loopback, From: fabric.Addr("10.0.0.21"), To: fabric.Addr("10.0.0.22"), VNIs: 100}.Order(heard.Since(mark)))
	s.account(tr)
	if many.Batches != 1 || many.Messages != 100 {
		t.Errorf("the swap took %d batches and %d changes, not 1 and 100", many.Batches, many.Messages)
	}
	// FRR takes longer with more routes, and is looked at more often until it has come so far; a look asks the same few
	// questions whatever the number of VNIs: nine at the most, when updates are queued.
	t.Logf("round trips: %d in %d looks with 10 VNIs, %d in %d looks with 100", few.Trips, few.Looks, many.Trips, many.Looks)
	if most := few.Trips + 9*(max(many.Looks, few.Looks)-few.Looks) + 9; many.Trips > most {
		t.Errorf("%d round trips with 100 VNIs, at most %d are explained: they grow with the VNIs", many.Trips, most)
	}
}

// TestNothingChanges: a file that means the same, a SIGTERM and a new start write nothing anywhere.
func TestNothingChanges(t *testing.T) {
	s := deploy(t)
	one := s.overlay(4)
	tr := s.traffic()
	ctx := s.within(3 * time.Minute)
	config, err := s.one.Leaf.RunningConfig(ctx)
	s.must(err)
	mark := s.lab.Node("spine").Speaker().Len()
	events, err := s.one.Leaf.Start(ctx, "ip", "monitor", "link", "address")
	s.must(err)
	before, err := s.one.Status(ctx)
	s.must(err)

	s.must(s.one.Drop("# the same, said otherwise\n" + one.YAML()))
	s.must(s.one.Proc.Stop(ctx))
	if log := s.one.Proc.Log(); !strings.Contains(log, "the data plane runs on") {
		t.Errorf("SIGTERM: %s", log)
	}
	s.must(s.one.Start(ctx))
	after, err := s.one.Settle(ctx, "is idle again", idleOn("10.0.0.11"))
	s.must(err)
	if after.Generation != before.Generation || after.State != before.State || after.Transaction != nil {
		t.Errorf("generation %d, state %s, transaction %v; before it was %d and %s", after.Generation, after.State, after.Transaction, before.Generation, before.State)
	}
	other := one
	other.Address = fabric.Prefer("10.0.0.29")
	s.must(s.one.Sidecar.Drop("/tmp/other.yaml", other.YAML()))
	for _, c := range []struct{ args, says []string }{
		{[]string{"check", "/tmp/other.yaml"}, []string{"ok: 1 endpoints, 4 VNIs, 1 pools"}},
		{[]string{"plan", "/tmp/other.yaml"}, []string{"acquire 10.0.0.29 of pool vteps", "set vxlan100 (vni 100, local 10.0.0.29", "remove-network network 10.0.0.11/32"}},
		{[]string{"plan", "/etc/vtepd/vtepd.yaml"}, []string{"nothing to do"}},
		{[]string{"status"}, []string{"on leaf1: idle since", "vtep0     10.0.0.11"}},
	} {
		out, err := s.one.VTEPD(ctx, c.args...)
		s.must(err)
		for _, word := range c.says {
			if !strings.Contains(out, word) {
				t.Errorf("vtepd %v doesn't say %q:\n%s", c.args, word, out)
			}
		}
	}
	now, err := s.one.Leaf.RunningConfig(ctx)
	s.must(err)
	if now != config {
		t.Errorf("FRR's configuration changed:\n%s\nbefore:\n%s", now, config)
	}
	// A change that the test makes itself shows that the monitor would have seen one.
	_, err = s.one.Leaf.Exec(ctx, "ip", "link", "add", "canary", "type", "dummy")
	s.must(err)
	_, err = events.WaitLog(ctx, "canary")
	s.must(err)
	for line := range strings.Lines(events.Log()) {
		// A line without a queueing discipline is a bridge's own news of a port, such as a timer that has run out.
		if strings.Contains(line, "qdisc") && !strings.Contains(line, "canary") {
			t.Errorf("a link changed: %s", line)
		}
	}
	for _, e := range s.lab.Node("spine").Speaker().Since(mark) {
		if e.Type != 2 && e.Kind != "eor" { // hosts' MACs age and come back
			t.Errorf("the spine heard %v", e)
		}
	}
	s.account(tr)
}
