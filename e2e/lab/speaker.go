package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vtepd/frr/witness"
)

// Speaker is a GoBGP speaker in the place of a node's FRR. The log has every
// update that the node's peers sent.
type Speaker struct {
	*witness.Log
	proc *Proc
	in   *json.Encoder

	mu      sync.Mutex
	waiting map[int]chan error
	next    int
}

// Speaker is the node's GoBGP speaker; it panics where the node has none.
func (n *Node) Speaker() *Speaker {
	if n.speaker == nil {
		panic("node " + n.Name + " was not replaced by GoBGP: see Options.GoBGP")
	}
	return n.speaker
}

// order is what a speaker's process is told, one a line, after its configuration.
type order struct {
	ID       int            `json:"id"`
	Announce *witness.Route `json:"announce,omitempty"`
	Withdraw *witness.Route `json:"withdraw,omitempty"`
}

// report is what it says, one a line: something heard, or the answer to an
// order. Its first is the answer to order 0, its start.
type report struct {
	Event *witness.Event `json:"event,omitempty"`
	ID    int            `json:"id"`
	Error string         `json:"error,omitempty"`
}

// startSpeaker starts GoBGP with the sessions of the node's frr.conf.
func (n *Node) startSpeaker(ctx context.Context) error {
	conf, err := os.ReadFile(n.Path("/etc/frr/frr.conf"))
	if err != nil {
		return err
	}
	config, err := speakerConfig(string(conf))
	if err != nil {
		return fmt.Errorf("frr.conf: %w", err)
	}
	cmd := n.command([]string{selfPath})
	cmd.Args = []string{speakerName}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	// Not StdoutPipe: Wait would close it under the reader.
	out, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = w
	s := &Speaker{Log: witness.NewLog(), in: json.NewEncoder(in), waiting: map[int]chan error{}, next: 1}
	s.proc, err = n.startProc(ctx, cmd)
	w.Close()
	if err != nil {
		out.Close()
		return err
	}
	started := s.wait(0)
	go s.read(out)
	if err := s.in.Encode(config); err != nil {
		return err
	}
	select {
	case err = <-started:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("GoBGP: %w: %s", err, s.proc.Log())
	}
	n.speaker = s
	return nil
}

func (s *Speaker) wait(id int) <-chan error {
	c := make(chan error, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[id] = c
	return c
}

func (s *Speaker) read(out io.ReadCloser) {
	defer out.Close()
	dec := json.NewDecoder(out)
	for {
		var r report
		if err := dec.Decode(&r); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, c := range s.waiting {
				c <- fmt.Errorf("the process has ended: %w", err)
			}
			s.waiting = map[int]chan error{}
			return
		}
		if r.Event != nil {
			s.Append(*r.Event)
			continue
		}
		var err error
		if r.Error != "" {
			err = errors.New(r.Error)
		}
		s.mu.Lock()
		if c := s.waiting[r.ID]; c != nil {
			c <- err
			delete(s.waiting, r.ID)
		}
		s.mu.Unlock()
	}
}

