//go:build guest

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// etcdURL is where the spine's etcd is, for everybody.
const etcdURL = "http://10.0.0.100:2379"

// startEtcd starts it on the data that it had.
func (s *story) startEtcd(ctx context.Context) *lab.Proc {
	s.Helper()
	p, err := s.lab.Node("spine").Start(ctx, "/usr/bin/etcd", "--data-dir", "/var/tmp/etcd",
		"--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL)
	s.must(err)
	return p
}

// TestClaims: three routers share a pool in etcd. They start at once from nothing, two of them for the same address; one is lost for
// good; and etcd is killed in the middle of swaps.
func TestClaims(t *testing.T) {
	s := &story{T: t, lab: lab.New(t, threeRouters(t), lab.Options{})}
	s.one, s.two = fabric.Sides(s.lab)
	three := &fabric.Side{Leaf: s.lab.Node("spine"), Sidecar: s.lab.Node("vtepd3"), Loopback: fabric.Addr("10.0.0.100")}
	sides := []*fabric.Side{s.one, s.two, three}
	ctx := s.within(12 * time.Minute)
	s.must(s.lab.WaitBGP(ctx))
	store := "store: {etcd: {endpoints: ['" + etcdURL + "']}}\n"
	configs := []fabric.Config{
		{Node: "leaf1", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: fabric.VNIs(2), More: store},
		{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: fabric.VNIs(2), More: store},
		{Node: "r3", Address: "{pool: vteps}", More: store},
	}
	for i, side := range sides {
		s.must(side.Drop(configs[i].YAML()))
	}
	etcd := s.startEtcd(ctx)
	var wg sync.WaitGroup
	errs := make([]error, len(sides))
	for i, side := range sides {
		wg.Go(func() { errs[i] = side.Start(ctx) })
	}
	wg.Wait()
	s.must(errors.Join(errs...))

	t.Log("one gets the address, the other says why not, and the third isn't held up")
	_, err := three.Settle(ctx, "has the lowest address", idleOn("10.0.0.10"))
	s.must(err)
	winner := -1
	s.must(lab.Eventually(ctx, "a winner", func(ctx context.Context) error {
		for i, side := range sides[:2] {
			if n, err := side.Status(ctx); err == nil && idleOn("10.0.0.11")(n) == nil {
				winner = i
				return nil
			}
		}
		return errors.New("neither is there yet")
	}))
	loser := 1 - winner
	_, err = sides[loser].Settle(ctx, "says who has it", says(status.Waiting, "PreferredValueUnavailable: 10.0.0.11 of pool vteps is held by "+configs[winner].Node+"/endpoint/vtep0"))
	s.must(err)
	t.Logf("%s was faster; told otherwise, %s goes on", configs[winner].Node, configs[loser].Node)
	configs[loser].Address = fabric.Prefer("10.0.0.12")
	s.must(sides[loser].Drop(configs[loser].YAML()))
	_, err = sides[loser].Settle(ctx, "has another", idleOn("10.0.0.12"))
	s.must(err)

	t.Log("a router is killed for good: its claim stays, is listed, and released by command")
	three.Proc.Kill()
	list := func() string {
		t.Helper()
		out, err := s.one.VTEPD(ctx, "claims")
		s.must(err)
		return out
	}
	if out := list(); !strings.Contains(out, "r3/endpoint/vtep0") || !strings.Contains(out, "10.0.0.10") {
		t.Errorf("the claim of the lost router isn't listed:\n%s", out)
	}
	out, err := s.one.VTEPD(ctx, "claims", "release", "r3/endpoint/vtep0", "--yes")
	s.must(err)
	t.Log(strings.TrimSpace(out))
	if out := list(); strings.Contains(out, "r3/endpoint/vtep0") || strings.Contains(out, "10.0.0.10") {
		t.Errorf("it is listed still:\n%s", out)
	}

	t.Log("etcd is killed during swaps")
	s.must(s.one.Enslave(ctx))
	s.must(s.two.Enslave(ctx))
	tr := s.traffic()
	grip, err := fabric.NewGrip(s.one.Sidecar.Path("/var/lib/vtepd"))
	s.must(err)
	defer func() { _ = grip.Close() }()
	last := "10.0.0.11"
	if winner != 0 {
		last = "10.0.0.12"
	}
	moves := 0
	// stopped has vtepd stand still in a phase of a move from last to next. A move whose phase was over too soon is finished, and the next
	// one tried.
	stopped := func(phase string) (next string) {
		t.Helper()
		const tries = 8
		for range tries {
			moves++
			next = fmt.Sprintf("10.0.0.%d", 20+moves)
			configs[0].Address = fabric.Prefer(next)
			grip.Catch(s.one.Proc, phase)
			s.must(s.one.Drop(configs[0].YAML()))
			journal, err := grip.Held(ctx)
			if err == nil && journal.Phase() != phase {
				err = errors.Join(fabric.ErrMissed, s.one.Proc.Signal(syscall.SIGCONT))
			}
			if err == nil {
				return next
			}
			if !errors.Is(err, fabric.ErrMissed) {
				t.Fatal(err)
			}
			grip.Let()
			t.Logf("%s was over too soon to be caught", phase)
			_, err = s.one.Settle(ctx, "is where the file says", idleOn(next))
			s.must(err)
			last = next
		}
		t.Fatalf("%s: missed %d times", phase, tries)
		return ""
	}
	for _, phase := range []string{"claim", "swap"} {
		next := stopped(phase)
		etcd.Kill()
		s.must(s.one.Proc.Signal(syscall.SIGCONT))
		where := ""
		n, err := s.one.Settle(ctx, "is at rest in one of the two states", func(n status.Snapshot) error {
			if n.Condition == status.Running || n.Condition == status.Recovering {
				return errors.New("not at rest")
			}
			for _, where = range []string{last, next} {
				if fabric.Has(n, where, configs[0].VNIs) == nil {
					return nil
				}
			}
			return errors.New("in neither")
		})
		s.must(err)
		t.Logf("etcd killed in %s: %s on %s: %s", phase, n.Condition, where, strings.Join(n.Messages, "; "))
		etcd = s.startEtcd(ctx)
		_, err = s.one.Settle(ctx, "is where the file says", idleOn(next))
		s.must(err)
		var mine []string
		for line := range strings.Lines(list()) {
			if strings.Contains(line, "leaf1/endpoint/vtep0") {
				mine = append(mine, line)
			}
		}
		if len(mine) != 1 || !strings.Contains(mine[0], next) {
			t.Errorf("leaf1 holds %q, not %s alone", mine, next)
		}
		last = next
	}
	s.account(tr)
	etcd.Kill()
}
