// Command demo shows the main job on a real kernel, real FRR and a GoBGP spine, as it happens: five files dropped at a leaf
// under traffic. It deploys the lab, prints for people, and fails unless every scene ended as it should.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/clab"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

const topology = "containerlab/evpn-l2.clab.yml"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute) // a bound for a machine that hangs
	d := &demo{began: time.Now()}
	err := d.run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Printf("\ndemo: failed: %v\n", err)
		os.Exit(1)
	}
}

// demo is the lab, and the account of its scenes.
type demo struct {
	began      time.Time
	lab        *lab.Lab
	one, two   *fabric.Side
	spine      *lab.Speaker
	config     fabric.Config
	report     lab.Report
	scenes     int
	rolledBack int
}

func (d *demo) say(format string, args ...any) {
	fmt.Printf("%7.2fs  %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) (err error) {
	topo, err := clab.ReadFile(topology)
	if err != nil {
		return err
	}
	d.say("deploying %s: two leaves with FRR and vtepd, a GoBGP spine, two hosts", topology)
	d.lab, err = lab.Deploy(ctx, topo, filepath.Dir(topology), lab.Options{GoBGP: []string{"spine"}})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			if dir, cerr := d.lab.Collect("demo"); cerr == nil && dir != "" {
				d.say("logs and captures: %s", dir)
			}
		}
		err = errors.Join(err, d.lab.Destroy(context.WithoutCancel(ctx)))
	}()
	d.one, d.two = fabric.Sides(d.lab)
	d.spine = d.lab.Node("spine").Speaker()
	if err := d.lab.WaitBGP(ctx); err != nil {
		return err
	}
	version, err := d.one.Leaf.Vtysh(ctx, "show version")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(version, "\n")
	d.say("BGP is up: %s", strings.TrimSpace(first))
	for _, side := range []*fabric.Side{d.one, d.two} {
		if err := side.Start(ctx); err != nil {
			return err
		}
		if err := lab.Eventually(ctx, "vtepd's socket", func(ctx context.Context) error { _, err := side.Status(ctx); return err }); err != nil {
			return err
		}
	}
	for _, scene := range []struct {
		name string
		play func(context.Context) error
	}{
		{"a first file at each leaf: an endpoint on eth1, 20 VNIs", d.firstFile},
		{"re-address the endpoint that 20 VNIs are on", d.readdress},
		{"a file that the kernel refuses in staging", d.refusedByKernel},
		{"a file whose host route FRR refuses", d.refusedByFRR},
		{"move the endpoint to another parent", d.reparent},
	} {
		d.scenes++
		fmt.Printf("\nscene %d: %s\n", d.scenes, scene.name)
		if err := scene.play(ctx); err != nil {
			return fmt.Errorf("scene %d: %w", d.scenes, err)
		}
	}
	fmt.Println()
	for _, l := range d.report.Losses {
		fmt.Println(l)
	}
	fmt.Printf("demo: scenes=%d sent=%d lost_here=%d lost_remote=%d rolled_back=%d ok\n",
		d.scenes, d.report.Sent, d.report.LostHere, d.report.LostRemote, d.rolledBack)
	return nil
}

// firstFile has no traffic before it: it is what makes the overlay.
func (d *demo) firstFile(ctx context.Context) error {
	d.config = fabric.Config{Node: "leaf1", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: fabric.VNIs(20)}
	two := fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: fabric.VNIs(20)}
	stop := d.listen(ctx)
	defer stop()
	if err := d.carry(ctx, d.one, d.config, "10.0.0.11"); err != nil {
		return err
	}
	if err := d.carry(ctx, d.two, two, "10.0.0.12"); err != nil {
		return err
	}
	if err := errors.Join(d.one.Enslave(ctx), d.two.Enslave(ctx)); err != nil {
		return err
	}
	return d.withTraffic(ctx, func() error { return nil })
}

func (d *demo) readdress(ctx context.Context) error {
	mark := d.spine.Len()
	d.config.Address = fabric.Prefer("10.0.0.21")
	err := d.withTraffic(ctx, func() error { return d.carry(ctx, d.one, d.config, "10.0.0.21") })
	if err != nil {
		return err
	}
	move := fabric.Move{Leaf: d.one.Loopback, From: fabric.Addr("10.0.0.11"), To: fabric.Addr("10.0.0.21"), VNIs: 20}
	if err := move.Order(d.spine.Since(mark)); err != nil {
		return err
	}
	d.say("the spine heard it in order: the new host route and its scout, 20 type-3 routes moved, the old host route gone; nothing else was withdrawn")
	return nil
}

func (d *demo) refusedByKernel(ctx context.Context) error {
	for _, args := range []string{
		"ip netns add other",
		"ip link add cnt0 link eth1 netns other type ipvlan mode l3",
		"ip -n other addr add 10.0.0.41/32 dev cnt0",
		"ip -n other link set cnt0 up",
	} {
		if _, err := d.one.Leaf.Exec(ctx, strings.Fields(args)...); err != nil {
			return err
		}
	}
	d.say("a container in another namespace has 10.0.0.41 on the same parent, which vtepd can't see")
	bad := d.config
	bad.Address = fabric.Prefer("10.0.0.41")
	return errors.Join(d.withTraffic(ctx, func() error { return d.fail(ctx, bad, plan.Stage) }), d.goodFile(ctx))
}

// goodFile drops the last file that was carried out again: a new daemon would try the refused one.
func (d *demo) goodFile(ctx context.Context) error {
	if err := d.one.Drop(d.config.YAML()); err != nil {
		return err
	}
	return d.idle(ctx)
}

func (d *demo) idle(ctx context.Context) error {
	_, err := d.one.Settle(ctx, "is idle", func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return errors.New("not idle")
		}
		return nil
	})
	return err
}

