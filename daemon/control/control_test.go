package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vtepd/daemon/config"
	"vtepd/daemon/control"
	"vtepd/daemon/status"
)

// told is a daemon that notes what it is told, and answers with err.
type told struct {
	err  error
	said []string
	srcs []config.Source
}

func (d *told) note(format string, args ...any) error {
	d.said = append(d.said, fmt.Sprintf(format, args...))
	return d.err
}

func (d *told) Confirm(context.Context) error { return d.note("confirm") }

func (d *told) Rollback(_ context.Context, to *uint64, allow bool) error {
	if to == nil {
		return d.note("rollback%s", anyway(allow))
	}
	return d.note("rollback to %d%s", *to, anyway(allow))
}

func (d *told) Apply(_ context.Context, srcs []config.Source, confirm time.Duration, allow bool) error {
	d.srcs = srcs
	return d.note("apply %d files, confirm %s%s", len(srcs), confirm, anyway(allow))
}

func anyway(allow bool) string {
	if allow {
		return " anyway"
	}
	return ""
}

// serve puts d behind a real socket.
func serve(t *testing.T, d control.Daemon) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "vtepd.sock")
	l, err := status.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- new(status.Board).Serve(ctx, l, control.Routes(d)) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

var files = []config.Source{
	{File: "/etc/vtepd/a.yaml", Data: []byte("version: 1\n")},
	{File: "/etc/vtepd/b.yaml", Data: []byte("\x00\xff: \"<&>\"\n")},
}

// TestCalls: what a client says is what the daemon is told, and what the daemon answers is what the client gets.
func TestCalls(t *testing.T) {
	_, problems := config.ParseAll([]config.Source{{File: "a.yaml", Data: []byte("version: 1\nnode: {name: r1}\nvniss: {}\nvnis: {0: {}}\n")}})
	if ps, ok := errors.AsType[config.Problems](problems); !ok || len(ps) < 2 {
		t.Fatalf("not what this test is about: %v", problems)
	}
	for _, answer := range []error{nil, errors.New("nothing waits to be confirmed"), problems} {
		d := &told{err: answer}
		socket := serve(t, d)
		ctx := t.Context()
		for _, c := range []struct {
			call func() error
			want string
		}{
			{func() error { return control.Confirm(ctx, socket) }, "confirm"},
			{func() error { return control.Rollback(ctx, socket, nil, false) }, "rollback"},
			{func() error { return control.Rollback(ctx, socket, new(uint64), true) }, "rollback to 0 anyway"},
			{func() error { return control.Rollback(ctx, socket, new(uint64(18446744073709551615)), false) }, "rollback to 18446744073709551615"},
			{func() error { return control.Apply(ctx, socket, files, 0, false) }, "apply 2 files, confirm 0s"},
			{func() error { return control.Apply(ctx, socket, files[:1], 90*time.Second, true) }, "apply 1 files, confirm 1m30s anyway"},
		} {
			d.said = nil
			err := c.call()
			if len(d.said) != 1 || d.said[0] != c.want {
				t.Errorf("told %q, want %q", d.said, c.want)
			}
			if fmt.Sprint(err) != fmt.Sprint(answer) {
				t.Errorf("%s:\ngot  %v\nwant %v", c.want, err, answer)
			}
		}
		if diff := cmp.Diff(files[:1], d.srcs); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if err := control.Apply(ctx, socket, files, 0, false); cmp.Diff(files, d.srcs) != "" {
			t.Errorf("%v: %s", err, cmp.Diff(files, d.srcs))
		}
	}
}

