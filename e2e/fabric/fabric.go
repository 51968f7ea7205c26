// Package fabric is the EVPN lab with a vtepd at each leaf, as the stories and the demo use it: dropped files, what the
// daemons say, what the spine heard, and the operator's things that must stay as they are. The lab is the caller's.
package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vtepd/daemon/status"
	"vtepd/e2e/lab"
	"vtepd/frr/witness"
)

// Addr parses an address that must be one.
func Addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// Side is a leaf with the vtepd beside it.
type Side struct {
	Leaf, Sidecar *lab.Node
	Loopback      netip.Addr // the leaf's router id, from which its BGP sessions come
	Proc          *lab.Proc  // vtepd, once started by the lab
	DropDir       string     // its drop directory as this program sees it; default: by way of the sidecar
}

// Sides are the two leaves of a lab.
func Sides(l *lab.Lab) (one, two *Side) {
	return &Side{Leaf: l.Node("leaf1"), Sidecar: l.Node("vtepd1"), Loopback: Addr("10.0.0.1")},
		&Side{Leaf: l.Node("leaf2"), Sidecar: l.Node("vtepd2"), Loopback: Addr("10.0.0.2")}
}

// Start starts vtepd as the topology says.
func (s *Side) Start(ctx context.Context) (err error) {
	s.Proc, err = s.Sidecar.Start(ctx)
	return err
}

// Config is what a leaf's file says, as far as the stories vary it.
type Config struct {
	Node      string
	Parent    string // of endpoint vtep0; "" is a loopback
	Placement string // of endpoint vtep0, in the file's own form, in place of Parent
	Address   string // of endpoint vtep0, in the file's own form
	VNIs      []int
	Endpoints string // more endpoints, in the file's own form, indented by two
	MoreVNIs  string // more VNIs, in the file's own form, indented by two
	More      string // more sections
	Text      string // the whole file, in place of all that is above; VNIs are still those that it has
}

// Prefer is an address of the pool.
func Prefer(addr string) string { return "{pool: vteps, prefer: " + addr + "}" }

// VNIs are n of them: 100 and 200, which hosts are on, and then 1000, 1001, …
func VNIs(n int) []int {
	out := []int{100, 200}
	for v := 1000; len(out) < n; v++ {
		out = append(out, v)
	}
	return out[:n]
}

// YAML is the file.
func (c Config) YAML() string {
	if c.Text != "" {
		return c.Text
	}
	var b strings.Builder
	placement := "loopback: {}"
	if c.Parent != "" {
		placement = "ipvlan: {parent: " + c.Parent + "}"
	}
	placement = cmp.Or(c.Placement, placement)
	fmt.Fprintf(&b, "version: 1\nnode: {name: %s}\npools:\n  vteps: {addresses: [10.0.0.0/24], exclude: [10.0.0.0-10.0.0.9, 10.0.0.100, 10.0.0.255]}\n", c.Node)
	fmt.Fprintf(&b, "endpoints:\n  vtep0:\n    %s\n    address: %s\n%s", placement, c.Address, c.Endpoints)
	if len(c.VNIs) > 0 || c.MoreVNIs != "" {
		b.WriteString("vnis:\n")
	}
	for _, v := range c.VNIs {
		fmt.Fprintf(&b, "  %d: {endpoint: vtep0}\n", v)
	}
	b.WriteString(c.MoreVNIs)
	b.WriteString(c.More)
	return b.String()
}

// Drop drops a file for vtepd.
func (s *Side) Drop(content string) error {
	if s.DropDir != "" {
		return lab.DropFile(filepath.Join(s.DropDir, "vtepd.yaml"), content)
	}
	return s.Sidecar.Drop("/etc/vtepd/vtepd.yaml", content)
}

// VTEPD runs the vtepd binary in the sidecar.
func (s *Side) VTEPD(ctx context.Context, args ...string) (string, error) {
	return s.Sidecar.Exec(ctx, append([]string{"/usr/bin/vtepd"}, args...)...)
}

// Status asks the daemon, over its socket in the sidecar.
func (s *Side) Status(ctx context.Context) (status.Snapshot, error) {
	return status.Fetch(ctx, s.Sidecar.Path("/run/vtepd/vtepd.sock"))
}

