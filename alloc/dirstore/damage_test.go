package dirstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vtepd/alloc"
)

func mustOpen(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustPools(t testing.TB, cidr string) *alloc.Pools {
	t.Helper()
	p, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{cidr}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sample(value, claim string) alloc.Allocation {
	return alloc.Allocation{
		Name: alloc.Name("p", value), Pool: "p", Value: value, Created: time.Unix(1700000000, 5).UTC(),
		Holders: []alloc.Holder{{Claim: claim, UID: "u"}},
	}
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o640); err != nil {
		t.Fatal(err)
	}
}

// Each is put under an allocation's name by other hands: it is reported by name, counts as taken, stays as it is, and nobody who
// may have owned it is renumbered.
func TestDamage(t *testing.T) {
	whole, err := alloc.Marshal(sample("10.0.0.0", "leaf1/x"))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ data, why string }{
		"empty":         {"", "empty"},
		"torn":          {string(whole[:len(whole)/2]), "torn or foreign: unexpected end of JSON input"},
		"binary":        {"\x00\x01\x02", `torn or foreign: invalid character '\x00' looking for beginning of value`},
		"another value": {strings.Replace(string(whole), "p@10.0.0.0", "p@10.0.0.1", 1), `foreign: it says that it is "p@10.0.0.1"`},
		"no version":    {`{"name": "p@10.0.0.0"}`, "foreign: no version"},
		"unknown field": {strings.Replace(string(whole), `"pool"`, `"color": "red", "pool"`, 1), `foreign: json: unknown field "color"`},
		"newer version": {strings.Replace(string(whole), `"version": 1`, `"version": 2`, 1), "format version 2 is newer than 1, the newest known here"},
		"two documents": {string(whole) + string(whole), "torn or foreign: invalid character '{' after top-level value"},
		"too large":     {strings.Repeat(" ", alloc.MaxSize+1), "foreign: too large"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			s := mustOpen(t, dir)
			if _, err := s.Changes(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "p@10.0.0.0")
			write(t, path, c.data)
			checkDamage(t, s, "p@10.0.0.0", c.why)
			if got, err := os.ReadFile(path); err != nil || string(got) != c.data {
				t.Errorf("the file changed: %q, %v", got, err)
			}
			// Repaired, it is whose it was.
			write(t, path, string(whole))
			a, wrote, err := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24")).
				Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", UID: "u", Pool: "p"})
			if err != nil || wrote || a.Value != "10.0.0.0" {
				t.Errorf("repaired: %+v %v %v", a, wrote, err)
			}
		})
	}
	t.Run("not a regular file", func(t *testing.T) {
		dir := t.TempDir()
		s := mustOpen(t, dir)
		for name, mk := range map[string]func(string) error{
			"p@10.0.0.0": func(p string) error { return os.Mkdir(p, 0o700) },
			"p@10.0.0.1": func(p string) error { return os.Symlink("/etc/hostname", p) },
			"p@10.0.0.2": func(p string) error { return unix.Mkfifo(p, 0o600) },
			"p@10.0.0.3": func(p string) error { return os.Symlink("nowhere", p) },
		} {
			if err := mk(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		for name, why := range map[string]string{
			"p@10.0.0.0": "foreign: not a regular file", "p@10.0.0.1": "foreign: a symbolic link",
			"p@10.0.0.2": "foreign: not a regular file", "p@10.0.0.3": "foreign: a symbolic link",
		} {
			checkDamage(t, s, name, why)
		}
	})
	t.Run("not the name of an allocation", func(t *testing.T) {
		dir := t.TempDir()
		s := mustOpen(t, dir)
		for _, name := range []string{"README", "p@10.0.0.300", "p@010.0.0.1", "p@2001-DB8--1"} {
			write(t, filepath.Join(dir, name), string(whole))
		}
		write(t, filepath.Join(dir, ".nfs0001"), "x")
		c := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
		_, bad, err := c.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range bad {
			got = append(got, d.Error())
		}
		want := []string{
			"README: foreign: not the name of an allocation", "p@010.0.0.1: foreign: not the name of an allocation",
			"p@10.0.0.300: foreign: not the name of an allocation", "p@2001-DB8--1: foreign: not the name of an allocation",
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("damage %q, want %q", got, want)
		}
		// No allocation can hide in them: claims go on.
		if a, _, err := c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"}); err != nil || a.Value != "10.0.0.0" {
			t.Errorf("acquire: %+v %v", a, err)
		}
	})
}

func checkDamage(t *testing.T, s *Store, name, why string) {
	t.Helper()
	_, err := s.Get(t.Context(), name)
	if !errors.Is(err, alloc.ErrDamaged) || err.Error() != "get: "+name+": "+why {
		t.Errorf("get: %v, want %s", err, why)
	}
	value := strings.TrimPrefix(name, "p@")
	if _, err := s.Create(t.Context(), sample(value, "leaf1/x")); !errors.Is(err, alloc.ErrExists) {
		t.Errorf("create: %v", err)
	}
	if _, err := s.Update(t.Context(), sample(value, "leaf1/x")); !errors.Is(err, alloc.ErrDamaged) {
		t.Errorf("update: %v", err)
	}
	if err := s.Delete(t.Context(), name, ""); !errors.Is(err, alloc.ErrDamaged) {
		t.Errorf("delete: %v", err)
	}
	c := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
	_, _, err = c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", UID: "u", Pool: "p"})
	var k *alloc.Condition
	if !errors.As(err, &k) || k.Reason != alloc.LedgerDamaged || !strings.Contains(k.Message, "what this claim had may be in ") ||
		!strings.Contains(k.Message, name+": "+why) {
		t.Errorf("a new claim: %v", err)
	}
	_, _, err = c.Acquire(t.Context(), alloc.Claim{Name: "leaf2/y", UID: "u", Pool: "p", Prefer: value})
	if !errors.As(err, &k) || k.Reason != alloc.PreferredValueUnavailable ||
		k.Message != value+" of pool p is taken by something unreadable: "+name+": "+why {
		t.Errorf("a preference: %v", err)
	}
	// Whoever names another value loses nothing.
	if a, _, err := c.Acquire(t.Context(), alloc.Claim{Name: "leaf2/y", UID: "u", Pool: "p", Prefer: "10.0.0.9"}); err != nil {
		t.Errorf("another preference: %+v %v", a, err)
	}
}

// Wherever a file is cut, that is noticed.
func TestTornAnywhere(t *testing.T) {
	whole, err := alloc.Marshal(sample("10.0.0.0", "leaf1/x"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) - 1 { // the newline at the end is for people
		if _, err := alloc.Unmarshal("p@10.0.0.0", whole[:n]); err == nil {
			t.Errorf("cut after %d bytes: read", n)
		}
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	a := mustOpen(t, dir)
	leftover := filepath.Join(dir, ".tmp", "p@10.0.0.9.LEFTOVER")
	// While a's file is written, another process opens the ledger.
	a.op = func(op string) error {
		if op != "sync" {
			return nil
		}
		write(t, leftover, `{"version": 1, "na`)
		b := mustOpen(t, dir)
		_, err := b.Get(t.Context(), "p@10.0.0.9")
		if !errors.Is(err, alloc.ErrNotFound) {
			t.Errorf("a leftover is read: %v", err)
		}
		return nil
	}
	if _, err := a.Create(t.Context(), sample("10.0.0.1", "leaf1/x")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(leftover); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover: %v", err)
	}
	if _, err := a.Get(t.Context(), "p@10.0.0.1"); err != nil {
		t.Errorf("what was being written: %v", err)
	}
}

// What stands in the way under .tmp and isn't ours stays.
func TestSweepForeign(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{".tmp", ".tmp/dir"} {
		if err := os.Mkdir(filepath.Join(dir, p), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, ".tmp/link")); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, dir)
	for _, p := range []string{".tmp/dir", ".tmp/link"} {
		if _, err := os.Lstat(filepath.Join(dir, p)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Create(t.Context(), sample("10.0.0.1", "leaf1/x")); err != nil {
		t.Error(err)
	}
}

// Every call that changes something fails in turn: the error is clear, nothing is lost, and no temporary file stays.
func TestEveryCallFails(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.ENOSPC, unix.EROFS, unix.EIO, unix.EDQUOT} {
		for k := 1; ; k++ {
			dir := filepath.Join(t.TempDir(), "claims")
			s := mustOpen(t, dir)
			before, err := s.Create(t.Context(), sample("10.0.0.1", "leaf1/x"))
			if err != nil {
				t.Fatal(err)
			}
			n, failed := 0, ""
			s.op = func(op string) error {
				if n++; n == k {
					failed = op
					return errno
				}
				return nil
			}
			_, cerr := s.Create(t.Context(), sample("10.0.0.2", "leaf1/y"))
			change := before
			change.AllowBinding = true
			after, uerr := s.Update(t.Context(), change)
			version := after.Version
			if uerr != nil {
				version = before.Version
			}
			derr := s.Delete(t.Context(), before.Name, version)
			if failed == "" {
				if err := errors.Join(cerr, uerr, derr); err != nil {
					t.Fatal(err)
				}
				break
			}
			first := errors.Join(cerr, uerr, derr)
			if !errors.Is(first, errno) || !errors.Is(first, alloc.ErrUnavailable) {
				t.Fatalf("%s: %v", failed, first)
			}
			for what, err := range map[string]error{"create p@10.0.0.2": cerr, "update p@10.0.0.1": uerr} {
				if want := fmt.Sprintf("%s: ledger unavailable: %s: %v", what, dir, errno); err != nil && err.Error() != want && failed != "syncdir" {
					t.Errorf("%s: %q, want %q", failed, err, want)
				}
			}
			s.op = func(string) error { return nil }
			ch, err := mustOpen(t, dir).Changes(t.Context(), 0)
			if err != nil || len(ch.Damaged) > 0 {
				t.Errorf("%s: %+v %v", failed, ch, err)
			}
			tmp, err := os.ReadDir(filepath.Join(dir, ".tmp"))
			if err != nil || len(tmp) > 0 {
				t.Errorf("%s: left %v %v", failed, tmp, err)
			}
		}
	}
}

// A lock that another holds is waited for until the context ends.
func TestLockedByAnother(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	a, err := s.Create(t.Context(), sample("10.0.0.1", "leaf1/x"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, a.Name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Delete(ctx, a.Name, a.Version); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("delete: %v", err)
	}
	done := make(chan error)
	go func() { done <- s.Delete(t.Context(), a.Name, a.Version) }()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("delete once unlocked: %v", err)
	}
}

// Closing doesn't wait for somebody else's lock.
func TestCloseWhileWaiting(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	a, err := s.Create(t.Context(), sample("10.0.0.1", "leaf1/x"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, a.Name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- s.Delete(t.Context(), a.Name, a.Version) }()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, alloc.ErrUnavailable) {
		t.Errorf("delete: %v", err)
	}
}

func TestDirectoryGone(t *testing.T) {
	for what, c := range map[string]struct {
		do  func(dir string) error
		why string
	}{
		"removed":  {os.RemoveAll, "the directory was removed"},
		"moved":    {func(dir string) error { return os.Rename(dir, dir+".old") }, "the directory was removed"},
		"replaced": {func(dir string) error { return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o750)) }, "the directory was replaced by another"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "claims")
			s := mustOpen(t, dir)
			c1 := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
			x := alloc.Claim{Name: "leaf1/x", Pool: "p"}
			if _, _, err := c1.Acquire(t.Context(), x); err != nil {
				t.Fatal(err)
			}
			if err := c.do(dir); err != nil {
				t.Fatal(err)
			}
			// An empty ledger would give the next claim what the first one has.
			_, _, err := c1.Acquire(t.Context(), alloc.Claim{Name: "leaf1/y", Pool: "p"})
			var k *alloc.Condition
			if want := "read: ledger unavailable: " + dir + ": " + c.why; !errors.As(err, &k) || k.Reason != alloc.LedgerUnavailable || k.Message != want {
				t.Errorf("acquire: %v, want %s", err, want)
			}
			if err := s.Health(t.Context()); err == nil || !strings.HasSuffix(err.Error(), c.why) {
				t.Errorf("health: %v", err)
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	write(t, file, "")
	for path, want := range map[string]string{
		filepath.Join(dir, "no/parent"): "open: ledger unavailable: " + dir + "/no/parent: no such file or directory",
		file:                            "open: ledger unavailable: " + file + ": not a directory",
	} {
		if _, err := Open(path); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestReadOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	r, err := OpenReadOnly(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x := alloc.Claim{Name: "leaf1/x", Pool: "p"}
	c := alloc.NewClaimer(r, mustPools(t, "10.0.0.0/24"))
	propose := func(what, want string) {
		t.Helper()
		ps, err := c.Plan(t.Context(), []alloc.Claim{x})
		if err != nil || ps[0].Allocation.Value != want {
			t.Errorf("%s: %+v %v, want %s", what, ps, err, want)
		}
	}
	propose("no directory", "10.0.0.0")
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	w := mustOpen(t, dir)
	propose("an empty one", "10.0.0.0")
	if _, err := w.Create(t.Context(), sample("10.0.0.0", "leaf2/y")); err != nil {
		t.Fatal(err)
	}
	propose("one taken", "10.0.0.1")
	_, _, err = c.Acquire(t.Context(), x)
	var k *alloc.Condition
	if !errors.As(err, &k) || k.Message != "create p@10.0.0.1: ledger opened for reading only" {
		t.Errorf("acquire: %v", err)
	}
	for what, err := range map[string]error{
		"update": func() error { _, err := r.Update(t.Context(), sample("10.0.0.0", "a")); return err }(),
		"delete": r.Delete(t.Context(), "p@10.0.0.0", ""), "health": r.Health(t.Context()),
	} {
		if !errors.Is(err, alloc.ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Files from before and after any jump of the clock are read and written alike.
func TestClockJumps(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	c := alloc.NewClaimer(s, mustPools(t, "10.0.0.0/24"))
	a, _, err := c.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for _, when := range []time.Time{time.Unix(0, 0), time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC)} {
		for _, p := range []string{dir, filepath.Join(dir, a.Name)} {
			if err := os.Chtimes(p, when, when); err != nil {
				t.Fatal(err)
			}
		}
		f := sample("10.0.0.9", "leaf2/y")
		f.Created = when.UTC()
		made, err := s.Create(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		other := alloc.NewClaimer(mustOpen(t, dir), mustPools(t, "10.0.0.0/24"))
		if got, wrote, err := other.Acquire(t.Context(), alloc.Claim{Name: "leaf1/x", Pool: "p"}); err != nil || wrote || got.Value != a.Value {
			t.Errorf("acquire: %+v %v %v", got, wrote, err)
		}
		if err := other.Release(t.Context(), made.Name, "leaf2/y", "u"); err != nil {
			t.Error(err)
		}
	}
}

// More events than the kernel keeps: nothing is missed.
func TestOverflow(t *testing.T) {
	dir := inMemory(t)
	s := mustOpen(t, dir)
	if _, err := s.Changes(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	first := sample("10.0.0.1", "leaf1/x")
	w := mustOpen(t, dir)
	if _, err := w.Create(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(dir, "junk")
	for range 10_000 {
		write(t, junk, "")
		if err := os.Remove(junk); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Create(t.Context(), sample("10.0.0.2", "leaf1/y")); err != nil {
		t.Fatal(err)
	}
	ch, err := s.Changes(t.Context(), 1)
	if err != nil || len(ch.Set) != 2 || len(ch.Damaged) != 0 {
		t.Errorf("changes: %+v %v", ch, err)
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	old := unix.Umask(0)
	defer unix.Umask(old)
	s := mustOpen(t, dir)
	if _, err := s.Create(t.Context(), sample("10.0.0.1", "leaf1/x")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o750, dir + "/.tmp": 0o750, dir + "/p@10.0.0.1": 0o640} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v, want %v", path, st.Mode(), err, want)
		}
	}
}
