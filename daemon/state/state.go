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
	n := State{Claims: slices.Clone(s.Claims), Links: slices.Clone(s.Links), EVPN: s.EVPN, Routes: slices.Clone(s.Routes)}
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
// in the record was there before and is the operator's. The same goes for the EVPN instance. Claims are taken as given.
func Observed(k dataplane.Observation, f frr.Observation, owned State, claims []Claim) State {
	s := State{Claims: claims, EVPN: f.EVPN && owned.EVPN}
	for _, l := range k.Links {
		if l.Ours() {
			s.Links = append(s.Links, l)
		}
	}
	for _, n := range f.Networks {
		if n.RouteMap == frr.Mark && slices.Contains(owned.Routes, n.Prefix) {
			s.Routes = append(s.Routes, n.Prefix)
		}
	}
	return s.Normal()
}

// Diff lists in words what keeps got from being want, sorted by kind and name: empty when they are the same.
func Diff(got, want State) []string {
	got, want = got.Normal(), want.Normal()
	var out []string
	missing := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, w := range want.Links {
		g, ok := dataplane.Find(got.Links, w.Name)
		switch {
		case !ok:
			missing("link %s is missing", w)
		case !g.Same(w):
			missing("link %s: %s", w, strings.Join(w.Diff(g), ", "))
		}
	}
	for _, g := range got.Links {
		if _, ok := dataplane.Find(want.Links, g.Name); !ok {
			missing("link %s should not be there", g)
		}
	}
	out = append(out, setDiff("host route", got.Routes, want.Routes)...)
	if got.EVPN != want.EVPN {
		missing("advertise-all-vni is %t, should be %t", got.EVPN, want.EVPN)
	}
	return append(out, setDiff("claim", got.Claims, want.Claims)...)
}

func setDiff[T comparable](what string, got, want []T) []string {
	var out []string
	for _, w := range want {
		if !slices.Contains(got, w) {
			out = append(out, fmt.Sprintf("%s %v is missing", what, w))
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			out = append(out, fmt.Sprintf("%s %v should not be there", what, g))
		}
	}
	return out
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

// Endpoints are the links that hold tunnel addresses, in order.
func (s State) Endpoints() []dataplane.Link {
	var out []dataplane.Link
	for _, l := range s.Links {
		if IsEndpoint(l) {
			out = append(out, l)
		}
	}
	return out
}

// IsEndpoint reports whether a link of vtepd's holds a tunnel endpoint's address.
func IsEndpoint(l dataplane.Link) bool {
	return l.Kind == dataplane.IPVLAN || l.Kind == dataplane.Dummy
}
