// Package witness is a BGP speaker that hears: it keeps every update that its
// peers send, with the time, and never originates a route unless it is told to.
// It owns its BGP server and nothing else: no kernel route, no file.
//
// It is GoBGP, which lets a session come from no address of 127.0.0.1 (FRR then
// fails to set a next hop), and wants the address that it listens on to be there
// before it starts.
package witness

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/server"
)

// Family is what a session or a route is about.
type Family string

// The families that a witness hears.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	EVPN Family = "evpn"
)

// Config is a witness. AS and RouterID are required.
type Config struct {
	AS       uint32       `json:"as"`
	RouterID netip.Addr   `json:"routerID"`         // IPv4
	Listen   []netip.Addr `json:"listen,omitempty"` // none: it listens nowhere, and dials
	Port     uint16       `json:"port,omitempty"`   // listened on; default 179
	Peers    []Peer       `json:"peers"`
	Log      *slog.Logger `json:"-"` // what GoBGP says; nil for nothing
}

// Peer is a router that the witness hears.
type Peer struct {
	Addr     netip.Addr `json:"addr"`
	AS       uint32     `json:"as"`
	Local    netip.Addr `json:"local,omitzero"`    // where the session comes from; default: the kernel's choice
	Port     uint16     `json:"port,omitempty"`    // dialled; default 179
	Passive  bool       `json:"passive,omitempty"` // the peer dials
	Client   bool       `json:"client,omitempty"`  // of a route reflector, which the witness then is
	Families []Family   `json:"families"`
	// Hold is the hold time in seconds; default 90. Every session that ends is tried again after a second.
	Hold uint16 `json:"hold,omitempty"`
}

// Witness is a running speaker.
type Witness struct {
	*Log        // what the peers sent
	Best   *Log // what the speaker chose of it, by BGP's rules: Announce and Withdraw alone
	bgp    *server.BgpServer
	cancel context.CancelFunc
}

// Start brings the speaker up. Sessions come up in their own time: wait for the
// Up events of the log. It runs until Stop.
func Start(ctx context.Context, c Config) (*Witness, error) {
	if !c.RouterID.Is4() {
		return nil, fmt.Errorf("router id %v: an IPv4 address is wanted", c.RouterID)
	}
	for _, p := range c.Peers {
		if p.Local.IsLoopback() && p.Local == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
			return nil, fmt.Errorf("peer %v: FRR takes no session from 127.0.0.1", p.Addr)
		}
	}
	global := &api.Global{Asn: c.AS, RouterId: c.RouterID.String(), ListenPort: -1}
	if len(c.Listen) > 0 {
		global.ListenPort = 179
		if c.Port != 0 {
			global.ListenPort = int32(c.Port)
		}
		for _, a := range c.Listen {
			global.ListenAddresses = append(global.ListenAddresses, a.String())
		}
	}

	w := &Witness{Log: NewLog(), Best: NewLog(), bgp: server.NewBgpServer(server.LoggerOption(logger{c.Log}))}
	go w.bgp.Serve()
	if err := w.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		w.bgp.Stop()
		return nil, fmt.Errorf("start BGP as %d on %v: %w", c.AS, c.Listen, err)
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	// One watch for all that the peers say, so that it is recorded in the order in
	// which it came. GoBGP tells its choices in the same form: they need their own.
	heard, best := newHearer(w.Log), newHearer(w.Best)
	err := errors.Join(
		w.bgp.WatchEvent(watch, &api.WatchEventRequest{
			Peer:  &api.WatchEventRequest_Peer{},
			Table: tables(api.WatchEventRequest_Table_Filter_ADJIN, api.WatchEventRequest_Table_Filter_EOR),
		}, heard.hear),
		w.bgp.WatchEvent(watch, &api.WatchEventRequest{
			Table: tables(api.WatchEventRequest_Table_Filter_BEST),
		}, best.hear))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch BGP: %w", err), w.Stop(ctx))
	}
	for _, p := range c.Peers {
		if err := w.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: p.api(c.RouterID)}); err != nil {
			return nil, errors.Join(fmt.Errorf("add peer %v: %w", p.Addr, err), w.Stop(ctx))
		}
	}
	return w, nil
}

