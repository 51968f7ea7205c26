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

// Given is what others have answered for a config.
type Given struct {
	// Addrs are the address of every endpoint, by name, and those of the loopbacks that are to be made, by LoopbackKey: a
	// loopback that lacks one is left out.
	Addrs     map[string]netip.Addr
	Claims    []state.Claim                 // those of Addrs that come from pools
	Conflists map[string]dataplane.Conflist // of the endpoints on CNI attachments, by name
}

// Compute is the State for cfg. obs gives the MTUs of the parents: where a parent isn't there, Ethernet's is taken, and the plan's check
// refuses for the parent's sake.
func Compute(cfg *config.Config, given Given, obs dataplane.Observation) state.State {
	s, addrs := state.State{Claims: given.Claims}, given.Addrs
	mtus := make(map[string]int, len(cfg.Endpoints))
	for _, e := range cfg.Endpoints {
		addr := addrs[e.Name]
		var l dataplane.Link
		list := given.Conflists[e.Name]
		if e.Placement == config.PlacementCNI {
			a := Attachment(cfg.Node.Name, e, addr, list)
			s.Attachments = append(s.Attachments, a)
			l = a.AsLink()
		} else {
			l = endpoint(e, addr)
		}
		s.Links = append(s.Links, l)
		mtus[e.Name] = underlayMTU(l, list.MTU, obs)
		if e.Announce == config.AnnounceBGP {
			s.Routes = append(s.Routes, host(addr))
		}
	}
	for _, lo := range cfg.Loopbacks {
		l, ok := loopback(lo, addrs)
		if !ok {
			continue
		}
		s.Links = append(s.Links, l)
		s.Routes = append(s.Routes, l.Addrs...)
		if lo.Role == config.RoleRouterID {
			s.RouterID = addrs[LoopbackKey(lo.Name, "ipv4")]
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

// LoopbackClaimName is the name under which a router claims an address of one of its loopbacks; family is config.Family.Key.
func LoopbackClaimName(node, loopback, family string) string {
	return node + "/loopback/" + LoopbackKey(loopback, family)
}

// LoopbackKey is the name of a loopback's address among others: no endpoint has it.
func LoopbackKey(loopback, family string) string { return loopback + "/" + family }

// KeyOf is the endpoint's name, or the LoopbackKey, of a name made by ClaimName or LoopbackClaimName.
func KeyOf(claim string) string {
	_, object, _ := strings.Cut(claim, "/")
	_, key, _ := strings.Cut(object, "/")
	return key
}

// LoopbackOf is the loopback of a name made by LoopbackClaimName; "" for an endpoint's.
func LoopbackOf(claim string) string {
	name, _, ok := strings.Cut(KeyOf(claim), "/")
	if !ok {
		return ""
	}
	return name
}

// FieldOf is where a config asks for the address that a claim of that name is for.
func FieldOf(claim string) string {
	name, family, ok := strings.Cut(KeyOf(claim), "/")
	if !ok {
		return "endpoints." + name + ".address"
	}
	return "loopbacks." + name + "." + family
}

// RouterOf is the router of a name made by ClaimName or LoopbackClaimName.
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
	return linkName(e.Name, e.Name, string(e.Placement), e.ParentNetns, e.Parent, addr.String())
}

func linkName(name string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	suffix := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:5])
	return name[:min(len(name), 9)] + "-" + suffix
}

// Attachment is the CNI attachment of an endpoint. Its link's name is made as EndpointName, of the interface name and of all
// that the plugins are told: whatever changes, the new attachment stands beside the old one.
func Attachment(node string, e config.Endpoint, addr netip.Addr, list dataplane.Conflist) dataplane.Attachment {
	c := e.CNI
	link := linkName(c.InterfaceName, node, e.Name, string(e.Placement), c.InterfaceName, list.Text, c.PluginDirs, c.CacheDir, addr.String())
	return dataplane.Attachment{
		Link: link, Owner: state.EndpointOwner + e.Name, ContainerID: "vtepd-" + node + link[strings.LastIndex(link, "-"):],
		Conflist: list.Text, Parent: list.Master, Addr: host(addr), Path: c.PluginDirs, CacheDir: c.CacheDir,
	}
}

// loopback is the link of lo, if all of its addresses are there.
func loopback(lo config.Loopback, addrs map[string]netip.Addr) (dataplane.Link, bool) {
	owner := state.LoopbackOwner
	if lo.Role.Anycast() {
		owner = state.AnycastOwner
	}
	l := dataplane.Link{Name: lo.Name, Kind: dataplane.Dummy, Owner: owner + lo.Name, Up: true}
	for _, f := range lo.Families() {
		a, ok := addrs[LoopbackKey(lo.Name, f.Key)]
		if !ok {
			return dataplane.Link{}, false
		}
		l.Addrs = append(l.Addrs, host(a))
	}
	return l, true
}

func endpoint(e config.Endpoint, addr netip.Addr) dataplane.Link {
	l := dataplane.Link{
		Name: EndpointName(e, addr), Kind: dataplane.Dummy, Owner: state.EndpointOwner + e.Name, Up: true,
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

// underlayMTU is what a VXLAN over an endpoint can carry: the MTU of its link, its parent's unless it is given, less the
// encapsulation.
func underlayMTU(l dataplane.Link, given int, obs dataplane.Observation) int {
	mtu := loopbackMTU
	if l.Kind == dataplane.IPVLAN {
		if links, err := obs.In(l.ParentNetns); err == nil {
			if p, ok := dataplane.Find(links, l.Parent); ok && p.MTU != 0 {
				mtu = p.MTU
			}
		}
	}
	if given != 0 {
		mtu = given
	}
	if l.Addrs[0].Addr().Is4() {
		return mtu - overhead4
	}
	return mtu - overhead6
}
