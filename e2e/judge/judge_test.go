package judge

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestJudge checks the checker: what is missing, what is left, and what is the operator's.
func TestJudge(t *testing.T) {
	a := State{Node: "r", Endpoint: "e", Parent: "eth1", Address: netip.MustParseAddr("10.0.0.1"), Pool: "p", VNIs: []int{100}}
	b := a
	b.VNIs = []int{100, 200}
	c := a
	c.Address = netip.MustParseAddr("10.0.0.2")
	base := []string{"FRR: theirs", "link lo"}
	there := func(s State, more ...string) []string { return slices.Concat(base, s.facts(nil), more) }
	for _, x := range []struct {
		name   string
		facts  []string
		states []State
		want   Verdict
	}{
		{"in a", there(a), []State{a, b}, Verdict{In: 0}},
		{"in b, which holds all of a", there(b), []State{a, b}, Verdict{In: 1}},
		{"a link is left", there(a, "link x"), []State{a, c}, Verdict{In: 0, Leftovers: []string{"link x"}}},
		{"a claim of c is left", there(a, "ledger: p@10.0.0.2 of r/endpoint/e"), []State{a, c}, Verdict{In: 0, Leftovers: []string{"ledger: p@10.0.0.2 of r/endpoint/e"}}},
		{
			"one VNI of two", slices.Concat(base, b.facts(nil)[1:]),
			[]State{b},
			Verdict{In: -1, Missing: [][]string{b.facts(nil)[:1]}, Leftovers: []string{}},
		},
		{"the operator's line is gone", there(a)[1:], []State{a}, Verdict{In: -1, Missing: [][]string{base[:1]}, Leftovers: []string{}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var states [][]string
			for _, s := range x.states {
				states = append(states, s.facts(nil))
			}
			got := judge(base, x.facts, states)
			if len(got.Leftovers) == 0 && got.In >= 0 {
				got.Leftovers = nil
			}
			if diff := cmp.Diff(x.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
