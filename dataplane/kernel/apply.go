package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	mdl "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane"
)

// firstIndex is where the interface indexes begin that this package gives to the links it makes, so that the messages
// behind a creation can name the link in the same write. The kernel counts up from 1: it won't get here.
const (
	firstIndex = 1 << 20
	lastIndex  = 1 << 30
)

// Apply implements dataplane.Kernel.
func (k *Kernel) Apply(ctx context.Context, ops []dataplane.Op) error {
	if len(ops) == 0 {
		return nil
	}
	var names []string
	for _, op := range ops {
		switch op.Verb {
		case dataplane.Create, dataplane.Expose, dataplane.Set:
			names = append(names, op.Link.ParentNetns)
		}
	}
	ps, failed := k.openParents(names)
	err := k.apply(ctx, ops, ps, failed)
	return errors.Join(err, ps.close())
}

func (k *Kernel) apply(ctx context.Context, ops []dataplane.Op, ps parents, failed map[string]error) error {
	t, err := k.readWith(ctx, k.router, ps)
	if err != nil {
		return &dataplane.OpError{Op: ops[0], Err: err}
	}
	w := &writer{k: k, ctx: ctx, v: k.router, ps: ps, failed: failed, model: dataplane.NewModel(t.links), details: t.details}
	if err := w.check(ops); err != nil {
		return err
	}
	for _, op := range ops {
		if err := w.do(op); err != nil {
			return err
		}
	}
	return w.flush()
}

// writer turns ops into messages. It keeps the links as they will be when what is pending has been written.
type writer struct {
	k       *Kernel
	ctx     context.Context
	v       *view // where the links are made
	ps      parents
	failed  map[string]error
	model   *dataplane.Model
	details map[string]*detail
	taken   map[int32]bool // interface indexes
	op      dataplane.Op
	number  int // of op, in this call
	pending []message
}

// check finds out before the first write whether any op can't be tried at all.
func (w *writer) check(ops []dataplane.Op) error {
	m := w.model.Clone()
	for _, op := range ops {
		changes, err := m.Plan(op)
		if err == nil && len(changes) > 0 && changes[0].Before.Name == "" {
			switch {
			case op.Verb == dataplane.Expose:
				_, err = w.k.stagedDetail(op.Link)
			case op.Link.Kind == dataplane.IPVLAN:
				_, err = w.parent(m, op.Link)
			}
		}
		if err != nil {
			return &dataplane.OpError{Op: op, Err: err}
		}
		m.Do(changes)
	}
	return nil
}

// parent returns the view of the namespace that l's parent is in, after a look whether it is there, in m where that is the writer's own.
func (w *writer) parent(m *dataplane.Model, l dataplane.Link) (*view, error) {
	if err := w.failed[l.ParentNetns]; err != nil {
		return nil, err
	}
	v := w.ps[l.ParentNetns]
	there := false
	if v == w.v {
		_, there = m.Link(l.Parent)
	} else {
		t, err := w.k.cached(w.ctx, v)
		if err != nil {
			return nil, err
		}
		_, there = t.details[l.Parent]
	}
	if !there {
		return nil, fmt.Errorf("parent %s is %w", l.Parent, dataplane.ErrNotFound)
	}
	return v, w.oneMode(m, l)
}

// oneMode refuses an l that would change the mode of its parent's other children: the kernel does that to all of them, in
// whatever namespace, and says nothing (ipvlan_set_port_mode). Those in namespaces that nobody named can't be seen.
func (w *writer) oneMode(m *dataplane.Model, l dataplane.Link) error {
	for name, v := range w.ps {
		var links []dataplane.Link
		if v == w.v {
			links = m.Links()
		} else {
			t, err := w.k.readWith(w.ctx, v, w.ps)
			if err != nil {
				return err
			}
			links = t.links
		}
		for _, o := range links {
			if o.Kind == dataplane.IPVLAN && o.Parent == l.Parent && o.ParentNetns == l.ParentNetns && o.Mode != l.Mode {
				return dataplane.OtherMode(l, o, name)
			}
		}
	}
	return nil
}

