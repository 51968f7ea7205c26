//go:build guest

// Package e2e holds the stories: a real kernel, real FRR, real BGP peers, and vtepd as its users run it.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

const topology = "../containerlab/evpn-l2.clab.yml"

// story is a deployed lab with GoBGP as its spine, and time to wait in it.
type story struct {
	*testing.T
	lab      *lab.Lab
	one, two *fabric.Side
}

// deploy makes the lab, waits for BGP, and starts vtepd at both leaves.
func deploy(t *testing.T) *story {
	t.Helper()
	s := &story{T: t, lab: lab.New(t, topology, lab.Options{GoBGP: []string{"spine"}})}
	s.one, s.two = fabric.Sides(s.lab)
	ctx := s.within(2 * time.Minute)
	s.must(s.lab.WaitBGP(ctx))
	for _, side := range []*fabric.Side{s.one, s.two} {
		s.must(side.Start(ctx))
		s.must(lab.Eventually(ctx, "vtepd's socket", func(ctx context.Context) error { _, err := side.Status(ctx); return err }))
	}
	return s
}

// within is a context for one wait. Times are bounds for a machine that hangs, not for a slow one.
func (s *story) within(d time.Duration) context.Context {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), d)
	s.Cleanup(cancel)
	return ctx
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// carry drops a file at a side and waits until it is live.
func (s *story) carry(side *fabric.Side, c fabric.Config, address string) (spent struct{ Batches, Messages, Trips, Looks uint64 }) {
	s.Helper()
	snap, err := side.Carry(s.within(3*time.Minute), c, address)
	s.must(err)
	var phases []string
	for _, p := range snap.Transaction.Phases {
		phases = append(phases, fmt.Sprintf("%s %v", p.Phase, p.Took.Round(time.Millisecond)))
	}
	s.Logf("%s: generation %d: %s; swap: %d batch(es), %d changes; %d round trips", side.Sidecar.Name, snap.Generation,
		strings.Join(phases, ", "), snap.Transaction.SwapBatches, snap.Transaction.SwapMessages, snap.Transaction.RoundTrips)
	spent.Batches, spent.Messages = snap.Transaction.SwapBatches, snap.Transaction.SwapMessages
	spent.Trips, spent.Looks = snap.Transaction.RoundTrips, snap.Transaction.Looks
	return spent
}

// overlay is the usual start: n VNIs at both leaves, hosts on two of them.
func (s *story) overlay(n int) (one fabric.Config) {
	s.Helper()
	one = fabric.Config{Node: "leaf1", Parent: "eth1", Address: fabric.Prefer("10.0.0.11"), VNIs: fabric.VNIs(n)}
	two := fabric.Config{Node: "leaf2", Parent: "eth1", Address: fabric.Prefer("10.0.0.12"), VNIs: fabric.VNIs(n)}
	s.carry(s.one, one, "10.0.0.11")
	s.carry(s.two, two, "10.0.0.12")
	s.must(s.one.Enslave(s.within(time.Minute)))
	s.must(s.two.Enslave(s.within(time.Minute)))
	return one
}

// traffic runs between the hosts from now on.
func (s *story) traffic() *lab.Traffic {
	s.Helper()
	tr, err := s.lab.StartTraffic(s.within(2*time.Minute), lab.TrafficOptions{Flows: fabric.Hosts(), Ours: "leaf1"})
	s.must(err)
	return tr
}

// account stops the traffic and holds us to what we promise: nothing lost here, and everything that the remote leaf lost
// explained.
func (s *story) account(tr *lab.Traffic) {
	s.Helper()
	s.must(tr.WaitReceived(s.within(time.Minute), 10))
	r, err := tr.Stop(s.within(time.Minute))
	s.must(err)
	s.Logf("traffic: %s", r)
	for _, l := range r.Losses {
		s.Logf("%s", l)
	}
	if r.LostHere != 0 || r.Sent == 0 {
		s.Errorf("lost_here=%d of %d", r.LostHere, r.Sent)
	}
}

// foreign remembers the operator's things, and returns what holds them against that later.
func (s *story) foreign() (same func()) {
	s.Helper()
	before, err := s.one.Foreign(s.within(time.Minute))
	s.must(err)
	return func() {
		s.Helper()
		after, err := s.one.Foreign(s.within(time.Minute))
		s.must(err)
		if before != after {
			s.Errorf("the operator's things changed: before\n%s\nafter\n%s", before, after)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }
