package plan_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/desired"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

var update = flag.Bool("update", false, "write the golden files")

const head = "version: 1\nnode: {name: r1, index: 7}\npools: {vteps: {addresses: [10.255.0.0/24]}}\n"

var uplinks = dataplane.Observation{Links: []dataplane.Link{
	{Name: "eth1", Up: true, MTU: 1500},
	{Name: "eth2", Up: true, MTU: 9000},
}}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// wanted is the state for a config, and the ledger's answers for it: an endpoint of a pool gets what it prefers.
func wanted(t fataler, text string) (state.State, []alloc.Proposal) {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(head+text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	addrs := map[string]netip.Addr{}
	var proposals []alloc.Proposal
	var claims []state.Claim
	for _, e := range cfg.Endpoints {
		addr, fixed := e.Address.Fixed()
		if !fixed {
			addr = e.Address.Prefer
			p := alloc.Proposal{
				Claim:      alloc.Claim{Name: desired.ClaimName("r1", e.Name), Pool: e.Address.Pool, Kind: alloc.KindAddress},
				Allocation: alloc.Allocation{Name: alloc.Name(e.Address.Pool, addr.String()), Pool: e.Address.Pool, Value: addr.String()},
			}
			proposals = append(proposals, p)
			claims = append(claims, state.ClaimOf(p))
		}
		addrs[e.Name] = addr
	}
	return desired.Compute(cfg, desired.Given{Addrs: addrs, Claims: claims}, uplinks), proposals
}

func compute(t fataler, a, b string) plan.Plan {
	t.Helper()
	from, _ := wanted(t, a)
	to, proposals := wanted(t, b)
	return plan.Compute(from, to, input(proposals))
}

func input(proposals []alloc.Proposal) plan.Input {
	return plan.Input{
		VNIs:       []uint32{100, 1<<24 - 2},
		Generation: 7, Router: "r1", ASN: 65001, Proposals: proposals,
		Drain:   plan.Drained{Quiet: time.Second, Limit: 30 * time.Second},
		Timeout: 20 * time.Second, Undo: 3 * time.Minute,
	}
}

// text is the plan as people see it, and behind it the way back from its end.
func text(p plan.Plan) string {
	var b strings.Builder
	b.WriteString(p.String())
	b.WriteString("way back\n")
	for k := len(p.Steps) - 1; k >= 0; k-- {
		if undo := p.Steps[k].Undo; undo != nil {
			for i, line := range undo.Lines() {
				number := ""
				if i == 0 {
					number = fmt.Sprint(k + 1)
				}
				fmt.Fprintf(&b, "%2s %s\n", number, line)
			}
		}
	}
	return b.String()
}

const (
	one = `endpoints:
  vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps, prefer: 10.255.0.11}}
`
	readdressed = `endpoints:
  vtep0: {ipvlan: {parent: eth1}, address: {pool: vteps, prefer: 10.255.0.12}}
`
	reparented = `endpoints:
  vtep0: {ipvlan: {parent: eth2}, address: {pool: vteps, prefer: 10.255.0.11}}
`
	two = one + `  vtep1: {loopback: {}, address: {static: 10.0.0.1}, announce: none}
`
	vnis = `vnis:
  100: {endpoint: vtep0}
  101: {endpoint: vtep0}
  102: {endpoint: vtep0, vlan: 12}
  103: {endpoint: vtep0, vlan: 13}
vlanBridge: {name: br-evpn}
`
)

// TestGolden holds the order of the steps, what they say and the way back, for each kind of change.
func TestGolden(t *testing.T) {
	for _, c := range []struct{ name, a, b string }{
		{"first", "", two + vnis + "frr: {evpn: create}\n"},
		{"re-address", one + vnis, readdressed + vnis},
		{"re-parent", one + vnis, reparented + vnis},
		{"vni-added", one + vnis, one + strings.Replace(vnis, "vlanBridge", "  104: {endpoint: vtep0}\n  105: {endpoint: vtep0, vlan: 15, port: 4790}\nvlanBridge", 1)},
		{"vni-removed", one + vnis, one + strings.NewReplacer("  101: {endpoint: vtep0}\n", "", "  103: {endpoint: vtep0, vlan: 13}\n", "").Replace(vnis)},
		{"vni-moved", two + vnis, two + strings.Replace(vnis, "101: {endpoint: vtep0}", "101: {endpoint: vtep1}", 1)},
		{"endpoint-removed", two, one},
		{"last-removed", two + vnis + "frr: {evpn: create}\n", ""},
		{
			"everything",
			two + vnis,
			`endpoints:
  vtep0: {ipvlan: {parent: eth2}, address: {pool: vteps, prefer: 10.255.0.12}}
  vtep2: {loopback: {}, address: {static: 10.0.0.2}}
vnis:
  100: {endpoint: vtep0}
  101: {endpoint: vtep2, mtu: 1400}
  102: {endpoint: vtep0, vlan: 22}
  104: {endpoint: vtep2, vlan: 13}
  105: {endpoint: vtep2}
vlanBridge: {name: br-evpn}
frr: {evpn: create}
`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := text(compute(t, c.a, c.b))
			file := filepath.Join("testdata", c.name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRestore(t *testing.T) {
	to, _ := wanted(t, one)
	from := to
	from.Links = slices.Clone(to.Links)
	from.Links[0].Addrs, from.Links[0].Up = nil, false
	got := text(plan.Compute(from, to, input(nil)))
	const want = ` 1 expose   set vtep0-z3eji (10.255.0.11/32, parent eth1)
 2 verify   prove the new state in the kernel, in FRR's tables and in BGP: 1 links, 0 VNIs, 1 host routes
way back
 1 set vtep0-z3eji (parent eth1, down)
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestMapShared: with an operator's line on it, the route map is neither taken back nor retired.
func TestMapShared(t *testing.T) {
	a, _ := wanted(t, "")
	b, proposals := wanted(t, one)
	in := input(proposals)
	in.MapShared = true
	for _, p := range []plan.Plan{plan.Compute(a, b, in), plan.Compute(b, a, in)} {
		if strings.Contains(text(p), "remove-route-map") {
			t.Errorf("the map goes:\n%s", text(p))
		}
	}
}

// TestScouts: one for each address that is left or come to, with VNIs that are nobody's; none for an address that another VXLAN is on
// all the while, for one that keeps its address, or where nothing is known of the VNIs.
func TestScouts(t *testing.T) {
	other := strings.Replace(vnis, "101: {endpoint: vtep0}", "101: {endpoint: vtep1}", 1)
	for _, c := range []struct {
		name, a, b string
		taken      []uint32
		want       []string
	}{
		{"re-address", one + vnis, readdressed + vnis, []uint32{100, 1<<24 - 1}, []string{"16777214 10.255.0.11", "16777213 10.255.0.12"}},
		{"the config has the last VNI", one + vnis, readdressed + strings.Replace(vnis, "103:", "16777215:", 1), []uint32{100}, []string{"16777214 10.255.0.11", "16777213 10.255.0.12"}},
		{"a VNI moves to an address without any", two + vnis, two + other, []uint32{100}, []string{"16777215 10.0.0.1"}},
		{"to one that has another", two + other, two + strings.Replace(other, "100: {endpoint: vtep0}", "100: {endpoint: vtep1}", 1), []uint32{100}, nil},
		{"re-parent", one + vnis, reparented + vnis, []uint32{100}, nil},
		{"nothing is known", one + vnis, readdressed + vnis, nil, nil},
	} {
		a, _ := wanted(t, c.a)
		b, proposals := wanted(t, c.b)
		in := input(proposals)
		in.VNIs = c.taken
		var made, sent, gone, left []string
		add := func(to *[]string, l dataplane.Link) {
			if strings.HasPrefix(l.Owner, "scout/") && l.Kind == dataplane.VXLAN {
				*to = append(*to, fmt.Sprint(l.VNI, " ", l.Local))
			}
		}
		for _, s := range plan.Compute(a, b, in).Steps {
			for _, o := range s.Do.Kernel {
				switch o.Verb {
				case dataplane.Create:
					add(&made, o.Link)
				case dataplane.Delete:
					add(&gone, o.Link)
				}
			}
			if s.Undo != nil {
				for _, o := range s.Undo.Kernel {
					if o.Verb == dataplane.Delete {
						add(&left, o.Link)
					}
				}
			}
			if w := s.Do.Await; w != nil {
				for _, l := range w.Scouts {
					add(&sent, l)
				}
			}
		}
		for what, got := range map[string][]string{"made": made, "waited for": sent, "retired": gone, "undone": left} {
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s: -want +got:\n%s", c.name, what, diff)
			}
		}
	}
}

func TestNothing(t *testing.T) {
	s, proposals := wanted(t, two+vnis)
	p := plan.Compute(s, s, input(proposals))
	if !p.Empty() || p.String() != "nothing to do\n" {
		t.Errorf("got %q", p)
	}
	for i := range s.Links { // who made a link, and the MTU that a bridge took from its ports, are no difference
		s.Links[i].Group = 0x76000000
		if s.Links[i].Kind == dataplane.Bridge {
			s.Links[i].MTU = 1450
		}
	}
	again, _ := wanted(t, two+vnis)
	if p := plan.Compute(s, again, input(proposals)); !p.Empty() {
		t.Errorf("got %s", p)
	}
}

func TestNotesAndDisruptionsAreSaidFirst(t *testing.T) {
	p := compute(t, "", "endpoints: {vtep1: {loopback: {}, address: {static: 10.0.0.1}, announce: none}}\n")
	p.Notes = []string{"left alone"}
	p.Disruptions = []plan.Disruption{{Object: "vxlan100", Why: "stops"}}
	const want = `disruptive: vxlan100: stops
note: left alone
 1 stage    make in the shadow: vtep1-4kfxr (dummy of endpoint/vtep1) [10.0.0.1/32]
 2 expose   expose vtep1-4kfxr (10.0.0.1/32)
 3 verify   prove the new state in the kernel, in FRR's tables and in BGP: 1 links, 0 VNIs, 0 host routes
`
	if diff := cmp.Diff(want, p.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLedgerLines(t *testing.T) {
	_, proposals := wanted(t, one)
	got := plan.Action{Unacquire: proposals}.Lines()
	if want := []string{"give back 10.255.0.11 of pool vteps for r1/endpoint/vtep0"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestNewestGeneration(t *testing.T) {
	ours := func(group uint32) dataplane.Link {
		return dataplane.Link{Name: fmt.Sprint("l", group), Owner: "vni/1", Group: group}
	}
	for _, c := range []struct {
		name  string
		links []dataplane.Link
		want  uint64
	}{
		{"none", nil, 0},
		{"group 0", []dataplane.Link{ours(0)}, 0},
		{"the highest", []dataplane.Link{ours(0x76000000 + 4*9 + 2), ours(0x76000000 + 4*12 + 1), ours(0x76000000 + 4*3)}, 12},
		{"another's group", []dataplane.Link{ours(0x75ffffff), ours(0x76400000)}, 0},
		{"another's link", []dataplane.Link{{Name: "x", Group: 0x76000000 + 4*9}}, 0},
		{"the last that the numbers hold", []dataplane.Link{ours(0x763fffff)}, 1<<20 - 1},
	} {
		if got := plan.NewestGeneration(c.links); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	// What a plan makes, the next daemon finds again.
	p := compute(t, "", one+vnis)
	m := dataplane.NewModel(uplinks.Links)
	for _, s := range p.Steps {
		apply(t, m, s.Do)
	}
	if got := plan.NewestGeneration(m.Links()); got != 7 {
		t.Errorf("after a plan of generation 7: %d", got)
	}
}

func apply(t fataler, m *dataplane.Model, a plan.Action) {
	t.Helper()
	for _, op := range a.Kernel {
		changes, err := m.Plan(op)
		if err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		m.Do(changes)
	}
}

// drawConfig makes a config of few names and numbers, so that two have much in common.
func drawConfig(t *rapid.T, label string) string {
	var b strings.Builder
	n := rapid.IntRange(0, 3).Draw(t, label+" endpoints")
	if n > 0 {
		b.WriteString("endpoints:\n")
	}
	for i := range n {
		fmt.Fprintf(&b, "  e%d: {%s, address: {%s10.255.0.%d}, announce: %s}\n", i,
			rapid.SampledFrom([]string{"ipvlan: {parent: eth1}", "ipvlan: {parent: eth2}", "loopback: {}"}).Draw(t, label+" placement"),
			rapid.SampledFrom([]string{"pool: vteps, prefer: ", "static: 1"}).Draw(t, label+" kind"), // 110.255.0.x is in no pool
			1+i*4+rapid.IntRange(0, 3).Draw(t, label+" address"),
			rapid.SampledFrom([]string{"bgp", "bgp", "none"}).Draw(t, label+" announce"))
	}
	made, turn := 0, rapid.IntRange(0, 5).Draw(t, label+" turn")
	for v := 100; n > 0 && v < 106; v++ {
		if !rapid.Bool().Draw(t, label+" vni") {
			continue
		}
		if made++; made == 1 {
			b.WriteString("vlanBridge: {name: br-evpn}\nvnis:\n")
		}
		fmt.Fprintf(&b, "  %d: {endpoint: e%d%s}\n", v, rapid.IntRange(0, n-1).Draw(t, label+" endpoint"), rapid.SampledFrom([]string{
			"", "", fmt.Sprintf(", vlan: %d", 10+(v+turn)%6), fmt.Sprintf(", bridge: lan%d", (v+turn)%6), ", mtu: 1400", ", port: 4790",
		}).Draw(t, label+" more"))
	}
	fmt.Fprintf(&b, "frr: {evpn: %s}\n", rapid.SampledFrom([]string{"require", "create"}).Draw(t, label+" evpn"))
	return b.String()
}

func TestSameIsEmpty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawConfig(t, "a")
		if p := compute(t, text, text); !p.Empty() || len(p.Disruptions) > 0 {
			t.Fatalf("%s%s", text, p)
		}
	})
}

// router is what the steps of a plan change, without a kernel's or FRR's own mind.
type router struct {
	links *dataplane.Model
	frr   frr.Observation
}

func newRouter(s state.State) *router {
	r := &router{links: dataplane.NewModel(slices.Concat(uplinks.Links, s.Links))}
	r.frr.Instance.ASN, r.frr.EVPN = 65001, s.EVPN
	for _, p := range s.Routes {
		r.frr.Networks = append(r.frr.Networks, frr.Network{Prefix: p, RouteMap: frr.Mark})
		r.frr.RouteMap = frr.RouteMap{Present: true, Ours: true}
	}
	return r
}

func (r *router) apply(t fataler, a plan.Action) {
	t.Helper()
	apply(t, r.links, a)
	for _, e := range a.FRR {
		if _, err := e.Check(r.frr); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		r.frr = e.Applied(r.frr)
	}
}

// state is what is there, with every host route taken for vtepd's. The map of the routes is part of it.
func (r *router) state() (state.State, bool) {
	all := state.State{EVPN: true}
	for _, n := range r.frr.Networks {
		all.Routes = append(all.Routes, n.Prefix)
	}
	return state.Observed(dataplane.Observation{Links: r.links.Links()}, r.frr, all, nil), r.frr.RouteMap.Present
}

// TestDoAndUndo: the steps lead from a to b, and the inverses of every prefix of those before the point of no return lead
// back to a, from after the prefix and from the middle of its last step.
func TestDoAndUndo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		textA, textB := drawConfig(t, "a"), drawConfig(t, "b")
		a, _ := wanted(t, textA)
		b, proposals := wanted(t, textB)
		p := plan.Compute(a, b, input(proposals))
		a.Claims, b.Claims = nil, nil
		same := func(what string, r *router, want state.State) {
			t.Helper()
			got, mapped := r.state()
			if diff := state.Diff(got, want); len(diff) > 0 || mapped != (len(want.Routes) > 0) {
				t.Fatalf("%s: %v, route-map %t\n--- a\n%s--- b\n%s%s", what, diff, mapped, textA, textB, text(p))
			}
		}
		r := newRouter(a)
		for _, s := range p.Steps {
			r.apply(t, s.Do)
		}
		same("all steps", r, b)
		for k, last := range p.Steps {
			if last.Phase == plan.Retire && last.Undo != nil || last.Phase != plan.Retire && last.Undo == nil && len(last.Do.Kernel)+len(last.Do.FRR)+len(last.Do.Acquire) > 0 {
				t.Fatalf("step %d: an undo where none may be, or none where one must:\n%s", k+1, text(p))
			}
			if last.Phase == plan.Retire {
				continue
			}
			for part := range len(last.Do.Kernel) + len(last.Do.FRR) + 1 {
				r := newRouter(a)
				for _, s := range p.Steps[:k] {
					r.apply(t, s.Do)
				}
				half := last.Do
				half.Kernel, half.FRR = half.Kernel[:min(part, len(half.Kernel))], half.FRR[:min(part, len(half.FRR))]
				r.apply(t, half)
				for i := k; i >= 0; i-- {
					if undo := p.Steps[i].Undo; undo != nil {
						r.apply(t, *undo)
						r.apply(t, *undo) // an inverse that was cut short is done once more
					}
				}
				same(fmt.Sprintf("steps 1 to %d, %d parts of the last, undone", k+1, part), r, a)
			}
		}
	})
}

// TestOrder holds the rules that FRR and the kernel need, for any change.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compute(t, drawConfig(t, "a"), drawConfig(t, "b"))
		phase := -1
		var addEVPN, firstVXLAN, verify, oldRoute, announced, swapped []int
		for k, s := range p.Steps {
			if at := slices.Index(plan.Phases, s.Phase); at < phase {
				t.Fatalf("step %d: phase %s after %s:\n%s", k+1, s.Phase, plan.Phases[phase], p)
			} else {
				phase = at
			}
			switch {
			case s.Phase == plan.Verify:
				verify = append(verify, k)
			case s.Phase == plan.Swap:
				swapped = append(swapped, k)
				bridgeUp := false
				for _, op := range s.Do.Kernel {
					isBridge := op.Verb == dataplane.GroupUp && op.Group%4 == 1
					if bridgeUp && !isBridge {
						t.Fatalf("%s after the bridges went up:\n%s", op, p)
					}
					bridgeUp = bridgeUp || isBridge
				}
			}
			for _, op := range s.Do.Kernel {
				if op.Verb == dataplane.Create && op.Link.Kind == dataplane.VXLAN {
					firstVXLAN = append(firstVXLAN, k)
				}
			}
			for _, e := range s.Do.FRR {
				switch e.Verb {
				case frr.AddEVPN:
					addEVPN = append(addEVPN, k)
				case frr.AddNetwork:
					announced = append(announced, k)
				case frr.RemoveNetwork:
					oldRoute = append(oldRoute, k)
				}
			}
		}
		before := func(what string, x, y []int) {
			t.Helper()
			if len(x) > 0 && len(y) > 0 && slices.Max(x) >= slices.Min(y) {
				t.Fatalf("%s:\n%s", what, p)
			}
		}
		before("a VXLAN before the EVPN instance", addEVPN, firstVXLAN)
		before("an old host route goes before the new state is proven", verify, oldRoute)
		before("the swap before the new host routes", announced, swapped)
		if len(swapped) > 1 {
			t.Fatalf("more than one batch:\n%s", p)
		}
		if !p.Empty() && len(verify) != 1 {
			t.Fatalf("verified %d times:\n%s", len(verify), p)
		}
	})
}
