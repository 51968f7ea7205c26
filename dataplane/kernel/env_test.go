package kernel_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
	"vtepd/dataplane/kernel"
	"vtepd/dataplane/kerneltest"
	"vtepd/dataplane/netns"
)

// env makes the things of others in namespaces of the test's own.
type env struct {
	router *netns.NS
	h      *netlink.Handle
	far    *netns.NS // where the peers of veths are
	peers  int
}

func newNetns(t testing.TB) (*netns.NS, *netlink.Handle) {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	h, err := netlink.NewHandleAt(vns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ns, h
}

func open(t testing.TB) (*kernel.Kernel, *env) {
	t.Helper()
	e := &env{}
	e.router, e.h = newNetns(t)
	e.far, _ = newNetns(t)
	k, err := kernel.Open(kernel.Options{Netns: e.router})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k, e
}

func openSuite(t testing.TB) (dataplane.Kernel, kerneltest.Env) { return open(t) }

func (e *env) Add(t testing.TB, links ...dataplane.Link) {
	t.Helper()
	for _, l := range links {
		if err := e.add(e.h, l); err != nil {
			t.Fatalf("add %s: %v", l, err)
		}
	}
}

func (e *env) add(h *netlink.Handle, l dataplane.Link) error {
	a := netlink.NewLinkAttrs()
	a.Name, a.Group, a.MTU = l.Name, l.Group, l.MTU
	var nl netlink.Link
	switch l.Kind {
	case "veth":
		e.peers++
		nl = &netlink.Veth{LinkAttrs: a, PeerName: fmt.Sprintf("peer%d", e.peers), PeerNamespace: netlink.NsFd(e.far.Fd())}
	case dataplane.Bridge:
		br := &netlink.Bridge{LinkAttrs: a}
		if l.VLANAware {
			on, pvid := true, uint16(0)
			br.VlanFiltering, br.VlanDefaultPVID = &on, &pvid
		}
		nl = br
	case dataplane.VXLAN:
		nl = &netlink.Vxlan{LinkAttrs: a, VxlanId: int(l.VNI), Port: int(l.Port), SrcAddr: net.IP(l.Local.AsSlice())}
	case dataplane.Dummy:
		nl = &netlink.Dummy{LinkAttrs: a}
	case dataplane.IPVLAN:
		parent, err := h.LinkByName(l.Parent)
		if err != nil {
			return err
		}
		a.ParentIndex = parent.Attrs().Index
		nl = &netlink.IPVlan{LinkAttrs: a, Mode: ipvlanModes[l.Mode]}
	case "vrf":
		nl = &netlink.Vrf{LinkAttrs: a, Table: 1000}
	default:
		return fmt.Errorf("unknown kind %q", l.Kind)
	}
	if err := h.LinkAdd(nl); err != nil {
		return err
	}
	return finish(h, l)
}

var ipvlanModes = map[string]netlink.IPVlanMode{"l2": netlink.IPVLAN_MODE_L2, "l3": netlink.IPVLAN_MODE_L3, "l3s": netlink.IPVLAN_MODE_L3S}

// finish sets what a creation doesn't.
func finish(h *netlink.Handle, l dataplane.Link) error {
	nl, err := h.LinkByName(l.Name)
	if err != nil {
		return err
	}
	if l.Group != 0 {
		if err := h.LinkSetGroup(nl, int(l.Group)); err != nil {
			return err
		}
	}
	if l.Master != "" {
		m, err := h.LinkByName(l.Master)
		if err == nil {
			err = h.LinkSetMaster(nl, m)
		}
		if err != nil {
			return err
		}
	}
	if l.Up {
		if err := h.LinkSetUp(nl); err != nil {
			return err
		}
	}
	for _, p := range l.Addrs {
		if err := h.AddrAdd(nl, &netlink.Addr{IPNet: ipnet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
	}
	return nil
}

func ipnet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (e *env) Remove(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		l, err := e.h.LinkByName(n)
		if err == nil {
			err = e.h.LinkDel(l)
		}
		if err != nil {
			t.Fatalf("remove %s: %v", n, err)
		}
	}
}

func (e *env) AddNetns(t testing.TB, links ...dataplane.Link) string {
	t.Helper()
	ns, h := newNetns(t)
	for _, l := range links {
		if err := e.add(h, l); err != nil {
			t.Fatalf("add %s elsewhere: %v", l, err)
		}
	}
	return fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
}

func (e *env) AddChild(t testing.TB, l dataplane.Link) {
	t.Helper()
	ns, h := newNetns(t)
	parent, err := e.h.LinkByName(l.Parent)
	if err != nil {
		t.Fatal(err)
	}
	a := netlink.NewLinkAttrs()
	a.Name, a.ParentIndex, a.Namespace = l.Name, parent.Attrs().Index, netlink.NsFd(ns.Fd())
	if err := e.h.LinkAdd(&netlink.IPVlan{LinkAttrs: a, Mode: ipvlanModes[l.Mode]}); err != nil {
		t.Fatalf("add %s elsewhere: %v", l, err)
	}
	if err := finish(h, l); err != nil {
		t.Fatal(err)
	}
}

func TestSuite(t *testing.T) { kerneltest.Run(t, kerneltest.Plain, openSuite) }
