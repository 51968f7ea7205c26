package netns_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vtepd/dataplane/netns"
)

func TestNewIsEmptyAndOthersStay(t *testing.T) {
	before, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if ns.Same(before) {
		t.Fatal("the new namespace is the old one")
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			err := ns.Do(func() error {
				in, err := netns.Current()
				if err != nil {
					return err
				}
				defer in.Close()
				if !in.Same(ns) {
					return errors.New("Do runs elsewhere")
				}
				links, err := net.Interfaces()
				if err == nil && (len(links) == 0 || links[0].Name != "lo" || links[0].Flags&net.FlagUp != 0) {
					err = errors.New("not a new namespace")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			after, err := netns.Current()
			if err != nil {
				t.Error(err)
				return
			}
			defer after.Close()
			if !after.Same(before) {
				t.Error("a thread stayed in the namespace")
			}
		})
	}
	wg.Wait()
}

func TestDoInsideDo(t *testing.T) {
	a, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	err = a.Do(func() error {
		if err := b.Do(func() error { return nil }); err != nil {
			return err
		}
		in, err := netns.Current()
		if err != nil {
			return err
		}
		defer in.Close()
		if !in.Same(a) {
			return errors.New("the inner Do moved the outer one")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestErrorOfFnIsReturned(t *testing.T) {
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error { return os.ErrClosed }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"":                    `"" is neither a name below /run/netns nor an absolute path`,
		"..":                  `".." is neither a name below /run/netns nor an absolute path`,
		"../etc":              `"../etc" is neither a name below /run/netns nor an absolute path`,
		"no-such-namespace":   "open /run/netns/no-such-namespace: no such file or directory",
		file:                  file + " is not a network namespace",
		fifo:                  fifo + " is not a network namespace",
		"/proc/self/ns/mnt":   "/proc/self/ns/mnt is not a network namespace",
		"/proc/self/ns/nonet": "open /proc/self/ns/nonet: no such file or directory",
	} {
		ns, err := netns.Open(name)
		if err == nil {
			t.Errorf("Open(%q) succeeded", name)
			ns.Close()
			continue
		}
		if got := strings.TrimSpace(err.Error()); got != want {
			t.Errorf("Open(%q): %q, want %q", name, got, want)
		}
	}
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
}
