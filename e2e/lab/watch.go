package lab

import (
	"net"
	"slices"
	"sync"
	"time"
)

// Frame is an Ethernet frame that passed a port.
type Frame struct {
	Time     time.Time // the kernel's
	Out      bool      // it left the node here; else it came in
	Src, Dst string    // MAC addresses
	Data     []byte    // the frame from its header on; what is longer than 192 bytes is cut off
}

// Watch records every frame that passes a port of a node, until it is stopped or the lab ends.
type Watch struct {
	capture *capture
	stop    func() error
}

// Watch starts a record of what passes a port from now on. What comes in is seen before the node does anything with it: what a
// bridge drops at its port is there too.
func (n *Node) Watch(port string) (*Watch, error) {
	c, err := n.capturePort(port, everything, func(captured) {})
	if err != nil {
		return nil, err
	}
	w := &Watch{capture: c, stop: sync.OnceValue(c.stop)}
	n.lab.onDestroy(func() error {
		w.stop() // whoever wants the frames stops it before
		return nil
	})
	return w, nil
}

// Frames are those that passed so far.
func (w *Watch) Frames() []Frame {
	w.capture.mu.Lock()
	frames := slices.Clone(w.capture.frames)
	w.capture.mu.Unlock()
	var out []Frame
	for _, f := range frames {
		if len(f.data) < 14 {
			continue
		}
		dst, src := net.HardwareAddr(f.data[:6]), net.HardwareAddr(f.data[6:12])
		out = append(out, Frame{Time: f.time, Out: f.out, Src: src.String(), Dst: dst.String(), Data: f.data})
	}
	return out
}

// Stop ends the record and returns all of it. The error is about the record: that the kernel dropped something of it, say.
func (w *Watch) Stop() ([]Frame, error) {
	err := w.stop()
	return w.Frames(), err
}
