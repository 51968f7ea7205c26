package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// Refusal is a reason why a State can't be reached, found before anything is touched.
type Refusal struct {
	Field string // of the config, dotted: endpoints.vtep0.ipvlan.parent
	Msg   string // what is wrong, what would be right
}

func (r Refusal) String() string { return r.Field + ": " + r.Msg }

// Look is what Check and Compute look at: one observation of the kernel and one of FRR, made for the new state.
type Look struct {
	Kernel dataplane.Observation
	FRR    frr.Observation
	// Lacks says why the kernel can't make links of a kind; Invalid, by attachment's link, what keeps plugins from being used.
	Lacks   map[dataplane.Kind]string
	Invalid map[string][]string
	Shared  []string // the addresses that other routers may have too (anycast)
}

// Check says all that stands in the way of going from the observed state a to b. It judges what is new or changes; what
// runs already is never refused.
func Check(a, b state.State, look Look) []Refusal {
	c := checker{a: a.Normal(), b: b.Normal(), look: look}
	c.d = compare(c.a, c.b)
	c.lacks()
	for _, l := range c.d.addEndpoints {
		c.name(l)
		c.parent(l)
		c.addresses(l, l.Addrs)
		if a, ok := c.b.Attachment(l.Name); ok {
			for _, why := range look.Invalid[a.Link] {
				c.refuse(field(l)+".cni.conflist", "%s", why)
			}
		}
	}
	for _, ch := range slices.Concat(c.d.readdress, c.d.restore) {
		c.addresses(ch.new, missing(ch.new.Addrs, ch.old.Addrs))
	}
	for _, h := range c.d.handovers {
		c.name(h.hold)
	}
	for _, l := range c.d.addBridges {
		c.name(l)
	}
	for _, l := range c.d.addVXLANs {
		c.name(l)
		c.vni(l)
	}
	for _, ch := range c.d.replace {
		c.parent(ch.new)
		if ch.new.Kind == dataplane.Bridge {
			c.refuse("vlanBridge", "bridge %s can't change between VLAN-aware and not while it is there; give the new one another name", ch.new.Name)
		}
	}
	c.router()
	return c.out
}

type checker struct {
	a, b state.State
	d    diff
	look Look
	out  []Refusal
}

func (c *checker) refuse(field, format string, args ...any) {
	c.out = append(c.out, Refusal{Field: field, Msg: fmt.Sprintf(format, args...)})
}

// field is the place in the config that a link of ours comes from.
func field(l dataplane.Link) string {
	kind, name, _ := strings.Cut(l.Owner, "/")
	switch kind + "/" {
	case state.EndpointOwner, state.HoldOwner:
		return "endpoints." + name
	case state.LoopbackOwner, state.AnycastOwner:
		return "loopbacks." + name
	}
	switch kind {
	case "vni":
		return "vnis." + name
	}
	return kind + " " + name
}

// lacks: what the data plane can't make, once for a section of the config.
func (c *checker) lacks() {
	said := map[string]bool{}
	for _, l := range slices.Concat(c.d.addEndpoints, c.d.addBridges, c.d.addVXLANs) {
		why := c.look.Lacks[l.Kind]
		section, _, _ := strings.Cut(field(l), ".")
		if why == "" || said[section+string(l.Kind)] {
			continue
		}
		said[section+string(l.Kind)] = true
		what := fmt.Sprintf("the kernel can't make %s links: %s; load the module %s, or boot a kernel that has it", l.Kind, why, l.Kind)
		if state.IsLoopback(l) {
			what = "this data plane has no loopbacks: " + what
		}
		c.refuse(section, "%s", what)
	}
	for _, h := range c.d.handovers {
		if why := c.look.Lacks[dataplane.Dummy]; why != "" {
			c.refuse(field(h.new), "its address stays on %s while its link changes, and a dummy link must hold it in between; the kernel can't make those: %s", h.new.Parent, why)
		}
	}
}

