// Package plan turns an observed State and a desired State into a Plan: an ordered list of steps, each with its undo as
// data. It is pure: daemon/txn executes what it says.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vtepd/alloc"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

// Phase is a part of a transaction; the order is the order of Phases.
type Phase string

// The phases. Up to and with Confirm a failure undoes everything; Retire is the one point of no return.
const (
	Claim    Phase = "claim"
	Stage    Phase = "stage"
	Expose   Phase = "expose"
	Announce Phase = "announce"
	Swap     Phase = "swap"
	Verify   Phase = "verify"
	Confirm  Phase = "confirm"
	Drain    Phase = "drain"
	Retire   Phase = "retire"
)

// Phases are all of them in order.
var Phases = []Phase{Claim, Stage, Expose, Announce, Swap, Verify, Confirm, Drain, Retire}

// Plan is how a router gets from Old to New.
type Plan struct {
	Generation  uint64       `json:"generation"`
	Router      string       `json:"router"` // whose claims Old and New hold
	Old         state.State  `json:"old"`    // as observed
	New         state.State  `json:"new"`    // as desired
	Steps       []Step       `json:"steps,omitempty"`
	Disruptions []Disruption `json:"disruptions,omitempty"`
	Notes       []string     `json:"notes,omitempty"` // what the plan leaves alone, and why
	// Dropped is the fingerprint of the files that were there when the plan was carried out, for who takes it up again.
	Dropped string `json:"dropped,omitempty"`
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Steps) == 0 }

// Step is one entry of the journal: Do is done after the journal says that it begins; Undo is the inverse, nil for a step
// that changes nothing. Both are idempotent.
type Step struct {
	Phase Phase   `json:"phase"`
	Do    Action  `json:"do"`
	Undo  *Action `json:"undo,omitempty"`
}

// Action is one thing to do: exactly one field is set, or Attach, Kernel and Check, or Kernel, Await and Drain, done in this order.
type Action struct {
	Acquire   []alloc.Proposal `json:"acquire,omitempty"`   // take these values
	Unacquire []alloc.Proposal `json:"unacquire,omitempty"` // the inverse: the ledger as it was
	Release   []state.Claim    `json:"release,omitempty"`   // give back what is not needed any more
	Stage     *Shadow          `json:"stage,omitempty"`
	// Detach has CNI plugins take links away, Attach has them made; Check has the plugins say that they are as they were made.
	Detach  []dataplane.Attachment `json:"detach,omitempty"`
	Attach  []dataplane.Attachment `json:"attach,omitempty"`
	Kernel  []dataplane.Op         `json:"kernel,omitempty"` // one batch
	Check   []dataplane.Attachment `json:"check,omitempty"`
	FRR     []frr.Edit             `json:"frr,omitempty"`
	Await   *Await                 `json:"await,omitempty"`
	Confirm *Confirmation          `json:"confirm,omitempty"`
	Drain   *Drained               `json:"drain,omitempty"`
}

// Shadow is what is made in the shadow namespace.
type Shadow struct {
	Links  []dataplane.Link `json:"links,omitempty"`  // endpoints that Expose will move
	Proofs []dataplane.Link `json:"proofs,omitempty"` // VXLANs made there only to see that the kernel takes them
}

// Await is a condition to wait for, at most Plan-wide timeout long; exactly the fields that are set must hold.
type Await struct {
	// Announced: each prefix is originated here and sent to every established peer of its family.
	Announced []netip.Prefix `json:"announced,omitempty"`
	// Reachable: the remote VTEPs that answer a ping from Old answer one from New.
	Reachable []Move `json:"reachable,omitempty"`
	// State: the kernel and FRR's own lines are exactly this, Retiring aside; every VXLAN in it is in zebra with its VTEP,
	// and in BGP as a type-3 route with it as next hop.
	State    *state.State `json:"state,omitempty"`
	Retiring *state.State `json:"retiring,omitempty"`
	// Own are host routes that count as vtepd's beside those of State: one that is still there is a leftover.
	Own []netip.Prefix `json:"own,omitempty"`
	// OwnID is the same for a router id.
	OwnID netip.Addr `json:"ownID,omitzero"`
	// VTEPs: each of these VXLANs is in zebra with its local address, and in BGP as a type-3 route that was sent to every
	// established peer.
	VTEPs []dataplane.Link `json:"vteps,omitempty"`
	// Scouts are the same, for a sixth of that timeout once all else holds: a peer that a policy keeps them from is never sent them.
	Scouts []dataplane.Link `json:"scouts,omitempty"`
	// Gone: BGP originates no type-3 route for these VNIs.
	Gone []uint32 `json:"gone,omitempty"`
}

// Move is one address replaced by another.
type Move struct {
	Old netip.Addr `json:"old"`
	New netip.Addr `json:"new"`
}