// Settle waits until the daemon's status is as want says.
func (s *Side) Settle(ctx context.Context, what string, want func(status.Snapshot) error) (status.Snapshot, error) {
	var last status.Snapshot
	err := lab.Eventually(ctx, s.Sidecar.Name+": "+what, func(ctx context.Context) error {
		if s.Proc != nil && !s.Proc.Running() {
			return lab.Final(fmt.Errorf("vtepd has ended: %s", s.Proc.Log()))
		}
		snap, err := s.Status(ctx)
		if err != nil {
			return err
		}
		last = snap
		if err := want(snap); err != nil {
			return fmt.Errorf("%w; it is %s: %s", err, snap.Condition, strings.Join(snap.Messages, "; "))
		}
		return nil
	})
	return last, err
}

// Carry drops a file and waits until it is live: idle, with the file's address on vtep0 and its VNIs.
func (s *Side) Carry(ctx context.Context, c Config, address string) (status.Snapshot, error) {
	// What it says of the directory as it found it is no answer to the file.
	before, err := s.Settle(ctx, "has started", func(n status.Snapshot) error {
		if n.Condition == status.Starting {
			return errors.New("it hasn't looked yet")
		}
		return nil
	})
	if err != nil {
		return before, err
	}
	if err := s.Drop(c.YAML()); err != nil {
		return before, err
	}
	return s.Settle(ctx, "carries out the file", func(n status.Snapshot) error {
		switch {
		case n.Condition == status.Failed || n.Condition == status.Refused || n.Condition == status.Invalid:
			if n.Since.After(before.Since) {
				return lab.Final(errors.New("it can't be carried out"))
			}
			return errors.New("not seen yet")
		case n.Condition != status.Idle || n.Generation == before.Generation:
			return errors.New("not done yet")
		}
		return Has(n, address, c.VNIs)
	})
}

// Has says what a snapshot lacks of an endpoint vtep0 with an address, and VNIs on it.
func Has(n status.Snapshot, address string, vnis []int) error {
	i := slices.IndexFunc(n.Endpoints, func(e status.Endpoint) bool { return e.Name == "vtep0" })
	if i < 0 || n.Endpoints[i].Address.String() != address {
		return fmt.Errorf("vtep0 isn't on %s: %v", address, n.Endpoints)
	}
	for _, v := range vnis {
		if !slices.ContainsFunc(n.VNIs, func(x status.VNI) bool { return x.VNI == uint32(v) && x.VTEP.String() == address }) {
			return fmt.Errorf("VNI %d isn't on %s", v, address)
		}
	}
	return nil
}

// Enslave puts the host ports into vtepd's bridges, as the operator does.
func (s *Side) Enslave(ctx context.Context) error {
	return errors.Join(s.Leaf.Enslave(ctx, "eth3", "br100"), s.Leaf.Enslave(ctx, "eth4", "br200"))
}

// Hosts are the flows between the hosts on VNI 100 and on VNI 200, each way.
func Hosts() []lab.Flow {
	return slices.Concat(lab.Between("host1", "172.16.100.1", "host2", "172.16.100.2"),
		lab.Between("host1", "172.16.200.1", "host2", "172.16.200.2"))
}

var changing = regexp.MustCompile(`\S*timer\s+\S+|(packets|bytes|expires|timer|fdb_n_learned) \S+`)

// Foreign is what the operator made beside vtepd, byte for byte but for running timers and what a bridge has learnt: links, addresses, routes, and FRR's
// configuration less the lines that are vtepd's.
func (s *Side) Foreign(ctx context.Context) (string, error) {
	var b strings.Builder
	for _, args := range []string{
		"ip -d link show dev br999", "ip -d link show dev vxlan999", "ip addr show dev lo", "ip addr show dev eth1", "ip addr show dev eth2",
		"ip route show proto boot", "ip route show proto static", "bridge link show dev vxlan999",
	} {
		out, err := s.Leaf.Exec(ctx, strings.Fields(args)...)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "# %s\n%s", args, changing.ReplaceAllString(out, ""))
	}
	config, err := s.Leaf.RunningConfig(ctx)
	if err != nil {
		return "", err
	}
	b.WriteString(withoutOurs(config))
	return b.String(), nil
}