func (s *Speaker) do(ctx context.Context, o order) error {
	s.mu.Lock()
	o.ID = s.next
	s.next++
	s.mu.Unlock()
	done := s.wait(o.ID)
	if err := s.in.Encode(o); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Announce has the speaker originate a route, as a foreign router would. Not from
// several goroutines at once.
func (s *Speaker) Announce(ctx context.Context, r witness.Route) error {
	return s.do(ctx, order{Announce: &r})
}

// Withdraw takes a route back that Announce originated.
func (s *Speaker) Withdraw(ctx context.Context, r witness.Route) error {
	return s.do(ctx, order{Withdraw: &r})
}

// Kill ends the speaker at once.
func (s *Speaker) Kill() { s.proc.Kill() }

// speakerConfig takes the sessions out of an frr.conf. What it doesn't know
// inside of router bgp is an error, as the speaker would do otherwise than FRR.
func speakerConfig(conf string) (witness.Config, error) {
	var c witness.Config
	var families []witness.Family
	family := witness.Family("")
	inBGP := false
	peer := func(addr string) (*witness.Peer, error) {
		a, err := netip.ParseAddr(addr)
		if err != nil {
			return nil, err
		}
		for i := range c.Peers {
			if c.Peers[i].Addr == a {
				return &c.Peers[i], nil
			}
		}
		c.Peers = append(c.Peers, witness.Peer{Addr: a, Passive: true})
		return &c.Peers[len(c.Peers)-1], nil
	}
	listen := func(a netip.Addr) {
		for _, l := range c.Listen {
			if l == a {
				return
			}
		}
		c.Listen = append(c.Listen, a)
	}
	number := 0
	for line := range strings.Lines(conf) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "!" {
			continue
		}
		err := func() error {
			if words[0] == "end" || words[0] == "exit" {
				inBGP = false
				return nil
			}
			text := strings.Join(words, " ")
			if as, ok := strings.CutPrefix(text, "router bgp "); ok {
				inBGP = true
				n, err := strconv.ParseUint(as, 10, 32)
				c.AS = uint32(n)
				return err
			}
			if !inBGP {
				return nil
			}
			switch {
			case len(words) == 3 && words[0] == "bgp" && words[1] == "router-id":
				var err error
				c.RouterID, err = netip.ParseAddr(words[2])
				return err
			case text == "no bgp default ipv4-unicast":
				return nil
			case text == "exit-address-family":
				family = ""
				return nil
			case words[0] == "address-family":
				switch text {
				case "address-family ipv4 unicast":
					family = witness.IPv4
				case "address-family ipv6 unicast":
					family = witness.IPv6
				case "address-family l2vpn evpn":
					family = witness.EVPN
				default:
					return fmt.Errorf("%q is not known here", text)
				}
				families = append(families, family)
				return nil
			case words[0] == "neighbor" && len(words) > 2:
				p, err := peer(words[1])
				if err != nil {
					return err
				}
				switch rest := words[2:]; {
				case len(rest) == 2 && rest[0] == "remote-as":
					n, err := strconv.ParseUint(rest[1], 10, 32)
					p.AS = uint32(n)
					return err
				case len(rest) == 2 && rest[0] == "update-source":
					p.Local, err = netip.ParseAddr(rest[1])
					listen(p.Local)
					return err
				case rest[0] == "timers":
					return nil // the peer dials
				case rest[0] == "activate" && family != "":
					p.Families = append(p.Families, family)
					return nil
				case rest[0] == "route-reflector-client" && family != "":
					p.Client = true
					return nil
				}
			}
			return fmt.Errorf("%q is not known here", text)
		}()
		if err != nil {
			return c, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if c.AS == 0 || len(c.Listen) == 0 || len(families) == 0 {
		return c, errors.New("no router bgp with neighbours that have an update-source")
	}
	return c, nil
}

// speaker is the process of a GoBGP speaker: its configuration and orders come
// on standard input, which ends it, and reports go to standard output.
func speaker() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var config witness.Config
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(&config); err != nil {
		return err
	}
	var mu sync.Mutex
	enc := json.NewEncoder(os.Stdout)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		if enc.Encode(r) != nil {
			os.Exit(1) // nobody listens any more
		}
	}
	answer := func(id int, err error) {
		r := report{ID: id}
		if err != nil {
			r.Error = err.Error()
		}
		say(r)
	}
	w, err := witness.Start(ctx, config)
	answer(0, err)
	if err != nil {
		return err
	}
	go func() {
		for _, e := range w.Follow(ctx, 0) {
			say(report{Event: &e})
		}
	}()
	go forward(ctx, w.Best)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch {
		case o.Announce != nil:
			answer(o.ID, w.Announce(ctx, *o.Announce))
		case o.Withdraw != nil:
			answer(o.ID, w.Withdraw(ctx, *o.Withdraw))
		}
	}
}

// forward keeps the best unicast routes in the kernel of the network namespace
// that it runs in, and finds their next hops anew when a link changes.
func forward(ctx context.Context, best *witness.Log) {
	links := make(chan netlink.LinkUpdate, 64)
	if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
		fmt.Fprintln(os.Stderr, "subscribe to links:", err)
		os.Exit(1)
	}
	events := make(chan witness.Event)
	go func() {
		for _, e := range best.Follow(ctx, 0) {
			events <- e
		}
	}()
	routes := map[netip.Prefix]witness.Event{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-links:
			for _, e := range routes {
				install(e)
			}
		case e := <-events:
			if e.Family != witness.IPv4 && e.Family != witness.IPv6 || !e.Peer.IsValid() {
				continue
			}
			if e.Kind == witness.Announce {
				routes[e.Prefix] = e
			} else {
				delete(routes, e.Prefix)
			}
			install(e)
		}
	}
}

// install puts a route into the kernel, or takes it out. Its next hop is a loopback
// address; the kernel wants the neighbour on the way there.
func install(e witness.Event) {
	dst := &net.IPNet{IP: e.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(e.Prefix.Bits(), e.Prefix.Addr().BitLen())}
	r := netlink.Route{Dst: dst, Protocol: unix.RTPROT_BGP, Priority: 20}
	if e.Kind != witness.Announce {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			fmt.Fprintf(os.Stderr, "delete %v: %v\n", e.Prefix, err)
		}
		return
	}
	via, err := netlink.RouteGet(e.NextHop.AsSlice())
	if err != nil || len(via) == 0 || via[0].Gw == nil {
		fmt.Fprintf(os.Stderr, "%v: no way to %v: %v\n", e.Prefix, e.NextHop, err)
		return
	}
	r.Gw, r.LinkIndex = via[0].Gw, via[0].LinkIndex
	if err := netlink.RouteReplace(&r); err != nil {
		fmt.Fprintf(os.Stderr, "%v via %v: %v\n", e.Prefix, r.Gw, err)
	}
}
