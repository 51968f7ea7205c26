package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
)

// retries is how often an interrupted dump is taken again before it is an error.
const retries = 100

// detail is what a write needs to know of a link beside its value.
type detail struct {
	index       int32
	parent      int32 // IFLA_LINK; 0: none
	parentNSID  int   // IFLA_LINK_NETNSID; -1: the link's own namespace
	bridge      bool  // the master is a bridge
	filtering   bool  // of a bridge: it looks at VLANs
	defaultPVID uint16
	devLearning bool // the VXLAN's own flag
	port        port // its bridge port's
	secondary   map[netip.Prefix]bool
}

// port is what a bridge port is set to.
type port struct {
	learning, neighSuppress bool
	pvid                    uint16
	untagged                bool
}

// table is all links of one namespace: values, sorted by name, and details.
type table struct {
	links   []dataplane.Link
	details map[string]*detail
}

// Observe implements dataplane.Kernel.
func (k *Kernel) Observe(ctx context.Context, names []string) (dataplane.Observation, error) {
	ps, failed := k.openParents(names)
	o, err := k.observe(ctx, names, ps, failed)
	if err := errors.Join(err, ps.close()); err != nil {
		return dataplane.Observation{}, err
	}
	return o, nil
}

func (k *Kernel) observe(ctx context.Context, names []string, ps parents, failed map[string]error) (dataplane.Observation, error) {
	t, err := k.readWith(ctx, k.router, ps)
	if err != nil {
		return dataplane.Observation{}, err
	}
	o := dataplane.Observation{Links: t.links}
	for _, n := range names {
		seen := dataplane.Netns{Name: n}
		if err := failed[n]; err != nil {
			seen.Err = err.Error()
		} else {
			t, err := k.readWith(ctx, ps[n], ps)
			if err != nil {
				return dataplane.Observation{}, fmt.Errorf("namespace %s: %w", n, err)
			}
			seen.Links = t.links
		}
		o.Netns = append(o.Netns, seen)
	}
	return o, nil
}

// readWith reads the links of v, once for as long as ps is open, and finds their parents in ps.
func (k *Kernel) readWith(ctx context.Context, v *view, ps parents) (*table, error) {
	t, err := k.cached(ctx, v)
	if err != nil {
		return nil, err
	}
	return t, k.findParents(ctx, v, t, ps)
}

func (k *Kernel) findParents(ctx context.Context, v *view, t *table, ps parents) error {
	ids := map[int]string{} // what v calls the namespaces
	home := "?"
	elsewhere := slices.ContainsFunc(t.links, func(l dataplane.Link) bool {
		return l.Kind == dataplane.IPVLAN && t.details[l.Name].parentNSID >= 0
	})
	for name, p := range ps {
		if p == v {
			home = name
			continue
		}
		if !elsewhere {
			continue
		}
		id, err := v.h.GetNetNsIdByFd(p.ns.Fd())
		if err != nil {
			return fmt.Errorf("id of namespace %q: %w", name, err)
		}
		if id >= 0 {
			ids[id] = name
		}
	}
	for i := range t.links {
		l := &t.links[i]
		d := t.details[l.Name]
		if l.Kind != dataplane.IPVLAN {
			continue
		}
		l.Parent = "?"
		name, at := home, t
		if d.parentNSID >= 0 {
			var ok bool
			if name, ok = ids[d.parentNSID]; !ok {
				continue
			}
			var err error
			if at, err = k.cached(ctx, ps[name]); err != nil {
				return err
			}
		}
		if p, ok := at.byIndex(d.parent); ok && name != "?" {
			l.Parent, l.ParentNetns = p, name
		}
	}
	return nil
}

// cached is the table of v, read once until parents are closed.
func (k *Kernel) cached(ctx context.Context, v *view) (*table, error) {
	if v.table != nil {
		return v.table, nil
	}
	t, err := k.read(ctx, v)
	if err == nil {
		v.table = t
	}
	return t, err
}

