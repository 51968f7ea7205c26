//go:build guest

package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vtepd/e2e/clab"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// What containerlab/cloud-ipvlan.clab.yml has.
const (
	cloudTopology = "../containerlab/cloud-ipvlan.clab.yml"
	nic1, nic2    = "02:00:00:00:00:11", "02:00:00:00:00:12"
	foreign1      = "02:00:00:00:01:11" // of leaf1:eth2
	foreign2      = "02:00:00:00:01:12" // of leaf2:eth2
)

// cloud is the network of a cloud that drops frames with foreign source MACs, and two leaves on instances there.
type cloud struct {
	*story
	host1, cloud *lab.Node
}

// TestCloud: where the network drops frames with foreign source MACs, an endpoint on a loopback and one on a macvlan are cut
// off, and one on an ipvlan of the NIC's works, and is re-addressed without loss.
func TestCloud(t *testing.T) {
	l := lab.New(t, cloudTopology, lab.Options{})
	s := cloud{story: &story{T: t, lab: l}, host1: l.Node("host1"), cloud: l.Node("cloud")}
	s.one, s.two = fabric.Sides(l)
	ctx := s.within(2 * time.Minute)
	s.must(l.WaitBGP(ctx))
	for _, side := range []*fabric.Side{s.one, s.two} {
		s.must(side.Start(ctx))
		s.must(lab.Eventually(ctx, "vtepd's socket", func(ctx context.Context) error { _, err := side.Status(ctx); return err }))
	}
	one, two := s.shipped("leaf1"), s.shipped("leaf2")
	const ipvlan = "ipvlan: {parent: eth1, parentNetns: /proc/1/ns/net}"

	t.Log("loopback endpoints, on leaves that are bridged to the NICs: BGP has it all, and the cloud drops every packet")
	s.both(changed(t, one, ipvlan, "loopback: {}"), changed(t, two, ipvlan, "loopback: {}"))
	s.run(s.one.Leaf, "ip", "link", "set", "eth3", "up", "master", "br100")
	s.run(s.two.Leaf, "ip", "link", "set", "eth3", "up", "master", "br100")
	s.attach("bridged")
	s.allow(foreign1, "eth1")
	s.allow(foreign2, "eth2")
	s.must(s.answers(s.host1, "172.16.100.2"))
	s.forbid(foreign1, "eth1")
	s.forbid(foreign2, "eth2")
	if n := s.dropped(s.host1, "172.16.100.2", foreign1, "pings in VXLAN", isMarked); n != 5 {
		t.Errorf("%d of 5 pings came as far as the cloud", n)
	}
	s.attach("routed")

	t.Log("a macvlan of the NIC's")
	const macvlan = "02:00:00:00:02:11"
	// The sidecar is in the leaf's network namespace, and sees the processes of the instance.
	s.run(s.one.Sidecar, "sh", "-c", "nsenter --net=/proc/1/ns/net ip link add mv0 link eth1 address "+macvlan+" netns $$ type macvlan mode bridge")
	s.run(s.one.Leaf, "ip", "link", "set", "mv0", "up")
	s.run(s.one.Leaf, "ip", "addr", "add", "192.0.2.31/32", "dev", "mv0")
	s.dropped(s.cloud, "192.0.2.31", macvlan, "ARP answers", isARP)
	s.allow(macvlan, "eth1")
	s.must(s.answers(s.cloud, "192.0.2.31"))
	s.forbid(macvlan, "eth1")
	s.run(s.one.Leaf, "ip", "link", "del", "mv0")

	t.Log("an ipvlan of the NIC's: the address kept, then another one under traffic")
	nics := s.watch(s.cloud, "eth1", "eth2")
	s.both(one, two)
	s.must(s.answers(s.host1, "172.16.100.2"))
	tr, err := l.StartTraffic(s.within(2*time.Minute), lab.TrafficOptions{
		Ours: "leaf1", Flows: lab.Between("host1", "172.16.100.1", "host2", "172.16.100.2"),
		Parents: map[string]clab.Endpoint{"leaf1": {Node: "vm1", Interface: "eth1"}, "leaf2": {Node: "vm2", Interface: "eth1"}},
	})
	s.must(err)
	s.carry(s.one, changed(t, one, "10.0.0.11", "10.0.0.21"), "10.0.0.21")
	s.account(tr)
	for port, nic := range map[string]string{"eth1": nic1, "eth2": nic2} {
		frames, err := nics[port].Stop()
		s.must(err)
		from := map[string]int{}
		for _, f := range frames {
			if !f.Out {
				from[f.Src]++
			}
		}
		t.Logf("cloud:%s: frames by source MAC: %v", port, from)
		if len(from) != 1 || from[nic] == 0 {
			t.Errorf("cloud:%s has seen %v, not %s alone", port, slices.Sorted(maps.Keys(from)), nic)
		}
	}
}

