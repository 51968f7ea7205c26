package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"vtepd/e2e/vm/guestinit"
)

// Grace is what a test binary gets beyond its own deadline: it should end
// itself, and say where it hung.
const Grace = 30 * time.Second

// Lab is what the commands of one checkout see, in a guest or natively: the
// checkout read-only at its own path, a directory for artifacts, and whatever
// else is shared.
type Lab struct {
	Checkout  string // the directory of go.mod
	Artifacts string // writable; VTEPD_ARTIFACTS of its commands
	Root      Root
	Extra     []Share
}

// FindCheckout looks for go.mod in dir and above.
func FindCheckout(dir string) (string, error) {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod in %s or above", dir)
		}
	}
}

// Shares are the lab's directories, shorter paths first, none twice.
func (l Lab) Shares() []Share {
	all := []Share{{l.Checkout, true}, {l.Artifacts, false}}
	for _, s := range l.Extra {
		if !slices.ContainsFunc(all, func(x Share) bool { return x.Path == s.Path && x.ReadOnly == s.ReadOnly }) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Share) int { return len(a.Path) - len(b.Path) })
	return all
}

// Env is the environment of the lab's commands: its own names, and of host's
// what is allowed in (VTEPD_*, RAPID*, GOTRACEBACK).
func (l Lab) Env(host []string) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root",
		"TMPDIR=/tmp",
		"LANG=C.UTF-8",
	}
	for _, kv := range host {
		if strings.HasPrefix(kv, "VTEPD_") || strings.HasPrefix(kv, "RAPID") || strings.HasPrefix(kv, "GOTRACEBACK=") {
			env = append(env, kv)
		}
	}
	set := func(name, value string) {
		env = append(slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }), name+"="+value)
	}
	set("VTEPD_ARTIFACTS", l.Artifacts)
	set("VTEPD_FRR_RELEASE", l.Root.Release.Name)
	set("VTEPD_FRR_VERSION", l.Root.FRR)
	if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "VTEPD_BIN=") }) {
		set("VTEPD_BIN", filepath.Join(l.Checkout, "bin", "vtepd"))
	}
	return env
}

// Boot boots a guest for the lab; init is this program, or another static one
// that calls guestinit.Dispatch.
func (l Lab) Boot(ctx context.Context, init string) (*Guest, error) {
	if err := os.MkdirAll(l.Artifacts, 0o755); err != nil {
		return nil, err
	}
	return Boot(ctx, Machine{
		Root: l.Root, Init: init, Shares: l.Shares(),
		Console: filepath.Join(l.Artifacts, "console.log"),
	})
}

// RunNative runs one command in a world of its own on this host's kernel, over
// the same root as the guest's. The kernel must have what ProbeNative asks for.
func (l Lab) RunNative(ctx context.Context, self string, c Command) (guestinit.Exit, error) {
	if err := os.MkdirAll(l.Artifacts, 0o755); err != nil {
		return guestinit.Exit{}, err
	}
	job := guestinit.Job{Argv: c.Argv, Dir: c.Dir, Env: c.Env, Lower: l.Root.Dir}
	for _, s := range l.Shares() {
		job.Binds = append(job.Binds, guestinit.Bind{Source: s.Path, Path: s.Path, ReadOnly: s.ReadOnly})
	}
	cmd, err := guestinit.Start(self, job)
	if err != nil {
		return guestinit.Exit{}, err
	}
	cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
	if err := startBound(cmd); err != nil {
		return guestinit.Exit{}, fmt.Errorf("start a world on this host: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		// One that has ended already is what we want.
		_ = cmd.Process.Kill()
	})
	defer stop()
	err = cmd.Wait()
	if ctx.Err() != nil {
		return guestinit.Exit{}, context.Cause(ctx)
	}
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return guestinit.Exit{Status: exitStatus(failed.Sys().(syscall.WaitStatus))}, nil
	}
	return guestinit.Exit{}, err
}

func exitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// TestTimeout is the deadline that a test binary's arguments ask for; 0 is none.
func TestTimeout(args []string) (time.Duration, error) {
	var timeout time.Duration
	for i, arg := range args {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if name != "test.timeout" || !strings.HasPrefix(arg, "-") {
			continue
		}
		if !ok && i+1 < len(args) {
			value = args[i+1]
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			return 0, fmt.Errorf("-test.timeout: %w", err)
		}
		timeout = d
	}
	return timeout, nil
}

// WithDeadline bounds ctx and says so when it ends; 0 is no bound.
func WithDeadline(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("its deadline of %s passed", timeout))
}

// DropArtifacts removes the artifacts of a command that succeeded, unless there
// is more than the guest's console.
func DropArtifacts(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "console.log" {
			return nil
		}
	}
	return os.RemoveAll(dir)
}

// WriteComplaints reports what the kernel said while a command ran.
func WriteComplaints(w io.Writer, exit guestinit.Exit) {
	for _, line := range exit.Kernel {
		fmt.Fprintf(w, "lab: the guest's kernel said: %s\n", line)
	}
}
