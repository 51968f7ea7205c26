//go:build guest

package frrtest_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vtepd/frr"
	"vtepd/frr/frrtest"
	"vtepd/frr/vty"
)

// router is one FRR, zebra and bgpd, in a namespace of its own. FRR is the one at its usual paths, or below the
// directory that VTEPD_FRR_ROOT names, in which /proc is mounted.
type router struct {
	t    *testing.T
	name string
	root string
	dir  string // of its sockets
	vty  map[string]*vty.Client
}

func start(t *testing.T, name string) *router {
	t.Helper()
	r := &router{t: t, name: name, root: os.Getenv("VTEPD_FRR_ROOT"), vty: map[string]*vty.Client{}}
	// Without /var: below another root that is a link to this one's /run.
	r.dir = filepath.Join(r.root, "/run/frr", name)
	r.command("ip", "netns", "add", name)
	t.Cleanup(func() { r.command("ip", "netns", "del", name) })
	r.ip("link", "set", "lo", "up")
	for _, d := range []string{"/run/frr/" + name, "/var/lib/frr/" + name} {
		r.inRoot("mkdir", "-p", d)
		r.inRoot("chown", "frr:frr", "/run/frr", d)
		t.Cleanup(func() { r.inRoot("rm", "-r", d) })
	}
	for _, daemon := range []string{"zebra", "bgpd"} {
		args := slices.Concat([]string{"netns", "exec", name}, r.chroot("/usr/lib/frr/"+daemon, "-N", name, "--log", "stdout"))
		cmd := exec.Command("ip", args...)
		log, err := os.Create(filepath.Join(t.TempDir(), daemon+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Signal(syscall.SIGTERM)
			err := cmd.Wait()
			log.Close()
			if t.Failed() {
				text, _ := os.ReadFile(log.Name())
				t.Logf("%s %s: %v\n%s", name, daemon, err, text)
			}
		})
		wait(t, daemon+"'s socket", func() bool {
			c, err := vty.Dial(t.Context(), r.dir, daemon, time.Minute)
			if err == nil {
				r.vty[daemon] = c
				t.Cleanup(func() { c.Close() })
			}
			return err == nil
		})
	}
	return r
}

func (r *router) chroot(args ...string) []string {
	if r.root != "" {
		args = append([]string{"chroot", r.root}, args...)
	}
	return args
}

func (r *router) inRoot(args ...string) {
	r.t.Helper()
	args = r.chroot(args...)
	r.command(args[0], args[1:]...)
}

