package dirstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// The test binary is also each process of these tests: with DIRSTORE_CHILD set it does that and ends.
var children = map[string]func(args []string) error{"claim": childClaim, "life": childLife, "disk": childDisk}

func TestMain(m *testing.M) {
	if name := os.Getenv("DIRSTORE_CHILD"); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "DIRSTORE_CHILD="+name)
	return c
}

// childClaim DIR ROUTER N makes N claims and prints their values.
func childClaim(args []string) error {
	s, err := Open(args[0])
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	values, err := storetest.ClaimMany(context.Background(), s, args[1], n)
	fmt.Println(strings.Join(values, "\n"))
	return err
}

// Eight processes start at once, each claims 1,000 addresses, and the 8,000 are the pool's lowest 8,000, each once.
func TestEightProcesses(t *testing.T) {
	const processes, each = 8, 1000
	dir := filepath.Join(t.TempDir(), "claims")
	var mu sync.Mutex
	values := map[string][]string{}
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			router := fmt.Sprintf("r%d", i)
			c := child(t, "claim", dir, router, strconv.Itoa(each))
			c.Stderr = os.Stderr
			out, err := c.Output()
			if err != nil {
				t.Errorf("%s: %v", router, err)
			}
			mu.Lock()
			defer mu.Unlock()
			values[router] = strings.Fields(string(out))
			if len(values[router]) != each {
				t.Errorf("%s has %d values", router, len(values[router]))
			}
		})
	}
	wg.Wait()
	if err := storetest.CheckMany(t.Context(), mustOpen(t, dir), values); err != nil {
		t.Error(err)
	}
}

// childLife DIR K does the steps, prints after each, and kills itself before the K-th call that changes something; a negative K
// writes half of what is to be written first, where that call is a write.
func childLife(args []string) error {
	k, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	torn := k < 0
	k = max(k, -k)
	n := 0
	s, err := open(args[0], false, func(op string) error {
		if n++; n < k {
			return nil
		}
		if torn && op == "write" {
			tmp, err := filepath.Glob(filepath.Join(args[0], ".tmp", "*"))
			if err != nil || len(tmp) != 1 {
				return fmt.Errorf("%v %w", tmp, err)
			}
			if err := os.WriteFile(tmp[0], []byte(`{"version": 1, "na`), 0o640); err != nil {
				return err
			}
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	})
	if err != nil {
		return err
	}
	for i, step := range storetest.Life(context.Background(), alloc.NewClaimer(s, storetest.LifePools())) {
		if err := step(); err != nil {
			return err
		}
		fmt.Println(i)
	}
	return nil
}

// Killed for real before every call that changes something, and in the middle of every write.
func TestKilled(t *testing.T) {
	for _, sign := range []int{1, -1} {
		kills := 0
		for k := 1; ; k++ {
			dir := filepath.Join(t.TempDir(), "claims")
			out, err := child(t, "life", dir, strconv.Itoa(k*sign)).Output()
			var exit *exec.ExitError
			if err == nil {
				break
			}
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("child: %v %s", err, exit.Stderr)
			}
			kills++
			acked := len(strings.Fields(string(out)))
			s := mustOpen(t, dir)
			if tmp, err := os.ReadDir(filepath.Join(dir, ".tmp")); len(tmp) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("killed at %d: left %v %v", k*sign, tmp, err)
			}
			if err := storetest.CheckLife(t.Context(), s, acked); err != nil {
				t.Errorf("killed at %d: %v", k*sign, err)
			}
			_ = s.Close()
		}
		if kills < 30 {
			t.Errorf("only %d kills", kills)
		}
	}
}

// A real full disk and a real read-only one, in a mount namespace of the test's own.
func TestFullAndReadOnlyDisk(t *testing.T) {
	c := child(t, "disk", t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func childDisk(args []string) error {
	ctx := context.Background()
	disk := args[0]
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		return err
	}
	dir := filepath.Join(disk, "claims")
	s, err := Open(dir)
	if err != nil {
		return err
	}
	defer s.Close()
	c := alloc.NewClaimer(s, storetest.LifePools())
	claim := func(i int) alloc.Claim { return alloc.Claim{Name: fmt.Sprintf("leaf1/%d", i), Pool: "p"} }
	full := 0
	for err == nil {
		if _, _, err = c.Acquire(ctx, claim(full)); err == nil {
			full++
		}
	}
	want := fmt.Sprintf("leaf1/%d: LedgerUnavailable: create p@10.0.0.%d: ledger unavailable: %s: no space left on device", full, full, dir)
	if err.Error() != want || !errors.Is(err, unix.ENOSPC) || full == 0 {
		return fmt.Errorf("after %d: %w; want %s", full, err, want)
	}
	if err := s.Health(ctx); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("health: %w", err)
	}
	if _, err := c.AllowBinding(ctx, "p@10.0.0.0", true); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("update: %w", err)
	}
	check := func(s *Store, n int) error {
		c := alloc.NewClaimer(s, storetest.LifePools())
		for i := range n {
			if a, wrote, err := c.Acquire(ctx, claim(i)); err != nil || wrote || a.Value != fmt.Sprintf("10.0.0.%d", i) || a.AllowBinding {
				return fmt.Errorf("%d: %+v %v %w", i, a, wrote, err)
			}
		}
		return nil
	}
	if err := check(s, full); err != nil {
		return err
	}
	if err := c.Release(ctx, fmt.Sprintf("p@10.0.0.%d", full-1), claim(full-1).Name, ""); err != nil {
		return err
	}
	if _, _, err := c.Acquire(ctx, claim(full-1)); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}

	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	fresh, err := Open(dir)
	if err != nil {
		return err
	}
	defer fresh.Close()
	if err := check(fresh, full); err != nil {
		return err
	}
	if err := fresh.Health(ctx); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("health: %w", err)
	}
	_, _, err = c.Acquire(ctx, claim(full))
	want = fmt.Sprintf("leaf1/%d: LedgerUnavailable: create p@10.0.0.%d: ledger unavailable: %s: read-only file system", full, full, dir)
	if err == nil || err.Error() != want {
		return fmt.Errorf("read-only: %w; want %s", err, want)
	}
	err = c.Release(ctx, "p@10.0.0.0", claim(0).Name, "")
	if want := "delete p@10.0.0.0: ledger unavailable: " + dir + ": read-only file system"; err == nil || err.Error() != want {
		return fmt.Errorf("release: %w; want %s", err, want)
	}
	return check(fresh, full)
}