func (w *writer) fail(err error) error {
	var op *dataplane.OpError
	if err == nil || errors.As(err, &op) {
		return err
	}
	return &dataplane.OpError{Op: w.op, Err: err}
}

// do adds the messages of one op.
func (w *writer) do(op dataplane.Op) error {
	w.op = op
	w.number++
	changes, err := w.model.Plan(op)
	if err != nil || len(changes) == 0 {
		return w.fail(err)
	}
	switch op.Verb {
	case dataplane.Create, dataplane.Expose, dataplane.Set:
		c := changes[0]
		switch {
		case c.Before.Name == "" && op.Verb == dataplane.Expose:
			err = w.expose(c.After)
		case c.Before.Name == "":
			err = w.create(c.After)
		case op.Verb == dataplane.Create:
			err = w.regroup(c.After)
		default:
			err = w.set(c.Before, c.After)
		}
	case dataplane.Delete:
		l := changes[0].Before
		err = errors.Join(w.deleteAddrs(l), w.add(link(unix.RTM_DELLINK, 0, unix.AF_UNSPEC, w.details[l.Name].index, nil, none)))
		w.pending[len(w.pending)-1].gone = true
	case dataplane.Adopt:
		l := changes[0].After
		err = w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, w.details[l.Name].index, nil, func(e *mdl.AttributeEncoder) {
			e.Uint32(unix.IFLA_GROUP, l.Group)
			e.String(unix.IFLA_IFALIAS, dataplane.AliasPrefix+l.Owner)
		}))
	case dataplane.Regroup:
		err = w.regroup(changes[0].After)
	case dataplane.GroupUp, dataplane.GroupDown:
		up := op.Verb == dataplane.GroupUp
		err = w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, 0, &up, func(e *mdl.AttributeEncoder) { e.Uint32(unix.IFLA_GROUP, op.Group) }))
	case dataplane.GroupDelete:
		for _, c := range changes {
			err = errors.Join(err, w.deleteAddrs(c.Before))
		}
		err = errors.Join(err, w.add(link(unix.RTM_DELLINK, 0, unix.AF_UNSPEC, 0, nil, func(e *mdl.AttributeEncoder) { e.Uint32(unix.IFLA_GROUP, op.Group) })))
	}
	if err != nil {
		return w.fail(err)
	}
	w.did(changes)
	return nil
}

// did keeps up with what the kernel will have made of the links.
func (w *writer) did(changes []dataplane.Change) {
	w.model.Do(changes)
	gone := false
	for _, c := range changes {
		gone = gone || c.After.Name == ""
	}
	if !gone {
		return
	}
	for name, d := range w.details {
		l, ok := w.model.Link(name)
		if !ok {
			delete(w.details, name)
		} else if l.Master == "" {
			d.bridge, d.port = false, port{}
		}
	}
}

func (w *writer) add(m mdl.Message, err error) error {
	w.pending = append(w.pending, message{Message: m, op: w.op, number: w.number})
	return err
}

func (w *writer) flush() error {
	batch := w.pending
	w.pending = nil
	return w.k.send(w.ctx, w.v, batch)
}

// index is a free interface index.
func (w *writer) index() int32 {
	if w.taken == nil {
		w.taken = make(map[int32]bool, len(w.details))
		for _, d := range w.details {
			w.taken[d.index] = true
		}
	}
	k := w.k
	for {
		if k.last++; k.last < firstIndex || k.last > lastIndex {
			k.last = firstIndex
		}
		if !w.taken[k.last] {
			w.taken[k.last] = true
			return k.last
		}
	}
}

func (w *writer) isBridge(name string) bool {
	l, ok := w.model.Link(name)
	return ok && l.Kind == dataplane.Bridge
}

