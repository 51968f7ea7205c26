package kerneltest

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"vtepd/dataplane"
)

// Random does random ops on two kernels side by side: they must refuse with the same words and come to the same links.
func Random(t *testing.T, has Needs, one, other Open) {
	rapid.Check(t, func(r *rapid.T) {
		a, envA := one(t)
		b, envB := other(t)
		world := []dataplane.Link{
			foreign("eth1", "veth"), foreign("eth2", "veth"), foreign("brf", dataplane.Bridge), with(foreign("strange", "veth"), inGroup(9), down),
			with(foreign("vxf", dataplane.VXLAN), func(l *dataplane.Link) { l.VNI, l.Port, l.Local = 3, 4789, addr("192.0.2.9") }),
		}
		envA.Add(t, world...)
		envB.Add(t, world...)
		for range rapid.IntRange(1, 12).Draw(r, "rounds") {
			var errA, errB error
			what := "stage"
			if has == Full && rapid.IntRange(0, 3).Draw(r, "stage") == 0 {
				staged := rapid.SliceOfNDistinct(rapid.Custom(randomEndpoint), 1, 3, func(l dataplane.Link) string { return l.Name }).Draw(r, "staged")
				errA, errB = a.Stage(t.Context(), staged, nil), b.Stage(t.Context(), staged, nil)
			} else {
				ops := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) dataplane.Op { return randomOp(r, has) }), 1, 5).Draw(r, "ops")
				what = fmt.Sprint(ops)
				errA, errB = a.Apply(t.Context(), ops), b.Apply(t.Context(), ops)
			}
			if fmt.Sprint(errA) != fmt.Sprint(errB) {
				r.Fatalf("%s: one says %q, the other %q", what, fmt.Sprint(errA), fmt.Sprint(errB))
			}
			var errno syscall.Errno
			if errors.As(errA, &errno) && what != "stage" {
				return // half done, and there is no telling which half
			}
			same(t, r, what, a, b)
		}
		// Whatever there was, every op can be undone, and the undo of what isn't there succeeds.
		var ops []dataplane.Op
		o, err := a.Observe(t.Context(), nil)
		if err != nil {
			r.Fatal(err)
		}
		for _, l := range o.Links {
			if l.Ours() {
				ops = append(ops, del(l), del(l))
			}
		}
		if err := errors.Join(a.Apply(t.Context(), ops), b.Apply(t.Context(), ops)); err != nil {
			r.Fatal(err)
		}
		same(t, r, "delete all", a, b)
	})
}

func same(t testing.TB, r *rapid.T, what string, a, b dataplane.Kernel) {
	oa, err := a.Observe(t.Context(), nil)
	if err != nil {
		r.Fatal(err)
	}
	ob, err := b.Observe(t.Context(), nil)
	if err != nil {
		r.Fatal(err)
	}
	if len(oa.Links) != len(ob.Links) {
		r.Fatalf("%s: one has %v, the other %v", what, oa.Links, ob.Links)
	}
	for i, l := range oa.Links {
		if d := ob.Links[i].Diff(l); len(d) > 0 || l.Group != ob.Links[i].Group {
			r.Fatalf("%s: %s: one has %s than the other; groups %d and %d", what, l.Name, strings.Join(d, ", "), l.Group, ob.Links[i].Group)
		}
	}
}

func randomOp(r *rapid.T, has Needs) dataplane.Op {
	verb := rapid.SampledFrom([]dataplane.Verb{
		dataplane.Create, dataplane.Create, dataplane.Create, dataplane.Set, dataplane.Set, dataplane.Set, dataplane.Set, dataplane.Delete,
		dataplane.Regroup, dataplane.GroupUp, dataplane.GroupDown, dataplane.GroupDelete, dataplane.Expose,
	}).Draw(r, "verb")
	g := rapid.SampledFrom([]uint32{7, 7, 7, 8, 8, 9, 10}).Draw(r, "group")
	switch verb {
	case dataplane.GroupUp, dataplane.GroupDown, dataplane.GroupDelete:
		return group(verb, g)
	}
	op := dataplane.Op{Verb: verb, Link: randomLink(r, has)}
	if verb == dataplane.Expose {
		op.Link = randomEndpoint(r)
	}
	if verb == dataplane.Regroup {
		op.Group = g
	}
	return op
}

func randomLink(r *rapid.T, has Needs) dataplane.Link {
	var l dataplane.Link
	n := rapid.IntRange(0, 9).Draw(r, "kind")
	switch {
	case n < 6:
		vni := rapid.Uint32Range(1, 3).Draw(r, "vni")
		l = vxlan(vni, rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.2", "2001:db8::1"}).Draw(r, "local"))
		l.Master = rapid.SampledFrom([]string{"", "br1", "br1", "br2", "brf"}).Draw(r, "master")
		l.NeighSuppress = l.Master != "" && rapid.Bool().Draw(r, "suppress")
		l.Learning = rapid.IntRange(0, 3).Draw(r, "learning") == 0
		l.MTU = rapid.SampledFrom([]int{0, 1450, 1400}).Draw(r, "mtu")
	case n < 8 || has == Plain:
		l = bridge(rapid.SampledFrom([]string{"br1", "br2"}).Draw(r, "bridge"))
	default:
		return randomEndpoint(r)
	}
	l.Up = rapid.Bool().Draw(r, "up")
	l.Group = rapid.SampledFrom([]uint32{7, 8}).Draw(r, "group")
	l.Addrs = prefixes(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{
		"172.16.0.1/24", "172.16.0.2/24", "172.16.0.3/24", "172.16.1.1/32", "2001:db8:1::1/64", "2001:db8:1::2/64",
	}), 0, 4, rapid.ID).Draw(r, "addresses")...)
	if rapid.IntRange(0, 15).Draw(r, "stranger") == 0 {
		l.Owner = "vni/other"
	}
	if rapid.IntRange(0, 30).Draw(r, "foreign") == 0 {
		l.Name = rapid.SampledFrom([]string{"eth1", "vxf"}).Draw(r, "theirs")
	}
	return l
}

func randomEndpoint(r *rapid.T) dataplane.Link {
	var l dataplane.Link
	name := rapid.SampledFrom([]string{"vtep0", "vtep1", "lo1"}).Draw(r, "endpoint")
	if name == "lo1" {
		l = loopback(name)
	} else {
		l = endpoint(name, rapid.SampledFrom([]string{"eth1", "eth1", "eth2", "eth9"}).Draw(r, "parent"))
	}
	l.Addrs = prefixes(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"}), 0, 2, rapid.ID).Draw(r, "addresses")...)
	l.Group = rapid.SampledFrom([]uint32{7, 8}).Draw(r, "group")
	l.Up = rapid.Bool().Draw(r, "up")
	return l
}
