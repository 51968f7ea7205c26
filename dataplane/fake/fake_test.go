package fake_test

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/fake"
)

func vx(vni uint32, local string) dataplane.Link {
	return dataplane.Link{
		Name: fmt.Sprintf("vx%d", vni), Kind: dataplane.VXLAN, Owner: fmt.Sprintf("vni/%d", vni),
		VNI: vni, Port: 4789, Local: netip.MustParseAddr(local), Group: 7,
	}
}

func TestFailAt(t *testing.T) {
	k := fake.New()
	var seen []string
	k.OnOp(func(n int, when fake.When, op dataplane.Op) {
		seen = append(seen, fmt.Sprintf("%d %d %s", n, when, op.Object()))
	})
	k.FailAt(2, syscall.ENOMEM)
	err := k.Apply(t.Context(), []dataplane.Op{
		{Verb: dataplane.Create, Link: vx(1, "192.0.2.1")},
		{Verb: dataplane.Create, Link: vx(2, "192.0.2.1")},
		{Verb: dataplane.Create, Link: vx(3, "192.0.2.1")},
	})
	if !errors.Is(err, syscall.ENOMEM) || err.Error() != "create vx2: cannot allocate memory" {
		t.Fatalf("Apply: %v", err)
	}
	// A netlink batch goes on behind a failed message.
	if got := fmt.Sprint(seen); got != "[1 0 vx1 1 1 vx1 2 0 vx2 3 0 vx3 3 1 vx3]" {
		t.Errorf("hooks: %s", got)
	}
	if got := len(k.Links()); got != 3 {
		t.Errorf("%d links, want lo, vx1 and vx3", got)
	}
}

func TestStopTheWorld(t *testing.T) {
	k := fake.New()
	k.OnOp(func(n int, when fake.When, _ dataplane.Op) {
		if n == 2 && when == fake.Before {
			panic("kill")
		}
	})
	func() {
		defer func() { _ = recover() }()
		_ = k.Apply(t.Context(), []dataplane.Op{
			{Verb: dataplane.Create, Link: vx(1, "192.0.2.1")},
			{Verb: dataplane.Create, Link: vx(2, "192.0.2.1")},
		})
	}()
	k.Restart()
	o, err := k.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := dataplane.Find(o.Links, "vx1"); !ok || len(o.Links) != 2 {
		t.Errorf("after the kill: %v", o.Links)
	}
}

// TestThousands keeps the fake fit for plans of thousands of links.
func TestThousands(t *testing.T) {
	k := fake.New()
	var ops []dataplane.Op
	for i := range uint32(3000) {
		l := vx(i+1, "192.0.2.1")
		ops = append(ops, dataplane.Op{Verb: dataplane.Create, Link: l})
	}
	for i := range uint32(3000) {
		ops = append(ops, dataplane.Op{Verb: dataplane.Set, Link: vx(i+1, "192.0.2.2")})
	}
	if err := k.Apply(t.Context(), append(ops, dataplane.Op{Verb: dataplane.GroupDelete, Group: 7})); err != nil {
		t.Fatal(err)
	}
	if n := len(k.Links()); n != 1 || k.Ops() != 6001 {
		t.Errorf("%d links after %d ops", n, k.Ops())
	}
}