// create makes l, down.
func (w *writer) create(l dataplane.Link) error {
	d := &detail{index: w.index(), parentNSID: -1, devLearning: l.Learning, filtering: l.VLANAware}
	name, from := l.Name, w.v
	if l.Kind == dataplane.IPVLAN {
		var err error
		if from, err = w.parent(w.model, l); err != nil {
			return err
		}
	}
	if from != w.v {
		// The kernel looks for the name in the namespace of the socket, and an endpoint may well have a namesake there.
		name = fmt.Sprintf("vtepd-%d", d.index)
	}
	var kindErr error
	attrs := func(e *mdl.AttributeEncoder) {
		e.String(unix.IFLA_IFNAME, name)
		e.Uint32(unix.IFLA_GROUP, l.Group)
		switch {
		case l.MTU == 0:
		case l.Kind == dataplane.Bridge:
			// Only a change of it makes a bridge's MTU its own; else it follows the ports (br_mtu_auto_adjust).
			if l.MTU < 65535 {
				e.Uint32(unix.IFLA_MTU, uint32(l.MTU)+1)
			}
		default:
			e.Uint32(unix.IFLA_MTU, uint32(l.MTU))
		}
		if l.Master != "" {
			e.Uint32(unix.IFLA_MASTER, uint32(w.details[l.Master].index))
		}
		if l.Kind == dataplane.IPVLAN {
			if from == w.v {
				e.Uint32(unix.IFLA_LINK, uint32(w.details[l.Parent].index))
			} else {
				e.Uint32(unix.IFLA_LINK, uint32(from.table.details[l.Parent].index))
				e.Uint32(unix.IFLA_NET_NS_FD, uint32(w.v.ns.Fd()))
			}
		}
		kindErr = kindData(e, l)
	}
	if from == w.v {
		err := w.add(link(unix.RTM_NEWLINK, mdl.Create|mdl.Excl, unix.AF_UNSPEC, d.index, nil, attrs))
		if err := errors.Join(err, kindErr); err != nil {
			return err
		}
	} else {
		if err := w.flush(); err != nil {
			return err
		}
		m, err := link(unix.RTM_NEWLINK, mdl.Create|mdl.Excl, unix.AF_UNSPEC, 0, nil, attrs)
		if err := errors.Join(err, kindErr); err != nil {
			return err
		}
		if err := w.k.send(w.ctx, from, []message{{Message: m, op: w.op}}); err != nil {
			return err
		}
		if d.index, err = w.find(name); err != nil {
			return err
		}
	}
	w.details[l.Name] = d
	// What a creation ignores: alias and address generation; and a name that had to wait.
	err := w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, d.index, nil, func(e *mdl.AttributeEncoder) {
		if name != l.Name {
			e.String(unix.IFLA_IFNAME, l.Name)
		}
		e.String(unix.IFLA_IFALIAS, dataplane.AliasPrefix+l.Owner)
		if l.Kind == dataplane.Bridge && l.MTU != 0 {
			e.Uint32(unix.IFLA_MTU, uint32(l.MTU))
		}
		// A device below IPv6's least MTU has no IPv6 that could be told so.
		if w.k.ipv6 && (l.Kind == dataplane.VXLAN || l.Kind == dataplane.Bridge) && (l.MTU == 0 || l.MTU >= 1280) {
			nested(e, unix.IFLA_AF_SPEC, func(e *mdl.AttributeEncoder) {
				nested(e, unix.AF_INET6, func(e *mdl.AttributeEncoder) { e.Uint8(unix.IFLA_INET6_ADDR_GEN_MODE, genModeNone) })
			})
		}
	}))
	return errors.Join(err, w.setPort(d, l, true), w.addAddrs(d, l.Addrs))
}

// find returns the index of the link of that name in the writer's namespace.
func (w *writer) find(name string) (int32, error) {
	l, err := w.v.h.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("look for %s: %w", name, err)
	}
	return int32(l.Attrs().Index), nil
}

