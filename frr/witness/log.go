package witness

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is what an event tells.
type Kind string

// The kinds of events. Down takes back, without a word, everything that the
// peer had announced.
const (
	Announce Kind = "announce"
	Withdraw Kind = "withdraw"
	EndOfRIB Kind = "eor"  // RFC 4724: the peer has sent what it had
	Up       Kind = "up"   // the session is established
	Down     Kind = "down" // it no longer is
)

// Event is one thing heard.
type Event struct {
	Time    time.Time    `json:"time"` // when it was heard
	Kind    Kind         `json:"kind"`
	Peer    netip.Addr   `json:"peer,omitzero"` // invalid: the witness itself
	Family  Family       `json:"family,omitempty"`
	Route   string       `json:"route,omitempty"` // names it within peer and family
	NextHop netip.Addr   `json:"nextHop,omitzero"`
	Prefix  netip.Prefix `json:"prefix,omitzero"` // unicast, and EVPN type 5

	// EVPN alone. NextHop and VNI of a withdrawal are those of the announcement
	// that it takes back.
	Type uint8      `json:"type,omitempty"` // 1 to 5
	RD   string     `json:"rd,omitempty"`
	VNI  uint32     `json:"vni,omitempty"`
	Tag  uint32     `json:"tag,omitempty"` // Ethernet tag
	ESI  string     `json:"esi,omitempty"` // hexadecimal; empty for zero
	MAC  string     `json:"mac,omitempty"`
	IP   netip.Addr `json:"ip,omitzero"` // type 2: the host; types 3 and 4: the originator
}

// String is the event for people, without its time.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s", e.Peer, e.Kind)
	switch {
	case e.Kind == Up || e.Kind == Down:
	case e.Kind == EndOfRIB:
		fmt.Fprintf(&b, " %s", e.Family)
	case e.Type != 0:
		fmt.Fprintf(&b, " type-%d rd %s vni %d", e.Type, e.RD, e.VNI)
		if e.MAC != "" {
			fmt.Fprintf(&b, " mac %s", e.MAC)
		}
		if e.IP.IsValid() {
			fmt.Fprintf(&b, " ip %v", e.IP)
		}
		if e.Prefix.IsValid() {
			fmt.Fprintf(&b, " %v", e.Prefix)
		}
	default:
		fmt.Fprintf(&b, " %s", e.Route)
	}
	if e.NextHop.IsValid() {
		fmt.Fprintf(&b, " via %v", e.NextHop)
	}
	return b.String()
}

// Log is a growing list of events that many may read and wait on. The position
// of an event never changes.
type Log struct {
	mu     sync.Mutex
	events []Event
	grown  chan struct{} // closed when events grows
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{grown: make(chan struct{})} }

// Append adds an event.
func (l *Log) Append(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	close(l.grown)
	l.grown = make(chan struct{})
}

// Len is the position of the next event: a mark to give to Since and WaitSince.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.events)
}

// Events returns all events.
func (l *Log) Events() []Event { return l.Since(0) }

// Since returns the events from a position on.
func (l *Log) Since(pos int) []Event {
	events, _ := l.since(pos)
	return slices.Clone(events)
}

func (l *Log) since(pos int) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[min(pos, len(l.events)):len(l.events):len(l.events)], l.grown
}

// Wait returns the first event that matches, of those there and those to come.
// Its error is the context's.
func (l *Log) Wait(ctx context.Context, match func(Event) bool) (Event, error) {
	return l.WaitSince(ctx, 0, match)
}

// WaitSince is Wait from a position on.
func (l *Log) WaitSince(ctx context.Context, pos int, match func(Event) bool) (Event, error) {
	for _, e := range l.Follow(ctx, pos) {
		if match(e) {
			return e, nil
		}
	}
	return Event{}, ctx.Err()
}

// Follow yields events with their positions, from one on, and waits for more
// until the context ends.
func (l *Log) Follow(ctx context.Context, pos int) iter.Seq2[int, Event] {
	return func(yield func(int, Event) bool) {
		for {
			events, grown := l.since(pos)
			for _, e := range events {
				if !yield(pos, e) {
					return
				}
				pos++
			}
			select {
			case <-ctx.Done():
				return
			case <-grown:
			}
		}
	}
}

// WriteJSON writes events as JSON, one a line, from the first on, and more as they
// come, until the context ends or w fails.
func (l *Log) WriteJSON(ctx context.Context, w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, e := range l.Follow(ctx, 0) {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// ReadJSON appends what WriteJSON of another process writes, until it ends.
func (l *Log) ReadJSON(r io.Reader) error {
	dec := json.NewDecoder(r)
	for {
		var e Event
		switch err := dec.Decode(&e); err {
		case nil:
			l.Append(e)
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// Current returns the announcements of a list of events that are still good at
// its end, sorted by peer, family and route.
func Current(events []Event) []Event {
	good := map[held]Event{}
	for _, e := range events {
		key := held{e.Peer, e.Family, e.Route}
		switch e.Kind {
		case Announce:
			good[key] = e
		case Withdraw:
			delete(good, key)
		case Down:
			for k := range good {
				if k.peer == e.Peer {
					delete(good, k)
				}
			}
		}
	}
	list := make([]Event, 0, len(good))
	for _, e := range good {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Event) int {
		return cmp.Or(a.Peer.Compare(b.Peer), cmp.Compare(a.Family, b.Family), cmp.Compare(a.Route, b.Route))
	})
	return list
}