// Confirmation waits for somebody's word that the change is good, until a deadline that is kept on disk.
type Confirmation struct {
	Wait time.Duration `json:"wait"`
}

// Drained waits until none of Links has received a packet for Quiet, at most Limit.
type Drained struct {
	Links []string      `json:"links"`
	Quiet time.Duration `json:"quiet"`
	Limit time.Duration `json:"limit"`
}

// Disruption is something that the plan can't do without interrupting it.
type Disruption struct {
	Object string `json:"object"`
	// Why is what is interrupted, and for how long at most; where no time can be given, until what happens.
	Why string `json:"why"`
}

func (d Disruption) String() string { return d.Object + ": " + d.Why }

// Input is what Compute needs beside the two states.
type Input struct {
	Generation uint64
	Router     string
	ASN        uint32 // of FRR's instance
	Drain      Drained
	Confirm    time.Duration // 0: nobody is asked
	// Timeout is how long a swap has to be proven, and Undo how long the way back has when it isn't: as long as that what a
	// disruption interrupts can be away.
	Timeout, Undo time.Duration
	// Proposals are the ledger's answers that the claims of the desired state come from.
	Proposals []alloc.Proposal
	// Links are all of the router's namespace: whose ports are on our bridges.
	Links []dataplane.Link
	// Sessions and RouterID are FRR's: who loses a session when an address goes.
	Sessions []frr.Session
	RouterID netip.Addr
	// Configured: the router id is, so that FRR doesn't choose another one when its address goes.
	Configured bool
	// Stale are attachments that have a record and aren't whole, or whose link isn't vtepd's any more.
	Stale []dataplane.Attachment
	// Drifted are attachments that are there and whose CHECK fails: they are made anew.
	Drifted []dataplane.Attachment
	// VNIs are those that the kernel or FRR knows of, from anybody, which a scout must not have; none: no scouts are sent.
	VNIs []uint32
	// MapShared: a line that isn't vtepd's uses the route map too, so the map is never removed.
	MapShared bool
}

// The groups of a generation. They are numbers that nobody takes by chance; the low two bits tell what is in it.
const (
	groupBase      = 0x76000000
	groupVXLAN     = 0 // new VXLANs
	groupBridge    = 1 // new bridges: they go up last
	groupEndpoint  = 2
	groupRetire    = 3 // VXLANs and bridges that go
	groupsPerGen   = 4
	groupGenBits   = 20
	groupGenModulo = 1 << groupGenBits
)

func group(gen uint64, kind uint32) uint32 {
	return groupBase + uint32(gen%groupGenModulo)*groupsPerGen + kind
}

// NewestGeneration is the highest generation that made one of vtepd's links, 0 where there is none: the next one must be
// higher even when its record was lost, or a group message would hit live links.
func NewestGeneration(links []dataplane.Link) uint64 {
	var newest uint64
	for _, l := range links {
		if l.Ours() && l.Group >= groupBase && l.Group < groupBase+groupGenModulo*groupsPerGen {
			newest = max(newest, uint64((l.Group-groupBase)/groupsPerGen))
		}
	}
	return newest
}

// diff is what changes between two states, by what happens to it.
type diff struct {
	acquire, release []state.Claim
	addEndpoints     []dataplane.Link
	delEndpoints     []dataplane.Link
	addBridges       []dataplane.Link
	delBridges       []dataplane.Link
	addVXLANs        []dataplane.Link
	delVXLANs        []dataplane.Link
	restore          []change // endpoints that lack something
	readdress        []change // loopbacks that lose an address
	handovers        []handover
	stale            []dataplane.Attachment
	routerID         bool
	set              []change // in place
	replace          []change // the old must go first
	addRoutes        []netip.Prefix
	delRoutes        []netip.Prefix
	scouts           []scout
}

type change struct{ old, new dataplane.Link }

// handover replaces a link by another that has the same address on the same parent, which holds an address only once. A dummy has
// the address in between: what comes for it while no ipvlan has it, the parent passes up to it.
type handover struct{ old, new, hold dataplane.Link }

func newHandover(o, n dataplane.Link) handover {
	_, name, _ := strings.Cut(n.Owner, "/")
	hold := dataplane.Link{
		Name: "hold" + n.Name[strings.LastIndex(n.Name, "-"):], Kind: dataplane.Dummy, Owner: state.HoldOwner + name, Up: true, Addrs: n.Addrs,
	}
	return handover{old: o, new: n, hold: hold}
}

// handsOver reports whether n can only come once o is gone, both being of one endpoint.
func handsOver(o, n dataplane.Link) bool {
	return o.Kind == dataplane.IPVLAN && n.Kind == dataplane.IPVLAN && o.Owner == n.Owner && o.Parent == n.Parent && o.ParentNetns == n.ParentNetns &&
		slices.ContainsFunc(n.Addrs, func(p netip.Prefix) bool { return slices.Contains(o.Addrs, p) })
}

