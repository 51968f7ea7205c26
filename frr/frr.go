// Package frr holds what vtepd reads and writes in FRR as values: host routes, the EVPN instance, sessions, VNIs and
// type-3 routes; it renders edits to vty lines and parses FRR's answers. It is pure: frr/vty talks to the daemons.
package frr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Mark is the name of the route map on every host route that vtepd makes: `network A/L route-map VTEPD`, so that the mark
// is in FRR's own configuration. The map itself permits everything and changes nothing; MarkDescription, on its only
// entry, says whose it is.
const (
	Mark            = "VTEPD"
	MarkDescription = "vtepd marks its host routes with this map"
)

// Verb is what an Edit does.
type Verb string

// The verbs. Each is idempotent: adding what is there and removing what isn't succeed and write nothing.
const (
	AddRouteMap    Verb = "add-route-map"    // the map Mark, with its description. One that isn't ours is ErrNotOurs
	RemoveRouteMap Verb = "remove-route-map" // the same, only when it is ours
	AddNetwork     Verb = "add-network"      // `network Prefix route-map Mark`. A line for Prefix with another or no map is ErrInTheWay
	RemoveNetwork  Verb = "remove-network"   // the same line. One with another or no map is left alone: ErrNotOurs
	SetRouterID    Verb = "set-router-id"    // `bgp router-id` of Prefix, in the place of none or of Was. Another one is ErrInTheWay
	RemoveRouterID Verb = "remove-router-id" // the same line, if it is there; another one is left alone
	AddEVPN        Verb = "add-evpn"         // `advertise-all-vni` below `address-family l2vpn evpn`
	RemoveEVPN     Verb = "remove-evpn"      // and its removal
)

// Edit is one change of bgpd's configuration as data: it outlives the process in the journal.
type Edit struct {
	Verb   Verb         `json:"verb"`
	ASN    uint32       `json:"asn"`             // of the instance, as read when the plan was made: another one running now is an error
	Prefix netip.Prefix `json:"prefix,omitzero"` // a router id's is its host prefix
	Was    netip.Addr   `json:"was,omitzero"`    // SetRouterID: what it may replace
}

// Object names what the edit changes, for people and logs.
func (e Edit) Object() string {
	switch e.Verb {
	case AddNetwork, RemoveNetwork:
		return "network " + e.Prefix.String()
	case AddRouteMap, RemoveRouteMap:
		return "route-map " + Mark
	case SetRouterID, RemoveRouterID:
		return "bgp router-id " + e.Prefix.Addr().String()
	}
	return "advertise-all-vni"
}

// String is the edit in a few words: what `vtepd plan` prints.
func (e Edit) String() string { return fmt.Sprintf("%s %s (router bgp %d)", e.Verb, e.Object(), e.ASN) }

// What an EditError or an error of Observe can wrap.
var (
	ErrNotOurs     = errors.New("not vtepd's")
	ErrInTheWay    = errors.New("in the way")
	ErrUnreachable = errors.New("FRR can't be reached") // socket missing, refused, closed, silent: try again later
	ErrGarbage     = errors.New("FRR's answer makes no sense")
)

// EditError is an edit that FRR, or a check before it, refused: the line, and FRR's own words.
type EditError struct {
	Edit Edit
	Line string // the vty line that failed; "" where a check refused
	Err  error
}

func (e *EditError) Error() string {
	if e.Line == "" {
		return fmt.Sprintf("%s: %v", e.Edit.Object(), e.Err)
	}
	return fmt.Sprintf("%s: line %q: %v", e.Edit.Object(), e.Line, e.Err)
}
func (e *EditError) Unwrap() error { return e.Err }

// Query says what an Observe shall ask for: each part costs its own round trips, none of them one per VNI.
type Query struct {
	Lines    bool           // Fingerprint, and Config without the instance's router id: one round trip
	Config   bool           // Instance, Networks, RouteMap, EVPN, Version, Fingerprint
	Sessions bool           // Sessions
	VNIs     bool           // VNIs
	Type3    bool           // Type3
	Prefixes []netip.Prefix // Routes: one round trip each, and one or two a family
}

