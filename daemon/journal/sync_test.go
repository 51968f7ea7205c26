package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vtepd/daemon/plan"
)

// synced is a journal that notes what of its files a sync finds, and refuses one when told to.
type synced struct {
	*Journal
	t      *testing.T
	notes  []string
	refuse string // the sync of "file" or "dir"
}

var errDisk = errors.New("the disk is gone")

func newSynced(t *testing.T) *synced {
	s := &synced{Journal: In(t.TempDir()), t: t}
	file, dir := s.syncFile, s.syncDir
	s.syncFile = func(f *os.File) error {
		s.note("file", f.Name())
		if s.refuse == "file" {
			return errDisk
		}
		return file(f)
	}
	s.syncDir = func(d string) error {
		s.note("dir", d)
		if s.refuse == "dir" {
			return errDisk
		}
		return dir(d)
	}
	return s
}

// note keeps what is synced, how many lines the journal has at that moment, and whether something is committed.
func (s *synced) note(what, path string) {
	s.t.Helper()
	if want := map[string]string{"file": s.path(journalName), "dir": s.dir}[what]; path != want {
		s.t.Errorf("%s: %s is synced, not %s", what, path, want)
	}
	lines := "no journal"
	raw, err := os.ReadFile(s.path(journalName))
	if err == nil {
		lines = strings.Repeat("|", strings.Count(string(raw), "\n"))
	} else if !errors.Is(err, fs.ErrNotExist) {
		s.t.Error(err)
	}
	if _, err := os.Stat(s.path(committedName)); err == nil {
		lines += " committed"
	}
	s.notes = append(s.notes, what+": "+lines)
}

// does holds an operation to what is synced before it returns.
func (s *synced) does(what string, err error, want ...string) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
	}
	if !slices.Equal(s.notes, want) {
		s.t.Errorf("%s: synced %q, want %q", what, s.notes, want)
	}
	s.notes = nil
}

func onePlan() plan.Plan {
	return plan.Plan{Generation: 1, Steps: []plan.Step{{Phase: plan.Verify}, {Phase: plan.Confirm}}}
}

// TestSync: whatever a crash must find again is on disk before the method that wrote it returns.
func TestSync(t *testing.T) {
	s := newSynced(t)
	s.does("Begin", s.Begin(onePlan()), "file: |", "dir: |")
	s.does("a step", s.Mark(Mark{Do: new(0)}), "file: ||")
	s.does("a confirmation", s.Mark(Mark{Do: new(1), Deadline: time.Unix(1, 0)}), "file: |||")
	s.does("an undo", s.Mark(Mark{Undo: new(1)}), "file: ||||")
	s.does("the point of no return", s.Mark(Mark{Forward: true}), "file: |||||")
	s.does("Commit", s.Commit(Committed{Generation: 1}), "dir: ||||| committed")
	s.does("End", s.End(), "dir: no journal committed")

	// The marks of a recovery too.
	s.does("Begin", s.Begin(onePlan()), "file: | committed", "dir: | committed")
	_, err := s.Load()
	s.does("Load", err)
	s.does("a step of a recovery", s.Mark(Mark{Undo: new(0)}), "file: || committed")
}

// TestNotSynced: what isn't on disk is an error, and a mark that may not be isn't there for who reads it next.
func TestNotSynced(t *testing.T) {
	refused := func(s *synced, what, which string, f func() error) {
		t.Helper()
		s.refuse = which
		if err := f(); !errors.Is(err, errDisk) {
			t.Errorf("%s, with the %s's sync refused: %v", what, which, err)
		}
		s.refuse = ""
	}
	begin := func(s *synced) func() error { return func() error { return s.Begin(onePlan()) } }
	for _, which := range []string{"file", "dir"} {
		s := newSynced(t)
		refused(s, "Begin", which, begin(s))
		if files, err := filepath.Glob(s.path("*")); err != nil || len(files) > 0 {
			t.Errorf("Begin, with the %s's sync refused, leaves %v (%v)", which, files, err)
		}
	}
	s := newSynced(t)
	if err := s.Begin(onePlan()); err != nil {
		t.Fatal(err)
	}
	refused(s, "Mark", "file", func() error { return s.Mark(Mark{Do: new(0)}) })
	if rec, err := In(s.dir).Load(); err != nil || rec.Begun() != 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	refused(s, "Commit", "dir", func() error { return s.Commit(Committed{Generation: 1}) })
	refused(s, "End", "dir", s.End)
}