// scout is a VXLAN on an address that others are to know as a next hop, with a bridge of its own, without which FRR announces none.
type scout struct{ vxlan, bridge dataplane.Link }

// scouts are one for each address that VXLANs leave or come to and that no other VXLAN is on meanwhile; they are there from before
// the swap until retire. bgpd counts the next hop of an EVPN route as unreachable until zebra has answered for it, and forgets the
// answer with the last route that has it. A remote on FRR 10.3 to which the routes of a VNI come with a next hop that is new to it
// deletes every MAC, and adds them again when zebra has answered: for milliseconds, or on a busy router for half a second, it drops
// what it has for them. With a type-3 route of a VNI that nobody uses it has asked before, and changes every MAC in place, there and
// back.
func scouts(a, b state.State, d diff, in Input) []scout {
	if len(in.VNIs) == 0 {
		return nil
	}
	taken := slices.Concat(in.VNIs, vnis(b.VXLANs()))
	stays := func(l dataplane.Link) bool {
		o, ok := dataplane.Find(a.Links, l.Name)
		return ok && o.Up && l.Up && o.Local == l.Local
	}
	var known []netip.Addr
	for _, l := range b.VXLANs() {
		if stays(l) {
			known = append(known, l.Local)
		}
	}
	var out []scout
	vni := uint32(lastVNI)
	for _, m := range moves(d) {
		i := slices.IndexFunc(b.Links, func(l dataplane.Link) bool { return l.Kind == dataplane.VXLAN && l.Local == m.New })
		for _, on := range []netip.Addr{m.Old, m.New} {
			if slices.Contains(known, on) {
				continue
			}
			known = append(known, on)
			for slices.Contains(taken, vni) {
				vni--
			}
			// 15 characters at most, and no name of an earlier generation's.
			name, owner := fmt.Sprintf("scout%04x-%x", in.Generation&0xffff, len(out)), fmt.Sprintf("scout/%d", vni)
			out = append(out, scout{
				vxlan:  dataplane.Link{Name: name, Kind: dataplane.VXLAN, Owner: owner, Up: true, Master: "br" + name, VNI: vni, Port: b.Links[i].Port, Local: on, NeighSuppress: true},
				bridge: dataplane.Link{Name: "br" + name, Kind: dataplane.Bridge, Owner: owner, Up: true},
			})
			vni--
		}
	}
	return out
}

// lastVNI is the greatest there is (RFC 7348, section 5). Scouts take the greatest that are free.
const lastVNI = 1<<24 - 1

// scoutLinks are the links of the scouts, in the order in which they are deleted.
func (d diff) scoutLinks() []dataplane.Link {
	var out []dataplane.Link
	for _, s := range d.scouts {
		out = append(out, s.vxlan, s.bridge)
	}
	return out
}

// inPlace reports whether Set can make old into new.
func (c change) inPlace() bool {
	o, n := c.old, c.new
	return o.Kind == n.Kind && o.Owner == n.Owner && o.VNI == n.VNI && o.Port == n.Port && o.Parent == n.Parent &&
		o.ParentNetns == n.ParentNetns && o.Mode == n.Mode && o.VLANAware == n.VLANAware &&
		(!o.Local.IsValid() || o.Local.Is4() == n.Local.Is4())
}

func compare(a, b state.State) diff {
	var d diff
	d.acquire = missing(b.Claims, a.Claims)
	d.release = missing(a.Claims, b.Claims)
	d.addRoutes = missing(b.Routes, a.Routes)
	d.delRoutes = missing(a.Routes, b.Routes)
	for _, n := range b.Links {
		o, ok := dataplane.Find(a.Links, n.Name)
		attachment, attached := b.Attachment(n.Name)
		switch c := (change{o, n}); {
		case ok && attached && !slices.Contains(a.Attachments, attachment):
			d.handovers = append(d.handovers, newHandover(o, n))
		case !ok && n.Kind == dataplane.VXLAN:
			d.addVXLANs = append(d.addVXLANs, n)
		case !ok && n.Kind == dataplane.Bridge:
			d.addBridges = append(d.addBridges, n)
		case !ok:
			d.addEndpoints = append(d.addEndpoints, n)
		case o.Same(n):
		case c.inPlace() && state.IsLoopback(n) && len(missing(o.Addrs, n.Addrs)) > 0:
			d.readdress = append(d.readdress, c)
		case c.inPlace() && state.IsEndpoint(n):
			d.restore = append(d.restore, c)
		case c.inPlace():
			d.set = append(d.set, c)
		default:
			d.replace = append(d.replace, c)
		}
	}
	for _, o := range a.Links {
		if _, ok := dataplane.Find(b.Links, o.Name); ok {
			continue
		}
		switch o.Kind {
		case dataplane.VXLAN:
			d.delVXLANs = append(d.delVXLANs, o)
		case dataplane.Bridge:
			d.delBridges = append(d.delBridges, o)
		default:
			d.delEndpoints = append(d.delEndpoints, o)
		}
	}
	for _, n := range d.addEndpoints {
		for _, o := range d.delEndpoints {
			if handsOver(o, n) {
				d.handovers = append(d.handovers, newHandover(o, n))
			}
		}
	}
	d.routerID = a.RouterID != b.RouterID
	return d
}

// handed reports whether a link comes or goes by a handover.
func (d diff) handed(l dataplane.Link) bool {
	return slices.ContainsFunc(d.handovers, func(h handover) bool { return h.old.Name == l.Name || h.new.Name == l.Name })
}

// split divides endpoints that don't come or go by a handover into those that vtepd makes itself and those that plugins make, by s.
func (d diff) split(endpoints []dataplane.Link, s state.State) (own []dataplane.Link, attached []dataplane.Attachment) {
	for _, l := range endpoints {
		a, ok := s.Attachment(l.Name)
		switch {
		case d.handed(l):
		case ok:
			attached = append(attached, a)
		default:
			own = append(own, l)
		}
	}
	return own, attached
}

func (d diff) holds() []dataplane.Link {
	var out []dataplane.Link
	for _, h := range d.handovers {
		out = append(out, h.hold)
	}
	return out
}

func missing[T comparable](from, in []T) []T {
	var out []T
	for _, x := range from {
		if !slices.Contains(in, x) {
			out = append(out, x)
		}
	}
	return out
}

// Compute is the plan from the observed state a to the desired state b; it is empty when they are the same.
func Compute(a, b state.State, in Input) Plan {
	a, b = a.Normal(), b.Normal()
	p := Plan{Generation: in.Generation, Router: in.Router, Old: a, New: b}
	d := compare(a, b)
	for _, s := range in.Stale {
		if _, ok := b.Attachment(s.Link); !ok { // one that is wanted is made anew, which takes away what is left first
			d.stale = append(d.stale, s)
		}
	}
	for _, x := range in.Drifted {
		if n, ok := dataplane.Find(b.Links, x.Link); ok && slices.Contains(a.Attachments, x) && slices.Contains(b.Attachments, x) {
			o, _ := dataplane.Find(a.Links, x.Link)
			d.restore = slices.DeleteFunc(d.restore, func(c change) bool { return c.new.Name == n.Name })
			d.handovers = append(d.handovers, newHandover(o, n))
		}
	}
	d.scouts = scouts(a, b, d, in)
	p.Disruptions = disruptions(a, b, d, in)
	for _, step := range [][]Step{claim(d, in), stage(b, d), expose(a, b, d, in), announce(a, b, d, in), swap(d, in), verify(a, b, d), confirm(in), drain(a, d, in), retire(a, b, d, in)} {
		p.Steps = append(p.Steps, step...)
	}
	if !d.any() && a.EVPN == b.EVPN {
		p.Steps = nil
	}
	return p
}

func (d diff) any() bool {
	return len(d.acquire)+len(d.release)+len(d.addEndpoints)+len(d.delEndpoints)+len(d.addBridges)+len(d.delBridges)+
		len(d.addVXLANs)+len(d.delVXLANs)+len(d.restore)+len(d.set)+len(d.replace)+len(d.addRoutes)+len(d.delRoutes)+
		len(d.readdress)+len(d.handovers)+len(d.stale) > 0 || d.routerID
}

// one is the list of a step, or none when the action has nothing to do.
func one(phase Phase, do Action, undo *Action) []Step {
	if do.nothing() {
		return nil
	}
	return []Step{{Phase: phase, Do: do, Undo: undo}}
}

func (a Action) nothing() bool {
	return len(a.Acquire)+len(a.Unacquire)+len(a.Release)+len(a.Kernel)+len(a.FRR)+len(a.Attach)+len(a.Detach)+len(a.Check) == 0 && a.Stage == nil && a.Await == nil && a.Confirm == nil && a.Drain == nil
}

func claim(d diff, in Input) []Step {
	var take []alloc.Proposal
	for _, p := range in.Proposals {
		if slices.Contains(d.acquire, state.ClaimOf(p)) {
			take = append(take, p)
		}
	}
	return one(Claim, Action{Acquire: take}, &Action{Unacquire: take})
}