// Stop ends every session, and the speaker.
func (w *Witness) Stop(ctx context.Context) error {
	err := w.bgp.StopBgp(ctx, &api.StopBgpRequest{})
	w.cancel()
	w.bgp.Stop()
	return err
}

func tables(types ...api.WatchEventRequest_Table_Filter_Type) *api.WatchEventRequest_Table {
	t := &api.WatchEventRequest_Table{}
	for _, typ := range types {
		t.Filters = append(t.Filters, &api.WatchEventRequest_Table_Filter{Type: typ})
	}
	return t
}

func (p Peer) api(cluster netip.Addr) *api.Peer {
	hold := uint64(90)
	if p.Hold != 0 {
		hold = uint64(p.Hold)
	}
	a := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: p.Addr.String(), PeerAsn: p.AS},
		Transport: &api.Transport{PassiveMode: p.Passive, RemotePort: uint32(p.Port)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: 1, HoldTime: hold, KeepaliveInterval: hold / 3, IdleHoldTimeAfterReset: 1,
		}},
	}
	if p.Local.IsValid() {
		a.Transport.LocalAddress = p.Local.String()
	}
	if p.Client {
		a.RouteReflector = &api.RouteReflector{RouteReflectorClient: true, RouteReflectorClusterId: cluster.String()}
	}
	for _, f := range p.Families {
		a.AfiSafis = append(a.AfiSafis, &api.AfiSafi{Config: &api.AfiSafiConfig{Family: f.api(), Enabled: true}})
	}
	return a
}

func (f Family) api() *api.Family {
	switch f {
	case IPv6:
		return &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
	case EVPN:
		return &api.Family{Afi: api.Family_AFI_L2VPN, Safi: api.Family_SAFI_EVPN}
	default:
		return &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	}
}

func familyOf(f *api.Family) Family {
	switch rf := apiutil.ToRouteFamily(f); rf {
	case bgp.RF_IPv4_UC:
		return IPv4
	case bgp.RF_IPv6_UC:
		return IPv6
	case bgp.RF_EVPN:
		return EVPN
	default:
		return Family(rf.String())
	}
}

// Route is one that a witness can be told to announce: a prefix, or with VNI an
// EVPN type-3 route of the endpoint NextHop, as a foreign router would.
type Route struct {
	Prefix  netip.Prefix `json:"prefix,omitzero"`
	NextHop netip.Addr   `json:"nextHop"`
	VNI     uint32       `json:"vni,omitempty"`
	RD      string       `json:"rd,omitempty"` // of a type-3 route; default NEXTHOP:VNI mod 65536
}

// Announce originates a route.
func (w *Witness) Announce(ctx context.Context, r Route) error {
	p, err := r.api()
	if err != nil {
		return err
	}
	_, err = w.bgp.AddPath(ctx, &api.AddPathRequest{Path: p})
	return err
}

// Withdraw takes a route back that Announce originated. One that isn't there is
// no error.
func (w *Witness) Withdraw(ctx context.Context, r Route) error {
	p, err := r.api()
	if err != nil {
		return err
	}
	return w.bgp.DeletePath(ctx, &api.DeletePathRequest{Path: p, Family: p.Family})
}

