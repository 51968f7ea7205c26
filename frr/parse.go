package frr

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The commands whose answers are parsed here, each one round trip. CommandVNIs is zebra's, the rest are bgpd's.
const (
	CommandConfig   = "show running-config"
	CommandVRFs     = "show bgp vrfs json"
	CommandSessions = "show bgp neighbors json"
	CommandVNIs     = "show evpn vni detail json"
	CommandType3    = "show bgp l2vpn evpn route detail type multicast json"
	// CommandEVPNUpdates is ParseUpdateGroups' for the EVPN table.
	CommandEVPNUpdates = "show bgp l2vpn evpn update-groups"
)

// CommandRoute asks for one prefix, exactly: bgpd doesn't fall back to a shorter one.
func CommandRoute(p netip.Prefix) string {
	return fmt.Sprintf("show bgp %s unicast %s json", family(p), p.Masked())
}

// CommandUpdates asks for the update groups of a prefix's family, CommandQueue for the prefixes that wait in them.
func CommandUpdates(p netip.Prefix) string {
	return fmt.Sprintf("show bgp %s unicast update-groups", family(p))
}

// CommandQueue asks for the prefixes that wait in the update groups of a prefix's family.
func CommandQueue(p netip.Prefix) string { return CommandUpdates(p) + " advertise-queue" }

func family(p netip.Prefix) string {
	if p.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}

// Garbage is an error that wraps ErrGarbage and names the command, what is wrong, and how the answer begins.
func Garbage(command, why, answer string) error {
	return fmt.Errorf("%w: %s: %s: %s", ErrGarbage, command, why, Excerpt(answer))
}

// Excerpt quotes the first words of an answer, for an error message.
func Excerpt(answer string) string {
	const most = 80
	s := strings.Join(strings.Fields(answer[:min(len(answer), 4*most)]), " ")
	if s == "" {
		return "nothing"
	}
	cut := len(s) > most || len(answer) > 4*most
	if len(s) > most {
		s = s[:most]
		for !utf8.ValidString(s) && len(s) > most-utf8.UTFMax {
			s = s[:len(s)-1]
		}
	}
	if cut {
		s = strings.TrimRight(s, " ") + "…"
	}
	return strconv.Quote(s)
}

// ParseConfig reads bgpd's running configuration: version, ASN, EVPN, networks, and the route map Mark. The router id is
// there only when configured; ParseRouterID has the one in use. Instances of other VRFs and views are passed over.
func ParseConfig(answer string) (Observation, error) {
	var (
		o       Observation
		version bool
		section string // "bgp": the default instance; "mark": an entry of the map; "": anything else
		afi     string
		entries int
		others  int // lines of the map's entries that vtepd would not have written
	)
	bad := func(why, line string) (Observation, error) {
		return Observation{}, Garbage(CommandConfig, why, line)
	}
	for line := range strings.Lines(answer) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "!" {
			continue
		}
		if !version {
			if line == "Building configuration...\n" || line == "Current configuration:\n" {
				continue
			}
			if len(words) != 3 || words[0] != "frr" || words[1] != "version" {
				return bad("no frr version on the first line", answer)
			}
			v, ok := parseVersion(words[2])
			if !ok {
				return bad("not a version", line)
			}
			o.Version, version = v, true
			continue
		}
		if line[0] != ' ' {
			section, afi = "", ""
			switch {
			case len(words) >= 3 && words[0] == "router" && words[1] == "bgp":
				if slices.Contains(words[3:], "vrf") || slices.Contains(words[3:], "view") {
					break
				}
				asn, ok := parseASN(words[2])
				if !ok {
					return bad("not an AS number", line)
				}
				o.Instance.ASN, section = asn, "bgp"
			case len(words) == 4 && words[0] == "route-map" && words[1] == Mark:
				section = "mark"
				entries++
				if words[2] != "permit" {
					others++
				}
			}
			continue
		}
		switch section {
		case "mark":
			if strings.Join(words, " ") != "description "+MarkDescription {
				others++
			}
		case "bgp":
			switch words[0] {
			case "address-family":
				afi = strings.Join(words[1:], " ")
			case "exit-address-family":
				afi = ""
			case "bgp":
				if afi == "" && len(words) == 3 && words[1] == "router-id" {
					id, err := netip.ParseAddr(words[2])
					if err != nil {
						return bad("not a router id", line)
					}
					o.Instance.RouterID, o.Instance.Configured = id, id
				}
			case "advertise-all-vni":
				o.EVPN = o.EVPN || afi == "l2vpn evpn"
			case "network":
				if afi != "ipv4 unicast" && afi != "ipv6 unicast" {
					break
				}
				n, ok := parseNetwork(words[1:], afi == "ipv6 unicast")
				if !ok {
					return bad("not a network", line)
				}
				o.Networks = append(o.Networks, n)
			}
		}
	}
	if !version {
		return bad("no frr version on the first line", answer)
	}
	o.RouteMap = RouteMap{Present: entries > 0, Ours: entries == 1 && others == 0 && strings.Contains(answer, MarkDescription)}
	SortNetworks(o.Networks)
	return o, nil
}

