package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"vtepd/e2e/clab"
)

// Node is a node of a lab: a container's worth of namespaces.
type Node struct {
	Name string
	Def  clab.Node // as in the topology

	lab     *Lab
	holder  int // process id
	adopted bool
	ns      namespaces
	netlink *netlink.Handle // in the node's network namespace
	procs   int             // started so far
	daemons map[string]*Proc
	speaker *Speaker
}

// namespaces are those of a node's holder. The network namespace is known by
// its number, and for ever by its cookie; 0 where it is another node's.
type namespaces struct {
	net, mnt, pid, uts *os.File
	id                 string
	cookie             uint64
}

// startNode starts the holder of a node and waits for its root to be made.
func (l *Lab) startNode(ctx context.Context, def clab.Node) (*Node, error) {
	n := &Node{Name: def.Name, Def: def, lab: l, daemons: map[string]*Proc{}}
	if pid := l.opt.Adopted[def.Name]; pid != 0 {
		l.onDestroy(func() error {
			n.close()
			return nil
		})
		if err := n.Adopt(pid); err != nil {
			return nil, err
		}
		return n, n.linkUp("lo")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := world{Hostname: def.Hostname, Self: self, Scratch: filepath.Join(l.scratch, "n-"+def.Name), Sysctls: def.Sysctls}
	if err := os.MkdirAll(w.Scratch, 0o755); err != nil {
		return nil, err
	}
	w.Root = "/"
	for _, image := range []string{"", def.Image} {
		if r := l.opt.Roots[image]; r != "" {
			w.Root = r
		}
	}
	for _, b := range def.Binds {
		if copied := l.copies[b.Source]; copied != "" {
			b.Source = copied
		}
		w.Binds = append(w.Binds, b)
	}
	// One that isn't built is missed only by who starts it.
	if bin := l.opt.Binaries[def.Image]; exists(bin) && len(def.Entrypoint) > 0 {
		w.Binds = append(w.Binds, clab.Bind{Source: bin, Target: def.Entrypoint[0], ReadOnly: true})
	}

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{holderName, def.Name}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var others []func() error // to be entered
	if of := def.NetworkOf(); of != "" {
		others = append(others, func() error { return setns(l.Node(of).ns.net, unix.CLONE_NEWNET) })
	} else {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	if of := def.PidOf(); of != "" {
		others = append(others, func() error { return setns(l.Node(of).ns.pid, unix.CLONE_NEWPID) })
	} else {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
	}
	err = onThread(func() error {
		for _, enter := range others {
			if err := enter(); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err != nil {
		return nil, fmt.Errorf("start its first process: %w", err)
	}
	n.holder = cmd.Process.Pid
	l.onDestroy(func() error {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait() // says that it was killed
		n.close()
		return nil
	})
	if err := json.NewEncoder(in).Encode(w); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	answer, err := bufio.NewReader(out).ReadString('\n')
	stop()
	if answer = strings.TrimSpace(answer); answer != "ok" {
		return nil, errors.Join(fmt.Errorf("make its root: %s", answer), err, ctx.Err())
	}

	if err := n.open(); err != nil {
		return nil, err
	}
	if def.NetworkOf() == "" {
		path := fmt.Sprintf("/proc/%d/ns/net", n.holder)
		if n.ns.id, err = os.Readlink(path); err != nil {
			return nil, err
		}
		if n.ns.cookie, err = netnsCookie(path); err != nil {
			return nil, err
		}
	}
	return n, n.linkUp("lo")
}

// Adopt makes the namespaces of a process those of the node: of a node that is adopted, at first and whenever its container
// has been started again.
func (n *Node) Adopt(pid int) error {
	n.close()
	n.holder, n.adopted = pid, true
	return n.open()
}

// open opens the namespaces of the holder.
func (n *Node) open() (err error) {
	for _, ns := range []struct {
		name string
		file **os.File
	}{{"net", &n.ns.net}, {"mnt", &n.ns.mnt}, {"pid", &n.ns.pid}, {"uts", &n.ns.uts}} {
		path := fmt.Sprintf("/proc/%d/ns/%s", n.holder, ns.name)
		if *ns.file, err = os.Open(path); err != nil {
			return err
		}
	}
	n.netlink, err = netlink.NewHandleAt(netns.NsHandle(int(n.ns.net.Fd())), unix.NETLINK_ROUTE)
	return err
}

func (n *Node) close() {
	for _, f := range []*os.File{n.ns.net, n.ns.mnt, n.ns.pid, n.ns.uts} {
		if f != nil {
			f.Close()
		}
	}
	if n.netlink != nil {
		n.netlink.Close()
		n.netlink = nil
	}
}

func (n *Node) linkUp(name string) error {
	link, err := n.netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := n.netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

// onThread runs f on a thread that does nothing else, before or after: what f
// does to its namespaces ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// The first thread can't end, and /proc/self is about it. While it is held
			// here, another goroutine runs on another thread.
			done <- onThread(f)
			runtime.UnlockOSThread()
			return
		}
		done <- f()
	}()
	return <-done
}

func setns(ns *os.File, kind int) error {
	if err := unix.Setns(int(ns.Fd()), kind); err != nil {
		return fmt.Errorf("enter %s: %w", ns.Name(), err)
	}
	return nil
}

// netnsCookie is what no other network namespace has, before or after.
func netnsCookie(path string) (cookie uint64, err error) {
	ns, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	err = onThread(func() error {
		if err := setns(ns, unix.CLONE_NEWNET); err != nil {
			return err
		}
		s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	return cookie, err
}

// in runs f inside the node: on a thread in its network and mount namespaces,
// whose children are in its process namespace.
func (n *Node) in(f func() error) error {
	return onThread(func() error {
		// A mount namespace can be entered only by who shares its root with nobody.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return errors.Join(setns(n.ns.net, unix.CLONE_NEWNET), setns(n.ns.uts, unix.CLONE_NEWUTS),
			setns(n.ns.pid, unix.CLONE_NEWPID), setns(n.ns.mnt, unix.CLONE_NEWNS), f())
	})
}

// InNetwork runs f on a thread in the node's network namespace, in the caller's
// own files: what f opens there (a socket, a netlink handle) stays there. What
// it opens must be closed before the lab is destroyed.
func (n *Node) InNetwork(f func() error) error {
	return onThread(func() error {
		if err := setns(n.ns.net, unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// Netlink is a handle in the node's network namespace. It ends with the lab.
func (n *Node) Netlink() *netlink.Handle { return n.netlink }

// command makes a command; start runs it inside the node.
func (n *Node) command(args []string) *exec.Cmd {
	cmd := &exec.Cmd{Path: args[0], Args: args, Dir: "/"}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "container=vtepd-lab"}
	for _, e := range n.Def.Env {
		cmd.Env = append(cmd.Env, e.Key+"="+e.Value)
	}
	return cmd
}

func (n *Node) start(cmd *exec.Cmd) error {
	return n.in(func() error {
		path, err := exec.LookPath(cmd.Path) // in the node, as the thread is
		if err != nil {
			return err
		}
		cmd.Path = path
		return cmd.Start()
	})
}

// Exec runs a command in the node to its end and returns its standard output.
// When it fails, the error has what it said.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	cmd := n.command(args)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := n.start(cmd)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
		err = cmd.Wait()
		stop()
		if ctx.Err() != nil && err != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w", n.Name, strings.Join(args, " "), exeError(err, out.String()+errs.String()))
	}
	return out.String(), nil
}

// JSON runs a command in the node and decodes its standard output into v.
func (n *Node) JSON(ctx context.Context, v any, args ...string) error {
	out, err := n.Exec(ctx, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("%s: %s: %w: %s", n.Name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Path is where a path of the node's is for this program: to write a file into
// a bound directory, say. It is good as long as the node is.
func (n *Node) Path(path string) string {
	for _, b := range slices.Backward(n.Def.Binds) {
		rel, err := filepath.Rel(b.Target, path)
		// What an adopted node has there is its maker's.
		if copied := n.lab.copies[b.Source]; err == nil && copied != "" && !n.adopted && filepath.IsLocal(rel) {
			return filepath.Join(copied, rel)
		}
	}
	root := fmt.Sprintf("/proc/%d/root", n.holder)
	p, err := inside(root, path)
	if err != nil {
		return filepath.Join(root, path)
	}
	return p
}

// Drop writes a file in the node as an editor does that wants no reader to see
// half of it: beside it, then renamed over it.
func (n *Node) Drop(path, content string) error { return DropFile(n.Path(path), content) }

// DropFile does the same at a path of this program's.
func DropFile(to, content string) error {
	tmp := filepath.Join(filepath.Dir(to), "."+filepath.Base(to)+".tmp")
	if err := os.WriteFile(tmp, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

// Dial connects to a unix socket of the node's.
func (n *Node) Dial(ctx context.Context, path string) (net.Conn, error) {
	p, err := inside(fmt.Sprintf("/proc/%d/root", n.holder), path)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", p)
}

// Enslave puts a link of the node's into a bridge and sets it up, as an operator does with the
// host ports of vtepd's bridges.
func (n *Node) Enslave(ctx context.Context, port, bridge string) error {
	_, err := n.Exec(ctx, "ip", "link", "set", port, "up", "master", bridge)
	return err
}

// Dump returns what the node has, for people: links, addresses, routes,
// bridges' tables, and of FRR the running configuration and BGP's tables.
func (n *Node) Dump(ctx context.Context) string {
	var b strings.Builder
	commands := []string{
		"ip -d -s link", "ip -d address", "ip -d route show table all", "ip -d -6 route show table all", "ip neigh",
		"bridge -d fdb", "bridge -d vlan", "ps axf",
	}
	if n.runsFRR() {
		for _, c := range []string{
			"show version", "show running-config", "show bgp summary", "show bgp ipv4 unicast", "show bgp ipv6 unicast",
			"show bgp l2vpn evpn", "show evpn vni detail", "show ip route", "show ipv6 route", "show ip nht",
		} {
			commands = append(commands, "vtysh -c '"+c+"'")
		}
	}
	for _, c := range commands {
		args, _ := clab.Split(c)
		out, err := n.Exec(ctx, args...)
		fmt.Fprintf(&b, "# %s\n%s", c, out)
		if err != nil {
			fmt.Fprintf(&b, "# %v\n", err)
		}
	}
	return b.String()
}
