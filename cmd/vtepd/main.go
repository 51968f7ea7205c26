// Command vtepd moves VXLAN tunnel endpoints beside FRR without losing a packet: see `vtepd help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"vtepd/daemon/config"
)

// version is stamped by the build.
var version = "dev"

// Exit statuses.
const (
	exitOK      = 0
	exitFailed  = 1 // what was asked for can't be done; the reasons are on standard error
	exitMisused = 2
)

// errReported is a failure whose reasons have been printed already.
var errReported = errors.New("reported")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	switch {
	case err == nil:
		os.Exit(exitOK)
	case errors.Is(err, errReported):
		os.Exit(exitFailed)
	case isProblems(err): // each line begins with its place, as editors want it
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	case isUsage(err):
		fmt.Fprintln(os.Stderr, "vtepd:", err)
		os.Exit(exitMisused)
	}
	fmt.Fprintln(os.Stderr, "vtepd:", err)
	os.Exit(exitFailed)
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func isUsage(err error) bool {
	_, ok := errors.AsType[usageError](err)
	return ok
}

func isProblems(err error) bool {
	_, ok := errors.AsType[config.Problems](err)
	return ok
}

// places are the paths that every router has by convention.
type places struct {
	config, state, frr, socket string
}

func command() *cobra.Command {
	var p places
	root := &cobra.Command{
		Use:           "vtepd",
		Short:         "a sidecar for FRR that moves VXLAN tunnel endpoints without losing a packet",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags := root.PersistentFlags()
	flags.StringVar(&p.config, "config", "/etc/vtepd", "the config: a YAML file, or a directory of *.yaml files that are merged")
	flags.StringVar(&p.state, "state", "/var/lib/vtepd", "the directory of the journal, the committed state and the ledger")
	flags.StringVar(&p.frr, "frr", "/var/run/frr", "the directory of FRR's vty sockets")
	flags.StringVar(&p.socket, "socket", "/run/vtepd/vtepd.sock", "the unix socket on which the daemon is asked and told")
	root.AddCommand(runCommand(&p), checkCommand(), planCommand(&p), statusCommand(&p), applyCommand(&p), confirmCommand(&p), rollbackCommand(&p),
		claimsCommand(&p), poolsCommand(&p), storeCommand(&p), referenceCommand(), schemaCommand())
	return root
}

// usage makes what args refuses a usageError.
func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := args(cmd, given); err != nil {
			return usageError{err}
		}
		return nil
	}
}
