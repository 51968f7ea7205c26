//go:build guest

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
)

// plugin stands before the real ipvlan, and does what the file mode says.
const plugin = `#!/bin/sh
case "$(cat /run/cni-mode):$CNI_COMMAND" in
refuse-add:ADD | refuse-check:CHECK | refuse-del:DEL)
	echo '{"cniVersion":"1.0.0","code":999,"msg":"told to refuse"}'
	exit 1 ;;
naked:ADD)
	/usr/lib/cni/ipvlan || exit
	exec ip addr flush dev "$CNI_IFNAME" >&2 ;;
hang-add:ADD)
	/usr/lib/cni/ipvlan
	: >/tmp/hangs
	exec sleep 1000 ;;
hang-check:CHECK)
	: >/tmp/hangs
	exec sleep 1000 ;;
esac
exec /usr/lib/cni/ipvlan
`

// TestCNI: a changed address of a CNI attachment is made before the old one goes; whatever fails on the way leaves the old one
// as it was, and the traffic alone.
func TestCNI(t *testing.T) {
	s := deploy(t)
	same := s.foreign()
	ctx := s.within(8 * time.Minute)
	placement, file, conflist := cniOn("eth1", ", pluginDirs: [/run/plugins, /usr/lib/cni]")
	s.must(s.one.Sidecar.Drop(file, conflist))
	mode := func(m string) { t.Helper(); s.must(s.one.Sidecar.Drop("/run/cni-mode", m)) }
	_, err := s.one.Sidecar.Exec(ctx, "mkdir", "-p", "/run/plugins")
	s.must(err)
	s.must(s.one.Sidecar.Drop("/run/plugins/ipvlan", plugin))
	_, err = s.one.Sidecar.Exec(ctx, "chmod", "755", "/run/plugins", "/run/plugins/ipvlan")
	s.must(err)
	mode("")
	one := s.overlay(2)
	one.Placement = placement
	one.More = "transaction: {timeout: 60s, drain: {quiet: 1s, limit: 5s}}\n"
	s.carry(s.one, one, "10.0.0.11")
	tr := s.traffic()

	view := func() string {
		t.Helper()
		addrs, err := s.one.Leaf.Exec(ctx, "ip", "-br", "addr")
		s.must(err)
		vxlans, err := s.one.Leaf.Exec(ctx, "ip", "-d", "-o", "link", "show", "type", "vxlan")
		s.must(err)
		var locals []string
		for line := range strings.Lines(vxlans) {
			f := strings.Fields(line)
			for i := range f {
				if f[i] == "local" {
					locals = append(locals, f[1]+f[i+1])
				}
			}
		}
		config, err := s.one.Leaf.RunningConfig(ctx)
		s.must(err)
		files, err := s.one.Sidecar.Exec(ctx, "sh", "-c", "find /var/lib/vtepd/cni /var/lib/vtepd/ledger -type f | sort")
		s.must(err)
		return addrs + strings.Join(locals, " ") + config + files
	}
	before := view()
	settled := func(what string) {
		t.Helper()
		if now := view(); now != before {
			t.Errorf("%s: not everything is as it was:\n%s\nbefore:\n%s", what, now, before)
		}
	}
	drop := func(address string) {
		t.Helper()
		c := one
		c.Address = fabric.Prefer(address)
		s.must(s.one.Drop(c.YAML()))
	}
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
		mode("")
		settled(words[0])
	}

	t.Log("ADD refused: the address is taken on the parent")
	leaf := func(args ...string) { t.Helper(); _, err := s.one.Leaf.Exec(ctx, args...); s.must(err) }
	leaf("ip", "netns", "add", "other")
	leaf("ip", "link", "add", "cnt0", "link", "eth1", "netns", "other", "type", "ipvlan", "mode", "l3")
	leaf("ip", "-n", "other", "addr", "add", "10.0.0.41/32", "dev", "cnt0")
	drop("10.0.0.41")
	failed(plan.Expose, "CNI ADD of net1-", "address already in use")
	leaf("ip", "netns", "del", "other")

	for i, c := range []struct{ mode, says string }{
		{"refuse-add", "told to refuse"},
		{"naked", "has addresses none, wanted 10.0.0.43/32"},
		{"refuse-check", "CNI CHECK of net1-"},
	} {
		t.Log(c.mode)
		mode(c.mode)
		drop(fmt.Sprintf("10.0.0.%d", 42+i))
		failed(plan.Expose, c.says)
	}

	t.Log("killed between two steps")
	s.must(s.one.Drop(one.YAML()))
	_, err = s.one.Settle(ctx, "is content with the file before", idleOn("10.0.0.11"))
	s.must(err)
	for i, m := range []string{"hang-add", "hang-check"} {
		mode(m)
		drop(fmt.Sprintf("10.0.0.%d", 45+i))
		hangs := s.one.Sidecar.Path("/tmp/hangs")
		s.must(s.until(ctx, "the plugin hangs", func() bool { return os.Remove(hangs) == nil }))
		s.one.Proc.Kill()
		if err := s.one.Proc.Wait(ctx); err == nil {
			t.Fatal("killed, and yet it ended well")
		}
		mode("")
		s.must(s.one.Drop(one.YAML()))
		s.must(s.one.Start(ctx))
		_, err = s.one.Settle(ctx, "is back after a kill in "+m, idleOn("10.0.0.11"))
		s.must(err)
		settled("killed in " + m)
	}

	t.Log("DEL of the old refused: the new one carries, the old one is retired when it can be")
	mode("refuse-del")
	drop("10.0.0.48")
	n, err := s.one.Settle(ctx, "is degraded", says(status.Degraded))
	s.must(err)
	if n.Failure == nil || n.Failure.Phase != plan.Retire || !strings.Contains(n.Failure.Message, "told to refuse") {
		t.Errorf("%+v", n.Failure)
	}
	if v := view(); !strings.Contains(v, "10.0.0.11/32") || !strings.Contains(v, "10.0.0.48/32") {
		t.Errorf("one of the two isn't there:\n%s", v)
	}
	mode("")
	one.Address = fabric.Prefer("10.0.0.48")
	_, err = s.one.Settle(ctx, "is done", idleOn("10.0.0.48"))
	s.must(err)
	if v := view(); strings.Contains(v, "10.0.0.11/32") || strings.Count(v, "/cni/") != 2 {
		t.Errorf("the old one is still there:\n%s", v)
	}

	t.Log("drift: the cache entry is lost, and the attachment made anew")
	_, err = s.one.Sidecar.Exec(ctx, "sh", "-c", "rm /var/lib/vtepd/cni/cache/results/*")
	s.must(err)
	s.must(s.one.Proc.Stop(ctx))
	s.must(s.one.Start(ctx))
	s.must(s.until(ctx, "the cache entry is back", func() bool {
		out, err := s.one.Sidecar.Exec(ctx, "sh", "-c", "ls /var/lib/vtepd/cni/cache/results")
		return err == nil && strings.Contains(out, "net1-")
	}))
	_, err = s.one.Settle(ctx, "is idle", idleOn("10.0.0.48"))
	s.must(err)

	s.account(tr)
	t.Log("the endpoint goes, and all of it")
	gone := one
	gone.Placement, gone.Parent = "", "eth2"
	s.carry(s.one, gone, "10.0.0.48")
	s.noAttachments()
	same()
}
