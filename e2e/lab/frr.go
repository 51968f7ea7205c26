package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"vtepd/e2e/clab"
)

const (
	frrBin  = "/usr/lib/frr/"
	frrRun  = "/var/run/frr/"
	daemons = "/etc/frr/daemons"
)

// isFRR says whether the node is a router: the topology binds FRR's list of
// daemons into it.
func (n *Node) isFRR() bool {
	return slices.ContainsFunc(n.Def.Binds, func(b clab.Bind) bool { return b.Target == daemons })
}

// runsFRR says whether FRR was started in the node, by the lab or by who made it.
func (n *Node) runsFRR() bool { return len(n.daemons) > 0 || n.adopted && n.isFRR() }

// startFRR starts the daemons that FRR's own start-up would, in its order, and
// loads the integrated configuration. They stay children of this program: none is started
// again by a watchdog when a test kills it.
func (n *Node) startFRR(ctx context.Context) error {
	if _, err := n.Exec(ctx, "install", "-d", "-m", "0755", "-o", "frr", "-g", "frr", frrRun); err != nil {
		return err
	}
	for _, name := range []string{"mgmtd", "zebra", "staticd", "bgpd"} {
		if _, err := os.Stat(n.Path(frrBin + name)); errors.Is(err, os.ErrNotExist) && name == "mgmtd" {
			continue // FRR before 9.0
		}
		if err := n.StartBareDaemon(ctx, name); err != nil {
			return err
		}
	}
	return n.LoadConfig(ctx)
}

// StartBareDaemon starts an FRR daemon and waits until its vty answers. It is
// empty, as after a crash: LoadConfig comes next, or doesn't.
func (n *Node) StartBareDaemon(ctx context.Context, name string) error {
	args := []string{frrBin + name, "--log", "stdout", "--log-level", "informational"}
	text, err := os.ReadFile(n.Path(daemons))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if opts, ok := strings.CutPrefix(strings.TrimSpace(line), name+"_options="); ok {
			words, err := clab.Split(strings.Trim(opts, `"`))
			if err != nil {
				return fmt.Errorf("%s: %s: %w", daemons, strings.TrimSpace(line), err)
			}
			args = append(args, words...)
		}
	}
	p, err := n.Start(ctx, args...)
	if err != nil {
		return err
	}
	n.daemons[name] = p
	sockets := []string{name + ".vty"}
	if name == "zebra" {
		// A daemon that finds no zebra tries again 10 seconds later.
		sockets = append(sockets, "zserv.api")
	}
	for _, s := range sockets {
		err := Eventually(ctx, p.Name+": "+s, func(ctx context.Context) error {
			if !p.Running() {
				return Final(fmt.Errorf("it has ended: %w: %s", p.err, p.Log()))
			}
			c, err := n.Dial(ctx, frrRun+s)
			if err != nil {
				return err
			}
			return c.Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// StartDaemon starts an FRR daemon again and loads its part of the
// configuration, as FRR's watchdog does.
func (n *Node) StartDaemon(ctx context.Context, name string) error {
	if err := n.StartBareDaemon(ctx, name); err != nil {
		return err
	}
	return n.LoadConfig(ctx, "-d", name)
}

// LoadConfig loads /etc/frr/frr.conf into all daemons, or with "-d", NAME into
// one.
func (n *Node) LoadConfig(ctx context.Context, args ...string) error {
	_, err := n.Exec(ctx, append([]string{"vtysh", "-b", "-n"}, args...)...)
	return err
}

// Daemon is the running FRR daemon of that name, or the last that ran; nil when
// the node has none.
func (n *Node) Daemon(name string) *Proc { return n.daemons[name] }

// KillDaemon ends an FRR daemon with SIGKILL. One that isn't there, or has ended
// before, is an error.
func (n *Node) KillDaemon(name string) error {
	p := n.daemons[name]
	if p == nil || !p.Running() {
		return fmt.Errorf("%s: no %s is running", n.Name, name)
	}
	p.Kill()
	return nil
}

// Vtysh has FRR run commands, each from the command line's first level, and returns what
// it said. A line that starts with % is an error.
func (n *Node) Vtysh(ctx context.Context, commands ...string) (string, error) {
	args := []string{"vtysh"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, err := n.Exec(ctx, args...)
	if err != nil {
		return out, err
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "%") {
			return out, fmt.Errorf("%s: vtysh: %s: %s", n.Name, strings.Join(commands, "; "), strings.TrimSpace(line))
		}
	}
	return out, nil
}

// Configure has FRR take configuration lines.
func (n *Node) Configure(ctx context.Context, lines ...string) error {
	_, err := n.Vtysh(ctx, append(append([]string{"configure terminal"}, lines...), "end")...)
	return err
}

// VtyshJSON decodes what FRR says to a show command, which must end in json.
func (n *Node) VtyshJSON(ctx context.Context, v any, command string) error {
	return n.JSON(ctx, v, "vtysh", "-c", command)
}

// RunningConfig is FRR's whole configuration as text.
func (n *Node) RunningConfig(ctx context.Context) (string, error) {
	return n.Vtysh(ctx, "show running-config")
}

// WaitBGP waits until every BGP session of every FRR node is established.
func (l *Lab) WaitBGP(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range l.Routers() {
		g.Go(func() error {
			return Eventually(ctx, n.Name+": BGP", n.bgpUp)
		})
	}
	return g.Wait()
}

// bgpUp is nil when every session of the node is established.
func (n *Node) bgpUp(ctx context.Context) error {
	var families map[string]struct {
		Peers map[string]struct {
			State string `json:"state"`
		} `json:"peers"`
	}
	if err := n.VtyshJSON(ctx, &families, "show bgp summary json"); err != nil {
		return err
	}
	some := false
	for family, f := range families {
		for peer, p := range f.Peers {
			some = true
			if p.State != "Established" {
				return fmt.Errorf("%s: %s is %s", family, peer, p.State)
			}
		}
	}
	if !some {
		return errors.New("no peer")
	}
	return nil
}
