// Package status holds the one Snapshot of what the daemon is doing, and serves it. The daemon's loop writes it, everybody
// else reads copies; JSON and text are renderings of it.
package status

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"vtepd/daemon/plan"
)

// Condition says in a word how the daemon is.
type Condition string

// The conditions.
const (
	Starting    Condition = "starting"
	Recovering  Condition = "recovering"  // from what an earlier daemon left
	Idle        Condition = "idle"        // the router is as the config wants it
	Running     Condition = "running"     // a transaction
	Waiting     Condition = "waiting"     // for FRR, or for a value of a pool
	Invalid     Condition = "invalid"     // the config; what ran before runs on
	Refused     Condition = "refused"     // the config can't be reached from here; nothing was touched
	Unconfirmed Condition = "unconfirmed" // a change that is proven waits to be confirmed
	Failed      Condition = "failed"      // the transaction was rolled back
	Degraded    Condition = "degraded"    // between two states: what is in the way is named, and tried again
)

// Snapshot is the daemon at one moment. Phase, step and error belong together.
type Snapshot struct {
	Version    string    `json:"version"`
	Node       string    `json:"node,omitempty"`
	Condition  Condition `json:"condition"`
	Since      time.Time `json:"since"`      // of the condition
	Generation uint64    `json:"generation"` // live: of the last committed transaction
	State      string    `json:"state"`      // fingerprint of the live state
	Config     string    `json:"config"`     // the file or directory
	// Messages are why: problems of the config, refusals, what is waited for. Empty when idle.
	Messages []string `json:"messages,omitempty"`
	// Failure is the step that failed, in the conditions failed and degraded.
	Failure *Failure `json:"failure,omitempty"`
	// Repairs are those of what somebody else changed of vtepd's, since the daemon started.
	Repairs Repairs `json:"repairs"`
	// Goroutines are those of the daemon at the moment of the answer.
	Goroutines int `json:"goroutines,omitempty"`
	// Transaction is the one that runs, or the last one.
	Transaction *Transaction `json:"transaction,omitempty"`
	Endpoints   []Endpoint   `json:"endpoints,omitempty"` // live, sorted by name
	Loopbacks   []Loopback   `json:"loopbacks,omitempty"` // of the config, sorted by name
	VNIs        []VNI        `json:"vnis,omitempty"`      // live, sorted
}

// Failure is a step that failed, with the kernel's or FRR's own words in Message.
type Failure struct {
	Phase   plan.Phase `json:"phase"`
	Step    int        `json:"step"` // from 1
	Object  string     `json:"object,omitempty"`
	Message string     `json:"message"`
}

// Repairs are transactions that put back what was there, with nobody having asked for a change.
type Repairs struct {
	Count uint64    `json:"count"`
	Last  time.Time `json:"last,omitzero"`
	What  []string  `json:"what,omitempty"` // the last one
}

// Transaction is how far a transaction went and what it cost.
type Transaction struct {
	Generation uint64    `json:"generation"`
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended,omitzero"`
	// Result is "" while it runs, then "committed", "rolled back" or "degraded".
	Result string  `json:"result,omitempty"`
	Steps  int     `json:"steps"`
	Phases []Phase `json:"phases"` // in the order in which they began
	// Batches and Messages are the netlink writes of the swap phase alone, and the changes in them.
	SwapBatches  uint64 `json:"swapBatches"`
	SwapMessages uint64 `json:"swapMessages"`
	RoundTrips   uint64 `json:"roundTrips"`      // requests to FRR's vty sockets, reads and writes
	Looks        uint64 `json:"looks,omitempty"` // how often FRR was asked whether it had come so far, each time a few round trips
}

// Phase is one phase of a transaction.
type Phase struct {
	Phase plan.Phase    `json:"phase"`
	Undo  bool          `json:"undo,omitempty"`
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"` // nanoseconds; so far, while it runs
}

// Endpoint is a live endpoint.
type Endpoint struct {
	Name    string     `json:"name"`
	Link    string     `json:"link"`
	Address netip.Addr `json:"address"`
	Parent  string     `json:"parent,omitempty"` // "" for a loopback
	// Announced: vtepd has a host route for it in FRR.
	Announced bool `json:"announced"`
}

