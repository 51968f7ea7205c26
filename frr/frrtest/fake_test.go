package frrtest

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/frr"
)

func TestFakeFailAtAndHooks(t *testing.T) {
	f := New(65001, netip.MustParseAddr("10.0.0.1"))
	p := netip.MustParsePrefix("10.255.0.1/32")
	edits := []frr.Edit{{Verb: frr.AddRouteMap, ASN: 65001}, {Verb: frr.AddNetwork, ASN: 65001, Prefix: p}}
	var seen []int
	f.OnEdit(func(k int, _ frr.Edit) { seen = append(seen, k) })
	boom := errors.New("% Unknown command")
	f.FailAt(2, boom)
	err := f.Apply(t.Context(), edits)
	var ee *frr.EditError
	if !errors.As(err, &ee) || ee.Edit != edits[1] || !errors.Is(err, boom) ||
		err.Error() != `network 10.255.0.1/32: line "network 10.255.0.1/32 route-map VTEPD": % Unknown command` {
		t.Fatalf("the second edit: %v", err)
	}
	if err := f.Apply(t.Context(), edits); err != nil {
		t.Fatalf("once only: %v", err)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, seen); diff != "" {
		t.Error(diff)
	}
	if got := f.Edits(); !slices.Equal(got, edits) {
		t.Errorf("edits: %v", got)
	}
	gone := errors.New("gone")
	f.OnEdit(func(int, frr.Edit) { f.SetUnreachable(gone) })
	if err := f.Apply(t.Context(), edits); !errors.Is(err, gone) {
		t.Errorf("FRR went away under the edit: %v", err)
	}
	if _, err := f.Observe(t.Context(), frr.Query{}); !errors.Is(err, gone) {
		t.Errorf("observe: %v", err)
	}
}
