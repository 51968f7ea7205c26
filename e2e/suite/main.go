// Command suite runs the project's checks and says what ran where: lint, the
// native tests, and in the lab's guests whatever needs their kernel or FRR. It
// computes what to run from the source, and owns no test of its own subject.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vtepd/e2e/vm"
	"vtepd/e2e/vm/guestinit"
)

const usage = `usage:
  suite test  [-timeout D] [-seed N]    lint, native tests, and the guests' tests on every tested FRR and under a container engine
  suite lint                            go vet, gofumpt, staticcheck
  suite e2e   [-run REGEX] [-frr NAME]  the guest stories of ./e2e/...
  suite containers                      the stories under a container engine
  suite containerlab                    those under containerlab, which is bin/containerlab
  suite faults [-seed N] [-frr NAME]    the whole fault matrix, on the fake and on one FRR, the newest tested one without a name
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
	timeout := flags.Duration("timeout", time.Hour, "for the tests of one package")
	run := flags.String("run", "", "the tests whose names match")
	bench := flags.String("bench", ".", "the benchmarks whose names match")
	frr := flags.String("frr", "", "one Debian release; none is every tested one: "+strings.Join(vm.Tested, ", "))
	fuzztime := flags.Duration("time", time.Minute, "for each fuzz target")
	seed := flags.String("seed", "", "of the fault matrix; none is another one each time")
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
		if err := s.sow(*seed); err != nil {
			return err
		}
		return s.test()
	case "faults":
		if err := s.sow(*seed); err != nil {
			return err
		}
		if *frr == "" {
			s.releases = s.releases[len(s.releases)-1:]
		}
		s.timeout = max(s.timeout, time.Hour)
		return s.faults()
	case containersTag, containerlabTag:
		return s.containers(args[0])
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
		return fmt.Errorf("%q: unknown, would be test, lint, e2e, containers, containerlab, faults, bench or fuzz", args[0])
	}
}

// seedVar has the seed of the fault matrix for its tests.
const seedVar = "VTEPD_FAULTS_SEED"

// sow gives the tests the seed of their fault matrix, and says which it is: the one given, that of the environment, or another.
func (s *suite) sow(given string) error {
	seed := cmp.Or(given, os.Getenv(seedVar), fmt.Sprint(1+rand.Uint64N(1<<63)))
	if n, err := strconv.ParseUint(seed, 10, 64); err != nil || n == 0 {
		return fmt.Errorf("-seed %q: would be a number from 1 on", seed)
	}
	s.say("== faults: seed=%s", seed)
	return os.Setenv(seedVar, seed)
}
