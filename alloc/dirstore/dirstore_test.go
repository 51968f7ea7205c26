package dirstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// newLedger makes directories under root; wrap changes each Store that is opened on one.
func newLedger(root string, wrap func(*Store)) storetest.NewLedger {
	return func(tb storetest.TB) func() (alloc.Store, error) {
		dir, err := os.MkdirTemp(root, "ledger")
		if err != nil {
			tb.Fatalf("%v", err)
		}
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		return func() (alloc.Store, error) {
			s, err := Open(filepath.Join(dir, "claims"))
			if err == nil {
				wrap(s)
			}
			return s, err
		}
	}
}

func TestStore(t *testing.T) {
	storetest.Run(t, newLedger(t.TempDir(), func(*Store) {}))
}

// On a filesystem that other machines write to, every look reads everything.
func TestStoreWithoutNotifications(t *testing.T) {
	storetest.Run(t, newLedger(inMemory(t), func(s *Store) {
		s.poll = 10 * time.Millisecond
		if s.notify != nil {
			s.notify.close()
			s.notify = nil
		}
	}))
}

// inMemory is a directory where syncing costs nothing, or any directory.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "dirstore")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestNoInstanceLeft: who watches is told of changes also where there is no inotify instance left for it.
func TestNoInstanceLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "claims")
	s, other := mustOpen(t, dir), mustOpen(t, dir)
	if s.notify == nil {
		t.Skip("the kernel doesn't tell of every change here: it is looked for anyway")
	}
	s.poll = 10 * time.Millisecond
	s.inotify = func(int) (*notifier, error) { return nil, unix.EMFILE }
	hints, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := func(what string) {
		t.Helper()
		select {
		case <-hints:
		case <-time.After(10 * time.Second):
			t.Fatalf("no hint of %s", what)
		}
	}
	a, err := other.Create(t.Context(), sample("10.0.0.1", "leaf1/x"))
	if err != nil {
		t.Fatal(err)
	}
	told("what was made")
	if err := other.Delete(t.Context(), a.Name, a.Version); err != nil {
		t.Fatal(err)
	}
	told("what is gone")
}
