package dataplane

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Model is the router's links as a value on which ops can be tried: the meaning of the verbs, written down once.
// dataplane/kernel derives its messages from it, dataplane/fake its state. It knows ownership and what an op needs; what
// only a kernel refuses (an address in use, a second VXLAN of one VNI) it doesn't know.
type Model struct {
	links map[string]Link
	refs  map[string]int // how many links have one as their master or parent
}

// Change is what an op makes of one link. A Before without a name: it is made; an After without: it goes.
type Change struct{ Before, After Link }

// NewModel returns a Model of links; it keeps nothing of the slice.
func NewModel(links []Link) *Model {
	m := &Model{links: make(map[string]Link, len(links)), refs: map[string]int{}}
	for _, l := range links {
		m.Put(l)
	}
	return m
}

// Clone returns a Model that shares nothing with m.
func (m *Model) Clone() *Model { return NewModel(m.Links()) }

// Links returns every link, sorted by name.
func (m *Model) Links() []Link {
	links := make([]Link, 0, len(m.links))
	for _, l := range m.links {
		l.Addrs = slices.Clone(l.Addrs)
		links = append(links, l)
	}
	SortLinks(links)
	return links
}

// All yields every link, in no order; the addresses are the model's own.
func (m *Model) All() iter.Seq[Link] { return maps.Values(m.links) }

// Link returns the link of that name.
func (m *Model) Link(name string) (Link, bool) {
	l, ok := m.links[name]
	return l, ok
}

// Put puts l in the place of the link of its name.
func (m *Model) Put(l Link) {
	l.Addrs = SortedAddrs(l.Addrs)
	m.refer(m.links[l.Name], -1)
	m.links[l.Name] = l
	m.refer(l, 1)
}

func (m *Model) refer(l Link, n int) {
	m.refs[l.Master] += n
	if l.Kind == IPVLAN && l.ParentNetns == "" {
		m.refs[l.Parent] += n
	}
}

// SortedAddrs returns addrs in order, each once.
func SortedAddrs(addrs []netip.Prefix) []netip.Prefix {
	if len(addrs) == 0 {
		return nil
	}
	s := slices.Clone(addrs)
	slices.SortFunc(s, netip.Prefix.Compare)
	return slices.Compact(s)
}

// Plan returns what op changes, nothing when it is done already; the model stays as it is. Errors wrap ErrNotOurs,
// ErrInTheWay or ErrNotFound. Whether an exposed link was staged is not the model's to know.
func (m *Model) Plan(op Op) ([]Change, error) {
	want := op.Link
	want.Addrs = SortedAddrs(want.Addrs)
	have, there := m.links[want.Name]
	switch op.Verb {
	case Create:
		if !want.Ours() {
			return nil, fmt.Errorf("%w: a link without an owner is never made", ErrNotOurs)
		}
		if there {
			if err := inTheWay(want, have, false); err != nil {
				return nil, err
			}
			if have.Group == want.Group {
				return nil, nil
			}
			after := have
			after.Group = want.Group
			return []Change{{have, after}}, nil
		}
		want.Up = false
		return m.change(Link{}, want)
	case Expose:
		if !want.Ours() {
			return nil, fmt.Errorf("%w: a link without an owner is never made", ErrNotOurs)
		}
		want.Up = true
		if !there {
			return m.change(Link{}, want)
		}
		if err := inTheWay(want, have, true); err != nil {
			return nil, err
		}
		return m.set(have, want)
	case Set:
		if !there {
			return nil, ErrNotFound
		}
		if err := ours(have, want.Owner); err != nil {
			return nil, err
		}
		if err := inTheWay(want, have, true); err != nil {
			return nil, err
		}
		return m.set(have, want)
	case Adopt:
		return m.adopt(have, there, want)
	case Delete:
		if !there {
			return nil, nil
		}
		if err := ours(have, want.Owner); err != nil {
			return nil, err
		}
		return []Change{{Before: have}}, nil
	case Regroup:
		if !there || have.Ours() && have.Group == op.Group {
			return nil, nil
		}
		if err := ours(have, have.Owner); err != nil {
			return nil, err
		}
		after := have
		after.Group = op.Group
		return []Change{{have, after}}, nil
	case GroupUp, GroupDown, GroupDelete:
		return m.group(op.Verb, op.Group)
	}
	return nil, fmt.Errorf("unknown verb %q", op.Verb)
}

// adopt is what makes a link of nobody's vtepd's.
func (m *Model) adopt(have Link, there bool, want Link) ([]Change, error) {
	switch {
	case !want.Ours():
		return nil, fmt.Errorf("%w: a link without an owner is never made", ErrNotOurs)
	case !there:
		return nil, ErrNotFound
	case have.Ours() && have.Owner != want.Owner:
		return nil, fmt.Errorf("%w: %s", ErrNotOurs, have)
	}
	after := have
	after.Owner, after.Group = want.Owner, want.Group
	if d := want.Diff(after); len(d) > 0 {
		return nil, fmt.Errorf("%w: %s has %s", ErrInTheWay, have, strings.Join(d, ", "))
	}
	if have.Owner == after.Owner && have.Group == after.Group {
		return nil, nil
	}
	return []Change{{have, after}}, nil
}

// set is what makes have into want, in place.
func (m *Model) set(have, want Link) ([]Change, error) {
	want.Group = have.Group
	if want.MTU == 0 {
		want.MTU = have.MTU
	}
	if have.Same(want) {
		return nil, nil
	}
	return m.change(have, want)
}

