package disk_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"vtepd/daemon/disk"
)

func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	if err := disk.SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := disk.SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that isn't there: %v", err)
	}
}
