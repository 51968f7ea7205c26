//go:build containers

// Package container holds the story of vtepd as its users run it beside FRR: two containers of the compose file, under a real
// engine.
package container

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/clab"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

const topology = "../../containerlab/evpn-l2.clab.yml"

// world is two leaves of containers, with the lab's spine, hosts and links.
type world struct {
	*testing.T
	engine    *engine
	leaf      map[string]*router
	lab       *lab.Lab
	one, two  *fabric.Side
	container map[string]string // of a node
}

func (w *world) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	w.Cleanup(cancel)
	return ctx
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// adopt makes a node what a container is now.
func (w *world) adopt(node string) {
	w.Helper()
	ctx := w.within(time.Minute)
	w.must(lab.Eventually(ctx, node+"'s container", func(ctx context.Context) error {
		pid, err := w.engine.pid(ctx, w.container[node])
		if err != nil {
			return err
		}
		return w.lab.Node(node).Adopt(pid)
	}))
}

// deploy starts everything: at leaf1 FRR first, at leaf2 vtepd first.
func deploy(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, engine: start(t), leaf: map[string]*router{}, container: map[string]string{}}
	ctx := w.within(10 * time.Minute)
	began := time.Now()
	w.must(w.engine.images(ctx, "../../bin/vtepd-image.tar"))
	t.Logf("images after %v", time.Since(began).Round(time.Second))
	adopted := map[string]int{}
	for name, order := range map[string][]string{"leaf1": {"frr", "vtepd"}, "leaf2": {"vtepd", "frr"}} {
		r, err := w.engine.router(name)
		w.must(err)
		w.leaf[name] = r
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			if err := r.compose(ctx, "down", "--volumes", "--timeout", "30"); err != nil {
				t.Error(err)
			}
		})
		for _, service := range append([]string{"netns"}, order...) {
			w.must(r.compose(ctx, "up", "--detach", "--no-deps", service))
			node := name
			switch service {
			case "netns":
				continue
			case "vtepd":
				node = "vtepd" + name[len("leaf"):]
			}
			w.container[node] = r.container(service)
			pid, err := r.service(ctx, service)
			w.must(err)
			adopted[node] = pid
		}
	}
	t.Logf("containers after %v", time.Since(began).Round(time.Second))
	topo, err := clab.ReadFile(topology)
	w.must(err)
	w.lab, err = lab.Deploy(ctx, topo, filepath.Dir(topology), lab.Options{Adopted: adopted, Logf: t.Logf, GoBGP: []string{"spine"}})
	w.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			w.tell()
			w.lab.Collect("failed")
		}
		if err := w.lab.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w.must(w.lab.WaitBGP(ctx))
	w.one, w.two = fabric.Sides(w.lab)
	w.one.Socket, w.one.DropDir = "/run/vtepd/vtepd.sock", w.leaf["leaf1"].drop
	w.two.Socket, w.two.DropDir = "/run/vtepd/vtepd.sock", w.leaf["leaf2"].drop
	t.Logf("BGP after %v", time.Since(began).Round(time.Second))
	return w
}

// tell prints what the containers said.
func (w *world) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for node, c := range w.container {
		out, err := w.engine.docker(ctx, "logs", "--tail", "40", c)
		w.Logf("%s: %v\n%s", node, err, out)
	}
}

// settled waits until vtepd is idle with vtep0 on one of addresses, and returns it.
func (w *world) settled(s *fabric.Side, vnis []int, addresses ...string) string {
	w.Helper()
	at := ""
	_, err := s.Settle(w.within(4*time.Minute), "is at rest", func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return fmt.Errorf("not at rest")
		}
		var err error
		for _, at = range addresses {
			if err = fabric.Has(n, at, vnis); err == nil {
				return nil
			}
		}
		return err
	})
	w.must(err)
	return at
}

func (w *world) traffic() *lab.Traffic {
	w.Helper()
	tr, err := w.lab.StartTraffic(w.within(2*time.Minute), lab.TrafficOptions{Flows: fabric.Hosts(), Ours: "leaf1"})
	w.must(err)
	return tr
}