func (m *Model) change(before, after Link) ([]Change, error) {
	if master, ok := m.links[after.Master]; ok && after.VLAN != 0 && !master.VLANAware {
		return nil, fmt.Errorf("%w: vlan %d needs a VLAN-aware bridge without a default VLAN, and %s isn't one", ErrInTheWay, after.VLAN, master)
	}
	if after.Master != "" && after.Master != before.Master {
		if _, ok := m.links[after.Master]; !ok {
			return nil, fmt.Errorf("master %s is %w", after.Master, ErrNotFound)
		}
	}
	return []Change{{before, after}}, nil
}

func (m *Model) group(verb Verb, group uint32) ([]Change, error) {
	if group == 0 {
		return nil, fmt.Errorf("%w: group 0 is every link that nobody put elsewhere", ErrNotOurs)
	}
	var changes []Change
	for _, l := range m.Links() {
		if l.Group != group {
			continue
		}
		if !l.Ours() {
			return nil, fmt.Errorf("%w: %s is in it", ErrNotOurs, l)
		}
		after := l
		switch verb {
		case GroupUp:
			after.Up = true
		case GroupDown:
			after.Up = false
			after.Addrs = keptDown(l.Addrs)
		case GroupDelete:
			after = Link{}
		}
		if verb == GroupDelete || l.Up != after.Up {
			changes = append(changes, Change{l, after})
		}
	}
	return changes, nil
}

// Do carries changes out, with what the kernel does of itself: a deleted bridge frees its ports, a deleted parent takes
// its ipvlans along.
func (m *Model) Do(changes []Change) {
	for _, c := range changes {
		if c.After.Name != "" {
			m.Put(c.After)
			continue
		}
		m.Remove(c.Before.Name)
	}
}

// Remove takes the link of that name away, with what the kernel does of itself.
func (m *Model) Remove(name string) {
	m.refer(m.links[name], -1)
	delete(m.links, name)
	if m.refs[name] == 0 {
		return
	}
	for _, l := range m.Links() {
		if _, still := m.links[l.Name]; !still {
			continue
		}
		if l.Master == name {
			l.Master, l.NeighSuppress, l.VLAN = "", false, 0
			m.Put(l)
		}
		if l.Kind == IPVLAN && l.ParentNetns == "" && l.Parent == name {
			m.Remove(l.Name)
		}
	}
}

// keptDown is what stays of a link's addresses when it goes down: the kernel flushes IPv6 (addrconf_ifdown, unless
// keep_addr_on_down).
func keptDown(addrs []netip.Prefix) []netip.Prefix {
	var kept []netip.Prefix
	for _, a := range addrs {
		if a.Addr().Is4() {
			kept = append(kept, a)
		}
	}
	return kept
}

func ours(have Link, owner string) error {
	if !have.Ours() || have.Owner != owner {
		return fmt.Errorf("%w: %s", ErrNotOurs, have)
	}
	return nil
}

// inTheWay says why the link that is there can't be, or with fixed only become, the wanted one.
func inTheWay(want, have Link, fixed bool) error {
	if !have.Ours() {
		return fmt.Errorf("%w: %s is not vtepd's", ErrInTheWay, have)
	}
	if fixed {
		w := have
		w.Owner, w.Kind, w.VNI, w.Port = want.Owner, want.Kind, want.VNI, want.Port
		w.Parent, w.ParentNetns, w.Mode = want.Parent, want.ParentNetns, want.Mode
		want = w
	}
	want.Up = have.Up
	if d := want.Diff(have); len(d) > 0 {
		return fmt.Errorf("%w: %s has %s", ErrInTheWay, have, strings.Join(d, ", "))
	}
	return nil
}

// FitsStaged reports whether the staged link can be exposed as the wanted one: the error wraps ErrInTheWay where owner, kind,
// parent or mode differ.
func FitsStaged(want, staged Link) error { return inTheWay(want, staged, true) }

// OtherMode is the refusal of an ipvlan whose parent has a child of another mode, in the namespace of that name: the kernel
// would change the child's.
func OtherMode(want, child Link, netns string) error {
	where := ""
	if netns != "" {
		where = " in " + netns
	}
	return fmt.Errorf("%w: %s has %s%s in mode %s, and all children of a parent have one mode, wanted %s",
		ErrInTheWay, want.Parent, child, where, child.Mode, want.Mode)
}

// Diff says in which values have differs from the wanted link l, each as "FIELD X, wanted Y"; it is empty where Same is true.
func (l Link) Diff(have Link) []string {
	var d []string
	add := func(field string, have, want any) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			d = append(d, fmt.Sprintf("%s %s, wanted %s", field, orNone(h), orNone(w)))
		}
	}
	addr := func(a netip.Addr) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	add("name", have.Name, l.Name)
	add("kind", have.Kind, l.Kind)
	add("owner", have.Owner, l.Owner)
	add("up", have.Up, l.Up)
	if have.MTU != 0 && l.MTU != 0 {
		add("mtu", have.MTU, l.MTU)
	}
	add("master", have.Master, l.Master)
	add("addresses", strings.Trim(fmt.Sprint(have.Addrs), "[]"), strings.Trim(fmt.Sprint(l.Addrs), "[]"))
	add("parent", have.Parent, l.Parent)
	add("parent's namespace", have.ParentNetns, l.ParentNetns)
	add("mode", have.Mode, l.Mode)
	add("vni", have.VNI, l.VNI)
	add("port", have.Port, l.Port)
	add("local", addr(have.Local), addr(l.Local))
	add("learning", have.Learning, l.Learning)
	add("neighbour suppression", have.NeighSuppress, l.NeighSuppress)
	add("vlan", have.VLAN, l.VLAN)
	add("vlan-aware", have.VLANAware, l.VLANAware)
	return d
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
