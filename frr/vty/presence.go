package vty

import (
	"context"
	"io"
	"net"
	"time"
)

// Presence tells when one of FRR's daemons goes and when it answers again, without asking it anything: it holds a
// connection that is idle, whose end is the news. It owns that connection; run it in a goroutine of its own.
type Presence struct {
	// C holds a hint when the daemon has gone or come since the last hint was taken.
	C <-chan struct{}

	c      chan struct{}
	dir    string
	daemon string
	wake   <-chan struct{}
}

// redial is how long a daemon that has a socket and refuses, as while it starts, is left alone. A new socket is told of by wake.
const redial = time.Second

// Watch returns the Presence of the daemon that serves DIR/DAEMON.vty. A value on wake, which may be nil, says that it may be
// worth connecting now: the socket was made anew.
func Watch(dir, daemon string, wake <-chan struct{}) *Presence {
	c := make(chan struct{}, 1)
	return &Presence{C: c, c: c, dir: dir, daemon: daemon, wake: wake}
}

func (p *Presence) String() string { return "presence of " + p.daemon }

// Run watches until ctx ends, and returns nil then.
func (p *Presence) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if p.attend(ctx) {
			continue // gone: it may be there again already
		}
		select {
		case <-ctx.Done():
		case <-p.wake:
		case <-time.After(redial):
		}
	}
	return nil
}

// attend connects and waits for the connection's end; false: there is nobody.
func (p *Presence) attend(ctx context.Context) (was bool) {
	dialer := net.Dialer{Timeout: DefaultTimeout}
	conn, err := dialer.DialContext(ctx, "unix", socket(p.dir, p.daemon))
	if err != nil {
		return false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	p.hint()
	_, _ = io.Copy(io.Discard, conn) // a vty says nothing unasked: this returns when it is closed
	if ctx.Err() == nil {
		p.hint()
	}
	return true
}

func (p *Presence) hint() {
	select {
	case p.c <- struct{}{}:
	default:
	}
}
