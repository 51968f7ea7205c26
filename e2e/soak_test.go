//go:build guest

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/judge"
	"vtepd/e2e/lab"
)

// soak drops files at random moments, and kills at random moments.
type soak struct {
	*story
	rng    *rand.Rand
	reader *judge.Reader
	valid  judge.State // of the last valid file
	octet  int

	files, invalid, kills, frrKills, checks int
}

// TestSoak: whatever is dropped and killed whenever, the router ends as the last valid file has it, and vtepd doesn't grow.
// VTEPD_SOAK_FILES is how many files, VTEPD_SOAK_SEED repeats a run.
func TestSoak(t *testing.T) {
	files, seed := int(number(t, "VTEPD_SOAK_FILES", 14)), number(t, "VTEPD_SOAK_SEED", rand.Uint64())
	t.Logf("soak: seed=%d", seed)
	s := &soak{story: deploy(t), rng: rand.New(rand.NewPCG(seed, 1)), octet: 19}
	ctx := s.within(18 * time.Minute)
	s.reader = &judge.Reader{
		Leaf: s.one.Leaf, Sidecar: s.one.Sidecar, Peers: []string{"10.0.0.100"},
		Dir: filepath.Join(s.one.Sidecar.Path("/"), "var/lib/vtepd"),
	}
	s.must(s.reader.Open(ctx))
	began := time.Now()

	// First with kills; then without, so that one process sees many files.
	killed := files / 2
	for i := range killed {
		s.drop(ctx)
		s.moment(ctx)
		switch n := s.rng.IntN(10); {
		case n < 3:
			s.kill(ctx)
		case n == 3:
			s.killFRR(ctx)
		}
		if i%10 == 9 || i == killed-1 {
			s.check(ctx)
		}
	}
	first := s.use(ctx)
	for i := range files - killed {
		s.drop(ctx)
		s.moment(ctx)
		if i%10 == 9 || i == files-killed-1 {
			s.check(ctx)
			if i == 9 {
				first = s.use(ctx) // warm
			}
		}
	}
	last := s.use(ctx)
	t.Logf("soak: seed=%d files=%d invalid=%d kills=%d frr_kills=%d checks=%d in %v; first %s; last %s",
		seed, s.files, s.invalid, s.kills, s.frrKills, s.checks, time.Since(began).Round(time.Second), first, last)
	if last.fds > first.fds+2 || last.goroutines > first.goroutines+2 || last.rss > first.rss+first.rss/4+8<<10 {
		t.Errorf("it grows: first %s, last %s", first, last)
	}
}

// drop drops a file: one that can be carried out, one that has a problem, or one that is refused.
func (s *soak) drop(ctx context.Context) {
	s.Helper()
	s.files++
	s.octet = 20 + (s.octet-19)%40
	c := fabric.Config{
		Node: "leaf1", Parent: []string{"eth1", "eth2"}[s.rng.IntN(2)], Address: fabric.Prefer(fmt.Sprintf("10.0.0.%d", s.octet)),
		More: "transaction: {drain: {quiet: 200ms, limit: 2s}}\n",
	}
	for _, v := range fabric.VNIs(6) {
		if s.rng.IntN(2) == 0 {
			c.VNIs = append(c.VNIs, v)
		}
	}
	text := c.YAML()
	bad := []func(){
		func() { text = text[:s.rng.IntN(len(text)-1)+1] + "\n{" },
		func() { text += "vnid: {}\n" },
		func() { text = strings.Replace(text, "version: 1", "version: 7", 1) },
		func() { c.Parent = "eth9"; text = c.YAML() },
		func() { c.Address = "{static: 10.0.1.1}"; text = c.YAML() },
		func() { text = "" },
	}
	if n := s.rng.IntN(2 * len(bad)); n < len(bad) {
		s.invalid++
		bad[n]()
	} else {
		s.valid = judge.State{Node: "leaf1", Endpoint: "vtep0", Pool: "vteps", Parent: c.Parent, Address: fabric.Addr(fmt.Sprintf("10.0.0.%d", s.octet)), VNIs: c.VNIs}
	}
	s.must(s.one.Drop(text))
}

