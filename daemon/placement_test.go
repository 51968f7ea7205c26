package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vtepd/daemon/config"
	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/daemon/txn"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
)

// placedAt is a config with one endpoint and a VNI.
func placedAt(placement, address string) string {
	return "version: 1\nnode: {name: r1, index: 7}\npools: {p4: {addresses: [10.255.0.0/28]}}\nendpoints:\n  e0: {" + placement + ", address: " + address +
		"}\nvnis: {100: {endpoint: e0}}\ntransaction: {timeout: 3s}\n"
}

const (
	onEth1    = "ipvlan: {parent: eth1}"
	onLo      = "loopback: {}"
	byCNI     = "cni: {conflist: /etc/cni/eth1}"
	byCNI2    = "cni: {conflist: /etc/cni/eth2}"
	byOther   = "cni: {conflist: /etc/cni/eth1, interfaceName: uplink0}"
	anyone    = "{pool: p4}"
	preferred = "{pool: p4, prefer: 10.255.0.9}"
)

// TestPlacementChanges walks each change of placement with all that can be in its way, as the central test does, and without
// a word that a disruption is allowed: none of them is one.
func TestPlacementChanges(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	was := checks.Value.String()
	if err := checks.Value.Set("1"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = checks.Value.Set(was) }()
	for _, c := range []struct {
		name, from, to string
		handover       bool
	}{
		{"loopback to ipvlan", placedAt(onLo, anyone), placedAt(onEth1, anyone), false},
		{"ipvlan to CNI on another parent", placedAt(onEth1, anyone), placedAt(byCNI2, anyone), false},
		{"ipvlan to CNI on the same parent", placedAt(onEth1, anyone), placedAt(byCNI, anyone), true},
		{"CNI to ipvlan on the same parent", placedAt(byCNI, anyone), placedAt(onEth1, anyone), true},
		{"CNI to loopback", placedAt(byCNI, anyone), placedAt(onLo, anyone), false},
		{"loopback to CNI", placedAt(onLo, anyone), placedAt(byCNI, anyone), false},
		{"another name", placedAt(byCNI, anyone), placedAt(byOther, anyone), true},
		{"another address", placedAt(byCNI, anyone), placedAt(byCNI, preferred), false},
		{"the endpoint goes", placedAt(byCNI, anyone), "version: 1\nnode: {name: r1}\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sum tally
			synctest.Test(t, func(st *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					p := way(rt, &sum, func() string { return memoryDir(st) }, c.from, c.to, 0)
					held := strings.Contains(p.String(), "expose hold-")
					if len(p.Disruptions) > 0 || held != c.handover {
						t.Errorf("disruptions %v, handover %t:\n%s", p.Disruptions, held, p)
					}
				})
			})
			t.Logf("ran=%d ended_a=%d ended_b=%d between=%d", sum.ran, sum.a, sum.b, sum.ran-sum.a-sum.b)
		})
	}
}

