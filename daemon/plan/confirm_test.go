package plan_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
)

func link(name, owner, parent, netns string) dataplane.Link {
	return dataplane.Link{
		Name: name, Kind: dataplane.IPVLAN, Owner: owner, Up: true, Parent: parent, ParentNetns: netns, Mode: "l3",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.255.0.1/32")},
	}
}

// TestConfirmation: the wait comes between verify and drain, in a plan that does something, when there is one.
func TestConfirmation(t *testing.T) {
	a := state.State{Links: []dataplane.Link{link("a", "endpoint/a", "eth1", "")}}
	b := state.State{Links: []dataplane.Link{link("b", "endpoint/a", "eth2", "")}}
	b.Links[0].Addrs = []netip.Prefix{netip.MustParsePrefix("10.255.0.2/32")}
	for _, c := range []struct {
		to      state.State
		confirm time.Duration
		want    int // step, from 0; -1: none
	}{{b, time.Minute, 3}, {b, 0, -1}, {a, time.Minute, -1}} {
		p := plan.Compute(a, c.to, plan.Input{Confirm: c.confirm})
		i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Do.Confirm != nil })
		if i != c.want {
			t.Fatalf("step %d, want %d:\n%s", i, c.want, p)
		}
		if i < 0 {
			continue
		}
		s := p.Steps[i]
		if s.Phase != plan.Confirm || s.Undo != nil || p.Steps[i-1].Phase != plan.Verify || p.Steps[i+1].Phase != plan.Drain {
			t.Errorf("%+v in\n%s", s, p)
		}
		if text := p.String(); !strings.Contains(text, " 4 confirm  wait 1m0s for `vtepd confirm`; without it, undo everything\n") {
			t.Error(text)
		}
		raw, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var again plan.Plan
		if err := json.Unmarshal(raw, &again); err != nil {
			t.Fatal(err)
		}
		if again.Steps[i].Do.Confirm.Wait != time.Minute {
			t.Errorf("%s", raw)
		}
	}
}

// TestAilments: what keeps a live endpoint from working is said for each, by its parent's name.
func TestAilments(t *testing.T) {
	s := state.State{Links: []dataplane.Link{
		link("vtep0-1", "endpoint/vtep0", "eth1", ""),
		link("vtep1-1", "endpoint/vtep1", "eth2", ""),
		link("vtep2-1", "endpoint/vtep2", "eth1", "host"),
		link("vtep3-1", "endpoint/vtep3", "gone", ""), // the check's business
		link("vtep4-1", "endpoint/vtep4", "eth1", "gone"),
		{Name: "vtep5-1", Kind: dataplane.Dummy, Owner: "endpoint/vtep5", Up: true},
		{Name: "br1", Kind: dataplane.Bridge, Owner: "bridge/br1"},
	}}
	k := dataplane.Observation{
		Links: append([]dataplane.Link{{Name: "eth1", Up: true}, {Name: "eth2"}}, s.Links...),
		Netns: []dataplane.Netns{{Name: "host", Links: []dataplane.Link{{Name: "eth1"}}}, {Name: "gone", Err: "no such file or directory"}},
	}
	want := []plan.Refusal{
		{Field: "endpoints.vtep1.ipvlan.parent", Msg: "eth2 is down, and the endpoint with it; set it up"},
		{Field: "endpoints.vtep2.ipvlan.parent", Msg: "eth1 is down, and the endpoint with it; set it up"},
	}
	if diff := cmp.Diff(want, plan.Ailments(s, k)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	k.Links[1].Up, k.Netns[0].Links[0].Up = true, true
	if diff := cmp.Diff([]plan.Refusal{}, plan.Ailments(s, k), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
