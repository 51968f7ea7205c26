//go:build containerlab

package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/clab"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// containerlab is a lab that the real containerlab has deployed.
type containerlab struct {
	*story
	one, two *fabric.Side
	name     string // of the lab
	dir      string // a copy of the topologies
	before   []string
}

// program is containerlab; make gets it.
const program = "../../bin/containerlab"

// containerlab runs the program as a user does, in the directory of the topologies.
func (c *containerlab) containerlab(ctx context.Context, word string, args ...string) error {
	path, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	began := time.Now()
	cmd := exec.CommandContext(ctx, path, append([]string{word, "--topo", c.name + ".clab.yml", "--timeout", "5m"}, args...)...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+c.engine.socket(), "HOME="+c.engine.dir, "CLAB_VERSION_CHECK=disable")
	out, err := cmd.CombinedOutput()
	c.note("containerlab %s: took %.1fs\n%s", word, time.Since(began).Seconds(), bytes.TrimSpace(out))
	if err != nil {
		err = fmt.Errorf("containerlab %s: %w", word, err)
	}
	return err
}

// container is the name of a node's container.
func (c *containerlab) container(node string) string { return "clab-" + c.name + "-" + node }

// surroundings are what containerlab makes outside of its containers: links, names of network namespaces, files.
func (c *containerlab) surroundings() (found []string) {
	c.Helper()
	for _, pattern := range []string{"/sys/class/net/*", "/run/netns/*", "/etc/ssh/ssh_config.d/*", c.dir + "/*", c.dir + "/*/*"} {
		paths, err := filepath.Glob(pattern)
		c.must(err)
		found = append(found, paths...)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	c.must(err)
	return append(found, string(hosts))
}

// deployed has containerlab deploy a topology. At the test's end it is destroyed, if it wasn't before.
func (w *story) deployed(name string) *containerlab {
	w.Helper()
	own := *w // but for its lab
	c := &containerlab{story: &own, name: name, dir: filepath.Join(w.TempDir(), "containerlab")}
	c.must(os.CopyFS(c.dir, os.DirFS("../../containerlab")))
	c.before = c.surroundings()
	topo, err := clab.ReadFile(filepath.Join(c.dir, name+".clab.yml"))
	c.must(err)
	c.Cleanup(func() {
		if !c.Failed() {
			return
		}
		if c.lab != nil {
			dir, err := c.lab.Collect("failed")
			c.Logf("artifacts: %s %v", dir, err)
		}
		for _, n := range topo.Nodes {
			c.said(context.Background(), c.container(n.Name))
		}
		if err := c.containerlab(context.Background(), "destroy", "--cleanup"); err != nil {
			c.Log(err)
		}
	})
	c.must(c.containerlab(c.within(10*time.Minute), "deploy"))

	ctx := c.within(10 * time.Minute)
	pids := map[string]int{}
	for _, n := range topo.Nodes {
		pids[n.Name], err = c.engine.pid(ctx, c.container(n.Name))
		c.must(err)
	}
	c.lab, err = lab.Deploy(ctx, topo, c.dir, lab.Options{Logf: c.note, Adopted: pids, Deployed: true})
	c.must(err)
	c.one, c.two = fabric.Sides(c.lab)
	for _, s := range []*fabric.Side{c.one, c.two} {
		s.DropDir = filepath.Join(c.dir, name, s.Leaf.Name, "drop")
	}
	c.must(c.lab.WaitBGP(ctx))
	c.note("BGP is up")
	return c
}

// drop has a leaf carry out the file that the README says, with some things in others' places.
func (c *containerlab) drop(s *fabric.Side, changes ...string) {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, c.name, s.Leaf.Name, "vtepd.yaml"))
	c.must(err)
	content := strings.NewReplacer(changes...).Replace(string(text))
	if len(changes) > 0 && content == string(text) {
		c.Fatalf("%q: not in\n%s", changes, text)
	}
	c.must(s.Drop(content))
}

// again starts a container that has ended, and has the lab take its node for what that one sees.
func (c *containerlab) again(n *lab.Node) {
	c.Helper()
	ctx := c.within(time.Minute)
	c.must(c.engine.post(ctx, "/containers/"+c.container(n.Name)+"/start", nil))
	pid, err := c.engine.pid(ctx, c.container(n.Name))
	c.must(err)
	c.must(n.Adopt(pid))
}

// destroy has containerlab destroy the lab: of everything that it made, nothing is left.
func (c *containerlab) destroy() {
	c.Helper()
	c.must(c.lab.Destroy(c.within(time.Minute)))
	c.must(c.containerlab(c.within(10*time.Minute), "destroy", "--cleanup"))
	c.must(c.engine.left(c.within(time.Minute)))
	c.must(lab.Eventually(c.within(time.Minute), "nothing is left", func(context.Context) error {
		if found := c.surroundings(); !slices.Equal(found, c.before) {
			return fmt.Errorf("there is %q, there was %q", found, c.before)
		}
		return nil
	}))
}

