package frr

import "fmt"

// Render gives the lines that make the edit in bgpd, from `configure terminal` to `end`. Nothing but the ASN, the prefix and constants is in them. The error is that of Valid.
func Render(e Edit) (lines []string, err error) {
	if err := e.Valid(); err != nil {
		return nil, err
	}
	switch e.Verb {
	case AddRouteMap:
		lines = []string{"route-map " + Mark + " permit 10", "description " + MarkDescription}
	case RemoveRouteMap:
		lines = []string{"no route-map " + Mark}
	case AddNetwork, RemoveNetwork:
		family := "ipv4"
		if e.Prefix.Addr().Is6() {
			family = "ipv6"
		}
		network := fmt.Sprintf("network %s route-map %s", e.Prefix, Mark)
		if e.Verb == RemoveNetwork {
			network = "no " + network
		}
		lines = []string{routerBGP(e.ASN), "address-family " + family + " unicast", network}
	case SetRouterID:
		lines = []string{routerBGP(e.ASN), fmt.Sprintf("bgp router-id %s", e.Prefix.Addr())}
	case RemoveRouterID:
		lines = []string{routerBGP(e.ASN), fmt.Sprintf("no bgp router-id %s", e.Prefix.Addr())}
	case AddEVPN:
		lines = []string{routerBGP(e.ASN), "address-family l2vpn evpn", "advertise-all-vni"}
	case RemoveEVPN:
		lines = []string{routerBGP(e.ASN), "address-family l2vpn evpn", "no advertise-all-vni"}
	}
	lines = append([]string{"configure terminal"}, lines...)
	return append(lines, "end"), nil
}

func routerBGP(asn uint32) string { return fmt.Sprintf("router bgp %d", asn) }