// account ends the traffic; nothing may have been lost here.
func (w *world) account(what string, tr *lab.Traffic) {
	w.Helper()
	w.must(tr.WaitReceived(w.within(time.Minute), 10))
	r, err := tr.Stop(w.within(time.Minute))
	w.must(err)
	w.Logf("%s: %s", what, r)
	for _, l := range r.Losses {
		w.Logf("%s", l)
	}
	if r.LostHere != 0 || r.Sent == 0 {
		w.Errorf("%s: lost_here=%d of %d", what, r.LostHere, r.Sent)
	}
}

// TestContainers: a file dropped through the bind mount, the swap under traffic, the sidecar replaced at rest and in
// the middle of a change, FRR's container killed.
func TestContainers(t *testing.T) {
	w := deploy(t)
	ctx := w.within(15 * time.Minute)
	vnis := fabric.VNIs(5)
	one := fabric.Config{Node: "leaf1", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: vnis}
	two := fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: vnis}
	w.must(w.one.Drop(one.YAML()))
	w.must(w.two.Drop(two.YAML()))
	w.settled(w.one, vnis, "10.0.0.11")
	w.settled(w.two, vnis, "10.0.0.12")
	w.must(w.one.Enslave(ctx))
	w.must(w.two.Enslave(ctx))
	tr := w.traffic()

	t.Log("re-address")
	one.Address = fabric.Prefer("10.0.0.21")
	w.must(w.one.Drop(one.YAML()))
	w.settled(w.one, vnis, "10.0.0.21")
	out, err := w.engine.docker(ctx, "exec", w.container["vtepd1"], "/usr/bin/vtepd", "status")
	w.must(err)
	t.Logf("status:\n%s", out)

	t.Log("a newer image at rest")
	leaf := w.leaf["leaf1"]
	_, err = w.engine.docker(ctx, "tag", "vtepd:latest", "vtepd:next")
	w.must(err)
	leaf.env = append(leaf.env, "VTEPD_IMAGE=vtepd:next")
	before, err := leaf.service(ctx, "vtepd")
	w.must(err)
	w.must(leaf.compose(ctx, "up", "--detach", "--no-deps", "--force-recreate", "vtepd"))
	if after, err := leaf.service(ctx, "vtepd"); err != nil || after == before {
		t.Fatalf("the sidecar is still process %d (%v)", after, err)
	}
	w.adopt("vtepd1")
	w.settled(w.one, vnis, "10.0.0.21")

	t.Log("and in the middle of a change")
	one.Address = fabric.Prefer("10.0.0.22")
	w.must(w.one.Drop(one.YAML()))
	_, err = w.one.Settle(w.within(time.Minute), "has begun", func(n status.Snapshot) error {
		if n.Condition != status.Running {
			return fmt.Errorf("it hasn't begun")
		}
		return nil
	})
	w.must(err)
	w.must(leaf.compose(ctx, "up", "--detach", "--no-deps", "--force-recreate", "--timeout", "60", "vtepd"))
	w.adopt("vtepd1")
	w.settled(w.one, vnis, "10.0.0.22")
	_, err = w.engine.docker(ctx, "kill", w.container["vtepd1"])
	w.must(err)
	w.must(leaf.compose(ctx, "up", "--detach", "--no-deps", "vtepd"))
	w.adopt("vtepd1")
	w.settled(w.one, vnis, "10.0.0.22")
	w.account("vtepd replaced and killed", tr)

	t.Log("FRR's container is killed in the middle of a change, and started again")
	one.Address = fabric.Prefer("10.0.0.23")
	w.must(w.one.Drop(one.YAML()))
	_, err = w.engine.docker(ctx, "kill", w.container["leaf1"])
	w.must(err)
	w.must(leaf.compose(ctx, "up", "--detach", "--no-deps", "frr"))
	w.adopt("leaf1")
	w.settled(w.one, vnis, "10.0.0.23")
	w.must(w.lab.WaitBGP(w.within(3 * time.Minute)))
	w.account("after FRR's return", w.traffic())
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }
