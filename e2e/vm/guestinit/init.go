package guestinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	initPath     = "/init"
	modprobePath = "/modprobe"
	lowerPath    = "/lower"
	portPath     = "/dev/vport0p1"

	// SharesPath is where the guest mounts the share TAG, as SharesPath/TAG;
	// a Job's binds name their sources there.
	SharesPath = "/shares"
	// LowerPath is the guest's read-only root, the Lower of its jobs.
	LowerPath = lowerPath
)

// runInit is process 1. It never returns: the machine is powered off, or the
// kernel panics because its first process died, and the host sees either.
func runInit() {
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "lab: init: %v\n", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintf(os.Stderr, "lab: power off: %v\n", err)
	}
	os.Exit(1)
}

func serve() error {
	if err := bring(); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	wire := NewWire(port)
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	if err := wire.SendJSON(FrameReady, Ready{Kernel: unix.ByteSliceToString(uts.Release[:])}); err != nil {
		return err
	}
	return answer(wire)
}

// answer runs one job after another until the host says to quit.
func answer(wire *Wire) error {
	var running *exec.Cmd
	done := make(chan struct{}, 1)
	frames := make(chan frame)
	go func() {
		for {
			kind, payload, err := wire.Recv()
			frames <- frame{kind, payload, err}
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-done:
			running = nil
		case f := <-frames:
			switch {
			case errors.Is(f.err, io.EOF), f.err == nil && f.kind == FrameQuit:
				return nil
			case f.err != nil:
				return f.err
			case f.kind == FrameSignal && running != nil && len(f.payload) == 1:
				// A job that ended meanwhile needs no signal.
				_ = running.Process.Signal(syscall.Signal(f.payload[0]))
			case f.kind == FrameRun:
				var job Job
				if err := json.Unmarshal(f.payload, &job); err != nil {
					return fmt.Errorf("read a job: %w", err)
				}
				cmd, err := startJob(wire, job)
				if err != nil {
					if err := wire.SendJSON(FrameExit, Exit{Status: 126, Err: err.Error()}); err != nil {
						return err
					}
					continue
				}
				running = cmd
				go func() {
					finishJob(wire, cmd)
					done <- struct{}{}
				}()
			}
		}
	}
}

type frame struct {
	kind    byte
	payload []byte
	err     error
}

func startJob(wire *Wire, job Job) (*exec.Cmd, error) {
	job.Guest, job.Lower = true, lowerPath
	if err := skipKernelLog(); err != nil {
		return nil, err
	}
	cmd, err := Start(initPath, job)
	if err != nil {
		return nil, err
	}
	// Process 1 has no parent whose death could matter, and the thread that
	// starts the job may end before the job does.
	cmd.SysProcAttr.Pdeathsig = 0
	cmd.Stdout, cmd.Stderr = Stream{wire, FrameStdout}, Stream{wire, FrameStderr}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the world: %w", err)
	}
	return cmd, nil
}

func finishJob(wire *Wire, cmd *exec.Cmd) {
	exit := Exit{}
	err := cmd.Wait()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		ws := failed.Sys().(syscall.WaitStatus)
		exit.Status = ws.ExitStatus()
		if ws.Signaled() {
			exit.Status = 128 + int(ws.Signal())
		}
	case err != nil:
		exit = Exit{Status: 126, Err: err.Error()}
	}
	exit.Kernel = kernelComplaints()
	// A host that is gone can't be told.
	_ = wire.SendJSON(FrameExit, exit)
}

// bring mounts what process 1 needs and loads the modules of the initial
// file system, in the order of their names.
func bring() error {
	for _, m := range []struct{ fstype, path string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.path, 0o755); err != nil {
			return err
		}
		if err := mount(m.fstype, m.path, m.fstype, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := loadModule(m); err != nil {
			return err
		}
	}
	if err := mountShare("rootfs", lowerPath, unix.MS_RDONLY); err != nil {
		return err
	}
	shares, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(string(shares)) {
		tag, ok := strings.CutPrefix(word, "lab.share=")
		if !ok {
			continue
		}
		tag, ro := strings.CutSuffix(tag, ":ro")
		var flags uintptr
		if ro {
			flags = unix.MS_RDONLY
		}
		if err := mountShare(tag, SharesPath+"/"+tag, flags); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/tmp", 0o755); err != nil {
		return err
	}
	// What a job makes the kernel ask for comes from the root's modules.
	for path, value := range map[string]string{
		"/proc/sys/kernel/modprobe":                   modprobePath,
		"/proc/sys/fs/inotify/max_user_instances":     "1024",
		"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "65536",
		"/proc/sys/net/ipv4/neigh/default/gc_thresh2": "65536",
		"/proc/sys/net/ipv6/neigh/default/gc_thresh3": "65536",
	} {
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	return nil
}

func mountShare(tag, path string, flags uintptr) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return mount(tag, path, "virtiofs", flags, "")
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if !strings.HasSuffix(path, ".ko") {
		flags = unix.MODULE_INIT_COMPRESSED_FILE
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load the kernel module %s: %w", filepath.Base(path), err)
	}
	return nil
}

func chrootModprobe(args []string) error {
	if err := unix.Chroot(lowerPath); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return unix.Exec("/sbin/modprobe", append([]string{"modprobe"}, args...), []string{"PATH=/sbin:/usr/sbin:/bin:/usr/bin"})
}

// openPort waits for the control port: the kernel announces its ports a moment
// after the first process starts.
func openPort() (*os.File, error) {
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch /dev: %w", err)
	}
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, filepath.Dir(portPath), unix.IN_CREATE); err != nil {
		return nil, fmt.Errorf("watch /dev: %w", err)
	}
	events := make([]byte, 4096)
	for deadline := time.Now().Add(time.Minute); ; {
		port, err := os.OpenFile(portPath, os.O_RDWR, 0)
		if !errors.Is(err, os.ErrNotExist) {
			return port, err
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}}, int(max(0, time.Until(deadline)).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("watch /dev: %w", err)
		case ready == 0:
			return nil, fmt.Errorf("the control port %s didn't appear", portPath)
		default:
			if _, err := unix.Read(watch, events); err != nil {
				return nil, fmt.Errorf("watch /dev: %w", err)
			}
		}
	}
}

// kmsg is the kernel's log from where the running job began, -1 before the
// first one. A plain descriptor: os.File would make its reads wait.
var kmsg = -1

func skipKernelLog() error {
	if kmsg >= 0 {
		unix.Close(kmsg)
	}
	var err error
	if kmsg, err = unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open the kernel's log: %w", err)
	}
	_, err = unix.Seek(kmsg, 0, io.SeekEnd)
	return err
}

var complaint = regexp.MustCompile(`^(WARNING: |BUG: |Oops|general protection|INFO: task .* blocked|unregister_netdevice: waiting|refcount_t: )`)

func kernelComplaints() []string {
	var all []string
	buf := make([]byte, 8192)
	for len(all) < 20 {
		n, err := unix.Read(kmsg, buf)
		if errors.Is(err, unix.EPIPE) { // overwritten before it was read
			continue
		}
		if err != nil || n == 0 {
			return all
		}
		// PRIORITY,SEQUENCE,TIME,FLAGS;TEXT\n KEY=VALUE…
		_, text, _ := strings.Cut(string(buf[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if complaint.MatchString(text) {
			all = append(all, text)
		}
	}
	return all
}
