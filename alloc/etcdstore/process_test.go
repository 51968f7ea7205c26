package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// The test binary is also each process of these tests: with ETCDSTORE_CHILD set it does that and ends.
var children = map[string]func(args []string) error{"claim": childClaim, "life": childLife}

func TestMain(m *testing.M) {
	if name := os.Getenv("ETCDSTORE_CHILD"); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "ETCDSTORE_CHILD="+name)
	return c
}

// childClaim URL ROUTER N makes N claims and prints their values.
func childClaim(args []string) error {
	s, err := Open(Options{Endpoints: args[:1], Timeout: 30 * time.Second})
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	values, err := storetest.ClaimMany(context.Background(), s, args[1], n)
	fmt.Println(strings.Join(values, "\n"))
	return err
}

// Eight processes start at once, each claims 1,000 addresses, and the 8,000 are the pool's lowest 8,000, each once.
func TestEightProcesses(t *testing.T) {
	const processes, each = 8, 1000
	e := server(t, nil)
	var mu sync.Mutex
	values := map[string][]string{}
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			router := fmt.Sprintf("r%d", i)
			c := child(t, "claim", endpoints(e)[0], router, strconv.Itoa(each))
			c.Stderr = os.Stderr
			out, err := c.Output()
			if err != nil {
				t.Errorf("%s: %v", router, err)
			}
			mu.Lock()
			defer mu.Unlock()
			values[router] = strings.Fields(string(out))
			if len(values[router]) != each {
				t.Errorf("%s has %d values", router, len(values[router]))
			}
		})
	}
	wg.Wait()
	if err := storetest.CheckMany(t.Context(), open(t, Options{Endpoints: endpoints(e)}), values); err != nil {
		t.Error(err)
	}
}

// childLife URL PREFIX K DELAY lives a life, prints after each step, and kills itself at the K-th moment that op names: at once, or,
// with a delay in microseconds, while what comes next goes on.
func childLife(args []string) error {
	k, kerr := strconv.Atoi(args[2])
	delay, derr := strconv.Atoi(args[3])
	if err := errors.Join(kerr, derr); err != nil {
		return err
	}
	s, err := Open(Options{Endpoints: args[:1], Prefix: args[1]})
	if err != nil {
		return err
	}
	n := 0
	s.op = func(string) {
		if n++; n != k {
			return
		}
		kill := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
		if delay > 0 {
			time.AfterFunc(time.Duration(delay)*time.Microsecond, kill)
			return
		}
		kill()
	}
	for i, step := range storetest.Life(context.Background(), alloc.NewClaimer(s, storetest.LifePools())) {
		if err := step(); err != nil {
			return err
		}
		fmt.Println(i)
	}
	if n < k {
		fmt.Println(over)
	}
	return nil
}

// over is printed by a childLife that had no K-th moment.
const over = "over"

// Killed for real before and after every write, and while it is under way.
func TestKilled(t *testing.T) {
	e := server(t, nil)
	for _, during := range []bool{false, true} {
		kills := 0
		for k := 1; ; k++ {
			prefix := fmt.Sprintf("/kill/%t/%d", during, k)
			delay := 0
			if during {
				delay = 1 + rand.IntN(1000)
			}
			out, err := child(t, "life", endpoints(e)[0], prefix, strconv.Itoa(k), strconv.Itoa(delay)).Output()
			var exit *exec.ExitError
			if err != nil && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL) {
				t.Fatalf("child: %v %s", err, exit.Stderr)
			}
			if strings.HasSuffix(string(out), over+"\n") {
				break
			}
			acked := len(strings.Fields(string(out)))
			if acked == len(storetest.LifeStates)-1 {
				continue // it was faster than what was to kill it
			}
			kills++
			if err := storetest.CheckLife(t.Context(), open(t, Options{Endpoints: endpoints(e), Prefix: prefix}), acked); err != nil {
				t.Errorf("killed at %d, after %dµs: %v", k, delay, err)
			}
		}
		if kills < 10 {
			t.Errorf("only %d kills", kills)
		}
	}
}
