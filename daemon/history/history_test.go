package history_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vtepd/daemon/config"
	"vtepd/daemon/history"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sources(n int) []config.Source {
	return []config.Source{{File: "a.yaml", Data: fmt.Appendf(nil, "version: 1 # %d\n", n)}, {File: "b.yaml", Data: []byte{0, 0xff}}}
}

func TestNothingYet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "when", "needed")
	h := history.In(dir)
	if e, err := h.Newest(); !errors.Is(err, history.ErrNone) || err.Error() != "no such config is kept" {
		t.Errorf("%v, %v", e, err)
	}
	if all, err := h.Generations(); len(all) > 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	if p, err := h.Pinned(); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
	check(t, h.SetPin(nil)) // none is success
	if _, err := h.Get(3); !errors.Is(err, history.ErrNone) || err.Error() != "generation 3: no such config is kept; there are those of []" {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
}

// TestKeep: the last ten are kept, whatever else lies in the directory, and each comes back as it was given.
func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	h := history.In(dir)
	began := time.Now().Truncate(time.Second)
	check(t, h.SetPin(&history.Pin{Over: "x"}))
	check(t, os.WriteFile(filepath.Join(dir, "README"), []byte("an operator's\n"), 0o644))
	var want []uint64
	for g := uint64(3); g <= 40; g += 3 {
		check(t, h.Add(g, sources(int(g))))
		want = append(want, g)
		want = want[max(0, len(want)-history.Keep):]
		all, err := h.Generations()
		check(t, err)
		if !slices.Equal(all, want) {
			t.Fatalf("after %d: %v, want %v", g, all, want)
		}
		e, err := h.Newest()
		check(t, err)
		if diff := cmp.Diff(sources(int(g)), e.Sources); diff != "" || e.Generation != g || e.Time.Before(began) {
			t.Errorf("%d: generation %d of %s: -want +got:\n%s", g, e.Generation, e.Time, diff)
		}
	}
	e, err := h.Get(15)
	check(t, err)
	if diff := cmp.Diff(sources(15), e.Sources); diff != "" || e.Generation != 15 {
		t.Errorf("generation %d: -want +got:\n%s", e.Generation, diff)
	}
	const none = "generation 9: no such config is kept; there are those of [12 15 18 21 24 27 30 33 36 39]"
	if _, err := h.Get(9); !errors.Is(err, history.ErrNone) || err.Error() != none {
		t.Errorf("got  %v\nwant %s", err, none)
	}
	if p, err := h.Pinned(); err != nil || p == nil || p.Over != "x" {
		t.Errorf("the pin: %+v, %v", p, err)
	}
	entries, err := os.ReadDir(dir)
	check(t, err)
	if len(entries) != history.Keep+2 {
		t.Errorf("%d files: %v", len(entries), entries)
	}
}

// TestNotTwice: the config that is the newest already is not kept again, one that was there before it is.
func TestNotTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	h := history.In(dir)
	check(t, h.Add(1, sources(1)))
	before, err := os.ReadFile(filepath.Join(dir, "00000000000000000001.json"))
	check(t, err)
	check(t, h.Add(1, sources(1)))
	check(t, h.Add(2, sources(1)))
	after, err := os.ReadFile(filepath.Join(dir, "00000000000000000001.json"))
	check(t, err)
	if all, _ := h.Generations(); !slices.Equal(all, []uint64{1}) || string(before) != string(after) {
		t.Errorf("%v\n%s\n%s", all, before, after)
	}
	check(t, h.Add(2, sources(2)))
	check(t, h.Add(3, sources(1)))
	if all, _ := h.Generations(); !slices.Equal(all, []uint64{1, 2, 3}) {
		t.Errorf("%v", all)
	}
	// Another text of the same generation takes the place of the first.
	check(t, h.Add(3, sources(9)))
	if e, err := h.Newest(); err != nil || e.Generation != 3 || cmp.Diff(sources(9), e.Sources) != "" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestPin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	for _, want := range []*history.Pin{
		{Over: "f", Sources: sources(1), Why: "applied", Confirm: 90 * time.Second, AllowDisruptive: true},
		{Over: "f", Why: "nothing"},
		nil, nil,
		{Sources: sources(2)},
	} {
		check(t, history.In(dir).SetPin(want))
		got, err := history.In(dir).Pinned() // by another daemon
		check(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// TestModes: configs may hold what is nobody's business.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	h := history.In(dir)
	check(t, h.Add(1, sources(1)))
	check(t, h.SetPin(&history.Pin{}))
	for name, want := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, "00000000000000000001.json": 0o600, "pin.json": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%q: %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
}

// TestDamaged: what isn't vtepd's is named and never overwritten.
func TestDamaged(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	h := history.In(dir)
	check(t, h.Add(1, sources(1)))
	entry, pin := filepath.Join(dir, "00000000000000000001.json"), filepath.Join(dir, "pin.json")
	for _, f := range []string{entry, pin} {
		check(t, os.WriteFile(f, []byte("{\"generation\": "), 0o600))
	}
	is := func(what string, err error, file string) {
		t.Helper()
		want := "history: " + file + " is not what vtepd writes (unexpected end of JSON input); move it away"
		if err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", what, err, want)
		}
	}
	_, err := h.Newest()
	is("newest", err, entry)
	_, err = h.Get(1)
	is("get", err, entry)
	is("add", h.Add(2, sources(2)), entry)
	_, err = h.Pinned()
	is("pinned", err, pin)
	if all, _ := h.Generations(); !slices.Equal(all, []uint64{1}) {
		t.Errorf("%v", all)
	}
	check(t, h.SetPin(nil)) // a word of the operator's ends it, whatever it says
	if p, err := h.Pinned(); p != nil || err != nil {
		t.Errorf("%v, %v", p, err)
	}
}

// TestCannot: each call says what the system said.
func TestCannot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	h := history.In(filepath.Join(file, "history"))
	_, generations := h.Generations()
	_, pinned := h.Pinned()
	for what, err := range map[string]error{
		"add": h.Add(1, sources(1)), "pin": h.SetPin(&history.Pin{}), "no pin": h.SetPin(nil), "generations": generations, "pinned": pinned,
	} {
		if err == nil || errors.Is(err, history.ErrNone) || err.Error()[:9] != "history: " {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFingerprint(t *testing.T) {
	if f := history.Fingerprint(nil); f != "" {
		t.Errorf("of none: %q", f)
	}
	src := func(file, data string) config.Source { return config.Source{File: file, Data: []byte(data)} }
	seen := map[string]int{}
	for i, srcs := range [][]config.Source{
		{src("", "")},
		{src("a", "")},
		{src("", "a")},
		{src("a", "b")},
		{src("ab", "")},
		{src("a", "b"), src("", "")},
		{src("a", ""), src("b", "")},
		{src("b", ""), src("a", "")},
		{src("a", "1 b 1 c")},
		{src("a", "1"), src("b", "c")},
	} {
		f := history.Fingerprint(srcs)
		if j, ok := seen[f]; ok || len(f) != 32 {
			t.Errorf("%d and %d: %q", j, i, f)
		}
		seen[f] = i
		if f != history.Fingerprint(slices.Clone(srcs)) {
			t.Errorf("%d: not the same twice", i)
		}
	}
}