// setPort sets what l wants of its bridge port, new where l has just joined it.
func (w *writer) setPort(d *detail, l dataplane.Link, joined bool) error {
	if joined {
		d.bridge, d.port = w.isBridge(l.Master), port{learning: true}
		if m := w.details[l.Master]; d.bridge && m.filtering && m.defaultPVID != 0 {
			d.port.pvid, d.port.untagged = m.defaultPVID, true
		}
	}
	if !d.bridge || l.Kind != dataplane.VXLAN {
		return nil
	}
	have, want := d.port, port{learning: l.Learning, neighSuppress: l.NeighSuppress, pvid: l.VLAN, untagged: l.VLAN != 0}
	setVLAN := l.VLAN != 0 && (have.pvid != want.pvid || !have.untagged)
	dropVLAN := have.pvid != 0 && have.pvid != want.pvid
	var err error
	if have.learning != want.learning || have.neighSuppress != want.neighSuppress || setVLAN {
		err = w.add(link(unix.RTM_SETLINK, 0, unix.AF_BRIDGE, d.index, nil, func(e *mdl.AttributeEncoder) {
			nested(e, unix.IFLA_PROTINFO, func(e *mdl.AttributeEncoder) {
				e.Uint8(unix.IFLA_BRPORT_LEARNING, flag(want.learning))
				e.Uint8(unix.IFLA_BRPORT_NEIGH_SUPPRESS, flag(want.neighSuppress))
			})
			if setVLAN {
				vlan(e, want.pvid, vlanPVID|vlanUntagged)
			}
		}))
	}
	if dropVLAN {
		err = errors.Join(err, w.add(link(unix.RTM_DELLINK, 0, unix.AF_BRIDGE, d.index, nil, func(e *mdl.AttributeEncoder) { vlan(e, have.pvid, 0) })))
	}
	d.port = want
	return err
}

func vlan(e *mdl.AttributeEncoder, vid, flags uint16) {
	nested(e, unix.IFLA_AF_SPEC, func(e *mdl.AttributeEncoder) {
		e.Bytes(bridgeVLANInfo, native.AppendUint16(native.AppendUint16(nil, flags), vid))
	})
}

func (w *writer) addAddrs(d *detail, addrs []netip.Prefix) error {
	var err error
	for _, a := range addrs {
		err = errors.Join(err, w.add(address(unix.RTM_NEWADDR, d.index, a)))
	}
	return err
}

func (w *writer) dropAddrs(d *detail, addrs []netip.Prefix) error {
	var err error
	for _, a := range d.sortedBySecondary(addrs) {
		err = errors.Join(err, w.add(address(unix.RTM_DELADDR, d.index, a)))
		w.pending[len(w.pending)-1].gone = true
	}
	return err
}

// deleteAddrs takes all addresses off a link that is about to go: zebra before 10.7 keeps the routes that the kernel
// flushes silently.
func (w *writer) deleteAddrs(l dataplane.Link) error { return w.dropAddrs(w.details[l.Name], l.Addrs) }

func (w *writer) regroup(l dataplane.Link) error {
	return w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, w.details[l.Name].index, nil, func(e *mdl.AttributeEncoder) {
		e.Uint32(unix.IFLA_GROUP, l.Group)
	}))
}

