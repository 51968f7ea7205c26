// Command vmrun builds the lab's guests and runs command lines and compiled
// test binaries in them. It is also the guest's first process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vtepd/e2e/vm"
	"vtepd/e2e/vm/guestinit"
)

const usage = `usage:
  vmrun setup                                   install what the lab needs of this host (Debian, root)
  vmrun build [RELEASE…]                        build the guests, once
  vmrun exec [-frr RELEASE] [-containers] [-native] TESTBIN ARGS…    run a compiled Go test (go test -exec "vmrun exec")
  vmrun run  [-frr RELEASE] [-containers] [-native] [-timeout D] -- CMD…  run any command line
  vmrun clean                                   remove the built guests

RELEASE is bookworm (FRR 8.4.4), trixie (10.3, the default) or sid (10.7.1). -containers: the guest has Docker too, trixie only.
-native, or VTEPD_NATIVE=1, runs on this host's kernel where it has what the guest's has; with -unproven
also where it hasn't, for what needs FRR alone.
`

func main() {
	guestinit.Dispatch()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	status, err := command(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "vmrun: %v\n", err)
		if status == 0 {
			status = 1
		}
	}
	os.Exit(status)
}

func command(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2, nil
	}
	switch verb, args := args[0], args[1:]; verb {
	case "setup":
		return 0, vm.Setup(ctx, os.Stderr)
	case "build":
		if len(args) == 0 {
			args = vm.Tested
		}
		roots, err := vm.Default.Build(ctx, os.Stderr, args...)
		for _, r := range roots {
			fmt.Printf("%s\tFRR %s\t%s\n", r.Release.Name, r.FRR, r.Dir)
		}
		return 0, err
	case "clean":
		return 0, errors.Join(vm.Default.Clean(), vm.Containers.Clean())
	case "exec", "run":
		inv, err := parse(verb, args)
		if err != nil {
			return 2, err
		}
		return inv.run(ctx)
	default:
		fmt.Fprint(os.Stderr, usage)
		return 2, fmt.Errorf("%q: unknown, would be setup, build, exec, run or clean", verb)
	}
}

// invocation is what exec and run were asked for.
type invocation struct {
	test       bool // a compiled Go test
	release    string
	containers bool // the guest has Docker
	native     bool
	unproven   bool          // native without asking what the kernel has
	timeout    time.Duration // 0 is none
	argv       []string
}

func parse(verb string, args []string) (invocation, error) {
	inv := invocation{test: verb == "exec"}
	flags := flag.NewFlagSet("vmrun "+verb, flag.ContinueOnError)
	release := os.Getenv("VTEPD_FRR_RELEASE")
	if release == "" {
		release = "trixie"
	}
	flags.StringVar(&inv.release, "frr", release, "the Debian release whose FRR the guest has")
	flags.BoolVar(&inv.containers, "containers", false, "in the guest that has Docker")
	flags.BoolVar(&inv.native, "native", os.Getenv("VTEPD_NATIVE") == "1", "run on this host's kernel")
	flags.BoolVar(&inv.unproven, "unproven", false, "with -native: whatever this host's kernel lacks")
	flags.DurationVar(&inv.timeout, "timeout", 0, "kill the guest after this long")
	if err := flags.Parse(args); err != nil {
		return inv, err
	}
	inv.argv = flags.Args()
	if len(inv.argv) == 0 {
		return inv, errors.New("no command line to run")
	}
	if inv.test && inv.timeout == 0 {
		timeout, err := vm.TestTimeout(inv.argv[1:])
		if err != nil {
			return inv, err
		}
		if timeout > 0 {
			inv.timeout = timeout + vm.Grace
		}
	}
	return inv, nil
}

// run returns the command's own exit status; with an error there is none.
func (inv invocation) run(ctx context.Context) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	checkout, err := vm.FindCheckout(dir)
	if err != nil {
		return 0, err
	}
	lab := vm.Lab{Checkout: checkout}
	program := inv.argv[0]
	if strings.ContainsRune(program, '/') {
		if program, err = filepath.Abs(program); err != nil {
			return 0, err
		}
		inv.argv[0] = program
		lab.Extra = outside(checkout, program, false)
	}
	if bin := os.Getenv("VTEPD_BIN"); bin != "" {
		lab.Extra = append(lab.Extra, outside(checkout, bin, true)...)
	}
	recipe := vm.Default
	if inv.containers {
		recipe = vm.Containers
	}
	roots, err := recipe.Build(ctx, os.Stderr, inv.release)
	if err != nil {
		return 0, err
	}
	lab.Root = roots[0]
	keep := os.Getenv("VTEPD_ARTIFACTS")
	lab.Artifacts = keep
	if keep == "" {
		lab.Artifacts = filepath.Join(checkout, "bin", "artifacts", inv.release, fmt.Sprintf("%s-%d", inv.name(checkout, dir), os.Getpid()))
	}
	c := vm.Command{Argv: inv.argv, Dir: dir, Env: lab.Env(os.Environ()), Stdout: os.Stdout, Stderr: os.Stderr}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	status, err := inv.in(ctx, lab, self, c)
	if err == nil && status == 0 && keep == "" {
		return 0, vm.DropArtifacts(lab.Artifacts)
	}
	fmt.Fprintf(os.Stderr, "lab: artifacts: %s\n", lab.Artifacts)
	return status, err
}

func (inv invocation) in(ctx context.Context, lab vm.Lab, self string, c vm.Command) (int, error) {
	if inv.native {
		if !inv.unproven {
			if err := vm.ProbeNative(); err != nil {
				return 0, err
			}
		}
		ctx, cancel := vm.WithDeadline(ctx, inv.timeout)
		defer cancel()
		exit, err := lab.RunNative(ctx, self, c)
		return exit.Status, err
	}
	guest, err := lab.Boot(ctx, self)
	if err != nil {
		return 0, err
	}
	defer guest.Close()
	// go test asks for a stack dump this way, when it has waited long enough.
	quits := make(chan os.Signal, 1)
	signal.Notify(quits, syscall.SIGQUIT)
	go func() {
		for range quits {
			// A guest that is gone has its own error.
			_ = guest.Signal(syscall.SIGQUIT)
		}
	}()
	ctx, cancel := vm.WithDeadline(ctx, inv.timeout)
	defer cancel()
	exit, err := guest.Run(ctx, c)
	vm.WriteComplaints(os.Stderr, exit)
	return exit.Status, err
}

// name is where this run's artifacts go: a test's package, or the program.
func (inv invocation) name(checkout, dir string) string {
	if rel, err := filepath.Rel(checkout, dir); inv.test && err == nil && rel != "." {
		return strings.ReplaceAll(rel, string(filepath.Separator), "-")
	}
	return filepath.Base(inv.argv[0])
}

// outside shares the directory of a host's file that the checkout doesn't hold.
// Programs of the guest root, such as /bin/sh, aren't the host's.
func outside(checkout, file string, readOnly bool) []vm.Share {
	dir := filepath.Dir(file)
	for _, root := range []string{"/bin", "/sbin", "/usr", "/lib"} {
		if dir == root || strings.HasPrefix(dir, root+"/") {
			return nil
		}
	}
	if dir == checkout || strings.HasPrefix(dir, checkout+"/") {
		return nil
	}
	return []vm.Share{{Path: dir, ReadOnly: readOnly}}
}
