package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/frr"
)

// TestLineTaken: a line of FRR's gives no hint, and is missed within a second.
func TestLineTaken(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		for range 3 {
			r.frr.SetNetworks(frr.Network{Prefix: operatorsPrefix})
			r.after(glanceEvery)
			r.is(status.Idle)
			r.same(facts)
		}
		s, _ := r.board.Get()
		if s.Repairs.Count != 3 || s.Repairs.Last.IsZero() || !slices.Equal(s.Repairs.What, []string{"host route 10.255.0.1/32 is missing"}) {
			t.Errorf("%+v", s.Repairs)
		}
		// Nothing is written and one question a time is asked while nothing happens.
		r.after(glanceEvery)
		before, trips := r.writes(), r.frr.RoundTrips()
		r.after(20 * glanceEvery)
		if n := r.frr.RoundTrips() - trips; n < 19 || n > 21 {
			t.Errorf("%d round trips for 20 glances", n)
		}
		if r.writes() != before {
			t.Errorf("written:\n%s", r.writes())
		}
	})
}

// TestTheirLine: a line of the operator's in the place of ours is the operator's, and nobody quarrels about it; when it goes,
// ours comes back.
func TestTheirLine(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		ours := frr.Network{Prefix: netip.PrefixFrom(at1, 32), RouteMap: frr.Mark}
		theirs := frr.Network{Prefix: ours.Prefix}
		r.frr.SetNetworks(theirs)
		r.after(glanceEvery)
		const note = "FRR has a `network 10.255.0.1/32` line that vtepd didn't write: it is left as it is, and announces the endpoint"
		r.is(status.Idle, note)
		edits := len(r.frr.Edits())
		r.after(10 * time.Minute)
		r.is(status.Idle, note)
		if n := len(r.frr.Edits()); n != edits {
			t.Errorf("%d edits", n-edits)
		}
		// Word for word like ours: nothing to say.
		r.frr.SetNetworks(ours)
		r.after(10 * time.Minute)
		r.is(status.Idle)
		if n := len(r.frr.Edits()); n != edits {
			t.Errorf("%d edits", n-edits)
		}
		r.frr.SetNetworks()
		r.after(glanceEvery)
		r.is(status.Idle)
		if n := len(r.frr.Edits()); n != edits+1 {
			t.Errorf("%d edits", n-edits)
		}
	})
}

// TestForeignFlood: news of other people's links costs a glance each, and a parent's is looked into.
func TestForeignFlood(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		r.hint()
		trips := r.frr.RoundTrips()
		for i := range 1000 {
			r.kernel.Add(dataplane.Link{Name: fmt.Sprint("foreign", i), Kind: dataplane.Dummy, Up: true, MTU: 1500})
			r.hint()
		}
		if n := r.frr.RoundTrips() - trips; n != 1000 {
			t.Errorf("%d round trips for 1000 glances", n)
		}
		down := r.foes[0]
		down.Up = false
		r.kernel.Add(down)
		r.hint()
		r.is(status.Waiting, "FILE:4:38: endpoints.vtep0.ipvlan.parent: eth1 is down, and the endpoint with it; set it up")
	})
}

// TestFRRRestarts: an FRR that comes back line by line is written to once it is all there again.
func TestFRRRestarts(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		full, err := r.frr.Observe(t.Context(), frr.Query{Config: true, Sessions: true})
		if err != nil {
			t.Fatal(err)
		}
		operators := slices.DeleteFunc(full.Networks, func(n frr.Network) bool { return n.RouteMap == frr.Mark })
		for _, outage := range []time.Duration{0, 0, 5 * time.Minute} {
			gone := fmt.Errorf("frr: bgpd: socket x: %w", frr.ErrUnreachable)
			r.frr.SetInstance(frr.Instance{})
			r.frr.SetUnreachable(gone)
			r.hint() // of the connection that ended
			r.is(status.Waiting, gone.Error())
			edits := len(r.frr.Edits())
			r.after(outage)
			r.frr.SetUnreachable(nil)
			r.hint() // of the socket
			r.is(status.Waiting, "FRR is back, and has no `router bgp` in the default VRF, has no neighbor 10.1.0.2: waiting for its configuration")
			r.frr.SetInstance(full.Instance)
			r.after(glanceEvery)
			r.is(status.Waiting, "FRR is back, and has no neighbor 10.1.0.2: waiting for its configuration")
			r.frr.SetSessions(full.Sessions...)
			r.after(glanceEvery)
			if n := len(r.frr.Edits()); n != edits {
				t.Errorf("%d edits before it was there", n-edits)
			}
			r.frr.SetNetworks(operators...)
			r.frr.SetEVPN(true)
			r.after(glanceEvery)
			r.after(lookFirst)
			r.is(status.Idle)
			r.same(facts)
		}
		// A configuration that is another one for good is taken as it is.
		r.frr.SetUnreachable(fmt.Errorf("frr: bgpd: socket x: %w", frr.ErrUnreachable))
		r.hint()
		r.frr.SetUnreachable(nil)
		r.frr.SetSessions(frr.Session{Peer: "10.1.0.3"})
		r.frr.SetNetworks()
		r.hint()
		r.is(status.Waiting, "FRR is back, and has no neighbor 10.1.0.2: waiting for its configuration")
		r.after(patience + lookMost)
		r.is(status.Idle)
		if len(r.frr.Edits()) == 0 || !strings.Contains(r.facts(t), "10.255.0.1/32") {
			t.Error("the host route is not put back")
		}
	})
}

