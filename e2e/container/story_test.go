//go:build containers || containerlab

package container

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// released is vtepd's image; make makes it.
const released = "../../bin/vtepd-image.tar"

// story is what the stories of this package share: an engine, and a lab with its containers.
type story struct {
	*testing.T
	began  time.Time
	engine *engine
	lab    *lab.Lab
}

// begin starts an engine that has FRR's image and vtepd's.
func begin(t *testing.T) *story {
	t.Helper()
	w := &story{T: t, began: time.Now()}
	ctx := w.within(10 * time.Minute)
	w.engine = start(t, w.note)
	var g errgroup.Group
	g.Go(func() error { return w.engine.imports(ctx, "frr:10.3") })
	g.Go(func() error { return w.engine.load(ctx, released) })
	w.must(g.Wait())
	w.note("images are in")
	return w
}

// note says what happens, with the seconds since the start.
func (w *story) note(format string, args ...any) {
	w.Logf("%6.1fs %s", time.Since(w.began).Seconds(), strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

func (w *story) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), d)
	w.Cleanup(cancel)
	return ctx
}

func (w *story) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// said prints what a container said last.
func (w *story) said(ctx context.Context, name string) {
	w.Logf("%s says:", name)
	err := w.engine.logs(ctx, name, false, func(line string) bool {
		w.Logf("  %s", line)
		return true
	})
	if err != nil {
		w.Log(err)
	}
}

// settled waits until vtepd is at rest with vtep0 on an address.
func (w *story) settled(s *fabric.Side, vnis []int, address string) status.Snapshot {
	w.Helper()
	n, err := s.Settle(w.within(4*time.Minute), "is at rest", func(n status.Snapshot) error {
		if n.Condition != status.Idle {
			return errors.New("not at rest")
		}
		return fabric.Has(n, address, vnis)
	})
	w.must(err)
	w.note("%s: vtepd %s at rest on %s, generation %d", s.Leaf.Name, n.Version, address, n.Generation)
	return n
}

// running waits until vtepd has begun a phase of a change.
func (w *story) running(s *fabric.Side, phase plan.Phase) {
	w.Helper()
	_, err := s.Settle(w.within(2*time.Minute), "is in phase "+string(phase), func(n status.Snapshot) error {
		switch {
		case n.Condition != status.Running:
			return errors.New("no change is under way")
		case !slices.ContainsFunc(n.Transaction.Phases, func(p status.Phase) bool { return p.Phase == phase }):
			return errors.New("not yet there")
		}
		return nil
	})
	w.must(err)
	w.note("%s: in phase %s", s.Leaf.Name, phase)
}

func (w *story) traffic(flows []lab.Flow) *lab.Traffic {
	w.Helper()
	tr, err := w.lab.StartTraffic(w.within(2*time.Minute), lab.TrafficOptions{Flows: flows, Ours: "leaf1", Interval: 50 * time.Millisecond})
	w.must(err)
	return tr
}

// account ends the traffic; nothing may have been lost here.
func (w *story) account(what string, tr *lab.Traffic) {
	w.Helper()
	w.must(tr.WaitReceived(w.within(time.Minute), 10))
	r, err := tr.Stop(w.within(time.Minute))
	w.must(err)
	w.note("%s: %s", what, r)
	for _, l := range r.Losses {
		w.Logf("%s", l)
	}
	if r.LostHere != 0 || r.Sent == 0 {
		w.Errorf("%s: lost_here=%d of %d", what, r.LostHere, r.Sent)
	}
}
