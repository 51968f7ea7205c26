package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vtepd/e2e/clab"
)

// Flow is a stream of UDP packets from one host to another.
type Flow struct {
	Name     string // default FROM>TO DST
	From, To string // nodes
	Src, Dst netip.Addr
}

// Between are two flows, one each way. The addresses must be good.
func Between(a, addrA, b, addrB string) []Flow {
	x, y := netip.MustParseAddr(addrA), netip.MustParseAddr(addrB)
	return []Flow{{From: a, To: b, Src: x, Dst: y}, {From: b, To: a, Src: y, Dst: x}}
}

// TrafficOptions are what the hosts send, and who answers for it.
type TrafficOptions struct {
	Flows    []Flow
	Ours     string        // the leaf under change
	Interval time.Duration // between the packets of a flow; default 20 ms
	Size     int           // of a packet's UDP payload; default 64 bytes
	// Parents are the ports of other nodes by which what is for a leaf's endpoint reaches the leaf: the endpoint's parent,
	// where that is in a network namespace that isn't the leaf's.
	Parents map[string]clab.Endpoint
}

// Traffic runs between hosts, and is captured on both sides of both leaves.
type Traffic struct {
	lab      *Lab
	opt      TrafficOptions
	flows    []*flowRun
	captures []*capture
	halt     chan struct{} // closed: the senders end
	senders  sync.WaitGroup
	closers  []func()

	mu      sync.Mutex
	grown   chan struct{} // closed and renewed when a packet has arrived
	fdb     []FDBEvent
	fdbErr  error
	stopped bool
}

// flowRun is a flow under way. Traffic.mu guards it.
type flowRun struct {
	Flow
	first, second         string // leaves
	firstPort, secondPort string // of the hosts, on the leaves
	base                  uint32 // the first packet that counts
	packets               []Packet
	received              int // of those that count
	out, in               *net.UDPConn
}

