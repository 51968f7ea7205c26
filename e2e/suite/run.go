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
	plain, err := goList(s.ctx, "")
	if err != nil {
		return err
	}
	tagged, err := goList(s.ctx, guestTag)
	if err != nil {
		return err
	}
	s.say("== native tests")
	results, err := s.native("./...")
	if err != nil {
		return err
	}
	inGuest, err := s.guests(guestPackages(plain, tagged), "")
	if err != nil {
		return err
	}
	results = append(results, inGuest...)
	if err := writeTable(s.out, results); err != nil {
		return err
	}
	return verdict(results)
}

// verdict is errFailed unless everything passed; a skip is no pass, and a router between two states is a failure.
func verdict(results []result) error {
	if sum := total(results); sum.failed > 0 || sum.skipped > 0 || sum.passed == 0 || sum.faults.between > 0 || sum.faults.leftovers > 0 {
		return errFailed
	}
	return nil
}

// lint prints what is wrong and fails at the first tool that finds something.
func (s *suite) lint() error {
	for _, args := range [][]string{
		{"go", "vet", "./..."},
		{"go", "vet", "-tags=" + guestTag + ",containers", "./..."},
		{"go", "run", gofumpt, "-l", "."},
		{"go", "run", staticcheck, "-tags=" + guestTag + ",containers", "./..."},
	} {
		s.say("== %s", strings.Join(args, " "))
		out, err := exec.CommandContext(s.ctx, args[0], args[1:]...).CombinedOutput()
		if err != nil || len(out) > 0 {
			s.say("%s\nlint: %s: %s", out, strings.Join(args, " "), cmp.Or(errText(err), "not clean"))
			return errFailed
		}
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
				r.failures = t.failures()
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
	plain, err := goList(s.ctx, "")
	if err != nil {
		return err
	}
	tagged, err := goList(s.ctx, guestTag)
	if err != nil {
		return err
	}
	stories := slices.DeleteFunc(guestPackages(plain, tagged), func(p guestPkg) bool {
		path := short(p.ImportPath)
		return path != "e2e" && !strings.HasPrefix(path, "e2e/")
	})
	results, err := s.guests(stories, run)
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
	tagged, err := goList(s.ctx, guestTag)
	if err != nil {
		return err
	}
	s.say("== the matrix on the fake")
	results, err := s.native("-run=^TestCentral$", "./daemon")
	if err != nil {
		return err
	}
	stories := slices.DeleteFunc(guestPackages(nil, tagged), func(p guestPkg) bool { return short(p.ImportPath) != "e2e" })
	inGuest, err := s.guests(stories, "^TestFaults$")
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
	args := []string{"test", "-run=^$", "-bench=" + pattern, "-benchmem"}
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
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-p", importPath)
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

// compile builds the test binaries of the guest's packages into dir, all at once.
func (s *suite) compile(dir string, jobs []guestJob) error {
	for _, j := range jobs {
		cmd := exec.CommandContext(s.ctx, "go", "test", "-c", "-tags="+guestTag, "-o", filepath.Join(dir, j.binary()), j.pkg.ImportPath)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build the guest's tests of %s: %w\n%s", short(j.pkg.ImportPath), err, out)
		}
	}
	return nil
}

// guestJob is the tests of one package that run in a guest.
type guestJob struct {
	pkg     guestPkg
	pattern string // for -test.run, on the last release
	rest    string // the same on the others; "" for nothing
}

// once are the stories that are long and have little to do with FRR's version: they run on the last release.
var once = regexp.MustCompile(`^Test(Claims|Confirm|Drift|Faults|Flood|Soak)`)

func (j guestJob) binary() string { return j.slug() + ".test" }

func (j guestJob) slug() string { return strings.ReplaceAll(short(j.pkg.ImportPath), "/", "-") }

// result is an empty one for a job on a guest.
func (j guestJob) result(root vm.Root) result {
	return result{pkg: short(j.pkg.ImportPath), where: "guest " + root.Release.Name, frr: root.FRR}
}

// on is the job as it runs on a release, and whether it does: what has little to do with FRR runs once, on the last one.
func (j guestJob) on(release string, all []string) (guestJob, bool) {
	if release == all[len(all)-1] {
		return j, true
	}
	j.pattern = j.rest
	return j, j.pkg.frr && j.pattern != ""
}

// guests runs the packages' guest tests whose names match, the releases side by side.
func (s *suite) guests(packages []guestPkg, run string) ([]result, error) {
	var jobs []guestJob
	for _, p := range packages {
		names, err := functions(p.Dir, p.files, "Test", "Fuzz", "Example")
		if err != nil {
			return nil, err
		}
		pattern, err := runPattern(names, run)
		if err != nil {
			return nil, err
		}
		if pattern == "" {
			continue
		}
		rest, err := runPattern(slices.DeleteFunc(names, once.MatchString), run)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, guestJob{pkg: p, pattern: pattern, rest: rest})
	}
	if jobs == nil {
		return nil, nil
	}
	work, err := os.MkdirTemp("", "vtepd-suite-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	s.say("== guest tests: %d packages, on %s", len(jobs), strings.Join(s.releases, " and "))
	if err := s.compile(work, jobs); err != nil {
		return nil, err
	}
	roots, err := vm.Default.Build(s.ctx, os.Stderr, s.releases...)
	if err != nil {
		return nil, err
	}
	results := make([][]result, len(roots))
	errs := make([]error, len(roots))
	var wait sync.WaitGroup
	for i, root := range roots {
		var mine []guestJob
		for _, j := range jobs {
			if j, ok := j.on(root.Release.Name, s.releases); ok {
				mine = append(mine, j)
			}
		}
		wait.Go(func() { results[i], errs[i] = s.guest(root, work, mine) })
	}
	wait.Wait()
	return slices.Concat(results...), errors.Join(errs...)
}

// guest runs jobs one after another in one guest, and boots another when a job
// took its guest down.
func (s *suite) guest(root vm.Root, work string, jobs []guestJob) ([]result, error) {
	lab := vm.Lab{
		Checkout: s.checkout, Root: root, Extra: []vm.Share{{Path: work, ReadOnly: true}},
		Artifacts: filepath.Join(s.checkout, "bin", "artifacts", fmt.Sprintf("suite-%s-%d", root.Release.Name, os.Getpid())),
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
	for i, j := range jobs {
		if guest == nil {
			if guest, err = lab.Boot(s.ctx, self); err != nil {
				s.say("FAIL  boot the %s guest: %v", root.Release.Name, err)
				for _, left := range jobs[i:] {
					r := left.result(root)
					r.failed = 1
					results = append(results, r)
				}
				return results, s.ctx.Err()
			}
		}
		r, err := s.job(guest, lab, filepath.Join(work, j.binary()), j)
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
func (s *suite) job(guest *vm.Guest, lab vm.Lab, binary string, j guestJob) (result, error) {
	r := j.result(lab.Root)
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
		r.failures = t.failures()
	}
	s.progress(r, t)
	if r.failed == 0 {
		if err := vm.DropArtifacts(own.Artifacts); err != nil {
			return r, err
		}
	} else {
		s.say("      artifacts: %s", own.Artifacts)
	}
	return r, runErr
}
