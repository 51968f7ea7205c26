// Package netns gives handles of network namespaces: the current one, one that has a name or a path, or a new one that
// nothing but its handle holds. It never leaves a thread in a namespace that the thread didn't come from: one that can't
// be switched back ends.
package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is where names of namespaces are kept, by ip-netns(8).
const Dir = "/run/netns"

const own = "/proc/thread-self/ns/net"

// NS is an open network namespace. It stays as long as it is open, or anything else holds it.
type NS struct{ f *os.File }

// Path is the file of the namespace of that name; an absolute path is its own.
func Path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(Dir, name)
}

// Current opens the namespace of the calling thread.
func Current() (*NS, error) { return open(own) }

// Open opens the namespace of that name below Dir, or of that absolute path.
func Open(name string) (*NS, error) {
	if name == "" || name == "." || name == ".." || !filepath.IsAbs(name) && strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q is neither a name below %s nor an absolute path", name, Dir)
	}
	return open(Path(name))
}

func open(path string) (*NS, error) {
	// O_NONBLOCK: a path that the user gave could be a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return nil, errors.Join(fmt.Errorf("%s is not a network namespace", path), f.Close())
	}
	return &NS{f}, nil
}

// New makes a namespace that only the returned handle holds: it dies, with all that is in it, when that is closed or the
// process ends.
func New() (*NS, error) {
	var ns *NS
	err := locked(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
		var err error
		ns, err = Current()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("new namespace: %w", err)
	}
	return ns, nil
}

// Fd is the descriptor, for IFLA_NET_NS_FD and the like. It is valid until Close.
func (n *NS) Fd() int { return int(n.f.Fd()) }

// Close closes the handle.
func (n *NS) Close() error { return n.f.Close() }

// Do runs fn on a thread that is in the namespace for as long as fn runs. Goroutines that fn starts aren't.
func (n *NS) Do(fn func() error) error {
	return locked(func() error { return unix.Setns(n.Fd(), unix.CLONE_NEWNET) }, fn)
}

// ID tells a namespace from any other for as long as it is there: what names another one later may have the same.
type ID struct{ dev, ino uint64 }

// ID is that of the namespace.
func (n *NS) ID() (ID, error) {
	var s unix.Stat_t
	if err := unix.Fstat(n.Fd(), &s); err != nil {
		return ID{}, &os.PathError{Op: "fstat", Path: n.f.Name(), Err: err}
	}
	return ID{s.Dev, s.Ino}, nil
}

// Same reports whether both are handles of one namespace.
func (n *NS) Same(o *NS) bool {
	a, err := n.ID()
	if err != nil {
		return false
	}
	b, err := o.ID()
	return err == nil && a == b
}

// locked runs enter and then fn on a thread of its own, and takes the thread back to the caller's namespace. Where
// that fails the thread stays locked, so that the runtime ends it with the goroutine.
func locked(enter, fn func() error) error {
	// The caller may itself be locked to a thread in a namespace that isn't the process's.
	runtime.LockOSThread()
	from, err := Current()
	runtime.UnlockOSThread()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := Current()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = unix.Setns(from.Fd(), unix.CLONE_NEWNET)
		if err == nil {
			err = enter()
		}
		if err == nil {
			err = fn()
		}
		if unix.Setns(home.Fd(), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		_ = home.Close() // before the answer: the caller may count descriptors
		done <- err
	}()
	return <-done
}

// Dup returns another handle of the namespace.
func (n *NS) Dup() (*NS, error) {
	fd, err := unix.FcntlInt(n.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", n.f.Name(), err)
	}
	return &NS{os.NewFile(uintptr(fd), n.f.Name())}, nil
}
