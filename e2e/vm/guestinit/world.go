package guestinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// worldArg, as the only argument, makes this program build a world and run a
// job in it.
const worldArg = "-world-of-a-job"

// Start prepares the process that runs job in its own world: mount, network
// and process namespaces of its own, over an overlay that forgets everything.
// The caller sets Stdout and Stderr and runs it; its exit status is the job's.
// Signals for the job go to this process.
func Start(self string, job Job) (*exec.Cmd, error) {
	spec, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, worldArg)
	cmd.Stdin = strings.NewReader(string(spec))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd, nil
}

// Dispatch runs what this program was started for inside the lab (process 1 of
// the guest, its module loader, or the world of a job) and doesn't return then.
// Any program that boots guests calls it first.
func Dispatch() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == worldArg:
		status, err := runWorld(os.Stdin)
		if err != nil {
			fmt.Fprintf(os.Stderr, "lab: %v\n", err)
			status = max(status, 126)
		}
		os.Exit(status)
	case os.Args[0] == modprobePath:
		err := chrootModprobe(os.Args[1:])
		fmt.Fprintf(os.Stderr, "lab: modprobe: %v\n", err)
		os.Exit(1)
	case os.Getpid() == 1 && os.Args[0] == initPath:
		runInit()
	}
}

func runWorld(spec io.Reader) (int, error) {
	var job Job
	if err := json.NewDecoder(spec).Decode(&job); err != nil {
		return 0, fmt.Errorf("read the job: %w", err)
	}
	if err := buildWorld(job); err != nil {
		return 0, err
	}
	return runJob(job)
}

// mount names what failed the way a reader of a log needs it.
func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", source, fstype, target, err)
	}
	return nil
}

func buildWorld(job Job) error {
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// The tmpfs under the overlay goes over a directory that every root has.
	const base = "/tmp"
	binds := make([]int, len(job.Binds))
	for i, b := range job.Binds { // held open: the tmpfs may hide them
		fd, err := unix.OpenTree(unix.AT_FDCWD, b.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("open the directory %s for the lab: %w", b.Source, err)
		}
		binds[i] = fd
	}
	lower, err := unix.Open(job.Lower, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the root %s: %w", job.Lower, err)
	}
	if err := mount("world", base, "tmpfs", 0, "size=75%,mode=755"); err != nil {
		return err
	}
	upper, work, root := base+"/upper", base+"/work", base+"/root"
	for _, d := range []string{upper, work, root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := mount("world", root, "overlay", 0, fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=%s,workdir=%s", lower, upper, work)); err != nil {
		return err
	}
	if err := mountKernelFS(root, job.Guest); err != nil {
		return err
	}
	for i, b := range job.Binds {
		at := filepath.Join(root, b.Path)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(binds[i], "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("show %s at %s in the lab: %w", b.Source, b.Path, err)
		}
		unix.Close(binds[i])
		if b.ReadOnly {
			if err := mount("none", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return err
			}
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot into the world: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("lab")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := linkUp("lo"); err != nil {
		return err
	}
	return frrDirs()
}

func mountKernelFS(root string, guest bool) error {
	type m struct {
		fstype, path, data string
		flags              uintptr
	}
	mounts := []m{
		{"proc", "/proc", "", 0},
		{"sysfs", "/sys", "", 0},
		{"tmpfs", "/run", "mode=755", 0},
	}
	if guest {
		mounts = append(mounts, m{"devtmpfs", "/dev", "mode=755", 0})
	} else if err := mount("/dev", root+"/dev", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if guest {
		mounts = append(mounts,
			m{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=620", 0},
			m{"tmpfs", "/dev/shm", "mode=1777", 0},
			m{"cgroup2", "/sys/fs/cgroup", "", 0})
	}
	for _, x := range mounts {
		at := root + x.path
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := mount(x.fstype, at, x.fstype, x.flags, x.data); err != nil {
			return err
		}
	}
	return nil
}

// frrDirs makes what FRR's service file would make.
func frrDirs() error {
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		return err
	}
	u, err := user.Lookup("frr")
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		return nil // a root without FRR, as the harness's own tests may use
	} else if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	for _, d := range []string{"/run/frr", "/var/log/frr", "/var/tmp/frr", "/var/lib/frr"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.Chown(d, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// linkUp sets a link of this network namespace up.
func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// runJob runs the job as the child of process 1 of the world: daemons that it
// leaves behind are reaped here, and die with the world.
func runJob(job Job) (int, error) {
	for _, kv := range job.Env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return 0, err
			}
		}
	}
	if err := os.Chdir(job.Dir); err != nil {
		return 0, fmt.Errorf("go to the job's directory: %w", err)
	}
	path, err := exec.LookPath(job.Argv[0])
	if err != nil {
		return 127, fmt.Errorf("find the job's program: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGQUIT, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	proc, err := os.StartProcess(path, job.Argv, &os.ProcAttr{
		Env:   job.Env,
		Files: []*os.File{null, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 0, fmt.Errorf("start the job: %w", err)
	}
	pid := proc.Pid
	go func() {
		for s := range signals {
			// A job that ended meanwhile needs no signal.
			_ = unix.Kill(pid, s.(syscall.Signal))
		}
	}()
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for the job: %w", err)
		case got != pid:
			continue
		case ws.Signaled():
			return 128 + int(ws.Signal()), nil
		default:
			return ws.ExitStatus(), nil
		}
	}
}