// name: the kernel has one link of a name.
func (c *checker) name(l dataplane.Link) {
	if f, ok := dataplane.Find(c.look.Kernel.Links, l.Name); ok && !f.Ours() {
		c.refuse(field(l), "the name %s is taken by a link that vtepd didn't make (%s); rename that one, or choose another name", l.Name, kindOf(f))
	}
}

func kindOf(l dataplane.Link) string {
	if l.Kind == "" {
		return "a port"
	}
	return "a " + string(l.Kind)
}

// parent: an ipvlan needs a lower device that is there, up, not a bridge port, and not in another mode.
func (c *checker) parent(l dataplane.Link) {
	if l.Kind != dataplane.IPVLAN {
		return
	}
	at := parentField(c.b, l)
	links, err := c.look.Kernel.In(l.ParentNetns)
	if err != nil {
		c.refuse(field(l)+".ipvlan.parentNetns", "namespace %s: %v", l.ParentNetns, err)
		return
	}
	where := "the router's namespace"
	if l.ParentNetns != "" {
		where = "namespace " + l.ParentNetns
	}
	p, ok := dataplane.Find(links, l.Parent)
	if !ok {
		c.refuse(at, "no link %s in %s; links there: %s", l.Parent, where, abbreviate(parents(links)))
		return
	}
	if !p.Up {
		c.refuse(at, "%s is down; set it up first", p.Name)
	}
	if p.Kind == dataplane.IPVLAN {
		c.refuse(at, "%s is an ipvlan itself; name its parent %s", p.Name, p.Parent)
	}
	if m, ok := dataplane.Find(links, p.Master); ok && m.Kind == dataplane.Bridge {
		c.refuse(at, "%s is a port of bridge %s, and the kernel lets no ipvlan onto a bridge port; take it out of the bridge, or name another parent", p.Name, m.Name)
	}
	for _, o := range append(slices.Clone(c.look.Kernel.Links), links...) {
		if o.Kind == dataplane.IPVLAN && o.Parent == p.Name && o.ParentNetns == l.ParentNetns && o.Mode != "l3" {
			c.refuse(at, "%s has the ipvlan %s in mode %s, and all ipvlans of a parent share one mode; vtepd needs l3", p.Name, o.Name, o.Mode)
			break
		}
	}
	for _, a := range p.Addrs {
		if slices.ContainsFunc(l.Addrs, func(b netip.Prefix) bool { return a.Addr() == b.Addr() }) {
			c.refuse(field(l)+".address", "%s is on the parent %s itself; take another address", a.Addr(), p.Name)
		}
	}
}

// parentField is where the config names the parent of an ipvlan.
func parentField(s state.State, l dataplane.Link) string {
	if _, ok := s.Attachment(l.Name); ok {
		return field(l) + ".cni.conflist"
	}
	return field(l) + ".ipvlan.parent"
}

// Ailments says what keeps the endpoints of a state that is there from working, and isn't vtepd's to mend.
func Ailments(s state.State, k dataplane.Observation) []Refusal {
	var out []Refusal
	for _, l := range s.Endpoints() {
		links, err := k.In(l.ParentNetns)
		if l.Kind != dataplane.IPVLAN || err != nil {
			continue
		}
		if p, ok := dataplane.Find(links, l.Parent); ok && !p.Up {
			out = append(out, Refusal{parentField(s, l), p.Name + " is down, and the endpoint with it; set it up"})
		}
	}
	return out
}

