// Package monitor turns the kernel's news of links and addresses, in one namespace or in those of some names, into hints to look
// again. It owns its sockets; it never says what changed, since news can be lost and a look can't.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"vtepd/dataplane/netns"
)

// Options are what a Monitor can be told; the zero value is what a daemon wants.
type Options struct {
	// Netns is the namespace to listen in; nil: the caller's. Open keeps no hold of it.
	Netns *netns.NS
	// ReadBuffer is the size of the socket's buffer in bytes; 0: 4 MiB. What doesn't fit costs nothing but precision.
	ReadBuffer int
}

const readBuffer = 4 << 20

// Monitor listens from Open on; Run passes the news on.
type Monitor struct {
	// C holds a hint when something has changed since the last hint was taken. Many changes make one hint; a hint
	// always follows the last change.
	C <-chan struct{}

	c        chan struct{}
	conn     *netlink.Conn
	overruns atomic.Uint64
}

// Open starts listening.
func Open(o Options) (*Monitor, error) { return open(o, make(chan struct{}, 1)) }

func open(o Options, hints chan struct{}) (*Monitor, error) {
	c := &netlink.Config{Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}
	if o.Netns != nil {
		c.NetNS = o.Netns.Fd()
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, c)
	if err != nil {
		return nil, fmt.Errorf("listen to the kernel's links: %w", err)
	}
	size := o.ReadBuffer
	if size == 0 {
		size = readBuffer
	}
	if err := conn.SetReadBuffer(size); err != nil {
		return nil, errors.Join(fmt.Errorf("listen to the kernel's links: %w", err), conn.Close())
	}
	return &Monitor{C: hints, c: hints, conn: conn}, nil
}

// Run passes news on until ctx ends, which is not an error, and closes the socket.
func (m *Monitor) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = m.conn.Close() })
	defer stop()
	for {
		_, err := m.conn.Receive()
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOBUFS):
			// News was lost, which is news. What is in the buffer still comes, and after it more: the kernel drops
			// everything until the buffer has been emptied (NETLINK_S_CONGESTED).
			m.overruns.Add(1)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EBADF):
			return errors.New("monitor is closed")
		default:
			return errors.Join(fmt.Errorf("listen to the kernel's links: %w", err), m.conn.Close())
		}
		select {
		case m.c <- struct{}{}:
		default:
		}
	}
}

// Close stops a Monitor whose Run isn't called.
func (m *Monitor) Close() error { return m.conn.Close() }

// Overruns is how often the socket's buffer overflowed.
func (m *Monitor) Overruns() uint64 { return m.overruns.Load() }

func (m *Monitor) String() string { return "monitor" }
