// Package desired turns a Config and the addresses claimed for it into the State that a router shall have. It is pure and
// total, its result sorted; it is the one place where the vocabularies of config, alloc, dataplane and frr meet.
package desired

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"

	"vtepd/daemon/config"
	"vtepd/daemon/state"
	"vtepd/dataplane"
)

// Bytes that VXLAN puts around a frame: outer IP and UDP, VXLAN, inner Ethernet (RFC 7348).
const (
	overhead4 = 50
	overhead6 = 70
	// loopbackMTU is the underlay's when the endpoint is on no port: what Ethernet carries.
	loopbackMTU = 1500
)

// Compute is the State for cfg. addrs has the address of every endpoint by name, the claims being those of them that come
// from pools. obs gives the MTUs of the parents: where a parent isn't there, Ethernet's is taken, and the plan's check
// refuses for the parent's sake.
func Compute(cfg *config.Config, addrs map[string]netip.Addr, claims []state.Claim, obs dataplane.Observation) state.State {
	s := state.State{Claims: claims}
	mtus := make(map[string]int, len(cfg.Endpoints))
	for _, e := range cfg.Endpoints {
		addr := addrs[e.Name]
		s.Links = append(s.Links, endpoint(e, addr))
		mtus[e.Name] = underlayMTU(e, addr, obs)
		if e.Announce == config.AnnounceBGP {
			s.Routes = append(s.Routes, host(addr))
		}
	}
	tagged := false
	for _, v := range cfg.VNIs {
		l := dataplane.Link{
			Name: VXLANName(v.VNI), Kind: dataplane.VXLAN, Owner: fmt.Sprintf("vni/%d", v.VNI), Up: true,
			MTU: v.MTU, VNI: v.VNI, Port: v.Port, Local: addrs[v.Endpoint], NeighSuppress: true,
		}
		if l.MTU == 0 {
			l.MTU = mtus[v.Endpoint]
		}
		if v.VLAN != 0 {
			l.Master, l.VLAN, tagged = cfg.VLANBridge, v.VLAN, true
		} else {
			l.Master = v.Bridge
			s.Links = append(s.Links, bridge(v.Bridge, false))
		}
		s.Links = append(s.Links, l)
	}
	if tagged {
		s.Links = append(s.Links, bridge(cfg.VLANBridge, true))
	}
	s.EVPN = cfg.FRR.EVPN == config.EVPNCreate && len(cfg.VNIs) > 0
	return s.Normal()
}

// ClaimName is the name under which a router claims the address of one of its endpoints.
func ClaimName(node, endpoint string) string { return node + "/endpoint/" + endpoint }

// EndpointOf is the endpoint of a name made by ClaimName.
func EndpointOf(claim string) string {
	_, name, _ := strings.Cut(claim, "/endpoint/")
	return name
}

// RouterOf is the router of a name made by ClaimName.
func RouterOf(claim string) string {
	router, _, _ := strings.Cut(claim, "/")
	return router
}

// VXLANName is the name of the VXLAN device of a VNI: at most 13 bytes.
func VXLANName(vni uint32) string { return fmt.Sprintf("vxlan%d", vni) }

// EndpointName is the name of an endpoint's link: the first nine bytes of the endpoint's name and five characters made
// from all that the link can't change in place. So the old and the new link of an endpoint that moves can stand side by
// side, and the same endpoint has the same link after every start.
func EndpointName(e config.Endpoint, addr netip.Addr) string {
	key := strings.Join([]string{e.Name, string(e.Placement), e.ParentNetns, e.Parent, addr.String()}, "\x00")
	sum := sha256.Sum256([]byte(key))
	suffix := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:5])
	return e.Name[:min(len(e.Name), 9)] + "-" + suffix
}

func endpoint(e config.Endpoint, addr netip.Addr) dataplane.Link {
	l := dataplane.Link{
		Name: EndpointName(e, addr), Kind: dataplane.Dummy, Owner: "endpoint/" + e.Name, Up: true,
		Addrs: []netip.Prefix{host(addr)},
	}
	if e.Placement == config.PlacementIPVLAN {
		l.Kind, l.Mode, l.Parent, l.ParentNetns = dataplane.IPVLAN, "l3", e.Parent, e.ParentNetns
	}
	return l
}

func bridge(name string, vlanAware bool) dataplane.Link {
	return dataplane.Link{Name: name, Kind: dataplane.Bridge, Owner: "bridge/" + name, Up: true, VLANAware: vlanAware}
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// underlayMTU is what a VXLAN over the endpoint can carry: the parent's MTU less the encapsulation.
func underlayMTU(e config.Endpoint, addr netip.Addr, obs dataplane.Observation) int {
	mtu := loopbackMTU
	if e.Placement == config.PlacementIPVLAN {
		if links, err := obs.In(e.ParentNetns); err == nil {
			if p, ok := dataplane.Find(links, e.Parent); ok && p.MTU != 0 {
				mtu = p.MTU
			}
		}
	}
	if addr.Is4() {
		return mtu - overhead4
	}
	return mtu - overhead6
}