// Unseen says what FRR doesn't show of a VXLAN that is up: zebra's VTEP, and BGP's type-3 route from it.
func Unseen(l dataplane.Link, f frr.Observation) []string {
	i := slices.IndexFunc(f.VNIs, func(v frr.VNI) bool { return v.VNI == l.VNI })
	switch {
	case i < 0:
		return []string{fmt.Sprintf("zebra doesn't know VNI %d", l.VNI)}
	case f.VNIs[i].L3:
		return []string{fmt.Sprintf("zebra has VNI %d as the L3 VNI of a VRF", l.VNI)}
	case f.VNIs[i].Device != l.Name:
		return []string{fmt.Sprintf("zebra has VNI %d on %s, not on %s", l.VNI, f.VNIs[i].Device, l.Name)}
	case f.VNIs[i].Local != l.Local:
		return []string{fmt.Sprintf("zebra has VTEP %s for VNI %d, not %s", f.VNIs[i].Local, l.VNI, l.Local)}
	}
	var seen []string
	for _, t := range f.Type3 {
		if !t.Local || t.VNI != l.VNI {
			continue
		}
		if t.Origin == l.Local && t.NextHop == l.Local {
			return nil
		}
		seen = append(seen, t.NextHop.String())
	}
	if seen == nil {
		return []string{fmt.Sprintf("BGP has no type-3 route of its own for VNI %d", l.VNI)}
	}
	return []string{fmt.Sprintf("BGP's type-3 route for VNI %d has next hop %s, not %s", l.VNI, strings.Join(seen, " and "), l.Local)}
}

// parents are the names of links that an ipvlan could sit on.
func parents(links []dataplane.Link) []string {
	var out []string
	for _, l := range links {
		if l.Kind != dataplane.IPVLAN && l.Kind != dataplane.VXLAN && l.Kind != dataplane.Bridge && l.Name != "lo" {
			out = append(out, l.Name)
		}
	}
	return out
}

func (c *checker) addresses(l dataplane.Link, addrs []netip.Prefix) {
	for _, p := range addrs {
		c.address(l, p.Addr())
		c.announcedElsewhere(l, p.Addr())
	}
}

// addressField is where the config gives a link its address.
func addressField(l dataplane.Link, addr netip.Addr) string {
	switch {
	case !state.IsLoopback(l):
		return field(l) + ".address"
	case addr.Is4():
		return field(l) + ".ipv4"
	}
	return field(l) + ".ipv6"
}

// address: it is nobody else's in the router's namespace, and free on the parent.
func (c *checker) address(l dataplane.Link, addr netip.Addr) {
	for _, o := range c.look.Kernel.Links {
		if !slices.ContainsFunc(o.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			continue
		}
		switch {
		case !o.Ours() && o.Name != l.Parent:
			c.refuse(addressField(l, addr), "%s is on %s already, which vtepd doesn't own; take another address, or remove it there", addr, o.Name)
		case slices.ContainsFunc(c.d.handovers, func(h handover) bool { return h.old.Name == o.Name && h.new.Name == l.Name }):
		case o.Ours() && l.Kind == dataplane.IPVLAN && o.Kind == dataplane.IPVLAN && o.Parent == l.Parent && o.ParentNetns == l.ParentNetns:
			c.refuse(field(l)+".address", "%s is on %s (%s), and an address is unique among the ipvlans of one parent; "+
				"take another address or another parent", addr, o.Name, o.Owner)
		}
	}
}

// announcedElsewhere: two routers with one VTEP address take each other's traffic.
func (c *checker) announcedElsewhere(l dataplane.Link, addr netip.Addr) {
	if slices.Contains(c.look.Shared, addr.String()) || strings.HasPrefix(l.Owner, state.AnycastOwner) {
		return
	}
	for _, r := range c.look.FRR.Routes {
		if r.Prefix.Addr() != addr {
			continue
		}
		for _, s := range r.Others {
			if s.Origin != c.look.FRR.Instance.RouterID {
				c.refuse(addressField(l, addr), "%s is announced by another router already: %s; a VTEP address belongs to one router", r.Prefix, s)
				return
			}
		}
	}
	for _, t := range c.look.FRR.Type3 {
		if !t.Local && t.Origin == addr {
			c.refuse(addressField(l, addr), "%s is the VTEP of another router already (type-3 route %s from peer %s); a VTEP address belongs to one router", addr, t.RD, t.Peer)
			return
		}
	}
}

