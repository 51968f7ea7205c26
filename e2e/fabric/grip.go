package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vtepd/e2e/lab"
)

// Grip stops a vtepd where its journal says that it is: SIGSTOP as soon as a mark is written. What is done to the router
// then is done in that phase, whatever the machine's speed.
type Grip struct {
	path string // of the journal
	fd   int    // inotify

	mu    sync.Mutex
	proc  *lab.Proc
	want  string // a phase, or over; "" for nothing
	began bool   // there was a journal since
	hit   chan error
}

// over is what is waited for when it is no phase: the end of the journal.
const over = "over"

// phases in their order.
var phases = []string{"claim", "stage", "expose", "announce", "swap", "verify", "confirm", "drain", "retire"}

// ErrMissed is a phase that was over before vtepd was stopped; it runs on.
var ErrMissed = errors.New("the phase was over before vtepd was stopped")

// NewGrip watches the state directory of vtepd, as this program sees it, until Close.
func NewGrip(dir string) (*Grip, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	g := &Grip{path: filepath.Join(dir, "journal"), fd: fd}
	go g.watch()
	return g, nil
}

// Close ends the watch once the directory changes once more, or with the program.
func (g *Grip) Close() error { return unix.Close(g.fd) }

// watch runs on a thread that the kernel prefers to all others: between a mark and what follows it is little time.
func (g *Grip) watch() {
	runtime.LockOSThread() // for ever: its scheduling ends with it
	// Without the right to it a phase is only missed more often.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0)
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(g.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		g.look()
	}
}

func (g *Grip) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.want == "" {
		return
	}
	j, err := ReadJournal(g.path)
	if err != nil {
		return // it is being written
	}
	switch {
	case g.want == over && j == nil || g.want != over && j.Phase() == g.want:
		g.want = ""
		g.hit <- g.proc.Signal(syscall.SIGSTOP)
	case g.want != over && (j == nil && g.began || slices.Index(phases, j.Phase()) > slices.Index(phases, g.want)):
		g.want = ""
		g.hit <- ErrMissed
	}
	g.began = g.began || j != nil
}

// Catch has proc, which is at rest, stopped when its journal comes to a phase.
func (g *Grip) Catch(proc *lab.Proc, phase string) { g.arm(proc, phase) }

// CatchEnd has proc stopped when its journal is removed: the transaction is over. One that is removed already is so at once.
func (g *Grip) CatchEnd(proc *lab.Proc) {
	g.arm(proc, over)
	g.look()
}

func (g *Grip) arm(proc *lab.Proc, want string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.proc, g.want, g.began, g.hit = proc, want, false, make(chan error, 1)
}

// Let waits for nothing any more.
func (g *Grip) Let() { g.arm(nil, "") }