// prepared is a look at a config that parses.
func (w *world) prepared(t *testing.T, text string) Prepared {
	t.Helper()
	cfg, err := config.Parse("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Prepare(context.Background(), w.ports, cfg, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAttachmentSteps: what each failure on the way to a new attachment leaves behind, with the old one's address, cache entry,
// host route and VNI in their places.
func TestAttachmentSteps(t *testing.T) {
	from, to := placedAt(byCNI, anyone), placedAt(byCNI, preferred)
	for _, c := range []struct {
		name  string
		with  func(w *world)
		phase plan.Phase
		words string
	}{
		{"ADD refused", func(w *world) { w.cni.FailAt(w.cni.Calls()+1, errors.New("no room")) }, plan.Expose, "no room"},
		{"ADD done and the address missing", func(w *world) {
			w.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
				if op.Verb == dataplane.Adopt && when == fake.Before {
					l := op.Link
					l.Addrs, l.Owner = nil, ""
					w.kernel.Add(l)
				}
			})
		}, plan.Expose, "has addresses none, wanted 10.255.0.9/32"},
		{"verification failed", func(w *world) { w.cni.FailVerb("CHECK", errors.New("not as it was made")) }, plan.Expose, "not as it was made"},
		{"FRR refused", func(w *world) { w.frr.FailAt(1, errors.New("% no")) }, plan.Announce, "% no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(memoryDir(t))
				w.reach(t, from)
				was := w.facts(t)
				p := w.prepared(t, to)
				c.with(w)
				err := w.runner(w.ports.Journal).Run(context.Background(), p.Plan)
				if err == nil || !strings.Contains(err.Error(), c.words) || !strings.HasPrefix(err.Error(), string(c.phase)+": ") || !strings.HasSuffix(err.Error(), "; everything is as it was") {
					t.Fatalf("%v", err)
				}
				w.cni.Restart()
				if now := w.facts(t); now != was {
					t.Errorf("-want +got:\n%s", cmp.Diff(was, now))
				}
			})
		})
	}
	t.Run("DEL of the old refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(memoryDir(t))
			w.reach(t, from)
			old := w.cni.State()
			p := w.prepared(t, to)
			w.cni.FailVerb("DEL", errors.New("busy"))
			x := w.runner(w.ports.Journal)
			var words []string
			x.Report = func(e txn.Event) {
				if e.Retry && len(words) < 3 {
					words = append(words, e.Err.Error())
					if left := w.cni.State(); !slices.Contains(left, old[0]) {
						t.Errorf("the old cache entry is gone: %v", left)
					}
					if len(words) == 3 {
						w.cni.FailVerb("DEL", nil)
					}
				}
			}
			if err := x.Run(context.Background(), p.Plan); err != nil {
				t.Fatal(err)
			}
			if len(words) != 3 || !strings.Contains(words[0], "CNI DEL of net1-") || !strings.Contains(words[0], "busy") {
				t.Errorf("%q", words)
			}
			if left := w.cni.State(); len(left) != 2 || slices.Contains(left, old[0]) {
				t.Errorf("left: %v", left)
			}
		})
	})
}

// TestAttachmentDrift: whatever is wrong with an attachment, it is made anew while its address stays.
func TestAttachmentDrift(t *testing.T) {
	for name, spoil := range map[string]func(w *world, link string){
		"CHECK fails":          func(w *world, link string) { w.cni.SetDrift(link, errors.New("mode l2")) },
		"the cache entry gone": func(w *world, link string) { w.cni.LoseCache(link) },
		"the record gone":      func(w *world, link string) { w.cni.LoseRecord(link) },
		"the link gone":        func(w *world, link string) { w.kernel.Remove(link) },
		"the address gone": func(w *world, link string) {
			l, _ := dataplane.Find(w.kernel.Links(), link)
			l.Addrs = nil
			w.kernel.Add(l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(memoryDir(t))
				w.reach(t, placedAt(byCNI, anyone))
				was := w.facts(t)
				link := w.prepared(t, placedAt(byCNI, anyone)).Plan.New.Attachments[0].Link
				spoil(w, link)
				w.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
					w.cni.SetDrift(link, nil)
					addr := netip.MustParsePrefix("10.255.0.0/32")
					has := slices.ContainsFunc(w.kernel.Links(), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, addr) })
					if !has && when == fake.After && op.Verb != dataplane.Create && !strings.HasSuffix(name, "link gone") && !strings.HasPrefix(name, "the address") {
						t.Errorf("nobody has the address after %s", op)
					}
				})
				w.reach(t, placedAt(byCNI, anyone))
				if now := w.facts(t); now != was {
					t.Errorf("-want +got:\n%s", cmp.Diff(was, now))
				}
			})
		})
	}
}

