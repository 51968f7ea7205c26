package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vtepd/e2e/vm"
)

const (
	gofumpt     = "mvdan.cc/gofumpt@v0.12.0"
	staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"
)

// suite is one invocation: where it prints and what it was asked for.
type suite struct {
	ctx      context.Context
	checkout string
	releases []string
	timeout  time.Duration

	mu  sync.Mutex
	out io.Writer
}

func (s *suite) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// test is everything, and ends with the table.
func (s *suite) test() error {
	if os.Geteuid() != 0 {
		return errors.New("the tests make network namespaces: run as root")
	}
	if err := s.lint(); err != nil {
		return err
	}
	inGuests, err := s.tests(guestTag)
	if err != nil {
		return err
	}
	aboutContainers, err := s.tests(containersTag)
	if err != nil {
		return err
	}
	s.say("== native tests")
	results, err := s.native("./...")
	if err != nil {
		return err
	}
	places, err := s.places(inGuests, "", belongs)
	if err != nil {
		return err
	}
	engine, err := s.enginePlace(aboutContainers, containersTag)
	if err != nil {
		return err
	}
	inGuest, err := s.guests(append(places, engine))
	if err != nil {
		return err
	}
	results = append(results, inGuest...)
	if err := writeTable(s.out, results); err != nil {
		return err
	}
	return verdict(results)
}

// tests are the packages that have tests for a guest: those that a build tag brings.
func (s *suite) tests(tag string) ([]guestPkg, error) {
	plain, err := goList(s.ctx, "")
	if err != nil {
		return nil, err
	}
	tagged, err := goList(s.ctx, tag)
	return guestPackages(plain, tagged), err
}

// verdict is errFailed unless everything passed; a skip is no pass, and a router between two states is a failure.
func verdict(results []result) error {
	if sum := total(results); sum.failed > 0 || sum.skipped > 0 || sum.passed == 0 || sum.faults.between > 0 || sum.faults.leftovers > 0 {
		return errFailed
	}
	return nil
}

// containers runs the stories under a container engine that a tag brings, and prints what they saw.
func (s *suite) containers(tag string) error {
	packages, err := s.tests(tag)
	if err != nil {
		return err
	}
	engine, err := s.enginePlace(packages, tag)
	if err != nil {
		return err
	}
	engine.verbose = true
	results, err := s.guests([]place{engine})
	if err != nil {
		return err
	}
	for _, r := range results {
		s.say("%s: frr=%s passed=%d failed=%d skipped=%d", tag, r.frr, r.passed, r.failed, r.skipped)
	}
	return verdict(results)
}

// lint prints what is wrong and fails at the first tool that finds something.
func (s *suite) lint() error {
	all := "-tags=" + strings.Join([]string{guestTag, containersTag, containerlabTag}, ",")
	for _, args := range [][]string{
		{"go", "vet", "./..."},
		{"go", "vet", all, "./..."},
		{"go", "run", gofumpt, "-l", "."},
		{"go", "run", staticcheck, all, "./..."},
	} {
		if err := s.clean(args...); err != nil {
			return err
		}
	}
	return nil
}