// stage makes the endpoints, and a proof of every VXLAN that is new or changes. The proof stands alone: its bridge is
// proven by making it.
func stage(b state.State, d diff) []Step {
	proof := func(l dataplane.Link) dataplane.Link {
		l.Master, l.VLAN, l.NeighSuppress = "", 0, false
		return l
	}
	own, _ := d.split(d.addEndpoints, b)
	sh := Shadow{Links: withGroup(slices.Concat(own, d.holds()), 0)}
	for _, l := range d.addVXLANs {
		sh.Proofs = append(sh.Proofs, proof(l))
	}
	for _, c := range slices.Concat(d.set, d.replace) {
		if c.new.Kind == dataplane.VXLAN {
			sh.Proofs = append(sh.Proofs, proof(c.new))
		}
	}
	if len(sh.Links)+len(sh.Proofs) == 0 {
		return nil
	}
	return one(Stage, Action{Stage: &sh}, nil)
}

func withGroup(links []dataplane.Link, g uint32) []dataplane.Link {
	out := slices.Clone(links)
	for i := range out {
		out[i].Group = g
	}
	return out
}

func ops(verb dataplane.Verb, links []dataplane.Link) []dataplane.Op {
	var out []dataplane.Op
	for _, l := range links {
		out = append(out, dataplane.Op{Verb: verb, Link: l})
	}
	return out
}

// expose brings the endpoints in, and makes bridges and VXLANs, down. The EVPN instance comes before any VXLAN appears:
// bgpd can crash otherwise (FRR issue 22851).
func expose(a, b state.State, d diff, in Input) []Step {
	var steps []Step
	if b.EVPN && !a.EVPN {
		steps = one(Expose,
			Action{FRR: []frr.Edit{{Verb: frr.AddEVPN, ASN: in.ASN}}},
			&Action{FRR: []frr.Edit{{Verb: frr.RemoveEVPN, ASN: in.ASN}}})
	}
	own, attached := d.split(d.addEndpoints, b)
	endpoints := withGroup(slices.Concat(own, d.holds()), group(in.Generation, groupEndpoint))
	steps = append(steps, one(Expose,
		Action{Kernel: ops(dataplane.Expose, endpoints)},
		&Action{Kernel: ops(dataplane.Delete, endpoints)})...)
	var mend, unmend []dataplane.Op
	for _, c := range d.readdress {
		both := c.new
		both.Addrs = dataplane.SortedAddrs(slices.Concat(c.old.Addrs, c.new.Addrs))
		mend = append(mend, dataplane.Op{Verb: dataplane.Set, Link: both})
		unmend = append(unmend, dataplane.Op{Verb: dataplane.Set, Link: c.old})
	}
	for _, c := range d.restore {
		mend = append(mend, dataplane.Op{Verb: dataplane.Set, Link: c.new})
		unmend = append(unmend, dataplane.Op{Verb: dataplane.Set, Link: c.old})
	}
	steps = append(steps, one(Expose, Action{Kernel: mend}, &Action{Kernel: unmend})...)
	steps = append(steps, attach(attached, in)...)
	steps = append(steps, handOver(a, b, d, in)...)
	bridges, vxlans := group(in.Generation, groupBridge), group(in.Generation, groupVXLAN)
	return append(steps, one(Expose,
		Action{Kernel: slices.Concat(
			ops(dataplane.Create, withGroup(d.addBridges, bridges)),
			ops(dataplane.Create, withGroup(d.addVXLANs, vxlans)))},
		&Action{Kernel: []dataplane.Op{
			{Verb: dataplane.GroupDelete, Group: vxlans},
			{Verb: dataplane.GroupDelete, Group: bridges},
		}})...)
}

// attach has plugins make links, puts vtepd's alias on them, which holds them against what they shall be, and has the plugins
// check them.
func attach(as []dataplane.Attachment, in Input) []Step {
	return one(Expose, attaching(as, group(in.Generation, groupEndpoint)), &Action{Detach: as})
}

func attaching(as []dataplane.Attachment, g uint32) Action {
	do := Action{Attach: as, Check: as}
	for _, a := range as {
		l := a.AsLink()
		l.Group = g
		do.Kernel = append(do.Kernel, dataplane.Op{Verb: dataplane.Adopt, Link: l})
	}
	return do
}

