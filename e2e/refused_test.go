//go:build guest

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

func idleOn(address string) func(status.Snapshot) error {
	return func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return errors.New("not idle")
		}
		return fabric.Has(n, address, nil)
	}
}

// says waits for a condition with a message that holds all the words.
func says(c status.Condition, words ...string) func(status.Snapshot) error {
	return func(n status.Snapshot) error {
		if n.Condition != c {
			return fmt.Errorf("not %s", c)
		}
		for _, w := range words {
			if !strings.Contains(strings.Join(n.Messages, "\n"), w) {
				return fmt.Errorf("it doesn't say %q", w)
			}
		}
		return nil
	}
}

// TestRefused: what can't be done is refused before anything is touched, and says what is in the way.
func TestRefused(t *testing.T) {
	s := deploy(t)
	one := s.overlay(2)
	ctx := s.within(5 * time.Minute)
	leaf := func(args ...string) {
		t.Helper()
		_, err := s.one.Leaf.Exec(ctx, args...)
		s.must(err)
	}
	leaf("ip", "link", "add", "lan0", "type", "bridge")
	leaf("ip", "link", "add", "port0", "type", "dummy")
	leaf("ip", "link", "set", "port0", "master", "lan0", "up")
	leaf("ip", "link", "add", "down0", "type", "dummy")
	leaf("ip", "link", "add", "l2p", "type", "dummy")
	leaf("ip", "link", "set", "l2p", "up")
	leaf("ip", "link", "add", "l2c", "link", "l2p", "type", "ipvlan", "mode", "l2")
	leaf("ip", "link", "add", "mine0", "type", "dummy")
	leaf("ip", "addr", "add", "10.0.2.50/32", "dev", "mine0")
	leaf("ip", "link", "add", "br4000", "type", "bridge")
	tr := s.traffic()
	same := s.foreign()
	mark := s.lab.Node("spine").Speaker().Len()
	state := func() string {
		t.Helper()
		links, err := s.one.Leaf.Exec(ctx, "ip", "-br", "link")
		s.must(err)
		addrs, err := s.one.Leaf.Exec(ctx, "ip", "-br", "addr")
		s.must(err)
		config, err := s.one.Leaf.RunningConfig(ctx)
		s.must(err)
		return links + addrs + config
	}
	before := state()

	at := "/etc/vtepd/vtepd.yaml:"
	for _, c := range []struct {
		name   string
		break_ func(*fabric.Config)
		want   status.Condition
		says   []string
	}{
		{"unknown key", func(c *fabric.Config) { c.More = "vnid: {}\n" }, status.Invalid, []string{at, "vnid"}},
		{"parent missing", func(c *fabric.Config) { c.Parent = "eth9" }, status.Refused, []string{at + "7:", "endpoints.vtep0.ipvlan.parent: no link eth9 in the router's namespace; links there: "}},
		{"parent down", func(c *fabric.Config) { c.Parent = "down0" }, status.Refused, []string{at + "7:", "down0 is down; set it up first"}},
		{"parent is a bridge port", func(c *fabric.Config) { c.Parent = "port0" }, status.Refused, []string{"port0 is a port of bridge lan0, and the kernel lets no ipvlan onto a bridge port"}},
		{"ipvlan in another mode", func(c *fabric.Config) { c.Parent = "l2p" }, status.Refused, []string{"l2p has the ipvlan l2c in mode l2"}},
		{"address on a foreign link", func(c *fabric.Config) { c.Address = "{static: 10.0.2.50}" }, status.Refused, []string{at + "8:", "10.0.2.50 is on mine0 already, which vtepd doesn't own"}},
		{"VNI on a foreign VXLAN", func(c *fabric.Config) { c.MoreVNIs = "  999: {endpoint: vtep0, bridge: brx}\n" }, status.Refused, []string{"vnis.999: VNI 999 is on vxlan999 already, which vtepd didn't make"}},
		{"foreign bridge of the name", func(c *fabric.Config) { c.MoreVNIs = "  4000: {endpoint: vtep0}\n" }, status.Refused, []string{"the name br4000 is taken by a link that vtepd didn't make (a bridge)"}},
		{"VTEP of another router", func(c *fabric.Config) { c.Address = fabric.Prefer("10.0.0.12") }, status.Refused, []string{"10.0.0.12/32 is announced by another router already: peer 10.0.0.100 (router id 10.0.0.100), originated by 10.0.0.2"}},
		{"port changed", func(c *fabric.Config) { c.VNIs = []int{200}; c.MoreVNIs = "  100: {endpoint: vtep0, port: 4790}\n" }, status.Refused, []string{"not hitless: vxlan100: the port can't change from 4789 to 4790 in place"}},
		{"bridge with the operator's port goes", func(c *fabric.Config) { c.VNIs = []int{200} }, status.Refused, []string{"br100: still has ports that vtepd doesn't own (eth3)"}},
	} {
		t.Run(c.name, func(*testing.T) {
			bad := one
			c.break_(&bad)
			s.must(s.one.Drop(bad.YAML()))
			_, err := s.one.Settle(s.within(time.Minute), c.name, says(c.want, c.says...))
			s.must(err)
			if now := state(); now != before {
				t.Errorf("something was touched:\n%s\nbefore:\n%s", now, before)
			}
		})
	}

	t.Log("an IPv6 endpoint")
	six := one
	six.Endpoints = "  vtep6: {ipvlan: {parent: eth2}, address: {static: 'fd00::61'}}\n"
	six.MoreVNIs = "  6000: {endpoint: vtep6}\n"
	s.must(s.one.Drop(six.YAML()))
	if v := os.Getenv("VTEPD_FRR_RELEASE"); v == "sid" {
		_, err := s.one.Settle(ctx, "an IPv6 VTEP", func(n status.Snapshot) error {
			if n.Condition != status.Idle || len(n.Endpoints) != 2 {
				return errors.New("not there")
			}
			return nil
		})
		s.must(err)
	} else {
		_, err := s.one.Settle(ctx, "an IPv6 VTEP", says(status.Refused, "vnis.6000.endpoint: VTEP fd00::61 is IPv6, which needs FRR 10.6 or newer; this is "))
		s.must(err)
	}
	s.must(s.one.Drop(one.YAML()))
	_, err := s.one.Settle(ctx, "goes on", idleOn("10.0.0.11"))
	s.must(err)
	for _, e := range s.lab.Node("spine").Speaker().Since(mark) {
		if e.Kind == "withdraw" && e.Type != 2 && os.Getenv("VTEPD_FRR_RELEASE") != "sid" {
			t.Errorf("the spine heard %v", e)
		}
	}
	s.account(tr)
	same()
}