// set makes have into want with as few messages as there can be: one for the link unless its port, addresses or coming up have
// to wait for it.
func (w *writer) set(have, want dataplane.Link) error {
	d := w.details[have.Name]
	joined := have.Master != want.Master
	down, up := have.Up && !want.Up, !have.Up && want.Up
	// Going down, and into or out of a VRF, the kernel flushes IPv6 addresses.
	flushed := down || joined && (!w.isBridge(have.Master) || !w.isBridge(want.Master))
	gone := without(have.Addrs, want.Addrs)
	fresh := without(want.Addrs, have.Addrs)
	if flushed {
		for _, a := range want.Addrs {
			if a.Addr().Is6() && !slices.Contains(fresh, a) {
				fresh = append(fresh, a)
			}
		}
		if err := w.dropAddrs(d, gone); err != nil {
			return err
		}
	}
	var info []func(*mdl.AttributeEncoder)
	if want.Kind == dataplane.VXLAN {
		if have.Local != want.Local {
			info = append(info, func(e *mdl.AttributeEncoder) { local(e, want.Local) })
		}
		if d.devLearning != want.Learning {
			info = append(info, func(e *mdl.AttributeEncoder) { e.Uint8(unix.IFLA_VXLAN_LEARNING, flag(want.Learning)) })
			d.devLearning = want.Learning
		}
	}
	if have.VLANAware != want.VLANAware {
		info = append(info, func(e *mdl.AttributeEncoder) { vlanAware(e, want.VLANAware) })
		d.filtering, d.defaultPVID = want.VLANAware, 0
	}
	var flags *bool
	if down {
		flags = new(bool)
	}
	// A message that changes a VXLAN may not carry an MTU, not even the same one ("Cannot change mtu").
	apart := have.MTU != want.MTU && len(info) > 0
	mtu := func(e *mdl.AttributeEncoder) { e.Uint32(unix.IFLA_MTU, uint32(want.MTU)) }
	if apart {
		if err := w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, d.index, nil, mtu)); err != nil {
			return err
		}
	}
	main := func(e *mdl.AttributeEncoder) {
		if have.MTU != want.MTU && !apart {
			mtu(e)
		}
		if joined {
			master := int32(0)
			if want.Master != "" {
				master = w.details[want.Master].index
			}
			e.Uint32(unix.IFLA_MASTER, uint32(master))
		}
		if len(info) > 0 {
			nested(e, unix.IFLA_LINKINFO, func(e *mdl.AttributeEncoder) {
				e.String(unix.IFLA_INFO_KIND, string(want.Kind))
				nested(e, unix.IFLA_INFO_DATA, func(e *mdl.AttributeEncoder) {
					for _, fn := range info {
						fn(e)
					}
				})
			})
		}
	}
	before := len(w.pending)
	changed := have.MTU != want.MTU && !apart || joined || len(info) > 0
	if changed || down {
		if err := w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, d.index, flags, main)); err != nil {
			return err
		}
	}
	late := len(w.pending)
	err := errors.Join(w.setPort(d, want, joined), w.addAddrs(d, fresh))
	if !flushed {
		err = errors.Join(err, w.dropAddrs(d, gone))
	}
	err = errors.Join(err, w.addAddrs(d, d.dragged(gone, want.Addrs)))
	if err != nil || !up {
		return err
	}
	if changed && len(w.pending) == late && late == before+1 {
		w.pending = w.pending[:before]
		return w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, d.index, &up, main))
	}
	return w.add(link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, d.index, &up, none))
}

// dragged are those of kept that may have gone with the primaries among gone: the IPv4 addresses of their subnets.
func (d *detail) dragged(gone, kept []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range kept {
		if a.Addr().Is4() && slices.ContainsFunc(gone, func(g netip.Prefix) bool { return !d.secondary[g] && g.Masked() == a.Masked() }) {
			out = append(out, a)
		}
	}
	return out
}

// without returns the addresses of a that are not in b.
func without(a, b []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range a {
		if !slices.Contains(b, p) {
			out = append(out, p)
		}
	}
	return out
}

// stagedDetail finds a staged link in the shadow.
func (k *Kernel) stagedDetail(l dataplane.Link) (*detail, error) {
	if k.shadow != nil && k.shadow.table != nil {
		if d := k.shadow.table.details[l.Name]; d != nil {
			s, _ := dataplane.Find(k.shadow.table.links, l.Name)
			return d, dataplane.FitsStaged(l, s)
		}
	}
	return nil, fmt.Errorf("staged link %s is %w", l.Name, dataplane.ErrNotFound)
}

// expose moves a staged link to the router: one message moves, names, enslaves and ups it.
func (w *writer) expose(l dataplane.Link) error {
	s, err := w.k.stagedDetail(l)
	if err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	up := true
	m, err := link(unix.RTM_NEWLINK, 0, unix.AF_UNSPEC, s.index, &up, func(e *mdl.AttributeEncoder) {
		e.Uint32(unix.IFLA_NET_NS_FD, uint32(w.v.ns.Fd()))
		e.String(unix.IFLA_IFNAME, l.Name)
		if l.Master != "" {
			e.Uint32(unix.IFLA_MASTER, uint32(w.details[l.Master].index))
		}
	})
	if err != nil {
		return err
	}
	if err := w.k.send(w.ctx, w.k.shadow, []message{{Message: m, op: w.op}}); err != nil {
		return err
	}
	delete(w.k.shadow.table.details, l.Name)
	d := &detail{parentNSID: -1}
	if d.index, err = w.find(l.Name); err != nil {
		return err
	}
	w.details[l.Name] = d
	return w.addAddrs(d, l.Addrs)
}