// Loopback is a loopback of the fabric, with a condition of its own: all of them ready is what ready means.
type Loopback struct {
	Name      string       `json:"name"`
	Role      string       `json:"role"`
	Addresses []netip.Addr `json:"addresses,omitempty"` // that are there
	Ready     bool         `json:"ready"`               // bound, up and announced
	Reason    string       `json:"reason"`              // Ready, or what it waits for in a word: PoolExhausted, NotMade, NotAnnounced, …
	Message   string       `json:"message,omitempty"`
}

// VNI is a live L2 VNI.
type VNI struct {
	VNI    uint32     `json:"vni"`
	Device string     `json:"device"`
	VTEP   netip.Addr `json:"vtep"`
	Bridge string     `json:"bridge"`
	VLAN   uint16     `json:"vlan,omitempty"`
}

// Board holds the Snapshot. Its zero value is ready to use.
type Board struct {
	mu      sync.Mutex
	now     Snapshot
	changed chan struct{}
}

// Update lets f change the snapshot.
func (b *Board) Update(f func(*Snapshot)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.now.Condition
	f(&b.now)
	if b.now.Condition != was {
		b.now.Since = time.Now()
	}
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Get returns a copy, and a channel that is closed once there is a newer one.
func (b *Board) Get() (Snapshot, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	s := b.now
	s.Repairs.What = slices.Clone(s.Repairs.What)
	s.Messages, s.Endpoints, s.VNIs = slices.Clone(s.Messages), slices.Clone(s.Endpoints), slices.Clone(s.VNIs)
	s.Loopbacks = slices.Clone(s.Loopbacks)
	if s.Transaction != nil {
		t := *s.Transaction
		t.Phases = slices.Clone(t.Phases)
		s.Transaction = &t
	}
	return s, b.changed
}

// JSON writes the snapshot for programs.
func (s Snapshot) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(s)
}

// Text writes the snapshot for people.
func (s Snapshot) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "vtepd %s on %s: %s since %s\n", s.Version, orDash(s.Node), s.Condition, s.Since.Format(time.DateTime))
	fmt.Fprintf(t, "config\t%s\n", s.Config)
	fmt.Fprintf(t, "live\tgeneration %d, state %s\n", s.Generation, orDash(s.State))
	for _, m := range s.Messages {
		fmt.Fprintf(t, "why\t%s\n", m)
	}
	if f := s.Failure; f != nil {
		fmt.Fprintf(t, "failed\tphase %s, step %d%s: %s\n", f.Phase, f.Step, prefixed(", object ", f.Object), f.Message)
	}
	if r := s.Repairs; r.Count > 0 {
		fmt.Fprintf(t, "repairs\t%d since the start, the last at %s: %s\n", r.Count, r.Last.Format(time.DateTime), strings.Join(r.What, "; "))
	}
	if x := s.Transaction; x != nil {
		result := x.Result
		if result == "" {
			result = "running"
		}
		fmt.Fprintf(t, "transaction\tgeneration %d, %d steps, %s; swap: %d netlink batch(es) of %d changes; FRR: %d round trips\n",
			x.Generation, x.Steps, result, x.SwapBatches, x.SwapMessages, x.RoundTrips)
		for _, p := range x.Phases {
			name := string(p.Phase)
			if p.Undo {
				name = "undo " + name
			}
			fmt.Fprintf(t, "\t%s\t%s\n", name, p.Took.Round(time.Millisecond))
		}
	}
	if len(s.Endpoints) > 0 {
		fmt.Fprint(t, "\nENDPOINT\tADDRESS\tLINK\tPARENT\tANNOUNCED\n")
		for _, e := range s.Endpoints {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%t\n", e.Name, e.Address, e.Link, orDash(e.Parent), e.Announced)
		}
	}
	if len(s.Loopbacks) > 0 {
		fmt.Fprint(t, "\nLOOPBACK\tROLE\tADDRESSES\tREADY\n")
		for _, l := range s.Loopbacks {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", l.Name, l.Role, orDash(strings.Trim(fmt.Sprint(l.Addresses), "[]")), l.ready())
		}
	}
	if len(s.VNIs) > 0 {
		fmt.Fprint(t, "\nVNI\tDEVICE\tVTEP\tBRIDGE\n")
		for _, v := range s.VNIs {
			where := v.Bridge
			if v.VLAN != 0 {
				where += fmt.Sprintf(" vlan %d", v.VLAN)
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", v.VNI, v.Device, v.VTEP, where)
		}
	}
	return t.Flush()
}

func (l Loopback) ready() string {
	if l.Ready {
		return "yes"
	}
	return "no: " + l.Reason
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func prefixed(prefix, s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	return prefix + s
}
