package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"vtepd/e2e/vm/guestinit"
)

// Share is a directory of the host that a guest sees at the same path.
type Share struct {
	Path     string
	ReadOnly bool
}

// Machine says which guest to boot and what it sees.
type Machine struct {
	Root    Root
	Init    string        // a static program that calls guestinit.Dispatch
	Shares  []Share       // shorter paths first
	Console string        // the file that gets the guest's console; "" keeps it beside the sockets
	Accel   string        // "kvm" or "tcg"; "" is what ProvenAccel says
	Timeout time.Duration // until it takes jobs; 0 is three minutes
}

// Command is one command line for a guest.
type Command struct {
	Argv   []string
	Dir    string
	Env    []string
	Stdout io.Writer
	Stderr io.Writer
}

// Guest is a running machine. It takes one command at a time.
type Guest struct {
	machine Machine
	wire    *guestinit.Wire
	procs   *procs
	dir     string
	console string
	kernel  string
	frames  chan frame
	cancel  context.CancelFunc
}

type frame struct {
	kind    byte
	payload []byte
	err     error
}

// DeadError says that the guest is gone: it panicked, was powered off or was
// killed at a deadline. Console is the end of what it wrote.
type DeadError struct {
	Why     string
	Console string
}

func (e *DeadError) Error() string {
	return fmt.Sprintf("the guest is gone: %s; the end of its console:\n%s", e.Why, e.Console)
}

// Boot starts a guest and returns when it takes commands. A machine that dies or
// hangs before its first process says anything is started once more: on a busy
// host an emulated kernel can miss its own timers, and nothing of ours has run
// by then.
func Boot(ctx context.Context, m Machine) (*Guest, error) {
	g, err := boot(ctx, m)
	var dead *DeadError
	if errors.As(err, &dead) && !strings.Contains(dead.Console, "lab: ") && m.Accel != "kvm" && ctx.Err() == nil {
		return boot(ctx, m)
	}
	return g, err
}

func boot(ctx context.Context, m Machine) (*Guest, error) {
	if err := need(qemu, virtiofsd); err != nil {
		return nil, err
	}
	if m.Accel == "" {
		m.Accel = ProvenAccel(ctx, m)
	}
	if m.Timeout == 0 {
		m.Timeout = 3 * time.Minute
	}
	dir, err := os.MkdirTemp("", "vtepd-vm-")
	if err != nil {
		return nil, err
	}
	g := &Guest{machine: m, dir: dir, console: m.Console, procs: newProcs(), frames: make(chan frame, 64)}
	if g.console == "" {
		g.console = filepath.Join(dir, "console.log")
	}
	if err := g.start(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Guest) start(ctx context.Context) error {
	modules, err := moduleFiles(g.machine.Root.Modules, Default.Modules)
	if err != nil {
		return err
	}
	initrd, err := os.Create(filepath.Join(g.dir, "initrd"))
	if err != nil {
		return err
	}
	defer initrd.Close()
	if err := writeInitramfs(initrd, g.machine.Init, modules); err != nil {
		return err
	}
	control, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(g.dir, "control"), Net: "unix"})
	if err != nil {
		return err
	}
	defer control.Close()
	args, err := g.shares()
	if err != nil {
		return err
	}
	if err := g.procs.start(machine, exec.Command(qemu.name, append(g.qemuArgs(), args...)...)); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, g.machine.Timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { control.Close() })
	defer stop()
	go func() { // a machine that never comes up doesn't connect
		<-g.procs.dead
		control.Close()
	}()
	conn, err := control.Accept()
	if err != nil {
		return g.gone(ctx, "it didn't start")
	}
	g.wire = guestinit.NewWire(conn)
	reading, cancelReading := context.WithCancel(context.Background())
	g.cancel = cancelReading
	context.AfterFunc(reading, func() { conn.Close() })
	go g.read(reading)
	ready, err := g.next(ctx)
	if err != nil {
		return err
	}
	if ready.kind != guestinit.FrameReady {
		return fmt.Errorf("the guest's first word is frame %q, would be %q", ready.kind, guestinit.FrameReady)
	}
	var r guestinit.Ready
	if err := json.Unmarshal(ready.payload, &r); err != nil {
		return err
	}
	g.kernel = r.Kernel
	return nil
}

