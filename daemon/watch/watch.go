// Package watch turns changes of a config file, or of a directory of them,
// into hints to look again.
//
// A Watcher owns its inotify watches and nothing else. It never reads or
// parses a config: a hint says that something may have changed, not what, and
// now and then nothing has.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A hint comes Quiet after the last change, or Longest after the first one
// that had no hint yet, so that a writer that never stops is seen too.
const (
	Quiet   = 100 * time.Millisecond
	Longest = time.Second
)

// Watcher watches one path.
type Watcher struct {
	// C gets a hint after changes. It holds one: whoever looks after taking it
	// sees everything that happened before. It is never closed.
	C <-chan struct{}

	c     chan struct{}
	path  string
	fs    *fsnotify.Watcher
	way   way // what is watched
	delay *debouncer
}

// New watches path, a file or a directory of *.yaml files, whether it exists
// yet or not. Changes from now on give a hint once Run runs; the caller looks
// for itself once after New.
//
// It fails when the directory that holds path, or the nearest one above it
// that exists, can't be watched, such as at the limit of inotify watches.
func New(path string) (*Watcher, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	c := make(chan struct{}, 1)
	w := &Watcher{C: c, c: c, path: path, fs: fs, delay: newDebouncer(Quiet, Longest)}
	if err := w.rewatch(); err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	return w, nil
}

// String names the task in logs.
func (w *Watcher) String() string { return "watch " + w.path }

// Close ends the watching, for a Watcher whose Run is never called.
func (w *Watcher) Close() error { return w.fs.Close() }

// Run sends hints to C until ctx is done, and then returns nil. It returns an
// error when path can't be watched any more. Either way the Watcher is closed.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.fs.Close()
	defer w.delay.stop()
	for {
		again := false // whether what is watched may not fit any more
		select {
		case <-ctx.Done():
			return nil
		case <-w.delay.fire():
			w.delay.fired()
			select {
			case w.c <- struct{}{}:
			default: // the hint before isn't taken yet; it will do
			}
		case e, ok := <-w.fs.Events:
			if !ok {
				return fmt.Errorf("watch %s: %w", w.path, fsnotify.ErrClosed)
			}
			if w.way.matters(e.Name) {
				again = !e.Has(fsnotify.Write)
				w.delay.touch()
			}
		case err := <-w.fs.Errors:
			// EINVAL is a directory that was gone before its watch could be
			// removed. After an overflow anything may have happened.
			if !errors.Is(err, fsnotify.ErrEventOverflow) && !errors.Is(err, syscall.EINVAL) {
				return fmt.Errorf("watch %s: %w", w.path, cmp.Or(err, fsnotify.ErrClosed))
			}
			again = true
			w.delay.touch()
		}
		if again {
			// What may not be read now may be again: its parent will tell.
			if err := w.rewatch(); err != nil && !errors.Is(err, syscall.EACCES) {
				return err
			}
		}
	}
}

// rewatch makes the watches fit what is there now: every directory on the way
// to path and, where a symbolic link leads on, every one on the way from
// there. So a change of any part of the way is seen, and what doesn't exist is
// seen when it appears.
//
// The watches are set from the root on. Whatever is replaced after its parent
// is watched gives an event, and what appears before that is found by looking
// again until nothing has changed.
func (w *Watcher) rewatch() error {
	var denied error
	before := w.way.watch
	for range 100 {
		w.way = look(w.path)
		denied = nil
		for _, at := range w.way.watch {
			// Even if it was watched before: it may be another one of the same
			// name by now.
			switch err := w.fs.Add(at); {
			case err == nil, errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
			case errors.Is(err, syscall.EACCES):
				if at == w.way.last {
					denied = fmt.Errorf("watch %s: %s: %w", w.path, at, err)
				} // or one that may only be passed: what lies beyond it is watched
			default:
				return fmt.Errorf("watch %s: %s: %w", w.path, at, err)
			}
		}
		for _, at := range before {
			if !slices.Contains(w.way.watch, at) {
				// It fails if the directory is gone, and its watch with it.
				_ = w.fs.Remove(at)
			}
		}
		if slices.Equal(before, w.way.watch) {
			return denied
		}
		before = w.way.watch
	}
	w.delay.touch() // it changes faster than it can be watched: later, then
	return denied
}

// wanted reports whether a file of a config directory counts: what the config
// reads, and the ..data that a Kubernetes volume turns over.
func wanted(name string) bool {
	return strings.HasSuffix(name, ".yaml") && name[0] != '.' || strings.HasPrefix(name, "..")
}

// way is what to watch for a path.
type way struct {
	watch []string // directories, and at last the file, from the root on; without symbolic links
	names []string // the entries of those directories that are on the way
	last  string   // the directory that holds, or would hold, the path's next part
	isDir bool     // whether the path is a directory
}

func look(path string) way {
	var l way
	at, isDir := l.follow(path)
	if !isDir {
		return l
	}
	add(&l.watch, at)
	entries, err := os.ReadDir(at)
	if err == nil { // or it is gone again, or not readable, which Add will say
		for _, e := range entries {
			if e.Type()&os.ModeSymlink != 0 && wanted(e.Name()) {
				l.follow(filepath.Join(at, e.Name()))
			}
		}
	}
	l.last, l.isDir = at, true
	return l
}

// matters reports whether an event about name can be about the config. Only
// the last part is compared, because a directory that is mounted twice has one
// inotify watch and therefore only one of its paths.
func (l *way) matters(name string) bool {
	name = filepath.Base(name)
	return slices.Contains(l.names, name) || l.isDir && wanted(name)
}

// follow goes along an absolute path and the symbolic links in it. It returns
// where that ends and whether there is a directory.
func (l *way) follow(path string) (end string, isDir bool) {
	const most = 40 // links; more is ELOOP for the kernel too
	dir, rest, links := "/", path, 0
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
			continue
		}
		add(&l.watch, dir)
		add(&l.names, name)
		l.last = dir
		next := filepath.Join(dir, name)
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			return next, false
		case info.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(next)
			if links++; err != nil || links > most {
				return next, false
			}
			if filepath.IsAbs(to) {
				dir = "/"
			}
			rest = to + "/" + rest
		case info.IsDir():
			dir = next
		default:
			// A file that is a mount of its own, as containers have them, gives
			// no event in its directory when it is written to.
			add(&l.watch, next)
			return next, false
		}
	}
	return dir, true
}

// add appends s, once.
func add(to *[]string, s string) {
	if !slices.Contains(*to, s) {
		*to = append(*to, s)
	}
}
