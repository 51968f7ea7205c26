package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"vtepd/dataplane/netns"
)

// Elsewhere turns the news of other namespaces into hints, of those that Follow names. It owns a Monitor in each. One that is made anew
// under its name is followed from then on, and the old one is let go: a socket keeps its namespace from going, and all links in it.
type Elsewhere struct {
	// C is a Monitor's, for all of them; a namespace that comes, goes or is another one is a hint too.
	C <-chan struct{}

	o      Options
	c      chan struct{}
	mounts *os.File
	run    sync.WaitGroup

	mu     sync.Mutex
	names  []string
	open   map[string]listener
	failed error // of the first of them
	closed bool
}

// listener is a Monitor that runs.
type listener struct {
	id   netns.ID // of the namespace, which its socket keeps
	stop context.CancelFunc
}

// OpenElsewhere follows nothing yet. The Netns of o is not looked at.
func OpenElsewhere(o Options) (*Elsewhere, error) {
	// The name of a namespace is a file that it is mounted on (ip-netns(8)): with the table of mounts a name begins, ends or
	// becomes another's.
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listen to the names of namespaces: %w", err)
	}
	hints := make(chan struct{}, 1)
	return &Elsewhere{C: hints, o: o, c: hints, mounts: mounts, open: map[string]listener{}}, nil
}

// Follow says which namespaces are to be listened in, by what netns.Open takes; those of an earlier call that aren't among them are
// let go. What happens in one once Follow has returned makes a hint. One that can't be opened is for who looks at it to tell of,
// and followed from when it is there.
func (e *Elsewhere) Follow(names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.names = slices.Compact(slices.Sorted(slices.Values(names)))
	e.resolve()
}

// Run passes news on until ctx ends, which is not an error, and lets all namespaces go.
func (e *Elsewhere) Run(ctx context.Context) error {
	defer e.close()
	stop := context.AfterFunc(ctx, e.wake)
	defer stop()
	raw, err := e.mounts.SyscallConn()
	if err != nil {
		return fmt.Errorf("listen to the names of namespaces: %w", err)
	}
	// The file is always readable, and a change of it an event (proc_pid_mountinfo(5)). To say each time that more is to come is to wait
	// for the next one; one that comes meanwhile isn't lost, as it would be between two calls of Read.
	err = raw.Read(func(uintptr) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.resolve() {
			select {
			case e.c <- struct{}{}:
			default:
			}
		}
		return false
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil && ctx.Err() == nil {
		return fmt.Errorf("listen to the names of namespaces: %w", err)
	}
	return e.failed
}

func (e *Elsewhere) String() string { return "monitor of other namespaces" }

// wake ends Run.
func (e *Elsewhere) wake() { _ = e.mounts.SetReadDeadline(time.Now()) }

// resolve makes what is open what the names name now, and reports whether that is another one than before. e.mu is held.
func (e *Elsewhere) resolve() (news bool) {
	before := e.open
	e.open = map[string]listener{}
	for _, name := range e.names {
		ns, err := netns.Open(name)
		if err != nil {
			continue
		}
		id, err := ns.ID()
		l, ok := before[name]
		switch {
		case err != nil:
		case ok && l.id == id:
			e.open[name] = l
			delete(before, name)
		default:
			news = e.listen(name, ns, id) || news
		}
		_ = ns.Close() // a handle of it would be one more thing that keeps it
	}
	for _, l := range before {
		l.stop()
		news = true
	}
	return news
}

// listen reports whether it could: where it isn't let in, a look isn't either, and says so. e.mu is held.
func (e *Elsewhere) listen(name string, ns *netns.NS, id netns.ID) bool {
	m, err := open(Options{Netns: ns, ReadBuffer: e.o.ReadBuffer}, e.c)
	if err != nil {
		return false
	}
	ctx, stop := context.WithCancel(context.Background())
	e.open[name] = listener{id, stop}
	e.run.Go(func() {
		if err := m.Run(ctx); err != nil {
			e.mu.Lock()
			e.failed = errors.Join(e.failed, fmt.Errorf("namespace %s: %w", name, err))
			e.mu.Unlock()
			e.wake()
		}
	})
	return true
}

func (e *Elsewhere) close() {
	e.mu.Lock()
	e.names, e.closed = nil, true
	e.resolve()
	e.mu.Unlock()
	e.run.Wait()
	_ = e.mounts.Close()
}
