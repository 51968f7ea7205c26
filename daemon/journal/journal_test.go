package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"vtepd/daemon/journal"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
	"vtepd/dataplane"
	"vtepd/frr"
)

var values = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// somePlan has an action of most kinds.
func somePlan() plan.Plan {
	local := netip.MustParseAddr("10.255.0.11")
	route := netip.MustParsePrefix("10.255.0.11/32")
	vxlan := dataplane.Link{Name: "vxlan100", Kind: dataplane.VXLAN, Owner: "vni/100", Up: true, MTU: 1450, VNI: 100, Port: 4789, Local: local}
	to := state.State{Links: []dataplane.Link{vxlan}, Routes: []netip.Prefix{route}}
	return plan.Plan{
		Generation: 7, Router: "r1", New: to,
		Steps: []plan.Step{
			{Phase: plan.Stage, Do: plan.Action{Stage: &plan.Shadow{Proofs: []dataplane.Link{vxlan}}}},
			{
				Phase: plan.Announce,
				Do:    plan.Action{FRR: []frr.Edit{{Verb: frr.AddNetwork, ASN: 65001, Prefix: route}}},
				Undo:  &plan.Action{FRR: []frr.Edit{{Verb: frr.RemoveNetwork, ASN: 65001, Prefix: route}}},
			},
			{Phase: plan.Verify, Do: plan.Action{Await: &plan.Await{State: &to, Reachable: []plan.Move{{Old: local, New: local.Next()}}}}},
		},
		Notes: []string{"a note"},
	}
}

func do(k int) journal.Mark   { return journal.Mark{Do: &k} }
func undo(k int) journal.Mark { return journal.Mark{Undo: &k} }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// written is a journal's file with those marks, in a directory of its own.
func written(t *testing.T, marks ...journal.Mark) (dir string, raw []byte) {
	t.Helper()
	dir = t.TempDir()
	j := journal.In(dir)
	check(t, j.Begin(somePlan()))
	for _, m := range marks {
		check(t, j.Mark(m))
	}
	raw, err := os.ReadFile(filepath.Join(dir, "journal"))
	check(t, err)
	return dir, raw
}

func line(body string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body)
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "needed")
	j := journal.In(dir)
	if rec, err := j.Load(); rec != nil || err != nil {
		t.Fatalf("none is there: %v, %v", rec, err)
	}
	check(t, j.End()) // none is success
	check(t, j.Begin(somePlan()))
	marks := []journal.Mark{do(0), do(1), undo(1), {Forward: true}}
	for _, m := range marks {
		check(t, j.Mark(m))
	}
	rec, err := journal.In(dir).Load()
	check(t, err)
	if diff := cmp.Diff(&journal.Record{Plan: somePlan(), Marks: marks}, rec, values); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name, want := range map[string]fs.FileMode{dir: 0o700 | fs.ModeDir, filepath.Join(dir, "journal"): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
	check(t, j.End())
	check(t, j.End())
	if rec, err := j.Load(); rec != nil || err != nil {
		t.Errorf("ended: %v, %v", rec, err)
	}
	check(t, j.Begin(somePlan())) // and a new one can begin
}

func TestRecord(t *testing.T) {
	for _, c := range []struct {
		marks   []journal.Mark
		begun   int
		forward bool
	}{
		{nil, 0, false},
		{[]journal.Mark{do(0)}, 1, false},
		{[]journal.Mark{do(0), do(1), do(2), undo(2), undo(1)}, 3, false}, // an undo doesn't make a step unbegun
		{[]journal.Mark{do(0), do(1), {Forward: true}}, 2, true},
	} {
		r := journal.Record{Plan: somePlan(), Marks: c.marks}
		if r.Begun() != c.begun || r.Forward() != c.forward {
			t.Errorf("%v: begun %d, forward %t", c.marks, r.Begun(), r.Forward())
		}
	}
}

