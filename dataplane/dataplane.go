// Package dataplane holds links, addresses and groups as values, the operations that change them as data, and the Kernel
// interface that applies those. It makes no syscall: dataplane/kernel and dataplane/fake do what it describes.
package dataplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Kind is a link's kind in the kernel's own words (IFLA_INFO_KIND); "" for a link without one, such as a physical port.
type Kind string

// The kinds that vtepd makes.
const (
	IPVLAN Kind = "ipvlan"
	Dummy  Kind = "dummy"
	VXLAN  Kind = "vxlan"
	Bridge Kind = "bridge"
)

// AliasPrefix begins the alias (IFLA_IFALIAS) of every link that vtepd owns; the Owner follows it.
const AliasPrefix = "vtepd:"

// Link is one link of the router's namespace, as wanted or as seen. A field that its Kind doesn't have is zero.
type Link struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Owner says which object of the config the link belongs to, as KIND/NAME (endpoint/vtep0, vni/100, bridge/br100);
	// the alias is AliasPrefix and Owner. "" is a link of somebody else's.
	Owner string `json:"owner,omitempty"`
	// Group is IFLA_GROUP: which generation made the link. It says nothing about what the link is, so Same ignores it.
	Group  uint32 `json:"group,omitempty"`
	Up     bool   `json:"up"`               // IFF_UP, the administrative state
	MTU    int    `json:"mtu,omitempty"`    // bytes; 0: the kernel's choice, not compared by Same
	Master string `json:"master,omitempty"` // the bridge or VRF that it is enslaved to
	// Addrs are its addresses of global scope, sorted; a host address has a full-length prefix.
	Addrs []netip.Prefix `json:"addrs,omitempty"`

	// Parent is an ipvlan's lower device (IFLA_LINK), in ParentNetns: a name below /run/netns or an absolute path, ""
	// for the router's own namespace. Parent is "?" where that namespace was not among those asked for.
	Parent      string `json:"parent,omitempty"`
	ParentNetns string `json:"parentNetns,omitempty"`
	Mode        string `json:"mode,omitempty"` // an ipvlan's: "l2", "l3", "l3s"

	VNI   uint32     `json:"vni,omitempty"`  // a VXLAN's
	Port  uint16     `json:"port,omitempty"` // its UDP destination port
	Local netip.Addr `json:"local,omitzero"` // its source address, the VTEP
	// Learning: the VXLAN or its bridge port learns addresses from data (wanted off: EVPN is the only teacher).
	Learning bool `json:"learning,omitempty"`
	// NeighSuppress: the bridge port answers ARP and ND from EVPN's knowledge (wanted on).
	NeighSuppress bool `json:"neighSuppress,omitempty"`
	// VLAN is the access VLAN (PVID, untagged) of a port of a VLAN-aware bridge; 0: none.
	VLAN uint16 `json:"vlan,omitempty"`
	// VLANAware: a bridge with vlan_filtering on and no default PVID.
	VLANAware bool `json:"vlanAware,omitempty"`
}

// Ours reports whether vtepd owns the link.
func (l Link) Ours() bool { return l.Owner != "" }

// String names the link for people: its name, kind and owner.
func (l Link) String() string {
	if l.Owner == "" {
		return fmt.Sprintf("%s (%s)", l.Name, l.Kind)
	}
	return fmt.Sprintf("%s (%s of %s)", l.Name, l.Kind, l.Owner)
}

// Same reports whether two links are the same in everything but Group, and in MTU only where both give one.
func (l Link) Same(o Link) bool {
	if l.MTU != 0 && o.MTU != 0 && l.MTU != o.MTU {
		return false
	}
	return l.Name == o.Name && l.Kind == o.Kind && l.Owner == o.Owner && l.Up == o.Up && l.Master == o.Master &&
		slices.Equal(l.Addrs, o.Addrs) && l.Parent == o.Parent && l.ParentNetns == o.ParentNetns && l.Mode == o.Mode &&
		l.VNI == o.VNI && l.Port == o.Port && l.Local == o.Local && l.Learning == o.Learning &&
		l.NeighSuppress == o.NeighSuppress && l.VLAN == o.VLAN && l.VLANAware == o.VLANAware
}