// vni: zebra dies when one of two VXLANs of one VNI in its namespace goes down.
func (c *checker) vni(l dataplane.Link) {
	for _, o := range c.look.Kernel.Links {
		if o.Kind == dataplane.VXLAN && o.VNI == l.VNI && !o.Ours() {
			c.refuse(field(l), "VNI %d is on %s already, which vtepd didn't make; remove that link, or choose another VNI", l.VNI, o.Name)
		}
	}
}

// router: what FRR must have, and be, for the new state.
func (c *checker) router() {
	f := c.look.FRR
	vxlans := c.b.VXLANs()
	if len(vxlans)+len(c.b.Routes) == 0 && !c.b.RouterID.IsValid() {
		return
	}
	if f.Instance.ASN == 0 {
		c.refuse("frr", "FRR has no `router bgp` in the default VRF; configure it and its neighbours there, vtepd never makes the instance")
		return
	}
	if len(vxlans) > 0 && !f.EVPN && !c.b.EVPN {
		c.refuse("frr.evpn", "`router bgp %d` has no `advertise-all-vni` below `address-family l2vpn evpn`; configure it, or let vtepd do it with `evpn: create`", f.Instance.ASN)
	}
	for _, l := range vxlans {
		if l.Local.Is6() && !f.Version.AtLeast(10, 6) {
			c.refuse(field(l)+".endpoint", "VTEP %s is IPv6, which needs FRR 10.6 or newer; this is %s", l.Local, f.Version)
		}
	}
	if len(c.d.addRoutes) == 0 {
		return
	}
	if f.RouteMap.Present && !f.RouteMap.Ours {
		c.refuse("frr", "the route-map %s in FRR is not vtepd's, which marks its host routes with that name; rename yours", frr.Mark)
	}
}

// disruptions is what the change interrupts. What is away from the swap on comes back with the proof of the new state, or with that of
// the old one; what hangs on others has no time of vtepd's, and so it is said what they must do.
func disruptions(a, b state.State, d diff, in Input) []Disruption {
	atMost := fmt.Sprintf("at most %s until that is proven, or else %s more until everything is as it was", in.Timeout, in.Undo)
	var out []Disruption
	add := func(object, format string, args ...any) {
		out = append(out, Disruption{Object: object, Why: fmt.Sprintf(format, args...)})
	}
	for _, c := range d.replace {
		if c.new.Kind == dataplane.VXLAN && c.old.Port != c.new.Port {
			add(c.new.Name, "the port can't change from %d to %d in place: VNI %d is deleted and made again, and its traffic stops until BGP has taught it the remote addresses again, %s; "+
				"between it and a remote router it stops until that has the port too",
				c.old.Port, c.new.Port, c.new.VNI, atMost)
			continue
		}
		add(c.new.Name, "can't be changed in place (%s): it is deleted and made again, and what runs over it stops until then, %s", c.new.Kind, atMost)
	}
	for _, c := range d.set {
		if c.old.Kind != dataplane.VXLAN {
			continue
		}
		if c.old.Master != c.new.Master && c.old.Master != "" {
			add(c.new.Name, "moves from bridge %s to %s: the hosts on %s lose VNI %d for as long as their ports, which are yours, stay there", c.old.Master, c.new.Master, c.old.Master, c.new.VNI)
		} else if c.old.VLAN != c.new.VLAN {
			add(c.new.Name, "moves from VLAN %d to %d: the hosts in VLAN %d lose VNI %d for as long as their ports, which are yours, stay there", c.old.VLAN, c.new.VLAN, c.old.VLAN, c.new.VNI)
		}
	}
	for _, l := range d.delVXLANs {
		if clash(l, d) {
			add(l.Name, "gives its place on bridge %s to another VNI: what VNI %d carries ends for good when the other begins", l.Master, l.VNI)
		}
	}
	for _, b := range d.delBridges {
		var ports []string
		for _, l := range in.Links {
			if l.Master == b.Name && !l.Ours() {
				ports = append(ports, l.Name)
			}
		}
		if len(ports) > 0 {
			add(b.Name, "still has ports that vtepd doesn't own (%s), and they lose their bridge for as long as you give them no other; take them out first", strings.Join(ports, ", "))
		}
	}
	if d.routerID && b.RouterID != in.RouterID {
		var peers []string
		for _, s := range in.Sessions {
			if s.Established {
				peers = append(peers, s.Peer)
			}
		}
		if to := b.RouterID; len(peers) > 0 && to.IsValid() {
			add("bgp router-id", "changes from %s to %s: the sessions with %s restart, %s", in.RouterID, to, strings.Join(peers, ", "), sessionsRestart)
		} else if len(peers) > 0 {
			add("bgp router-id", "is taken back, and FRR chooses another one for %s: the sessions with %s restart, %s", in.RouterID, strings.Join(peers, ", "), sessionsRestart)
		}
	}
	gone := leaving(a, d)
	for _, addr := range gone {
		if who := usedBy(addr, d.delEndpoints, in); who != "" {
			add(addr.String(), "%s", who)
		}
	}
	for _, l := range d.delEndpoints { // the address may stay on another link, the name of this one goes
		var peers []string
		for _, s := range in.Sessions {
			if s.UpdateSource == l.Name && !slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return slices.Contains(gone, p.Addr()) }) {
				peers = append(peers, s.Peer)
			}
		}
		if len(peers) > 0 {
			add(l.Name, "is the update-source of the BGP sessions with %s: %s", strings.Join(peers, ", "), sessionsFall)
		}
	}
	return out
}

