//go:build containers

// Package container holds the story of vtepd as its users run it beside FRR: the containers of the compose file, under a real
// engine.
package container

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/clab"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
	"vtepd/frr/witness"
)

const (
	topology = "../../containerlab/evpn-l2.clab.yml"
	// The same program as released with another version.
	newer = "../../bin/vtepd-next-image.tar"
)

// world is two leaves of containers, with the lab's spine, hosts and links.
type world struct {
	*story
	one, two *leaf
	foreign  string // what the operator has at leaf1
}

// leaf is a compose project, and what the lab makes of it.
type leaf struct {
	*router
	*fabric.Side
	pids map[string]int // of the services that are nodes of the lab
}

// deploy starts everything: at leaf1 FRR first, at leaf2 vtepd first.
func deploy(t *testing.T) *world {
	t.Helper()
	w := &world{story: begin(t)}
	ctx := w.within(10 * time.Minute)
	w.owned()
	w.one, w.two = w.leaf("leaf1"), w.leaf("leaf2")
	t.Cleanup(w.remove)
	w.must(w.engine.post(ctx, "/images/frr:10.3/tag?repo=router-netns", nil))
	w.missing(ctx, w.one)
	// One after the other, as on two machines: FRR's start has its own timeouts.
	w.up(ctx, w.one, "frr")
	w.up(ctx, w.two, "vtepd")

	topo, err := clab.ReadFile(topology)
	w.must(err)
	w.lab, err = lab.Deploy(ctx, topo, filepath.Dir(topology), lab.Options{Logf: w.note, GoBGP: []string{"spine"}, Adopted: map[string]int{
		"leaf1": w.one.pids["frr"], "vtepd1": w.one.pids["vtepd"], "leaf2": w.two.pids["frr"], "vtepd2": w.two.pids["vtepd"],
	}})
	w.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			dir, err := w.lab.Collect("failed")
			t.Logf("artifacts: %s %v", dir, err)
		}
		if err := w.lab.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w.one.Side, w.two.Side = fabric.Sides(w.lab)
	for _, l := range []*leaf{w.one, w.two} {
		l.DropDir = l.drop
	}
	w.must(w.lab.WaitBGP(w.within(3 * time.Minute)))
	w.note("BGP is up")
	return w
}

