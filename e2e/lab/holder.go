package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vtepd/e2e/clab"
)

// The names under which a program that uses this package is started again.
const (
	holderName  = "vtepd-lab-node"
	speakerName = "vtepd-lab-speaker"
)

// selfPath is where a node has the program itself.
const selfPath = "/.vtepd-lab"

// A node's first process, and the GoBGP speaker that replaces FRR, are the
// program itself under another name: what the mount namespace of a node needs
// must be done by a process inside it, and a test binary has no other program
// to send. It never gets to main.
func init() {
	var run func() error
	switch os.Args[0] {
	case holderName:
		run = holder
	case speakerName:
		run = speaker
	default:
		return
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// world is what a holder is told to make.
type world struct {
	Hostname string         `json:"hostname"`
	Root     string         `json:"root"`    // of the image; never written to
	Scratch  string         `json:"scratch"` // an empty directory to mount on
	Self     string         `json:"self"`    // the program
	Binds    []clab.Bind    `json:"binds"`   // sources absolute
	Sysctls  []clab.Setting `json:"sysctls"`
}

// holder is the first process of a node: it makes the node's root, says "ok",
// reaps what is orphaned, and lives until its standard input ends. As it is
// process 1 of a process namespace, everything in the node dies with it. In a node that uses another's process namespace that
// one's first process does all this, and this one holds the rest.
func holder() error {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)

	in := json.NewDecoder(os.Stdin)
	var w world
	if err := in.Decode(&w); err != nil {
		return err
	}
	if err := w.make(); err != nil {
		fmt.Println(err)
		return err
	}
	fmt.Println("ok")
	go func() {
		for range children {
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid <= 0 {
					break
				}
			}
		}
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func (w world) make() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Sethostname([]byte(w.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// An overlay's upper directory can't be on an overlay, which the scratch
	// directory may be on.
	if err := mount("tmpfs", w.Scratch, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	root := filepath.Join(w.Scratch, "root")
	upper, work := filepath.Join(w.Scratch, "upper"), filepath.Join(w.Scratch, "work")
	for _, d := range []string{root, upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", w.Root, upper, work)); err != nil {
		return err
	}
	for _, m := range []struct {
		kind, target string
		data         string
	}{{"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"tmpfs", "/run", "mode=755"}, {"tmpfs", "/tmp", "mode=1777"}} {
		dir := filepath.Join(root, m.target)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := mount(m.kind, dir, m.kind, 0, m.data); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		return err
	}
	if err := mount("/dev", filepath.Join(root, "dev"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, b := range append(w.Binds, clab.Bind{Source: w.Self, Target: selfPath, ReadOnly: true}) {
		if err := bind(root, b); err != nil {
			return fmt.Errorf("bind %s: %w", b.Target, err)
		}
	}
	// The old root goes on top of the new one, and off again.
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for _, s := range w.Sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(s.Key, ".", "/")
		if err := os.WriteFile(path, []byte(s.Value), 0o644); err != nil {
			return fmt.Errorf("sysctl %s: %w", s.Key, err)
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s (%s): %w", source, target, data, err)
	}
	return nil
}

// bind puts a file or directory at its target under root, which is made.
func bind(root string, b clab.Bind) error {
	info, err := os.Stat(b.Source)
	if err != nil {
		return err
	}
	target, err := inside(root, b.Target)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := mount(b.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if b.ReadOnly {
		return mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	return nil
}

// inside resolves a path under another root, as a process with that root would:
// absolute symbolic links begin there again. What is missing is taken as it is.
func inside(root, path string) (string, error) {
	todo := strings.Split(path, "/")
	at := "/"
	for hops := 0; len(todo) > 0; {
		var next string
		next, todo = todo[0], todo[1:]
		if next == "" || next == "." {
			continue
		}
		at = filepath.Join(at, next)
		to, err := os.Readlink(filepath.Join(root, at))
		if err != nil {
			continue // not there, or no link
		}
		if hops++; hops > 40 {
			return "", errors.New(path + ": too many symbolic links")
		}
		at = filepath.Dir(at)
		if filepath.IsAbs(to) {
			at = "/"
		}
		todo = append(strings.Split(to, "/"), todo...)
	}
	return filepath.Join(root, at), nil
}