// moment lets a random time pass: most of a transaction, a part of it, or none.
func (s *soak) moment(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(s.rng.IntN(4000)) * time.Millisecond):
	}
}

func (s *soak) kill(ctx context.Context) {
	s.Helper()
	s.kills++
	s.one.Proc.Kill()
	s.must(s.one.Start(ctx))
}

func (s *soak) killFRR(ctx context.Context) {
	s.Helper()
	s.frrKills++
	s.must(s.one.Leaf.KillDaemon("bgpd"))
	s.moment(ctx)
	s.must(s.one.Leaf.StartDaemon(ctx, "bgpd"))
}

// check drops the last valid file once more, for it may have been replaced before anybody saw it, and holds the router to it.
func (s *soak) check(ctx context.Context) {
	s.Helper()
	s.checks++
	if !s.valid.Address.IsValid() {
		s.drop(ctx)
		s.check(ctx)
		return
	}
	c := fabric.Config{Node: "leaf1", Parent: s.valid.Parent, Address: fabric.Prefer(s.valid.Address.String()), VNIs: s.valid.VNIs, More: fmt.Sprintf("# %d\n", s.files)}
	s.must(s.one.Drop(c.YAML()))
	_, err := s.one.Settle(ctx, "has "+s.valid.String(), func(n status.Snapshot) error {
		if err := fabric.Has(n, s.valid.Address.String(), s.valid.VNIs); err != nil {
			return err
		}
		if n.Condition != status.Idle || len(n.VNIs) != len(s.valid.VNIs) || n.Endpoints[0].Parent != s.valid.Parent {
			return fmt.Errorf("not on %s", s.valid)
		}
		return nil
	})
	s.must(err)
	s.must(s.lab.WaitBGP(ctx))
	v, err := s.reader.Judge(ctx, s.one.Proc.Pid(), s.valid)
	s.must(err)
	if !v.Clean() {
		s.Fatalf("after %d files: not %s, but %s", s.files, s.valid, v)
	}
}

// use is what a process has.
type use struct{ fds, goroutines, rss int } // rss in KiB

func (u use) String() string {
	return fmt.Sprintf("fds=%d goroutines=%d rss=%dKiB", u.fds, u.goroutines, u.rss)
}

// use measures vtepd while it rests: the lowest of a few looks, for somebody's question is a descriptor too.
func (s *soak) use(ctx context.Context) use {
	s.Helper()
	var all []use
	s.must(lab.Eventually(ctx, "measures", func(ctx context.Context) error {
		n, err := s.one.Status(ctx)
		if err != nil {
			return err
		}
		dir := fmt.Sprintf("/proc/%d/", s.one.Proc.Pid())
		fds, err := os.ReadDir(dir + "fd")
		if err != nil {
			return err
		}
		text, err := os.ReadFile(dir + "status")
		if err != nil {
			return err
		}
		u := use{fds: len(fds), goroutines: n.Goroutines}
		for line := range strings.Lines(string(text)) {
			if words := strings.Fields(line); words[0] == "VmRSS:" {
				if u.rss, err = strconv.Atoi(words[1]); err != nil {
					return lab.Final(err)
				}
			}
		}
		if all = append(all, u); len(all) < 5 {
			return fmt.Errorf("%d looks", len(all))
		}
		return nil
	}))
	return use{
		fds:        slices.MinFunc(all, func(a, b use) int { return a.fds - b.fds }).fds,
		goroutines: slices.MinFunc(all, func(a, b use) int { return a.goroutines - b.goroutines }).goroutines,
		rss:        slices.MinFunc(all, func(a, b use) int { return a.rss - b.rss }).rss,
	}
}