// TestTorn: a journal that ends at any byte is what was whole before it, and goes on from there.
func TestTorn(t *testing.T) {
	marks := []journal.Mark{do(0), do(1), undo(1), {Forward: true}}
	_, raw := written(t, marks...)
	ends := []int{} // of the lines
	for i, b := range raw {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	for n := range len(raw) + 1 {
		check(t, os.WriteFile(path, raw[:n], 0o600))
		whole := 0
		for whole < len(ends) && ends[whole] <= n {
			whole++
		}
		j := journal.In(dir)
		rec, err := j.Load()
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if whole == 0 {
			if _, err := os.Stat(path); rec != nil || !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%d bytes: nothing was done, but %v is there (%v)", n, rec, err)
			}
			continue
		}
		if diff := cmp.Diff(&journal.Record{Plan: somePlan(), Marks: append([]journal.Mark(nil), marks[:whole-1]...)}, rec, values, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%d bytes: -want +got:\n%s", n, diff)
		}
		check(t, j.Mark(undo(0)))
		again, err := journal.In(dir).Load()
		if err != nil || len(again.Marks) != whole || *again.Marks[whole-1].Undo != 0 {
			t.Fatalf("%d bytes, and a mark more: %v, %v", n, again, err)
		}
	}
}

// TestFlipped: no byte that turned into another makes a record that wasn't written.
func TestFlipped(t *testing.T) {
	marks := []journal.Mark{do(0), do(1), undo(1), {Forward: true}}
	_, raw := written(t, marks...)
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(raw)
		at := rapid.IntRange(0, len(raw)-1).Draw(t, "at")
		bad[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		rec, good, err := journal.Parse(bad)
		switch {
		case err != nil:
			if !errors.Is(err, journal.ErrDamaged) || rec != nil || good != 0 {
				t.Fatalf("%v, %d, %v", rec, good, err)
			}
		case rec == nil:
			t.Fatal("a plan with marks after it is gone without a word")
		default:
			if diff := cmp.Diff(somePlan(), rec.Plan, values); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(marks[:len(rec.Marks)], rec.Marks, cmpopts.EquateEmpty()); diff != "" || len(rec.Marks) < len(marks)-2 {
				t.Fatalf("%d marks: %s", len(rec.Marks), diff)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	_, raw := written(t, do(0))
	first := string(raw[:bytes.IndexByte(raw, '\n')+1])
	for _, c := range []struct {
		name, text, want string
		is               error
	}{
		{
			"damaged middle", first + strings.Replace(line(`{"do":0}`), "0}", "1}", 1) + line(`{"do":1}`),
			"damaged: line 2 is not what was written, and lines follow it; move the file away once you have seen to the router's state",
			journal.ErrDamaged,
		},
		{
			"damaged beginning", "x" + first + line(`{"do":0}`),
			"damaged: line 1 is not what was written, and lines follow it; move the file away once you have seen to the router's state",
			journal.ErrDamaged,
		},
		{"newer", line(`{"version":2,"plan":{"generation":1}}`), "written by a newer vtepd (version 2, this one knows 1)", journal.ErrNewer},
		{"newer in a shape of its own", line(`{"version":3,"plan":["a"]}`), "written by a newer vtepd (version 3, this one knows 1)", journal.ErrNewer},
		{"not a plan", line(`{"version":1,"plan":["a"]}`), "damaged: line 1: json: cannot unmarshal array into Go struct field header.plan of type plan.Plan", journal.ErrDamaged},
		{"not JSON", line(`plan`), "damaged: line 1: invalid character 'p' looking for beginning of value", journal.ErrDamaged},
		{"a mark that isn't one", first + line(`7`), "damaged: line 2: json: cannot unmarshal number into Go value of type journal.Mark", journal.ErrDamaged},
		{"a step that the plan doesn't have", first + line(`{"do":3}`), "damaged: line 2: step 3 of 3", journal.ErrDamaged},
		{"a step before the first", first + line(`{"undo":-1}`), "damaged: line 2: step -1 of 3", journal.ErrDamaged},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "journal")
		check(t, os.WriteFile(path, []byte(c.text), 0o600))
		rec, err := journal.In(dir).Load()
		if rec != nil || err == nil || err.Error() != "journal "+path+": "+c.want || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, %v", c.name, rec, err)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != c.text {
			t.Errorf("%s: the file was changed (%v)", c.name, err)
		}
	}
}

func TestBeginTwice(t *testing.T) {
	dir, raw := written(t, do(0))
	err := journal.In(dir).Begin(somePlan())
	if want := "journal: open " + dir + "/journal: file exists"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "journal")); err != nil || !bytes.Equal(raw, kept) {
		t.Errorf("the one that was there is not what it was (%v)", err)
	}
	if err := journal.In(dir).Mark(do(1)); err == nil || err.Error() != "journal: no transaction" {
		t.Errorf("a mark without a transaction: %v", err)
	}
}

