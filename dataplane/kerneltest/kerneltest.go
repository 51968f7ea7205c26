// Package kerneltest is the suite that every dataplane.Kernel must pass: the fake in memory and the real one. It owns
// nothing; the Env that a test hands it makes the things of others.
package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/dataplane"
)

// Env is the world around a Kernel's router, which begins with nothing but an lo that is up.
type Env interface {
	// Add makes links of others in the router's namespace: veth (the peer is elsewhere), bridge, vxlan, dummy, vrf, ipvlan.
	Add(t testing.TB, links ...dataplane.Link)
	// Remove deletes links of the router's namespace behind vtepd's back.
	Remove(t testing.TB, names ...string)
	// AddNetns makes a namespace with links in it and returns its name.
	AddNetns(t testing.TB, links ...dataplane.Link) string
	// AddChild makes an ipvlan of somebody else in a namespace of its own, on a parent of the router's.
	AddChild(t testing.TB, l dataplane.Link)
}

// Open makes a router of its own for a test.
type Open func(t testing.TB) (dataplane.Kernel, Env)

// Needs says what a kernel must have for a case.
type Needs int

// What not every kernel has.
const (
	Plain Needs = iota // veth, bridge, vxlan
	Full               // ipvlan, dummy, VRF and bridge VLANs too
)

// Run runs the cases that a kernel with no more than has can run.
func Run(t *testing.T, has Needs, open Open) {
	for _, c := range cases {
		if c.needs > has {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			k, env := open(t)
			c.run(&bench{T: t, k: k, env: env})
		})
	}
}

type bench struct {
	*testing.T
	k   dataplane.Kernel
	env Env
}

func (b *bench) observe(netns ...string) dataplane.Observation {
	b.Helper()
	o, err := b.k.Observe(b.Context(), netns)
	if err != nil {
		b.Fatalf("Observe: %v", err)
	}
	return o
}

func (b *bench) link(name string) dataplane.Link {
	b.Helper()
	l, ok := dataplane.Find(b.observe().Links, name)
	if !ok {
		b.Fatalf("no link %s", name)
	}
	return l
}

func (b *bench) absent(names ...string) {
	b.Helper()
	for _, n := range names {
		if l, ok := dataplane.Find(b.observe().Links, n); ok {
			b.Errorf("%s is still there", l)
		}
	}
}

// is compares a link but for its MTU where that is 0 in want.
func (b *bench) is(want dataplane.Link) {
	b.Helper()
	have := b.link(want.Name)
	if d := want.Diff(have); len(d) > 0 {
		b.Errorf("%s: %s", want.Name, strings.Join(d, "; "))
	}
	if have.Group != want.Group {
		b.Errorf("%s: group %d, wanted %d", want.Name, have.Group, want.Group)
	}
}

func (b *bench) apply(ops ...dataplane.Op) {
	b.Helper()
	if err := b.k.Apply(b.Context(), ops); err != nil {
		b.Fatalf("Apply: %v", err)
	}
}

// quiet applies ops that are done already.
func (b *bench) quiet(ops ...dataplane.Op) {
	b.Helper()
	before := b.k.Counts()
	b.apply(ops...)
	if after := b.k.Counts(); after.Messages != before.Messages || after.Batches != before.Batches {
		b.Errorf("an Apply of what is done already wrote %d messages in %d batches",
			after.Messages-before.Messages, after.Batches-before.Batches)
	}
}