// TestRolledBack: what fails on the way is undone, and the status says which step it was, in the kernel's or FRR's words.
func TestRolledBack(t *testing.T) {
	s := deploy(t)
	one := s.overlay(4)
	ctx := s.within(8 * time.Minute)
	tr := s.traffic()
	same := s.foreign()
	links := func() string {
		t.Helper()
		out, err := s.one.Leaf.Exec(ctx, "ip", "-br", "addr")
		s.must(err)
		config, err := s.one.Leaf.RunningConfig(ctx)
		s.must(err)
		ledger, err := s.one.Sidecar.Exec(ctx, "ls", "/var/lib/vtepd", "/var/lib/vtepd/ledger")
		s.must(err)
		return out + config + ledger
	}
	before := links()
	generation := func() uint64 {
		t.Helper()
		n, err := s.one.Status(ctx)
		s.must(err)
		return n.Generation
	}
	was := generation()
	failed := func(phase plan.Phase, words ...string) {
		t.Helper()
		n, err := s.one.Settle(ctx, "fails in "+string(phase), func(n status.Snapshot) error {
			if err := says(status.Failed, words...)(n); err != nil {
				return err
			}
			if n.Failure == nil || n.Failure.Phase != phase {
				return fmt.Errorf("failure %+v", n.Failure)
			}
			return nil
		})
		s.must(err)
		t.Logf("%s: step %d, object %q: %s", n.Failure.Phase, n.Failure.Step, n.Failure.Object, n.Failure.Message)
		if now := links(); now != before {
			t.Errorf("not everything is as it was:\n%s\nbefore:\n%s", now, before)
		}
		if g := generation(); g != was {
			t.Errorf("generation %d, was %d", g, was)
		}
	}
	drop := func(address string) {
		t.Helper()
		c := one
		c.Address = fabric.Prefer(address)
		s.must(s.one.Drop(c.YAML()))
	}

	t.Log("the kernel refuses in staging: a container elsewhere has the address on the same parent")
	leaf := func(args ...string) {
		t.Helper()
		_, err := s.one.Leaf.Exec(ctx, args...)
		s.must(err)
	}
	leaf("ip", "netns", "add", "other")
	leaf("ip", "link", "add", "cnt0", "link", "eth1", "netns", "other", "type", "ipvlan", "mode", "l3")
	leaf("ip", "-n", "other", "addr", "add", "10.0.0.41/32", "dev", "cnt0")
	leaf("ip", "-n", "other", "link", "set", "cnt0", "up")
	drop("10.0.0.41")
	failed(plan.Stage, "Address already assigned to an ipvlan device")
	leaf("ip", "netns", "del", "other")

	run := s.one.Sidecar.Path("/var/run/frr")
	interpose := func(answer func(line string) ([]byte, bool)) *fabric.Interposer {
		t.Helper()
		// A new daemon would try the refused file again.
		s.must(s.one.Drop(one.YAML()))
		_, err := s.one.Settle(ctx, "is content with the file before", idleOn("10.0.0.11"))
		s.must(err)
		p, err := fabric.Interpose(run, "bgpd", answer)
		s.must(err)
		// vtepd keeps its connection: a new one goes through the interposer.
		s.must(s.one.Proc.Stop(ctx))
		s.must(s.one.Start(ctx))
		return p
	}

	t.Log("FRR refuses the host route")
	p := interpose(func(line string) ([]byte, bool) {
		if strings.HasPrefix(strings.TrimSpace(line), "network 10.0.0.42/32") {
			return fabric.Refusal("% BGP: injected refusal"), true
		}
		return nil, false
	})
	drop("10.0.0.42")
	failed(plan.Announce, "network 10.0.0.42/32", "% BGP: injected refusal")
	s.must(p.Close())
	s.must(s.one.Drop(one.YAML())) // the refused file would be carried out by a new daemon
	_, err := s.one.Settle(ctx, "is content with the file before", idleOn("10.0.0.11"))
	s.must(err)
	s.must(s.one.Proc.Stop(ctx))
	s.must(s.one.Start(ctx))
	_, err = s.one.Settle(ctx, "is there again", idleOn("10.0.0.11"))
	s.must(err)

	t.Log("the route is never sent: the operator's policy denies it")
	same()
	s.must(s.one.Leaf.Configure(ctx, "ip prefix-list NOT43 seq 5 deny 10.0.0.43/32", "ip prefix-list NOT43 seq 10 permit any",
		"router bgp 65000", "address-family ipv4 unicast", "neighbor 10.0.0.100 prefix-list NOT43 out"))
	before, same = links(), s.foreign()
	c := one
	c.Address, c.More = fabric.Prefer("10.0.0.43"), "transaction: {timeout: 5s}\n"
	s.must(s.one.Drop(c.YAML()))
	failed(plan.Announce, "host route 10.0.0.43/32 is not sent to peer 10.0.0.100")

	t.Log("and what can be done is done afterwards")
	one.Address = fabric.Prefer("10.0.0.44")
	s.carry(s.one, one, "10.0.0.44")
	s.account(tr)
	same()
}