// clean runs a linter, which finds something where it fails or prints to its standard output. Standard error may hold no more than
// what go downloads for it.
func (s *suite) clean(args ...string) error {
	s.say("== %s", strings.Join(args, " "))
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(s.ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil || stdout.Len() > 0 {
		s.say("%s%s\nlint: %s: %s", stdout.String(), stderr.String(), strings.Join(args, " "), cmp.Or(errText(err), "not clean"))
		return errFailed
	}
	return nil
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// native runs packages' tests on this host, with the race detector.
func (s *suite) native(args ...string) ([]result, error) {
	cmd := exec.CommandContext(s.ctx, "go", append([]string{"test", "-race", "-count=1", "-json", "-timeout=" + s.timeout.String()}, args...)...)
	cmd.Env = append(os.Environ(), "VTEPD_BIN="+filepath.Join(s.checkout, "bin", "vtepd"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var results []result
	tallies := map[string]*tally{}
	at := func(path string) *tally {
		// What the build says of a test's package is "PATH [PATH.test]".
		path, _, _ = strings.Cut(path, " ")
		if tallies[path] == nil {
			tallies[path] = newTally()
		}
		return tallies[path]
	}
	err = readEvents(out, func(e event) {
		t := at(cmp.Or(e.Package, e.ImportPath))
		t.add(e)
		if e.Test != "" || !slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			return
		}
		r := result{pkg: short(e.Package), where: "native", took: time.Duration(e.Elapsed * float64(time.Second))}
		r.passed, r.failed, r.skipped = t.count()
		r.faults = t.faults
		if e.Action == "fail" && r.failed == 0 {
			r.failed = 1 // it didn't build, or ended outside any test
		}
		if r.passed+r.failed+r.skipped > 0 { // else it has no tests here
			if r.failed+r.skipped > 0 {
				r.failures = t.failures(filepath.Join(s.checkout, r.pkg))
			}
			results = append(results, r)
			s.progress(r, t)
		}
	})
	waitErr := cmd.Wait()
	if err != nil {
		return nil, err
	}
	if waitErr != nil && total(results).failed == 0 {
		return nil, fmt.Errorf("go test: %w\n%s", waitErr, stderr.String())
	}
	return results, nil
}

// progress prints a package's line, and all about it when it isn't fine.
func (s *suite) progress(r result, t *tally) {
	word := "ok  "
	if r.failed > 0 || r.skipped > 0 {
		word = "FAIL"
	}
	var detail strings.Builder
	for _, name := range t.slow() {
		fmt.Fprintf(&detail, "  %s %.0fs", name, t.took[name].Seconds())
	}
	if word == "FAIL" {
		detail.WriteByte('\n')
		t.report(&detail)
	}
	place := r.where
	if r.frr != "" {
		place += " FRR " + r.frr
	}
	s.say("%s  %-22s %-28s %4d passed %7.1fs%s", word, place, r.pkg, r.passed, r.took.Seconds(), detail.String())
}

// e2e runs the stories and prints one line of sums for each FRR version.
func (s *suite) e2e(run string) error {
	packages, err := s.tests(guestTag)
	if err != nil {
		return err
	}
	stories := slices.DeleteFunc(packages, func(p guestPkg) bool {
		path := short(p.ImportPath)
		return path != "e2e" && !strings.HasPrefix(path, "e2e/")
	})
	places, err := s.places(stories, run, everywhere)
	if err != nil {
		return err
	}
	results, err := s.guests(places)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("no story of ./e2e/... has a name that matches %q", run)
	}
	for _, line := range e2eLines(results) {
		s.say("%s", line)
	}
	return verdict(results)
}

// faults runs the whole fault matrix, on the fake and in the guest, and prints its counts as the last line.
func (s *suite) faults() error {
	for name, value := range map[string]string{"VTEPD_FAULTS": "all", "VTEPD_FAULTS_PAIRS": cmp.Or(os.Getenv("VTEPD_FAULTS_PAIRS"), "30")} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	packages, err := s.tests(guestTag)
	if err != nil {
		return err
	}
	s.say("== the matrix on the fake")
	results, err := s.native("-run=^TestCentral$", "./daemon")
	if err != nil {
		return err
	}
	stories := slices.DeleteFunc(packages, func(p guestPkg) bool { return short(p.ImportPath) != "e2e" })
	places, err := s.places(stories, "^TestFaults$", everywhere)
	if err != nil {
		return err
	}
	inGuest, err := s.guests(places)
	if err != nil {
		return err
	}
	results = append(results, inGuest...)
	sum := total(results).faults
	s.say("%s", sum)
	if sum.fake == 0 || sum.guest == 0 {
		return errFailed
	}
	return verdict(results)
}

// e2eLines sums results up by FRR version, in the order of their first one.
func e2eLines(results []result) []string {
	var versions []string
	by := map[string][]result{}
	for _, r := range results {
		if by[r.frr] == nil {
			versions = append(versions, r.frr)
		}
		by[r.frr] = append(by[r.frr], r)
	}
	var lines []string
	for _, v := range versions {
		sum := total(by[v])
		lines = append(lines, fmt.Sprintf("e2e: frr=%s passed=%d failed=%d skipped=%d", v, sum.passed, sum.failed, sum.skipped))
	}
	return lines
}

// bench runs the benchmarks of every package that has some.
func (s *suite) bench(pattern string) error {
	plain, err := goList(s.ctx, "")
	if err != nil {
		return err
	}
	args := []string{"test", "-run=^$", "-timeout=1h", "-bench=" + pattern, "-benchmem"}
	var found []string
	for _, p := range plain {
		names, err := functions(p.Dir, p.testFiles(), "Benchmark")
		if err != nil {
			return err
		}
		if names != nil {
			found = append(found, p.ImportPath)
		}
	}
	if found == nil {
		return errors.New("no package has a benchmark")
	}
	return s.goTool(append(args, found...)...)
}

// fuzz runs every fuzz target for a while.
func (s *suite) fuzz(each time.Duration) error {
	plain, err := goList(s.ctx, "")
	if err != nil {
		return err
	}
	ran := 0
	for _, p := range plain {
		names, err := functions(p.Dir, p.testFiles(), "Fuzz")
		if err != nil {
			return err
		}
		for _, name := range names {
			s.say("== %s %s", short(p.ImportPath), name)
			if err := s.goTool("test", "-run=^$", "-fuzz=^"+name+"$", "-fuzztime="+each.String(), p.ImportPath); err != nil {
				return err
			}
			ran++
		}
	}
	if ran == 0 {
		return errors.New("no package has a fuzz target")
	}
	s.say("fuzz: %d targets, %s each, no finding", ran, each)
	return nil
}

// goTool runs the go command with its output shown as it comes.
func (s *suite) goTool(args ...string) error {
	cmd := exec.CommandContext(s.ctx, "go", args...)
	cmd.Stdout, cmd.Stderr = s.out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// toolEvents turns the output of a test binary into events, as go test does.
func toolEvents(ctx context.Context, importPath string, f func(event)) (io.WriteCloser, func() error, error) {
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", importPath)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("go tool test2json: %w", err)
	}
	read := make(chan error, 1)
	go func() { read <- readEvents(out, f) }()
	return in, func() error {
		return errors.Join(in.Close(), <-read, cmd.Wait())
	}, nil
}

// compile builds the test binaries of the guests' packages into dir.
func (s *suite) compile(dir string, places []place) error {
	built := map[string]bool{}
	for _, p := range places {
		for _, j := range p.jobs {
			if built[j.binary()] {
				continue
			}
			built[j.binary()] = true
			cmd := exec.CommandContext(s.ctx, "go", "test", "-c", "-tags="+j.tag, "-o", filepath.Join(dir, j.binary()), j.pkg.ImportPath)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("build the guest's tests of %s: %w\n%s", short(j.pkg.ImportPath), err, out)
			}
		}
	}
	return nil
}

// place is a guest and the jobs that it gets, one after another.
type place struct {
	recipe  vm.Recipe
	release string
	name    string // in what is printed, and of its artifacts
	root    vm.Root
	jobs    []guestJob
	verbose bool // what the tests say is shown also when they pass
}

// guestJob is the tests of one package that run in a guest.
type guestJob struct {
	pkg     guestPkg
	tag     string
	pattern string // for -test.run
}

// In make test, long stories that have little to do with FRR's version run on one release only; they are dealt out so that the
// guests, which run side by side, take about as long. In make e2e every story runs on every release.
var (
	onNewest = regexp.MustCompile(`^Test(Claims|Cloud|CNI|Drift|Faults|Flood)`)
	onOldest = regexp.MustCompile(`^Test(Confirm|Placement|Soak)`)
)

// ground are the packages that are the lab itself: the stories stand on them on every release, their own tests run on one.
var ground = []string{"e2e/lab", "e2e/vm"}

// belongs says whether a test of p runs on a release, all being those that it is chosen from, the oldest first. What
// has nothing to do with FRR runs on the newest.
func belongs(test string, p guestPkg, release string, all []string) bool {
	switch {
	case slices.Contains(ground, short(p.ImportPath)) || onOldest.MatchString(test):
		return release == all[0]
	case !p.frr || onNewest.MatchString(test):
		return release == all[len(all)-1]
	}
	return true
}

func (j guestJob) binary() string { return j.slug() + ".test" }

func (j guestJob) slug() string { return strings.ReplaceAll(short(j.pkg.ImportPath), "/", "-") }

// result is an empty one for a job in a place.
func (p place) result(j guestJob) result {
	return result{pkg: short(j.pkg.ImportPath), where: "guest " + p.name, frr: p.root.FRR}
}

// everywhere has every test run on every release.
func everywhere(string, guestPkg, string, []string) bool { return true }

// places are the guests of the releases, with those of the packages' guest tests that belong there and whose names match.
func (s *suite) places(packages []guestPkg, run string, belongs func(test string, p guestPkg, release string, all []string) bool) ([]place, error) {
	var places []place
	for _, release := range s.releases {
		jobs, err := jobsOf(packages, guestTag, run, func(test string, p guestPkg) bool { return belongs(test, p, release, s.releases) })
		if err != nil {
			return nil, err
		}
		if jobs != nil {
			places = append(places, place{recipe: vm.Default, release: release, name: release, jobs: jobs})
		}
	}
	return places, nil
}

// enginePlace is the guest that has a container engine, with the packages' tests that a tag brings.
func (s *suite) enginePlace(packages []guestPkg, tag string) (place, error) {
	jobs, err := jobsOf(packages, tag, "", func(string, guestPkg) bool { return true })
	if err == nil && jobs == nil {
		err = errors.New("no package has tests with the tag " + tag)
	}
	return place{recipe: vm.Containers, release: vm.Containers.Releases[0].Name, name: "containers", jobs: jobs}, err
}

// jobsOf are the packages' tests that a tag brings, that run selects and that are taken.
func jobsOf(packages []guestPkg, tag, run string, taken func(test string, p guestPkg) bool) ([]guestJob, error) {
	var jobs []guestJob
	for _, p := range packages {
		names, err := functions(p.Dir, p.files, "Test", "Fuzz", "Example")
		if err != nil {
			return nil, err
		}
		names = slices.DeleteFunc(names, func(n string) bool { return !taken(n, p) })
		pattern, err := runPattern(names, run)
		if err != nil {
			return nil, err
		}
		if pattern != "" {
			jobs = append(jobs, guestJob{pkg: p, tag: tag, pattern: pattern})
		}
	}
	return jobs, nil
}

// atOnce is how many guests run side by side: each keeps a core busy.
const atOnce = 2

// guests builds the guests that the places need and runs their jobs, atOnce of them at a time.
func (s *suite) guests(places []place) ([]result, error) {
	if len(places) == 0 {
		return nil, nil
	}
	work, err := os.MkdirTemp("", "vtepd-suite-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	var names []string
	build, ctx := errgroup.WithContext(s.ctx)
	for i, p := range places {
		names = append(names, p.name)
		build.Go(func() error {
			roots, err := p.recipe.Build(ctx, os.Stderr, p.release)
			if err == nil {
				places[i].root = roots[0]
			}
			return err
		})
	}
	if err := build.Wait(); err != nil {
		return nil, err
	}
	s.say("== guest tests: %s", strings.Join(names, ", "))
	if err := s.compile(work, places); err != nil {
		return nil, err
	}
	results := make([][]result, len(places))
	errs := make([]error, len(places))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, p := range places {
		group.Go(func() error {
			results[i], errs[i] = s.guest(p, work)
			return nil // one guest's trouble doesn't stop the others
		})
	}
	_ = group.Wait()
	return slices.Concat(results...), errors.Join(errs...)
}

// guest runs a place's jobs one after another in one guest, and boots another when a job
// took its guest down.
func (s *suite) guest(p place, work string) ([]result, error) {
	lab := vm.Lab{
		Checkout: s.checkout, Root: p.root, Extra: []vm.Share{{Path: work, ReadOnly: true}},
		Artifacts: filepath.Join(s.checkout, "bin", "artifacts", fmt.Sprintf("suite-%s-%d", p.name, os.Getpid())),
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var guest *vm.Guest
	defer func() {
		if guest != nil {
			guest.Close()
		}
	}()
	var results []result
	for i, j := range p.jobs {
		if guest == nil {
			if guest, err = lab.Boot(s.ctx, self); err != nil {
				s.say("FAIL  boot the %s guest: %v", p.name, err)
				for _, left := range p.jobs[i:] {
					r := p.result(left)
					r.failed = 1
					results = append(results, r)
				}
				return results, s.ctx.Err()
			}
		}
		r, err := s.job(guest, lab, filepath.Join(work, j.binary()), p, j)
		var dead *vm.DeadError
		switch {
		case errors.As(err, &dead):
			if s.ctx.Err() != nil {
				return results, s.ctx.Err()
			}
			if err := guest.Close(); err != nil {
				return results, err
			}
			guest = nil
		case err != nil:
			return results, err
		}
		results = append(results, r)
	}
	if total(results).failed > 0 {
		return results, nil
	}
	return results, vm.DropArtifacts(lab.Artifacts)
}

// job runs one package's tests in a guest. A *vm.DeadError comes with a result.
func (s *suite) job(guest *vm.Guest, lab vm.Lab, binary string, p place, j guestJob) (result, error) {
	r := p.result(j)
	own := lab
	own.Artifacts = filepath.Join(lab.Artifacts, j.slug())
	if err := os.MkdirAll(own.Artifacts, 0o755); err != nil {
		return r, err
	}
	t := newTally()
	events, finish, err := toolEvents(s.ctx, j.pkg.ImportPath, t.add)
	if err != nil {
		return r, err
	}
	ctx, cancel := vm.WithDeadline(s.ctx, s.timeout+vm.Grace)
	defer cancel()
	began := time.Now()
	// One stream for both, as go test has it.
	exit, runErr := guest.Run(ctx, vm.Command{
		Argv: []string{binary, "-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + s.timeout.String(), "-test.run=" + j.pattern},
		Dir:  j.pkg.Dir, Env: own.Env(os.Environ()), Stdout: events, Stderr: events,
	})
	r.took = time.Since(began)
	if err := finish(); err != nil {
		return r, err
	}
	r.passed, r.failed, r.skipped = t.count()
	r.faults = t.faults
	switch {
	case runErr != nil:
		t.add(event{Action: "output", Output: runErr.Error() + "\n"})
	case exit.Status != 0:
		t.add(event{Action: "output", Output: fmt.Sprintf("exit status %d\n", exit.Status)})
	case r.passed+r.failed+r.skipped == 0:
		t.add(event{Action: "output", Output: "no test ran\n"})
	}
	for _, line := range exit.Kernel {
		s.say("      %s: the guest's kernel said: %s", r.pkg, line)
	}
	if r.failed == 0 && (runErr != nil || exit.Status != 0 || r.passed+r.skipped == 0) {
		r.failed = 1
	}
	if r.failed+r.skipped > 0 {
		r.failures = t.failures(j.pkg.Dir)
	}
	s.progress(r, t)
	if p.verbose && r.failed+r.skipped == 0 {
		s.say("%s", strings.Join(t.spoken(), "\n"))
	}
	if r.failed == 0 {
		if err := vm.DropArtifacts(own.Artifacts); err != nil {
			return r, err
		}
	} else {
		s.say("      artifacts: %s", own.Artifacts)
	}
	return r, runErr
}