func (r Route) api() (*api.Path, error) {
	var (
		nlri  bgp.AddrPrefixInterface
		attrs = []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0)}
		f     Family
	)
	switch {
	case !r.NextHop.IsValid():
		return nil, errors.New("a route without next hop")
	case r.VNI != 0:
		rd := r.RD
		if rd == "" {
			if !r.NextHop.Is4() {
				return nil, fmt.Errorf("vni %d: an endpoint %v needs a route distinguisher", r.VNI, r.NextHop)
			}
			rd = r.NextHop.String() + ":" + strconv.Itoa(int(r.VNI%65536))
		}
		d, err := bgp.ParseRouteDistinguisher(rd)
		if err != nil {
			return nil, fmt.Errorf("vni %d: route distinguisher %q: %w", r.VNI, rd, err)
		}
		f, nlri = EVPN, bgp.NewEVPNMulticastEthernetTagRoute(d, 0, r.NextHop.String())
		attrs = append(attrs,
			bgp.NewPathAttributeMpReachNLRI(r.NextHop.String(), []bgp.AddrPrefixInterface{nlri}),
			bgp.NewPathAttributePmsiTunnel(bgp.PMSI_TUNNEL_TYPE_INGRESS_REPL, false, r.VNI,
				&bgp.IngressReplTunnelID{Value: r.NextHop.AsSlice()}),
			bgp.NewPathAttributeExtendedCommunities([]bgp.ExtendedCommunityInterface{
				bgp.NewEncapExtended(bgp.TUNNEL_TYPE_VXLAN),
			}))
	case r.Prefix.Addr().Is4():
		f, nlri = IPv4, bgp.NewIPAddrPrefix(uint8(r.Prefix.Bits()), r.Prefix.Addr().String())
		attrs = append(attrs, bgp.NewPathAttributeNextHop(r.NextHop.String()))
	case r.Prefix.Addr().Is6():
		f, nlri = IPv6, bgp.NewIPv6AddrPrefix(uint8(r.Prefix.Bits()), r.Prefix.Addr().String())
		attrs = append(attrs, bgp.NewPathAttributeMpReachNLRI(r.NextHop.String(), []bgp.AddrPrefixInterface{nlri}))
	default:
		return nil, errors.New("a route without prefix or VNI")
	}
	p, err := apiutil.NewPath(nlri, false, attrs, time.Now())
	if err != nil {
		return nil, err
	}
	p.Family = f.api()
	return p, nil
}

// held names a route that a peer has announced.
type held struct {
	peer   netip.Addr
	family Family
	route  string
}

// hearer turns the events of one watch into ours. GoBGP calls it from one
// goroutine.
type hearer struct {
	log  *Log
	held map[held]Event
	up   map[netip.Addr]bool
}

func newHearer(log *Log) *hearer {
	return &hearer{log: log, held: map[held]Event{}, up: map[netip.Addr]bool{}}
}

func (h *hearer) hear(r *api.WatchEventResponse) {
	if p := r.GetPeer(); p != nil {
		h.peer(p)
		return
	}
	for _, p := range r.GetTable().GetPaths() {
		h.path(p)
	}
}

func (h *hearer) peer(p *api.WatchEventResponse_PeerEvent) {
	addr, err := netip.ParseAddr(p.GetPeer().GetState().GetNeighborAddress())
	if err != nil {
		return // the end of the initial dump has no peer
	}
	up := p.GetPeer().GetState().GetSessionState() == api.PeerState_ESTABLISHED
	if up == h.up[addr] {
		return
	}
	h.up[addr] = up
	e := Event{Time: time.Now(), Kind: Down, Peer: addr}
	if up {
		e.Kind = Up
	} else {
		for k := range h.held {
			if k.peer == addr {
				delete(h.held, k)
			}
		}
	}
	h.log.Append(e)
}

func (h *hearer) path(p *api.Path) {
	// GoBGP keeps the time of a path in whole seconds.
	e := Event{Time: time.Now(), Kind: Announce, Family: familyOf(p.GetFamily())}
	e.Peer, _ = netip.ParseAddr(p.GetNeighborIp()) // none: our own
	if p.GetNlri() == nil {
		e.Kind = EndOfRIB
		h.log.Append(e)
		return
	}
	if err := e.nlri(p); err != nil {
		e.Route = err.Error()
	}
	e.attributes(p)
	key := held{e.Peer, e.Family, e.Route}
	if p.GetIsWithdraw() {
		// A withdrawal says neither next hop nor, for types 2 and 3, the VNI.
		before := h.held[key]
		e.Kind, e.NextHop, e.VNI = Withdraw, before.NextHop, before.VNI
		delete(h.held, key)
	} else {
		h.held[key] = e
	}
	h.log.Append(e)
}

