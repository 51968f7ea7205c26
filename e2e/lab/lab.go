// Package lab makes the lab of a containerlab topology out of namespaces: each
// node is a network, mount and process namespace with a root of its own, its
// links are veth pairs, and FRR runs in it at its usual paths. It owns what it
// makes, all of which ends with the lab or, at the latest, with the process
// that deployed it. It writes nowhere but in a scratch directory of its own and
// in the directory for artifacts.
//
// It needs root. A program that uses it is started again, under other names,
// as the first process of each node: see init in holder.go.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"vtepd/e2e/clab"
)

// Options are what a topology leaves open. The zero value is good.
type Options struct {
	// Roots are the root directories of images. The image "" stands for every
	// other; its default is "/". None of them is ever written to.
	Roots map[string]string
	// Binaries are files that take the place of an image's entrypoint. The default
	// is $VTEPD_BIN, where that is set, for vtepd:latest.
	Binaries map[string]string
	// GoBGP names the nodes whose FRR a GoBGP speaker replaces. It has the peers of
	// the node's frr.conf, and puts its best IPv4 and IPv6 routes into the node's
	// kernel. See Lab.Witness.
	GoBGP []string
	// Adopted names the nodes that somebody else has made, a container engine for one, by a process in each: the lab makes
	// their links and runs their exec lines, and starts nothing in them. They outlive it.
	Adopted map[string]int
	// Deployed: somebody else has deployed all of the topology, containerlab for one; every node is adopted, and the lab makes
	// no link and runs no exec line either.
	Deployed bool
	// Artifacts is the directory for Collect; default $VTEPD_ARTIFACTS, else none.
	Artifacts string
	// Logf is told what happens; nil for nobody.
	Logf func(format string, args ...any)
}

// Lab is a deployed topology. Its methods may be called from several
// goroutines, those of one Node from one at a time.
type Lab struct {
	Topology *clab.Topology

	opt     Options
	scratch string
	nodes   map[string]*Node
	copies  map[string]string // source of a bind to its copy
	started time.Time

	mu      sync.Mutex
	closers []func() error // run in reverse by Destroy
	traffic []*Traffic
}

