package status_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/daemon/plan"
	"vtepd/daemon/status"
)

var (
	update = flag.Bool("update", false, "write the golden files")
	values = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})
)

func snapshots() map[string]status.Snapshot {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	vtep := netip.MustParseAddr("10.255.0.12")
	live := status.Snapshot{
		Version: "v1", Node: "leaf1", Condition: status.Idle, Since: at, Generation: 7, State: "0011223344556677", Config: "/etc/vtepd",
		Repairs: status.Repairs{Count: 3, Last: at.Add(-time.Minute), What: []string{"link vxlan100 (vxlan of vni/100) is missing", "host route 10.255.0.12/32 is missing"}}, Goroutines: 14,
		Transaction: &status.Transaction{
			Generation: 7, Began: at.Add(-2 * time.Second), Ended: at, Result: "committed", Steps: 11,
			Phases: []status.Phase{
				{Phase: plan.Stage, Began: at.Add(-2 * time.Second), Took: 41*time.Millisecond + 600*time.Microsecond},
				{Phase: plan.Swap, Began: at.Add(-time.Second), Took: 3 * time.Millisecond},
				{Phase: plan.Retire, Began: at.Add(-time.Millisecond), Took: 700 * time.Microsecond},
			},
			SwapBatches: 1, SwapMessages: 20, RoundTrips: 31,
		},
		Endpoints: []status.Endpoint{
			{Name: "lo1", Link: "lo1-wam7k", Address: netip.MustParseAddr("2001:db8::1")},
			{Name: "vtep0", Link: "vtep0-mltw7", Address: vtep, Parent: "eth1", Announced: true},
		},
		Loopbacks: []status.Loopback{
			{Name: "lo0", Role: "router-id", Addresses: []netip.Addr{netip.MustParseAddr("10.254.0.1"), netip.MustParseAddr("2001:db8::1")}, Ready: true, Reason: "Ready"},
			{Name: "lo2", Role: "anycast-vtep", Reason: "PoolExhausted", Message: "all 2 values of pool any are taken"},
		},
		VNIs: []status.VNI{
			{VNI: 100, Device: "vxlan100", VTEP: vtep, Bridge: "br100"},
			{VNI: 20000, Device: "vxlan20000", VTEP: vtep, Bridge: "br-evpn", VLAN: 12},
		},
	}
	failed := live
	failed.Condition, failed.Endpoints, failed.Loopbacks, failed.VNIs = status.Failed, nil, nil, nil
	failed.Messages = []string{"swap: step 6: set vxlan100: device or resource busy; everything is as it was"}
	failed.Failure = &status.Failure{Phase: plan.Swap, Step: 6, Object: "vxlan100", Message: "set vxlan100: device or resource busy"}
	failed.Transaction = &status.Transaction{
		Generation: 8, Began: at.Add(-time.Second), Ended: at, Result: "rolled back", Steps: 11,
		Phases: []status.Phase{{Phase: plan.Swap, Took: 3 * time.Millisecond}, {Phase: plan.Swap, Undo: true, Took: 2 * time.Millisecond}},
	}
	running := status.Snapshot{
		Version: "v1", Node: "leaf1", Condition: status.Running, Since: at, Config: "/etc/vtepd/config.yaml",
		Transaction: &status.Transaction{Generation: 1, Began: at, Steps: 3, Phases: []status.Phase{{Phase: plan.Claim, Began: at}}},
	}
	invalid := status.Snapshot{
		Version: "v1", Condition: status.Invalid, Since: at, Config: "/etc/vtepd",
		Messages: []string{"/etc/vtepd/a.yaml:3:1: vniss: unknown key; did you mean vnis?", "/etc/vtepd/a.yaml:9:7: vnis.0: must be 1 to 16777215"},
	}
	return map[string]status.Snapshot{"idle": live, "failed": failed, "running": running, "invalid": invalid}
}

func TestGolden(t *testing.T) {
	for name, s := range snapshots() {
		var text, raw bytes.Buffer
		if err := errors.Join(s.Text(&text), s.JSON(&raw)); err != nil {
			t.Fatal(err)
		}
		for file, got := range map[string]string{name + ".txt": text.String(), name + ".json": raw.String()} {
			file = filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", file, diff)
			}
		}
		var back status.Snapshot
		if err := json.Unmarshal(raw.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s, back, values); diff != "" {
			t.Errorf("%s, there and back: -want +got:\n%s", name, diff)
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestNobodyReads(t *testing.T) {
	s := snapshots()["idle"]
	if err := s.Text(brokenPipe{}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("text: %v", err)
	}
	if err := s.JSON(brokenPipe{}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("JSON: %v", err)
	}
}

// TestBoard: copies share nothing, a channel closes on the next change, and Since is when the condition changed last.
func TestBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b status.Board
		began := time.Now()
		b.Update(func(s *status.Snapshot) { *s = snapshots()["idle"] })
		first, changed := b.Get()
		if !first.Since.Equal(began) {
			t.Errorf("since %s, want %s", first.Since, began)
		}
		_, same := b.Get()
		if same != changed {
			t.Error("two channels, and nothing happened between them")
		}
		<-time.After(time.Hour)
		select {
		case <-changed:
			t.Error("nothing has changed")
		default:
		}
		b.Update(func(s *status.Snapshot) {
			s.Messages = append(s.Messages, "a note")
			s.Transaction.Phases[0].Took = time.Hour
			s.Transaction.Result = "x"
			s.Endpoints[0].Name, s.VNIs[0].Bridge = "x", "x"
		})
		<-changed
		want := snapshots()["idle"]
		want.Since = began
		if diff := cmp.Diff(want, first, values); diff != "" {
			t.Errorf("the copy changed: -want +got:\n%s", diff)
		}
		if now, _ := b.Get(); !now.Since.Equal(began) || len(now.Messages) != 1 {
			t.Errorf("the condition is the same: %+v", now)
		}
		b.Update(func(s *status.Snapshot) { s.Condition = status.Waiting })
		if now, _ := b.Get(); !now.Since.Equal(began.Add(time.Hour)) {
			t.Errorf("since %s, an hour after %s", now.Since, began)
		}
	})
}

