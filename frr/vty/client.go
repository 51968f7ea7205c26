// Package vty talks to FRR's daemons over their vty sockets: Client to one of them, Router, a frr.Router, to bgpd and
// zebra. It owns the connections and nothing else, sends no line that isn't rendered or named by package frr, and never
// writes FRR's configuration to disk.
package vty

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"vtepd/frr"
)

const (
	// DefaultDir is where FRR's packages put the sockets.
	DefaultDir = "/var/run/frr"
	// DefaultTimeout is how long one request may take: bgpd answers between two runs of its own work, which a full table
	// makes long.
	DefaultTimeout = 10 * time.Second
	// maxLine is shorter than the buffer of lib/vty.c: it executes the tail of a longer line as a command of its own.
	maxLine = 4000
	// maxReply bounds what one answer may cost in memory; an EVPN table of a thousand VNIs is around 1 MB.
	maxReply = 256 << 20
)

// Client is a connection to one daemon, in its enable node. One goroutine at a time uses it. After an error of Ask it is
// of no use any more.
type Client struct {
	daemon  string
	path    string
	timeout time.Duration
	trips   *atomic.Uint64
	conn    net.Conn
	buf     []byte
}

// Dial connects to DIR/DAEMON.vty and enters the enable node, which asks for no password there. Every request takes
// timeout at the longest, DefaultTimeout if that is 0. Errors wrap frr.ErrUnreachable or frr.ErrGarbage.
func Dial(ctx context.Context, dir, daemon string, timeout time.Duration) (*Client, error) {
	return dial(ctx, dir, daemon, timeout, new(atomic.Uint64))
}

func dial(ctx context.Context, dir, daemon string, timeout time.Duration, trips *atomic.Uint64) (*Client, error) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	c := &Client{daemon: daemon, path: socket(dir, daemon), timeout: timeout, trips: trips}
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, c.unreachable(dialWords(c.path, daemon, err), err)
	}
	c.conn = conn
	text, rc, err := c.Ask(ctx, "enable")
	if err == nil && rc != 0 {
		err = c.wrap(frr.Garbage("enable", fmt.Sprintf("return code %d", rc), text))
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func socket(dir, daemon string) string { return filepath.Join(dir, daemon+".vty") }

func dialWords(path, daemon string, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file: is FRR running, and is its socket directory shared with vtepd?"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused: " + daemon + " is not running"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied: " + denied(path)
	case errors.Is(err, syscall.EINVAL):
		return "the path is too long for a unix socket"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}

// denied says whose a socket is, or the directory that hides it, and who asks: root is refused too, where a service or a container
// leaves it without CAP_DAC_OVERRIDE.
func denied(path string) string {
	const want = "vtepd must be in that group: SupplementaryGroups= of its unit, FRRVTY_GID of compose.yaml"
	what := "the socket"
	info, err := os.Stat(path)
	if err != nil {
		what = "its directory"
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Sprintf("%v; %s", err, want)
	}
	groups, err := os.Getgroups()
	if err != nil {
		return fmt.Sprintf("%v; %s", err, want)
	}
	groups = append(groups, os.Getegid())
	slices.Sort(groups)
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%s is of user %d and group %d with mode %04o, and vtepd is user %d in groups %d; %s",
		what, st.Uid, st.Gid, info.Mode().Perm(), os.Geteuid(), slices.Compact(groups), want)
}

// unreachable is an error for people that wraps frr.ErrUnreachable without repeating its words.
type unreachable struct {
	words string
	cause error
}

func (e *unreachable) Error() string   { return e.words }
func (e *unreachable) Unwrap() []error { return []error{frr.ErrUnreachable, e.cause} }

func (c *Client) unreachable(words string, cause error) error {
	return c.wrap(&unreachable{words, cause})
}

func (c *Client) wrap(err error) error {
	return fmt.Errorf("frr: %s: socket %s: %w", c.daemon, c.path, err)
}

// Ask sends one line and returns the text and the return code of the answer; what either means is the caller's. Errors
// wrap frr.ErrUnreachable (closed, which leaves unknown whether the line was executed; no answer in time; ctx done) or
// frr.ErrGarbage (no answer of this protocol). A line that could end early or be taken for two is refused unsent.
func (c *Client) Ask(ctx context.Context, line string) (text string, rc int, err error) {
	if err := checkLine(line); err != nil {
		return "", 0, c.wrap(err)
	}
	deadline := time.Now().Add(c.timeout)
	if err := c.conn.SetDeadline(deadline); err != nil {
		return "", 0, c.unreachable(fmt.Sprintf("%q: %v", line, err), err)
	}
	// A deadline in the past wakes the read up; if ctx is done already this runs at once.
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.trips.Add(1)
	text, rc, err = c.exchange(line)
	switch {
	case err == nil:
		return text, rc, nil
	case errors.Is(err, frr.ErrGarbage):
		return "", 0, c.wrap(err)
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return "", 0, c.unreachable(fmt.Sprintf("%q: no answer: %v", line, context.Cause(ctx)), context.Cause(ctx))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", 0, c.unreachable(fmt.Sprintf("%q: no answer in %v", line, c.timeout), err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET), errors.Is(err, net.ErrClosed):
		return "", 0, c.unreachable(fmt.Sprintf("%q: %s closed the connection", line, c.daemon), err)
	}
	return "", 0, c.unreachable(fmt.Sprintf("%q: %v", line, err), err)
}

// exchange is the framing of lib/vty.c (vtysh_read, vtysh_flush): the line and a NUL; text without one, three NULs and
// the return code.
func (c *Client) exchange(line string) (string, int, error) {
	if _, err := c.conn.Write(append([]byte(line), 0)); err != nil {
		return "", 0, err
	}
	if c.buf == nil {
		c.buf = make([]byte, 64<<10)
	}
	var reply []byte
	end := -1 // of the text
	for {
		n, err := c.conn.Read(c.buf)
		from := len(reply)
		reply = append(reply, c.buf[:n]...)
		for i := from; end < 0 && i < len(reply); i++ {
			if reply[i] == 0 {
				end = i
			}
		}
		switch {
		case end >= 0 && len(reply) == end+4 && reply[end+1] == 0 && reply[end+2] == 0:
			return string(reply[:end]), int(reply[end+3]), nil
		case end >= 0 && len(reply) >= end+4:
			return "", 0, frr.Garbage(line, "not the framing of a vty", string(reply[:end])+" "+fmt.Sprintf("%x", reply[end:min(len(reply), end+8)]))
		case len(reply) > maxReply:
			return "", 0, frr.Garbage(line, fmt.Sprintf("the answer is longer than %d bytes", maxReply), string(reply[:1000]))
		case err != nil:
			return "", 0, err
		}
	}
}

func checkLine(line string) error {
	if line == "" || len(line) >= maxLine {
		return fmt.Errorf("a vty line of %d bytes: 1 to %d can be sent", len(line), maxLine-1)
	}
	if i := strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 {
		return fmt.Errorf("the vty line %q has a character at byte %d that can't be sent", line, i+1)
	}
	return nil
}

// Close closes the connection. Closing twice is success.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