// TestPlacementRefused: what can't be done says so by name, and nothing is touched.
func TestPlacementRefused(t *testing.T) {
	l2 := dataplane.Link{Name: "l2c", Kind: dataplane.IPVLAN, Parent: "eth1", Mode: "l2", Up: true}
	split := `{"cniVersion": "1.0.0", "name": "u", "plugins": [{"type": "ipvlan", "mode": "l3", "master": "eth1", "ipam": {"type": "static"}}, {"type": "tuning", "capabilities": {"ips": true}}]}`
	lacking := "operation not supported (Unknown device type)"
	lo := "version: 1\nnode: {name: r1}\nloopbacks:\n  lo0: {role: vtep, ipv4: {static: 10.0.0.1}}\n  lo1: {role: vtep, ipv4: {static: 10.0.0.2}}\n"
	for _, c := range []struct {
		name, text string
		with       func(w *world)
		want       []string
	}{
		{
			"no file", placedAt("cni: {conflist: /etc/cni/none}", anyone), nil,
			[]string{"f:5:24: endpoints.e0.cni.conflist: can't be read: open /etc/cni/none: no such file or directory"},
		},
		{
			"no plugins at all", placedAt(byCNI, anyone), func(w *world) { w.ports.CNI = nil },
			[]string{"f:5:24: endpoints.e0.cni.conflist: there is nothing here that runs CNI plugins; use ipvlan or loopback"},
		},
		{
			"a split entry", placedAt(byCNI, anyone), func(w *world) { w.cni.SetFile("/etc/cni/eth1", split) },
			[]string{"f:5:24: endpoints.e0.cni.conflist: /etc/cni/eth1: plugins[0].capabilities.ips is missing; must be true in the same entry as the rest; that of plugins[1] doesn't count"},
		},
		{"plugins missing", placedAt(byCNI, anyone), func(w *world) { w.cni.SetLacking("ipvlan", "static") }, []string{
			"f:5:24: endpoints.e0.cni.conflist: the plugin ipvlan is not in /usr/lib/cni:/opt/cni/bin; install it, or name its directory",
			"f:5:24: endpoints.e0.cni.conflist: the plugin static is not in /usr/lib/cni:/opt/cni/bin; install it, or name its directory",
		}},
		{
			"master missing", placedAt(byCNI, anyone), func(w *world) { w.kernel.Remove("eth1") },
			[]string{"f:5:24: endpoints.e0.cni.conflist: no link eth1 in the router's namespace; links there: eth2"},
		},
		{
			"master in mode l2", placedAt(byCNI, anyone), func(w *world) { w.kernel.Add(l2) },
			[]string{"f:5:24: endpoints.e0.cni.conflist: eth1 has the ipvlan l2c in mode l2, and all ipvlans of a parent share one mode; vtepd needs l3"},
		},
		{
			"no ipvlan", placedAt(byCNI, anyone), func(w *world) { w.kernel.SetLacks(dataplane.IPVLAN, lacking) },
			[]string{"f:4:1: endpoints: the kernel can't make ipvlan links: operation not supported (Unknown device type); load the module ipvlan, or boot a kernel that has it"},
		},
		{
			"no loopbacks", lo, func(w *world) { w.kernel.SetLacks(dataplane.Dummy, lacking) },
			[]string{"f:3:1: loopbacks: this data plane has no loopbacks: the kernel can't make dummy links: operation not supported (Unknown device type); load the module dummy, or boot a kernel that has it"},
		},
		{
			"an old FRR", strings.Replace(placedAt(byCNI, "{static: '2001:db8::1'}"), "pools: {p4: {addresses: [10.255.0.0/28]}}\n", "", 1), func(w *world) { w.frr.SetVersion(frr.Version{Major: 10, Minor: 3}) },
			[]string{"f:5:24: vnis.100.endpoint: VTEP 2001:db8::1 is IPv6, which needs FRR 10.6 or newer; this is 10.3"},
		},
		{
			"a loopback of somebody's", lo, func(w *world) { w.kernel.Add(dataplane.Link{Name: "lo1", Kind: dataplane.Dummy}) },
			[]string{"f:5:3: loopbacks.lo1: the name lo1 is taken by a link that vtepd didn't make (a dummy); rename that one, or choose another name"},
		},
		{"another router's address", lo, func(w *world) {
			w.frr.SetSources(netip.MustParsePrefix("10.0.0.2/32"), frr.Source{Peer: "10.1.0.2", RouterID: netip.MustParseAddr("10.9.9.9"), Origin: netip.MustParseAddr("10.9.9.9")})
		}, []string{"f:5:21: loopbacks.lo1.ipv4: 10.0.0.2/32 is announced by another router already: peer 10.1.0.2 (router id 10.9.9.9); a VTEP address belongs to one router"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(memoryDir(t))
			w.reach(t, "version: 1\nnode: {name: r1}\n")
			if c.with != nil {
				c.with(w)
			}
			was, ops, calls := w.facts(t), w.kernel.Ops(), w.cni.Calls()
			p := w.prepared(t, c.text)
			var got []string
			for _, r := range p.Refusals {
				got = append(got, r.Error())
			}
			if diff := cmp.Diff(c.want, got); diff != "" || !p.Plan.Empty() {
				t.Errorf("-want +got:\n%s\n%s", diff, p.Plan)
			}
			if w.facts(t) != was || w.kernel.Ops() != ops || w.cni.Calls() != calls {
				t.Error("something was touched")
			}
		})
	}
}

