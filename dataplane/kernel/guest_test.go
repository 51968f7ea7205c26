//go:build guest

package kernel_test

import (
	"flag"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/kerneltest"
)

func TestWholeSuite(t *testing.T) { kerneltest.Run(t, kerneltest.Full, openSuite) }

// TestFakeAndWholeKernelAgree takes a sample: the guest is slow, and each check makes namespaces.
func TestFakeAndWholeKernelAgree(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := checks.Value.Set("8"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(before) })
	kerneltest.Random(t, kerneltest.Full, openSuite, openFake)
}

// TestThirdWitnessOfEndpoints holds endpoints and VLANs against what ip(8) and bridge(8) say.
func TestThirdWitnessOfEndpoints(t *testing.T) {
	k, e := open(t)
	e.Add(t, dataplane.Link{Name: "eth1", Kind: "veth", Up: true})
	ep := dataplane.Link{
		Name: "vtep0", Kind: dataplane.IPVLAN, Owner: "endpoint/vtep0", Group: 7, Up: true, Parent: "eth1", Mode: "l3",
		Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::1/128")},
	}
	lo := dataplane.Link{Name: "lo1", Kind: dataplane.Dummy, Owner: "endpoint/lo1", Group: 7, Up: true, Addrs: []netip.Prefix{netip.MustParsePrefix("2001:db8::2/128")}}
	br, one := bridge("br0"), vx(1, "192.0.2.1")
	br.VLANAware, one.Master, one.VLAN, one.NeighSuppress = true, "br0", 10, true
	if err := k.Stage(t.Context(), []dataplane.Link{ep, lo}, []dataplane.Link{br, one}); err != nil {
		t.Fatal(err)
	}
	apply(t, k, dataplane.Op{Verb: dataplane.Expose, Link: ep}, dataplane.Op{Verb: dataplane.Expose, Link: lo}, create(br), create(one),
		dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
	saw := links(t, e.router)
	for _, name := range []string{"vtep0", "lo1"} {
		for _, a := range saw[name].AddrInfo {
			if a.Tentative || strings.Contains(a.Local, ":") && a.Scope == "global" && !a.Nodad {
				t.Errorf("%s of %s is or was tentative", a.Local, name)
			}
		}
		if w := saw[name]; w.Ifalias != "vtepd:endpoint/"+name || w.Group != "7" || !slices.Contains(w.Flags, "UP") {
			t.Errorf("ip says %+v", w)
		}
	}
	if d := saw["br0"].Linkinfo.Data; d.VlanFiltering != 1 || d.VlanDefaultPvid != 0 {
		t.Errorf("ip says %s", saw["br0"].Linkinfo.DataJSON)
	}
	type port struct {
		Ifname string
		Vlans  []struct {
			Vlan  int
			Flags []string
		}
	}
	for _, p := range ip[port](t, e.router, "bridge", "-j", "vlan") {
		if p.Ifname != "vx1" {
			continue
		}
		if len(p.Vlans) != 1 || p.Vlans[0].Vlan != 10 || !slices.Contains(p.Vlans[0].Flags, "PVID") || !slices.Contains(p.Vlans[0].Flags, "Egress Untagged") {
			t.Errorf("bridge says %+v", p)
		}
	}
	witness(t, k, e)
}