func TestCommitted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := journal.In(dir)
	if c, err := j.Committed(); err != nil || c.Generation != 0 || c.State.Hash() != (state.State{}).Hash() {
		t.Errorf("nothing yet: %v, %v", c, err)
	}
	for gen := range uint64(2) {
		want := journal.Committed{Version: journal.Version, Generation: gen + 1, State: somePlan().New}
		check(t, j.Commit(journal.Committed{Generation: gen + 1, State: somePlan().New}))
		got, err := journal.In(dir).Committed()
		check(t, err)
		if diff := cmp.Diff(want, got, values); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	path := filepath.Join(dir, "committed.json")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left beside it: %v (%v)", entries, err)
	}
	for _, c := range []struct {
		text, want string
		is         error
	}{
		{"", "damaged: unexpected end of JSON input", journal.ErrDamaged},
		{`{"version": 1, "gener`, "damaged: unexpected end of JSON input", journal.ErrDamaged},
		{`{"version": 2, "generation": 1}`, "written by a newer vtepd (version 2, this one knows 1)", journal.ErrNewer},
	} {
		check(t, os.WriteFile(path, []byte(c.text), 0o600))
		if _, err := j.Committed(); err == nil || err.Error() != "committed state "+path+": "+c.want || !errors.Is(err, c.is) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}

// TestNoDirectory: the state directory can't be made, or what should be a file is a directory.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	j := journal.In(filepath.Join(file, "state"))
	want := "state directory: mkdir " + file + ": not a directory"
	if err := j.Begin(somePlan()); err == nil || err.Error() != want {
		t.Errorf("begin: %v", err)
	}
	if err := j.Commit(journal.Committed{}); err == nil || err.Error() != want {
		t.Errorf("commit: %v", err)
	}
	if _, err := j.Load(); err == nil || err.Error() != "journal: open "+file+"/state/journal: not a directory" {
		t.Errorf("load: %v", err)
	}
	if _, err := j.Committed(); err == nil || err.Error() != "committed state: open "+file+"/state/committed.json: not a directory" {
		t.Errorf("committed: %v", err)
	}
	dir := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(dir, "journal", "x"), 0o700))
	check(t, os.MkdirAll(filepath.Join(dir, "committed.json"), 0o700))
	j = journal.In(dir)
	if err := j.Begin(somePlan()); err == nil || err.Error() != "journal: open "+dir+"/journal: file exists" {
		t.Errorf("begin: %v", err)
	}
	if _, err := j.Load(); err == nil || err.Error() != "journal: read "+dir+"/journal: is a directory" {
		t.Errorf("load: %v", err)
	}
	if err := j.End(); err == nil || err.Error() != "journal: remove "+dir+"/journal: directory not empty" {
		t.Errorf("end: %v", err)
	}
	if err := j.Commit(journal.Committed{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("commit: %v", err)
	}
}

// full makes every file of this process end at size bytes while f runs: a disk that is full, as far as write(2) is concerned.
func full(t *testing.T, size uint64, f func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var old syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: old.Max}))
	defer func() { check(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old)) }()
	f()
}

// TestFull: what doesn't fit is an error, leaves what was there, and the next that fits is fine. It runs in a process of
// its own, where the limit meets nothing else that is written.
func TestFull(t *testing.T) {
	const alone = "VTEPD_TEST_ALONE"
	if os.Getenv(alone) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFull$", "-test.count=1")
		cmd.Env = append(os.Environ(), alone+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir, raw := written(t, do(0))
	path := filepath.Join(dir, "journal")
	for room := range 10 {
		j := journal.In(dir)
		rec, err := j.Load()
		check(t, err)
		marks := len(rec.Marks)
		var failed error
		full(t, uint64(len(raw)+room), func() { failed = j.Mark(do(1)) })
		if want := "journal: write " + path + ": file too large"; failed == nil || failed.Error() != want {
			t.Fatalf("room for %d bytes: %v", room, failed)
		}
		if kept, err := os.ReadFile(path); err != nil || !bytes.Equal(kept, raw) {
			t.Fatalf("room for %d bytes: half a line is left (%v)", room, err)
		}
		check(t, j.Mark(do(2)))
		raw, err = os.ReadFile(path)
		check(t, err)
		if rec, err := journal.In(dir).Load(); err != nil || len(rec.Marks) != marks+1 {
			t.Fatalf("a mark after the one that failed: %v, %v", rec, err)
		}
	}
	for room := range uint64(len(raw) / 2) {
		if room%97 > 1 {
			continue
		}
		j := journal.In(t.TempDir())
		var failed error
		full(t, room, func() { failed = j.Begin(somePlan()) })
		if !errors.Is(failed, syscall.EFBIG) {
			t.Fatalf("begin with room for %d bytes: %v", room, failed)
		}
		if rec, err := j.Load(); rec != nil || err != nil {
			t.Fatalf("begin with room for %d bytes left %v, %v", room, rec, err)
		}
		check(t, j.Begin(somePlan()))
	}
	j := journal.In(dir)
	check(t, j.Commit(journal.Committed{Generation: 1, State: somePlan().New}))
	full(t, 40, func() {
		if err := j.Commit(journal.Committed{Generation: 2}); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("commit: %v", err)
		}
	})
	if c, err := j.Committed(); err != nil || c.Generation != 1 {
		t.Errorf("after a commit that failed: generation %d, %v", c.Generation, err)
	}
}

// FuzzParse: whatever a file holds, a record, a damage or nothing comes of it, and the good part alone gives the same.
func FuzzParse(f *testing.F) {
	first := line(`{"version":1,"plan":{"generation":7,"router":"r1","steps":[{"phase":"stage","do":{"stage":{}}},{"phase":"retire","do":{"drain":{"links":["a"]}}}]}}`)
	all := first + line(`{"do":0}`) + line(`{"undo":0}`) + line(`{"forward":true}`) + line(`{"do":1}`)
	for _, s := range []string{
		"", "\n", "x", first, all, all[:len(all)-5], strings.Replace(all, "undo", "do", 1), all + "\n", all + all,
		line(`{"version":2}`), line(`{"version":1}`) + line(`{"do":0}`), line("null") + line("null"), "00000000 \n", line(""), line(fmt.Sprint(math.MaxInt64)),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		kept := bytes.Clone(raw)
		rec, good, err := journal.Parse(raw)
		if !bytes.Equal(kept, raw) {
			t.Fatal("Parse wrote into what it read")
		}
		if err != nil {
			if rec != nil || good != 0 || !errors.Is(err, journal.ErrDamaged) && !errors.Is(err, journal.ErrNewer) {
				t.Fatalf("%v, %d, %v", rec, good, err)
			}
			return
		}
		if rec == nil {
			if good != 0 {
				t.Fatalf("nothing, but %d good bytes", good)
			}
			return
		}
		if good > len(raw) || raw[good-1] != '\n' || rec.Begun() > len(rec.Plan.Steps) {
			t.Fatalf("%d good bytes of %d, %d steps of %d begun", good, len(raw), rec.Begun(), len(rec.Plan.Steps))
		}
		again, n, err := journal.Parse(slices.Clone(raw[:good]))
		if err != nil || n != good || !cmp.Equal(rec, again, values) {
			t.Fatalf("the good part alone: %v, %d, %v", again, n, err)
		}
	})
}
