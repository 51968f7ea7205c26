//go:build guest

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"vtepd/alloc/memstore"
	"vtepd/daemon/config"
	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/cni"
	"vtepd/dataplane/kernel"
	"vtepd/frr"
	"vtepd/frr/frrtest"
)

// refusing is a kernel that refuses its change of number at, from 1 since it was armed.
type refusing struct {
	dataplane.Kernel
	n, at int
}

func (k *refusing) refuse(op dataplane.Op) error {
	if k.n++; k.n == k.at {
		return &dataplane.OpError{Op: op, Err: errInjected}
	}
	return nil
}

func (k *refusing) Stage(ctx context.Context, staged, proofs []dataplane.Link) error {
	if err := k.refuse(dataplane.Op{Verb: dataplane.Create}); err != nil {
		return err
	}
	return k.Kernel.Stage(ctx, staged, proofs)
}

func (k *refusing) Apply(ctx context.Context, ops []dataplane.Op) error {
	if err := k.refuse(ops[0]); err != nil {
		return err
	}
	return k.Kernel.Apply(ctx, ops)
}

// sample is a router whose kernel is real, with an FRR in memory that sees it.
type sample struct {
	*rapid.T
	kernel *refusing
	ports  Ports
}

func (s *sample) links() []dataplane.Link {
	o, err := s.kernel.Observe(context.Background(), []string{"host"})
	if err != nil {
		s.Fatalf("%v", err)
	}
	return o.Links
}

func (s *sample) facts() string {
	var b strings.Builder
	type fields dataplane.Link // a Link prints its name alone
	for _, l := range s.links() {
		l.Group = 0
		fmt.Fprintf(&b, "%+v\n", fields(l))
	}
	o, err := s.ports.FRR.Observe(context.Background(), frr.Query{Config: true, VNIs: true})
	if err != nil {
		s.Fatalf("%v", err)
	}
	held, err := s.ports.Ledger.Held(context.Background(), "r1")
	if err != nil {
		s.Fatalf("%v", err)
	}
	attached, err := s.ports.CNI.Attachments(context.Background())
	if err != nil {
		s.Fatalf("%v", err)
	}
	return b.String() + fmt.Sprintln(o.EVPN, o.Networks, o.RouteMap, o.VNIs, o.Instance, held, attached)
}

// prepare plans the way to text; ok is false where it can't be reached from here.
func (s *sample) prepare(text string) (p plan.Plan, ok bool) {
	cfg, err := config.Parse("test.yaml", []byte(text))
	if err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
	prep, err := Prepare(context.Background(), s.ports, cfg, 0)
	if err != nil {
		s.Fatalf("%v\n%s", err, text)
	}
	return prep.Plan, len(prep.Refusals)+len(prep.Waiting) == 0
}

func (s *sample) run(p plan.Plan) error {
	r := &txn.Runner{
		Kernel: s.kernel, CNI: s.ports.CNI, FRR: s.ports.FRR, Ledger: s.ports.Ledger, Journal: s.ports.Journal, Netns: []string{"host"},
	}
	return r.Run(context.Background(), p)
}

// reach goes to text with nothing in the way; it returns how many changes of the kernel that took.
func (s *sample) reach(text string) (changes int, ok bool) {
	p, ok := s.prepare(text)
	s.kernel.n, s.kernel.at = 0, 0
	if !ok || p.Empty() {
		return 0, ok
	}
	if err := s.run(p); err != nil {
		s.Fatalf("%v\n%s", err, p)
	}
	if again, _ := s.prepare(text); !again.Empty() {
		s.Fatalf("after that there is still this to do:\n%s", again)
	}
	return s.kernel.n, true
}

// TestSample is the central test's main part on the real kernel, for a few pairs: whatever change of the kernel is refused
// on the way from a to b, the router is in a again; and with nothing in the way it gets to b.
func TestSample(t *testing.T) {
	for _, args := range []string{
		"ip link add eth1 type dummy", "ip link set eth1 up", "ip addr add 10.1.0.1/30 dev eth1",
		"ip link add eth2 mtu 9000 type dummy", "ip link set eth2 up", "ip link add lan0 type bridge",
		"ip netns add host", "ip -n host link add up0 type dummy", "ip -n host link set up0 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	if err := os.MkdirAll("/etc/cni", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{"eth1", "eth2"} {
		if err := os.WriteFile("/etc/cni/"+parent, []byte(conflistOn(parent)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	real, err := kernel.Open(kernel.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer real.Close()
	const pairs = 4
	done, refusals := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		if done == pairs {
			return
		}
		f := frrtest.New(65001, netip.MustParseAddr("10.0.0.1"))
		f.SetEVPN(true)
		s := &sample{T: rt, kernel: &refusing{Kernel: real}}
		f.SetPresent(func(p netip.Prefix) bool {
			return slices.ContainsFunc(s.links(), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, p) })
		})
		f.SetVNIs(func() []frr.VNI { return vnisOf(s.links(), true) })
		f.SetIdle(func() []frr.VNI { return vnisOf(s.links(), false) })
		s.ports = Ports{Kernel: s.kernel, CNI: cni.New(cni.Options{Dir: memoryDir(t)}), FRR: f, Ledger: ledgerOn(memstore.New().Open()), Journal: journal.In(memoryDir(t))}
		quick := strings.NewReplacer("timeout: 3s", "timeout: 60s, drain: {quiet: 20ms, limit: 1s}")
		a, b := quick.Replace(drawConfig(rt, "a")), quick.Replace(drawConfig(rt, "b"))
		const nothing = "version: 1\nnode: {name: r1}\n"
		defer func() {
			if !rt.Failed() { // a failure is told as it is, not as what it does to the clearing away
				s.reach(nothing)
			}
		}()
		if _, ok := s.reach(a); !ok {
			return
		}
		changes, ok := s.reach(b)
		if !ok || changes == 0 {
			return
		}
		for k := 1; k <= changes; k++ {
			if _, ok := s.reach(a); !ok {
				break // an address that another endpoint has by now
			}
			before := s.facts()
			p, ok := s.prepare(b)
			if !ok || p.Empty() {
				break
			}
			s.kernel.n, s.kernel.at = 0, k
			err := s.run(p)
			if failed, ok := errors.AsType[*txn.Error](err); ok && failed.Degraded != nil {
				rt.Fatalf("change %d refused, and it can't be undone: %v\n%s", k, err, p)
			}
			if after := s.facts(); err != nil && after != before {
				rt.Fatalf("change %d refused (%v):\ngot\n%swant\n%s%s", k, err, after, before, p)
			}
			if err != nil {
				refusals++
			}
		}
		done++
	})
	t.Logf("%d pairs, %d refused changes undone", done, refusals)
	if done < pairs || refusals == 0 {
		t.Errorf("only %d pairs and %d refusals", done, refusals)
	}
}