// TestKilled: a daemon that is killed in the middle is followed by one that undoes or finishes.
func TestKilled(t *testing.T) {
	s := deploy(t)
	one := s.overlay(4)
	tr := s.traffic()
	ctx := s.within(8 * time.Minute)
	at := "10.0.0.11"
	for i, phase := range []plan.Phase{plan.Stage, plan.Expose, plan.Announce, plan.Swap, plan.Verify, plan.Drain, plan.Retire} {
		to := fmt.Sprintf("10.0.0.%d", 51+i)
		one.Address = fabric.Prefer(to)
		s.must(s.one.Drop(one.YAML()))
		_, err := s.one.Proc.WaitLog(ctx, fmt.Sprintf("generation=%d phase=%s", i+2, phase))
		s.must(err)
		s.one.Proc.Kill()
		if err := s.one.Proc.Wait(ctx); err == nil {
			t.Fatal("killed, and yet it ended well")
		}
		// The file stays: the next daemon first brings the router to the old or the new state, then carries the file out.
		s.must(s.one.Start(ctx))
		_, err = s.one.Settle(ctx, fmt.Sprintf("ends on %s after a kill in %s", to, phase), idleOn(to))
		s.must(err)
		out, err := s.one.Leaf.Exec(ctx, "ip", "-br", "addr")
		s.must(err)
		if strings.Contains(out, at+"/32") || strings.Count(out, "vtep0-") != 1 {
			t.Errorf("killed in %s: leftovers:\n%s", phase, out)
		}
		ledger, err := s.one.Sidecar.Exec(ctx, "ls", "/var/lib/vtepd/ledger")
		s.must(err)
		if strings.Join(strings.Fields(ledger), " ") != "vteps@"+to {
			t.Errorf("killed in %s: ledger: %s", phase, ledger)
		}
		at = to
	}
	s.account(tr)
}

// TestNoFRR: without FRR, or with one that makes no sense, vtepd waits, says why, and goes on by itself.
func TestNoFRR(t *testing.T) {
	s := deploy(t)
	one := s.overlay(2)
	ctx := s.within(5 * time.Minute)
	run := s.one.Sidecar.Path("/var/run/frr")
	s.must(s.one.Proc.Stop(ctx))
	s.must(os.Rename(run+"/bgpd.vty", run+"/bgpd.away"))
	s.must(s.one.Start(ctx))
	_, err := s.one.Settle(ctx, "waits for the socket", says(status.Waiting, "/var/run/frr/bgpd.vty", "no such file"))
	s.must(err)
	s.must(os.Rename(run+"/bgpd.away", run+"/bgpd.vty"))
	_, err = s.one.Settle(ctx, "goes on", idleOn("10.0.0.11"))
	s.must(err)

	s.must(s.one.Leaf.KillDaemon("bgpd"))
	s.must(s.one.Leaf.StartDaemon(ctx, "bgpd"))
	s.must(s.lab.WaitBGP(ctx))
	// bgpd came back with the operator's file, which has no line of ours.
	s.must(lab.Eventually(ctx, "vtepd puts its host route back", func(ctx context.Context) error {
		config, err := s.one.Leaf.RunningConfig(ctx)
		if err == nil && !strings.Contains(config, "network 10.0.0.11/32 route-map VTEPD") {
			err = errors.New("no host route in FRR")
		}
		return err
	}))
	one.Address = fabric.Prefer("10.0.0.71")
	s.carry(s.one, one, "10.0.0.71")
}