// up starts a leaf's containers, a service first.
func (w *world) up(ctx context.Context, l *leaf, first string) {
	w.Helper()
	w.must(l.compose(ctx, "up", "--detach", "netns", first))
	w.must(l.compose(ctx, "up", "--detach"))
	for _, service := range []string{"frr", "vtepd"} {
		pid, err := w.engine.pid(ctx, l.container(service))
		w.must(err)
		l.pids[service] = pid
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	w.must(w.engine.says(ctx, l.container("frr"), "Started watchfrr"))
}

// missing: of a file that isn't there the engine says so, and makes no directory in its place.
func (w *world) missing(ctx context.Context, l *leaf) {
	w.Helper()
	none := filepath.Join(w.engine.dir, l.name, "none")
	had := l.env
	l.env = append(slices.Clone(had), "FRR_CONF="+none)
	if err := l.compose(ctx, "up", "--detach", "frr"); err == nil || !strings.Contains(err.Error(), "does not exist: "+none) {
		w.Errorf("without FRR's configuration: %v", err)
	}
	if _, err := os.Lstat(none); !errors.Is(err, os.ErrNotExist) {
		w.Errorf("%s: %v", none, err)
	}
	l.env = had
}

// owned: a volume of FRR's own with nothing in it yet is FRR's still when vtepd's container has come to it.
func (w *world) owned() {
	w.Helper()
	ctx := w.within(time.Minute)
	w.must(w.engine.post(ctx, "/volumes/create", strings.NewReader(`{"Name": "sockets"}`)))
	var volume struct{ Mountpoint string }
	w.must(w.engine.get(ctx, "/volumes/sockets", &volume))
	const frr = 92
	w.must(os.Chown(volume.Mountpoint, frr, frr))
	w.must(w.engine.post(ctx, "/containers/create?name=beside", strings.NewReader(`{"Image": "vtepd:latest", "HostConfig": {"Binds": ["sockets:/var/run/frr"]}}`)))
	var st unix.Stat_t
	w.must(unix.Stat(volume.Mountpoint, &st))
	if st.Uid != frr || st.Gid != frr {
		w.Errorf("vtepd's container gave the volume of FRR's sockets to %d:%d", st.Uid, st.Gid)
	}
	for _, path := range []string{"/containers/beside?v=1", "/volumes/sockets"} {
		body, err := w.engine.do(ctx, http.MethodDelete, path, nil)
		w.must(err)
		w.must(body.Close())
	}
}

func (w *world) leaf(name string) *leaf {
	w.Helper()
	r, err := w.engine.router(name)
	w.must(err)
	return &leaf{router: r, pids: map[string]int{}}
}

// remove removes the containers, and everything that the engine made for them.
func (w *world) remove() {
	if w.Failed() {
		w.tell()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var g errgroup.Group
	for _, l := range []*leaf{w.one, w.two} {
		g.Go(func() error { return l.compose(ctx, "down", "--volumes") })
	}
	if err := g.Wait(); err != nil {
		w.Error(err)
	}
	if err := w.engine.left(ctx); err != nil {
		w.Error(err)
	}
}

// tell prints what the containers said.
func (w *world) tell() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, l := range []*leaf{w.one, w.two} {
		for service := range l.pids {
			w.said(ctx, l.container(service))
		}
	}
	out, err := exec.CommandContext(ctx, "ps", "axf", "-o", "pid,stat,time,wchan:20,args").Output()
	w.Logf("%s%v", out, err)
}

// again waits for another process of a service, and has the lab take its node for what that one sees.
func (w *world) again(l *leaf, service string) {
	w.Helper()
	node := l.Leaf
	if service == "vtepd" {
		node = l.Sidecar
	}
	w.must(lab.Eventually(w.within(2*time.Minute), l.container(service)+": another process", func(ctx context.Context) error {
		pid, err := w.engine.pid(ctx, l.container(service))
		if err == nil && pid == l.pids[service] {
			err = errors.New("it is still the same")
		}
		if err == nil {
			err = node.Adopt(pid)
		}
		if err == nil {
			l.pids[service] = pid
		}
		return err
	}))
}

// announced is what the spine has of a leaf: host routes, and where its VNIs are.
func (w *world) announced(l *leaf) (lines []string) {
	for _, e := range witness.Current(w.lab.Node("spine").Speaker().Events()) {
		switch {
		case e.Peer != l.Loopback:
		case e.Type == 0:
			lines = append(lines, fmt.Sprintf("%v", e.Prefix))
		case e.Type == 3:
			lines = append(lines, fmt.Sprintf("VNI %d at %v", e.VNI, e.NextHop))
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// few holds a sidecar to what the compose file leaves it: three capabilities, and no file to write beside its volumes.
func (w *world) few(l *leaf) {
	w.Helper()
	ctx := w.within(time.Minute)
	c, err := w.engine.inspect(ctx, l.container("vtepd"))
	w.must(err)
	h := c.HostConfig
	if !h.ReadonlyRootfs || h.Privileged || !slices.Equal(h.CapDrop, []string{"ALL"}) {
		w.Errorf("%s: %+v", l.container("vtepd"), h)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.State.Pid))
	w.must(err)
	const three = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_SYS_ADMIN
	for _, want := range []string{
		fmt.Sprintf("CapPrm:\t%016x\n", three), fmt.Sprintf("CapEff:\t%016x\n", three), fmt.Sprintf("CapBnd:\t%016x\n", three),
		"CapInh:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
	} {
		if !strings.Contains(string(text), want) {
			w.Errorf("vtepd's process has not %q:\n%s", want, text)
		}
	}
	root := fmt.Sprintf("/proc/%d/root", c.State.Pid)
	if err := os.WriteFile(root+"/usr/bin/other", nil, 0o755); !errors.Is(err, unix.EROFS) {
		w.Errorf("a file beside the program: %v", err)
	}
	var writable []string
	for _, m := range c.Mounts {
		if m.RW {
			writable = append(writable, m.Destination)
		}
	}
	slices.Sort(writable)
	if want := []string{"/var/lib/vtepd", "/var/run/frr"}; !slices.Equal(writable, want) {
		w.Errorf("volumes that it may write to: %v, would be %v", writable, want)
	}
	w.note("%s: capabilities %#x, a root that is read only, volumes %v", l.container("vtepd"), three, writable)
}

// replace starts the sidecar of an image in the place of the one that runs, or has run, and returns the version it should say.
func (w *world) replace(l *leaf, ref string) string {
	w.Helper()
	ctx := w.within(6 * time.Minute)
	i, err := w.engine.image(ctx, ref)
	w.must(err)
	l.env = append(l.env, "VTEPD_IMAGE="+ref)
	w.must(l.compose(ctx, "up", "--detach"))
	w.again(l, "vtepd")
	c, err := w.engine.inspect(ctx, l.container("vtepd"))
	w.must(err)
	if c.Image != i.ID || c.Config.Image != ref {
		w.Errorf("the sidecar runs image %s (%s), not %s (%s)", c.Config.Image, c.Image, ref, i.ID)
	}
	return i.Config.Labels["org.opencontainers.image.version"]
}

// TestContainers: files dropped through the bind mount, the swap under traffic; the sidecar replaced by a newer image at rest,
// and by the older one in the middle of a change; killed there; FRR replaced there too.
func TestContainers(t *testing.T) {
	w := deploy(t)
	ctx := w.within(15 * time.Minute)
	vnis := fabric.VNIs(5)
	one := fabric.Config{Node: "leaf1", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: vnis}
	two := fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: vnis}
	var err error
	w.foreign, err = w.one.Foreign(ctx)
	w.must(err)

	w.note("== a first file at each leaf")
	w.must(w.one.Drop(one.YAML()))
	w.must(w.two.Drop(two.YAML()))
	w.few(w.one)
	w.image()
	w.settled(w.one.Side, vnis, "10.0.0.11")
	w.settled(w.two.Side, vnis, "10.0.0.12")
	w.must(w.one.Enslave(ctx))
	w.must(w.two.Enslave(ctx))
	tr := w.traffic(fabric.Hosts())

	w.note("== a file with another address")
	one.Address = fabric.Prefer("10.0.0.21")
	w.must(w.one.Drop(one.YAML()))
	before := w.settled(w.one.Side, vnis, "10.0.0.21")

	w.note("== the sidecar is replaced by a newer image, at rest")
	w.must(w.engine.load(ctx, newer))
	version := w.replace(w.one, "vtepd:next")
	after := w.settled(w.one.Side, vnis, "10.0.0.21")
	if after.Version != version || after.Version == before.Version {
		t.Errorf("vtepd is version %q now, was %q; the image's is %q", after.Version, before.Version, version)
	}
	if said, err := w.one.VTEPD(ctx, "--version"); err != nil || !strings.Contains(said, version) {
		t.Errorf("vtepd --version says %q, %v", said, err)
	}
	out, err := w.one.VTEPD(ctx, "status")
	w.must(err)
	w.Logf("vtepd status:\n%s", out)

	w.note("== by the older one, in the middle of a change")
	one.Address = fabric.Prefer("10.0.0.22")
	w.must(w.one.Drop(one.YAML()))
	w.running(w.one.Side, plan.Announce)
	w.must(w.engine.post(ctx, "/containers/"+w.one.container("vtepd")+"/stop", nil))
	if version := w.replace(w.one, "vtepd:latest"); version != before.Version {
		t.Errorf("the image's version is %q, vtepd's was %q", version, before.Version)
	}
	w.settled(w.one.Side, vnis, "10.0.0.22")

	w.note("== it is killed in the middle of a change, and the engine starts it again")
	one.Address = fabric.Prefer("10.0.0.23")
	w.must(w.one.Drop(one.YAML()))
	w.running(w.one.Side, plan.Announce)
	w.must(unix.Kill(w.one.pids["vtepd"], unix.SIGKILL))
	w.again(w.one, "vtepd")
	w.settled(w.one.Side, vnis, "10.0.0.23")
	w.account("vtepd replaced and killed", tr)

	w.note("== FRR is stopped in the middle of a change, and replaced by another image of the same name")
	had := w.announced(w.one)
	one.Address = fabric.Prefer("10.0.0.24")
	w.renewed(w.one, one)
	w.settled(w.one.Side, vnis, "10.0.0.24")
	w.said(ctx, w.one.container("vtepd"))
	w.must(w.lab.WaitBGP(w.within(3 * time.Minute)))
	for i, line := range had {
		had[i] = strings.ReplaceAll(line, "10.0.0.23", "10.0.0.24")
	}
	slices.Sort(had)
	w.hears(w.one, had)
	if !slices.Contains(had, netip.PrefixFrom(fabric.Addr("10.0.0.24"), 32).String()) {
		t.Errorf("the endpoint's host route isn't among %q", had)
	}
	w.account("after FRR's return", w.traffic(fabric.Hosts()))
	if foreign, err := w.one.Foreign(ctx); err != nil || foreign != w.foreign {
		t.Errorf("the operator's things: %v\n%s\nwere:\n%s", err, foreign, w.foreign)
	}

	w.note("== an endpoint whose parent is the host's")
	w.onHost(one, vnis, "10.0.0.24")
	w.healthy(w.two)
}

// hears waits until the spine has of a leaf what it should.
func (w *world) hears(l *leaf, want []string) {
	w.Helper()
	w.must(lab.Eventually(w.within(2*time.Minute), "what the spine has", func(context.Context) error {
		if has := w.announced(l); !slices.Equal(has, want) {
			return fmt.Errorf("it has %q, not %q", has, want)
		}
		return nil
	}))
	w.note("the spine has of %s: %q", l.name, want)
}

// kernel is what a leaf's kernel forwards by, in lines: links and their state, addresses, routes, and where MACs and VNIs are.
func (w *world) kernel(l *leaf) (lines []string) {
	w.Helper()
	for _, look := range []string{"ip -br link", "ip -br addr", "ip route show table all", "bridge fdb show"} {
		for line := range strings.Lines(w.beside(l, strings.Fields(look)...)) {
			// A host's MAC at its own port ages.
			if !strings.HasPrefix(look, "bridge") || strings.Contains(line, " dev vxlan") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// ids are those of a leaf's containers.
func (w *world) ids(l *leaf, services ...string) (ids []string) {
	w.Helper()
	for _, service := range services {
		c, err := w.engine.inspect(w.within(time.Minute), l.container(service))
		w.must(err)
		ids = append(ids, c.ID)
	}
	return ids
}

// renewed stops FRR in the middle of a change, and replaces it by an image of the same name. Meanwhile the leaf's kernel loses nothing
// of what it had, though the peers take the leaf's routes away; and the containers beside FRR stay.
func (w *world) renewed(l *leaf, change fabric.Config) {
	w.Helper()
	ctx := w.within(6 * time.Minute)
	beside, kernel := w.ids(l, "netns", "vtepd"), w.kernel(l)
	for _, want := range []string{"proto bgp", "extern_learn"} {
		if !slices.ContainsFunc(kernel, func(line string) bool { return strings.Contains(line, want) }) {
			w.Errorf("nothing with %q in the kernel: %q", want, kernel)
		}
	}
	w.must(l.Drop(change.YAML()))
	w.running(l.Side, plan.Announce)
	// As docker compose stop does, but with no program to start first: the change doesn't wait.
	w.must(w.engine.post(ctx, "/containers/"+l.container("frr")+"/stop", nil))
	w.hears(l, nil)
	w.must(w.engine.next(ctx, "frr:10.3"))
	now := w.kernel(l)
	for _, line := range kernel {
		if !slices.Contains(now, line) {
			w.Errorf("without FRR %s's kernel has no more %q", l.name, line)
		}
	}
	w.note("without FRR %s's kernel still has its %d links, addresses, routes and FDB entries", l.name, len(kernel))

	w.must(l.compose(ctx, "up", "--detach"))
	w.again(l, "frr")
	i, err := w.engine.image(ctx, "frr:10.3")
	w.must(err)
	if c, err := w.engine.inspect(ctx, l.container("frr")); err != nil || c.Image != i.ID {
		w.Errorf("FRR runs image %s, not %s: %v", c.Image, i.ID, err)
	}
	if now := w.ids(l, "netns", "vtepd"); !slices.Equal(now, beside) {
		w.Errorf("the containers beside FRR are %q, were %q", now, beside)
	}
}

// host runs a program of this guest's, in its own network namespace.
func (w *world) host(args ...string) string {
	w.Helper()
	out, err := exec.CommandContext(w.within(time.Minute), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		w.Fatalf("%q: %v: %s", args, err, out)
	}
	return string(out)
}

// beside does so in a leaf's: also while the leaf's container has ended.
func (w *world) beside(l *leaf, args ...string) (out string) {
	w.Helper()
	w.must(l.Leaf.InNetwork(func() error {
		said, err := exec.CommandContext(w.within(time.Minute), args[0], args[1:]...).CombinedOutput()
		if out = string(said); err != nil {
			err = fmt.Errorf("%s: %q: %w: %s", l.name, args, err, out)
		}
		return err
	}))
	return out
}

// onHost has leaf1 make an endpoint on a link of this guest's, which is the host, as the compose file says, and go back. The other end of
// the link is leaf2's: what that sends there is received in leaf1.
func (w *world) onHost(c fabric.Config, vnis []int, address string) {
	w.Helper()
	ctx := w.within(6 * time.Minute)
	l := w.one
	text, err := os.ReadFile("../../compose.yaml")
	w.must(err)
	mount := regexp.MustCompile(`(?m)^      # (- .*/run/netns/host.*)$`).FindSubmatch(text)
	if mount == nil {
		w.Fatal("no mount of /run/netns/host in compose.yaml")
	}
	override := filepath.Join(w.engine.dir, l.name, "override.yaml")
	w.must(os.WriteFile(override, fmt.Appendf(nil, "services:\n  vtepd:\n    volumes:\n      %s\n", mount[1]), 0o644))
	l.files = append(l.files, override)

	w.host("ip", "netns", "attach", "host", "1")
	w.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", "host").CombinedOutput(); err != nil {
			w.Errorf("%v: %s", err, out)
		}
	})
	w.host("ip", "link", "add", "nic0", "type", "veth", "peer", "name", "nic0", "netns", fmt.Sprint(w.two.pids["frr"]))
	w.host("ip", "addr", "add", "192.0.2.1/24", "dev", "nic0")
	w.host("ip", "link", "set", "nic0", "up")
	for _, args := range []string{"ip addr add 192.0.2.2/24 dev nic0", "ip link set nic0 up", "ip route add 10.0.0.31/32 via 192.0.2.1"} {
		_, err := w.two.Leaf.Exec(ctx, strings.Fields(args)...)
		w.must(err)
	}

	beside, announced := w.ids(l, "netns", "frr"), w.announced(l)
	w.must(l.compose(ctx, "up", "--detach"))
	w.again(l, "vtepd")
	if now := w.ids(l, "netns", "frr"); !slices.Equal(now, beside) {
		w.Errorf("the containers beside vtepd are %q, were %q", now, beside)
	}
	before := w.settled(l.Side, vnis, address)
	w.few(l)
	links := w.links(l)

	c.Endpoints = "  vtep1:\n    ipvlan: {parent: nic0, parentNetns: host}\n    address: {pool: vteps, prefer: 10.0.0.31}\n"
	c.MoreVNIs = "  300: {endpoint: vtep1}\n"
	w.must(l.Drop(c.YAML()))
	_, err = l.Settle(w.within(4*time.Minute), "has an endpoint on the host's link", func(n status.Snapshot) error {
		if n.Condition != status.Idle || n.Generation == before.Generation {
			return errors.New("not at rest")
		}
		return nil
	})
	w.must(err)
	w.hears(l, sorted(announced, "10.0.0.31/32", "VNI 300 at 10.0.0.31"))
	w.note("leaf2, over the host's link: %s", w.beside(w.two, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "5", "-I", "10.0.0.12", "10.0.0.31"))

	_, err = l.VTEPD(ctx, "rollback")
	w.must(err)
	w.hears(l, announced)
	w.settled(l.Side, vnis, address)
	if now := w.links(l); now != links {
		w.Errorf("links:\n%s\nwere:\n%s", now, links)
	}
	w.host("ip", "link", "del", "nic0")
}

// links are a leaf's and the host's.
func (w *world) links(l *leaf) string {
	w.Helper()
	return w.beside(l, "ip", "-br", "link") + w.host("ip", "-br", "link")
}

// sorted is a list with more in it.
func sorted(list []string, more ...string) []string {
	list = slices.Concat(list, more)
	slices.Sort(list)
	return list
}

// image holds the image to its bound; the engine builds the same from the Dockerfile.
func (w *world) image() {
	w.Helper()
	i, err := w.engine.image(w.within(time.Minute), "vtepd:latest")
	w.must(err)
	w.must(w.engine.build(w.within(2*time.Minute), "../..", "vtepd:built", i.Config.Labels["org.opencontainers.image.version"]))
	built, err := w.engine.image(w.within(time.Minute), "vtepd:built")
	w.must(err)
	built.Config.Image = "" // the step before the last, by which the engine remembers what it has built
	if diff := cmp.Diff(i.Config, built.Config); diff != "" {
		w.Errorf("(-make image +Dockerfile):\n%s", diff)
	}
	w.note("the image has %.1f MB", float64(i.Size)/1e6)
	if i.Size >= 30e6 {
		w.Errorf("the image has %d bytes", i.Size)
	}
}

// healthy waits for the engine's own look at a sidecar.
func (w *world) healthy(l *leaf) {
	w.Helper()
	w.must(lab.Eventually(w.within(2*time.Minute), l.container("vtepd")+"'s health", func(ctx context.Context) error {
		c, err := w.engine.inspect(ctx, l.container("vtepd"))
		if err == nil && c.State.Health.Status != "healthy" {
			err = fmt.Errorf("%+v", c.State.Health)
		}
		return err
	}))
	w.note("%s is healthy, says the engine", l.container("vtepd"))
}
