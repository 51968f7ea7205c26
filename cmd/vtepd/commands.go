package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"vtepd/alloc"
	"vtepd/daemon"
	"vtepd/daemon/config"
	"vtepd/daemon/control"
	"vtepd/daemon/history"
	"vtepd/daemon/journal"
	"vtepd/daemon/status"
	"vtepd/daemon/watch"
	"vtepd/dataplane/cni"
	"vtepd/dataplane/kernel"
	"vtepd/dataplane/monitor"
	"vtepd/dataplane/netns"
	"vtepd/frr/vty"
)

// ports opens what the daemon works on: in the namespace that this process is in.
func (p *places) ports(readOnly bool) (daemon.Ports, func() error, error) {
	if !readOnly {
		if err := os.MkdirAll(p.state, 0o700); err != nil {
			return daemon.Ports{}, nil, fmt.Errorf("state directory: %w", err)
		}
	}
	j := journal.In(p.state)
	ledger := daemon.NewLedger(daemon.LedgerOptions{
		Open: func(s config.Store, cache, node string) (alloc.Store, error) {
			return p.store(s, cache, node, readOnly)
		},
		State: p.state, Default: p.ledger(), Journal: j, ReadOnly: readOnly,
	})
	k, err := kernel.Open(kernel.Options{})
	if err != nil {
		return daemon.Ports{}, nil, err
	}
	r := vty.New(p.frr, 0)
	if j.Place, err = netns.Identity(); err != nil {
		return daemon.Ports{}, nil, errors.Join(err, r.Close(), k.Close(), ledger.Close())
	}
	closeAll := func() error { return errors.Join(r.Close(), k.Close(), ledger.Close()) }
	plugins := cni.New(cni.Options{Dir: filepath.Join(p.state, "cni")})
	return daemon.Ports{Kernel: k, CNI: plugins, FRR: r, Ledger: ledger, Journal: j}, closeAll, nil
}

func runCommand(p *places) *cobra.Command {
	var level, format string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "watch the config and keep the router as it says",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(level, format)
			if err != nil {
				return usageError{err}
			}
			return run(cmd.Context(), p, log)
		},
	}
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "text", "text or json")
	return cmd
}

func logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: one of debug, info, warn, error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	}
	return nil, fmt.Errorf("--log-format %q: text or json", format)
}

// run is the daemon: the loop, and beside it what wakes it and what tells of it. When one ends, all do.
func run(ctx context.Context, p *places, log *slog.Logger) (err error) {
	log.Info("starting", "version", version, "config", p.config, "state", p.state, "frr", p.frr)
	socket, err := status.Listen(p.socket)
	if err != nil {
		return err
	}
	defer socket.Close()
	ports, closePorts, err := p.ports(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePorts()) }()
	news, err := p.news()
	if err != nil {
		return err
	}
	elsewhere, err := monitor.OpenElsewhere(monitor.Options{})
	if err != nil {
		return err
	}
	ports.Follow = elsewhere.Follow
	news = append(news, source{elsewhere.Run, elsewhere.C, false})
	board := &status.Board{}
	board.Update(func(s *status.Snapshot) { s.Version, s.Config, s.Condition = version, p.config, status.Starting })
	tasks, ctx := errgroup.WithContext(ctx)
	hints, looks := make(chan struct{}, 1), make(chan struct{}, 1)
	d := daemon.New(daemon.Options{
		Ports: ports, Config: p.config, Hints: hints, Looks: looks, History: history.In(filepath.Join(p.state, "history")), Board: board, Log: log,
	})
	tasks.Go(func() error { return board.Serve(ctx, socket, control.Routes(d)) })
	for _, n := range news {
		tasks.Go(func() error { return n.run(ctx) })
		if n.hints != nil {
			to := hints
			if n.whole {
				to = looks
			}
			tasks.Go(func() error { return pass(ctx, n.hints, to) })
		}
	}
	tasks.Go(func() error { return ports.Ledger.Watch(ctx, looks) })
	tasks.Go(func() error { return d.Run(ctx) })
	tasks.Go(func() error { return notify(ctx, board, d.LastBeat, log) })
	err = tasks.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	log.Info("stopped; the data plane runs on", "err", err)
	return err
}

// source is a task that wakes the loop.
type source struct {
	run   func(context.Context) error
	hints <-chan struct{} // nil: it wakes another source
	whole bool            // a glance doesn't show what it is about: zebra's end, say
}

