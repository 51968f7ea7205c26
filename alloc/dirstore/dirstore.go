// Package dirstore provides an allocation ledger in a directory that any number of processes share: one file an allocation,
// made by one exclusive link. The directory is the state, and a Store only remembers what it has read; it never overwrites or
// removes a file that it can't read, nor decides anything by a clock.
//
// A file comes to be complete: it is written and synced under .tmp, and then linked to its name, which fails if the name
// exists. Whoever replaces or removes a file locks it first (flock) and looks again whether the name still means it, so that
// comparing and changing are one. A lock goes with its process. What a killed process leaves under .tmp is unlocked, and the
// next Open removes it.
package dirstore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vtepd/alloc"
)

const (
	tmpDir   = ".tmp"
	lockFile = ".lock"
)

// Store is a handle on a ledger directory.
type Store struct {
	path     string
	dir      int // -1: opened for reading, and the directory isn't there
	readOnly bool
	op       func(op string) error // asked before every system call that changes something
	poll     time.Duration         // see pollEvery
	inotify  func(dir int) (*notifier, error)

	// life is held for reading by every call, so that Close waits for them.
	life   sync.RWMutex
	closed bool
	quit   chan struct{}
	once   sync.Once
	watch  sync.WaitGroup

	mu     sync.Mutex
	seen   map[string]entry
	log    alloc.Log
	notify *notifier // nil where the kernel doesn't tell of every change: then each look reads the whole directory
	loaded bool
}

// entry is what was last read under a name: an allocation, or why there is none.
type entry struct {
	a      alloc.Allocation
	damage string
}

var _ alloc.Store = (*Store)(nil)

// Open makes the directory if it isn't there (0750; its parents must be), and removes what killed processes left in it.
func Open(path string) (*Store, error) { return open(path, false, func(string) error { return nil }) }

// OpenReadOnly makes and removes nothing, and every write fails with ErrReadOnly. A directory that isn't there is an empty ledger.
func OpenReadOnly(path string) (*Store, error) {
	return open(path, true, func(string) error { return nil })
}

func open(path string, readOnly bool, op func(string) error) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, dir: -1, readOnly: readOnly, op: op, poll: pollEvery, inotify: newNotifier, quit: make(chan struct{}), seen: map[string]entry{}}
	if !readOnly {
		switch err := os.Mkdir(path, 0o750); {
		case err == nil:
			if err := syncPath(filepath.Dir(path)); err != nil {
				return nil, s.fail("open", err)
			}
		case !errors.Is(err, fs.ErrExist):
			return nil, s.fail("open", err)
		}
	}
	s.dir, err = retry2(func() (int, error) { return unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if errors.Is(err, fs.ErrNotExist) && readOnly {
		s.dir = -1
		return s, nil
	}
	if err != nil {
		return nil, s.fail("open", err)
	}
	if !readOnly {
		if err := s.sweep(); err != nil {
			_ = unix.Close(s.dir)
			return nil, s.fail("open", err)
		}
	}
	if tellsAll(s.dir) {
		// Without a notifier (the user has no instance left) every look reads everything: slower, and right.
		s.notify, _ = newNotifier(s.dir)
	}
	return s, nil
}

// fail wraps a system call's error.
func (s *Store) fail(what string, err error) error {
	return fmt.Errorf("%s: %w: %s: %w", what, alloc.ErrUnavailable, s.path, cause(err))
}

// cause strips what repeats the path.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func retry2[T any](f func() (T, error)) (t T, err error) {
	err = retry(func() error {
		t, err = f()
		return err
	})
	return t, err
}

func syncPath(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return syncFD(int(d.Fd()))
}

