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
)

// The test binary is also each process of these tests: with DIRSTORE_CHILD set it does that and ends.
var children = map[string]func(args []string) error{"claim": childClaim, "move": childMove, "disk": childDisk}

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

func childPools() *alloc.Pools {
	p, err := alloc.NewPools(alloc.Pool{Name: "p", Kind: alloc.KindAddress, Entries: []string{"10.0.0.0/8"}})
	if err != nil {
		panic(err)
	}
	return p
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
	c := alloc.NewClaimer(s, childPools())
	for i := range n {
		a, wrote, err := c.Acquire(context.Background(), alloc.Claim{Name: fmt.Sprintf("%s/%d", args[1], i), Pool: "p"})
		if err != nil {
			return err
		}
		if !wrote {
			return fmt.Errorf("%s wasn't written by us", a.Name)
		}
		fmt.Println(a.Value)
	}
	return nil
}

// Eight processes start at once, each claims 1,000 addresses, and the 8,000 are the pool's lowest 8,000, each once.
func TestEightProcesses(t *testing.T) {
	const processes, each = 8, 1000
	dir := filepath.Join(t.TempDir(), "claims")
	var mu sync.Mutex
	holder := map[string]int{}
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			c := child(t, "claim", dir, fmt.Sprintf("r%d", i), strconv.Itoa(each))
			c.Stderr = os.Stderr
			out, err := c.Output()
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			for v := range strings.FieldsSeq(string(out)) {
				if first, ok := holder[v]; ok {
					t.Errorf("%s was given to processes %d and %d", v, first, i)
				}
				holder[v] = i
			}
		})
	}
	wg.Wait()
	if len(holder) != processes*each {
		t.Errorf("%d values, want %d", len(holder), processes*each)
	}
	all, bad, err := alloc.NewClaimer(mustOpen(t, dir), childPools()).List(t.Context())
	if err != nil || len(bad) > 0 || len(all) != processes*each {
		t.Fatalf("%d allocations, damage %v, %v", len(all), bad, err)
	}
	for _, a := range all {
		if got := strings.Split(a.Holders[0].Claim, "/")[0]; got != fmt.Sprintf("r%d", holder[a.Value]) {
			t.Errorf("%s is held by %s, and was given to process %d", a.Name, got, holder[a.Value])
		}
	}
	for i := range processes * each {
		if v := fmt.Sprintf("10.0.%d.%d", i/256, i%256); !strings.Contains(v, " ") {
			if _, ok := holder[v]; !ok {
				t.Errorf("%s was passed over", v)
			}
		}
	}
}

// moveSteps are a life: claimed, moved, the old value released, moved back while joining a group, released.
func moveSteps(ctx context.Context, c *alloc.Claimer) []func() error {
	x := func(prefer string) alloc.Claim {
		return alloc.Claim{Name: "leaf1/x", UID: "u", Pool: "p", Prefer: prefer}
	}
	g := alloc.Claim{Name: "leaf1/g", UID: "u", Pool: "p", Group: "any"}
	acquire := func(cl alloc.Claim) func() error {
		return func() error { _, _, err := c.Acquire(ctx, cl); return err }
	}
	release := func(name, claim string) func() error {
		return func() error { return c.Release(ctx, name, claim, "u") }
	}
	return []func() error{
		acquire(x("10.0.0.1")), acquire(x("10.0.0.2")), release("p@10.0.0.1", "leaf1/x"),
		acquire(g), acquire(x("10.0.0.1")), release("p@10.0.0.2", "leaf1/x"), release("p@10.0.0.0", "leaf1/g"),
	}
}

// moveStates are what the ledger may hold after each step; a killed step leaves the one before or the one after, or, between the
// release of a move's old value and the removal of its mark, what moveLedger doesn't show.
var moveStates = []string{
	"", "10.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.2", "10.0.0.0 10.0.0.2", "10.0.0.0 10.0.0.1 10.0.0.2", "10.0.0.0 10.0.0.1", "10.0.0.1",
}

func moveLedger(t *testing.T, c *alloc.Claimer) string {
	t.Helper()
	all, bad, err := c.List(t.Context())
	if err != nil || len(bad) > 0 {
		t.Fatalf("list: %v %v", bad, err)
	}
	var out []string
	for _, a := range all {
		out = append(out, a.Value)
	}
	return strings.Join(out, " ")
}

// childMove DIR K does the steps, prints after each, and kills itself before the K-th call that changes something; a negative K
// writes half of what is to be written first, where that call is a write.
func childMove(args []string) error {
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
	for i, step := range moveSteps(context.Background(), alloc.NewClaimer(s, childPools())) {
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
			out, err := child(t, "move", dir, strconv.Itoa(k*sign)).Output()
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
			c := alloc.NewClaimer(s, childPools())
			if got := moveLedger(t, c); got != moveStates[acked] && got != moveStates[acked+1] {
				t.Errorf("killed at %d after %d steps: %q, want %q or %q", k*sign, acked, got, moveStates[acked], moveStates[acked+1])
			}
			for i, step := range moveSteps(t.Context(), c)[acked:] {
				if err := step(); err != nil {
					t.Fatalf("killed at %d, step %d again: %v", k*sign, acked+i, err)
				}
			}
			if got := moveLedger(t, c); got != moveStates[len(moveStates)-1] {
				t.Errorf("killed at %d, finished: %q", k*sign, got)
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
	c := alloc.NewClaimer(s, childPools())
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
		c := alloc.NewClaimer(s, childPools())
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