// Held waits until what was armed has happened and the process stands still; the journal is nil at its end. ErrMissed.
func (g *Grip) Held(ctx context.Context) (*Journal, error) {
	g.mu.Lock()
	hit, proc, want := g.hit, g.proc, g.want
	g.mu.Unlock()
	select {
	case err := <-hit:
		if err != nil {
			return nil, err
		}
	case <-proc.Done():
		return nil, fmt.Errorf("%s has ended: %s", proc.Name, proc.Log())
	case <-ctx.Done():
		g.Let()
		return nil, fmt.Errorf("waiting for %q in the journal: %w", want, context.Cause(ctx))
	}
	err := lab.Eventually(ctx, proc.Name+": stopped", func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", proc.Pid()))
		if _, state, ok := strings.Cut(string(stat), ") "); err == nil && ok && state[0] != 'T' {
			err = fmt.Errorf("its state is %c", state[0])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return ReadJournal(g.path)
}

// Journal is what a journal says, read as its package comment describes it.
type Journal struct {
	Forward bool     // the point of no return is passed
	Adds    []string // the names of the links that are there afterwards, and not before

	size   int64
	phases []string // of the steps
	last   mark
}

type mark struct {
	Do      *int `json:"do"`
	Undo    *int `json:"undo"`
	Forward bool `json:"forward"`
}

// Phase is the one that was begun last; "" for a way back, or before the first.
func (j *Journal) Phase() string {
	if j == nil || j.last.Do == nil || *j.last.Do >= len(j.phases) {
		return ""
	}
	return j.phases[*j.last.Do]
}

// ReadJournal reads a journal; one that isn't there is nil.
func ReadJournal(path string) (*Journal, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	j := &Journal{size: int64(len(raw))}
	for i, line := range bytes.SplitAfter(raw, []byte("\n")) {
		_, body, ok := bytes.Cut(line, []byte(" "))
		if !ok || !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		if i > 0 {
			j.last = mark{}
			if err := json.Unmarshal(body, &j.last); err != nil {
				return nil, err
			}
			j.Forward = j.Forward || j.last.Forward
			continue
		}
		type state struct {
			Links []struct {
				Name string `json:"name"`
			} `json:"links"`
		}
		var head struct {
			Plan struct {
				Old   state `json:"old"`
				New   state `json:"new"`
				Steps []struct {
					Phase string `json:"phase"`
				} `json:"steps"`
			} `json:"plan"`
		}
		if err := json.Unmarshal(body, &head); err != nil {
			return nil, err
		}
		for _, l := range head.Plan.New.Links {
			if !slices.Contains(head.Plan.Old.Links, l) {
				j.Adds = append(j.Adds, l.Name)
			}
		}
		for _, s := range head.Plan.Steps {
			j.phases = append(j.phases, s.Phase)
		}
	}
	return j, nil
}

const page = 4096

// FillJournal makes the journal end with a page of memory, by a mark that says once more what the last one said, and fills
// the filesystem that it is on: no mark more has room. What is to be removed to end that is returned.
func FillJournal(dir string) (fill string, err error) {
	path := filepath.Join(dir, "journal")
	j, err := ReadJournal(path)
	if err != nil {
		return "", err
	}
	if j == nil || j.last.Do == nil {
		return "", errors.New("no journal that could be filled")
	}
	const least = len("00000000 ") + len(`{"do":100}`) + len("\n")
	room := page - int(j.size%page)
	if room < least {
		room += page
	}
	body := fmt.Appendf(nil, `{"do":%d`, *j.last.Do)
	body = append(body, bytes.Repeat([]byte(" "), room-len("00000000 ")-len(body)-len("}\n"))...)
	body = append(body, '}')
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(f, "%08x %s\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), body)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	return Fill(dir)
}

// Fill fills the filesystem that a directory is on with a file in it, whose path is returned.
func Fill(dir string) (fill string, err error) {
	fill = filepath.Join(dir, "fill")
	f, err := os.OpenFile(fill, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	block := make([]byte, page)
	for {
		switch _, err := f.Write(block); {
		case errors.Is(err, syscall.ENOSPC):
			return fill, nil
		case err != nil:
			return fill, err
		}
	}
}

// Answers are what an Interposer answers, which can change. The zero value passes everything on.
type Answers struct {
	mu     sync.Mutex
	answer func(line string) ([]byte, bool)
}

// Set has the lines of from now on answered by f; nil passes them on.
func (a *Answers) Set(f func(line string) ([]byte, bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

// Answer is for Interpose.
func (a *Answers) Answer(line string) ([]byte, bool) {
	a.mu.Lock()
	f := a.answer
	a.mu.Unlock()
	if f == nil {
		return nil, false
	}
	return f(line)
}

// Hang answers nothing until lifted is closed, or for a minute; then the connection is closed.
func Hang(lifted <-chan struct{}) func(string) ([]byte, bool) {
	return func(string) ([]byte, bool) {
		select {
		case <-lifted:
		case <-time.After(time.Minute):
		}
		return nil, true
	}
}