// handOver takes the old links away, while the dummies have their addresses, and makes the new ones.
func handOver(a, b state.State, d diff, in Input) []Step {
	var del, undel, add, unadd []dataplane.Op
	var detach, attached []dataplane.Attachment
	for _, h := range d.handovers {
		create := func(l dataplane.Link) []dataplane.Op {
			return []dataplane.Op{{Verb: dataplane.Create, Link: l}, {Verb: dataplane.Set, Link: l}}
		}
		if old, ok := a.Attachment(h.old.Name); ok {
			detach = append(detach, old)
		} else {
			del = append(del, dataplane.Op{Verb: dataplane.Delete, Link: h.old})
			undel = append(undel, create(h.old)...)
		}
		if n, ok := b.Attachment(h.new.Name); ok {
			attached = append(attached, n)
			continue
		}
		l := h.new
		l.Group = group(in.Generation, groupEndpoint)
		add = append(add, create(l)...)
		unadd = append(unadd, dataplane.Op{Verb: dataplane.Delete, Link: l})
	}
	again := attaching(detach, 0)
	return slices.Concat(
		one(Expose, Action{Kernel: del}, &Action{Kernel: undel}),
		one(Expose, Action{Detach: detach}, &again),
		one(Expose, Action{Kernel: add}, &Action{Kernel: unadd}),
		attach(attached, in),
	)
}

// announce puts the new host routes beside the old ones, sends the scouts, and waits until the peers were sent all of that and
// the remote VTEPs know the way back.
func announce(a, b state.State, d diff, in Input) []Step {
	var do, undo []frr.Edit
	if d.routerID && b.RouterID.IsValid() {
		e := frr.Edit{Verb: frr.SetRouterID, ASN: in.ASN, Prefix: netip.PrefixFrom(b.RouterID, 32), Was: a.RouterID}
		do, undo = append(do, e), append(undo, e.Inverse())
	}
	for _, r := range d.addRoutes {
		do = append(do, frr.Edit{Verb: frr.AddNetwork, ASN: in.ASN, Prefix: r})
		undo = append(undo, frr.Edit{Verb: frr.RemoveNetwork, ASN: in.ASN, Prefix: r})
	}
	if len(d.addRoutes) > 0 {
		do = slices.Insert(do, 0, frr.Edit{Verb: frr.AddRouteMap, ASN: in.ASN})
		if len(a.Routes) == 0 && !in.MapShared {
			undo = append(undo, frr.Edit{Verb: frr.RemoveRouteMap, ASN: in.ASN})
		}
	}
	steps := one(Announce, Action{FRR: do}, &Action{FRR: undo})
	w := Await{Announced: d.addRoutes, Reachable: moves(d)}
	var send []dataplane.Op
	for _, s := range d.scouts {
		send = append(send, ops(dataplane.Create, []dataplane.Link{s.bridge, s.vxlan})...)
		send = append(send, ops(dataplane.Set, []dataplane.Link{s.vxlan, s.bridge})...)
		w.Scouts = append(w.Scouts, s.vxlan)
	}
	steps = append(steps, one(Announce, Action{Kernel: send}, &Action{Kernel: ops(dataplane.Delete, d.scoutLinks())})...)
	if len(w.Announced)+len(w.Scouts)+len(w.Reachable) == 0 {
		return steps
	}
	return append(steps, one(Announce, Action{Await: &w}, nil)...)
}

// moves are the distinct changes of address among the VXLANs.
func moves(d diff) []Move {
	var out []Move
	for _, c := range slices.Concat(d.set, d.replace) {
		m := Move{c.old.Local, c.new.Local}
		if c.new.Kind == dataplane.VXLAN && m.Old.IsValid() && m.Old != m.New && m.Old.Is4() == m.New.Is4() && !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// swap is the one batch that moves the live overlay. Bridges go up last: 4,000 of them up first cost four times as much.
func swap(d diff, in Input) []Step {
	var do, undo []dataplane.Op
	add := func(o dataplane.Op, inverse ...dataplane.Op) {
		do = append(do, o)
		undo = slices.Concat(inverse, undo)
	}
	set := func(l dataplane.Link) dataplane.Op { return dataplane.Op{Verb: dataplane.Set, Link: l} }
	// A VXLAN whose place on a bridge another one takes goes down first: two of them up would make a loop.
	for _, l := range d.delVXLANs {
		if clash(l, d) {
			down := l
			down.Up = false
			add(set(down), set(l))
		}
	}
	for _, c := range d.replace {
		old, n := c.old, c.new
		add(dataplane.Op{Verb: dataplane.Delete, Link: old},
			dataplane.Op{Verb: dataplane.Create, Link: old}, set(old))
		add(dataplane.Op{Verb: dataplane.Create, Link: n}, dataplane.Op{Verb: dataplane.Delete, Link: n})
		add(set(n))
	}
	for _, c := range d.set {
		add(set(c.new), set(c.old))
	}
	if len(d.addVXLANs) > 0 {
		g := group(in.Generation, groupVXLAN)
		add(dataplane.Op{Verb: dataplane.GroupUp, Group: g}, dataplane.Op{Verb: dataplane.GroupDown, Group: g})
	}
	if len(d.addBridges) > 0 {
		g := group(in.Generation, groupBridge)
		add(dataplane.Op{Verb: dataplane.GroupUp, Group: g}, dataplane.Op{Verb: dataplane.GroupDown, Group: g})
	}
	back := Action{Kernel: undo}
	back.Await, back.Drain = goBack(d, in)
	return one(Swap, Action{Kernel: do}, &back)
}

// goBack is what follows the inverse of a swap: remote VTEPs go on sending to the new address until BGP has told them of
// the old one again, so the new endpoint stays until then, and until it is quiet.
func goBack(d diff, in Input) (w *Await, drain *Drained) {
	var to []netip.Prefix
	for _, c := range d.set {
		if c.new.Kind == dataplane.VXLAN && c.old.Up && c.old.Local.IsValid() && c.old.Local != c.new.Local {
			if w == nil {
				w = &Await{}
			}
			w.VTEPs = append(w.VTEPs, c.old)
			to = append(to, netip.PrefixFrom(c.new.Local, c.new.Local.BitLen()))
		}
	}
	for _, l := range d.addEndpoints {
		if slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return slices.Contains(to, p) }) {
			if drain == nil {
				drain = &Drained{Quiet: in.Drain.Quiet, Limit: in.Drain.Limit}
			}
			drain.Links = append(drain.Links, l.Name)
		}
	}
	return w, drain
}

