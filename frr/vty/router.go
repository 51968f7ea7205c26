package vty

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"vtepd/frr"
)

// Router is a frr.Router over the sockets of bgpd and zebra in one directory. It connects when it is first used and
// keeps the connections; one that was closed in between, because the daemon restarted, is made again. One goroutine at a
// time uses it, but RoundTrips.
type Router struct {
	dir     string
	timeout time.Duration
	trips   atomic.Uint64
	clients map[string]*Client
}

var _ frr.Router = (*Router)(nil)

// New returns a Router over DIR/bgpd.vty and DIR/zebra.vty; "" is DefaultDir. Every request takes timeout at the
// longest, 0 being DefaultTimeout. It connects to nothing yet.
func New(dir string, timeout time.Duration) *Router {
	if dir == "" {
		dir = DefaultDir
	}
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	return &Router{dir: dir, timeout: timeout, clients: map[string]*Client{}}
}

// RoundTrips implements frr.Router.
func (r *Router) RoundTrips() uint64 { return r.trips.Load() }

// Close implements frr.Router. A Router that was closed connects again when it is used.
func (r *Router) Close() error {
	var errs []error
	for daemon, c := range r.clients {
		errs = append(errs, c.Close())
		delete(r.clients, daemon)
	}
	return errors.Join(errs...)
}

