//go:build guest

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vtepd/alloc/memstore"
	"vtepd/daemon/history"
	"vtepd/daemon/journal"
	"vtepd/daemon/status"
	"vtepd/dataplane"
	"vtepd/dataplane/kernel"
	"vtepd/dataplane/monitor"
	"vtepd/dataplane/netns"
	"vtepd/frr"
	"vtepd/frr/frrtest"
)

// TestFlood: in a flood of news about other people's links that overruns the socket, a VXLAN and an endpoint of vtepd's are
// deleted, and put back before the daemon would have looked by itself: the flood leaves it the hints that it needs.
func TestFlood(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	open := func() *kernel.Kernel {
		k, err := kernel.Open(kernel.Options{Netns: ns})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { k.Close() })
		return k
	}
	own, eyes := open(), open()
	see := func(k *kernel.Kernel) []dataplane.Link {
		o, err := k.Observe(context.Background(), nil)
		if err != nil {
			t.Error(err)
		}
		return o.Links
	}
	ip := func(batch string) {
		err := ns.Do(func() error {
			cmd := exec.Command("ip", "-batch", "-")
			cmd.Stdin = strings.NewReader(batch)
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ip("link add foreign0 type bridge\nlink set foreign0 up\n")

	f := frrtest.New(65001, netip.MustParseAddr("10.0.0.1"))
	f.SetEVPN(true)
	f.SetPresent(func(p netip.Prefix) bool {
		return slices.ContainsFunc(see(own), func(l dataplane.Link) bool { return l.Up && slices.Contains(l.Addrs, p) })
	})
	f.SetVNIs(func() []frr.VNI { return vnisOf(see(own), true) })
	f.SetIdle(func() []frr.VNI { return vnisOf(see(own), false) })
	dir := t.TempDir()
	file := filepath.Join(dir, "config.yaml")
	const config = "version: 1\nnode: {name: r1}\nendpoints: {vtep0: {loopback: {}, address: {static: 10.0.0.11}}}\nvnis: {100: {endpoint: vtep0}}\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	news, err := monitor.Open(monitor.Options{Netns: ns, ReadBuffer: 1})
	if err != nil {
		t.Fatal(err)
	}
	board := &status.Board{}
	d := New(Options{
		Ports:  Ports{Kernel: own, FRR: f, Ledger: ledgerOn(memstore.New().Open()), Journal: journal.In(filepath.Join(dir, "state"))},
		Config: file, Hints: news.C, History: history.In(filepath.Join(dir, "history")), Board: board, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- news.Run(ctx) }()
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	settled := func(what string, repairs uint64, until time.Time) status.Snapshot {
		t.Helper()
		limit := time.After(time.Until(until))
		for {
			s, changed := board.Get()
			if s.Condition == status.Idle && s.Generation > 0 && s.Repairs.Count >= repairs {
				return s
			}
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("%s: %s, %d repairs: %q", what, s.Condition, s.Repairs.Count, s.Messages)
			}
		}
	}
	endpoint := settled("the first file", 0, time.Now().Add(2*time.Minute)).Endpoints[0].Link
	unaided := time.Now().Add(auditEvery - 10*time.Second) // until then no audit can have helped
	before := see(eyes)

	const events = 10_000
	var flood strings.Builder
	for i := range events {
		fmt.Fprintf(&flood, "link set foreign0 alias n%d\n", i)
		switch i {
		case events / 2:
			fmt.Fprintln(&flood, "link del vxlan100")
		case events * 3 / 4:
			fmt.Fprintf(&flood, "link del %s\n", endpoint)
		}
	}
	began, trips := time.Now(), f.RoundTrips()
	ip(flood.String())
	took := time.Since(began)
	s := settled("repaired", 1, unaided)
	var last []string
	for {
		now := see(eyes)
		last = nil
		for _, l := range before {
			g, ok := dataplane.Find(now, l.Name)
			if !ok || !g.Same(l) {
				last = append(last, fmt.Sprintf("%s: %v", l, l.Diff(g)))
			}
		}
		if len(last) == 0 {
			break
		}
		if time.Now().After(unaided) {
			t.Fatal(errors.New(strings.Join(last, "\n")))
		}
		_, changed := board.Get()
		select {
		case <-changed:
		case <-time.After(50 * time.Millisecond):
		}
	}
	s, _ = board.Get()
	t.Logf("flood: %d events in %v, %d overruns; %d repairs, the last %v after the flood began; %d round trips", events, took.Round(time.Millisecond),
		news.Overruns(), s.Repairs.Count, s.Repairs.Last.Sub(began).Round(time.Millisecond), f.RoundTrips()-trips)
	if news.Overruns() == 0 {
		t.Error("no overrun: the buffer isn't small")
	}
}
