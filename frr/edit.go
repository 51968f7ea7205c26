package frr

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ErrInstance is what an EditError wraps when the default VRF runs no BGP instance, or another one than the edit was
// planned for. A bgpd that has just started and hasn't read its configuration looks like that too: try again later.
var ErrInstance = errors.New("not the BGP instance that was planned for")

// errInvalid is an edit that could never be rendered: a bug, or a journal that was edited by hand.
var errInvalid = errors.New("invalid edit")

// Valid reports why the edit can't be rendered, nil when it can: an unknown verb, no ASN, a prefix that isn't one.
func (e Edit) Valid() error {
	if e.ASN == 0 {
		return fmt.Errorf("%w: no ASN", errInvalid)
	}
	switch e.Verb {
	case AddNetwork, RemoveNetwork:
		// FRR would take an address without a mask for a classful network, and a mapped one for IPv6.
		if !e.Prefix.IsValid() || e.Prefix.Addr().Is4In6() || e.Prefix.Addr().Zone() != "" || e.Prefix != e.Prefix.Masked() {
			return fmt.Errorf("%w: %s is not a prefix that a network line can have", errInvalid, e.Prefix)
		}
		return nil
	case SetRouterID, RemoveRouterID:
		if !e.Prefix.IsValid() || !e.Prefix.Addr().Is4() || e.Prefix.Bits() != 32 || e.Prefix.Addr().IsUnspecified() {
			return fmt.Errorf("%w: %s is no router id", errInvalid, e.Prefix)
		}
		return nil
	case AddRouteMap, RemoveRouteMap, AddEVPN, RemoveEVPN:
		if e.Prefix.IsValid() {
			return fmt.Errorf("%w: %s takes no prefix", errInvalid, e.Verb)
		}
		return nil
	}
	return fmt.Errorf("%w: unknown verb %q", errInvalid, e.Verb)
}

// Inverse is the edit that takes this one back.
func (e Edit) Inverse() Edit {
	switch e.Verb {
	case AddRouteMap:
		e.Verb = RemoveRouteMap
	case RemoveRouteMap:
		e.Verb = AddRouteMap
	case AddNetwork:
		e.Verb = RemoveNetwork
	case RemoveNetwork:
		e.Verb = AddNetwork
	case SetRouterID:
		if !e.Was.IsValid() {
			e.Verb = RemoveRouterID
			break
		}
		e.Prefix, e.Was = netip.PrefixFrom(e.Was, e.Was.BitLen()), e.Prefix.Addr()
	case RemoveRouterID:
		e.Verb = SetRouterID
	case AddEVPN:
		e.Verb = RemoveEVPN
	case RemoveEVPN:
		e.Verb = AddEVPN
	}
	return e
}

// Check compares the edit with what the Config part of an Observation says: whether anything is left to write, or why it
// must not be written (an error that wraps ErrInstance, ErrNotOurs or ErrInTheWay). After the edit it says false, nil.
func (e Edit) Check(o Observation) (differs bool, err error) {
	if err := e.Valid(); err != nil {
		return false, err
	}
	switch {
	case o.Instance.ASN == 0:
		return false, fmt.Errorf("%w: no BGP instance in the default VRF, router bgp %d was there", ErrInstance, e.ASN)
	case o.Instance.ASN != e.ASN:
		return false, fmt.Errorf("%w: router bgp %d runs, router bgp %d was there", ErrInstance, o.Instance.ASN, e.ASN)
	}
	switch e.Verb {
	case AddRouteMap:
		if o.RouteMap.Present && !o.RouteMap.Ours {
			return false, fmt.Errorf("%w: a route map %s is there without the description %q alone on one entry",
				ErrNotOurs, Mark, MarkDescription)
		}
		return !o.RouteMap.Present, nil
	case RemoveRouteMap:
		if !o.RouteMap.Present {
			return false, nil
		}
		if !o.RouteMap.Ours {
			return false, fmt.Errorf("%w: the route map %s is not the one that vtepd makes", ErrNotOurs, Mark)
		}
		// bgpd takes a route map that is missing for one that denies, and would withdraw the network.
		if i := slices.IndexFunc(o.Networks, func(n Network) bool { return n.RouteMap == Mark }); i >= 0 {
			return false, fmt.Errorf("%w: network %s still uses it", ErrInTheWay, o.Networks[i].Prefix)
		}
		return true, nil
	case AddNetwork:
		i, ok := findNetwork(o.Networks, e.Prefix)
		switch {
		case ok && o.Networks[i].RouteMap == "":
			return false, fmt.Errorf("%w: there is a line for it without a route map, not made by vtepd", ErrInTheWay)
		case ok && o.Networks[i].RouteMap != Mark:
			return false, fmt.Errorf("%w: there is a line for it with route-map %s, not made by vtepd", ErrInTheWay, o.Networks[i].RouteMap)
		case !o.RouteMap.Present:
			return false, fmt.Errorf("route-map %s must be there first: FRR accepts a network line without it and never announces it", Mark)
		case !o.RouteMap.Ours:
			return false, fmt.Errorf("%w: the route map %s is not the one that vtepd makes", ErrNotOurs, Mark)
		}
		return !ok, nil
	case RemoveNetwork:
		i, ok := findNetwork(o.Networks, e.Prefix)
		if ok && o.Networks[i].RouteMap != Mark {
			return false, fmt.Errorf("%w: the line for it has no route-map %s", ErrNotOurs, Mark)
		}
		return ok, nil
	case SetRouterID:
		have := o.Instance.Configured
		if have.IsValid() && have != e.Was && have != e.Prefix.Addr() {
			return false, fmt.Errorf("%w: bgp router-id %s is there, not made by vtepd", ErrInTheWay, have)
		}
		return have != e.Prefix.Addr(), nil
	case RemoveRouterID:
		return o.Instance.Configured == e.Prefix.Addr(), nil
	case AddEVPN:
		return !o.EVPN, nil
	case RemoveEVPN:
		return o.EVPN, nil
	}
	return false, nil
}

// Applied is the Observation after the edit, in its Config part, as a copy.
func (e Edit) Applied(o Observation) Observation {
	switch e.Verb {
	case AddRouteMap:
		o.RouteMap = RouteMap{Present: true, Ours: true}
	case RemoveRouteMap:
		o.RouteMap = RouteMap{}
	case AddNetwork:
		o.Networks = slices.Clone(o.Networks)
		if _, ok := findNetwork(o.Networks, e.Prefix); !ok {
			o.Networks = append(o.Networks, Network{Prefix: e.Prefix, RouteMap: Mark})
			SortNetworks(o.Networks)
		}
	case RemoveNetwork:
		o.Networks = slices.DeleteFunc(slices.Clone(o.Networks), func(n Network) bool { return n.Prefix == e.Prefix })
	case SetRouterID:
		o.Instance.Configured, o.Instance.RouterID = e.Prefix.Addr(), e.Prefix.Addr()
	case RemoveRouterID:
		if o.Instance.Configured == e.Prefix.Addr() {
			o.Instance.Configured = netip.Addr{} // which one FRR chooses then is its own affair
		}
	case AddEVPN:
		o.EVPN = true
	case RemoveEVPN:
		o.EVPN = false
	}
	return o
}

// SortNetworks puts networks in the order of their prefixes, IPv4 first.
func SortNetworks(nets []Network) {
	slices.SortFunc(nets, func(a, b Network) int { return ComparePrefixes(a.Prefix, b.Prefix) })
}

// ComparePrefixes orders by address, then by length.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func findNetwork(nets []Network, p netip.Prefix) (int, bool) {
	i := slices.IndexFunc(nets, func(n Network) bool { return n.Prefix == p })
	return i, i >= 0
}

// ComparePeers orders addresses as addresses, and before interfaces.
func ComparePeers(a, b string) int {
	x, errX := netip.ParseAddr(a)
	y, errY := netip.ParseAddr(b)
	switch {
	case errX == nil && errY == nil:
		return x.Compare(y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return cmp.Compare(a, b)
}

// SortType3 puts routes in the order of VNI, origin, RD and peer.
func SortType3(t []Type3) {
	slices.SortFunc(t, func(a, b Type3) int {
		return cmp.Or(cmp.Compare(a.VNI, b.VNI), a.Origin.Compare(b.Origin), cmp.Compare(a.RD, b.RD), ComparePeers(a.Peer, b.Peer))
	})
}