// What becomes of sessions.
const (
	sessionsFall    = "they go down, for as long as they aren't configured otherwise"
	sessionsRestart = "and are away until they connect again by FRR's and the peers' own timers (`timers connect`)"
)

// leaving are the endpoint addresses that the router won't have any more.
func leaving(a state.State, d diff) []netip.Addr {
	going := names(d.delEndpoints)
	for _, c := range d.readdress {
		going = append(going, c.old.Name)
	}
	stays := func(p netip.Prefix) bool {
		has := func(l dataplane.Link) bool { return slices.Contains(l.Addrs, p) }
		keeps := func(c change) bool { return has(c.new) }
		return slices.ContainsFunc(d.addEndpoints, has) || slices.ContainsFunc(d.readdress, keeps) || slices.ContainsFunc(a.Links, func(l dataplane.Link) bool {
			return !slices.Contains(going, l.Name) && has(l)
		})
	}
	var out []netip.Addr
	for _, l := range d.delEndpoints {
		for _, p := range l.Addrs {
			if !stays(p) && !slices.Contains(out, p.Addr()) {
				out = append(out, p.Addr())
			}
		}
	}
	for _, c := range d.readdress {
		for _, p := range missing(c.old.Addrs, c.new.Addrs) {
			if !stays(p) && !slices.Contains(out, p.Addr()) {
				out = append(out, p.Addr())
			}
		}
	}
	return out
}

// usedBy says which BGP sessions stand on an address.
func usedBy(addr netip.Addr, going []dataplane.Link, in Input) string {
	var peers []string
	for _, s := range in.Sessions {
		onLink := slices.ContainsFunc(going, func(l dataplane.Link) bool {
			return l.Name == s.UpdateSource && slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
		})
		if s.Local == addr || s.UpdateSource == addr.String() || onLink {
			peers = append(peers, s.Peer)
		}
	}
	if len(peers) > 0 {
		return "is the local end of the BGP sessions with " + strings.Join(peers, ", ") + ": " + sessionsFall
	}
	if in.RouterID == addr && !in.Configured {
		return "is FRR's router id: all BGP sessions restart when FRR chooses another one, " + sessionsRestart
	}
	return ""
}
