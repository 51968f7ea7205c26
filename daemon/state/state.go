// Package state holds State, all that vtepd owns on one router as one sorted, comparable value: what the config wants and
// what was observed are the same type, so that a plan and a verification are the same diff. It is pure.
package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vtepd/alloc"
	"vtepd/dataplane"
	"vtepd/frr"
)

// State is everything of vtepd's on a router. It holds owned objects only.
type State struct {
	Claims []Claim          `json:"claims,omitempty"` // sorted by name, then value
	Links  []dataplane.Link `json:"links,omitempty"`  // sorted by name, groups zero
	EVPN   bool             `json:"evpn,omitempty"`   // vtepd's own advertise-all-vni
	Routes []netip.Prefix   `json:"routes,omitempty"` // host routes announced with frr.Mark, sorted
	// Attachments are how those of Links came to be that CNI plugins made, sorted by link.
	Attachments []dataplane.Attachment `json:"attachments,omitempty"`
	RouterID    netip.Addr             `json:"routerID,omitzero"` // vtepd's own `bgp router-id`
}

// Claim is a value of a pool that this router holds for one of its objects.
type Claim struct {
	Name  string `json:"name"` // ROUTER/endpoint/NAME
	Pool  string `json:"pool"`
	Value string `json:"value"` // canonical: an address
}

// ClaimOf is the claim that a proposal of the ledger answers.
func ClaimOf(p alloc.Proposal) Claim {
	return Claim{Name: p.Claim.Name, Pool: p.Allocation.Pool, Value: p.Allocation.Value}
}

// Normal returns s sorted, and without what a State doesn't compare: groups, and the MTUs that the kernel chooses.
func (s State) Normal() State {
	n := State{
		Claims: slices.Clone(s.Claims), Links: slices.Clone(s.Links), EVPN: s.EVPN, Routes: slices.Clone(s.Routes),
		Attachments: slices.Clone(s.Attachments), RouterID: s.RouterID,
	}
	for i := range n.Links {
		l := &n.Links[i]
		l.Group = 0
		if l.Kind != dataplane.VXLAN {
			l.MTU = 0
		}
		l.Addrs = slices.Clone(l.Addrs)
		slices.SortFunc(l.Addrs, frr.ComparePrefixes)
	}
	dataplane.SortLinks(n.Links)
	slices.SortFunc(n.Claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Pool, b.Pool))
	})
	slices.SortFunc(n.Routes, frr.ComparePrefixes)
	n.Routes = slices.Compact(n.Routes)
	slices.SortFunc(n.Attachments, func(a, b dataplane.Attachment) int { return cmp.Compare(a.Link, b.Link) })
	return n
}

