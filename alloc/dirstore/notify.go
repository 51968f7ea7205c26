package dirstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// localFS are the filesystems whose inotify tells of every change, because only this kernel makes them. On others (NFS, virtiofs,
// FUSE, a cluster's) another machine may.
var localFS = map[uint64]bool{
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true,
	unix.F2FS_SUPER_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true, unix.RAMFS_MAGIC: true,
}

func tellsAll(dir int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(dir, &st) == nil && localFS[uint64(st.Type)]
}

const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_CLOSE_WRITE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_ONLYDIR

// notifier is an inotify instance on the ledger's directory. The kernel queues an event before the call that makes it returns,
// so that what is drained now covers all that had returned before.
type notifier struct {
	fd  int
	buf [64 << 10]byte
}

func newNotifier(dir int) (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// The directory that is open, and not whatever its path means now.
	if _, err := unix.InotifyAddWatch(fd, fmt.Sprintf("/proc/self/fd/%d", dir), mask); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &notifier{fd: fd}, nil
}

func (n *notifier) close() { _ = unix.Close(n.fd) }

// drain is the names that events were about, each once; lost when the kernel dropped some, or the directory is gone.
func (n *notifier) drain() (names []string, lost bool, err error) {
	var seen map[string]bool
	for {
		k, err := unix.Read(n.fd, n.buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return names, lost, nil
		case err != nil:
			return nil, true, err
		}
		if seen == nil {
			seen = map[string]bool{}
		}
		for _, e := range parseEvents(n.buf[:k]) {
			switch {
			case e.mask&(unix.IN_Q_OVERFLOW|unix.IN_DELETE_SELF|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
				lost = true
			case e.name != "" && !seen[e.name]:
				seen[e.name] = true
				names = append(names, e.name)
			}
		}
	}
}

type event struct {
	mask uint32
	name string
}

// parseEvents reads struct inotify_event (inotify(7)) in the kernel's byte order.
func parseEvents(b []byte) []event {
	var out []event
	for len(b) >= unix.SizeofInotifyEvent {
		n := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if n > len(b) {
			break
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:n]), "\x00")
		out = append(out, event{binary.NativeEndian.Uint32(b[4:]), name})
		b = b[n:]
	}
	return out
}

// pollEvery is how often the directory's own time is looked at where the kernel doesn't tell: another machine may change it, or there is
// no inotify instance left.
const pollEvery = 2 * time.Second

// Watch implements alloc.Store.
func (s *Store) Watch(ctx context.Context) (<-chan struct{}, error) {
	if err := s.enter(ctx, "watch", ""); err != nil {
		return nil, err
	}
	defer s.leave()
	hints := make(chan struct{}, 1)
	hint := func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	}
	var n *notifier
	if s.notify != nil {
		// Of instances a user has no more than 128, by default: without one, the directory is looked at.
		n, _ = s.inotify(s.dir)
	}
	if n == nil {
		s.watch.Go(func() {
			defer close(hints)
			s.pollDir(ctx, hint)
		})
		return hints, nil
	}
	// Non-blocking, so that Read waits in the runtime's poller and Close wakes it.
	f := os.NewFile(uintptr(n.fd), "inotify")
	done := make(chan struct{})
	s.watch.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.quit:
		case <-done:
		}
		_ = f.Close()
	})
	s.watch.Go(func() {
		defer close(hints)
		defer close(done)
		for {
			k, err := f.Read(n.buf[:])
			if err != nil {
				return
			}
			for _, e := range parseEvents(n.buf[:k]) {
				if !strings.HasPrefix(e.name, ".") {
					hint()
					break
				}
			}
		}
	})
	return hints, nil
}

// pollDir hints when the directory's time is another one, not a later one: clocks jump. Its time is coarse, and a second change in
// one tick doesn't show, so that it hints once more at the next look.
func (s *Store) pollDir(ctx context.Context, hint func()) {
	t := time.NewTicker(s.poll)
	defer t.Stop()
	var last unix.Timespec
	known, again := false, true
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.quit:
			return
		case <-t.C:
		}
		now, ok := s.dirTime()
		differs := ok != known || now != last
		if differs || again {
			hint()
		}
		last, known, again = now, ok, differs
	}
}

func (s *Store) dirTime() (unix.Timespec, bool) {
	var st unix.Stat_t
	if err := unix.Stat(s.path, &st); err != nil {
		return unix.Timespec{}, false
	}
	return st.Mtim, true
}