// refused applies ops and wants the error of that text, wrapping is, and where it is a sentinel nothing changed.
func (b *bench) refused(is error, text string, ops ...dataplane.Op) {
	b.Helper()
	before := b.observe()
	err := b.k.Apply(b.Context(), ops)
	b.wrong(err, is, text)
	var errno syscall.Errno
	if errors.As(is, &errno) {
		return
	}
	if d := cmp.Diff(before, b.observe(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		b.Errorf("a refused Apply changed something:\n%s", d)
	}
}

func (b *bench) wrong(err, is error, text string) {
	b.Helper()
	var op *dataplane.OpError
	switch {
	case err == nil:
		b.Fatalf("success, wanted %q", text)
	case err.Error() != text:
		b.Errorf("error %q, wanted %q", err, text)
	case !errors.Is(err, is):
		b.Errorf("error %q doesn't wrap %q", err, is)
	case !errors.As(err, &op):
		b.Errorf("error %q is not an OpError", err)
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixes(s ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, p := range s {
		ps = append(ps, netip.MustParsePrefix(p))
	}
	return dataplane.SortedAddrs(ps)
}

func vxlan(vni uint32, local string) dataplane.Link {
	return dataplane.Link{
		Name: fmt.Sprintf("vx%d", vni), Kind: dataplane.VXLAN, Owner: fmt.Sprintf("vni/%d", vni), Group: 7,
		VNI: vni, Port: 4789, Local: addr(local),
	}
}

func bridge(name string) dataplane.Link {
	return dataplane.Link{Name: name, Kind: dataplane.Bridge, Owner: "bridge/" + name, Group: 7}
}

func endpoint(name, parent string, addrs ...string) dataplane.Link {
	return dataplane.Link{
		Name: name, Kind: dataplane.IPVLAN, Owner: "endpoint/" + name, Group: 7, Up: true,
		Parent: parent, Mode: "l3", Addrs: prefixes(addrs...),
	}
}

func loopback(name string, addrs ...string) dataplane.Link {
	return dataplane.Link{Name: name, Kind: dataplane.Dummy, Owner: "endpoint/" + name, Group: 7, Up: true, Addrs: prefixes(addrs...)}
}

func foreign(name string, kind dataplane.Kind) dataplane.Link {
	return dataplane.Link{Name: name, Kind: kind, Up: true}
}

// with returns l with changes.
func with(l dataplane.Link, changes ...func(*dataplane.Link)) dataplane.Link {
	l.Addrs = slices.Clone(l.Addrs)
	for _, c := range changes {
		c(&l)
	}
	return l
}

func up(l *dataplane.Link)   { l.Up = true }
func down(l *dataplane.Link) { l.Up = false }

func in(master string) func(*dataplane.Link) {
	return func(l *dataplane.Link) { l.Master = master }
}

func at(local string) func(*dataplane.Link) {
	return func(l *dataplane.Link) { l.Local = addr(local) }
}

func having(addrs ...string) func(*dataplane.Link) {
	return func(l *dataplane.Link) { l.Addrs = prefixes(addrs...) }
}

func inGroup(g uint32) func(*dataplane.Link) {
	return func(l *dataplane.Link) { l.Group = g }
}

func suppress(l *dataplane.Link) { l.NeighSuppress = true }

func create(l dataplane.Link) dataplane.Op { return dataplane.Op{Verb: dataplane.Create, Link: l} }
func expose(l dataplane.Link) dataplane.Op { return dataplane.Op{Verb: dataplane.Expose, Link: l} }
func set(l dataplane.Link) dataplane.Op    { return dataplane.Op{Verb: dataplane.Set, Link: l} }
func del(l dataplane.Link) dataplane.Op    { return dataplane.Op{Verb: dataplane.Delete, Link: l} }

func regroup(l dataplane.Link, g uint32) dataplane.Op {
	return dataplane.Op{Verb: dataplane.Regroup, Link: l, Group: g}
}

func group(v dataplane.Verb, g uint32) dataplane.Op { return dataplane.Op{Verb: v, Group: g} }

var cases = []struct {
	name  string
	needs Needs
	run   func(b *bench)
}{
	{"create", Plain, func(b *bench) {
		br := with(bridge("br1"), having("172.16.0.254/24", "2001:db8::fe/64"))
		vx := with(vxlan(1, "192.0.2.1"), in("br1"), suppress, func(l *dataplane.Link) { l.MTU = 1450 })
		v6 := vxlan(2, "2001:db8::1")
		ops := []dataplane.Op{create(br), create(with(vx, up)), create(v6)}
		b.apply(ops...)
		b.is(br)
		b.is(vx)
		b.is(v6)
		b.quiet(ops...)
		if n := len(b.observe().Links); n != 4 {
			b.Errorf("%d links, wanted lo and 3", n)
		}
		b.apply(create(with(vx, inGroup(8))))
		b.is(with(vx, inGroup(8)))
	}},
	{"create in the way", Plain, func(b *bench) {
		b.env.Add(b, foreign("vx1", "veth"))
		b.apply(create(vxlan(2, "192.0.2.1")))
		b.refused(dataplane.ErrInTheWay, "create vx1: in the way: vx1 (veth) is not vtepd's", create(vxlan(3, "192.0.2.1")), create(vxlan(1, "192.0.2.1")))
		b.refused(dataplane.ErrInTheWay, "create vx2: in the way: vx2 (vxlan of vni/2) has local 192.0.2.1, wanted 192.0.2.2",
			create(vxlan(2, "192.0.2.2")))
		b.refused(dataplane.ErrInTheWay, "create vx2: in the way: vx2 (vxlan of vni/2) has owner vni/2, wanted vni/9",
			create(with(vxlan(2, "192.0.2.1"), func(l *dataplane.Link) { l.Owner = "vni/9" })))
		b.refused(dataplane.ErrNotOurs, "create vx4: not vtepd's: a link without an owner is never made",
			create(with(vxlan(4, "192.0.2.1"), func(l *dataplane.Link) { l.Owner = "" })))
		b.refused(dataplane.ErrNotFound, "create vx4: master br9 is not there", create(with(vxlan(4, "192.0.2.1"), in("br9"))))
	}},
	{"set local of a live vxlan", Plain, func(b *bench) {
		b.apply(create(bridge("br1")), create(with(vxlan(1, "192.0.2.1"), in("br1"), suppress)), create(vxlan(2, "192.0.2.1")),
			group(dataplane.GroupUp, 7))
		before := b.k.Counts()
		b.apply(set(with(vxlan(1, "192.0.2.2"), in("br1"), suppress, up)), set(with(vxlan(2, "192.0.2.2"), up)))
		after := b.k.Counts()
		if after.Messages-before.Messages != 2 || after.Batches-before.Batches != 1 {
			b.Errorf("%d messages in %d batches, wanted 2 in 1", after.Messages-before.Messages, after.Batches-before.Batches)
		}
		b.is(with(vxlan(1, "192.0.2.2"), in("br1"), suppress, up))
		b.is(with(vxlan(2, "192.0.2.2"), up))
		b.quiet(set(with(vxlan(1, "192.0.2.2"), in("br1"), suppress, up)), set(with(vxlan(2, "192.0.2.2"), up)))
		b.apply(set(with(vxlan(2, "192.0.2.3"), up)), set(with(vxlan(2, "192.0.2.4"), up)), set(with(vxlan(2, "192.0.2.2"), up)))
		b.is(with(vxlan(2, "192.0.2.2"), up))
	}},
	{"set refused", Plain, func(b *bench) {
		b.env.Add(b, foreign("vx1", "veth"))
		b.apply(create(vxlan(2, "192.0.2.1")), create(vxlan(6, "2001:db8::1")))
		b.refused(dataplane.ErrNotFound, "set vx9: not there", set(vxlan(2, "192.0.2.2")), set(vxlan(9, "192.0.2.1")))
		b.refused(dataplane.ErrNotOurs, "set vx1: not vtepd's: vx1 (veth)", set(vxlan(1, "192.0.2.1")))
		b.refused(dataplane.ErrInTheWay, "set vx2: in the way: vx2 (vxlan of vni/2) has vni 2, wanted 3",
			set(with(vxlan(2, "192.0.2.1"), func(l *dataplane.Link) { l.VNI = 3 })))
		b.refused(dataplane.ErrInTheWay, "set vx2: in the way: vx2 (vxlan of vni/2) has port 4789, wanted 8472",
			set(with(vxlan(2, "192.0.2.1"), func(l *dataplane.Link) { l.Port = 8472 })))
		b.refused(syscall.EOPNOTSUPP, "set vx2: operation not supported (New local address family does not match old)",
			set(vxlan(2, "2001:db8::1")))
		b.refused(syscall.EOPNOTSUPP, "set vx6: operation not supported (New local address family does not match old)",
			set(vxlan(6, "192.0.2.1")))
		b.is(vxlan(2, "192.0.2.1"))
		b.is(vxlan(6, "2001:db8::1"))
	}},
	{"set everything", Plain, func(b *bench) {
		vx := with(vxlan(1, "192.0.2.1"), func(l *dataplane.Link) { l.MTU = 1450 })
		b.apply(create(bridge("br1")), create(bridge("br2")), create(vx))
		for _, want := range []dataplane.Link{
			with(vx, in("br1"), suppress, up, at("192.0.2.2"), func(l *dataplane.Link) { l.MTU = 1400 }),
			with(vx, in("br1"), up, func(l *dataplane.Link) { l.Learning = true }),
			with(vx, in("br2"), suppress, up),
			with(vx, in("br2"), suppress, having("198.51.100.1/32", "2001:db8::1/128")),
			with(vx, up, having("198.51.100.2/32", "2001:db8::1/128", "2001:db8::2/128")),
			with(vx, having("2001:db8::2/128")),
			vx,
		} {
			b.apply(set(want))
			b.is(want)
			b.quiet(set(want))
		}
		br := with(bridge("br1"), having("172.16.0.1/24", "172.16.0.2/24", "172.16.0.3/24"), up)
		b.apply(set(br))
		b.is(br)
		br = with(br, having("172.16.0.2/24", "172.16.0.3/24", "172.16.0.4/24"))
		b.apply(set(br))
		b.is(br)
	}},
	{"bridge MTU", Plain, func(b *bench) {
		mtu := func(n int) func(*dataplane.Link) { return func(l *dataplane.Link) { l.MTU = n } }
		b.apply(create(with(bridge("br1"), mtu(1500))), create(with(bridge("br2"), mtu(1280))), create(bridge("br3")))
		for i := range 3 {
			n := uint32(i + 1)
			b.apply(create(with(vxlan(n, "192.0.2.1"), in(fmt.Sprintf("br%d", n)), mtu(1450))))
		}
		for i, want := range []int{1500, 1280, 1450} {
			if l := b.link(fmt.Sprintf("br%d", i+1)); l.MTU != want {
				b.Errorf("%s has an MTU of %d, wanted %d", l, l.MTU, want)
			}
		}
	}},
	{"one VNI twice", Plain, func(b *bench) {
		taken := "file exists (A VXLAN device with the specified VNI already exists)"
		b.env.Add(b, with(foreign("other", dataplane.VXLAN), func(l *dataplane.Link) { l.VNI, l.Port, l.Local = 1, 4789, addr("192.0.2.9") }))
		b.refused(syscall.EEXIST, "create vx1: "+taken, create(vxlan(1, "192.0.2.1")))
		b.refused(syscall.EEXIST, "create vy2: "+taken, create(vxlan(2, "192.0.2.1")),
			create(with(vxlan(2, "192.0.2.2"), func(l *dataplane.Link) { l.Name = "vy2" })), create(vxlan(3, "192.0.2.1")))
		b.absent("vx1", "vy2")
		// The kernel goes on behind a failed message.
		b.is(vxlan(2, "192.0.2.1"))
		b.is(vxlan(3, "192.0.2.1"))
		// Another port or family is another VNI space.
		b.apply(create(with(vxlan(2, "192.0.2.1"), func(l *dataplane.Link) { l.Name, l.Port = "vy2", 8472 })),
			create(with(vxlan(2, "2001:db8::1"), func(l *dataplane.Link) { l.Name = "vz2" })))
	}},
	{"delete", Plain, func(b *bench) {
		b.env.Add(b, foreign("veth1", "veth"), with(foreign("veth2", "veth"), func(l *dataplane.Link) { l.Owner = "" }))
		br := with(bridge("br1"), having("172.16.0.1/24", "172.16.0.2/24", "2001:db8::1/64"))
		vx := with(vxlan(1, "192.0.2.1"), in("br1"), suppress)
		b.apply(create(br), create(vx), group(dataplane.GroupUp, 7))
		b.refused(dataplane.ErrNotOurs, "delete veth1: not vtepd's: veth1 (veth)", del(vx), del(with(vx, func(l *dataplane.Link) { l.Name = "veth1" })))
		b.refused(dataplane.ErrNotOurs, "delete veth1: not vtepd's: veth1 (veth)", del(dataplane.Link{Name: "veth1"}))
		b.refused(dataplane.ErrNotOurs, "delete vx1: not vtepd's: vx1 (vxlan of vni/1)", del(with(vx, func(l *dataplane.Link) { l.Owner = "vni/2" })))
		b.apply(del(br))
		b.absent("br1")
		b.is(with(vxlan(1, "192.0.2.1"), up))
		b.apply(del(vx), del(vx), del(br))
		b.absent("vx1")
		b.quiet(del(vx), del(br))
		if n := len(b.observe().Links); n != 3 {
			b.Errorf("%d links, wanted lo and 2", n)
		}
	}},
	{"delete and make again in one batch", Plain, func(b *bench) {
		br, vx := with(bridge("br1"), up), with(vxlan(1, "192.0.2.1"), in("br1"), suppress, up)
		b.apply(create(br), create(vx), group(dataplane.GroupUp, 7))
		other := with(vx, func(l *dataplane.Link) { l.Port = 8472 })
		before := b.k.Counts().Batches
		b.apply(del(vx), create(other), set(other))
		if n := b.k.Counts().Batches - before; n != 1 {
			b.Errorf("%d batches, wanted 1", n)
		}
		b.is(other)
	}},
	{"adopt", Plain, func(b *bench) {
		b.env.Add(b, foreign("br7", dataplane.Bridge))
		want := bridge("br7")
		want.Up, want.Group = true, 9
		adopt := dataplane.Op{Verb: dataplane.Adopt, Link: want}
		b.refused(dataplane.ErrInTheWay, "adopt br7: in the way: br7 (bridge) has kind bridge, wanted vxlan",
			dataplane.Op{Verb: dataplane.Adopt, Link: with(want, func(l *dataplane.Link) { l.Kind = dataplane.VXLAN })})
		b.refused(dataplane.ErrInTheWay, "adopt br7: in the way: br7 (bridge) has addresses none, wanted 192.0.2.1/32",
			dataplane.Op{Verb: dataplane.Adopt, Link: with(want, func(l *dataplane.Link) { l.Addrs = prefixes("192.0.2.1/32") })})
		b.refused(dataplane.ErrNotFound, "adopt br8: not there", dataplane.Op{Verb: dataplane.Adopt, Link: bridge("br8")})
		b.apply(adopt)
		b.is(want)
		b.quiet(adopt)
		b.refused(dataplane.ErrNotOurs, "adopt br7: not vtepd's: br7 (bridge of bridge/br7)",
			dataplane.Op{Verb: dataplane.Adopt, Link: with(want, func(l *dataplane.Link) { l.Owner = "bridge/other" })})
	}},
	{"what the kernel has", Plain, func(b *bench) {
		for range 2 {
			if why, err := b.k.Lacks(b.Context(), dataplane.Bridge); why != "" || err != nil {
				b.Errorf("bridge: %q, %v", why, err)
			}
		}
	}},
	{"groups", Plain, func(b *bench) {
		br := with(bridge("br1"), having("172.16.0.1/24"))
		b.apply(create(br), create(vxlan(1, "192.0.2.1")), create(vxlan(2, "192.0.2.1")), create(with(vxlan(3, "192.0.2.1"), inGroup(8))))
		before := b.k.Counts()
		b.apply(group(dataplane.GroupUp, 7))
		if n := b.k.Counts().Messages - before.Messages; n != 1 {
			b.Errorf("%d messages, wanted 1", n)
		}
		b.is(with(br, up))
		b.is(with(vxlan(1, "192.0.2.1"), up))
		b.is(with(vxlan(2, "192.0.2.1"), up))
		b.is(with(vxlan(3, "192.0.2.1"), inGroup(8)))
		b.quiet(group(dataplane.GroupUp, 7), group(dataplane.GroupUp, 99), group(dataplane.GroupDown, 99), group(dataplane.GroupDelete, 99))
		b.apply(group(dataplane.GroupDown, 7))
		b.is(br)
		b.is(vxlan(1, "192.0.2.1"))
		b.apply(regroup(vxlan(2, "192.0.2.1"), 8), group(dataplane.GroupDelete, 7))
		b.absent("br1", "vx1")
		b.is(with(vxlan(2, "192.0.2.1"), inGroup(8)))
		b.quiet(group(dataplane.GroupDelete, 7), regroup(vxlan(2, "192.0.2.1"), 8), regroup(vxlan(77, "192.0.2.1"), 8))
	}},
	{"a stranger in the group", Plain, func(b *bench) {
		b.env.Add(b, with(foreign("veth1", "veth"), inGroup(7), down))
		b.apply(create(vxlan(1, "192.0.2.1")))
		for _, v := range []dataplane.Verb{dataplane.GroupUp, dataplane.GroupDown, dataplane.GroupDelete} {
			b.refused(dataplane.ErrNotOurs, string(v)+" group 7: not vtepd's: veth1 (veth) is in it", create(vxlan(2, "192.0.2.1")), group(v, 7))
			b.refused(dataplane.ErrNotOurs, string(v)+" group 0: not vtepd's: group 0 is every link that nobody put elsewhere", group(v, 0))
		}
		b.refused(dataplane.ErrNotOurs, "regroup veth1: not vtepd's: veth1 (veth)", regroup(dataplane.Link{Name: "veth1"}, 8))
		b.is(vxlan(1, "192.0.2.1"))
		b.is(with(foreign("veth1", "veth"), inGroup(7), down))
	}},
	{"stage proofs", Plain, func(b *bench) {
		b.apply(create(vxlan(1, "192.0.2.1")))
		before := b.observe()
		err := b.k.Stage(b.Context(), nil, []dataplane.Link{
			with(vxlan(1, "192.0.2.2"), in("br1"), suppress, up), with(bridge("br1"), up), with(vxlan(2, "2001:db8::2"), in("br9")),
		})
		if err != nil {
			b.Fatal(err)
		}
		twice := []dataplane.Link{vxlan(3, "192.0.2.2"), with(vxlan(3, "192.0.2.2"), func(l *dataplane.Link) { l.Name = "vy3" })}
		b.wrong(b.k.Stage(b.Context(), nil, twice), syscall.EEXIST,
			"create vy3: file exists (A VXLAN device with the specified VNI already exists)")
		for range 2 {
			if err := b.k.Unstage(); err != nil {
				b.Fatal(err)
			}
		}
		if d := cmp.Diff(before, b.observe(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
			b.Errorf("staging changed the router:\n%s", d)
		}
		b.refused(dataplane.ErrNotFound, "expose vtep0: staged link vtep0 is not there", expose(endpoint("vtep0", "veth1", "192.0.2.1/32")))
	}},
	{"namespaces that can't be opened", Plain, func(b *bench) {
		name := b.env.AddNetns(b, foreign("veth1", "veth"))
		o := b.observe("vtepd-no-such", name)
		if _, err := o.In("vtepd-no-such"); err == nil || err.Error() != "open /run/netns/vtepd-no-such: no such file or directory" {
			b.Errorf("In: %v", err)
		}
		links, err := o.In(name)
		if err != nil {
			b.Fatal(err)
		}
		if l, ok := dataplane.Find(links, "veth1"); !ok || !l.Up || l.Kind != "veth" {
			b.Errorf("links of %s: %v", name, links)
		}
	}},
	{"ping from an address that isn't there", Plain, func(b *bench) {
		alive, err := b.k.Ping(b.Context(), addr("192.0.2.1"), []netip.Addr{addr("192.0.2.2")})
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || alive != nil {
			b.Errorf("Ping: %v, %v", alive, err)
		}
	}},
	{"a context that has ended", Plain, func(b *bench) {
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		for name, err := range map[string]error{
			"Apply": b.k.Apply(ctx, []dataplane.Op{create(vxlan(1, "192.0.2.1"))}),
			"Stage": b.k.Stage(ctx, nil, []dataplane.Link{vxlan(1, "192.0.2.1")}),
		} {
			if !errors.Is(err, context.Canceled) {
				b.Errorf("%s: %v", name, err)
			}
		}
		if _, err := b.k.Observe(ctx, nil); !errors.Is(err, context.Canceled) {
			b.Errorf("Observe: %v", err)
		}
		b.absent("vx1")
	}},
	{"counters", Plain, func(b *bench) {
		b.apply(create(vxlan(1, "192.0.2.1")))
		rx, err := b.k.Received(b.Context(), []string{"nothing", "vx1"})
		if err != nil || !slices.Equal(rx, []uint64{0, 0}) {
			b.Errorf("Received: %v, %v", rx, err)
		}
	}},
	{"stage and expose", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"))
		ep := endpoint("vtep0", "eth1", "192.0.2.1/32", "2001:db8::1/128")
		lo := loopback("lo1", "192.0.2.2/32", "2001:db8::2/128")
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep, lo}, []dataplane.Link{vxlan(1, "192.0.2.1")}); err != nil {
			b.Fatal(err)
		}
		b.absent("vtep0", "lo1", "vx1")
		b.refused(dataplane.ErrInTheWay, "expose vtep0: in the way: vtep0 (ipvlan of endpoint/vtep0) has mode l3, wanted l2",
			expose(with(ep, func(l *dataplane.Link) { l.Mode = "l2" })))
		b.refused(dataplane.ErrInTheWay, "expose vtep0: in the way: vtep0 (ipvlan of endpoint/vtep0) has owner endpoint/vtep0, wanted endpoint/vtep1",
			expose(with(ep, func(l *dataplane.Link) { l.Owner = "endpoint/vtep1" })))
		b.apply(expose(ep), expose(lo))
		b.is(ep)
		b.is(lo)
		b.quiet(expose(ep), expose(lo))
		if err := b.k.Unstage(); err != nil {
			b.Fatal(err)
		}
		b.is(ep)
		b.quiet(expose(ep))
		// What a crash between the move and its addresses leaves is finished by the same op.
		b.apply(set(with(lo, having())), set(with(ep, having("192.0.2.1/32"), down)))
		b.apply(expose(ep), expose(lo))
		b.is(ep)
		b.is(lo)
		b.refused(dataplane.ErrInTheWay, "expose vtep0: in the way: vtep0 (ipvlan of endpoint/vtep0) has mode l3, wanted l2",
			expose(with(ep, func(l *dataplane.Link) { l.Mode = "l2" })))
		b.apply(group(dataplane.GroupDelete, 7))
		b.absent("vtep0", "lo1")
		b.refused(dataplane.ErrNotFound, "expose vtep0: staged link vtep0 is not there", expose(ep))
	}},
	{"a namesake", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"), foreign("eth2", "veth"))
		old, ep := endpoint("vtep0", "eth1", "192.0.2.1/32"), endpoint("vtep0", "eth2", "192.0.2.1/32")
		b.apply(create(old), group(dataplane.GroupUp, 7))
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep}, nil); err != nil {
			b.Fatal(err)
		}
		b.refused(dataplane.ErrInTheWay, "expose vtep0: in the way: vtep0 (ipvlan of endpoint/vtep0) has parent eth1, wanted eth2", expose(ep))
		b.apply(del(old), expose(ep))
		b.is(ep)
	}},
	{"a staged link whose parent goes", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"))
		ep := endpoint("vtep0", "eth1", "192.0.2.1/32")
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep}, nil); err != nil {
			b.Fatal(err)
		}
		b.env.Remove(b, "eth1")
		err := b.k.Apply(b.Context(), []dataplane.Op{create(vxlan(1, "192.0.2.1")), expose(ep)})
		if err == nil || !strings.HasPrefix(err.Error(), "expose vtep0: ") {
			b.Errorf("Apply: %v", err)
		}
		b.absent("vtep0")
		if err := b.k.Unstage(); err != nil {
			b.Error(err)
		}
	}},
	{"an address in use on the parent", Full, func(b *bench) {
		used := "address already in use (Address already assigned to an ipvlan device)"
		b.env.Add(b, foreign("eth1", "veth"), foreign("eth2", "veth"))
		b.env.AddChild(b, dataplane.Link{Name: "theirs", Parent: "eth1", Mode: "l3", Up: true, Addrs: prefixes("192.0.2.9/32", "2001:db8::9/128")})
		stage := func(l ...dataplane.Link) error { return b.k.Stage(b.Context(), l, nil) }
		b.wrong(stage(endpoint("vtep0", "eth1", "192.0.2.9/32")), syscall.EADDRINUSE, "create vtep0: "+used)
		b.wrong(stage(endpoint("vtep0", "eth1", "2001:db8::9/128")), syscall.EADDRINUSE, "create vtep0: "+used)
		b.wrong(stage(endpoint("vtep0", "eth1", "192.0.2.1/32"), endpoint("vtep1", "eth1", "192.0.2.1/32")), syscall.EADDRINUSE, "create vtep1: "+used)
		ep := endpoint("vtep0", "eth1", "192.0.2.1/32")
		if err := stage(ep); err != nil {
			b.Fatal(err)
		}
		b.apply(expose(ep))
		b.wrong(stage(endpoint("vtep1", "eth1", "192.0.2.1/32")), syscall.EADDRINUSE, "create vtep1: "+used)
		// Under its own name in the shadow too: the live one holds it.
		b.wrong(stage(ep), syscall.EADDRINUSE, "create vtep0: "+used)
		b.refused(syscall.EADDRINUSE, "set vtep0: "+used, set(with(ep, having("192.0.2.1/32", "192.0.2.9/32"))))
		b.is(ep)
		// On another parent, and on a loopback, the same address is another one.
		moved := with(endpoint("vtep0-2", "eth2", "192.0.2.1/32"), func(l *dataplane.Link) { l.Owner = "endpoint/vtep0" })
		lo := loopback("lo1", "192.0.2.1/32")
		if err := stage(moved, lo); err != nil {
			b.Fatal(err)
		}
		b.apply(expose(moved), expose(lo), del(ep))
		b.is(moved)
		b.is(lo)
		b.absent("vtep0")
	}},
	{"parents that can't be", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"), foreign("br0", dataplane.Bridge), with(foreign("port", "veth"), in("br0")))
		b.env.Add(b, dataplane.Link{Name: "theirs", Kind: dataplane.IPVLAN, Parent: "eth1", Mode: "l2", Up: true})
		stage := func(l dataplane.Link) error { return b.k.Stage(b.Context(), []dataplane.Link{l}, nil) }
		b.wrong(stage(endpoint("vtep0", "port", "192.0.2.1/32")), syscall.EBUSY, "create vtep0: device or resource busy")
		b.wrong(stage(endpoint("vtep0", "eth9", "192.0.2.1/32")), dataplane.ErrNotFound, "create vtep0: parent eth9 is not there")
		other := "create vtep0: in the way: eth1 has theirs (ipvlan) in mode l2, and all children of a parent have one mode, wanted l3"
		b.wrong(stage(endpoint("vtep0", "eth1", "192.0.2.1/32")), dataplane.ErrInTheWay, other)
		b.refused(dataplane.ErrInTheWay, other, create(vxlan(1, "192.0.2.1")), create(endpoint("vtep0", "eth1", "192.0.2.1/32")))
		if l := b.link("theirs"); l.Mode != "l2" {
			b.Errorf("theirs has mode %s now", l.Mode)
		}
		b.absent("vtep0")
	}},
	{"a parent in another namespace", Full, func(b *bench) {
		name := b.env.AddNetns(b, foreign("eth1", "veth"))
		b.env.Add(b, foreign("eth1", "veth"))
		ep := with(endpoint("vtep0", "eth1", "192.0.2.1/32"), func(l *dataplane.Link) { l.ParentNetns = name })
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep}, nil); err != nil {
			b.Fatal(err)
		}
		b.apply(expose(ep))
		if l := b.link("vtep0"); l.Parent != "?" || l.ParentNetns != "" {
			b.Errorf("parent %q in %q, wanted ? where nobody asked", l.Parent, l.ParentNetns)
		}
		l, _ := dataplane.Find(b.observe(name).Links, "vtep0")
		if d := ep.Diff(l); len(d) > 0 {
			b.Errorf("vtep0: %s", strings.Join(d, "; "))
		}
		b.quiet(expose(ep), set(ep))
		b.wrong(b.k.Stage(b.Context(), []dataplane.Link{with(ep, func(l *dataplane.Link) { l.Parent = "eth9" })}, nil),
			dataplane.ErrNotFound, "create vtep0: parent eth9 is not there")
	}},
	{"a parent that goes", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"))
		ep := endpoint("vtep0", "eth1", "192.0.2.1/32")
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep}, nil); err != nil {
			b.Fatal(err)
		}
		b.apply(expose(ep), create(vxlan(1, "192.0.2.1")))
		b.env.Remove(b, "eth1")
		b.absent("vtep0", "eth1")
		b.is(vxlan(1, "192.0.2.1"))
		b.quiet(del(ep))
	}},
	{"endpoints made in place", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"), foreign("red", "vrf"))
		ep, lo := endpoint("vtep0", "eth1", "192.0.2.1/32", "2001:db8::1/128"), loopback("lo1", "192.0.2.2/32", "2001:db8::2/128")
		b.apply(create(ep), create(lo), group(dataplane.GroupUp, 7))
		b.is(ep)
		b.is(lo)
		b.quiet(create(ep), create(lo))
		for _, want := range []dataplane.Link{
			with(lo, having("192.0.2.3/32", "2001:db8::2/128")), with(lo, in("red")), with(lo, in("red"), having("2001:db8::3/128")), lo,
		} {
			b.apply(set(want))
			b.is(want)
		}
		b.refused(dataplane.ErrNotFound, "create vtep1: parent eth9 is not there", create(loopback("lo2")), create(endpoint("vtep1", "eth9")))
	}},
	{"expose into a VRF", Full, func(b *bench) {
		b.env.Add(b, foreign("eth1", "veth"), foreign("red", "vrf"))
		ep := with(endpoint("vtep0", "eth1", "192.0.2.1/32", "2001:db8::1/128"), in("red"))
		if err := b.k.Stage(b.Context(), []dataplane.Link{ep}, nil); err != nil {
			b.Fatal(err)
		}
		b.apply(expose(ep))
		b.is(ep)
	}},
	{"a VLAN-aware bridge", Full, func(b *bench) {
		aware := func(l *dataplane.Link) { l.VLANAware = true }
		on := func(v uint16) func(*dataplane.Link) { return func(l *dataplane.Link) { l.VLAN = v } }
		br := with(bridge("br0"), aware)
		a, c := with(vxlan(1, "192.0.2.1"), in("br0"), suppress, on(10)), with(vxlan(2, "192.0.2.1"), in("br0"), suppress, on(20))
		if err := b.k.Stage(b.Context(), nil, []dataplane.Link{a, c, br}); err != nil {
			b.Fatal(err)
		}
		b.apply(create(br), create(a), create(c), group(dataplane.GroupUp, 7))
		b.is(with(br, up))
		b.is(with(a, up))
		b.is(with(c, up))
		for _, want := range []dataplane.Link{with(a, up, on(11)), with(a, up, on(0)), with(a, up)} {
			b.apply(set(want))
			b.is(want)
			b.quiet(set(want))
		}
		b.apply(create(bridge("br1")), set(with(bridge("br1"), aware)))
		b.is(with(bridge("br1"), aware))
		b.refused(dataplane.ErrInTheWay, "create vx3: in the way: vlan 10 needs a VLAN-aware bridge without a default VLAN, and br2 (bridge of bridge/br2) isn't one",
			create(bridge("br2")), create(with(vxlan(3, "192.0.2.1"), in("br2"), on(10))))
		b.apply(set(bridge("br1")))
		b.is(bridge("br1"))
	}},
}
