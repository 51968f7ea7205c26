package kernel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Ping implements dataplane.Kernel.
func (k *Kernel) Ping(ctx context.Context, from netip.Addr, to []netip.Addr) ([]netip.Addr, error) {
	p := pinger{from: from, id: rand.IntN(1 << 16), waiting: map[netip.Addr]int{}}
	for i, a := range to {
		if a.Is4() != from.Is4() {
			return nil, fmt.Errorf("ping from %s: %s is of the other family", from, a)
		}
		p.waiting[a] = i & 0xffff
	}
	network := "ip6:ipv6-icmp"
	if from.Is4() {
		network = "ip4:icmp"
	}
	err := k.router.ns.Do(func() error {
		var err error
		p.conn, err = icmp.ListenPacket(network, from.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ping from %s: %w", from, err)
	}
	alive, err := p.run(ctx)
	if err := errors.Join(err, p.conn.Close()); err != nil {
		return nil, fmt.Errorf("ping from %s: %w", from, err)
	}
	return alive, nil
}

// pinger is one round of echo requests; its id is its own, so that no answer to an earlier round counts.
type pinger struct {
	conn    *icmp.PacketConn
	from    netip.Addr
	id      int
	waiting map[netip.Addr]int // sequence numbers of those that haven't answered
}

// run sends all requests and takes answers until everybody has answered or ctx ends.
func (p *pinger) run(ctx context.Context) ([]netip.Addr, error) {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var request icmp.Type = ipv6.ICMPTypeEchoRequest
	if p.from.Is4() {
		request = ipv4.ICMPTypeEcho
	}
	for a, seq := range p.waiting {
		// For ICMPv6 the kernel puts the checksum in.
		m := icmp.Message{Type: request, Body: &icmp.Echo{ID: p.id, Seq: seq, Data: []byte("vtepd")}}
		b, err := m.Marshal(nil)
		if err != nil {
			return nil, err
		}
		// No route, or a refusal by the network: it will be silent, which is not an error.
		_, _ = p.conn.WriteTo(b, &net.IPAddr{IP: a.AsSlice()})
	}
	var alive []netip.Addr
	b := make([]byte, 1500)
	for len(p.waiting) > 0 {
		n, peer, err := p.conn.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
			break
		}
		if err != nil {
			// The error of an earlier request, such as a host that can't be reached.
			var sys *os.SyscallError
			if errors.As(err, &sys) {
				continue
			}
			return nil, err
		}
		addr, ok := peer.(*net.IPAddr)
		if !ok {
			continue
		}
		a, _ := netip.AddrFromSlice(addr.IP)
		a = a.Unmap()
		if seq, ok := p.waiting[a]; ok && p.answers(b[:n], seq) {
			delete(p.waiting, a)
			alive = append(alive, a)
		}
	}
	slices.SortFunc(alive, netip.Addr.Compare)
	return alive, nil
}

// answers reports whether b is the reply to the request of that number.
func (p *pinger) answers(b []byte, seq int) bool {
	proto, reply := 58, icmp.Type(ipv6.ICMPTypeEchoReply)
	if p.from.Is4() {
		proto, reply = 1, ipv4.ICMPTypeEchoReply
	}
	m, err := icmp.ParseMessage(proto, b)
	if err != nil || m.Type != reply {
		return false
	}
	echo, ok := m.Body.(*icmp.Echo)
	return ok && echo.ID == p.id && echo.Seq == seq
}