// Deploy makes the lab of a topology file's content: nodes, links, FRR with its
// configuration loaded, and then every node's exec lines. It doesn't wait for
// BGP: see WaitBGP. Relative sources of binds are in dir, and copied from there. On an
// error nothing is left.
func Deploy(ctx context.Context, topo *clab.Topology, dir string, opt Options) (_ *Lab, err error) {
	if opt.Logf == nil {
		opt.Logf = func(string, ...any) {}
	}
	opt.Artifacts = cmp.Or(opt.Artifacts, os.Getenv("VTEPD_ARTIFACTS"))
	if bin := os.Getenv("VTEPD_BIN"); bin != "" && opt.Binaries == nil {
		opt.Binaries = map[string]string{"vtepd:latest": bin}
	}
	for _, name := range opt.GoBGP {
		if _, ok := topo.Node(name); !ok {
			return nil, fmt.Errorf("no node %q to replace by GoBGP", name)
		}
	}
	if opt.Deployed {
		for _, n := range topo.Nodes {
			if opt.Adopted[n.Name] == 0 {
				return nil, fmt.Errorf("node %s: deployed by somebody else, but no process of it is given", n.Name)
			}
		}
	}
	scratch, err := os.MkdirTemp("", "vtepd-lab-")
	if err != nil {
		return nil, err
	}
	l := &Lab{
		Topology: topo, opt: opt, scratch: scratch, started: time.Now(),
		nodes: map[string]*Node{}, copies: map[string]string{},
	}
	defer func() {
		if err != nil {
			l.collect(filepath.Join(cmp.Or(opt.Artifacts, scratch), "deploy"))
			err = errors.Join(err, l.Destroy(context.WithoutCancel(ctx)))
		}
	}()

	if !opt.Deployed {
		if err := l.copyBinds(dir); err != nil {
			return nil, err
		}
	}
	// Those with all namespaces of their own first.
	for _, of := range []bool{false, true} {
		var g errgroup.Group
		var mu sync.Mutex
		for _, n := range topo.Nodes {
			if (n.NetworkOf() != "" || n.PidOf() != "") != of {
				continue
			}
			g.Go(func() error {
				node, err := l.startNode(ctx, n)
				if err != nil {
					return fmt.Errorf("node %s: %w", n.Name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				l.nodes[n.Name] = node
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
	}
	if opt.Deployed {
		return l, nil
	}
	for _, link := range topo.Links {
		if err := l.link(link); err != nil {
			return nil, fmt.Errorf("link %v - %v: %w", link.A, link.B, err)
		}
	}
	opt.Logf("lab %s: %d nodes, %d links after %v", topo.Name, len(topo.Nodes), len(topo.Links), time.Since(l.started).Round(time.Millisecond))

	var g errgroup.Group
	for _, n := range l.Nodes() {
		g.Go(func() error {
			if n.isFRR() && !n.adopted && !slices.Contains(opt.GoBGP, n.Name) {
				if err := n.startFRR(ctx); err != nil {
					return fmt.Errorf("node %s: %w", n.Name, err)
				}
			}
			for _, args := range n.Def.Exec {
				if _, err := n.Exec(ctx, args...); err != nil {
					return err
				}
			}
			if slices.Contains(opt.GoBGP, n.Name) {
				if err := n.startSpeaker(ctx); err != nil {
					return fmt.Errorf("node %s: %w", n.Name, err)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	opt.Logf("lab %s: up after %v", topo.Name, time.Since(l.started).Round(time.Millisecond))
	return l, nil
}

// Node returns a node; it panics where the topology has none of that name, which
// a test's author wants to know at once.
func (l *Lab) Node(name string) *Node {
	n, ok := l.nodes[name]
	if !ok {
		panic(fmt.Sprintf("lab %s has no node %q", l.Topology.Name, name))
	}
	return n
}

// Nodes returns all nodes, sorted by name.
func (l *Lab) Nodes() []*Node {
	var nodes []*Node
	for _, name := range slices.Sorted(maps.Keys(l.nodes)) {
		nodes = append(nodes, l.nodes[name])
	}
	return nodes
}

// Routers returns the nodes that run FRR.
func (l *Lab) Routers() []*Node {
	return slices.DeleteFunc(l.Nodes(), func(n *Node) bool { return !n.runsFRR() })
}

// onDestroy has f run when the lab ends, the latest first.
func (l *Lab) onDestroy(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, f)
}

// copyBinds copies the sources of all relative binds into the scratch
// directory: one copy for each source, so that nodes share what they share in
// the topology.
func (l *Lab) copyBinds(dir string) error {
	var sources []string
	for _, n := range l.Topology.Nodes {
		for _, b := range n.Binds {
			if !filepath.IsAbs(b.Source) && !slices.Contains(sources, b.Source) {
				sources = append(sources, b.Source)
			}
		}
	}
	slices.Sort(sources)
	for i, s := range sources {
		for _, other := range sources[:i] {
			if strings.HasPrefix(s, other+"/") {
				return fmt.Errorf("binds of %q and of %q inside it: as copies they would not be the same files", other, s)
			}
		}
		to := filepath.Join(l.scratch, fmt.Sprintf("b%d", i), filepath.Base(s))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := copyTree(filepath.Join(dir, s), to); err != nil {
			return fmt.Errorf("bind source %s: %w", s, err)
		}
		l.copies[s] = to
	}
	return nil
}

// copyTree copies a file or a directory of files and directories. It leaves out
// .gitignore files, which are in directories that are empty otherwise.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		info, err := d.Info()
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Mkdir(dst, 0o755)
		case d.Name() == ".gitignore":
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", path)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(dst, data, info.Mode().Perm())
	})
}

// link makes a veth pair between two nodes.
func (l *Lab) link(c clab.Link) error {
	a, b := l.Node(c.A.Node), l.Node(c.B.Node)
	veth := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: c.A.Interface, MTU: c.MTU},
		PeerName:      c.B.Interface,
		PeerNamespace: netlink.NsFd(int(b.ns.net.Fd())),
		PeerMTU:       uint32(c.MTU),
	}
	for _, e := range []struct {
		mac string
		to  *net.HardwareAddr
	}{{c.A.MAC, &veth.HardwareAddr}, {c.B.MAC, &veth.PeerHardwareAddr}} {
		if e.mac == "" {
			continue
		}
		hw, err := net.ParseMAC(e.mac)
		if err != nil {
			return err
		}
		*e.to = hw
	}
	if err := a.netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	for _, e := range []struct {
		n    *Node
		name string
	}{{a, c.A.Interface}, {b, c.B.Interface}} {
		if err := e.n.linkUp(e.name); err != nil {
			return err
		}
	}
	return nil
}

// Destroy ends the lab: every process in it, its namespaces, its files. It
// returns what went wrong, and what is left after all: a process, a mount, or a
// namespace that something still holds. Calling it again does nothing.
func (l *Lab) Destroy(ctx context.Context) error {
	l.mu.Lock()
	closers := l.closers
	l.closers = nil
	l.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(closers) {
		errs = append(errs, f())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := Eventually(ctx, "the end of the lab", func(context.Context) error { return l.residue() }); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.RemoveAll(l.scratch))...)
}

// residue says what of the lab is still there. That the first process of each
// node has been waited for means that every process in the node has ended: the
// kernel lets it end last.
func (l *Lab) residue() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, l.scratch) {
			return fmt.Errorf("a mount is left: %s", strings.TrimSpace(line))
		}
	}
	ours := map[string]*Node{}
	for _, n := range l.nodes {
		if n.ns.cookie != 0 {
			ours[n.ns.id] = n
		}
	}
	// Threads, not processes: one of this program's own could be left in a node.
	held, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err
	}
	for _, path := range append(held, fds...) {
		id, err := os.Readlink(path)
		if err != nil || ours[id] == nil {
			continue // gone meanwhile, or not ours
		}
		// The kernel gives the number of one that has ended to the next, whoever makes
		// it; the cookie it gives but once.
		n := ours[id]
		if cookie, err := netnsCookie(path); err == nil && cookie == n.ns.cookie {
			return fmt.Errorf("the network namespace of node %s is held by %s", n.Name, path)
		}
	}
	return nil
}

