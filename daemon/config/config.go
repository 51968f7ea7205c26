// Package config turns the bytes of a YAML config into a Config, or into all
// of its problems, each with file, line and column.
//
// It is pure but for Load, which reads one file or one directory of files. A
// Config belongs to whoever parsed it and is never changed afterwards. The
// package never looks at the kernel, at FRR or at the ledger: what a name in
// the file refers to outside of the file is for others to check.
package config

import (
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Config is a valid config with all defaults filled in. Slices are sorted (by
// name, VNIs by number), so that two files that mean the same give the same
// Config whatever their order.
type Config struct {
	Node        Node
	Store       Store
	Pools       []Pool
	Endpoints   []Endpoint
	Loopbacks   []Loopback
	VNIs        []VNI
	VLANBridge  string // the VLAN-aware bridge of the VNIs that name a VLAN; "" if there is none
	FRR         FRR
	Transaction Transaction

	root Pos
	pos  map[string]Pos
}

// Node is this router.
type Node struct {
	Name     string
	Index    int  // 0 or more
	HasIndex bool // whether the file gives an index
}

// Pool is a named set of values to claim: addresses, numbers or prefixes. Exactly one of Addresses, Ranges and Prefixes is
// there, in the file's order, which is the order of allocation; what they hold is disjoint, over all pools.
type Pool struct {
	Name          string
	Addresses     []netip.Prefix // of a pool of addresses; masked
	Ranges        []Span         // of a pool of numbers
	Prefixes      []netip.Prefix // of a pool of prefixes; masked
	Length        int            // of every prefix that a pool of prefixes hands out
	Exclude       []Range        // of addresses and prefixes; sorted, exact repetitions dropped
	ExcludeRanges []Span         // of numbers; sorted, exact repetitions dropped
	Reclaim       Reclaim
}

// Kind is what the values of p are.
func (p Pool) Kind() PoolKind {
	switch {
	case len(p.Ranges) > 0:
		return PoolIndex
	case len(p.Prefixes) > 0:
		return PoolPrefix
	}
	return PoolAddress
}

// PoolKind is what the values of a pool are.
type PoolKind string

// The kinds of pools. Endpoints claim addresses; numbers and prefixes are claimed by hand.
const (
	PoolAddress PoolKind = "address"
	PoolIndex   PoolKind = "index"
	PoolPrefix  PoolKind = "prefix"
)

// Span is the numbers from First to Last, both included.
type Span struct {
	First, Last uint64
}

// Range is the addresses from First to Last, both included and of one family.
type Range struct {
	First, Last netip.Addr
}

// Reclaim is what happens to an address whose claim is gone.
type Reclaim string

// The two ways of reclaiming; ReclaimRecycle is the default.
const (
	ReclaimRecycle Reclaim = "recycle"
	ReclaimRetain  Reclaim = "retain"
)

// Endpoint is a tunnel endpoint: an address and the link that it sits on.
type Endpoint struct {
	Name        string // at most 15 bytes, a legal link name
	Placement   Placement
	Parent      string // the link below an ipvlan; "" for any other
	ParentNetns string // where Parent is: a name under /run/netns or an absolute path; "" is the router's own namespace
	CNI         CNI    // zero unless Placement is PlacementCNI
	Address     Address
	Announce    Announce
}

// Placement is the kind of link that carries an endpoint's address.
type Placement string

// An ipvlan child in L3 mode, a loopback (a dummy link), or an ipvlan child that CNI plugins make.
const (
	PlacementIPVLAN   Placement = "ipvlan"
	PlacementLoopback Placement = "loopback"
	PlacementCNI      Placement = "cni"
)

// Address is where an endpoint's address comes from.
type Address struct {
	Kind    AddressKind
	Pool    string       // AddressPool: a pool of this config
	Prefer  netip.Addr   // AddressPool: the address to claim; the zero Addr for any
	Group   string       // AddressPool: the claims of one group share one address, on all routers (anycast); "" for one's own
	Static  netip.Addr   // AddressStatic
	CIDR    netip.Prefix // AddressCIDR; masked
	Derived netip.Addr   // AddressCIDR: the node's index-th address of CIDR, counted from 0
}

// Fixed is the address that needs no ledger: the static or the derived one.
func (a Address) Fixed() (addr netip.Addr, ok bool) {
	switch a.Kind {
	case AddressStatic:
		return a.Static, true
	case AddressCIDR:
		return a.Derived, true
	}
	return netip.Addr{}, false
}

// AddressKind says which fields of an Address hold.
type AddressKind string

// An address claimed from a pool, one that the file states, and one derived
// from a CIDR and the node's index.
const (
	AddressPool   AddressKind = "pool"
	AddressStatic AddressKind = "static"
	AddressCIDR   AddressKind = "cidr"
)

// Announce is who makes an endpoint's address known to the fabric.
type Announce string

// BGP by a host route (the default), or somebody else.
const (
	AnnounceBGP  Announce = "bgp"
	AnnounceNone Announce = "none"
)

// VNI is one layer 2 segment over VXLAN.
type VNI struct {
	VNI      uint32 // 1 to 16777215
	Endpoint string // an endpoint of this config
	Port     uint16 // UDP; 4789 unless the file says otherwise
	Bridge   string // "" where VLAN is set: the bridge is Config.VLANBridge then
	VLAN     uint16 // 1 to 4094, or 0 for a bridge of its own
	MTU      int    // bytes; 0 is derived from the endpoint's link
}

// FRR is what may be asked of FRR.
type FRR struct {
	EVPN EVPN
}

// EVPN is what to do when FRR has no EVPN instance.
type EVPN string

// Refuse (the default), or make it.
const (
	EVPNRequire EVPN = "require"
	EVPNCreate  EVPN = "create"
)

// Transaction is how a change is carried out.
type Transaction struct {
	DrainQuiet      time.Duration // how long an old endpoint must have received nothing before it goes
	DrainLimit      time.Duration // the longest wait for that
	Timeout         time.Duration // for everything up to and including verify
	Confirm         time.Duration // how long the old endpoint waits for a word that the change is good; 0: none is asked for
	AllowDisruptive bool          // carry out what can't be done without losing packets
}

// Defaults of fields that a file may leave out.
const (
	DefaultPort       = 4789
	DefaultDrainQuiet = time.Second
	DefaultDrainLimit = 30 * time.Second
	DefaultTimeout    = time.Minute
)

// At is the place of a field, named by a dotted path such as
// endpoints.vtep0.ipvlan.parent, vnis.100 or pools.vteps.addresses[0]: the
// value's for a scalar or a list, the key's for a mapping. For a field that
// the file leaves out it is the nearest enclosing one's, at last the start of
// the first file.
func (c *Config) At(field string) Pos {
	for field != "" {
		if p, ok := c.pos[field]; ok {
			return p
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return c.root
}

// Problem is a problem with a field of c, for refusals that only a look at
// the kernel, FRR or the ledger can give.
func (c *Config) Problem(field, msg string) Problem {
	return Problem{Pos: c.At(field), Field: field, Msg: msg}
}

// Equal reports whether c and d mean the same, wherever it is written.
func (c *Config) Equal(d *Config) bool {
	return c.Node == d.Node &&
		c.Store.Equal(d.Store) &&
		slices.EqualFunc(c.Pools, d.Pools, Pool.equal) &&
		slices.Equal(c.Endpoints, d.Endpoints) &&
		slices.Equal(c.Loopbacks, d.Loopbacks) &&
		slices.Equal(c.VNIs, d.VNIs) &&
		c.VLANBridge == d.VLANBridge &&
		c.FRR == d.FRR &&
		c.Transaction == d.Transaction
}

func (p Pool) equal(q Pool) bool {
	return p.Name == q.Name && p.Reclaim == q.Reclaim &&
		slices.Equal(p.Addresses, q.Addresses) && slices.Equal(p.Ranges, q.Ranges) &&
		slices.Equal(p.Prefixes, q.Prefixes) && p.Length == q.Length &&
		slices.Equal(p.Exclude, q.Exclude) && slices.Equal(p.ExcludeRanges, q.ExcludeRanges)
}

// Hash is equal for configs that are Equal, in every run of every build.
func (c *Config) Hash() [sha256.Size]byte {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings, numbers and addresses always have a JSON form
	}
	return sha256.Sum256(text)
}
