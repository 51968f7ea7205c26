package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stage is a place on a packet's way, in the order in which it passes them.
type Stage int

// The stages. "First" is the leaf of the sending host, "second" that of the
// receiving one.
const (
	Sent     Stage = iota // the host's program sent it
	Taken                 // the first leaf took it from its host port
	OnWire                // the first leaf put it on an uplink
	OffWire               // the second leaf received it on an uplink
	Given                 // the second leaf put it on its host port
	Received              // the host's program received it
	stages
)

func (s Stage) String() string {
	return [...]string{
		"sent by the host", "taken from the host port", "on the uplink", "off the uplink", "on the host port", "received by the host",
	}[s]
}

// Class says who lost a packet.
type Class string

// The classes. A loss that the captures lay at no leaf's door is LostUnderlay
// or LostHost, which there should be none of: Report.LostHere has them.
const (
	LostByUs       Class = "here"     // our leaf had it, and it never left
	LostByRemote   Class = "remote"   // the other leaf had it, and it never left
	LostByUnderlay Class = "underlay" // it left one leaf, and never reached the other
	LostByHost     Class = "host"     // it never reached the first leaf, or left the second and wasn't received
)

// Trace is what was seen of the packets of one flow.
type Trace struct {
	Flow          Flow
	First, Second string // leaves
	Packets       []Packet
}

// Packet is one packet of a flow. A stage that it was not seen at has no time.
type Packet struct {
	Seq    uint32
	At     [stages]time.Time
	Copies int    // received; more than one is a duplicate
	Error  string // of sending it
}

// FDBEvent is a change of a leaf's forwarding table.
type FDBEvent struct {
	Time    time.Time `json:"time"`
	Node    string    `json:"node"`
	Deleted bool      `json:"deleted"`
	MAC     string    `json:"mac"`
	Dst     string    `json:"dst,omitempty"` // the remote endpoint, of a VXLAN's entry
	Link    string    `json:"link"`
}

func (e FDBEvent) String() string {
	verb := "new"
	if e.Deleted {
		verb = "deleted"
	}
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s on %s %s", e.Node, verb, e.MAC, e.Link, e.Dst))
}

// Loss is one packet that wasn't received.
type Loss struct {
	Class Class     `json:"class"`
	Flow  string    `json:"flow"`
	Seq   uint32    `json:"seq"`
	Leaf  string    `json:"leaf,omitempty"` // that lost it; empty for underlay and host
	Last  Stage     `json:"last"`           // where it was seen last
	Time  time.Time `json:"time"`           // when it was seen there
	Error string    `json:"error,omitempty"`
	// FDB is the change of the losing leaf's forwarding table that is nearest in
	// time, and After how long after it the packet was seen last; negative: before.
	FDB   *FDBEvent     `json:"fdb,omitempty"`
	After time.Duration `json:"after,omitempty"`
}

func (l Loss) String() string {
	s := fmt.Sprintf("%s #%d lost (%s): %s at %s, then no more", l.Flow, l.Seq, l.Class, l.Last, l.Time.Format("15:04:05.000000"))
	if l.Leaf != "" {
		s = fmt.Sprintf("%s #%d lost (%s, by %s): %s at %s, then no more", l.Flow, l.Seq, l.Class, l.Leaf, l.Last, l.Time.Format("15:04:05.000000"))
	}
	if l.Error != "" {
		s += "; " + l.Error
	}
	if l.FDB != nil {
		s += fmt.Sprintf("; %v after %s", l.After, *l.FDB)
	}
	return s
}

// Report is the account of some traffic. Every packet that was sent and not
// received is in exactly one of the losses.
type Report struct {
	Sent     int `json:"sent"`
	Received int `json:"received"` // at least once
	// LostHere is what our leaf has to answer for: what it lost, and what nobody
	// can be shown to have lost, which is LostUnderlay and LostHost.
	LostHere     int           `json:"lostHere"`
	LostRemote   int           `json:"lostRemote"`
	LostUnderlay int           `json:"lostUnderlay"` // of LostHere
	LostHost     int           `json:"lostHost"`     // of LostHere
	Dup          int           `json:"dup"`          // received again
	Reordered    int           `json:"reordered"`    // received after one that was sent later
	Slowest      time.Duration `json:"slowest"`      // from Sent to Received
	Losses       []Loss        `json:"losses,omitempty"`
}

func (r Report) String() string {
	return fmt.Sprintf("sent=%d received=%d lost_here=%d lost_remote=%d lost_underlay=%d lost_host=%d dup=%d reordered=%d slowest=%v",
		r.Sent, r.Received, r.LostHere, r.LostRemote, r.LostUnderlay, r.LostHost, r.Dup, r.Reordered, r.Slowest.Round(time.Millisecond))
}

// Add joins the account of other traffic to this one.
func (r *Report) Add(o Report) {
	r.Sent += o.Sent
	r.Received += o.Received
	r.LostHere += o.LostHere
	r.LostRemote += o.LostRemote
	r.LostUnderlay += o.LostUnderlay
	r.LostHost += o.LostHost
	r.Dup += o.Dup
	r.Reordered += o.Reordered
	r.Slowest = max(r.Slowest, o.Slowest)
	r.Losses = append(r.Losses, o.Losses...)
}

// Analyse accounts for every packet: ours is the leaf that is under change. The
// last stage that a packet was seen at says who lost it; an earlier one that a capture has no
// record of says nothing.
func Analyse(ours string, traces []Trace, fdb []FDBEvent) Report {
	var r Report
	for _, t := range traces {
		newest := -1
		var order []int
		for i, p := range t.Packets {
			r.Sent++
			if p.At[Received].IsZero() {
				r.Losses = append(r.Losses, loss(ours, t, p, fdb))
				continue
			}
			r.Received++
			r.Dup += p.Copies - 1
			r.Slowest = max(r.Slowest, p.At[Received].Sub(p.At[Sent]))
			order = append(order, i)
		}
		slices.SortStableFunc(order, func(a, b int) int { return t.Packets[a].At[Received].Compare(t.Packets[b].At[Received]) })
		for _, i := range order {
			if i < newest {
				r.Reordered++
			}
			newest = max(newest, i)
		}
	}
	slices.SortStableFunc(r.Losses, func(a, b Loss) int { return a.Time.Compare(b.Time) })
	for _, l := range r.Losses {
		switch l.Class {
		case LostByRemote:
			r.LostRemote++
			continue
		case LostByUnderlay:
			r.LostUnderlay++
		case LostByHost:
			r.LostHost++
		}
		r.LostHere++
	}
	return r
}

func loss(ours string, t Trace, p Packet, fdb []FDBEvent) Loss {
	l := Loss{Flow: t.Flow.Name, Seq: p.Seq, Error: p.Error}
	for s, at := range p.At {
		if !at.IsZero() {
			l.Last, l.Time = Stage(s), at
		}
	}
	switch l.Last {
	case Sent, Given:
		l.Class = LostByHost
		return l
	case OnWire:
		l.Class = LostByUnderlay
		return l
	case Taken:
		l.Leaf = t.First
	case OffWire:
		l.Leaf = t.Second
	}
	l.Class = LostByRemote
	if l.Leaf == ours {
		l.Class = LostByUs
	}
	for _, e := range fdb {
		after := l.Time.Sub(e.Time)
		if e.Node == l.Leaf && (l.FDB == nil || after.Abs() < l.After.Abs()) {
			l.FDB, l.After = &e, after
		}
	}
	return l
}