func (d *demo) refusedByFRR(ctx context.Context) error {
	p, err := fabric.Interpose(d.one.Sidecar.Path("/var/run/frr"), "bgpd", func(line string) ([]byte, bool) {
		if strings.HasPrefix(strings.TrimSpace(line), "network 10.0.0.42/32") {
			return fabric.Refusal("% this line is refused for the demo"), true
		}
		return nil, false
	})
	if err != nil {
		return err
	}
	d.say("something between vtepd and bgpd refuses the line `network 10.0.0.42/32` (FRR itself wouldn't)")
	bad := d.config
	bad.Address = fabric.Prefer("10.0.0.42")
	err = d.withTraffic(ctx, func() error {
		// vtepd keeps its connections; a new one leads through what is in between. The data plane runs on.
		if err := d.restart(ctx); err != nil {
			return err
		}
		return d.fail(ctx, bad, plan.Announce)
	})
	return errors.Join(err, p.Close(), d.goodFile(ctx), d.restart(ctx))
}

func (d *demo) reparent(ctx context.Context) error {
	d.config.Parent = "eth2"
	mark := d.spine.Len()
	err := d.withTraffic(ctx, func() error { return d.carry(ctx, d.one, d.config, "10.0.0.21") })
	if err != nil {
		return err
	}
	for _, e := range d.spine.Since(mark) {
		if fabric.Lost(e, d.one.Loopback) {
			return fmt.Errorf("the spine heard %v", e)
		}
	}
	d.say("the spine heard no withdrawal: the address was on both parents for a while")
	return nil
}

func (d *demo) restart(ctx context.Context) error {
	if err := d.one.Proc.Stop(ctx); err != nil {
		return err
	}
	if err := d.one.Start(ctx); err != nil {
		return err
	}
	return d.idle(ctx)
}

// withTraffic runs f between hosts that send to each other, and joins the account.
func (d *demo) withTraffic(ctx context.Context, f func() error) error {
	tr, err := d.lab.StartTraffic(ctx, lab.TrafficOptions{Flows: fabric.Hosts(), Ours: "leaf1"})
	if err != nil {
		return err
	}
	stop := d.listen(ctx)
	err = f()
	stop()
	if err == nil {
		err = tr.WaitReceived(ctx, 25)
	}
	r, stopErr := tr.Stop(ctx)
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	d.report.Add(r)
	d.say("packets between the hosts: %s", r)
	if r.LostHere > 0 {
		for _, l := range r.Losses {
			d.say("%s", l)
		}
		return fmt.Errorf("%d packets were lost here", r.LostHere)
	}
	return nil
}

// listen prints what the spine hears, until it is stopped: host routes one by one, type-3 routes by their number.
func (d *demo) listen(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	mark := d.spine.Len()
	go func() {
		defer close(done)
		moved := map[string]int{}
		for _, e := range d.spine.Follow(ctx, mark) {
			switch {
			case e.Type == 0 && e.Prefix.IsValid():
				d.say("  spine: %s %s %s", e.Peer, e.Kind, e.Prefix)
			case fabric.Scouting(e):
				d.say("  spine: %s %s the type-3 of a scout, VNI %d via %s", e.Peer, e.Kind, e.VNI, e.NextHop)
			case e.Type == 3:
				key := fmt.Sprintf("%s %s type-3 via %s", e.Peer, e.Kind, e.NextHop)
				if moved[key]++; moved[key] == 1 || moved[key] == 20 {
					d.say("  spine: %s (%d)", key, moved[key])
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// show prints a file as it is dropped.
func (d *demo) show(side *fabric.Side, c fabric.Config) {
	d.say("dropped at %s:", side.Leaf.Name)
	few := c
	if len(few.VNIs) > 3 {
		few.VNIs = few.VNIs[:3]
	}
	for line := range strings.Lines(few.YAML()) {
		fmt.Printf("          | %s", line)
	}
	if n := len(c.VNIs) - len(few.VNIs); n > 0 {
		fmt.Printf("          |   … and %d more VNIs\n", n)
	}
}

func (d *demo) carry(ctx context.Context, side *fabric.Side, c fabric.Config, address string) error {
	d.show(side, c)
	snap, err := side.Carry(ctx, c, address)
	if err != nil {
		return err
	}
	d.phases(snap)
	swap := "no live VXLAN had to change"
	if n := snap.Transaction.SwapBatches; n > 0 {
		swap = fmt.Sprintf("the swap was %d netlink batch of %d changes", n, snap.Transaction.SwapMessages)
	}
	d.say("live: vtep0 on %s, %d VNIs; %s; FRR was asked %d times", address, len(snap.VNIs), swap, snap.Transaction.RoundTrips)
	return nil
}

// fail drops a file that must be rolled back in a phase.
func (d *demo) fail(ctx context.Context, c fabric.Config, phase plan.Phase) error {
	d.show(d.one, c)
	if err := d.one.Drop(c.YAML()); err != nil {
		return err
	}
	snap, err := d.one.Settle(ctx, "is rolled back", func(n status.Snapshot) error {
		if n.Condition != status.Failed || n.Failure == nil || n.Failure.Phase != phase {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.phases(snap)
	d.say("rolled back: phase %s: %s", snap.Failure.Phase, snap.Failure.Message) // which names the object
	d.rolledBack++
	return fabric.Has(snap, "10.0.0.21", c.VNIs)
}

func (d *demo) phases(snap status.Snapshot) {
	for _, p := range snap.Transaction.Phases {
		undo := ""
		if p.Undo {
			undo = "undo "
		}
		d.say("  %-13s %8.3fs", undo+string(p.Phase), p.Took.Seconds())
	}
}