// parseNetwork reads PREFIX [label-index N] [route-map NAME] [backdoor].
func parseNetwork(words []string, six bool) (Network, bool) {
	if len(words) == 0 {
		return Network{}, false
	}
	p, err := netip.ParsePrefix(words[0])
	if err != nil || p.Addr().Is6() != six {
		return Network{}, false
	}
	n := Network{Prefix: p}
	if i := slices.Index(words, "route-map"); i > 0 {
		if i+1 == len(words) {
			return Network{}, false
		}
		n.RouteMap = words[i+1]
	}
	return n, true
}

// parseVersion reads 10.3, 8.4.4, 10.3-dev, 10.7.1-1~deb13u1.
func parseVersion(s string) (Version, bool) {
	s, _, _ = strings.Cut(s, "-")
	var n [3]int
	parts := strings.Split(s, ".")
	if len(parts) < 2 {
		return Version{}, false
	}
	for i, p := range parts[:min(len(parts), 3)] {
		v, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return Version{}, false
		}
		n[i] = int(v)
	}
	return Version{n[0], n[1], n[2]}, true
}

// parseASN reads 65001 and, since 8.5, 0.65001 (RFC 5396).
func parseASN(s string) (uint32, bool) {
	high, low, dotted := strings.Cut(s, ".")
	if !dotted {
		n, err := strconv.ParseUint(s, 10, 32)
		return uint32(n), err == nil && n != 0
	}
	h, errH := strconv.ParseUint(high, 10, 16)
	l, errL := strconv.ParseUint(low, 10, 16)
	n := uint32(h<<16 | l)
	return n, errH == nil && errL == nil && n != 0
}

// ParseRouterID reads the router id that the default instance uses from CommandVRFs: the zero Addr without an instance,
// and while it has none.
func ParseRouterID(answer string) (netip.Addr, error) {
	var reply struct {
		VRFs map[string]struct {
			RouterID string `json:"routerId"`
		} `json:"vrfs"`
	}
	if err := decode(CommandVRFs, answer, &reply); err != nil {
		return netip.Addr{}, err
	}
	if reply.VRFs == nil {
		return netip.Addr{}, Garbage(CommandVRFs, "no vrfs", answer)
	}
	vrf, ok := reply.VRFs["default"]
	if !ok {
		return netip.Addr{}, nil
	}
	id, err := netip.ParseAddr(vrf.RouterID)
	if err != nil {
		return netip.Addr{}, Garbage(CommandVRFs, "not a router id", vrf.RouterID)
	}
	return specified(id), nil
}