// Hash is a fingerprint of the normal form.
func (s State) Hash() string {
	raw, err := json.Marshal(s.Normal())
	if err != nil {
		panic("state: " + err.Error()) // a State holds nothing that JSON can't
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// Observed is the part of two observations that is vtepd's. A link is ours by its alias. A host route is ours when its
// line has our mark and owned, the record of what vtepd committed or has begun, holds it: a line like it that isn't
// in the record was there before and is the operator's. The same goes for the EVPN instance and the router id. An attachment
// is one when it is whole and its link is ours. Claims are taken as given.
func Observed(k dataplane.Observation, f frr.Observation, owned State, claims []Claim) State {
	s := State{Claims: claims, EVPN: f.EVPN && owned.EVPN}
	for _, l := range k.Links {
		if l.Ours() {
			s.Links = append(s.Links, l)
		}
	}
	for _, a := range k.Attached {
		if l, ok := dataplane.Find(k.Links, a.Link); a.Whole && ok && l.Owner == a.Owner {
			s.Attachments = append(s.Attachments, a.Attachment)
		}
	}
	if f.Instance.Configured.IsValid() && f.Instance.Configured == owned.RouterID {
		s.RouterID = owned.RouterID
	}
	for _, n := range f.Networks {
		// bgpd takes a route map that is missing for one that denies: the line alone announces nothing.
		if n.RouteMap == frr.Mark && f.RouteMap.Present && slices.Contains(owned.Routes, n.Prefix) {
			s.Routes = append(s.Routes, n.Prefix)
		}
	}
	return s.Normal()
}

// Diff lists in words what keeps got from being want, sorted by kind and name: empty when they are the same.
func Diff(got, want State) []string {
	var out []string
	for _, d := range Differences(got, want) {
		out = append(out, d.String())
	}
	return out
}

// Difference is one thing that isn't as it should be.
type Difference struct {
	Object string // "link vxlan100 (vxlan of vni/100)"
	How    string // " is missing", or ": " and what is wrong with it
}

func (d Difference) String() string { return d.Object + d.How }

// Differences is Diff with the objects apart.
func Differences(got, want State) []Difference {
	got, want = got.Normal(), want.Normal()
	var out []Difference
	link := func(l dataplane.Link, how string) { out = append(out, Difference{fmt.Sprintf("link %s", l), how}) }
	for _, w := range want.Links {
		g, ok := dataplane.Find(got.Links, w.Name)
		switch {
		case !ok:
			link(w, " is missing")
		case !g.Same(w):
			link(w, ": "+strings.Join(w.Diff(g), ", "))
		}
	}
	for _, g := range got.Links {
		if _, ok := dataplane.Find(want.Links, g.Name); !ok {
			link(g, " should not be there")
		}
	}
	out = append(out, setDiff("", got.Attachments, want.Attachments)...)
	out = append(out, setDiff("host route", got.Routes, want.Routes)...)
	if got.RouterID != want.RouterID {
		out = append(out, Difference{"bgp router-id", fmt.Sprintf(" is %s, should be %s", orNone(got.RouterID), orNone(want.RouterID))})
	}
	if got.EVPN != want.EVPN {
		out = append(out, Difference{"advertise-all-vni", fmt.Sprintf(" is %t, should be %t", got.EVPN, want.EVPN)})
	}
	return append(out, setDiff("claim", got.Claims, want.Claims)...)
}

func setDiff[T comparable](what string, got, want []T) []Difference {
	var out []Difference
	for _, w := range want {
		if !slices.Contains(got, w) {
			out = append(out, Difference{strings.TrimSpace(fmt.Sprintf("%s %v", what, w)), " is missing"})
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			out = append(out, Difference{strings.TrimSpace(fmt.Sprintf("%s %v", what, g)), " should not be there"})
		}
	}
	return out
}

func orNone(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}

// String names the claim for people.
func (c Claim) String() string { return fmt.Sprintf("%s of pool %s for %s", c.Value, c.Pool, c.Name) }

// VXLANs are the links of that kind, in order.
func (s State) VXLANs() []dataplane.Link {
	var out []dataplane.Link
	for _, l := range s.Links {
		if l.Kind == dataplane.VXLAN {
			out = append(out, l)
		}
	}
	return out
}

// Endpoints are the links that hold addresses, those of loopbacks as well, in order.
func (s State) Endpoints() []dataplane.Link {
	var out []dataplane.Link
	for _, l := range s.Links {
		if IsEndpoint(l) {
			out = append(out, l)
		}
	}
	return out
}

// Attachment is how the link of that name was made, or is to be, if plugins do it.
func (s State) Attachment(link string) (dataplane.Attachment, bool) {
	i := slices.IndexFunc(s.Attachments, func(a dataplane.Attachment) bool { return a.Link == link })
	if i < 0 {
		return dataplane.Attachment{}, false
	}
	return s.Attachments[i], true
}

// The kinds of owners of links that hold addresses: an endpoint; a loopback of the fabric; a shared one, whose address other
// routers have too; and what holds the address of an endpoint while its link is replaced.
const (
	EndpointOwner = "endpoint/"
	LoopbackOwner = "loopback/"
	AnycastOwner  = "anycast/"
	HoldOwner     = "hold/"
)

// IsLoopback reports whether a link of vtepd's is a loopback of the fabric: its name is its own, and its addresses change in place.
func IsLoopback(l dataplane.Link) bool {
	return strings.HasPrefix(l.Owner, LoopbackOwner) || strings.HasPrefix(l.Owner, AnycastOwner)
}

// IsEndpoint reports whether a link of vtepd's holds addresses: a tunnel endpoint's, or a loopback's.
func IsEndpoint(l dataplane.Link) bool {
	return l.Kind == dataplane.IPVLAN || l.Kind == dataplane.Dummy
}
