package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// snapLen is enough for the headers of VXLAN over IPv6 and a payload of ours.
const snapLen = 192

// captured is a frame that passed a port.
type captured struct {
	time  time.Time // the kernel's
	out   bool      // of the node
	data  []byte    // at most snapLen
	total int
}

// capture records what passes a port of a node, by a packet socket in the
// node's network namespace.
type capture struct {
	node, port string
	file       *os.File
	drops      func() (uint32, error)

	mu     sync.Mutex
	frames []captured
	err    error
	ended  chan struct{}
	seen   func(c captured) // called for each frame
}

// capturePort starts a capture on a port, of what passes the filter.
func (n *Node) capturePort(port string, passes []bpf.Instruction, seen func(captured)) (*capture, error) {
	c := &capture{node: n.Name, port: port, ended: make(chan struct{}), seen: seen}
	link, err := n.netlink.LinkByName(port)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", n.Name, port, err)
	}
	filter, err := bpf.Assemble(passes)
	if err != nil {
		return nil, err
	}
	err = n.InNetwork(func() error {
		// No protocol yet: nothing comes before the filter is there.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c.file = os.NewFile(uintptr(fd), n.Name+":"+port)
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
		err = errors.Join(
			unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: link.Attrs().Index}),
		)
		if err != nil {
			c.file.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: capture on %s: %w", n.Name, port, err)
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.file.Close()
		return nil, err
	}
	c.drops = func() (drops uint32, err error) {
		err2 := raw.Control(func(fd uintptr) {
			var s *unix.TpacketStats
			if s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				drops = s.Drops
			}
		})
		return drops, errors.Join(err, err2)
	}
	go func() {
		defer close(c.ended)
		c.err = c.read(raw)
	}()
	return c, nil
}

// read takes every frame until the capture is stopped, those too that wait at that moment.
func (c *capture) read(raw syscall.RawConn) error {
	buf, oob := make([]byte, snapLen), make([]byte, 128)
	take := func(fd uintptr) error {
		f, err := receive(int(fd), buf, oob)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.frames = append(c.frames, f)
		c.mu.Unlock()
		c.seen(f)
		return nil
	}
	var err, stopped error
	for err == nil && stopped == nil {
		stopped = raw.Read(func(fd uintptr) bool {
			err = take(fd)
			return !errors.Is(err, unix.EAGAIN)
		})
	}
	if errors.Is(stopped, os.ErrDeadlineExceeded) {
		// The deadline that has passed keeps Read from what has come.
		stopped = raw.Control(func(fd uintptr) {
			for err = nil; err == nil; {
				err = take(fd)
			}
			if errors.Is(err, unix.EAGAIN) {
				err = nil
			}
		})
	}
	if errors.Is(stopped, os.ErrClosed) {
		return nil
	}
	if err = errors.Join(stopped, err); err != nil {
		return fmt.Errorf("capture on %s:%s: %w", c.node, c.port, err)
	}
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// receive reads one frame and its time.
func receive(fd int, buf, oob []byte) (captured, error) {
	n, oobn, _, from, err := unix.Recvmsg(fd, buf, oob, unix.MSG_TRUNC)
	if err != nil {
		return captured{}, err
	}
	f := captured{data: append([]byte(nil), buf[:min(n, len(buf))]...), total: n}
	if ll, ok := from.(*unix.SockaddrLinklayer); ok {
		f.out = ll.Pkttype == unix.PACKET_OUTGOING
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return f, err
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			f.time = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	if f.time.IsZero() {
		return f, errors.New("a frame without a time")
	}
	return f, nil
}

// stop ends the capture. What the kernel dropped is an error: it could have been
// anything.
func (c *capture) stop() error {
	drops, err := c.drops()
	if err == nil && drops > 0 {
		err = fmt.Errorf("capture on %s:%s: the kernel dropped %d frames", c.node, c.port, drops)
	}
	c.file.SetReadDeadline(time.Unix(1, 0))
	<-c.ended
	return errors.Join(err, c.err, c.file.Close())
}

// write writes the frames as a pcap file with nanoseconds.
func (c *capture) write(path string) error {
	c.mu.Lock()
	frames := c.frames
	c.mu.Unlock()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	put := func(v ...uint32) {
		for _, v := range v {
			binary.Write(w, binary.LittleEndian, v) // Flush has the error
		}
	}
	put(0xa1b23c4d, 4<<16|2, 0, 0, snapLen, 1) // version 2.4, Ethernet
	for _, f := range frames {
		put(uint32(f.time.Unix()), uint32(f.time.Nanosecond()), uint32(len(f.data)), uint32(f.total))
		w.Write(f.data)
	}
	return errors.Join(w.Flush(), file.Close())
}