// syncFD makes a directory's entries durable. Some filesystems have no such call for directories, and say EINVAL.
func syncFD(fd int) error {
	err := retry(func() error { return unix.Fsync(fd) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// enter begins a call; leave ends it.
func (s *Store) enter(ctx context.Context, op, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.life.RLock()
	if s.closed {
		s.life.RUnlock()
		return fmt.Errorf("%s: %w: closed", strings.TrimSpace(op+" "+name), alloc.ErrUnavailable)
	}
	return nil
}

func (s *Store) leave() { s.life.RUnlock() }

func (s *Store) writable(op, name string) error {
	if s.readOnly {
		return fmt.Errorf("%s %s: %w", op, name, alloc.ErrReadOnly)
	}
	return nil
}

// checkName refuses what would be a path to elsewhere.
func checkName(op, name string) error {
	if _, _, err := alloc.ParseName(name); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// sweep removes temporary files that no living process has locked.
func (s *Store) sweep() error {
	tmp, err := os.ReadDir(filepath.Join(s.path, tmpDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range tmp {
		if err := s.sweepOne(tmpDir + "/" + e.Name()); err != nil && !errors.Is(err, unix.EROFS) {
			return err
		}
	}
	return nil
}

func (s *Store) sweepOne(name string) error {
	fd, err := retry2(func() (int, error) {
		return unix.Openat(s.dir, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil // not ours
	case err != nil:
		return err
	}
	defer unix.Close(fd)
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // somebody is writing it
	}
	if err := unix.Unlinkat(s.dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// read reads the file of that name.
func (s *Store) read(name string) (entry, bool, error) {
	if s.dir < 0 {
		return entry{}, false, nil
	}
	fd, err := retry2(func() (int, error) {
		return unix.Openat(s.dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return entry{}, false, nil
	case errors.Is(err, unix.ELOOP):
		return entry{damage: "foreign: a symbolic link"}, true, nil
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.EACCES):
		return entry{damage: fmt.Sprintf("unreadable: %v", err)}, true, nil
	case err != nil:
		return entry{}, false, err
	}
	defer unix.Close(fd)
	return s.readFD(fd, name)
}

func (s *Store) readFD(fd int, name string) (entry, bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return entry{}, false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return entry{damage: "foreign: not a regular file"}, true, nil
	}
	if _, _, err := alloc.ParseName(name); err != nil {
		return entry{damage: "foreign: not the name of an allocation"}, true, nil
	}
	if st.Size > alloc.MaxSize {
		return entry{damage: "foreign: too large"}, true, nil
	}
	buf := make([]byte, st.Size+1)
	n := 0
	for n < len(buf) {
		k, err := retry2(func() (int, error) { return unix.Pread(fd, buf[n:], int64(n)) })
		if err != nil {
			return entry{damage: fmt.Sprintf("unreadable: %v", err)}, true, nil
		}
		if k == 0 {
			break
		}
		n += k
	}
	a, err := alloc.Unmarshal(name, buf[:n])
	if err != nil {
		return entry{damage: err.Error()}, true, nil
	}
	a.Version = version(buf[:n])
	return entry{a: a}, true, nil
}

// version is the contents' digest: equal ones mean equal contents, however often the file was made anew.
func version(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

func damageOf(name string, e entry) alloc.Damage {
	d := alloc.Damage{Name: name, Why: e.damage}
	d.Pool, d.Value, _ = alloc.ParseName(name)
	return d
}

// Get implements alloc.Store.
func (s *Store) Get(ctx context.Context, name string) (alloc.Allocation, error) {
	if err := s.enter(ctx, "get", name); err != nil {
		return alloc.Allocation{}, err
	}
	defer s.leave()
	if err := checkName("get", name); err != nil {
		return alloc.Allocation{}, err
	}
	// Through seen, so that whatever becomes of what is returned here is a change.
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.note(name); err != nil {
		return alloc.Allocation{}, s.fail("get "+name, err)
	}
	switch e, ok := s.seen[name]; {
	case !ok:
		return alloc.Allocation{}, fmt.Errorf("get %s: %w", name, alloc.ErrNotFound)
	case e.damage != "":
		return alloc.Allocation{}, fmt.Errorf("get: %w", damageOf(name, e))
	default:
		return e.a, nil
	}
}

// temp is a locked file under .tmp.
type temp struct {
	name string
	fd   int
}

// newTemp writes and syncs data into a temporary file.
func (s *Store) newTemp(name string, data []byte) (temp, error) {
	for {
		t := temp{name: tmpDir + "/" + name + "." + rand.Text()}
		if err := s.op("open"); err != nil {
			return temp{}, err
		}
		var err error
		t.fd, err = retry2(func() (int, error) {
			return unix.Openat(s.dir, t.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o640)
		})
		if errors.Is(err, unix.ENOENT) {
			if err := s.op("mkdir"); err != nil {
				return temp{}, err
			}
			if err := unix.Mkdirat(s.dir, tmpDir, 0o750); err != nil && !errors.Is(err, unix.EEXIST) {
				return temp{}, err
			}
			continue
		}
		if err != nil {
			return temp{}, err
		}
		// Between making and locking it, another process's sweep may have taken it for a leftover.
		var st unix.Stat_t
		err = errors.Join(retry(func() error { return unix.Flock(t.fd, unix.LOCK_EX) }), unix.Fstat(t.fd, &st))
		if err == nil && st.Nlink == 0 {
			_ = unix.Close(t.fd)
			continue
		}
		if err == nil {
			err = s.fill(t.fd, data)
		}
		if err != nil {
			s.discard(t)
			return temp{}, err
		}
		return t, nil
	}
}

func (s *Store) fill(fd int, data []byte) error {
	if err := s.op("write"); err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := retry2(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	if err := s.op("sync"); err != nil {
		return err
	}
	return retry(func() error { return unix.Fsync(fd) })
}

func (s *Store) discard(t temp) {
	_ = unix.Unlinkat(s.dir, t.name, 0)
	_ = unix.Close(t.fd)
}

// Create implements alloc.Store.
func (s *Store) Create(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	if err := s.enter(ctx, "create", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	defer s.leave()
	if err := s.writable("create", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	data, err := alloc.Marshal(a)
	if err != nil {
		return alloc.Allocation{}, fmt.Errorf("create %s: %w", a.Name, err)
	}
	exists := fmt.Errorf("create %s: %w", a.Name, alloc.ErrExists)
	var st unix.Stat_t
	if unix.Fstatat(s.dir, a.Name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return alloc.Allocation{}, exists // spares those who come late a sync
	}
	done, err := s.turn(ctx)
	if err != nil {
		return alloc.Allocation{}, err
	}
	defer done()
	if unix.Fstatat(s.dir, a.Name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return alloc.Allocation{}, exists
	}
	t, err := s.newTemp(a.Name, data)
	if err != nil {
		return alloc.Allocation{}, s.fail("create "+a.Name, err)
	}
	err = s.op("link")
	if err == nil {
		err = retry(func() error { return unix.Linkat(s.dir, t.name, s.dir, a.Name, 0) })
	}
	done()
	if err != nil {
		s.discard(t)
		if errors.Is(err, unix.EEXIST) {
			return alloc.Allocation{}, exists
		}
		return alloc.Allocation{}, s.fail("create "+a.Name, err)
	}
	err = s.op("unlink")
	if err == nil {
		err = unix.Unlinkat(s.dir, t.name, 0)
	}
	err = errors.Join(err, s.syncDir(), unix.Close(t.fd))
	if err != nil {
		return alloc.Allocation{}, s.fail("create "+a.Name, err)
	}
	return s.wrote(a.Name, data)
}

// turnLimit is how long a process waits for its turn.
const turnLimit = time.Second

// turn makes those who create wait for each other, so that of eight who race for a value one syncs a file and not eight, of which
// seven are in vain. Nothing depends on it: who can't have a lock, or finds its holder stopped, goes on without.
func (s *Store) turn(ctx context.Context) (done func(), err error) {
	fd, err := retry2(func() (int, error) {
		return unix.Openat(s.dir, lockFile, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o640)
	})
	if err != nil {
		return func() {}, nil
	}
	wait, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	if err := s.flock(wait, fd); err != nil { // fd is closed
		return func() {}, ctx.Err()
	}
	return sync.OnceFunc(func() { _ = unix.Close(fd) }), nil
}

func (s *Store) syncDir() error {
	if err := s.op("syncdir"); err != nil {
		return err
	}
	return syncFD(s.dir)
}

// wrote is what data says, as anyone reading the file would have it, and notes it: had another process removed it already, that
// would otherwise never show as a change.
func (s *Store) wrote(name string, data []byte) (alloc.Allocation, error) {
	a, err := alloc.Unmarshal(name, data)
	if err != nil {
		return alloc.Allocation{}, err
	}
	a.Version = version(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(name, entry{a: a}, true)
	if err := s.note(name); err != nil {
		s.loaded = false // the next look reads everything
	}
	return a, nil
}

// lock opens the file of that name for changing it, compares versions, and returns it locked.
func (s *Store) lock(ctx context.Context, op, name, want string) (int, error) {
	for {
		fd, err := retry2(func() (int, error) {
			// For writing, because NFS grants an exclusive lock on nothing else.
			return unix.Openat(s.dir, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			return -1, fmt.Errorf("%s %s: %w", op, name, alloc.ErrNotFound)
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
			return -1, fmt.Errorf("%s: %w", op, damageOf(name, entry{damage: "foreign: not a regular file"}))
		case err != nil:
			return -1, s.fail(op+" "+name, err)
		}
		if err := s.flock(ctx, fd); err != nil { // fd is closed
			if ctx.Err() != nil {
				return -1, err
			}
			return -1, s.fail(op+" "+name, err)
		}
		var mine, there unix.Stat_t
		if err := unix.Fstat(fd, &mine); err != nil {
			_ = unix.Close(fd)
			return -1, s.fail(op+" "+name, err)
		}
		err = unix.Fstatat(s.dir, name, &there, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || mine.Ino != there.Ino || mine.Dev != there.Dev {
			_ = unix.Close(fd) // replaced or removed while we waited
			continue
		}
		e, _, err := s.readFD(fd, name)
		switch {
		case err != nil:
			err = s.fail(op+" "+name, err)
		case e.damage != "":
			err = fmt.Errorf("%s: %w", op, damageOf(name, e))
		case e.a.Version != want:
			err = fmt.Errorf("%s %s: %w", op, name, alloc.ErrConflict)
		}
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
}

// flock waits for the lock until ctx ends. On an error fd is closed, or will be when the lock comes at last.
func (s *Store) flock(ctx context.Context, fd int) error {
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		_ = unix.Close(fd)
		return err
	}
	got := make(chan error, 1)
	go func() { got <- retry(func() error { return unix.Flock(fd, unix.LOCK_EX) }) }()
	select {
	case err := <-got:
		if err != nil {
			_ = unix.Close(fd)
		}
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.quit:
		err = errors.New("closed")
	}
	go func() {
		<-got
		_ = unix.Close(fd)
	}()
	return err
}

// Update implements alloc.Store.
func (s *Store) Update(ctx context.Context, a alloc.Allocation) (alloc.Allocation, error) {
	if err := s.enter(ctx, "update", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	defer s.leave()
	if err := s.writable("update", a.Name); err != nil {
		return alloc.Allocation{}, err
	}
	data, err := alloc.Marshal(a)
	if err != nil {
		return alloc.Allocation{}, fmt.Errorf("update %s: %w", a.Name, err)
	}
	fd, err := s.lock(ctx, "update", a.Name, a.Version)
	if err != nil {
		return alloc.Allocation{}, err
	}
	defer unix.Close(fd)
	t, err := s.newTemp(a.Name, data)
	if err != nil {
		return alloc.Allocation{}, s.fail("update "+a.Name, err)
	}
	err = s.op("rename")
	if err == nil {
		err = retry(func() error { return unix.Renameat(s.dir, t.name, s.dir, a.Name) })
	}
	if err != nil {
		s.discard(t)
		return alloc.Allocation{}, s.fail("update "+a.Name, err)
	}
	if err := errors.Join(s.syncDir(), unix.Close(t.fd)); err != nil {
		return alloc.Allocation{}, s.fail("update "+a.Name, err)
	}
	return s.wrote(a.Name, data)
}

// Delete implements alloc.Store.
func (s *Store) Delete(ctx context.Context, name, version string) error {
	if err := s.enter(ctx, "delete", name); err != nil {
		return err
	}
	defer s.leave()
	if err := errors.Join(s.writable("delete", name), checkName("delete", name)); err != nil {
		return err
	}
	fd, err := s.lock(ctx, "delete", name, version)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = s.op("delete")
	if err == nil {
		err = unix.Unlinkat(s.dir, name, 0)
	}
	if err == nil {
		err = s.syncDir()
	}
	if err != nil {
		return s.fail("delete "+name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(name, entry{}, false)
	if err := s.note(name); err != nil {
		s.loaded = false
	}
	return nil
}

// Changes implements alloc.Store.
func (s *Store) Changes(ctx context.Context, since alloc.Cursor) (alloc.Changes, error) {
	if err := s.enter(ctx, "changes", ""); err != nil {
		return alloc.Changes{}, err
	}
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.same()
	if err == nil {
		err = s.look(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			return alloc.Changes{}, ctx.Err()
		}
		return alloc.Changes{}, s.fail("read", err)
	}
	names, next, reset := s.log.Since(since)
	ch := alloc.Changes{Next: next, Reset: reset}
	if reset {
		ch.Set = make([]alloc.Allocation, 0, len(s.seen))
		names = slices.Sorted(maps.Keys(s.seen))
	}
	for _, n := range names {
		switch e, ok := s.seen[n]; {
		case !ok:
			ch.Gone = append(ch.Gone, n)
		case e.damage != "":
			ch.Damaged = append(ch.Damaged, damageOf(n, e))
		default:
			ch.Set = append(ch.Set, e.a)
		}
	}
	return ch, nil
}

// same makes sure that the path still means the directory that is open. Reading on in one that was removed or replaced would
// look as if every value had been given up.
func (s *Store) same() error {
	if s.dir < 0 {
		return nil
	}
	var mine, there unix.Stat_t
	if err := unix.Fstat(s.dir, &mine); err != nil {
		return err
	}
	err := unix.Stat(s.path, &there)
	switch {
	case mine.Nlink == 0, errors.Is(err, unix.ENOENT):
		return errors.New("the directory was removed")
	case err != nil:
		return err
	case mine.Ino != there.Ino || mine.Dev != there.Dev:
		return errors.New("the directory was replaced by another")
	}
	return nil
}

// look brings seen up to date.
func (s *Store) look(ctx context.Context) error {
	if s.dir < 0 {
		return s.appear(ctx)
	}
	if s.notify == nil {
		return s.scan(ctx)
	}
	names, lost, err := s.notify.drain()
	if err != nil {
		return err
	}
	if lost || !s.loaded {
		return s.scan(ctx)
	}
	for _, n := range names {
		if err := s.note(n); err != nil {
			s.loaded = false // what was drained won't come again
			return err
		}
	}
	return nil
}

// appear looks whether a directory that wasn't there is now.
func (s *Store) appear(ctx context.Context) error {
	fd, err := unix.Open(s.path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	s.dir = fd
	return s.scan(ctx)
}

// note reads one name anew.
func (s *Store) note(name string) error {
	if strings.HasPrefix(name, ".") {
		return nil
	}
	e, ok, err := s.read(name)
	if err != nil {
		return err
	}
	s.put(name, e, ok)
	return nil
}

// put is what a name means now.
func (s *Store) put(name string, e entry, ok bool) {
	old, had := s.seen[name]
	switch {
	case !ok && !had, ok && had && old.damage == e.damage && old.a.Version == e.a.Version:
		return
	case ok:
		s.seen[name] = e
	default:
		delete(s.seen, name)
	}
	s.log.Add(name)
}

// scan reads everything anew.
func (s *Store) scan(ctx context.Context) error {
	s.loaded = false
	names, err := s.names()
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(names))
	for _, n := range names {
		there[n] = true
		if err := s.note(n); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	for n := range maps.Keys(maps.Clone(s.seen)) {
		if !there[n] {
			if err := s.note(n); err != nil {
				return err
			}
		}
	}
	s.loaded = true
	return nil
}

func (s *Store) names() ([]string, error) {
	fd, err := retry2(func() (int, error) { return unix.Openat(s.dir, ".", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	d := os.NewFile(uintptr(fd), s.path)
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return names, nil
}

// Health implements alloc.Store.
func (s *Store) Health(ctx context.Context) error {
	if err := s.enter(ctx, "health", ""); err != nil {
		return err
	}
	defer s.leave()
	if err := s.writable("health of", s.path); err != nil {
		return err
	}
	var sfs unix.Statfs_t
	err := errors.Join(s.same(), unix.Fstatfs(s.dir, &sfs))
	switch {
	case err != nil:
	case sfs.Flags&unix.ST_RDONLY != 0:
		err = unix.EROFS
	case sfs.Bavail == 0 && sfs.Blocks > 0 || sfs.Ffree == 0 && sfs.Files > 0:
		err = unix.ENOSPC
	default:
		err = unix.Faccessat(s.dir, ".", unix.W_OK|unix.X_OK, 0)
	}
	if err != nil {
		return s.fail("health", err)
	}
	return nil
}

// Close implements alloc.Store.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.quit) }) // first, for those that wait for a lock
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.watch.Wait()
	if s.notify != nil {
		s.notify.close()
	}
	if s.dir >= 0 {
		return unix.Close(s.dir)
	}
	return nil
}