// StartTraffic has the hosts send, waits until every flow has arrived, and counts from
// then on. The traffic goes on until Stop, or the end of the lab.
func (l *Lab) StartTraffic(ctx context.Context, opt TrafficOptions) (_ *Traffic, err error) {
	opt.Interval = cmp.Or(opt.Interval, 20*time.Millisecond)
	opt.Size = cmp.Or(opt.Size, 64)
	t := &Traffic{lab: l, opt: opt, halt: make(chan struct{}), grown: make(chan struct{})}
	defer func() {
		if err != nil {
			t.end()
		}
	}()
	leaves := map[string][]string{} // to the ports to capture
	hosts := map[string]bool{}
	for _, f := range opt.Flows {
		hosts[f.From], hosts[f.To] = true, true
	}
	for _, f := range opt.Flows {
		f.Name = cmp.Or(f.Name, fmt.Sprintf("%s>%s %v", f.From, f.To, f.Dst))
		r := &flowRun{Flow: f}
		if r.first, r.firstPort, err = l.leafOf(f.From, f.Src); err != nil {
			return nil, err
		}
		if r.second, r.secondPort, err = l.leafOf(f.To, f.Dst); err != nil {
			return nil, err
		}
		for leaf, port := range map[string]string{r.first: r.firstPort, r.second: r.secondPort} {
			if !slices.Contains(leaves[leaf], port) {
				leaves[leaf] = append(leaves[leaf], port)
			}
		}
		t.flows = append(t.flows, r)
	}
	if _, ok := leaves[opt.Ours]; !ok {
		return nil, fmt.Errorf("our leaf %q has no host of these flows", opt.Ours)
	}
	for _, leaf := range slices.Sorted(keys(leaves)) {
		for _, link := range l.Topology.Links {
			near, far := link.A, link.B
			if far.Node == leaf {
				near, far = far, near
			}
			if near.Node == leaf && !hosts[far.Node] {
				leaves[leaf] = append(leaves[leaf], near.Interface) // an uplink
			}
		}
		ports := []clab.Endpoint{}
		for _, port := range leaves[leaf] {
			ports = append(ports, clab.Endpoint{Node: leaf, Interface: port})
		}
		if parent, ok := opt.Parents[leaf]; ok {
			ports = append(ports, parent)
		}
		for _, port := range ports {
			c, err := l.Node(port.Node).capturePort(port.Interface, udpOnly, func(c captured) { t.saw(leaf, port, c) })
			if err != nil {
				return nil, err
			}
			t.captures = append(t.captures, c)
		}
		if err := t.watchFDB(l.Node(leaf)); err != nil {
			return nil, err
		}
	}
	for i, r := range t.flows {
		if err := t.open(r); err != nil {
			return nil, fmt.Errorf("flow %s: %w", r.Name, err)
		}
		go t.receive(r)
		t.senders.Go(func() { t.send(uint16(i), r) })
	}
	l.mu.Lock()
	l.traffic = append(l.traffic, t)
	l.mu.Unlock()
	l.onDestroy(func() error { t.end(); return nil })

	err = t.wait(ctx, func() error {
		for _, r := range t.flows {
			if !slices.ContainsFunc(r.packets, func(p Packet) bool { return p.Copies > 0 }) {
				return fmt.Errorf("flow %s: none of %d packets has arrived", r.Name, len(r.packets))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.flows {
		r.base, r.received = uint32(len(r.packets)), 0
	}
	return t, nil
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// leafOf finds the node and its port that a host's address is behind.
func (l *Lab) leafOf(host string, a netip.Addr) (leaf, port string, err error) {
	n, ok := l.nodes[host]
	if !ok {
		return "", "", fmt.Errorf("no node %q", host)
	}
	addrs, err := n.netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return "", "", err
	}
	for _, have := range addrs {
		if ip, _ := netip.AddrFromSlice(have.IP); ip.Unmap() != a {
			continue
		}
		link, err := n.netlink.LinkByIndex(have.LinkIndex)
		if err != nil {
			return "", "", err
		}
		here := clab.Endpoint{Node: host, Interface: link.Attrs().Name}
		for _, c := range l.Topology.Links {
			switch {
			case c.A.Node == here.Node && c.A.Interface == here.Interface:
				return c.B.Node, c.B.Interface, nil
			case c.B.Node == here.Node && c.B.Interface == here.Interface:
				return c.A.Node, c.A.Interface, nil
			}
		}
	}
	return "", "", fmt.Errorf("node %s has no address %v on a link of the topology", host, a)
}

func (t *Traffic) open(r *flowRun) (err error) {
	listen := func(host string, ap netip.AddrPort, to **net.UDPConn) error {
		return t.lab.Node(host).InNetwork(func() (err error) {
			*to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(ap))
			return err
		})
	}
	if err := listen(r.From, netip.AddrPortFrom(r.Src, 0), &r.out); err != nil {
		return err
	}
	t.closers = append(t.closers, func() { r.out.Close() })
	if err := listen(r.To, netip.AddrPortFrom(r.Dst, trafficPort), &r.in); err != nil {
		return err
	}
	t.closers = append(t.closers, func() { r.in.Close() })
	return r.in.SetReadBuffer(4 << 20)
}

func (t *Traffic) send(id uint16, r *flowRun) {
	tick := time.NewTicker(t.opt.Interval)
	defer tick.Stop()
	to := netip.AddrPortFrom(r.Dst, trafficPort)
	for {
		select {
		case <-t.halt:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		now := time.Now()
		seq := uint32(len(r.packets))
		r.packets = append(r.packets, Packet{Seq: seq})
		r.packets[seq].At[Sent] = now
		t.mu.Unlock()
		if _, err := r.out.WriteToUDPAddrPort(payload(id, seq, now, t.opt.Size), to); err != nil {
			t.mu.Lock()
			r.packets[seq].Error = err.Error()
			t.mu.Unlock()
		}
	}
}

func (t *Traffic) receive(r *flowRun) {
	buf := make([]byte, 1<<16)
	for {
		n, _, err := r.in.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error for the port, say
		}
		now := time.Now()
		if id, seq, ok := readPayload(buf[:n]); ok && int(id) < len(t.flows) && t.flows[id] == r {
			t.note(r, seq, Received, now)
		}
	}
}

// saw takes a captured frame of a leaf's to the packet that it is of.
func (t *Traffic) saw(leaf string, at clab.Endpoint, c captured) {
	port := at.Interface
	if at.Node != leaf {
		port = "" // none of the leaf's own
	}
	f, ok := readFrame(c.data)
	if !ok || int(f.flow) >= len(t.flows) {
		return
	}
	r := t.flows[f.flow]
	switch {
	case !f.vxlan && !c.out && leaf == r.first && port == r.firstPort:
		t.note(r, f.seq, Taken, c.time)
	case f.vxlan && c.out && leaf == r.first:
		t.note(r, f.seq, OnWire, c.time)
	case f.vxlan && !c.out && leaf == r.second:
		t.note(r, f.seq, OffWire, c.time)
	case !f.vxlan && c.out && leaf == r.second && port == r.secondPort:
		t.note(r, f.seq, Given, c.time)
	}
}

func (t *Traffic) note(r *flowRun, seq uint32, s Stage, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(seq) >= len(r.packets) {
		return
	}
	p := &r.packets[seq]
	if p.At[s].IsZero() {
		p.At[s] = at
		if s == Received && seq >= r.base {
			r.received++
		}
	}
	if s == Received {
		p.Copies++
	}
	close(t.grown)
	t.grown = make(chan struct{})
}

// wait waits for a condition that arriving packets make true.
func (t *Traffic) wait(ctx context.Context, cond func() error) error {
	for {
		t.mu.Lock()
		err, grown := cond(), t.grown
		t.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// WaitReceived waits until each flow has received n packets more than now.
func (t *Traffic) WaitReceived(ctx context.Context, n int) error {
	t.mu.Lock()
	var want []int
	for _, r := range t.flows {
		want = append(want, r.received+n)
	}
	t.mu.Unlock()
	return t.wait(ctx, func() error {
		for i, r := range t.flows {
			if r.received < want[i] {
				return fmt.Errorf("flow %s: %d packets received, %d wanted", r.Name, r.received, want[i])
			}
		}
		return nil
	})
}

// Progress is how many packets were sent and received so far.
func (t *Traffic) Progress() (sent, received int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.flows {
		sent += len(r.packets) - int(r.base)
		received += r.received
	}
	return sent, received
}

// quiet is how long nothing must arrive after the last packet was sent before
// what is missing is lost. It costs its time only where something is missing.
const quiet = 3 * time.Second

// Stop ends the senders, waits for what is under way, and accounts for every
// packet. Its error is about the measurement: a capture that missed something, say.
func (t *Traffic) Stop(ctx context.Context) (Report, error) {
	t.mu.Lock()
	if t.stopped {
		t.mu.Unlock()
		return Report{}, errors.New("this traffic has been stopped before")
	}
	t.stopped = true
	t.mu.Unlock()
	close(t.halt)
	t.senders.Wait()
	idle := time.NewTimer(quiet)
	defer idle.Stop()
	for done := false; !done; {
		t.mu.Lock()
		missing, grown := 0, t.grown
		for _, r := range t.flows {
			missing += len(r.packets) - int(r.base) - r.received
		}
		t.mu.Unlock()
		if missing == 0 {
			break
		}
		select {
		case <-grown:
			idle.Reset(quiet)
		case <-idle.C:
			done = true
		case <-ctx.Done():
			return Report{}, context.Cause(ctx)
		}
	}
	var errs []error
	for _, c := range t.captures {
		errs = append(errs, c.stop())
	}
	t.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	var traces []Trace
	for _, r := range t.flows {
		traces = append(traces, Trace{Flow: r.Flow, First: r.first, Second: r.second, Packets: slices.Clone(r.packets[r.base:])})
	}
	errs = append(errs, t.fdbErr)
	report := Analyse(t.opt.Ours, traces, t.fdb)
	return report, errors.Join(errs...)
}

// FDB returns the changes of both leaves' forwarding tables so far.
func (t *Traffic) FDB() []FDBEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.fdb)
}

// end closes everything; it may be called again.
func (t *Traffic) end() {
	t.mu.Lock()
	if !t.stopped {
		t.stopped = true
		close(t.halt)
	}
	closers := t.closers
	t.closers = nil
	t.mu.Unlock()
	t.senders.Wait()
	for _, f := range closers {
		f()
	}
	for _, c := range t.captures {
		c.file.Close()
		<-c.ended
	}
}

// watchFDB records the changes of a leaf's forwarding tables.
func (t *Traffic) watchFDB(n *Node) error {
	ns := netns.NsHandle(int(n.ns.net.Fd()))
	updates, done := make(chan netlink.NeighUpdate, 1024), make(chan struct{})
	err := netlink.NeighSubscribeWithOptions(updates, done, netlink.NeighSubscribeOptions{
		Namespace: &ns, ReceiveBufferSize: 8 << 20, ReceiveBufferForceSize: true,
		ErrorCallback: func(err error) {
			select {
			case <-done: // closed by us
				return
			default:
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			t.fdbErr = errors.Join(t.fdbErr, fmt.Errorf("%s: watch the forwarding tables: %w", n.Name, err))
		},
	})
	if err != nil {
		return fmt.Errorf("%s: watch the forwarding tables: %w", n.Name, err)
	}
	t.closers = append(t.closers, sync.OnceFunc(func() { close(done) }))
	names := map[int]string{}
	go func() {
		for u := range updates {
			if u.Family != unix.AF_BRIDGE {
				continue
			}
			e := FDBEvent{
				Time: time.Now(), Node: n.Name, Deleted: u.Type == unix.RTM_DELNEIGH,
				MAC: u.HardwareAddr.String(),
			}
			if u.IP != nil {
				e.Dst = u.IP.String()
			}
			if names[u.LinkIndex] == "" {
				names[u.LinkIndex] = fmt.Sprintf("link %d", u.LinkIndex)
				if link, err := n.netlink.LinkByIndex(u.LinkIndex); err == nil {
					names[u.LinkIndex] = link.Attrs().Name
				}
			}
			e.Link = names[u.LinkIndex]
			t.mu.Lock()
			t.fdb = append(t.fdb, e)
			t.mu.Unlock()
		}
	}()
	return nil
}

// writeCaptures writes what was captured into a directory.
func (t *Traffic) writeCaptures(dir string, number int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, c := range t.captures {
		errs = append(errs, c.write(filepath.Join(dir, fmt.Sprintf("traffic%d-%s-%s.pcap", number, c.node, c.port))))
	}
	return errors.Join(append(errs, writeLines(filepath.Join(dir, fmt.Sprintf("traffic%d-fdb.jsonl", number)), t.FDB()))...)
}