// SortLinks puts links in the order of their names.
func SortLinks(links []Link) {
	slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
}

// Find returns the link of that name among links, sorted or not.
func Find(links []Link, name string) (Link, bool) {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		return Link{}, false
	}
	return links[i], true
}

// Observation is what one look at the kernel saw.
type Observation struct {
	Links []Link // every link of the router's namespace, ours and others', sorted by name
	Netns []Netns
	// Attached is what has a record of CNI's. A Kernel doesn't know: whoever looks at both puts it there.
	Attached []Attached
}

// Netns is another namespace that was asked for: the links in it that an ipvlan's parent may be.
type Netns struct {
	Name  string // as asked for: a name below /run/netns or an absolute path
	Err   string // why it can't be looked at; "" when it could
	Links []Link // sorted by name
}

// In returns the links of the namespace called name, the router's own for "".
func (o Observation) In(name string) ([]Link, error) {
	if name == "" {
		return o.Links, nil
	}
	for _, n := range o.Netns {
		if n.Name == name {
			if n.Err != "" {
				return nil, errors.New(n.Err)
			}
			return n.Links, nil
		}
	}
	return nil, fmt.Errorf("namespace %s was not looked at", name)
}

// Verb is what an Op does.
type Verb string

// The verbs. Each is idempotent: done twice it is done once, and undoing what isn't there succeeds.
const (
	// Create makes Link in the router's namespace with its alias, group and master, and leaves it down whatever
	// Link.Up says. A link of that name with the same owner, kind and values is success (it is put into Link.Group where
	// it is in another); any other is ErrInTheWay. A Link without an owner is ErrNotOurs.
	Create Verb = "create"
	// Expose moves the staged Link into the router's namespace under Link.Name and sets it up in one message, then puts
	// its addresses back (a move flushes them). It needs the shadow of the last Stage (ErrNotFound); of a link that is there
	// already with the same owner, kind, parent and mode only what differs is set.
	Expose Verb = "expose"
	// Set changes the link called Link.Name, in place, to Link's values: local, MTU (0: left), master, VLAN, learning,
	// neighbour suppression, VLAN awareness, addresses, up or down. Only what differs is written, nothing when nothing
	// does. What can't be changed in place (kind, VNI, port, parent, mode) must already agree: ErrInTheWay. A link that
	// isn't there is ErrNotFound; one whose owner isn't Link.Owner is ErrNotOurs.
	Set Verb = "set"
	// Delete deletes the link called Link.Name. One that isn't there is success; one whose owner isn't Link.Owner is ErrNotOurs.
	Delete Verb = "delete"
	// Adopt puts the alias of Link.Owner, and Link.Group, on a link of nobody's that somebody was told to make. The link must
	// be as Link says in all else: ErrInTheWay. One that isn't there is ErrNotFound, one with another owner ErrNotOurs.
	Adopt Verb = "adopt"
	// Regroup puts Link.Name into Group. A link that isn't there is success, one that isn't ours is ErrNotOurs.
	Regroup Verb = "regroup"
	// GroupUp and GroupDown set every link of Group up or down in one message, GroupDelete deletes them all. The
	// kernel does it to every member, whoever made it, so the members are read first: one that isn't ours is
	// ErrNotOurs and nothing is sent. An empty group is success.
	GroupUp     Verb = "group-up"
	GroupDown   Verb = "group-down"
	GroupDelete Verb = "group-delete"
)

// Op is one change as data: it outlives the process in the journal.
type Op struct {
	Verb  Verb   `json:"verb"`
	Link  Link   `json:"link,omitzero"`
	Group uint32 `json:"group,omitempty"`
}

// Object names what the op changes, for people and logs: a link's name or a group.
func (o Op) Object() string {
	switch o.Verb {
	case GroupUp, GroupDown, GroupDelete:
		return fmt.Sprintf("group %d", o.Group)
	}
	return o.Link.Name
}

