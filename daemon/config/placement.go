package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// CNI is an attachment that CNI plugins make.
type CNI struct {
	Conflist      string // an absolute path
	InterfaceName string // its first nine bytes begin the link's name
	PluginDirs    string // absolute paths, separated by colons, as CNI_PATH has them
	CacheDir      string // an absolute path; "": in the daemon's state directory
}

// Loopback is a loopback of the fabric: a link of its own, named as in the file, with a host address of one family or of both.
type Loopback struct {
	Name string // a legal link name
	Role Role
	IPv4 Address // Kind is "" where there is none
	IPv6 Address
}

// Role is what a loopback is for.
type Role string

// The roles. The address of an anycast one is shared by the routers of its group.
const (
	RoleRouterID    Role = "router-id"    // its IPv4 address is FRR's router id where FRR has none configured
	RoleVTEP        Role = "vtep"         // the primary VTEP address
	RoleAnycastVTEP Role = "anycast-vtep" // shared by the VTEPs of a group
	RoleAnycastRP   Role = "anycast-rp"   // shared by the rendezvous points of a group
)

// Anycast reports whether other routers have the address too.
func (r Role) Anycast() bool { return r == RoleAnycastVTEP || r == RoleAnycastRP }

// Family is the address of a family of a loopback, by the name that the file has for it.
type Family struct {
	Key string // "ipv4" or "ipv6"
	Address
}

// Families are the addresses that a loopback has.
func (l Loopback) Families() []Family {
	var out []Family
	for _, f := range []Family{{"ipv4", l.IPv4}, {"ipv6", l.IPv6}} {
		if f.Kind != "" {
			out = append(out, f)
		}
	}
	return out
}

// Defaults of a CNI attachment.
const (
	DefaultInterfaceName = "net1"
	DefaultPluginDirs    = "/usr/lib/cni:/opt/cni/bin"
)

const maxLoopbacks = 256

// refused are keys that are known, and can't be: by the path of their mapping, with what is right instead.
var refused = map[string]map[string]string{
	"endpoints.*.cni": {
		"ips":          "the plugins are given the endpoint's own `address`, as the capability ips",
		"addresses":    "the plugins are given the endpoint's own `address`, as the capability ips",
		"disableCheck": "CHECK is how drift is found",
		"srv6":         "SRv6 is not supported over a CNI attachment, which carries VXLAN alone",
	},
	"endpoints.*": {"srv6": "SRv6 is not supported; an endpoint carries VXLAN alone"},
	"":            {"srv6": "SRv6 is not supported; an endpoint carries VXLAN alone"},
}

// placement reads where an endpoint's address is to be.
func (d *decoder) placement(e entry, o object, ep *Endpoint) {
	var kinds []string
	for _, key := range []string{"ipvlan", "loopback", "cni"} {
		if o.has(key) {
			kinds = append(kinds, key)
		}
	}
	switch {
	case len(kinds) == 0:
		d.bad(e.pos, o.path, "has none of ipvlan, loopback and cni; must have exactly one of the three")
		return
	case len(kinds) > 1:
		o.bad(kinds[1], "stands beside %s at %s; an endpoint has exactly one of ipvlan, loopback and cni", kinds[0], o.at(kinds[0]))
		return
	}
	ep.Placement = Placement(kinds[0])
	v, ok := o.section(kinds[0], "endpoints.*."+kinds[0])
	if !ok {
		return
	}
	switch ep.Placement {
	case PlacementIPVLAN:
		if !v.has("parent") {
			v.missing("parent", "name the link to sit on, such as eth1")
		}
		ep.Parent, _ = v.link("parent")
		if ns, ok := v.text("parentNetns", "a name under /run/netns or an absolute path"); ok {
			if why := badNetns(ns); why != "" {
				v.bad("parentNetns", "%s", why)
			}
			ep.ParentNetns = ns
		}
	case PlacementCNI:
		ep.CNI = v.cni()
	}
}

func (o object) cni() CNI {
	c := CNI{InterfaceName: DefaultInterfaceName, PluginDirs: DefaultPluginDirs}
	if !o.has("conflist") {
		o.missing("conflist", "write the absolute path of a CNI network configuration list")
	}
	c.Conflist = o.file("conflist")
	if name, ok := o.link("interfaceName"); ok {
		c.InterfaceName = name
	}
	c.CacheDir = o.file("cacheDir")
	if items, ok := o.list("pluginDirs", "a list of absolute paths", "an absolute path"); ok {
		var dirs []string
		for _, i := range items {
			if why := badPath(i.value); why != "" {
				o.d.bad(i.pos, i.field, "%s", why)
			} else if strings.Contains(i.value, ":") {
				o.d.bad(i.pos, i.field, "%s holds a colon, which separates directories in CNI_PATH; use another directory", quote(i.value))
			}
			dirs = append(dirs, i.value)
		}
		if len(o.vals["pluginDirs"].val.items) == 0 {
			o.bad("pluginDirs", "is an empty list; name at least one directory, or leave it out")
		}
		c.PluginDirs = strings.Join(dirs, ":")
	}
	return c
}