// TestContainerlab walks through the README of the topologies under containerlab itself.
func TestContainerlab(t *testing.T) {
	w := begin(t)
	w.deployed("evpn-l2").evpn()
	w.deployed("cloud-ipvlan").cloud()
}

func (c *containerlab) evpn() {
	c.Helper()
	vnis := []int{100, 200}
	c.drop(c.one)
	c.drop(c.two)
	c.settled(c.one, vnis, "10.0.0.11")
	c.settled(c.two, vnis, "10.0.0.12")
	ctx := c.within(15 * time.Minute)
	c.must(c.one.Enslave(ctx))
	c.must(c.two.Enslave(ctx))
	foreign, err := c.one.Foreign(ctx)
	c.must(err)
	tr := c.traffic(fabric.Hosts())

	c.note("== another address, on the other uplink")
	c.drop(c.one, "10.0.0.11", "10.0.0.21", "parent: eth1", "parent: eth2")
	c.settled(c.one, vnis, "10.0.0.21")

	c.note("== what can't be done")
	_, err = c.one.Leaf.Exec(ctx, "ip", "addr", "add", "10.0.0.23/32", "dev", "lo")
	c.must(err)
	for _, tt := range []struct {
		from, to  string
		condition status.Condition
		says      string
	}{
		{"version: 1", "version: one", status.Invalid, "vtepd.yaml:1:10: version: "},
		{"parent: eth1", "parent: eth9", status.Refused, "no link eth9"},
		{"10.0.0.11", "10.0.0.23", status.Refused, "10.0.0.23 is on lo already"},
	} {
		c.drop(c.one, tt.from, tt.to)
		_, err = c.one.Settle(c.within(time.Minute), tt.to, func(n status.Snapshot) error {
			if n.Condition != tt.condition || !strings.Contains(strings.Join(n.Messages, "\n"), tt.says) {
				return fmt.Errorf("not %s for %q", tt.condition, tt.says)
			}
			return fabric.Has(n, "10.0.0.21", vnis)
		})
		c.must(err)
	}
	_, err = c.one.Leaf.Exec(ctx, "ip", "addr", "del", "10.0.0.23/32", "dev", "lo")
	c.must(err)

	c.note("== vtepd is killed in the middle of a change, and started")
	c.drop(c.one, "10.0.0.11", "10.0.0.22")
	c.running(c.one, plan.Announce)
	c.must(c.engine.post(ctx, "/containers/"+c.container("vtepd1")+"/kill", nil))
	c.again(c.one.Sidecar)
	c.settled(c.one, vnis, "10.0.0.22")
	c.account("vtepd changed and killed", tr)

	c.note("== bgpd is killed, a VXLAN is deleted")
	for _, words := range []string{"pkill -9 bgpd", "ip link del vxlan100"} {
		_, err = c.one.Leaf.Exec(ctx, strings.Fields(words)...)
		c.must(err)
	}
	c.must(lab.Eventually(c.within(time.Minute), "vxlan100 is there again", func(ctx context.Context) error {
		_, err := c.one.Leaf.Exec(ctx, "ip", "link", "show", "vxlan100", "master", "br100")
		return err
	}))
	c.must(c.lab.WaitBGP(c.within(3 * time.Minute)))
	c.settled(c.one, vnis, "10.0.0.22")
	c.account("afterwards", c.traffic(fabric.Hosts()))
	if now, err := c.one.Foreign(ctx); err != nil || now != foreign {
		c.Errorf("the operator's things: %v\n%s\nwere:\n%s", err, now, foreign)
	}
	c.destroy()
}

// cloud: the endpoint's parent is the instance's, whom the sidecar sees by pid-mode.
func (c *containerlab) cloud() {
	c.Helper()
	vnis := []int{100}
	c.drop(c.one)
	c.drop(c.two)
	c.settled(c.one, vnis, "10.0.0.11")
	c.settled(c.two, vnis, "10.0.0.12")
	ctx := c.within(10 * time.Minute)
	c.must(c.one.Leaf.Enslave(ctx, "eth3", "br100"))
	c.must(c.two.Leaf.Enslave(ctx, "eth3", "br100"))
	tr := c.traffic(lab.Between("host1", "172.16.100.1", "host2", "172.16.100.2"))
	c.drop(c.one, "10.0.0.11", "10.0.0.21")
	c.settled(c.one, vnis, "10.0.0.21")
	c.account("in the cloud", tr)
	c.destroy()
}
