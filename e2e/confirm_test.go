//go:build guest

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/status"
	"vtepd/e2e/fabric"
	"vtepd/e2e/judge"
)

// TestConfirm: a change that waits for somebody's word, under traffic, with every way that it can end.
func TestConfirm(t *testing.T) {
	s := deploy(t)
	ctx := s.within(8 * time.Minute)
	reader := &judge.Reader{
		Leaf: s.one.Leaf, Sidecar: s.one.Sidecar, Peers: []string{"10.0.0.100"},
		Dir: filepath.Join(s.one.Sidecar.Path("/"), "var/lib/vtepd"),
	}
	s.must(reader.Open(ctx))
	one := s.overlay(4)
	same := s.foreign()
	tr := s.traffic()

	vtepd := func(args ...string) {
		t.Helper()
		out, err := s.one.VTEPD(ctx, args...)
		s.must(err)
		if !strings.Contains(out, "accepted") {
			t.Errorf("vtepd %v: %s", args, out)
		}
	}
	// in holds the router to an address, by eyes of their own.
	in := func(address string) {
		t.Helper()
		v, err := reader.Judge(ctx, s.one.Proc.Pid(), judge.State{
			Node: "leaf1", Endpoint: "vtep0", Pool: "vteps", Parent: "eth1", Address: fabric.Addr(address), VNIs: one.VNIs,
		})
		s.must(err)
		if !v.Clean() {
			t.Errorf("not on %s: %s", address, v)
		}
	}
	idle := func(what, address string, words ...string) status.Snapshot {
		t.Helper()
		n, err := s.one.Settle(ctx, what, func(n status.Snapshot) error {
			if err := says(status.Idle, words...)(n); err != nil {
				return err
			}
			return fabric.Has(n, address, one.VNIs)
		})
		s.must(err)
		in(address)
		return n
	}
	file := func(address, more string) string {
		c := one
		c.Address, c.More = fabric.Prefer(address), more
		return c.YAML()
	}
	apply := func(address, confirm string) {
		t.Helper()
		s.must(s.one.Sidecar.Drop("/tmp/change.yaml", file(address, "")))
		vtepd("apply", "/tmp/change.yaml", "--confirm", confirm)
	}
	// waits until the change is proven, and holds it to both endpoints being up.
	waits := func(from, to string) (until string) {
		t.Helper()
		n, err := s.one.Settle(ctx, "waits to be confirmed", says(status.Unconfirmed, "waiting for `vtepd confirm` until "))
		s.must(err)
		out, err := s.one.Leaf.Exec(ctx, "ip", "-br", "addr", "show", "up", "type", "ipvlan")
		s.must(err)
		for _, a := range []string{from, to} {
			if !strings.Contains(out, a+"/32") {
				t.Errorf("%s is not up while %s is to be confirmed:\n%s", a, to, out)
			}
		}
		return deadline.FindString(n.Messages[0])
	}

	t.Log("applied, and confirmed")
	apply("10.0.0.21", "60s")
	waits("10.0.0.11", "10.0.0.21")
	vtepd("confirm")
	good := idle("is confirmed", "10.0.0.21")
	if _, err := s.one.VTEPD(ctx, "confirm"); err == nil || !strings.Contains(err.Error(), "nothing waits to be confirmed") {
		t.Errorf("confirmed twice: %v", err)
	}

	t.Log("applied, and nobody says a word")
	apply("10.0.0.22", "3s")
	waits("10.0.0.21", "10.0.0.22")
	idle("goes back", "10.0.0.21", "what was dropped last was undone", "not confirmed before the deadline")

	t.Log("dropped, vtepd killed while it waits, and the deadline passes")
	s.must(s.one.Drop(file("10.0.0.23", "transaction: {confirm: 25s}\n")))
	until := waits("10.0.0.21", "10.0.0.23")
	s.one.Proc.Kill()
	s.must(s.one.Start(ctx))
	if again := waits("10.0.0.21", "10.0.0.23"); again != until || again == "" {
		t.Errorf("waits until %q, and until %q after it was killed", until, again)
	}
	idle("goes back", "10.0.0.21", "not confirmed before the deadline")
	at := time.Now()
	limit, err := time.ParseInLocation(time.DateTime, until, time.Local)
	s.must(err)
	if at.Before(limit) {
		t.Errorf("went back at %s, before %s", at, limit)
	}
	t.Logf("confirm: killed while it waited, and seen to be back %v after the deadline", at.Sub(limit).Round(time.Millisecond))

	t.Log("dropped, vtepd killed while it waits, and confirmed")
	s.must(s.one.Drop(file("10.0.0.24", "transaction: {confirm: 60s}\n")))
	waits("10.0.0.21", "10.0.0.24")
	s.one.Proc.Kill()
	s.must(s.one.Start(ctx))
	waits("10.0.0.21", "10.0.0.24")
	vtepd("confirm")
	idle("is confirmed", "10.0.0.24")

	t.Log("dropped, and told to go back")
	s.must(s.one.Drop(file("10.0.0.25", "transaction: {confirm: 60s}\n")))
	waits("10.0.0.24", "10.0.0.25")
	began := time.Now()
	vtepd("rollback")
	idle("goes back", "10.0.0.24", "told to go back")
	t.Logf("confirm: seen to be rolled back %v after the word", time.Since(began).Round(time.Millisecond))

	t.Log("back to an earlier generation")
	vtepd("rollback", "--to", fmt.Sprint(good.Generation))
	idle("goes to the generation that was confirmed first", "10.0.0.21", fmt.Sprintf("rolled back to the config of generation %d", good.Generation))

	t.Log("started with a broken file")
	s.must(s.one.Proc.Stop(ctx))
	s.must(s.one.Drop("version: 1\nnode: {name: leaf1}\nvnid: {}\n"))
	s.must(s.one.Start(ctx))
	_, err = s.one.Settle(ctx, "runs on the last good config", func(n status.Snapshot) error {
		if err := says(status.Invalid, "/etc/vtepd/vtepd.yaml:3:1: vnid: ", "running on the config of generation ", "which was verified last")(n); err != nil {
			return err
		}
		return fabric.Has(n, "10.0.0.21", one.VNIs)
	})
	s.must(err)
	in("10.0.0.21")
	s.must(s.one.Drop(file("10.0.0.26", "")))
	idle("carries out the next good one", "10.0.0.26")

	s.account(tr)
	same()
}

// deadline is the time in what the status says of one.
var deadline = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