func (r *router) command(name string, args ...string) {
	r.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		r.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func (r *router) ip(args ...string) {
	r.t.Helper()
	r.command("ip", append([]string{"-n", r.name}, args...)...)
}

// ask sends a line to bgpd, and says whether it was accepted without a word.
func (r *router) ask(line string) (ok bool, text string) {
	r.t.Helper()
	text, rc, err := r.vty["bgpd"].Ask(r.t.Context(), line)
	if err != nil {
		r.t.Fatal(err)
	}
	return rc == 0 && text == "", text
}

// configure sends lines to bgpd, as an operator's configuration does.
func (r *router) configure(lines ...string) {
	r.t.Helper()
	for _, l := range slices.Concat([]string{"configure terminal"}, lines, []string{"end"}) {
		if ok, text := r.ask(l); !ok {
			r.t.Fatalf("%s: %q: %s", r.name, l, text)
		}
	}
}

func wait(t *testing.T, what string, ready func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ready(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// pair is two routers with one session in both unicast families, whose updates keep an interval of seconds.
func pair(t *testing.T, interval int) (a, b *router) {
	t.Helper()
	a, b = start(t, "frrtest-a"), start(t, "frrtest-b")
	a.ip("link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", b.name)
	for i, r := range []*router{a, b} {
		r.ip("addr", "add", fmt.Sprintf("192.0.2.%d/30", i+1), "dev", "up0")
		r.ip("addr", "add", fmt.Sprintf("2001:db8:1::%d/64", i+1), "dev", "up0", "nodad")
		r.ip("link", "set", "up0", "up")
		peer := fmt.Sprintf("neighbor 192.0.2.%d ", 2-i)
		r.configure(fmt.Sprintf("router bgp %d", 65001+i), fmt.Sprintf("bgp router-id 10.0.0.%d", i+1), "no bgp ebgp-requires-policy",
			peer+"remote-as external", peer+"timers connect 1", peer+fmt.Sprintf("advertisement-interval %d", interval),
			"address-family ipv4 unicast", peer+"activate", "address-family ipv6 unicast", peer+"activate")
	}
	v := vty.New(a.dir, time.Minute)
	defer v.Close()
	wait(t, "the session", func() bool {
		o, err := v.Observe(t.Context(), frr.Query{Sessions: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(o.Sessions) == 1 && o.Sessions[0].Established
	})
	return a, b
}

func (r *router) address(p netip.Prefix, there bool) {
	r.t.Helper()
	verb, args := "del", []string(nil)
	if there {
		verb = "add"
		if p.Addr().Is6() {
			args = []string{"nodad"}
		}
	}
	r.ip(append([]string{"addr", verb, p.String(), "dev", "lo"}, args...)...)
}

func (r *router) vxlan(made map[uint32]bool) func(uint32, netip.Addr) {
	return func(vni uint32, local netip.Addr) {
		r.t.Helper()
		dev, bridge, id := fmt.Sprintf("vx%d", vni), fmt.Sprintf("br%d", vni), fmt.Sprint(vni)
		if made[vni] {
			r.ip("link", "set", dev, "type", "vxlan", "id", id, "local", local.String())
			return
		}
		made[vni] = true
		r.ip("link", "add", bridge, "type", "bridge")
		r.ip("link", "add", dev, "type", "vxlan", "id", id, "local", local.String(), "dstport", "4789", "nolearning")
		r.ip("link", "set", dev, "master", bridge)
		r.ip("link", "set", dev, "up")
		r.ip("link", "set", bridge, "up")
	}
}

func TestReal(t *testing.T) {
	a, _ := pair(t, 0)
	v := vty.New(a.dir, time.Minute)
	defer v.Close()
	id := netip.MustParseAddr("10.0.0.1")
	instance := frr.Instance{ASN: 65001, RouterID: id, Configured: id}
	frrtest.Run(t, frrtest.Subject{
		Router: v, Instance: instance, Peer: "192.0.2.2",
		Address: a.address,
		VNI:     a.vxlan(map[uint32]bool{}),
		Network: func(n frr.Network, there bool) {
			line := "network " + n.Prefix.String()
			if !there {
				line = "no " + line
			}
			a.configure("router bgp 65001", "address-family ipv4 unicast", line)
		},
		ForeignMap: func(there bool) {
			if there {
				a.configure("route-map VTEPD permit 10", "set metric 7")
			} else {
				a.configure("no route-map VTEPD")
			}
		},
	})

	// What is done is read once and not written: one round trip.
	edits := []frr.Edit{{Verb: frr.AddRouteMap, ASN: 65001}, {Verb: frr.AddNetwork, ASN: 65001, Prefix: netip.MustParsePrefix("10.255.0.1/32")}}
	for _, trips := range []uint64{1 + 4 + 5 + 1, 1} {
		before := v.RoundTrips()
		if err := v.Apply(t.Context(), edits); err != nil {
			t.Fatal(err)
		}
		if got := v.RoundTrips() - before; got != trips {
			t.Errorf("%d round trips, want %d", got, trips)
		}
	}
}

// FRR accepts every line that Render makes, without a word, and shows it as written; and refuses each of them broken.
func TestRealText(t *testing.T) {
	r := start(t, "frrtest-a")
	r.configure("router bgp 65001", "bgp router-id 10.0.0.1")
	four, six := netip.MustParsePrefix("10.255.0.1/32"), netip.MustParsePrefix("2001:db8:255::1/128")
	for _, tt := range []struct {
		edit frr.Edit
		line string // the one that is broken
		with string // what it becomes
		show string // a line of the running configuration then
	}{
		{frr.Edit{Verb: frr.AddRouteMap, ASN: 65001}, "route-map VTEPD permit 10", "route-map VTEPD permit 70000", "\nroute-map VTEPD permit 10\n description vtepd marks its host routes with this map\nexit\n"},
		{frr.Edit{Verb: frr.AddNetwork, ASN: 65001, Prefix: four}, "network 10.255.0.1/32 route-map VTEPD", "network 10.255.0.1/33 route-map VTEPD", "\n  network 10.255.0.1/32 route-map VTEPD\n"},
		{frr.Edit{Verb: frr.AddNetwork, ASN: 65001, Prefix: six}, "network 2001:db8:255::1/128 route-map VTEPD", "network 2001:db8:255::1/128 route-map VTEPD X", "\n  network 2001:db8:255::1/128 route-map VTEPD\n"},
		{frr.Edit{Verb: frr.AddEVPN, ASN: 65001}, "advertise-all-vni", "advertise-all-vnis", "\n  advertise-all-vni\n"},
	} {
		lines, err := frr.Render(tt.edit)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range lines {
			if l == tt.line {
				if ok, _ := r.ask(tt.with); ok {
					t.Errorf("%q is accepted", tt.with)
				}
				// A line that failed may have left the context.
				for _, again := range lines[:slices.Index(lines, tt.line)] {
					r.ask(again)
				}
			}
			if ok, text := r.ask(l); !ok {
				t.Errorf("%v: %q: %s", tt.edit, l, text)
			}
		}
		if _, text := r.ask(frr.CommandConfig); !strings.Contains(text, tt.show) {
			t.Errorf("%v: not shown:\n%s", tt.edit, text)
		}
		// The last of them first, because the map can't go before the networks.
		defer func() {
			lines, err := frr.Render(tt.edit.Inverse())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				if ok, text := r.ask(l); !ok {
					t.Errorf("%v: %q: %s", tt.edit.Inverse(), l, text)
				}
			}
			if _, text := r.ask(frr.CommandConfig); strings.Contains(text, tt.show) {
				t.Errorf("%v: still shown:\n%s", tt.edit.Inverse(), text)
			}
		}()
	}
}

// A route that an advertisement interval holds back is advertised by bgpd's account, and not by ours.
func TestRealQueued(t *testing.T) {
	a, _ := pair(t, 10)
	one, two := netip.MustParsePrefix("10.255.0.1/32"), netip.MustParsePrefix("10.255.0.2/32")
	a.address(one, true)
	a.address(two, true)
	v := vty.New(a.dir, time.Minute)
	defer v.Close()
	route := func(p netip.Prefix) frr.Route {
		o, err := v.Observe(t.Context(), frr.Query{Prefixes: []netip.Prefix{p}})
		if err != nil {
			t.Fatal(err)
		}
		return o.Routes[0]
	}
	if err := v.Apply(t.Context(), []frr.Edit{{Verb: frr.AddRouteMap, ASN: 65001}, {Verb: frr.AddNetwork, ASN: 65001, Prefix: one}}); err != nil {
		t.Fatal(err)
	}
	wait(t, "the first is sent", func() bool { return slices.Equal(route(one).AdvertisedTo, []string{"192.0.2.2"}) })
	if err := v.Apply(t.Context(), []frr.Edit{{Verb: frr.AddNetwork, ASN: 65001, Prefix: two}}); err != nil {
		t.Fatal(err)
	}
	wait(t, "the second waits", func() bool {
		r := route(two)
		if len(r.AdvertisedTo) > 0 {
			t.Fatalf("sent at once: %+v", r)
		}
		return slices.Equal(r.Queued, []string{"192.0.2.2"})
	})
	wait(t, "the second is sent", func() bool { return slices.Equal(route(two).AdvertisedTo, []string{"192.0.2.2"}) })
}
