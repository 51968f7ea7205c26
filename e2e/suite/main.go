// Command suite runs the project's checks and says what ran where: lint, the
// native tests, and in the lab's guests whatever needs their kernel or FRR. It
// computes what to run from the source, and owns no test of its own subject.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"vtepd/e2e/vm"
	"vtepd/e2e/vm/guestinit"
)

const usage = `usage:
  suite test  [-timeout D]              lint, native tests, and the guests' tests on every tested FRR
  suite lint                            go vet, gofumpt, staticcheck
  suite e2e   [-run REGEX] [-frr NAME]  the guest stories of ./e2e/...
  suite bench [-bench REGEX] [-frr NAME]
  suite fuzz  [-time D]                 every fuzz target, one after another
`

func main() {
	guestinit.Dispatch()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:])
	if err != nil {
		if !errors.Is(err, errFailed) {
			fmt.Fprintf(os.Stderr, "suite: %v\n", err)
		}
		os.Exit(1)
	}
}

// errFailed says that something failed and was reported already.
var errFailed = errors.New("failed")

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return errFailed
	}
	flags := flag.NewFlagSet("suite "+args[0], flag.ContinueOnError)
	timeout := flags.Duration("timeout", 20*time.Minute, "for the tests of one package")
	run := flags.String("run", "", "the tests whose names match")
	bench := flags.String("bench", ".", "the benchmarks whose names match")
	frr := flags.String("frr", "", "one Debian release; none is every tested one: "+strings.Join(vm.Tested, ", "))
	fuzztime := flags.Duration("time", time.Minute, "for each fuzz target")
	if err := flags.Parse(args[1:]); err != nil {
		return errFailed
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	checkout, err := vm.FindCheckout(dir)
	if err != nil {
		return err
	}
	if err := os.Chdir(checkout); err != nil {
		return err
	}
	s := suite{ctx: ctx, out: os.Stdout, checkout: checkout, releases: vm.Tested, timeout: *timeout}
	if *frr != "" {
		if _, err := vm.Default.Release(*frr); err != nil {
			return err
		}
		s.releases = []string{*frr}
	}
	switch args[0] {
	case "test":
		return s.test()
	case "lint":
		return s.lint()
	case "e2e":
		if _, err := regexp.Compile(*run); err != nil {
			return fmt.Errorf("-run: %w", err)
		}
		return s.e2e(*run)
	case "bench":
		return s.bench(*bench)
	case "fuzz":
		return s.fuzz(*fuzztime)
	default:
		fmt.Fprint(os.Stderr, usage)
		return fmt.Errorf("%q: unknown, would be test, lint, e2e, bench or fuzz", args[0])
	}
}