// TestBoardRace has the race detector look: one writes, many read and wait.
func TestBoardRace(t *testing.T) {
	var b status.Board
	b.Update(func(s *status.Snapshot) { *s = snapshots()["idle"] })
	const changes = 200
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				s, changed := b.Get()
				if err := s.JSON(&bytes.Buffer{}); err != nil {
					t.Error(err)
				}
				if s.Generation >= changes {
					return
				}
				<-changed
			}
		})
	}
	for n := range uint64(changes) {
		b.Update(func(s *status.Snapshot) {
			s.Generation = n + 1
			s.Messages = append(s.Messages, "more")
			s.Transaction.Phases = append(s.Transaction.Phases, status.Phase{Phase: plan.Drain})
			s.Transaction.Phases[0].Took++
		})
	}
	readers.Wait()
}

// socketDir is a directory whose path fits into the 108 bytes of a unix socket's address.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vtepd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestServe(t *testing.T) {
	path := filepath.Join(socketDir(t), "run", "vtepd.sock")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600|fs.ModeSocket {
		t.Errorf("mode %v, want a socket for root alone (%v)", info.Mode(), err)
	}
	var b status.Board
	want := snapshots()["failed"]
	b.Update(func(s *status.Snapshot) { *s = want })
	want, _ = b.Get()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Serve(ctx, l) }()
	got, err := status.Fetch(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Goroutines < 2 {
		t.Errorf("%d goroutines", got.Goroutines)
	}
	got.Goroutines = want.Goroutines
	if diff := cmp.Diff(want, got, values, cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const second = "another vtepd answers there; stop it first, or give this one another socket"
	if _, err := status.Listen(path); err == nil || err.Error() != "status socket "+path+": "+second {
		t.Errorf("a second daemon: %v", err)
	}
	if _, err := status.Fetch(t.Context(), path); err != nil {
		t.Errorf("the first one doesn't answer any more: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("told to stop: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// TestStale: the socket that a killed daemon left is replaced; anything else is somebody's.
func TestStale(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	file := filepath.Join(filepath.Dir(path), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := status.Listen(file); err == nil || err.Error() != "status socket "+file+": what is there is no socket; move it away, or use another path" {
		t.Errorf("a file: %v", err)
	}
	if text, err := os.ReadFile(file); string(text) != "mine" {
		t.Errorf("the file was touched: %v", err)
	}
	if _, err := status.Listen(file + "/s"); err == nil || err.Error() != "status socket "+file+"/s: mkdir "+file+": not a directory" {
		t.Errorf("no directory: %v", err)
	}
}

// TestUmask: the umask is as it was.
func TestUmask(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	l, err := status.Listen(filepath.Join(socketDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if now := syscall.Umask(0o027); now != 0o027 {
		t.Errorf("the umask is %o", now)
	}
}

func TestFetch(t *testing.T) {
	serve := func(h http.HandlerFunc) string {
		path := filepath.Join(socketDir(t), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: h}
		go srv.Serve(l)
		t.Cleanup(func() { srv.Close() })
		return path
	}
	missing := filepath.Join(socketDir(t), "s")
	text := func(s string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s) }
	}
	for _, c := range []struct {
		name, path, want string
	}{
		{
			"no daemon", missing,
			"no answer from vtepd at " + missing + `: Get "http://vtepd/status": dial unix ` + missing + ": connect: no such file or directory",
		},
		{"not found", serve(http.NotFound), "vtepd at %s answers 404 Not Found"},
		{"garbage", serve(text("hello")), "vtepd at %s: invalid character 'h' looking for beginning of value"},
		{"cut off", serve(text(`{"version": `)), "vtepd at %s: unexpected EOF"},
		{"another shape", serve(text(`{"version": 1}`)), "vtepd at %s: json: cannot unmarshal number into Go struct field Snapshot.version of type string"},
	} {
		_, err := status.Fetch(t.Context(), c.path)
		if want := strings.ReplaceAll(c.want, "%s", c.path); err == nil || err.Error() != want {
			t.Errorf("%s: got\n%v\nwant\n%s", c.name, err, want)
		}
	}
	silent := serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := status.Fetch(ctx, silent); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent: %v", err)
	}
}

// TestListenerLost: a socket that closes under the server ends it with an error that names it.
func TestListenerLost(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	l, err := status.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var b status.Board
	err = b.Serve(t.Context(), l)
	if want := "status socket " + path + ": accept unix " + path + ": use of closed network connection"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
