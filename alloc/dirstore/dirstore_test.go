package dirstore

import (
	"os"
	"path/filepath"
	"testing"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// newLedger makes a directory; wrap changes each Store that is opened on it.
func newLedger(t *testing.T, wrap func(*Store)) storetest.NewLedger {
	root := t.TempDir()
	return func(tb storetest.TB) func() (alloc.Store, error) {
		dir, err := os.MkdirTemp(root, "ledger")
		if err != nil {
			tb.Fatalf("%v", err)
		}
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		return func() (alloc.Store, error) {
			s, err := Open(filepath.Join(dir, "claims"))
			if err == nil && wrap != nil {
				wrap(s)
			}
			return s, err
		}
	}
}

func TestStore(t *testing.T) {
	storetest.Run(t, newLedger(t, nil))
}

// On a filesystem that other machines write to, every look reads everything.
func TestStoreWithoutNotifications(t *testing.T) {
	storetest.Run(t, newLedger(t, func(s *Store) {
		if s.notify != nil {
			s.notify.close()
			s.notify = nil
		}
	}))
}