// Kernel is the guest's kernel release.
func (g *Guest) Kernel() string { return g.kernel }

// Console is the file that holds the guest's console.
func (g *Guest) Console() string { return g.console }

func (g *Guest) read(ctx context.Context) {
	for {
		kind, payload, err := g.wire.Recv()
		select {
		case g.frames <- frame{kind, payload, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// next waits for a frame; a *DeadError when there will be none.
func (g *Guest) next(ctx context.Context) (frame, error) {
	select {
	case f := <-g.frames:
		if f.err != nil {
			return f, g.gone(ctx, "it closed the control port")
		}
		return f, nil
	case <-ctx.Done():
		return frame{}, g.gone(ctx, "it was killed")
	}
}

// gone ends the machine and says why there is none any more.
func (g *Guest) gone(ctx context.Context, why string) error {
	if cause := context.Cause(ctx); cause != nil {
		why += ": " + cause.Error()
	} else if said := g.procs.obituary(); said != "" {
		why += ": " + said
	}
	g.procs.kill()
	text, err := os.ReadFile(g.console)
	if err != nil {
		text = []byte(err.Error())
	}
	return &DeadError{Why: why, Console: string(tail(text, 6000))}
}

// Run runs one command in the guest, in a world of its own, and returns how it
// ended. A *DeadError says that the guest is gone, also when ctx ends: there is
// no other way to be sure that a command is over.
func (g *Guest) Run(ctx context.Context, c Command) (guestinit.Exit, error) {
	job := guestinit.Job{Argv: c.Argv, Dir: c.Dir, Env: c.Env}
	for i, s := range g.machine.Shares {
		job.Binds = append(job.Binds, guestinit.Bind{Source: guestinit.SharesPath + "/" + tag(i), Path: s.Path, ReadOnly: s.ReadOnly})
	}
	if err := g.wire.SendJSON(guestinit.FrameRun, job); err != nil {
		return guestinit.Exit{}, g.gone(ctx, err.Error())
	}
	for {
		f, err := g.next(ctx)
		if err != nil {
			return guestinit.Exit{}, err
		}
		switch f.kind {
		case guestinit.FrameStdout:
			_, err = c.Stdout.Write(f.payload)
		case guestinit.FrameStderr:
			_, err = c.Stderr.Write(f.payload)
		case guestinit.FrameExit:
			var exit guestinit.Exit
			if err := json.Unmarshal(f.payload, &exit); err != nil {
				return exit, err
			}
			if exit.Err != "" {
				return exit, errors.New(exit.Err)
			}
			return exit, nil
		default:
			err = fmt.Errorf("unexpected frame %q from the guest", f.kind)
		}
		if err != nil {
			return guestinit.Exit{}, err
		}
	}
}

// Signal sends a signal to the running command; without one it does nothing.
func (g *Guest) Signal(s syscall.Signal) error {
	return g.wire.Send(guestinit.FrameSignal, []byte{byte(s)})
}

// Close powers the guest off and removes what Boot made. Closing twice is fine.
func (g *Guest) Close() error {
	if g.wire != nil {
		// Nothing in a guest outlives it, so there is nothing to wait for.
		g.cancel()
	}
	g.procs.kill()
	return os.RemoveAll(g.dir)
}

func tag(i int) string { return "share" + strconv.Itoa(i) }

// shares starts a file server for the root and for each share, and returns
// QEMU's arguments for them.
func (g *Guest) shares() ([]string, error) {
	server, _ := virtiofsd.find()
	var args []string
	add := func(tag, dir, cache string) error {
		path := filepath.Join(g.dir, tag)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		defer l.Close()
		f, err := l.File()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd := exec.Command(server, "--fd=3", "-o", "source="+dir, "-o", "cache="+cache, "-o", "sandbox=chroot")
		cmd.ExtraFiles = []*os.File{f}
		if err := g.procs.start("virtiofsd "+dir, cmd); err != nil {
			return err
		}
		args = append(args,
			"-chardev", "socket,id="+tag+",path="+path,
			"-device", "vhost-user-fs-pci,chardev="+tag+",tag="+tag)
		return nil
	}
	if err := add("rootfs", g.machine.Root.Dir, "always"); err != nil {
		return nil, err
	}
	for i, s := range g.machine.Shares {
		if err := add(tag(i), s.Path, "auto"); err != nil {
			return nil, err
		}
	}
	return args, nil
}

func (g *Guest) qemuArgs() []string {
	const memory = "3G"
	// One processor under TCG: QEMU 7.2 can translate code that another
	// processor is just changing and keep the stale translation, so that a kernel
	// that patches itself (Linux's static keys, which a first container flips) meets
	// a breakpoint of its own that is long gone, and panics.
	accel := []string{"-accel", "tcg,tb-size=512", "-smp", "1"}
	if g.machine.Accel == "kvm" {
		accel = []string{"-accel", "kvm", "-smp", "2"}
	}
	// no_timer_check: an emulator on a busy host is late with the ticks that the
	// kernel counts at its start, and the kernel panics over it.
	cmdline := []string{"no_timer_check console=ttyS0 quiet loglevel=3 panic=-1 oops=panic mitigations=off random.trust_cpu=on"}
	for i, s := range g.machine.Shares {
		word := "lab.share=" + tag(i)
		if s.ReadOnly {
			word += ":ro"
		}
		cmdline = append(cmdline, word)
	}
	return append(accel,
		"-cpu", "max", "-m", memory, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-chardev", "file,id=console,path="+g.console, "-serial", "chardev:console",
		"-object", "memory-backend-memfd,id=mem,size="+memory+",share=on", "-numa", "node,memdev=mem",
		"-chardev", "socket,id=control,path="+filepath.Join(g.dir, "control"),
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=control,nr=1",
		"-kernel", g.machine.Root.Kernel, "-initrd", filepath.Join(g.dir, "initrd"),
		"-append", strings.Join(cmdline, " "))
}

// procs are the host processes of one guest. They die together, and with this
// process, however it ends.
type procs struct {
	mu   sync.Mutex
	all  []*exec.Cmd
	wait sync.WaitGroup
	said string // why the first one that ended did
	dead chan struct{}
	once sync.Once
}

// machine is the name of the process that the others serve.
const machine = "qemu"

func newProcs() *procs { return &procs{dead: make(chan struct{})} }

func (p *procs) start(name string, cmd *exec.Cmd) error {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := startBound(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p.mu.Lock()
	p.all = append(p.all, cmd)
	p.mu.Unlock()
	p.wait.Go(func() {
		err := cmd.Wait()
		if err == nil && name != machine {
			return // a file server ends well when its machine is gone
		}
		p.once.Do(func() {
			p.mu.Lock()
			p.said = fmt.Sprintf("%s ended: %v %s", name, exitText(err), tail([]byte(stderr.String()), 1000))
			p.mu.Unlock()
			close(p.dead)
		})
	})
	return nil
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// obituary waits a moment for the machine to end and says how it did.
func (p *procs) obituary() string {
	select {
	case <-p.dead:
	case <-time.After(3 * time.Second):
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.TrimSpace(p.said)
}

func (p *procs) kill() {
	p.mu.Lock()
	for _, cmd := range p.all {
		// One that has ended already is what we want.
		_ = cmd.Process.Kill()
	}
	p.mu.Unlock()
	p.wait.Wait()
}

// startBound starts cmd so that the kernel kills it when this process ends.
// The kernel watches the thread that starts a process, so one thread that never
// ends starts them all.
func startBound(cmd *exec.Cmd) error {
	starterOnce.Do(func() {
		go func() {
			runtime.LockOSThread()
			for f := range starter {
				f()
			}
		}()
	})
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	errs := make(chan error)
	starter <- func() { errs <- cmd.Start() }
	return <-errs
}

var (
	starterOnce sync.Once
	starter     = make(chan func())
)