// ParseSessions reads CommandSessions. Members of the answer that are no neighbours are passed over.
func ParseSessions(answer string) ([]Session, error) {
	var peers map[string]json.RawMessage
	if err := decode(CommandSessions, answer, &peers); err != nil {
		return nil, err
	}
	type reply struct {
		State        string `json:"bgpState"`
		RemoteID     string `json:"remoteRouterId"`
		Local        string `json:"hostLocal"`
		UpdateSource string `json:"updateSource"`
		Capabilities struct {
			Families map[string]struct {
				Both bool `json:"advertisedAndReceived"`
			} `json:"multiprotocolExtensions"`
		} `json:"neighborCapabilities"`
		Families map[string]json.RawMessage `json:"addressFamilyInfo"`
	}
	var out []Session
	for peer, raw := range peers {
		if raw[0] != '{' {
			continue
		}
		var r reply
		if err := decode(CommandSessions, string(raw), &r); err != nil {
			return nil, err
		}
		if r.State == "" {
			return nil, Garbage(CommandSessions, "a neighbour without a state", string(raw))
		}
		s := Session{Peer: peer, Established: r.State == "Established", UpdateSource: r.UpdateSource}
		if s.Established {
			s.RouterID, s.Local = addr(r.RemoteID), addr(r.Local)
			negotiated := func(f string) bool { return r.Capabilities.Families[f].Both }
			if r.Capabilities.Families == nil {
				// The peer sent no capabilities (RFC 5492, or dont-capability-negotiate here): what is activated counts.
				negotiated = func(f string) bool { _, ok := r.Families[f]; return ok }
			}
			s.IPv4, s.IPv6, s.EVPN = negotiated("ipv4Unicast"), negotiated("ipv6Unicast"), negotiated("l2VpnEvpn")
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Session) int { return ComparePeers(a.Peer, b.Peer) })
	return out, nil
}

// ParseVNIs reads CommandVNIs: an array, and nothing or an empty object where bgpd has not asked zebra for VNIs.
func ParseVNIs(answer string) ([]VNI, error) {
	if s := strings.TrimSpace(answer); s == "" || s == "{}" {
		return nil, nil
	}
	var reply []struct {
		VNI    number `json:"vni"`
		Type   string `json:"type"`
		Device string `json:"vxlanInterface"`
		Local  string `json:"vtepIp"`
		// Of an L3 VNI:
		DeviceL3 string `json:"vxlanIntf"`
		LocalL3  string `json:"localVtepIp"`
	}
	if err := decode(CommandVNIs, answer, &reply); err != nil {
		return nil, err
	}
	var out []VNI
	for _, r := range reply {
		if r.VNI == 0 {
			return nil, Garbage(CommandVNIs, "a VNI without its number", answer)
		}
		out = append(out, VNI{
			VNI: uint32(r.VNI), L3: r.Type == "L3",
			Device: cmp.Or(r.Device, r.DeviceL3), Local: specified(addr(cmp.Or(r.Local, r.LocalL3))),
		})
	}
	slices.SortFunc(out, func(a, b VNI) int { return int(a.VNI) - int(b.VNI) })
	return out, nil
}

// path is one path of a route in bgpd's detailed answers.
type path struct {
	VNI     number `json:"vni"`
	Valid   bool   `json:"valid"`
	Removed bool   `json:"removed"`
	Local   bool   `json:"local"`
	Sourced bool   `json:"sourced"`
	Origin  string `json:"originatorId"`
	ASPath  struct {
		String string `json:"string"`
	} `json:"aspath"`
	PMSI struct {
		Label number `json:"label"`
	} `json:"pmsi"`
	NextHops []struct {
		IP   string `json:"ip"`
		Used bool   `json:"used"`
	} `json:"nexthops"`
	Peer struct {
		ID        string `json:"peerId"`
		RouterID  string `json:"routerId"`
		Interface string `json:"interface"`
	} `json:"peer"`
}

// own reports whether this router originates the path: by a network line, redistribution, aggregation or a local VNI.
func (p path) own() bool {
	return p.Local || p.Sourced || p.Peer.ID == "0.0.0.0" || p.Peer.ID == "::" || p.Peer.ID == "(unspec)"
}

func (p path) peer() string {
	if p.Peer.Interface != "" {
		return p.Peer.Interface
	}
	return p.Peer.ID
}

func (p path) nextHop() netip.Addr {
	for _, n := range p.NextHops {
		if n.Used {
			return addr(n.IP)
		}
	}
	if len(p.NextHops) > 0 {
		return addr(p.NextHops[0].IP)
	}
	return netip.Addr{}
}