func (d *decoder) loopback(e entry) {
	at := join("loopbacks", e.key)
	if why := badLink(e.key); why != "" {
		d.bad(e.pos, at, "%s", why)
	} else if e.key == "lo" {
		d.bad(e.pos, at, "lo is the kernel's own; choose another name, such as lo0")
	}
	o, ok := d.object(e.val, e.pos, at, "loopbacks.*")
	if !ok {
		return
	}
	l := Loopback{Name: e.key}
	if !o.has("role") {
		o.missing("role", "write router-id, vtep, anycast-vtep or anycast-rp")
	} else {
		l.Role = choice(o, "role", RoleRouterID, RoleVTEP, RoleAnycastVTEP, RoleAnycastRP)
	}
	if !o.has("ipv4") && !o.has("ipv6") {
		d.bad(e.pos, at, "has neither ipv4 nor ipv6; must have at least one of the two")
	} else if l.Role == RoleRouterID && !o.has("ipv4") {
		o.missing("ipv4", "a router id is an IPv4 address")
	}
	for key, a := range map[string]*Address{"ipv4": &l.IPv4, "ipv6": &l.IPv6} {
		if s, ok := o.section(key, "loopbacks.*."+key); ok {
			d.address(s, a)
			d.loopbackAddress(s, l.Role, key, *a)
		}
	}
	d.cfg.Loopbacks = append(d.cfg.Loopbacks, l)
}

// loopbackAddress holds an address against its family, and its group against the role.
func (d *decoder) loopbackAddress(o object, role Role, key string, a Address) {
	name := map[string]string{"ipv4": "IPv4", "ipv6": "IPv6"}[key]
	fits := func(addr netip.Addr) bool { return addr.Is4() == (key == "ipv4") }
	if addr, fixed := a.Fixed(); fixed && addr.IsValid() && !fits(addr) {
		o.bad(string(a.Kind), "%s is not an %s address; must be one", addr, name)
	}
	if a.Prefer.IsValid() && !fits(a.Prefer) {
		o.bad("prefer", "%s is not an %s address; must be one", a.Prefer, name)
	}
	if a.Kind != AddressPool {
		return
	}
	if d.usable[a.Pool] && slices.ContainsFunc(d.pool(a.Pool).Addresses, func(p netip.Prefix) bool { return !fits(p.Addr()) }) {
		o.bad("pool", "pool %s at %s holds others than %s addresses; must hold those alone", a.Pool, d.cfg.At(join("pools", a.Pool)), name)
	}
	switch {
	case role.Anycast() && !o.has("group"):
		o.missing("group", "name the group of routers that share the address")
	case role != "" && !role.Anycast() && o.has("group"):
		o.bad("group", "goes with the roles anycast-vtep and anycast-rp; a loopback of role %s has an address of its own, leave it out", role)
	}
}

// loopbackClashes refuses a second router id, and a name that is something else as well.
func (d *decoder) loopbackClashes() {
	var id *Loopback
	for i, l := range d.cfg.Loopbacks {
		at := join("loopbacks", l.Name)
		if l.Role == RoleRouterID {
			if id != nil {
				d.bad(d.cfg.At(at+".role"), at+".role", "router-id is the role of %s at %s; a router has one", bare(id.Name), d.cfg.At(join("loopbacks", id.Name)+".role"))
			} else {
				id = &d.cfg.Loopbacks[i]
			}
		}
		if l.Name == d.cfg.VLANBridge {
			d.bad(d.cfg.At(at), at, "is the name of the VLAN-aware bridge at %s; choose another", d.cfg.At("vlanBridge.name"))
		}
		for _, v := range d.cfg.VNIs {
			field := fmt.Sprintf("vnis.%d", v.VNI)
			if l.Name == v.Bridge || l.Name == fmt.Sprintf("vxlan%d", v.VNI) {
				d.bad(d.cfg.At(at), at, "is the name of a link of VNI %d at %s; choose another", v.VNI, d.cfg.At(field))
			}
		}
		for _, e := range d.cfg.Endpoints {
			if e.Parent == l.Name && e.ParentNetns == "" {
				d.bad(d.cfg.At(at), at, "is the name of the parent of endpoint %s at %s; choose another", bare(e.Name), d.cfg.At(join("endpoints", e.Name)+".ipvlan.parent"))
			}
		}
	}
}
