package dirstore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