// Final marks an error of a condition that no waiting can mend.
func Final(err error) error { return final{err} }

type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Eventually calls cond until it returns nil, and then returns nil. When the
// context ends first, it returns an error that says what was waited for and the
// last thing that was wrong with it; a Final error ends it too.
func Eventually(ctx context.Context, what string, cond func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for last := error(nil); ; {
		err := cond(ctx)
		if err == nil {
			return nil
		}
		if errors.As(err, new(final)) {
			return fmt.Errorf("%s: %w", what, err)
		}
		if ctx.Err() == nil || last == nil {
			last = err // what a call says that the end of the context cut off is of no use
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// TB is the part of testing.TB that New uses.
type TB interface {
	Helper()
	Name() string
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Failed() bool
	Cleanup(func())
}

// New deploys the topology in a file for a test, and destroys it at the test's
// end; something left over fails the test. When the test fails, what there is to see
// goes to the directory for artifacts, under the test's name.
func New(t TB, file string, opt Options) *Lab {
	t.Helper()
	topo, err := clab.ReadFile(file)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if opt.Logf == nil {
		opt.Logf = t.Logf
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	l, err := Deploy(ctx, topo, filepath.Dir(file), opt)
	if err != nil {
		t.Fatalf("deploy %s: %v", file, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			if dir, err := l.Collect(strings.ReplaceAll(t.Name(), "/", "_")); err != nil {
				t.Logf("artifacts: %v", err)
			} else if dir != "" {
				t.Logf("artifacts: %s", dir)
			}
		}
		if err := l.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return l
}

// exeError is for the errors of os/exec, which have no output in them.
func exeError(err error, output string) error {
	output = strings.TrimSpace(output)
	var exit *exec.ExitError
	if errors.As(err, &exit) && output != "" {
		return fmt.Errorf("%w: %s", err, output)
	}
	return err
}