// withoutOurs is a running configuration less the host routes with vtepd's mark, and the map of that name.
func withoutOurs(config string) string {
	var out []string
	skip := false
	for line := range strings.Lines(config) {
		switch word := strings.TrimSpace(line); {
		case word == "!": // between blocks: as many as there are blocks
		case strings.HasPrefix(line, "route-map VTEPD "):
			skip = true
		case skip:
			skip = word != "exit"
		case strings.Contains(line, "route-map VTEPD") && strings.HasPrefix(strings.TrimSpace(line), "network "):
		default:
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// Scouting reports whether an event is of the route of a VNI that nobody uses, by which a change makes its addresses known as next hops:
// one of the greatest VNIs there are.
func Scouting(e witness.Event) bool { return e.Type == 3 && e.VNI > 1<<24-1-256 }

// Lost reports whether an event takes something away that a change at a leaf could be blamed for: a session, or a route. What
// another leaf knows of its hosts' addresses (type 2 with an IP) runs out when a host is silent, and link-local addresses
// do so everywhere.
func Lost(e witness.Event, leaf netip.Addr) bool {
	aged := e.Type == 2 && e.IP.IsValid() && (e.Peer != leaf || e.IP.IsLinkLocalUnicast())
	return e.Kind == witness.Down || e.Kind == witness.Withdraw && !aged && !Scouting(e)
}

// Move is a change of address as the spine should hear it.
type Move struct {
	Leaf     netip.Addr // the router id of the leaf that moves
	From, To netip.Addr
	VNIs     int
	Keeps    bool // the old address stays announced: nothing is withdrawn but type-3 routes
}

// Order holds what the spine heard during a move against the order that loses nothing: the new host route and a scout on the new
// address before any type-3 route moves, every type-3 moved before the old host route and the scout go, and no other withdrawal,
// from anybody.
func (m Move) Order(events []witness.Event) error {
	hostRoute := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	newRoute, oldGone, scout, scoutGone := -1, -1, -1, -1
	var moved []int
	seen := map[string]bool{}
	for i, e := range events {
		switch {
		case e.Kind == witness.Announce && e.Type == 0 && e.Prefix == hostRoute(m.To) && newRoute < 0:
			newRoute = i
		case Scouting(e):
			if e.Kind == witness.Announce && e.NextHop == m.To {
				scout = i
			} else if e.Kind == witness.Withdraw && e.IP == m.To {
				scoutGone = i
			}
		case e.Kind == witness.Announce && e.Type == 3 && e.NextHop == m.To && !seen[e.RD]:
			seen[e.RD] = true
			moved = append(moved, i)
		case e.Kind == witness.Withdraw && e.Type == 0 && e.Prefix == hostRoute(m.From) && !m.Keeps:
			oldGone = i
		case e.Kind == witness.Withdraw && e.Type == 3 && e.IP == m.From:
		case Lost(e, m.Leaf):
			return fmt.Errorf("something else was lost: %v", e)
		}
	}
	switch {
	case newRoute < 0:
		return fmt.Errorf("the host route %s was never heard", hostRoute(m.To))
	case len(moved) != m.VNIs:
		return fmt.Errorf("%d type-3 routes moved to %s, not %d", len(moved), m.To, m.VNIs)
	case moved[0] < newRoute:
		return fmt.Errorf("a type-3 route moved before the host route was there: %v", events[moved[0]])
	case scout < 0 || moved[0] < scout:
		return fmt.Errorf("a type-3 route moved before a scout had made %s known: %v", m.To, events[moved[0]])
	case scoutGone >= 0 && scoutGone < moved[len(moved)-1]:
		return fmt.Errorf("the scout on %s went before a type-3 route had moved: %v", m.To, events[moved[len(moved)-1]])
	case !m.Keeps && oldGone < 0:
		return fmt.Errorf("the old host route %s was never withdrawn", hostRoute(m.From))
	case !m.Keeps && oldGone < moved[len(moved)-1]:
		return fmt.Errorf("the old host route went before a type-3 route had moved: %v", events[moved[len(moved)-1]])
	}
	return nil
}