func fabricLoopbacks(lo0 string, more ...string) string {
	return "version: 1\nnode: {name: r1, index: 7}\npools:\n  ids: {addresses: [10.252.0.0/31]}\n  ids6: {addresses: ['2001:db8:252::/127']}\n  p1: {addresses: [10.250.0.0/31]}\n" +
		"loopbacks:\n  lo0: " + lo0 + "\n  lo1: {role: vtep, ipv4: {pool: ids}, ipv6: {pool: ids6}}\n" + strings.Join(more, "\n") + "\n"
}

const rid = "{role: router-id, ipv4: {pool: ids}, ipv6: {pool: ids6}}"

// TestLoopbacks: each has its own condition; one that waits holds up nobody, and is made when there is a value.
func TestLoopbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(memoryDir(t))
		w.frr.SetSessions()
		conditions := func(text string) []string {
			t.Helper()
			var out []string
			for _, l := range w.prepared(t, text).Loopbacks {
				out = append(out, fmt.Sprintf("%s %s %v %t %s", l.Name, l.Role, l.Addresses, l.Ready, l.Reason))
			}
			return out
		}
		is := func(got []string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
		one := fabricLoopbacks(rid, "  lo2: {role: anycast-vtep, ipv4: {pool: ids, group: g}}")
		is(conditions(one), "lo0 router-id [] false NotMade", "lo1 vtep [] false NotMade", "lo2 anycast-vtep [] false PoolExhausted")
		w.reach(t, one)
		is(conditions(one),
			"lo0 router-id [10.252.0.0 2001:db8:252::] true Ready", "lo1 vtep [10.252.0.1 2001:db8:252::1] true Ready", "lo2 anycast-vtep [] false PoolExhausted")
		if msgs := w.prepared(t, one).Ailing; len(msgs) != 1 || !strings.HasPrefix(msgs[0], "f:10:42: loopbacks.lo2.ipv4.pool: pool ids exhausted: ") {
			t.Errorf("%q", msgs)
		}
		if o, _ := w.frr.Observe(t.Context(), frr.Query{Config: true}); o.Instance.Configured != netip.MustParseAddr("10.252.0.0") {
			t.Errorf("router id %s", o.Instance.Configured)
		}
		grown := strings.Replace(one, "10.252.0.0/31", "10.252.0.0/30", 1)
		w.reach(t, grown)
		is(conditions(grown), "lo0 router-id [10.252.0.0 2001:db8:252::] true Ready", "lo1 vtep [10.252.0.1 2001:db8:252::1] true Ready",
			"lo2 anycast-vtep [10.252.0.2] true Ready")
		// A preference that can't be had: what is there stays as it is, and says so.
		stuck := strings.Replace(grown, rid, strings.Replace(rid, "pool: ids}", "pool: ids, prefer: 10.252.0.1}", 1), 1)
		w.reach(t, stuck)
		is(conditions(stuck), "lo0 router-id [10.252.0.0 2001:db8:252::] false PreferredValueUnavailable", "lo1 vtep [10.252.0.1 2001:db8:252::1] true Ready",
			"lo2 anycast-vtep [10.252.0.2] true Ready")
		// A new address comes before the old one goes, and the router id goes along while no session is there.
		moved := strings.Replace(grown, rid, strings.Replace(rid, "pool: ids}", "pool: ids, prefer: 10.252.0.3}", 1), 1)
		w.reach(t, moved)
		is(conditions(moved)[:1], "lo0 router-id [10.252.0.3 2001:db8:252::] true Ready")
		w.reach(t, "version: 1\nnode: {name: r1}\n")
		if got, want := w.facts(t), newWorld(memoryDir(t)).facts(t); got != want {
			t.Errorf("left behind -want +got:\n%s", cmp.Diff(want, got))
		}
	})
}

