package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"vtepd": main}) }

// TestScripts runs the command as a user does. Beside testscript's own there is `exits N COMMAND…`: the exit status is N; `etcd
// NAME`; and `envsubst FILE`, which puts the variables into a file.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"etcd": etcdCommand,
			"envsubst": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 1 {
					ts.Fatalf("usage: envsubst FILE")
				}
				text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
			},
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits N COMMAND [ARGUMENT...]")
				}
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					exited, ok := errors.AsType[*exec.ExitError](err)
					if !ok {
						ts.Fatalf("%v", err)
					}
					got = exited.ExitCode()
				}
				if got != want {
					ts.Fatalf("exit status %d, want %d", got, want)
				}
			},
		},
	})
}

// vtepd is the command, on paths below dir.
func vtepd(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Args = append([]string{"vtepd"}, args...) // TestMain looks at the name
	cmd.Args = append(cmd.Args, "--config", dir+"/config", "--state", dir+"/state", "--frr", dir+"/frr", "--socket", dir+"/run/vtepd.sock")
	return cmd
}

// TestRun is the daemon beside an FRR that isn't there: it waits, tells of it, hears of files, and stops when told.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"config", "frr"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	drop := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "config", "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "version: 1\nnode: {name: r1}\nendpoints: {vtep0: {loopback: {}, address: {static: 10.0.0.1}}}\n"
	drop(good)
	daemon := vtepd(t, dir, "run")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	daemon.Stderr = w
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer daemon.Process.Kill() //nolint:errcheck // it has ended already where all went well
	w.Close()
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(r)
	until := func(pattern string) {
		t.Helper()
		var seen strings.Builder
		for {
			line, err := lines.ReadString('\n')
			seen.WriteString(line)
			if ok, _ := regexp.MatchString(pattern, line); ok {
				return
			}
			if err != nil {
				t.Fatalf("%v, and no line like %s in\n%s", err, pattern, seen.String())
			}
		}
	}
	says := func(code int, pattern string, args ...string) {
		t.Helper()
		cmd := vtepd(t, dir, args...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code || !regexp.MustCompile(pattern).Match(out) {
			t.Errorf("vtepd %s: %v, want exit status %d and %s in\n%s", strings.Join(args, " "), err, code, pattern, out)
		}
	}

	until(`level=WARN msg=waiting why="frr: bgpd: socket .*/frr/bgpd.vty: no such file`)
	says(0, `(?m)^vtepd dev on r1: waiting since .*\nconfig +`+dir+`/config\nlive +generation 0, state -\nwhy +frr: bgpd: socket .*no such file`, "status")
	says(0, `(?s)^\{.*"condition": "waiting".*"messages": \[.*\}\n$`, "status", "-o", "json")
	says(1, `^vtepd: nothing waits to be confirmed\n$`, "confirm")
	says(1, `^vtepd: nothing to go back to: no such config is kept\n$`, "rollback")
	says(1, `^vtepd: generation 0: no such config is kept; there are those of \[\]\n$`, "rollback", "--to", "0")
	const held = `{"version": 1, "name": "p@10.0.0.9", "pool": "p", "value": "10.0.0.9", "holders": [{"claim": "r1/endpoint/vtep0"}], "created": "2020-01-02T03:04:05Z"}`
	if err := os.WriteFile(filepath.Join(dir, "state", "ledger", "p@10.0.0.9"), []byte(held), 0o600); err != nil {
		t.Fatal(err)
	}
	says(1, `^release 10.0.0.9 of pool p, held by r1/endpoint/vtep0\nr1 is live: vtepd runs here, and 10.0.0.9 is on none of its endpoints and loopbacks now\nvtepd: nothing was done: `,
		"claims", "release", "r1/endpoint/vtep0")
	says(1, `^vtepd: status socket `+dir+`/run/vtepd.sock: another vtepd answers there; stop it first, or give this one another socket\n$`,
		"run", "--log-level", "error")
	drop(good + "nodes: {}\n")
	until(`level=WARN msg=invalid why=".*/config/a.yaml:4:1: nodes: is not a known key; did you mean node\?`)
	says(0, `: invalid since `, "status")
	drop(good)
	until(`level=WARN msg=waiting`)

	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(`level=INFO msg="stopped; the data plane runs on"`)
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Error(err)
	}
	if err := daemon.Wait(); err != nil {
		t.Errorf("told to stop: %v", err)
	}
	says(1, `^vtepd: no answer from vtepd at .*: no such file or directory\n$`, "status")
}