// String is the op in a few words: what `vtepd plan` prints.
func (o Op) String() string {
	s := string(o.Verb) + " " + o.Object()
	var more []string
	add := func(format string, args ...any) { more = append(more, fmt.Sprintf(format, args...)) }
	switch o.Verb {
	case Create, Expose, Set, Adopt:
		l := o.Link
		for _, a := range l.Addrs {
			add("%s", a)
		}
		if l.Parent != "" {
			add("parent %s", strings.TrimPrefix(l.ParentNetns+":"+l.Parent, ":"))
		}
		if l.Kind == VXLAN {
			add("vni %d", l.VNI)
			add("local %s", l.Local)
			add("port %d", l.Port)
		}
		if l.Master != "" {
			add("master %s", l.Master)
		}
		if l.VLAN != 0 {
			add("vlan %d", l.VLAN)
		}
		if l.MTU != 0 {
			add("mtu %d", l.MTU)
		}
		if o.Verb == Set && !l.Up {
			add("down")
		}
	case Regroup:
		add("group %d", o.Group)
	}
	if len(more) == 0 {
		return s
	}
	return s + " (" + strings.Join(more, ", ") + ")"
}

// What an OpError can wrap, beside the kernel's own errno.
var (
	ErrNotOurs  = errors.New("not vtepd's")
	ErrInTheWay = errors.New("in the way")
	ErrNotFound = errors.New("not there")
)

// OpError is an op that the kernel, or a check before it, refused. Err unwraps to a sentinel of this package or to the
// errno; the extended ack is part of its text, in the kernel's own words.
type OpError struct {
	Op  Op
	Err error
}

func (e *OpError) Error() string { return fmt.Sprintf("%s %s: %v", e.Op.Verb, e.Op.Object(), e.Err) }
func (e *OpError) Unwrap() error { return e.Err }

// Counts are what a Kernel has done since it was made: for status, and for tests that count.
type Counts struct {
	Batches  uint64 // writes to a netlink socket that carried changes
	Messages uint64 // changing messages in them
	Dumps    uint64 // whole tables read
}

// Kernel changes and reads the router's namespace. One goroutine at a time uses it.
type Kernel interface {
	// Lacks says why the kernel can't make links of a kind, in its own words, and "" when it can. It tries in a namespace
	// that is dropped at once.
	Lacks(ctx context.Context, kind Kind) (string, error)
	// Observe reads every link of the router's namespace, and those of the namespaces named in netns. A dump that was
	// interrupted is taken again. A namespace of netns that can't be opened is not an error: its Netns says why.
	Observe(ctx context.Context, netns []string) (Observation, error)
	// Stage makes a new shadow namespace that only a descriptor holds, in place of an earlier one, and in it every link of
	// staged (endpoints: with addresses, alias and group; an ipvlan child down, the rest up) and a proof copy of every link of proofs (VXLANs and
	// bridges, on the shadow's own underlay), reads all of it back and compares. On an error the shadow is dropped; the
	// router's namespace is never changed. Errors: *OpError.
	Stage(ctx context.Context, staged, proofs []Link) error
	// Unstage drops the shadow and all that is still in it. None is success.
	Unstage() error
	// Apply does ops in order, as one netlink batch wherever the kernel lets it: it reads the links once, checks every op,
	// drops what is done already, and sends the rest in one write (an Expose needs the shadow's socket, and its own). What
	// a check refuses changes nothing. After any other error, which is an *OpError naming the first op that failed, there
	// is no telling what was done: the kernel goes on with the messages behind a failed one. The undos of all ops put
	// things back.
	Apply(ctx context.Context, ops []Op) error
	// Received is the number of packets that each of the named links has received (rx_packets), in the order of names; 0
	// for one that isn't there.
	Received(ctx context.Context, names []string) ([]uint64, error)
	// Ping sends one ICMP echo request from the local address to each of the remotes and returns those that answered
	// before the timeout of ctx, sorted. An address that can't be bound is an error, silence is not.
	Ping(ctx context.Context, from netip.Addr, to []netip.Addr) ([]netip.Addr, error)
	Counts() Counts
	Close() error
}
