package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vtepd/e2e/vm"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name string
		verb string
		args []string
		env  map[string]string
		want invocation
		err  string
	}{
		{
			"a test binary as go test gives it", "exec",
			[]string{"-frr", "bookworm", "/tmp/b/x.test", "-test.timeout=10m0s", "-test.v"},
			nil,
			invocation{test: true, release: "bookworm", timeout: 10*time.Minute + vm.Grace, argv: []string{"/tmp/b/x.test", "-test.timeout=10m0s", "-test.v"}},
			"",
		},
		{
			"no release", "exec",
			[]string{"x.test"},
			nil,
			invocation{test: true, release: "trixie", argv: []string{"x.test"}},
			"",
		},
		{
			"the environment's choice", "exec",
			[]string{"x.test"},
			map[string]string{"VTEPD_FRR_RELEASE": "sid", "VTEPD_NATIVE": "1"},
			invocation{test: true, release: "sid", native: true, argv: []string{"x.test"}},
			"",
		},
		{
			"a command line", "run",
			[]string{"-timeout", "5s", "-native", "--", "sh", "-c", "x", "-test.timeout=1s"},
			nil,
			invocation{release: "trixie", native: true, timeout: 5 * time.Second, argv: []string{"sh", "-c", "x", "-test.timeout=1s"}},
			"",
		},
		{"nothing to run", "run", []string{"-frr", "sid"}, nil, invocation{}, "no command line to run"},
		{"a bad timeout", "exec", []string{"x.test", "-test.timeout=x"}, nil, invocation{}, `-test.timeout: time: invalid duration "x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"VTEPD_FRR_RELEASE", "VTEPD_NATIVE"} {
				t.Setenv(name, c.env[name])
			}
			got, err := parse(c.verb, c.args)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("%v, would be: %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(invocation{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutside(t *testing.T) {
	for file, want := range map[string][]vm.Share{
		"/src/bin/demo":            nil,
		"/bin/sh":                  nil,
		"/usr/lib/frr/zebra":       nil,
		"/tmp/go-build1/b1/x.test": {{Path: "/tmp/go-build1/b1"}},
		"/srcs/x":                  {{Path: "/srcs"}},
	} {
		if diff := cmp.Diff(want, outside("/src", file, false)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// build makes this program as the lab needs it: static.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "vmrun")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// trixie is a lab on this checkout with that guest's root.
func trixie(t *testing.T) (vm.Lab, string) {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := vm.FindCheckout(dir)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := vm.Default.Build(t.Context(), os.Stderr, "trixie")
	if err != nil {
		t.Fatal(err)
	}
	return vm.Lab{Checkout: checkout, Artifacts: t.TempDir(), Root: roots[0]}, dir
}

// TestAWorldOnThisHost runs jobs on this kernel over the guest's root: what
// -native does once the kernel has passed the probe.
func TestAWorldOnThisHost(t *testing.T) {
	bin := build(t)
	lab, dir := trixie(t)
	for _, c := range []struct {
		name, script string
		status       int
		stdout       string
	}{
		{
			"FRR, the checkout and a network namespace of its own", `/usr/lib/frr/zebra --version | head -n 1; pwd; ip -br link show; ip netns add x && ip netns`, 0,
			"zebra version 10.3\n" + dir + "\nlo               UNKNOWN        00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP> \nx\n",
		},
		{"a status", "touch /etc/left; exit 9", 9, ""},
		{"nothing left", "ls /etc/left; ip netns; echo seen > $VTEPD_ARTIFACTS/note; touch ./x", 1, ""},
	} {
		var stdout, stderr bytes.Buffer
		exit, err := lab.RunNative(t.Context(), bin, vm.Command{
			Argv: []string{"sh", "-c", c.script}, Dir: dir, Env: lab.Env(nil), Stdout: &stdout, Stderr: &stderr,
		})
		if err != nil || exit.Status != c.status || stdout.String() != c.stdout {
			t.Errorf("%s: status %d, %v, stdout %q, stderr %q, would be %d, %q",
				c.name, exit.Status, err, stdout.String(), stderr.String(), c.status, c.stdout)
		}
	}
	if note, err := os.ReadFile(filepath.Join(lab.Artifacts, "note")); err != nil || string(note) != "seen\n" {
		t.Errorf("the world's file: %q, %v", note, err)
	}
	for _, left := range []string{"x", lab.Root.Dir + "/etc/left"} {
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			t.Errorf("%s: %v, would not be there", left, err)
		}
	}
}

// TestAGuestsWord boots one guest and holds it to what the callers rely on: exit
// statuses, both streams, nothing left behind, and a panic that isn't a success.
func TestAGuestsWord(t *testing.T) {
	bin := build(t)
	lab, dir := trixie(t)
	guest, err := lab.Boot(t.Context(), bin)
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()

	for _, c := range []struct {
		name           string
		argv           []string
		status         int
		stdout, stderr string
	}{
		{"success", []string{"true"}, 0, "", ""},
		{"a status", []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{"a signal", []string{"sh", "-c", "kill -9 $$"}, 137, "", ""},
		{"a daemon left behind, holding the streams", []string{"sh", "-c", "ip link add left type dummy; touch /left; sleep 1000 & echo started"}, 0, "started\n", ""},
		{
			"and nothing of it",
			[]string{"sh", "-c", "ip -br link show; ls -d /left; ls /proc | grep -c '^[0-9]'; pgrep sleep"},
			1,
			"lo               UNKNOWN        00:00:00:00:00:00 <LOOPBACK,UP,LOWER_UP> \n4\n", "ls: cannot access '/left': No such file or directory\n",
		},
		{"a file for the host", []string{"sh", "-c", `echo seen > "$VTEPD_ARTIFACTS/note"`}, 0, "", ""},
		{"no such program", []string{"/no/such"}, 127, "", "lab: find the job's program: exec: \"/no/such\": stat /no/such: no such file or directory\n"},
	} {
		var stdout, stderr bytes.Buffer
		exit, err := guest.Run(t.Context(), vm.Command{Argv: c.argv, Dir: dir, Env: lab.Env(nil), Stdout: &stdout, Stderr: &stderr})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if exit.Status != c.status || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%s: status %d, stdout %q, stderr %q, would be %d, %q, %q",
				c.name, exit.Status, stdout.String(), stderr.String(), c.status, c.stdout, c.stderr)
		}
	}
	if note, err := os.ReadFile(filepath.Join(lab.Artifacts, "note")); err != nil || string(note) != "seen\n" {
		t.Errorf("the guest's file: %q, %v", note, err)
	}

	_, err = guest.Run(t.Context(), vm.Command{
		Argv: []string{"sh", "-c", "echo c > /proc/sysrq-trigger"},
		Dir:  dir, Env: lab.Env(nil), Stdout: os.Stdout, Stderr: os.Stderr,
	})
	var dead *vm.DeadError
	if !errors.As(err, &dead) || !strings.Contains(dead.Console, "Kernel panic - not syncing: sysrq triggered crash") {
		t.Errorf("a panic: %v, would be a dead guest with the panic on its console", err)
	}
}

// TestAHungGuestIsKilled runs the whole program: the console of what was killed
// is kept, and the status is no success.
func TestAHungGuestIsKilled(t *testing.T) {
	artifacts := t.TempDir()
	cmd := exec.CommandContext(t.Context(), build(t), "run", "-timeout", "1s", "--", "sleep", "1000")
	cmd.Env = append(os.Environ(), "VTEPD_ARTIFACTS="+artifacts)
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 1 {
		t.Fatalf("%v, would be exit status 1\n%s", err, out)
	}
	if want := "the guest is gone: it was killed: its deadline of 1s passed"; !strings.Contains(string(out), want) {
		t.Errorf("it said %q, would say: %s", out, want)
	}
	if _, err := os.Stat(filepath.Join(artifacts, "console.log")); err != nil {
		t.Errorf("its console: %v", err)
	}
}