// nlri takes over what the route is.
func (e *Event) nlri(p *api.Path) error {
	n, err := apiutil.UnmarshalNLRI(apiutil.ToRouteFamily(p.GetFamily()), p.GetNlri())
	if err != nil {
		return err
	}
	e.Route = n.String()
	switch n := n.(type) {
	case *bgp.IPAddrPrefix, *bgp.IPv6AddrPrefix:
		e.Prefix, err = netip.ParsePrefix(n.String())
		return err
	case *bgp.EVPNNLRI:
		e.Type = n.RouteType
		switch r := n.RouteTypeData.(type) {
		case *bgp.EVPNEthernetAutoDiscoveryRoute:
			e.RD, e.ESI, e.Tag, e.VNI = r.RD.String(), esi(r.ESI), r.ETag, r.Label
		case *bgp.EVPNMacIPAdvertisementRoute:
			e.RD, e.ESI, e.Tag, e.MAC = r.RD.String(), esi(r.ESI), r.ETag, r.MacAddress.String()
			e.IP = addr(r.IPAddress)
			if len(r.Labels) > 0 {
				e.VNI = r.Labels[0]
			}
		case *bgp.EVPNMulticastEthernetTagRoute:
			e.RD, e.Tag, e.IP = r.RD.String(), r.ETag, addr(r.IPAddress)
		case *bgp.EVPNEthernetSegmentRoute:
			e.RD, e.ESI, e.IP = r.RD.String(), esi(r.ESI), addr(r.IPAddress)
		case *bgp.EVPNIPPrefixRoute:
			e.RD, e.ESI, e.Tag, e.VNI = r.RD.String(), esi(r.ESI), r.ETag, r.Label
			e.Prefix = netip.PrefixFrom(addr(r.IPPrefix), int(r.IPPrefixLength))
		}
	}
	return nil
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

func esi(s bgp.EthernetSegmentIdentifier) string {
	b, err := s.Serialize()
	if err != nil || strings.Trim(string(b), "\x00") == "" {
		return ""
	}
	return hex.EncodeToString(b)
}

func (e *Event) attributes(p *api.Path) {
	attrs, err := apiutil.UnmarshalPathAttributes(p.GetPattrs())
	if err != nil {
		return
	}
	for _, a := range attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			e.NextHop = addr(a.Value)
		case *bgp.PathAttributeMpReachNLRI:
			e.NextHop = addr(a.Nexthop)
		case *bgp.PathAttributePmsiTunnel:
			if e.Type == bgp.EVPN_INCLUSIVE_MULTICAST_ETHERNET_TAG {
				// RFC 8365: the VNI is all 24 bits of the label field.
				e.VNI = a.Label
			}
		}
	}
}

// logger hands GoBGP's log to slog.
type logger struct{ to *slog.Logger }

func (l logger) log(level slog.Level, msg string, f log.Fields) {
	if l.to == nil {
		return
	}
	args := make([]any, 0, 2*len(f))
	for k, v := range f {
		args = append(args, k, v)
	}
	l.to.Log(context.Background(), level, msg, args...)
}

func (l logger) Panic(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Fatal(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Error(msg string, f log.Fields) { l.log(slog.LevelError, msg, f) }
func (l logger) Warn(msg string, f log.Fields)  { l.log(slog.LevelWarn, msg, f) }
func (l logger) Info(msg string, f log.Fields)  { l.log(slog.LevelInfo, msg, f) }
func (l logger) Debug(msg string, f log.Fields) { l.log(slog.LevelDebug, msg, f) }
func (l logger) SetLevel(log.LogLevel)          {}

func (l logger) GetLevel() log.LogLevel {
	if l.to != nil && l.to.Enabled(context.Background(), slog.LevelDebug) {
		return log.DebugLevel
	}
	return log.InfoLevel
}