// shipped is the file that the topology's README has one drop.
func (s cloud) shipped(leaf string) fabric.Config {
	s.Helper()
	text, err := os.ReadFile("../containerlab/cloud-ipvlan/" + leaf + "/vtepd.yaml")
	s.must(err)
	return fabric.Config{Text: string(text), VNIs: []int{100}}
}

// changed is a file with one thing in another's place.
func changed(t *testing.T, c fabric.Config, from, to string) fabric.Config {
	t.Helper()
	if strings.Count(c.Text, from) != 1 {
		t.Fatalf("%q isn't there once:\n%s", from, c.Text)
	}
	c.Text = strings.Replace(c.Text, from, to, 1)
	return c
}

// both has the two leaves carry out a file each at once: with VTEPs .11 and .12.
func (s cloud) both(one, two fabric.Config) {
	s.Helper()
	g, ctx := errgroup.WithContext(s.within(3 * time.Minute))
	g.Go(func() error { _, err := s.one.Carry(ctx, one, "10.0.0.11"); return err })
	g.Go(func() error { _, err := s.two.Carry(ctx, two, "10.0.0.12"); return err })
	s.must(g.Wait())
}

func (s cloud) run(n *lab.Node, args ...string) {
	s.Helper()
	_, err := n.Exec(s.within(time.Minute), args...)
	s.must(err)
}

// attach lays the way between the endpoints: over a bridge in each instance, or through the instances as deployed.
func (s cloud) attach(way string) {
	s.Helper()
	s.run(s.lab.Node("vm1"), "/bin/sh", "/attach.sh", "vm", way, "192.0.2.11/24")
	s.run(s.lab.Node("vm2"), "/bin/sh", "/attach.sh", "vm", way, "192.0.2.12/24")
	s.run(s.one.Leaf, "/bin/sh", "/attach.sh", "leaf", way, "192.0.2.21", "192.0.2.22", "10.0.0.12")
	s.run(s.two.Leaf, "/bin/sh", "/attach.sh", "leaf", way, "192.0.2.22", "192.0.2.21", "10.0.0.11")
}

// allow has the cloud let in a MAC at a port, beside the NIC's, and forbid undoes it: what works between the two and not
// afterwards is stopped by the cloud's filter and by nothing else.
func (s cloud) allow(mac, port string) {
	s.Helper()
	s.run(s.cloud, "bridge", "fdb", "add", mac, "dev", port, "master", "static")
}

func (s cloud) forbid(mac, port string) {
	s.Helper()
	s.run(s.cloud, "bridge", "fdb", "del", mac, "dev", port, "master", "static")
}

// answers waits until an address answers a node.
func (s cloud) answers(from *lab.Node, to string) error {
	return lab.Eventually(s.within(2*time.Minute), from.Name+" reaches "+to, func(ctx context.Context) error {
		_, err := from.Exec(ctx, "ping", "-n", "-c", "1", "-W", "1", to)
		return err
	})
}

// watch records what passes some ports of a node.
func (s cloud) watch(n *lab.Node, ports ...string) map[string]*lab.Watch {
	s.Helper()
	out := map[string]*lab.Watch{}
	for _, p := range ports {
		w, err := n.Watch(p)
		s.must(err)
		out[p] = w
	}
	return out
}

// dropped pings an address that must not answer, and shows why: frames that have a foreign source MAC and are of that kind come in
// at cloud:eth1, and go no further, neither into the cloud nor out of its other port.
func (s cloud) dropped(from *lab.Node, to, mac, what string, is func(lab.Frame) bool) (came int) {
	s.Helper()
	seen := s.watch(s.cloud, "eth1", "eth2", "vpc")
	out, err := from.Exec(s.within(time.Minute), "ping", "-n", "-c", "5", "-i", "0.3", "-W", "1", "-p", hex.EncodeToString([]byte(marker)), to)
	if err == nil || !strings.Contains(out, "100% packet loss") {
		s.Errorf("%s reaches %s: %v\n%s", from.Name, to, err, out)
	}
	went := 0
	for port, w := range seen {
		frames, err := w.Stop()
		s.must(err)
		for _, f := range frames {
			switch {
			case f.Src != mac:
			case port == "eth1" && !f.Out && is(f):
				came++
			case port != "eth1":
				went++
			}
		}
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, "packets transmitted") {
			s.Logf("%s -> %s: %s; %s from %s: %d came in at cloud:eth1; all frames of that MAC that went further: %d", from.Name, to, strings.TrimSpace(line), what, mac, came, went)
		}
	}
	if came == 0 || went != 0 {
		s.Errorf("%s from %s: %d came in, %d frames went further", what, mac, came, went)
	}
	return came
}

// marker is in the payload of the pings that are looked for in other packets.
const marker = "\xc1\x0d\xc1\x0d\xc1\x0d\xc1\x0d"

func isMarked(f lab.Frame) bool { return bytes.Contains(f.Data, []byte(marker)) }

func isARP(f lab.Frame) bool { return f.Data[12] == 0x08 && f.Data[13] == 0x06 }