// ParseType3 reads CommandType3.
func ParseType3(answer string) ([]Type3, error) {
	var tables map[string]json.RawMessage
	if err := decode(CommandType3, emptyTable(answer), &tables); err != nil {
		return nil, err
	}
	var out []Type3
	for rd, raw := range tables {
		if raw[0] != '{' { // numPrefix, numPaths
			continue
		}
		var routes map[string]json.RawMessage
		if err := decode(CommandType3, string(raw), &routes); err != nil {
			return nil, err
		}
		for key, raw := range routes {
			if !strings.HasPrefix(key, "[3]:") {
				continue
			}
			var route struct {
				Origin       string                     `json:"ip"`
				AdvertisedTo map[string]json.RawMessage `json:"advertisedTo"`
				Paths        [][]path                   `json:"paths"`
			}
			if err := decode(CommandType3, string(raw), &route); err != nil {
				return nil, err
			}
			origin := addr(route.Origin)
			if !origin.IsValid() {
				return nil, Garbage(CommandType3, "a route without its origin", string(raw))
			}
			for _, p := range slices.Concat(route.Paths...) {
				if p.Removed {
					continue
				}
				t := Type3{RD: rd, VNI: uint32(p.VNI), Origin: origin, NextHop: p.nextHop(), Local: p.own(), Valid: p.Valid}
				if t.VNI == 0 {
					t.VNI = uint32(p.PMSI.Label)
				}
				if t.Local {
					t.AdvertisedTo = peersOf(route.AdvertisedTo)
				} else {
					t.Peer = p.peer()
				}
				out = append(out, t)
			}
		}
	}
	SortType3(out)
	return out, nil
}

// emptyTable repairs what 10.3 says of an EVPN table without routes: an object that begins with a comma.
func emptyTable(answer string) string {
	if rest, ok := strings.CutPrefix(strings.TrimSpace(answer), "{"); ok {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(rest), ","); ok {
			return "{" + rest
		}
	}
	return answer
}

// ParseRoute reads the answer to CommandRoute(p). A prefix that BGP doesn't know is a Route with nothing but Prefix.
func ParseRoute(p netip.Prefix, answer string) (Route, error) {
	command := CommandRoute(p)
	r := Route{Prefix: p}
	var reply struct {
		Prefix       string                     `json:"prefix"`
		AdvertisedTo map[string]json.RawMessage `json:"advertisedTo"`
		Paths        []path                     `json:"paths"`
	}
	if err := decode(command, answer, &reply); err != nil {
		return Route{}, err
	}
	if reply.Prefix == "" {
		if len(reply.Paths) > 0 {
			return Route{}, Garbage(command, "paths without a prefix", answer)
		}
		return r, nil
	}
	if got, err := netip.ParsePrefix(reply.Prefix); err != nil || got != p.Masked() {
		return Route{}, Garbage(command, "the answer is about another prefix", reply.Prefix)
	}
	for _, path := range reply.Paths {
		switch {
		case path.Removed:
		case path.own():
			r.Local = r.Local || path.Valid
		default:
			s := Source{Peer: path.peer(), RouterID: addr(path.Peer.RouterID), NextHop: path.nextHop()}
			s.Origin = s.RouterID
			if o := addr(path.Origin); o.IsValid() {
				s.Origin = o
			}
			if path.ASPath.String != "Local" { // what bgpd calls an empty path
				s.ASPath = path.ASPath.String
			}
			r.Others = append(r.Others, s)
		}
	}
	slices.SortStableFunc(r.Others, func(a, b Source) int { return ComparePeers(a.Peer, b.Peer) })
	r.AdvertisedTo = peersOf(reply.AdvertisedTo)
	return r, nil
}

func peersOf(m map[string]json.RawMessage) []string {
	var peers []string
	for p := range m {
		peers = append(peers, p)
	}
	slices.SortFunc(peers, ComparePeers)
	return peers
}

// UpdateGroup is a subgroup of bgpd's peers that are sent the same updates, in one family.
type UpdateGroup struct {
	Subgroup uint64
	Peers    []string
	Waiting  bool // changes wait to be sent, for as long as `neighbor … advertisement-interval` says
}

