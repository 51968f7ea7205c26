package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vtepd/daemon/status"
)

// manager is the socket of a service manager.
func manager(t *testing.T) func() string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return func() string {
		t.Helper()
		buf := make([]byte, 4096)
		c.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

// TestNotify: ready, each condition once, the watchdog as long as the loop lives, and the end.
func TestNotify(t *testing.T) {
	heard := manager(t)
	t.Setenv("WATCHDOG_USEC", "200000")
	var board status.Board
	board.Update(func(s *status.Snapshot) { s.Condition = status.Starting })
	var beat atomic.Int64
	beat.Store(time.Now().Add(time.Hour).UnixNano())
	var said strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- notify(ctx, &board, func() time.Time { return time.Unix(0, beat.Load()) }, slog.New(slog.NewTextHandler(&said, nil)))
	}()
	for _, want := range []string{"READY=1", "STATUS=starting, generation 0", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := heard(); got != want {
			t.Fatalf("heard %q, would be %q", got, want)
		}
	}
	beat.Store(0) // the loop hangs: a condition is still told, the watchdog isn't
	board.Update(func(s *status.Snapshot) {
		s.Condition, s.Generation, s.Messages = status.Waiting, 3, []string{"for FRR\nand more"}
	})
	for got := heard(); got != "STATUS=waiting, generation 3: for FRR"; got = heard() {
		if got != "WATCHDOG=1" { // one that was under way
			t.Fatalf("heard %q", got)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := heard(); got != "STOPPING=1" {
		t.Fatalf("heard %q at the end", got)
	}
}

// TestHungLoopIsNotVouchedFor: no WATCHDOG=1 of a loop that gave no sign of life, and the log says so.
func TestHungLoopIsNotVouchedFor(t *testing.T) {
	heard := manager(t)
	t.Setenv("WATCHDOG_USEC", "40000")
	var board status.Board
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- notify(ctx, &board, func() time.Time { return time.Now().Add(-time.Hour) }, slog.New(slog.NewTextHandler(w, nil)))
		w.Close()
	}()
	line := make([]byte, 1024)
	for range 3 {
		n, err := r.Read(line)
		if err != nil || !strings.Contains(string(line[:n]), `msg="the loop gives no sign of life" since=1h0m0s`) {
			t.Fatalf("%s %v", line[:n], err)
		}
	}
	cancel()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for got := heard(); got != "STOPPING=1"; got = heard() {
		if got == "WATCHDOG=1" {
			t.Fatal("vouched for")
		}
	}
}

func TestNoManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify(t.Context(), &status.Board{}, time.Now, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
}

// needed are the settings of the unit without which vtepd doesn't run, or isn't looked after, and of each what it must have.
var needed = map[string]string{
	"Type":        "notify", // readiness: notify.go
	"WatchdogSec": "2min",
	"Restart":     "always",
	// A minute more than a rollback may take.
	"TimeoutStopSec": "4min",
	// systemd kills the others alone when vtepd has ended.
	"KillMode":            "mixed",
	"SupplementaryGroups": "frrvty",
	// Links, addresses and routes; echo requests; setns and unshare, of the shadow namespace and the parents'.
	"CapabilityBoundingSet":   "CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_ADMIN",
	"RestrictNamespaces":      "net",
	"SystemCallFilter":        "@system-service setns unshare",
	"RestrictAddressFamilies": "AF_UNIX AF_NETLINK AF_INET AF_INET6",
	// What --config, --state and --socket are by default.
	"ConfigurationDirectory": "vtepd",
	"StateDirectory":         "vtepd",
	"RuntimeDirectory":       "vtepd",
}

// lacking says, sorted, what of the needed settings a unit's text doesn't have.
func lacking(unit string) (out []string) {
	has := map[string][]string{}
	for line := range strings.Lines(unit) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		has[key] = append(has[key], strings.Fields(value)...)
	}
	for key, value := range needed {
		for _, word := range strings.Fields(value) {
			if !slices.Contains(has[key], word) {
				out = append(out, key+"="+word)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestUnit: systemd finds nothing wrong with the unit, and it asks for no more than it needs, nor for less.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("vtepd.service")
	if err != nil {
		t.Fatal(err)
	}
	if l := lacking(string(unit)); l != nil {
		t.Errorf("the unit lacks %q", l)
	}
	for key, value := range needed {
		for _, word := range strings.Fields(value) {
			without := regexp.MustCompile("(?m)^("+key+"=.*?) ?"+word+"\\b").ReplaceAllString(string(unit), "$1")
			if l := lacking(without); !slices.Equal(l, []string{key + "=" + word}) {
				t.Errorf("without %s=%s a unit lacks %q, says the test", key, word, l)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The program that it starts must be there to be verified.
	path := filepath.Join(t.TempDir(), "vtepd.service")
	text := strings.ReplaceAll(string(unit), "/usr/bin/vtepd", self)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", path},
		{"security", "--offline=true", "--threshold=30", path},
	} {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