// Observation is what one look at FRR saw: only the parts that the Query named.
type Observation struct {
	Version  Version // of bgpd
	Instance Instance
	EVPN     bool      // advertise-all-vni is in the instance
	Networks []Network // of both unicast families of the instance, sorted by prefix
	RouteMap RouteMap
	// Fingerprint tells bgpd's whole running configuration from any other: FRR gives no event when a line of it changes.
	Fingerprint string
	Sessions    []Session // sorted by peer
	VNIs        []VNI     // what zebra knows, sorted by VNI
	Type3       []Type3   // inclusive multicast routes in BGP, ours and those received
	Routes      []Route   // one for every prefix of the query, in its order
}

// Version is an FRR version, such as 8.4.4 or 10.3.
type Version struct{ Major, Minor, Patch int }

func (v Version) String() string {
	if v.Patch == 0 {
		return fmt.Sprintf("%d.%d", v.Major, v.Minor)
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}

// AtLeast reports whether v is major.minor or newer.
func (v Version) AtLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Instance is the BGP instance of the default VRF. The zero value: there is none.
type Instance struct {
	ASN        uint32
	RouterID   netip.Addr // in use
	Configured netip.Addr // by `bgp router-id`; zero: FRR chose
}

// Network is one `network` line.
type Network struct {
	Prefix   netip.Prefix
	RouteMap string // "": none
}

// RouteMap says what is there under the name Mark.
type RouteMap struct {
	Present bool
	Ours    bool // one entry, `permit`, with MarkDescription and nothing else
}

// Session is a configured neighbour of the instance.
type Session struct {
	Peer         string     // the address, or the interface of an unnumbered one
	RouterID     netip.Addr // the peer's, zero unless established
	Established  bool
	Local        netip.Addr // this router's end, zero unless established
	UpdateSource string     // as configured: an address or an interface; "": none
	IPv4, IPv6   bool       // the unicast families negotiated
	EVPN         bool
}

// VNI is a VNI as zebra knows it.
type VNI struct {
	VNI    uint32
	Device string     // the VXLAN device
	Local  netip.Addr // its VTEP
	L3     bool       // a `vni` line makes it the L3 VNI of a VRF
}

// Type3 is one inclusive multicast route in BGP's EVPN table (RFC 7432, type 3).
type Type3 struct {
	RD      string // route distinguisher
	VNI     uint32 // of the local VNI for our own routes; for others' what the route's label says, 0 if unknown
	Origin  netip.Addr
	NextHop netip.Addr
	Local   bool   // this router made it
	Peer    string // whom it came from, as in Session.Peer; "" when Local
	Valid   bool
	// AdvertisedTo are the peers that our own route was sent to, Queued those for whom it, or another change of the EVPN
	// table, still waits; sorted.
	AdvertisedTo, Queued []string
}

// Route is what BGP knows of one unicast prefix.
type Route struct {
	Prefix       netip.Prefix
	Local        bool     // a valid path that this router originates is there
	AdvertisedTo []string // peers that the best path was sent to, sorted
	Queued       []string // peers for whom it waits, until their advertisement-interval has passed, sorted
	Others       []Source // paths that others announce, sorted by peer
}

// Source is who announces a prefix.
type Source struct {
	Peer     string
	RouterID netip.Addr // of the peer
	Origin   netip.Addr // originator id where a reflector sits between, else the peer's router id
	ASPath   string
	NextHop  netip.Addr
}

func (s Source) String() string {
	t := fmt.Sprintf("peer %s (router id %s)", s.Peer, s.RouterID)
	if s.Origin.IsValid() && s.Origin != s.RouterID {
		t += ", originated by " + s.Origin.String()
	}
	if s.ASPath != "" {
		t += ", AS path " + s.ASPath
	}
	return t
}

// Router reads and edits one router's FRR. One goroutine at a time uses it.
type Router interface {
	// Observe asks FRR for the parts that q names. Errors wrap ErrUnreachable or ErrGarbage, and name the daemon, the
	// socket, the command and FRR's own words.
	Observe(ctx context.Context, q Query) (Observation, error)
	// Apply makes the edits in order, on one connection that read the instance first, and reads them back. Only what
	// differs is written. It stops at the first that fails, an *EditError; what was done by then, the edits' inverses undo.
	Apply(ctx context.Context, edits []Edit) error
	// RoundTrips is the number of requests sent so far, reads and writes.
	RoundTrips() uint64
	Close() error
}
