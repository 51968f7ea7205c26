package monitor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vtepd/dataplane/monitor"
	"vtepd/dataplane/netns"
)

// named is a namespace under a name, as ip-netns(8) makes it.
type named struct {
	t    *testing.T
	path string
}

func newNamed(t *testing.T) *named {
	n := &named{t, filepath.Join(t.TempDir(), "far")}
	t.Cleanup(func() {
		if err := unix.Unmount(n.path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	return n
}

// add mounts a new namespace there, which nothing else holds but the handle that makes links in it, until that is closed.
func (n *named) add() *netlink.Handle {
	n.t.Helper()
	ns, err := netns.New()
	if err != nil {
		n.t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(vns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(h.Close)
	n.mount(ns)
	return h
}

// mount gives a namespace the name.
func (n *named) mount(ns *netns.NS) {
	n.t.Helper()
	if err := os.WriteFile(n.path, nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), n.path, "", unix.MS_BIND, ""); err != nil {
		n.t.Fatal(err)
	}
}

// del takes the name away.
func (n *named) del() {
	n.t.Helper()
	if err := errors.Join(unix.Unmount(n.path, unix.MNT_DETACH), os.Remove(n.path)); err != nil {
		n.t.Fatal(err)
	}
}

// elsewhere runs one, and returns what ends it.
func elsewhere(t *testing.T, buffer int) (e *monitor.Elsewhere, end func()) {
	t.Helper()
	e, err := monitor.OpenElsewhere(monitor.Options{ReadBuffer: buffer})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	ended := false
	end = func() {
		t.Helper()
		cancel()
		if ended {
			return
		}
		ended = true
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run doesn't end")
		}
	}
	t.Cleanup(end)
	return e, end
}

// hinted waits for hints until the condition holds.
func hinted(t *testing.T, c <-chan struct{}, what string, holds func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case <-c:
		case <-limit:
			t.Fatalf("no hint that %s", what)
		}
		if holds() {
			return
		}
	}
}

func attrs(h *netlink.Handle, name string) *netlink.LinkAttrs {
	l, err := h.LinkByName(name)
	if err != nil {
		return nil
	}
	return l.Attrs()
}

func add(t *testing.T, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	l := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	if err := errors.Join(h.LinkAdd(l), h.LinkSetUp(l)); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestElsewhere: a link that comes, is renamed, set down or deleted in a namespace that is followed is a hint, and in the one that
// takes its name.
func TestElsewhere(t *testing.T) {
	e, _ := elsewhere(t, 0)
	n := newNamed(t)
	far := n.add()
	e.Follow([]string{n.path, "/nowhere", n.path})
	for round := range 3 {
		l := add(t, far, "up0")
		hinted(t, e.C, "a link has come", func() bool { return attrs(far, "up0") != nil })
		if err := far.LinkSetDown(l); err != nil {
			t.Fatal(err)
		}
		hinted(t, e.C, "it is down", func() bool { return attrs(far, "up0").OperState != netlink.OperUp })
		if err := far.LinkSetName(l, "up1"); err != nil {
			t.Fatal(err)
		}
		hinted(t, e.C, "it is renamed", func() bool { return attrs(far, "up1") != nil })
		if err := far.LinkDel(l); err != nil {
			t.Fatal(err)
		}
		hinted(t, e.C, "it is gone", func() bool { return attrs(far, "up1") == nil })
		switch round {
		case 0: // at once
			if err := unix.Unmount(n.path, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			far = n.add()
			hint(t, e.C)
		case 1: // after a while
			n.del()
			hint(t, e.C)
			far = n.add()
			hint(t, e.C)
		}
		// Followed once more is followed still.
		e.Follow([]string{n.path})
	}
}

// TestElsewhereNotYet: a namespace that isn't there yet is followed from when it is.
func TestElsewhereNotYet(t *testing.T) {
	e, _ := elsewhere(t, 0)
	n := newNamed(t)
	e.Follow([]string{n.path})
	far := n.add()
	hint(t, e.C)
	add(t, far, "up0")
	hinted(t, e.C, "a link has come", func() bool { return attrs(far, "up0") != nil })
}

// TestElsewhereLetsGo: a namespace is let go when its name goes, when it isn't in the list any more, and when Run ends, and not
// only with the process. The end of a veth pair tells: it goes with the namespace of the other one.
func TestElsewhereLetsGo(t *testing.T) {
	const handle = "/proc/self/fd/%d" // it goes without a word
	for _, c := range []struct {
		what  string
		named bool
		letGo func(e *monitor.Elsewhere, n *named, end func())
	}{
		{"the name goes", true, func(_ *monitor.Elsewhere, n *named, _ func()) { n.del() }},
		{"it isn't in the list", false, func(e *monitor.Elsewhere, _ *named, _ func()) { e.Follow(nil) }},
		{"another is in the list", false, func(e *monitor.Elsewhere, n *named, _ func()) { n.add(); e.Follow([]string{n.path}) }},
		{"the end", false, func(_ *monitor.Elsewhere, _ *named, end func()) { end() }},
	} {
		t.Run(c.what, func(t *testing.T) {
			m, near := start(t, 0)
			e, end := elsewhere(t, 0)
			n := newNamed(t)
			ns, err := netns.New()
			if err != nil {
				t.Fatal(err)
			}
			path := fmt.Sprintf(handle, ns.Fd())
			if c.named {
				n.mount(ns)
				path = n.path
			}
			e.Follow([]string{path})
			pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near0"}, PeerName: "far0", PeerNamespace: netlink.NsFd(ns.Fd())}
			if err := near.LinkAdd(pair); err != nil {
				t.Fatal(err)
			}
			hint(t, e.C)
			c.letGo(e, n, end)
			if err := ns.Close(); err != nil {
				t.Fatal(err)
			}
			hinted(t, m.C, "the other end is gone", func() bool { return attrs(near, "near0") == nil })
		})
	}
}

// TestElsewhereEnded: nothing is followed after the end.
func TestElsewhereEnded(t *testing.T) {
	e, end := elsewhere(t, 0)
	n := newNamed(t)
	far := n.add()
	end()
	e.Follow([]string{n.path})
	add(t, far, "up0")
	select {
	case <-e.C:
		t.Error("a hint after the end")
	default:
	}
}

// TestElsewhereOverrun: news that is lost is news, as for a Monitor.
func TestElsewhereOverrun(t *testing.T) {
	e, _ := elsewhere(t, 1)
	n := newNamed(t)
	far := n.add()
	l := add(t, far, "up0")
	e.Follow([]string{n.path})
	const changes = 2000
	last := fmt.Sprint("n", changes)
	failed := make(chan error, 1)
	go func() {
		for i := 1; i <= changes; i++ {
			if err := far.LinkSetAlias(l, fmt.Sprint("n", i)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	eyes, err := netns.Open(n.path)
	if err != nil {
		t.Fatal(err)
	}
	defer eyes.Close()
	h, err := netlink.NewHandleAt(vns.NsHandle(eyes.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	hinted(t, e.C, "the last change is made", func() bool { return attrs(h, "up0").Alias == last })
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}