// ParseUpdateGroups reads the answer to command, CommandUpdates of a prefix or CommandEVPNUpdates. It is text: 8.4 knows no
// JSON for it, and 10's leaves out whether anything waits.
func ParseUpdateGroups(command, answer string) ([]UpdateGroup, error) {
	var out []UpdateGroup
	peers, told := false, true
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		if id, ok := strings.CutPrefix(line, "Update-subgroup "); ok {
			n, err := strconv.ParseUint(strings.TrimSuffix(id, ":"), 10, 64)
			if err != nil || !told {
				return nil, Garbage(command, "not a subgroup", line)
			}
			out = append(out, UpdateGroup{Subgroup: n})
			peers, told = false, false
			continue
		}
		if len(out) == 0 || strings.HasPrefix(line, "Update-group ") {
			peers = false
			continue
		}
		last := &out[len(out)-1]
		switch state, ok := strings.CutPrefix(line, "Advertise list: "); {
		case ok && (state == "empty" || state == "not empty"):
			last.Waiting, told = state != "empty", true
		case line == "Peers:":
			peers = true
		case peers && strings.HasPrefix(line, "- "):
			// 10.x can add the peer's host name in brackets.
			if f := strings.Fields(line); len(f) > 1 {
				last.Peers = append(last.Peers, f[1])
			}
		}
	}
	if !told || len(out) == 0 && strings.TrimSpace(answer) != "" {
		return nil, Garbage(command, "not a list of update groups", answer)
	}
	return out, nil
}

// ParseQueue reads the answer to CommandQueue(p): the subgroups for whose peers p waits, sorted.
func ParseQueue(p netip.Prefix, answer string) ([]uint64, error) {
	var out []uint64
	var group uint64
	seen := false
	for line := range strings.Lines(answer) {
		if _, id, ok := strings.Cut(strings.TrimSpace(line), ", subgroup "); ok && strings.HasPrefix(line, "update group ") {
			n, err := strconv.ParseUint(id, 10, 64)
			if err != nil {
				return nil, Garbage(CommandQueue(p), "not a subgroup", line)
			}
			group, seen = n, true
			continue
		}
		if seen && slices.Contains(strings.Fields(line), p.Masked().String()) && !slices.Contains(out, group) {
			out = append(out, group)
		}
	}
	if !seen && strings.TrimSpace(answer) != "" {
		return nil, Garbage(CommandQueue(p), "not a list of update groups", answer)
	}
	slices.Sort(out)
	return out, nil
}

// Unsent splits peers that bgpd says a route is advertised to into those that it was sent to and those that it waits for:
// bgpd counts a route as advertised when it is queued, which with an advertisement interval can be half a minute early.
func Unsent(peers []string, groups []UpdateGroup, waits func(UpdateGroup) bool) (sent, queued []string) {
	for _, p := range peers {
		if slices.ContainsFunc(groups, func(g UpdateGroup) bool { return g.Waiting && slices.Contains(g.Peers, p) && waits(g) }) {
			queued = append(queued, p)
		} else {
			sent = append(sent, p)
		}
	}
	return sent, queued
}

// decode reads exactly one JSON value of the answer to command.
func decode(command, answer string, into any) error {
	d := json.NewDecoder(strings.NewReader(answer))
	if err := d.Decode(into); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) {
			return Garbage(command, fmt.Sprintf("%s is a %s", cmp.Or(typ.Field, "the answer"), typ.Value), answer)
		}
		return Garbage(command, "not JSON", answer)
	}
	if strings.TrimSpace(answer[d.InputOffset():]) != "" {
		return Garbage(command, "more follows the JSON", answer[d.InputOffset():])
	}
	return nil
}

// number is an unsigned integer that some versions put in quotes; one out of range is 0.
type number uint32

func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseUint(string(bytes.Trim(b, `"`)), 10, 32)
	if err != nil {
		v = 0
	}
	*n = number(v)
	return nil
}

// addr is the zero Addr for what is no address: "Unknown", "(unspec)".
func addr(s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// specified is the zero Addr for 0.0.0.0 and ::, which bgpd and zebra print for none.
func specified(a netip.Addr) netip.Addr {
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