// TestNotIdleWhileOneWaits: what could be made is committed, and nobody is told meanwhile that this was all.
func TestNotIdleWhileOneWaits(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(fabricLoopbacks(rid, "  lo2: {role: anycast-vtep, ipv4: {pool: ids, group: g}}"))
		r.start()
		s, _ := r.board.Get()
		if s.Condition != status.Waiting || s.Generation != 1 || !strings.Contains(strings.Join(s.Messages, "\n"), "loopbacks.lo2.ipv4.pool: pool ids exhausted: ") {
			t.Errorf("%s, generation %d: %q", s.Condition, s.Generation, s.Messages)
		}
		for _, line := range r.log.took() {
			if strings.HasPrefix(line, "INFO idle") {
				t.Errorf("logged: %s", line)
			}
		}
	})
}

// TestRouterID: the operator's stays, and one in use stays unless that is allowed.
func TestRouterID(t *testing.T) {
	text := fabricLoopbacks(rid)
	t.Run("the operator's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(memoryDir(t))
			theirs := netip.MustParseAddr("10.0.0.1")
			w.frr.SetInstance(frr.Instance{ASN: 65001, RouterID: theirs, Configured: theirs})
			w.reach(t, text)
			if lo := w.prepared(t, text).Loopbacks[0]; !lo.Ready || lo.Message != "FRR has `bgp router-id 10.0.0.1`, which vtepd didn't write: it is left as it is" {
				t.Errorf("%+v", lo)
			}
			w.reach(t, "version: 1\nnode: {name: r1}\n")
			if o, _ := w.frr.Observe(t.Context(), frr.Query{Config: true}); o.Instance.Configured != theirs {
				t.Errorf("router id %s", o.Instance.Configured)
			}
		})
	})
	t.Run("in use", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(memoryDir(t))
			w.reach(t, text)
			lo := w.prepared(t, text).Loopbacks
			want := "f:8:15: loopbacks.lo0.role: FRR's sessions run with the router id 10.0.0.1, and would restart with 10.252.0.0; set transaction.allowDisruptive to true to change it, or give --allow-disruptive to `vtepd apply` or `vtepd rollback`"
			if lo[0].Ready || lo[0].Reason != "RouterIDInUse" || lo[0].Message != want || !lo[1].Ready {
				t.Errorf("%+v", lo)
			}
			allowed := text + "transaction: {allowDisruptive: true}\n"
			if p := w.prepared(t, allowed).Plan; fmt.Sprint(p.Disruptions) != "[bgp router-id: changes from 10.0.0.1 to 10.252.0.0: the sessions with 10.1.0.2 restart, and are away until they connect again by FRR's and the peers' own timers (`timers connect`)]" {
				t.Errorf("%v", p.Disruptions)
			}
			w.reach(t, allowed)
			if lo := w.prepared(t, allowed).Loopbacks[0]; !lo.Ready {
				t.Errorf("%+v", lo)
			}
			if r := w.prepared(t, "version: 1\nnode: {name: r1}\n").Refusals; len(r) == 0 || !strings.Contains(r[0].Error(), "not hitless: bgp router-id: is taken back, and FRR chooses another one for 10.252.0.0: the sessions with 10.1.0.2 restart") {
				t.Errorf("%v", r)
			}
		})
	})
}
