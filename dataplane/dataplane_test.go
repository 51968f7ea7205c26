package dataplane_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"vtepd/dataplane"
)

var comparable = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func anyLink(r *rapid.T) dataplane.Link {
	some := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(r, label) }
	l := dataplane.Link{
		Name: some("name", "a", "b", "c"), Kind: dataplane.Kind(some("kind", "vxlan", "bridge", "ipvlan", "")), Owner: some("owner", "", "vni/1", "vni/2"),
		Group: rapid.Uint32Range(0, 2).Draw(r, "group"), Up: rapid.Bool().Draw(r, "up"), MTU: rapid.SampledFrom([]int{0, 1450, 1500}).Draw(r, "mtu"),
		Master: some("master", "", "a", "b"), Parent: some("parent", "", "c"), ParentNetns: some("netns", "", "far"), Mode: some("mode", "", "l3"),
		VNI: rapid.Uint32Range(0, 1).Draw(r, "vni"), Port: uint16(rapid.Uint32Range(0, 1).Draw(r, "port")), Learning: rapid.Bool().Draw(r, "learning"),
		NeighSuppress: rapid.Bool().Draw(r, "suppress"), VLAN: uint16(rapid.Uint32Range(0, 1).Draw(r, "vlan")), VLANAware: rapid.Bool().Draw(r, "aware"),
	}
	if rapid.Bool().Draw(r, "local") {
		l.Local = netip.MustParseAddr("192.0.2.1")
	}
	for _, a := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		if rapid.Bool().Draw(r, "address") {
			l.Addrs = append(l.Addrs, netip.MustParsePrefix(a))
		}
	}
	return l
}

func anyOp(r *rapid.T) dataplane.Op {
	return dataplane.Op{
		Verb: rapid.SampledFrom([]dataplane.Verb{
			dataplane.Create, dataplane.Expose, dataplane.Set, dataplane.Delete, dataplane.Regroup, dataplane.GroupUp, dataplane.GroupDown, dataplane.GroupDelete,
		}).Draw(r, "verb"),
		Link:  anyLink(r),
		Group: rapid.Uint32Range(0, 2).Draw(r, "group"),
	}
}

func TestDiffIsEmptyWhereSame(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		a, b := anyLink(r), anyLink(r)
		if rapid.Bool().Draw(r, "alike") {
			b = a
			b.Group++
		}
		if d := a.Diff(b); a.Same(b) != (len(d) == 0) {
			r.Fatalf("Same is %t and Diff is %q", a.Same(b), d)
		}
		if a.Same(b) != b.Same(a) {
			r.Fatal("Same isn't symmetric")
		}
	})
}

func TestEveryOpIsIdempotentAndTouchesOnlyOurs(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := dataplane.NewModel(rapid.SliceOf(rapid.Custom(anyLink)).Draw(r, "links"))
		before := m.Links()
		op := anyOp(r)
		changes, err := m.Plan(op)
		if d := cmp.Diff(before, m.Links(), comparable); d != "" {
			r.Fatalf("Plan changed the model:\n%s", d)
		}
		if err != nil {
			if !errors.Is(err, dataplane.ErrNotOurs) && !errors.Is(err, dataplane.ErrInTheWay) && !errors.Is(err, dataplane.ErrNotFound) {
				r.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		for _, c := range changes {
			if c.Before.Name != "" && !c.Before.Ours() || c.After.Name != "" && !c.After.Ours() {
				r.Fatalf("%s changes a stranger's: %s", op, c.Before)
			}
		}
		m.Do(changes)
		again, err := m.Plan(op)
		if err != nil || len(again) != 0 {
			r.Fatalf("%s a second time: %v, %v", op, again, err)
		}
	})
}

func TestModelDoesWhatTheKernelDoesOfItself(t *testing.T) {
	m := dataplane.NewModel([]dataplane.Link{
		{Name: "br0", Kind: dataplane.Bridge, Owner: "bridge/br0", VLANAware: true},
		{Name: "vx1", Kind: dataplane.VXLAN, Owner: "vni/1", Master: "br0", NeighSuppress: true, VLAN: 10},
		{Name: "eth1"},
		{Name: "vtep0", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep0", Parent: "eth1"},
		{Name: "vtep1", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep1", Parent: "eth1", ParentNetns: "far"},
	})
	m.Remove("br0")
	m.Remove("eth1")
	want := []dataplane.Link{
		{Name: "vtep1", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep1", Parent: "eth1", ParentNetns: "far"},
		{Name: "vx1", Kind: dataplane.VXLAN, Owner: "vni/1"},
	}
	if d := cmp.Diff(want, m.Links(), comparable); d != "" {
		t.Error(d)
	}
}

func TestOpString(t *testing.T) {
	vx := dataplane.Link{
		Name: "vx100", Kind: dataplane.VXLAN, Owner: "vni/100", Up: true, VNI: 100, Port: 4789, Local: netip.MustParseAddr("192.0.2.1"), Master: "br100", MTU: 1450,
	}
	down := vx
	down.Up, down.VLAN = false, 10
	ep := dataplane.Link{
		Name: "vtep0", Kind: dataplane.IPVLAN, Parent: "eth1", ParentNetns: "far", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")},
	}
	for _, c := range []struct {
		op   dataplane.Op
		want string
	}{
		{dataplane.Op{Verb: dataplane.Create, Link: vx}, "create vx100 (vni 100, local 192.0.2.1, port 4789, master br100, mtu 1450)"},
		{dataplane.Op{Verb: dataplane.Set, Link: down}, "set vx100 (vni 100, local 192.0.2.1, port 4789, master br100, vlan 10, mtu 1450, down)"},
		{dataplane.Op{Verb: dataplane.Expose, Link: ep}, "expose vtep0 (192.0.2.1/32, parent far:eth1)"},
		{dataplane.Op{Verb: dataplane.Delete, Link: vx}, "delete vx100"},
		{dataplane.Op{Verb: dataplane.Regroup, Link: vx, Group: 7}, "regroup vx100 (group 7)"},
		{dataplane.Op{Verb: dataplane.GroupUp, Group: 7}, "group-up group 7"},
	} {
		if got := c.op.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestOpErrorUnwraps(t *testing.T) {
	err := error(&dataplane.OpError{
		Op:  dataplane.Op{Verb: dataplane.Create, Link: dataplane.Link{Name: "vx1"}},
		Err: fmt.Errorf("%w (%s)", syscall.EEXIST, "A VXLAN device with the specified VNI already exists"),
	})
	if !errors.Is(err, syscall.EEXIST) {
		t.Errorf("%v isn't EEXIST", err)
	}
	if want := "create vx1: file exists (A VXLAN device with the specified VNI already exists)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestObservationIn(t *testing.T) {
	o := dataplane.Observation{
		Links: []dataplane.Link{{Name: "lo"}},
		Netns: []dataplane.Netns{{Name: "far", Links: []dataplane.Link{{Name: "eth1"}}}, {Name: "gone", Err: "open /run/netns/gone: no such file or directory"}},
	}
	for name, want := range map[string]string{"": "lo", "far": "eth1", "gone": "open /run/netns/gone: no such file or directory", "x": "namespace x was not looked at"} {
		links, err := o.In(name)
		got := fmt.Sprint(err)
		if err == nil {
			got = links[0].Name
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("In(%q): %s, want %s", name, got, want)
		}
	}
}