// news are the config, the kernel's links, and FRR's daemons: the end of each is seen on an idle connection, its new
// beginning by the socket that it makes anew.
func (p *places) news() ([]source, error) {
	files, err := watch.New(p.config)
	if err != nil {
		return nil, err
	}
	links, err := monitor.Open(monitor.Options{})
	if err != nil {
		return nil, err
	}
	out := []source{{files.Run, files.C, false}, {links.Run, links.C, false}}
	for _, daemon := range []string{"bgpd", "zebra"} {
		socket, err := watch.New(filepath.Join(p.frr, daemon+".vty"))
		if err != nil {
			return nil, err
		}
		there := vty.Watch(p.frr, daemon, socket.C)
		out = append(out, source{socket.Run, nil, false}, source{there.Run, there.C, true})
	}
	return out, nil
}

// pass passes hints on until ctx ends; one that is waiting already stands for all.
func pass(ctx context.Context, from <-chan struct{}, to chan<- struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-from:
		}
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "say all that is wrong with a config, looking at nothing else",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok: %d endpoints, %d VNIs, %d pools\n", args[0], len(cfg.Endpoints), len(cfg.VNIs), len(cfg.Pools))
			return nil
		},
	}
}

func planCommand(p *places) *cobra.Command {
	return &cobra.Command{
		Use:   "plan FILE",
		Short: "say what the daemon would do with a config now, touching nothing",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			cfg, err := config.Load(args[0])
			if err != nil {
				return err
			}
			ports, closePorts, err := p.ports(true)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, closePorts()) }()
			prep, err := daemon.Prepare(cmd.Context(), ports, cfg, cfg.Transaction.Confirm)
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), prep.Plan)
			reasons := prep.Waiting
			for _, r := range prep.Refusals {
				reasons = append(reasons, r.Error())
			}
			if len(reasons) > 0 {
				fmt.Fprintln(os.Stderr, strings.Join(reasons, "\n"))
				return errReported
			}
			return nil
		},
	}
}

func statusCommand(p *places) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "say what the daemon is doing, and what is live",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := format(output)
			if err != nil {
				return err
			}
			s, err := status.Fetch(cmd.Context(), p.socket)
			if err != nil {
				return err
			}
			if asJSON {
				return s.JSON(cmd.OutOrStdout())
			}
			return s.Text(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func applyCommand(p *places) *cobra.Command {
	var confirm time.Duration
	var allow bool
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "carry out a config in place of the dropped one, until something else is dropped",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			srcs, err := config.Read(args[0])
			if err != nil {
				return err
			}
			return told(cmd, control.Apply(cmd.Context(), p.socket, srcs, confirm, allow))
		},
	}
	cmd.Flags().DurationVar(&confirm, "confirm", 0, "undo the change unless 'vtepd confirm' says within this time that it is good; 0: as the file says")
	allowDisruptive(cmd, &allow)
	return cmd
}

func confirmCommand(p *places) *cobra.Command {
	return &cobra.Command{
		Use:   "confirm",
		Short: "say that the change that waits for it is good",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return told(cmd, control.Confirm(cmd.Context(), p.socket))
		},
	}
}

func rollbackCommand(p *places) *cobra.Command {
	var generation uint64
	var allow bool
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "undo the change that waits to be confirmed, or go back to an earlier config",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var to *uint64
			if cmd.Flags().Changed("to") {
				to = &generation
			}
			return told(cmd, control.Rollback(cmd.Context(), p.socket, to, allow))
		},
	}
	cmd.Flags().Uint64Var(&generation, "to", 0, "the generation to go back to, one of the last ten that were verified (default the one before the live one)")
	allowDisruptive(cmd, &allow)
	return cmd
}

// allowDisruptive is the flag of what brings a config in.
func allowDisruptive(cmd *cobra.Command, allow *bool) {
	cmd.Flags().BoolVar(allow, "allow-disruptive", false, "carry it out even where it can't be done without losing packets, as transaction.allowDisruptive in a file does; 'vtepd status' and 'vtepd plan' say what is interrupted")
}

// told says what to look at once the daemon has been told something.
func told(cmd *cobra.Command, err error) error {
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "accepted; `vtepd status` says how it goes")
	}
	return err
}

func referenceCommand() *cobra.Command {
	return printCommand("reference", "print the reference config: every field, with its default", func() []byte { return config.Reference })
}

func schemaCommand() *cobra.Command {
	return printCommand("schema", "print the JSON Schema of the config, for editors", func() []byte { return config.Schema })
}

func printCommand(name, short string, what func() []byte) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(what())
			return err
		},
	}
}