// TestUnseen: what FRR is still to make of links that are there is waited for, by name.
func TestUnseen(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		before := len(r.frr.Edits())
		r.frr.SetVNIs(func() []frr.VNI { return nil }) // zebra restarted
		r.after(auditEvery)
		r.is(status.Waiting, "zebra doesn't know VNI 100")
		r.frr.SetVNIs(func() []frr.VNI { return []frr.VNI{{VNI: 100, Device: "vxlan100", Local: at1}} })
		r.after(unseenLook)
		r.is(status.Idle)
		r.same(facts)
		if n := len(r.frr.Edits()); n != before {
			t.Errorf("%d edits", n-before)
		}
	})
}

// TestCreatedEVPN: a line that FRR is still to load is not made by vtepd meanwhile, and so stays the operator's.
func TestCreatedEVPN(t *testing.T) {
	for _, outage := range []time.Duration{0, 5 * time.Minute} {
		in(t, func(t *testing.T, r *running) { createdEVPN(t, r, outage) })
	}
}

func createdEVPN(t *testing.T, r *running, outage time.Duration) {
	r.write(firstVNI + "frr: {evpn: create}\n")
	r.start()
	r.is(status.Idle)
	full, err := r.frr.Observe(t.Context(), frr.Query{Config: true, Sessions: true})
	if err != nil {
		t.Fatal(err)
	}
	r.frr.SetUnreachable(fmt.Errorf("frr: bgpd: socket x: %w", frr.ErrUnreachable))
	r.hint()
	r.after(outage)
	r.frr.SetUnreachable(nil)
	r.frr.SetInstance(frr.Instance{})
	r.frr.SetInstance(full.Instance)
	r.frr.SetSessions(full.Sessions...)
	r.hint() // its neighbours are there, its address families are not
	r.is(status.Waiting, "FRR is back, and is read once more, for it may still be loading its configuration: waiting for its configuration")
	r.frr.SetEVPN(true)
	r.after(time.Minute)
	r.is(status.Idle)
	last, err := r.ports.Journal.Committed()
	if err != nil || last.State.EVPN {
		t.Errorf("advertise-all-vni is taken for vtepd's: %+v, %v", last.State, err)
	}
}

// TestTired: while somebody keeps changing things, looks are a second apart, whatever the number of hints.
func TestTired(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		l, _ := dataplane.Find(r.kernel.Links(), "vxlan100")
		l.Local = remoteVTEP
		for range freeRepairs + 2 {
			r.kernel.Add(l)
			r.hint()
			r.after(repairFirst / 2)
		}
		if s, _ := r.board.Get(); s.Condition != status.Degraded {
			t.Fatal(s.Condition)
		}
		trips := r.frr.RoundTrips()
		for range 1000 {
			r.kernel.Add(l)
			select {
			case r.hints <- struct{}{}:
			default:
			}
			r.after(10 * time.Millisecond)
		}
		// 10 s: at most 10 looks, a repair or two, and the lines as always.
		if n := r.frr.RoundTrips() - trips; n > 200 {
			t.Errorf("%d round trips in 10 s", n)
		}
		if s, _ := r.board.Get(); s.Condition != status.Degraded || !strings.Contains(s.Messages[0], "somebody else keeps changing") {
			t.Errorf("%s: %q", s.Condition, s.Messages)
		}
		n := 0
		for _, line := range r.log.took() {
			if strings.HasPrefix(line, "WARN degraded") {
				n++
			}
		}
		if s, _ := r.board.Get(); n > int(s.Repairs.Count) {
			t.Errorf("said %d times, with %d repairs", n, s.Repairs.Count)
		}
	})
}

// TestFastFoe: a writer that undoes each repair before it is proven is no reason to wait for the proof, and is a fight too.
func TestFastFoe(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.write(firstVNI)
		r.start()
		facts := r.facts(t)
		l, _ := dataplane.Find(r.kernel.Links(), "vxlan100")
		l.Local = remoteVTEP
		tried := 0
		r.kernel.OnOp(func(_ int, when fake.When, op dataplane.Op) {
			if when == fake.After && op.Verb == dataplane.Set && op.Link.Name == "vxlan100" && op.Link.Local == at1 {
				tried++
				r.kernel.Add(l)
			}
		})
		r.kernel.Add(l)
		r.hint()
		r.after(10 * time.Second)
		s, _ := r.board.Get()
		if s.Condition != status.Degraded && s.Condition != status.Running || s.Repairs.Count > 0 {
			t.Errorf("%s, %d repairs: %q", s.Condition, s.Repairs.Count, s.Messages)
		}
		r.after(30 * time.Minute)
		if tried < 10 || tried > 50 {
			t.Errorf("tried %d times in half an hour", tried)
		}
		s, _ = r.board.Get()
		if s.Condition != status.Degraded || !strings.HasPrefix(s.Messages[0], "somebody else keeps changing what is vtepd's: repaired ") {
			t.Errorf("%s: %q", s.Condition, s.Messages)
		}
		if _, err := os.Stat(filepath.Join(r.state, "journal")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a journal is left: %v", err)
		}
		r.kernel.OnOp(nil)
		r.after(repairMost + time.Second)
		r.is(status.Idle)
		r.same(facts)
	})
}

// TestBlind: who waits for something before it comes to FRR isn't woken by FRR.
func TestBlind(t *testing.T) {
	in(t, func(t *testing.T, r *running) {
		r.start()
		trips := r.frr.RoundTrips()
		r.after(time.Minute)
		if n := r.frr.RoundTrips() - trips; n > 0 {
			t.Errorf("without a config FRR was asked %d times", n)
		}
	})
}