// clash reports whether a new or changed VXLAN takes the place of l on its bridge.
func clash(l dataplane.Link, d diff) bool {
	taken := func(n dataplane.Link) bool { return n.Master == l.Master && n.VLAN == l.VLAN }
	return slices.ContainsFunc(d.addVXLANs, taken) ||
		slices.ContainsFunc(d.set, func(c change) bool { return c.new.Kind == dataplane.VXLAN && taken(c.new) })
}

// verify is the plan's own diff once more, expected empty but for what retires.
func verify(a, b state.State, d diff) []Step {
	if !d.any() && a.EVPN == b.EVPN {
		return nil
	}
	retiring := state.State{
		Claims: d.release, Routes: d.delRoutes, EVPN: a.EVPN && !b.EVPN, Attachments: missing(a.Attachments, b.Attachments),
		Links: slices.Concat(d.delEndpoints, d.holds(), d.delBridges, d.delVXLANs, d.scoutLinks()),
	}
	for _, c := range d.readdress {
		retiring.Links = append(retiring.Links, dataplane.Link{Name: c.old.Name, Addrs: missing(c.old.Addrs, c.new.Addrs)})
	}
	if !b.RouterID.IsValid() {
		retiring.RouterID = a.RouterID
	}
	return one(Verify, Action{Await: &Await{State: &b, Retiring: &retiring, Reachable: moves(d)}}, nil)
}

func confirm(in Input) []Step {
	if in.Confirm == 0 {
		return nil
	}
	return one(Confirm, Action{Confirm: &Confirmation{Wait: in.Confirm}}, nil)
}

// drain waits for the endpoints whose address goes. What still comes for an address that stays is taken by the other link
// that has it.
func drain(a state.State, d diff, in Input) []Step {
	gone := leaving(a, d)
	w := in.Drain
	w.Links = names(slices.DeleteFunc(slices.Clone(d.delEndpoints), func(l dataplane.Link) bool {
		return !slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return slices.Contains(gone, p.Addr()) })
	}))
	if len(w.Links) == 0 {
		return nil
	}
	return one(Drain, Action{Drain: &w}, nil)
}

func vnis(vxlans []dataplane.Link) []uint32 {
	var out []uint32
	for _, l := range vxlans {
		out = append(out, l.VNI)
	}
	return out
}

func names(links []dataplane.Link) []string {
	var out []string
	for _, l := range links {
		out = append(out, l.Name)
	}
	return out
}