// TestRequests: each route's answer to what a client could send.
func TestRequests(t *testing.T) {
	const one = `[{"File": "a.yaml", "Data": "dmVyc2lvbjogMQ=="}]`
	for _, c := range []struct {
		method, path string
		body         io.Reader
		err          error
		code         int
		words        string
		said         string
	}{
		{method: "POST", path: "/confirm", code: 204, said: "confirm"},
		{method: "POST", path: "/confirm", err: errors.New("no"), code: 409, words: "no\n", said: "confirm"},
		{method: "GET", path: "/confirm", code: 405, words: "Method Not Allowed\n"},
		{method: "POST", path: "/rollback", code: 204, said: "rollback"},
		{method: "POST", path: "/rollback?to=", code: 204, said: "rollback"},
		{method: "POST", path: "/rollback?to=7", code: 204, said: "rollback to 7"},
		{method: "POST", path: "/rollback?to=7", err: errors.New("gone"), code: 409, words: "gone\n", said: "rollback to 7"},
		{method: "POST", path: "/rollback?to=0", code: 204, said: "rollback to 0"},
		{method: "POST", path: "/rollback?to=7&allow-disruptive=true", code: 204, said: "rollback to 7 anyway"},
		{method: "POST", path: "/rollback?allow-disruptive=", code: 204, said: "rollback"},
		{method: "POST", path: "/rollback?allow-disruptive=maybe", code: 400, words: "allow-disruptive must be true or false\n"},
		{method: "POST", path: "/rollback?to=-1", code: 400, words: "to=\"-1\" is no generation\n"},
		{method: "POST", path: "/rollback?to=18446744073709551616", code: 400, words: "to=\"18446744073709551616\" is no generation\n"},
		{method: "POST", path: "/rollback?to=%0Ax", code: 400, words: "to=\"\\nx\" is no generation\n"},
		{method: "GET", path: "/rollback", code: 405, words: "Method Not Allowed\n"},
		{method: "POST", path: "/apply?confirm=60s", body: strings.NewReader(one), code: 204, said: "apply 1 files, confirm 1m0s"},
		{method: "POST", path: "/apply?confirm=0s", body: strings.NewReader(one), err: errors.New("busy"), code: 409, words: "busy\n", said: "apply 1 files, confirm 0s"},
		{method: "POST", path: "/apply?confirm=0s&allow-disruptive=true", body: strings.NewReader(one), code: 204, said: "apply 1 files, confirm 0s anyway"},
		{method: "POST", path: "/apply?confirm=0s&allow-disruptive=maybe", body: strings.NewReader(one), code: 400, words: "allow-disruptive must be true or false\n"},
		{method: "POST", path: "/apply", body: strings.NewReader(one), code: 400, words: "confirm must be a duration, such as 60s\n"},
		{method: "POST", path: "/apply?confirm=60", body: strings.NewReader(one), code: 400, words: "confirm must be a duration, such as 60s\n"},
		{method: "POST", path: "/apply?confirm=-1s", body: strings.NewReader(one), code: 400, words: "confirm must be a duration, such as 60s\n"},
		{method: "POST", path: "/apply?confirm=60s", code: 400, words: "no config files in the request: EOF\n"},
		{method: "POST", path: "/apply?confirm=60s", body: strings.NewReader("[]"), code: 400, words: "no config files in the request: the list is empty\n"},
		{method: "POST", path: "/apply?confirm=60s", body: strings.NewReader("version: 1\n"), code: 400, words: "no config files in the request: invalid character 'v' looking for beginning of value\n"},
		{method: "POST", path: "/apply?confirm=60s", body: strings.NewReader(one[:30]), code: 400, words: "no config files in the request: unexpected EOF\n"},
		{method: "POST", path: "/apply?confirm=60s", body: io.LimitReader(spaces{}, 64<<20+1), code: 400, words: "no config files in the request: http: request body too large\n"},
		{method: "GET", path: "/apply", code: 405, words: "Method Not Allowed\n"},
		{method: "POST", path: "/status", code: 405, words: "Method Not Allowed\n"},
		{method: "POST", path: "/other", code: 404, words: "404 page not found\n"},
	} {
		d := &told{err: c.err}
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://vtepd"+c.path, c.body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := status.Client(serve(t, d)).Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		words, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || string(words) != c.words || strings.Join(d.said, ", ") != c.said {
			t.Errorf("%s %s: %d %q, told %q (%v), want %d %q, told %q", c.method, c.path, resp.StatusCode, words, d.said, err, c.code, c.words, c.said)
		}
	}
}

// spaces is a body that never comes to the point.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestNoAnswer: a client says where nobody answered, and why.
func TestNoAnswer(t *testing.T) {
	dir := t.TempDir()
	hangsUp := filepath.Join(dir, "hangs-up")
	l, err := net.Listen("unix", hangsUp)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer l.Close()
	stale := filepath.Join(dir, "stale")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	for _, c := range []struct{ socket, words string }{
		{filepath.Join(dir, "none"), "connect: no such file or directory"},
		{stale, "connect: connection refused"},
		{hangsUp, ""},
	} {
		for what, err := range map[string]error{
			"confirm":  control.Confirm(t.Context(), c.socket),
			"rollback": control.Rollback(t.Context(), c.socket, nil, false),
			"apply":    control.Apply(t.Context(), c.socket, files, 0, false),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "no answer from vtepd at "+c.socket+": ") || !strings.HasSuffix(err.Error(), c.words) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if err := control.Confirm(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := control.Confirm(ctx, serve(t, &told{})); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
