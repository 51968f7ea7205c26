// Package disk has a crash find the names in a directory as they are. It owns nothing.
package disk

import (
	"errors"
	"os"
)

// SyncDir returns once a directory's names are on disk: the name of a file that was made, renamed or removed isn't with the file's
// own sync.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