func (t *table) byIndex(index int32) (string, bool) {
	for name, d := range t.details {
		if d.index == index {
			return name, true
		}
	}
	return "", false
}

// dump takes a table, again where it was interrupted.
func dump[T any](ctx context.Context, k *Kernel, take func() (T, error)) (T, error) {
	var all T
	var err error
	for range retries {
		if err = ctx.Err(); err != nil {
			return all, err
		}
		k.counts.Dumps++
		if all, err = take(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, fmt.Errorf("%w %d times", err, retries)
}

// read reads the links of v, all but their parents' names.
func (k *Kernel) read(ctx context.Context, v *view) (*table, error) {
	links, err := dump(ctx, k, v.h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	addrs, err := dump(ctx, k, func() ([]netlink.Addr, error) { return v.h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	var ports map[int32]port
	if slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex != 0 && l.Type() == string(dataplane.VXLAN) }) {
		if ports, err = dump(ctx, k, v.ports); err != nil {
			return nil, fmt.Errorf("read bridge ports: %w", err)
		}
	}
	names := make(map[int]netlink.Link, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = l
	}
	t := &table{details: make(map[string]*detail, len(links))}
	byIndex := make(map[int]int, len(links))
	for _, nl := range links {
		l, d := value(nl)
		if m, ok := names[nl.Attrs().MasterIndex]; ok {
			l.Master = m.Attrs().Name
			if br, ok := m.(*netlink.Bridge); ok && l.Kind == dataplane.VXLAN {
				d.bridge, d.port = true, ports[d.index]
				l.Learning = l.Learning || d.port.learning
				l.NeighSuppress = d.port.neighSuppress
				if br.VlanFiltering == nil || !*br.VlanFiltering {
					// A port has VLANs all the same, the bridge's default to begin with; they mean nothing.
					d.port.pvid, d.port.untagged = 0, false
				}
				if d.port.untagged {
					l.VLAN = d.port.pvid
				}
			}
		}
		byIndex[nl.Attrs().Index] = len(t.links)
		t.links = append(t.links, l)
		t.details[l.Name] = &d
	}
	for _, a := range addrs {
		i, ok := byIndex[a.LinkIndex]
		if !ok || a.IPNet == nil || a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		p, ok := prefix(a.IPNet)
		if !ok {
			continue
		}
		l := &t.links[i]
		l.Addrs = append(l.Addrs, p)
		if a.Flags&unix.IFA_F_SECONDARY != 0 && p.Addr().Is4() {
			d := t.details[l.Name]
			if d.secondary == nil {
				d.secondary = map[netip.Prefix]bool{}
			}
			d.secondary[p] = true
		}
	}
	for i := range t.links {
		t.links[i].Addrs = dataplane.SortedAddrs(t.links[i].Addrs)
	}
	dataplane.SortLinks(t.links)
	return t, nil
}

// value is a link as the library read it, without what is in other tables.
func value(nl netlink.Link) (dataplane.Link, detail) {
	a := nl.Attrs()
	l := dataplane.Link{Name: a.Name, Kind: dataplane.Kind(nl.Type()), Group: a.Group, Up: a.Flags&net.FlagUp != 0, MTU: a.MTU}
	l.Owner, _ = strings.CutPrefix(a.Alias, dataplane.AliasPrefix)
	if !strings.HasPrefix(a.Alias, dataplane.AliasPrefix) {
		l.Owner = ""
	}
	d := detail{index: int32(a.Index), parentNSID: -1}
	switch x := nl.(type) {
	case *netlink.Device:
		l.Kind = ""
	case *netlink.Vxlan:
		l.VNI, l.Port, l.Learning = uint32(x.VxlanId), uint16(x.Port), x.Learning
		l.Local, _ = netip.AddrFromSlice(x.SrcAddr)
		d.devLearning = x.Learning
	case *netlink.Bridge:
		d.filtering = x.VlanFiltering != nil && *x.VlanFiltering
		if x.VlanDefaultPVID != nil {
			d.defaultPVID = *x.VlanDefaultPVID
		}
		l.VLANAware = d.filtering && d.defaultPVID == 0
	case *netlink.IPVlan:
		l.Mode = modeName(x.Mode)
		d.parent, d.parentNSID = int32(a.ParentIndex), a.NetNsID
	}
	return l, d
}

var modes = []string{netlink.IPVLAN_MODE_L2: "l2", netlink.IPVLAN_MODE_L3: "l3", netlink.IPVLAN_MODE_L3S: "l3s"}

func modeName(m netlink.IPVlanMode) string {
	if int(m) < len(modes) {
		return modes[m]
	}
	return fmt.Sprint(uint16(m))
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits != a.BitLen() {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, ones), true
}

// ports reads what the bridge ports are set to, by interface index.
func (v *view) ports() (map[int32]port, error) {
	body, err := encode(unix.AF_BRIDGE, 0, 0, 0, func(e *mdl.AttributeEncoder) {
		e.Uint32(unix.IFLA_EXT_MASK, filterBRVLAN)
	})
	if err != nil {
		return nil, err
	}
	msgs, err := v.c.Execute(mdl.Message{Header: mdl.Header{Type: unix.RTM_GETLINK, Flags: mdl.Request | mdl.Dump}, Data: body})
	if err != nil {
		return nil, err
	}
	ports := make(map[int32]port, len(msgs))
	for _, m := range msgs {
		if m.Header.Flags&mdl.DumpInterrupted != 0 {
			return nil, netlink.ErrDumpInterrupted
		}
		if m.Header.Type != unix.RTM_NEWLINK {
			continue
		}
		index, p, err := parsePort(m.Data)
		if err != nil {
			return nil, err
		}
		ports[index] = p
	}
	return ports, nil
}

// parsePort parses an RTM_NEWLINK of family AF_BRIDGE.
func parsePort(b []byte) (index int32, p port, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return 0, port{}, fmt.Errorf("bridge port message of %d bytes", len(b))
	}
	index = int32(native.Uint32(b[4:]))
	ad, err := mdl.NewAttributeDecoder(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, port{}, fmt.Errorf("bridge port message: %w", err)
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_PROTINFO:
			ad.Nested(func(ad *mdl.AttributeDecoder) error {
				for ad.Next() {
					switch ad.Type() {
					case unix.IFLA_BRPORT_LEARNING:
						p.learning = ad.Uint8() != 0
					case unix.IFLA_BRPORT_NEIGH_SUPPRESS:
						p.neighSuppress = ad.Uint8() != 0
					}
				}
				return nil
			})
		case unix.IFLA_AF_SPEC:
			ad.Nested(func(ad *mdl.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() != bridgeVLANInfo {
						continue
					}
					info := ad.Bytes() // struct bridge_vlan_info: flags, vid
					if len(info) < 4 {
						return fmt.Errorf("VLAN of %d bytes", len(info))
					}
					if flags := native.Uint16(info); flags&vlanPVID != 0 {
						p.pvid, p.untagged = native.Uint16(info[2:]), flags&vlanUntagged != 0
					}
				}
				return nil
			})
		}
	}
	if err := ad.Err(); err != nil {
		return 0, port{}, fmt.Errorf("bridge port message: %w", err)
	}
	return index, p, nil
}

// sortedBySecondary puts secondary addresses first: with a primary the kernel deletes the secondaries of its subnet.
func (d *detail) sortedBySecondary(addrs []netip.Prefix) []netip.Prefix {
	rank := map[bool]int{true: 0, false: 1}
	addrs = slices.Clone(addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Prefix) int { return cmp.Compare(rank[d.secondary[a]], rank[d.secondary[b]]) })
	return addrs
}
