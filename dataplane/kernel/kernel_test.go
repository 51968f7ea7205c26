package kernel_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
	"vtepd/dataplane/kernel"
	"vtepd/dataplane/netns"
)

func vx(vni uint32, local string) dataplane.Link {
	return dataplane.Link{
		Name: fmt.Sprintf("vx%d", vni), Kind: dataplane.VXLAN, Owner: fmt.Sprintf("vni/%d", vni), Group: 7,
		VNI: vni, Port: 4789, Local: netip.MustParseAddr(local),
	}
}

func bridge(name string, addrs ...string) dataplane.Link {
	l := dataplane.Link{Name: name, Kind: dataplane.Bridge, Owner: "bridge/" + name, Group: 7}
	for _, a := range addrs {
		l.Addrs = append(l.Addrs, netip.MustParsePrefix(a))
	}
	return l
}

func apply(t testing.TB, k *kernel.Kernel, ops ...dataplane.Op) {
	t.Helper()
	if err := k.Apply(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
}

func create(l dataplane.Link) dataplane.Op { return dataplane.Op{Verb: dataplane.Create, Link: l} }
func set(l dataplane.Link) dataplane.Op    { return dataplane.Op{Verb: dataplane.Set, Link: l} }

// news collects what the kernel announces to groups while do runs, as "TYPE index".
func news(t *testing.T, ns *netns.NS, groups uint32, do func()) []mdl.Message {
	t.Helper()
	c, err := mdl.Dial(unix.NETLINK_ROUTE, &mdl.Config{NetNS: ns.Fd(), Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do()
	// The kernel has queued every announcement by now: an empty queue is the end.
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var all []mdl.Message
	err = raw.Control(func(fd uintptr) {
		b := make([]byte, 1<<16)
		for {
			n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if err != nil {
				return
			}
			var m mdl.Message
			if err := m.UnmarshalBinary(slices.Clone(b[:n])); err != nil {
				t.Error(err)
				return
			}
			all = append(all, m)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWhatDiffersIsAnnouncedAndWhatDoesntIsNot(t *testing.T) {
	k, e := open(t)
	one := vx(1, "192.0.2.1")
	one.Master, one.NeighSuppress = "br1", true
	apply(t, k, create(bridge("br1", "172.16.0.1/24")), create(one), dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
	one.Up = true
	br := bridge("br1", "172.16.0.1/24")
	br.Up = true
	all := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if n := news(t, e.router, all, func() {
		apply(t, k, set(one), set(br), create(one), create(br), dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
	}); len(n) != 0 {
		t.Errorf("ops that change nothing made %d announcements: %v", len(n), n)
	}
	moved := one
	moved.Local = netip.MustParseAddr("192.0.2.2")
	if n := news(t, e.router, all, func() { apply(t, k, set(moved)) }); len(n) == 0 {
		t.Error("a change of local was announced to nobody: this test sees nothing")
	}
}

// TestAddressesGoBeforeTheirLink: with a link the kernel flushes its routes silently, and zebra before 10.7 keeps them.
func TestAddressesGoBeforeTheirLink(t *testing.T) {
	for _, del := range []dataplane.Op{{Verb: dataplane.Delete, Link: bridge("br1")}, {Verb: dataplane.GroupDelete, Group: 7}} {
		k, e := open(t)
		apply(t, k, create(bridge("br1", "198.51.100.1/32", "172.16.0.1/24", "172.16.0.2/24")), dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
		n := news(t, e.router, unix.RTMGRP_IPV4_ROUTE, func() { apply(t, k, del) })
		gone := 0
		for _, m := range n {
			if m.Header.Type == unix.RTM_DELROUTE {
				gone++
			}
		}
		if gone < 3 {
			t.Errorf("%s: %d routes were announced as gone, wanted those of 3 addresses", del, gone)
		}
	}
}

func TestThousandsInOneWrite(t *testing.T) {
	k, _ := open(t)
	const n = 2000
	var make, swap, back []dataplane.Op
	for i := range uint32(n) {
		make = append(make, create(vx(i+1, "192.0.2.1")))
		swap = append(swap, set(vx(i+1, "192.0.2.2")))
		back = append(back, set(vx(i+1, "2001:db8::1"))) // refused, every one of them
	}
	apply(t, k, make...)
	before := k.Counts()
	apply(t, k, swap...)
	after := k.Counts()
	if b, m := after.Batches-before.Batches, after.Messages-before.Messages; b != 1 || m != n {
		t.Errorf("%d messages in %d batches, wanted %d in 1", m, b, n)
	}
	err := k.Apply(t.Context(), back)
	if err == nil || err.Error() != "set vx1: operation not supported (New local address family does not match old)" {
		t.Errorf("%d refusals: %v", n, err)
	}
	o, err := k.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range o.Links {
		if l.Kind == dataplane.VXLAN && l.Local != netip.MustParseAddr("192.0.2.2") {
			t.Fatalf("%s has local %s", l, l.Local)
		}
	}
	// The batch of refusals has left nothing behind on the socket.
	apply(t, k, dataplane.Op{Verb: dataplane.GroupDelete, Group: 7})
}

func TestFirstFailureIsNamed(t *testing.T) {
	k, _ := open(t)
	var ops []dataplane.Op
	for i := range uint32(9) {
		ops = append(ops, create(vx(i+1, "192.0.2.1")))
	}
	for _, bad := range []int{4, 7} {
		ops[bad].Link.VNI = 1
	}
	var op *dataplane.OpError
	err := k.Apply(t.Context(), ops)
	if !errors.As(err, &op) || op.Op.Link.Name != "vx5" || !errors.Is(err, unix.EEXIST) {
		t.Errorf("Apply: %v, wanted vx5 to be named", err)
	}
}

// TestWhileOthersAreBusy reads while somebody else changes links as fast as the kernel lets him: dumps are interrupted.
func TestWhileOthersAreBusy(t *testing.T) {
	k, e := open(t)
	for i := range uint32(200) {
		apply(t, k, create(vx(i+1, "192.0.2.1")))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		for ctx.Err() == nil {
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "busy"}}
			if err := errors.Join(e.h.LinkAdd(br), e.h.LinkDel(br)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range 30 {
		o, err := k.Observe(t.Context(), nil)
		if err != nil {
			t.Error(err)
			break
		}
		ours := 0
		for _, l := range o.Links {
			if l.Ours() {
				ours++
			}
		}
		if ours != 200 {
			t.Errorf("%d of 200 links seen", ours)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	count := func() int {
		es, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(es)
	}
	router, _ := newNetns(t)
	far, _ := newNetns(t)
	name := fmt.Sprintf("/proc/self/fd/%d", far.Fd())
	before := 0
	for i := range 20 {
		k, err := kernel.Open(kernel.Options{Netns: router})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Observe(t.Context(), []string{name, name, "no-such"}); err != nil {
			t.Fatal(err)
		}
		if err := k.Stage(t.Context(), nil, []dataplane.Link{vx(1, "192.0.2.1")}); err != nil {
			t.Fatal(err)
		}
		if err := k.Stage(t.Context(), nil, []dataplane.Link{vx(1, "192.0.2.1"), vx(1, "192.0.2.1")}); err == nil {
			t.Fatal("one link twice in the shadow")
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = count()
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, %d after the first round", after, before)
	}
}

func TestOpenInTheCurrentNamespace(t *testing.T) {
	ns, h := newNetns(t)
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "here"}}); err != nil {
		t.Fatal(err)
	}
	err := ns.Do(func() error {
		k, err := kernel.Open(kernel.Options{})
		if err != nil {
			return err
		}
		defer k.Close()
		o, err := k.Observe(t.Context(), nil)
		if err == nil && len(o.Links) != 2 {
			err = fmt.Errorf("links %v", o.Links)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPing(t *testing.T) {
	k, e := open(t)
	a, b := netip.MustParseAddr, netip.MustParsePrefix
	e.Add(t, dataplane.Link{Name: "eth1", Kind: "veth", Up: true, Addrs: []netip.Prefix{b("192.0.2.1/24"), b("2001:db8::1/64")}})
	farHandle(t, e, func(h *netlink.Handle) error {
		l, err := h.LinkByName("peer1")
		if err != nil {
			return err
		}
		err = h.LinkSetUp(l)
		for _, p := range []string{"192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64"} {
			err = errors.Join(err, h.AddrAdd(l, &netlink.Addr{IPNet: ipnet(b(p)), Flags: unix.IFA_F_NODAD}))
		}
		return err
	})
	for _, c := range []struct {
		from, to, want string
		whole          bool // everybody answers: it must not take the whole time
	}{
		{"192.0.2.1", "192.0.2.3 192.0.2.2 192.0.2.2", "192.0.2.2 192.0.2.3", true},
		{"2001:db8::1", "2001:db8::2", "2001:db8::2", true},
		{"192.0.2.1", "192.0.2.2 192.0.2.77 203.0.113.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::77 2001:db8:9::1 2001:db8::2", "2001:db8::2", false},
		{"192.0.2.1", "", "", true},
	} {
		limit := time.Minute
		if !c.whole {
			limit = 300 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		var to []netip.Addr
		for _, s := range strings.Fields(c.to) {
			to = append(to, a(s))
		}
		got, err := k.Ping(ctx, a(c.from), to)
		cancel()
		if s := strings.Trim(fmt.Sprint(got), "[]"); err != nil || s != c.want {
			t.Errorf("from %s to %s: %q, %v, wanted %q", c.from, c.to, s, err, c.want)
		}
	}
	if _, err := k.Ping(t.Context(), a("192.0.2.1"), []netip.Addr{a("2001:db8::2")}); err == nil || err.Error() != "ping from 192.0.2.1: 2001:db8::2 is of the other family" {
		t.Errorf("Ping over families: %v", err)
	}
	rx, err := k.Received(t.Context(), []string{"eth1", "none"})
	if err != nil || rx[0] == 0 || rx[1] != 0 {
		t.Errorf("Received: %v, %v", rx, err)
	}
}

func farHandle(t *testing.T, e *env, fn func(*netlink.Handle) error) {
	t.Helper()
	err := e.far.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return fn(h)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs a program of iproute2 in the namespace and decodes its JSON: the third witness.
func ip[T any](t *testing.T, ns *netns.NS, name string, args ...string) []T {
	t.Helper()
	var out []byte
	err := ns.Do(func() error {
		var err error
		out, err = exec.Command(name, args...).Output()
		return err
	})
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	var all []T
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return all
}

type ipLink struct {
	Ifname   string
	Ifalias  string
	Group    string
	Flags    []string
	Mtu      int
	Master   string
	Linkinfo struct {
		Kind     string          `json:"info_kind"`
		DataJSON json.RawMessage `json:"info_data"`
		Slave    struct {
			State         string
			Learning      bool
			NeighSuppress bool `json:"neigh_suppress"`
		} `json:"info_slave_data"`
		Data struct {
			ID, Port        int
			Local, Local6   string
			Learning        bool
			UDPCsum         bool `json:"udp_csum"`
			ZeroTx          bool `json:"udp_zero_csum6_tx"`
			ZeroRx          bool `json:"udp_zero_csum6_rx"`
			Link            string
			StpState        int `json:"stp_state"`
			McastSnooping   int `json:"mcast_snooping"`
			VlanFiltering   int `json:"vlan_filtering"`
			VlanDefaultPvid int `json:"vlan_default_pvid"`
			Mode            string
		} `json:"-"`
	}
	AddrInfo []struct {
		Local     string
		Prefixlen int
		Scope     string
		Nodad     bool
		Tentative bool
	} `json:"addr_info"`
}

func links(t *testing.T, ns *netns.NS) map[string]ipLink {
	t.Helper()
	all := map[string]ipLink{}
	for _, l := range ip[ipLink](t, ns, "ip", "-j", "-d", "addr") {
		if len(l.Linkinfo.DataJSON) > 0 {
			if err := json.Unmarshal(l.Linkinfo.DataJSON, &l.Linkinfo.Data); err != nil {
				t.Fatalf("%s: %v", l.Ifname, err)
			}
		}
		all[l.Ifname] = l
	}
	return all
}

// TestThirdWitness holds what the Kernel made and says against what ip(8) says.
func TestThirdWitness(t *testing.T) {
	k, e := open(t)
	one, six := vx(1, "192.0.2.1"), vx(6, "2001:db8::1")
	one.Master, one.NeighSuppress, one.MTU = "br1", true, 1450
	apply(t, k, create(bridge("br1", "172.16.0.1/24", "2001:db8:1::1/64")), create(one), create(six), dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
	one.Local, one.Up = netip.MustParseAddr("192.0.2.2"), true
	apply(t, k, set(one))
	saw := links(t, e.router)
	w := saw["vx1"]
	if w.Ifalias != "vtepd:vni/1" || w.Group != "7" || !slices.Contains(w.Flags, "UP") || w.Mtu != 1450 || w.Master != "br1" || len(w.AddrInfo) != 0 {
		t.Errorf("ip says %+v", w)
	}
	if d := w.Linkinfo.Data; w.Linkinfo.Kind != "vxlan" || d.ID != 1 || d.Port != 4789 || d.Local != "192.0.2.2" || d.Learning || d.Link != "" || !d.UDPCsum || d.ZeroTx || d.ZeroRx {
		t.Errorf("ip says %s", w.Linkinfo.DataJSON)
	}
	if s := w.Linkinfo.Slave; s.State != "forwarding" || s.Learning || !s.NeighSuppress {
		t.Errorf("ip says %+v", s)
	}
	if d := saw["vx6"].Linkinfo.Data; d.Local6 != "2001:db8::1" {
		t.Errorf("ip says %s", saw["vx6"].Linkinfo.DataJSON)
	}
	br := saw["br1"]
	if br.Ifalias != "vtepd:bridge/br1" || br.Linkinfo.Data.StpState != 0 || br.Linkinfo.Data.McastSnooping != 1 || br.Mtu != 1450 {
		t.Errorf("ip says %+v", br)
	}
	var addrs []string
	for _, a := range br.AddrInfo {
		if a.Tentative || strings.Contains(a.Local, ":") && !a.Nodad {
			t.Errorf("%s is or was tentative", a.Local)
		}
		addrs = append(addrs, fmt.Sprintf("%s/%d %s", a.Local, a.Prefixlen, a.Scope))
	}
	if s := strings.Join(addrs, ", "); s != "172.16.0.1/24 global, 2001:db8:1::1/64 global" {
		t.Errorf("ip says %s", s)
	}
	witness(t, k, e)
}

// witness compares every link that the Kernel sees with what ip(8) sees.
func witness(t *testing.T, k *kernel.Kernel, e *env) {
	t.Helper()
	saw := links(t, e.router)
	o, err := k.Observe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Links) != len(saw) {
		t.Errorf("%d links, ip sees %d", len(o.Links), len(saw))
	}
	for _, l := range o.Links {
		w := saw[l.Name]
		i := w.Linkinfo
		var addrs []netip.Prefix
		for _, a := range w.AddrInfo {
			if a.Scope == "global" {
				addrs = append(addrs, netip.PrefixFrom(netip.MustParseAddr(a.Local), a.Prefixlen))
			}
		}
		owner, _ := strings.CutPrefix(w.Ifalias, dataplane.AliasPrefix)
		want := dataplane.Link{
			Name: w.Ifname, Kind: dataplane.Kind(i.Kind), Owner: owner, Up: slices.Contains(w.Flags, "UP"), MTU: w.Mtu, Master: w.Master,
			Addrs: dataplane.SortedAddrs(addrs), VNI: uint32(i.Data.ID), Port: uint16(i.Data.Port), Mode: i.Data.Mode,
			Parent: l.Parent, ParentNetns: l.ParentNetns, VLAN: l.VLAN, VLANAware: i.Data.VlanFiltering == 1 && i.Data.VlanDefaultPvid == 0,
		}
		if s := i.Data.Local + i.Data.Local6; s != "" {
			want.Local = netip.MustParseAddr(s)
		}
		if l.Kind == dataplane.VXLAN {
			want.Learning, want.NeighSuppress = i.Data.Learning || i.Slave.Learning, i.Slave.NeighSuppress
		}
		if d := want.Diff(l); len(d) > 0 {
			t.Errorf("%s: %s by ip(8)", l.Name, strings.Join(d, ", "))
		}
		if g := fmt.Sprint(l.Group); g != strings.Replace(w.Group, "default", "0", 1) {
			t.Errorf("%s: group %s, ip says %s", l.Name, g, w.Group)
		}
	}
}

// TestLacks: a kind that no kernel has is named in the kernel's own words, and nothing is left of the trial.
func TestLacks(t *testing.T) {
	k, e := open(t)
	before := links(t, e.router)
	const want = "operation not supported (Unknown device type)"
	if why, err := k.Lacks(t.Context(), "nosuchkind"); why != want || err != nil {
		t.Errorf("nosuchkind: %q, %v; want %q", why, err, want)
	}
	if after := links(t, e.router); len(after) != len(before) {
		t.Errorf("there is more than before: %v", after)
	}
}
