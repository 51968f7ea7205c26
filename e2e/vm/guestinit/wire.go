// Package guestinit is the guest's side of the lab: it is process 1 of the
// virtual machine and builds the world that one job runs in. It owns the
// guest's mounts and the job's namespaces, and knows nothing of what a job does.
package guestinit

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Frame types on the control port. The host sends Run, Signal and Quit; the
// guest answers with Ready once, then with Stdout and Stderr while a job runs
// and one Exit when it is over.
const (
	FrameRun    = 'J' // Job as JSON
	FrameSignal = 'S' // one byte, the signal's number
	FrameQuit   = 'Q' // empty: power off
	FrameReady  = 'R' // Ready as JSON
	FrameStdout = 'O' // bytes
	FrameStderr = 'E' // bytes
	FrameExit   = 'X' // Exit as JSON
)

// maxFrame bounds a frame, so that a torn length can't ask for all memory.
const maxFrame = 1 << 20

// Job is one command line and the world that it sees.
type Job struct {
	Argv  []string `json:"argv"`  // Argv[0] is a path, or a name looked up in Env's PATH
	Dir   string   `json:"dir"`   // working directory, as seen in the world
	Env   []string `json:"env"`   // the whole environment
	Binds []Bind   `json:"binds"` // directories of the outside, shorter paths first
	Lower string   `json:"lower"` // the read-only root under the overlay
	Guest bool     `json:"guest"` // inside the virtual machine: /dev is ours to make
}

// Bind makes the directory Source appear at Path in the world.
type Bind struct {
	Source   string `json:"source"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly"`
}

// Ready says that the guest takes jobs, and with which kernel.
type Ready struct {
	Kernel string `json:"kernel"`
}

// Exit is how a job ended: Status as a shell would give it (128 + signal), or
// Err when the job couldn't be started at all. Kernel holds what the kernel
// complained of meanwhile.
type Exit struct {
	Status int      `json:"status"`
	Err    string   `json:"err,omitempty"`
	Kernel []string `json:"kernel,omitempty"`
}

// Wire carries frames over the control port; writes may come from several
// goroutines.
type Wire struct {
	mu sync.Mutex
	rw io.ReadWriter
}

// NewWire makes a Wire of a connected port.
func NewWire(rw io.ReadWriter) *Wire { return &Wire{rw: rw} }

// Send writes one frame.
func (w *Wire) Send(kind byte, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	frame := make([]byte, 5, 5+len(payload))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(payload)))
	_, err := w.rw.Write(append(frame, payload...))
	return err
}

// SendJSON writes v as the payload of one frame.
func (w *Wire) SendJSON(kind byte, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(kind, payload)
}

// Recv reads the next frame; io.EOF means that the other side is gone.
func (w *Wire) Recv() (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(w.rw, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, fmt.Errorf("control port: a frame of %d bytes, at most %d are allowed", size, maxFrame)
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(w.rw, payload); err != nil {
		return 0, nil, err
	}
	return head[0], payload, nil
}

// Stream is a writer whose bytes go out as frames of one kind.
type Stream struct {
	Wire *Wire
	Kind byte
}

func (s Stream) Write(p []byte) (int, error) {
	const chunk = 32 << 10
	for n := 0; n < len(p); n += chunk {
		if err := s.Wire.Send(s.Kind, p[n:min(n+chunk, len(p))]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}