// ask sends one line to a daemon, on the connection that is there or on a new one. again says that the line can be sent
// twice: when a connection from before turns out to be closed, it is made again, once.
func (r *Router) ask(ctx context.Context, daemon, line string, again bool) (string, int, error) {
	c, old := r.clients[daemon]
	if !old {
		var err error
		if c, err = dial(ctx, r.dir, daemon, r.timeout, &r.trips); err != nil {
			return "", 0, err
		}
		r.clients[daemon] = c
	}
	text, rc, err := c.Ask(ctx, line)
	if err != nil {
		c.Close()
		delete(r.clients, daemon)
		if old && again && errors.Is(err, frr.ErrUnreachable) && !isTimeout(err) && ctx.Err() == nil {
			return r.ask(ctx, daemon, line, false)
		}
	}
	return text, rc, err
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// read asks for something and parses it. Where FRR says with a return code that there is nothing, none says so.
func read[T any](ctx context.Context, r *Router, daemon, command string, parse func(string) (T, error), none func(string) bool) (T, error) {
	var zero T
	text, rc, err := r.ask(ctx, daemon, command, true)
	if err != nil {
		return zero, err
	}
	if rc != 0 {
		if none != nil && none(text) {
			return zero, nil
		}
		r.drop(daemon)
		return zero, r.wrap(daemon, frr.Garbage(command, fmt.Sprintf("return code %d", rc), text))
	}
	v, err := parse(text)
	if err != nil {
		r.drop(daemon)
		return zero, r.wrap(daemon, err)
	}
	return v, nil
}

// drop closes the connection to a daemon. Where an answer made no sense, it isn't known which node the session is in, and
// every later answer could make as little; the next request begins anew.
func (r *Router) drop(daemon string) {
	if c, ok := r.clients[daemon]; ok {
		c.Close()
		delete(r.clients, daemon)
	}
}

func (r *Router) wrap(daemon string, err error) error {
	return fmt.Errorf("frr: %s: socket %s: %w", daemon, socket(r.dir, daemon), err)
}

// noInstance is how bgpd says that there is none: with words, or, of the EVPN table, without any.
func noInstance(text string) bool {
	return strings.TrimSpace(text) == "" || strings.Contains(text, "BGP instance not found")
}

// parseLines is frr.ParseConfig with the fingerprint of what it parsed.
func parseLines(text string) (frr.Observation, error) {
	o, err := frr.ParseConfig(text)
	sum := sha256.Sum256([]byte(text))
	o.Fingerprint = hex.EncodeToString(sum[:8])
	return o, err
}

// Observe implements frr.Router. The parts cost, in round trips: Lines one, Config two, Sessions and VNIs one, Type3 two, each of
// Prefixes one and each of their families one more, two while updates of that family wait to be sent.
func (r *Router) Observe(ctx context.Context, q frr.Query) (frr.Observation, error) {
	var o frr.Observation
	var err error
	if q.Config || q.Lines {
		if o, err = read(ctx, r, "bgpd", frr.CommandConfig, parseLines, nil); err != nil {
			return frr.Observation{}, err
		}
		if q.Config && o.Instance.ASN != 0 {
			if o.Instance.RouterID, err = read(ctx, r, "bgpd", frr.CommandVRFs, frr.ParseRouterID, nil); err != nil {
				return frr.Observation{}, err
			}
		}
	}
	if q.Sessions {
		if o.Sessions, err = read(ctx, r, "bgpd", frr.CommandSessions, frr.ParseSessions, noInstance); err != nil {
			return frr.Observation{}, err
		}
	}
	if q.VNIs {
		if o.VNIs, err = read(ctx, r, "zebra", frr.CommandVNIs, frr.ParseVNIs, nil); err != nil {
			return frr.Observation{}, err
		}
	}
	if q.Type3 {
		if o.Type3, err = r.type3(ctx); err != nil {
			return frr.Observation{}, err
		}
	}
	if o.Routes, err = r.routes(ctx, q.Prefixes); err != nil {
		return frr.Observation{}, err
	}
	return o, nil
}

func (r *Router) type3(ctx context.Context) ([]frr.Type3, error) {
	t, err := read(ctx, r, "bgpd", frr.CommandType3, frr.ParseType3, noInstance)
	if err != nil || !slices.ContainsFunc(t, func(t frr.Type3) bool { return len(t.AdvertisedTo) > 0 }) {
		return t, err
	}
	groups, err := r.groups(ctx, frr.CommandEVPNUpdates)
	if err != nil {
		return nil, err
	}
	for i := range t {
		t[i].AdvertisedTo, t[i].Queued = frr.Unsent(t[i].AdvertisedTo, groups, func(frr.UpdateGroup) bool { return true })
	}
	return t, nil
}

func (r *Router) routes(ctx context.Context, prefixes []netip.Prefix) ([]frr.Route, error) {
	var out []frr.Route
	for _, p := range prefixes {
		route, err := read(ctx, r, "bgpd", frr.CommandRoute(p), func(s string) (frr.Route, error) { return frr.ParseRoute(p, s) }, noInstance)
		if err != nil {
			return nil, err
		}
		route.Prefix = p
		out = append(out, route)
	}
	// Only after the routes: what has left the queue by now has been sent, what was advertised then is in it or sent.
	for _, six := range []bool{false, true} {
		if err := r.unsent(ctx, out, six); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// unsent moves the peers of one family's routes that an update still waits for from AdvertisedTo to Queued.
func (r *Router) unsent(ctx context.Context, routes []frr.Route, six bool) error {
	i := slices.IndexFunc(routes, func(t frr.Route) bool { return t.Prefix.Addr().Is6() == six && len(t.AdvertisedTo) > 0 })
	if i < 0 {
		return nil
	}
	first := routes[i].Prefix
	groups, err := r.groups(ctx, frr.CommandUpdates(first))
	if err != nil || !slices.ContainsFunc(groups, func(g frr.UpdateGroup) bool { return g.Waiting }) {
		return err
	}
	queue, err := read(ctx, r, "bgpd", frr.CommandQueue(first), func(s string) (string, error) {
		_, err := frr.ParseQueue(first, s)
		return s, err
	}, nil)
	if err != nil {
		return err
	}
	for i, t := range routes {
		if t.Prefix.Addr().Is6() != six {
			continue
		}
		waits, err := frr.ParseQueue(t.Prefix, queue)
		if err != nil {
			return r.wrap("bgpd", err)
		}
		routes[i].AdvertisedTo, routes[i].Queued = frr.Unsent(t.AdvertisedTo, groups, func(g frr.UpdateGroup) bool {
			return slices.Contains(waits, g.Subgroup)
		})
	}
	return nil
}

func (r *Router) groups(ctx context.Context, command string) ([]frr.UpdateGroup, error) {
	return read(ctx, r, "bgpd", command, func(s string) ([]frr.UpdateGroup, error) { return frr.ParseUpdateGroups(command, s) }, nil)
}

// Apply implements frr.Router. It reads the configuration (one round trip), sends what differs (four to five an edit)
// and, if that was anything, reads it again. An edit that has begun is finished though ctx ends, under the timeout alone.
// An error before the first edit is that of Observe.
func (r *Router) Apply(ctx context.Context, edits []frr.Edit) error {
	before, err := read(ctx, r, "bgpd", frr.CommandConfig, frr.ParseConfig, nil)
	if err != nil {
		return err
	}
	want, wrote := before, false
	for _, e := range edits {
		if ctx.Err() != nil {
			return &frr.EditError{Edit: e, Err: &unreachable{"not begun: " + context.Cause(ctx).Error(), context.Cause(ctx)}}
		}
		differs, err := e.Check(want)
		if err != nil {
			return &frr.EditError{Edit: e, Err: err}
		}
		if !differs {
			continue
		}
		if err := r.write(context.WithoutCancel(ctx), e); err != nil {
			return err
		}
		want, wrote = e.Applied(want), true
	}
	if !wrote {
		return nil
	}
	after, err := read(context.WithoutCancel(ctx), r, "bgpd", frr.CommandConfig, frr.ParseConfig, nil)
	if err != nil {
		return &frr.EditError{Edit: edits[len(edits)-1], Err: fmt.Errorf("reading it back: %w", err)}
	}
	for _, e := range slices.Backward(edits) { // the last word on an object is what must be there
		if !agree(e, want, after) {
			return &frr.EditError{Edit: e, Err: errors.New("bgpd accepted it, and its running configuration doesn't show it")}
		}
	}
	return nil
}

// agree compares what an edit is about in two observations.
func agree(e frr.Edit, a, b frr.Observation) bool {
	if a.Instance.ASN != b.Instance.ASN {
		return false
	}
	switch e.Verb {
	case frr.AddNetwork, frr.RemoveNetwork:
		about := func(o frr.Observation) int {
			return slices.IndexFunc(o.Networks, func(n frr.Network) bool { return n.Prefix == e.Prefix })
		}
		i, j := about(a), about(b)
		return i < 0 && j < 0 || i >= 0 && j >= 0 && a.Networks[i] == b.Networks[j]
	case frr.AddRouteMap, frr.RemoveRouteMap:
		return a.RouteMap == b.RouteMap
	case frr.SetRouterID, frr.RemoveRouterID:
		return a.Instance.Configured == b.Instance.Configured
	}
	return a.EVPN == b.EVPN
}

// write sends the lines of one edit, one a write: after a line that failed bgpd is one context up, where the next would
// mean something else. The session ends outside `router bgp` whatever happens: one that stays there can crash bgpd.
func (r *Router) write(ctx context.Context, e frr.Edit) error {
	lines, err := frr.Render(e)
	if err != nil {
		return &frr.EditError{Edit: e, Err: err}
	}
	for _, line := range lines {
		text, rc, err := r.ask(ctx, "bgpd", line, false)
		if err != nil {
			return &frr.EditError{Edit: e, Line: line, Err: err} // the connection is closed, and with it the context left
		}
		if rc == 0 && !slices.ContainsFunc(strings.Split(text, "\n"), func(l string) bool { return strings.HasPrefix(l, "%") }) {
			continue
		}
		err = fmt.Errorf("bgpd refused it (%d): %s", rc, words(text))
		_, rc, endErr := r.ask(ctx, "bgpd", "end", false)
		if endErr != nil {
			err = fmt.Errorf("%w; then %w", err, endErr)
		} else if rc != 0 {
			r.drop("bgpd")
		}
		return &frr.EditError{Edit: e, Line: line, Err: err}
	}
	return nil
}

// words is what FRR said, in one line.
func words(text string) string {
	if w := strings.Join(strings.Fields(text), " "); w != "" {
		return w
	}
	return "no words"
}