// retire is past the point of no return: its steps have no undo and are retried until done. The scouts go, VXLANs go down, FRR
// withdraws, then the host routes, then the links, then the claims.
func retire(a, b state.State, d diff, in Input) []Step {
	g := group(in.Generation, groupRetire)
	var leave []dataplane.Op
	for _, l := range slices.Concat(d.delVXLANs, d.delBridges) {
		leave = append(leave, dataplane.Op{Verb: dataplane.Regroup, Link: l, Group: g})
	}
	gone := vnis(d.delVXLANs)
	steps := one(Retire, Action{Kernel: ops(dataplane.Delete, d.scoutLinks())}, nil)
	if len(leave) > 0 {
		steps = append(steps, one(Retire, Action{Kernel: append(leave, dataplane.Op{Verb: dataplane.GroupDown, Group: g})}, nil)...)
	}
	if len(gone) > 0 {
		steps = append(steps, one(Retire, Action{Await: &Await{Gone: gone}}, nil)...)
	}
	var lines []frr.Edit
	for _, r := range d.delRoutes {
		lines = append(lines, frr.Edit{Verb: frr.RemoveNetwork, ASN: in.ASN, Prefix: r})
	}
	if a.RouterID.IsValid() && !b.RouterID.IsValid() {
		lines = append(lines, frr.Edit{Verb: frr.RemoveRouterID, ASN: in.ASN, Prefix: netip.PrefixFrom(a.RouterID, 32)})
	}
	if len(d.delRoutes) > 0 && len(b.Routes) == 0 && !in.MapShared {
		lines = append(lines, frr.Edit{Verb: frr.RemoveRouteMap, ASN: in.ASN})
	}
	steps = append(steps, one(Retire, Action{FRR: lines}, nil)...)
	own, attached := d.split(d.delEndpoints, a)
	links := ops(dataplane.Delete, slices.Concat(own, d.holds()))
	for _, c := range d.readdress {
		links = append(links, dataplane.Op{Verb: dataplane.Set, Link: c.new})
	}
	if len(leave) > 0 {
		links = slices.Insert(links, 0, dataplane.Op{Verb: dataplane.GroupDelete, Group: g})
	}
	steps = append(steps, one(Retire, Action{Kernel: links}, nil)...)
	steps = append(steps, one(Retire, Action{Detach: slices.Concat(attached, d.stale)}, nil)...)
	if a.EVPN && !b.EVPN {
		steps = append(steps, one(Retire, Action{FRR: []frr.Edit{{Verb: frr.RemoveEVPN, ASN: in.ASN}}}, nil)...)
	}
	return append(steps, one(Retire, Action{Release: d.release}, nil)...)
}

// String is the plan as `vtepd plan` prints it.
func (p Plan) String() string {
	if p.Empty() {
		return "nothing to do\n"
	}
	var b strings.Builder
	for _, d := range p.Disruptions {
		fmt.Fprintf(&b, "disruptive: %s\n", d)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for i, s := range p.Steps {
		for j, line := range s.Do.Lines() {
			if j == 0 {
				fmt.Fprintf(&b, "%2d %-8s %s\n", i+1, s.Phase, line)
			} else {
				fmt.Fprintf(&b, "%11s %s\n", "", line)
			}
		}
	}
	return b.String()
}

// Lines is the action in words, one line an object.
func (a Action) Lines() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range a.Acquire {
		add("acquire %s", state.ClaimOf(p))
	}
	for _, p := range a.Unacquire {
		add("give back %s", state.ClaimOf(p))
	}
	for _, c := range a.Release {
		add("release %s", c)
	}
	if a.Stage != nil {
		for _, l := range a.Stage.Links {
			add("make in the shadow: %s %v", l, l.Addrs)
		}
		if n := len(a.Stage.Proofs); n > 0 {
			add("prove in the shadow: %d VXLANs (%s)", n, abbreviate(names(a.Stage.Proofs)))
		}
	}
	for _, x := range a.Detach {
		add("CNI DEL %s (%s)", x.Link, x.Addr)
	}
	for _, x := range a.Attach {
		add("CNI ADD %s (%s, parent %s)", x.Link, x.Addr, x.Parent)
	}
	for _, o := range a.Kernel {
		add("%s", o)
	}
	for _, x := range a.Check {
		add("CNI CHECK %s", x.Link)
	}
	for _, e := range a.FRR {
		add("%s", e)
	}
	if w := a.Await; w != nil {
		for _, r := range w.Announced {
			add("wait until %s is sent to every established peer", r)
		}
		for _, m := range w.Reachable {
			add("wait until the remote VTEPs that answer %s answer %s", m.Old, m.New)
		}
		if w.State != nil {
			add("prove the new state in the kernel, in FRR's tables and in BGP: %d links, %d VNIs, %d host routes",
				len(w.State.Links), len(w.State.VXLANs()), len(w.State.Routes))
		}
		if len(w.VTEPs) > 0 {
			add("wait until BGP has %d VNIs on their VTEPs again, and has told every established peer", len(w.VTEPs))
		}
		if len(w.Scouts) > 0 {
			add("wait a while until BGP has told every established peer of %d scouts", len(w.Scouts))
		}
		if len(w.Gone) > 0 {
			add("wait until FRR has withdrawn %d VNIs", len(w.Gone))
		}
	}
	if a.Confirm != nil {
		add("wait %s for `vtepd confirm`; without it, undo everything", a.Confirm.Wait)
	}
	if w := a.Drain; w != nil {
		add("wait until %s has received nothing for %s, at most %s", strings.Join(w.Links, ", "), w.Quiet, w.Limit)
	}
	return out
}

func abbreviate(names []string) string {
	if len(names) > 3 {
		return strings.Join(names[:2], ", ") + " … " + names[len(names)-1]
	}
	return strings.Join(names, ", ")
}
