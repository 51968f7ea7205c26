package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// result is what the tests of one package did in one place.
type result struct {
	pkg, where, frr         string // frr is "" where there is none
	passed, failed, skipped int
	took                    time.Duration
	failures                []failure
	faults                  faults
}

// faults are the counts of the fault matrix: the cases on the fake and in the guest, and how all of them ended.
type faults struct{ fake, guest, a, b, between, leftovers int }

// faultsLine is what the matrix's tests print.
var faultsLine = regexp.MustCompile(`\b(fake|guest)=(\d+) ended_a=(\d+) ended_b=(\d+) between=(\d+)(?: leftovers=(\d+))?`)

// add counts what a line of a test's output says, if anything.
func (f *faults) add(line string) {
	m := faultsLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	ran := &f.fake
	if m[1] == "guest" {
		ran = &f.guest
	}
	for i, n := range []*int{ran, &f.a, &f.b, &f.between, &f.leftovers} {
		v, _ := strconv.Atoi(m[i+2]) // leftovers are not said of the fake, where each would be a difference
		*n += v
	}
}

func (f *faults) sum(g faults) {
	f.fake += g.fake
	f.guest += g.guest
	f.a += g.a
	f.b += g.b
	f.between += g.between
	f.leftovers += g.leftovers
}

func (f faults) String() string {
	return fmt.Sprintf("faults: fake=%d guest=%d ended_a=%d ended_b=%d between=%d leftovers=%d", f.fake, f.guest, f.a, f.b, f.between, f.leftovers)
}

// failure is a test that failed or was skipped, and the end of what it said of that.
type failure struct {
	test string // "" for what is outside any test
	said []string
}

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// ImportPath stands in for Package in what the build says.
	ImportPath string
}

// tally follows the events of one package.
type tally struct {
	verdict  map[string]string // of each test that began: "", pass, fail, skip
	output   map[string][]string
	took     map[string]time.Duration // of the tests that have ended, those at the top
	package_ string                   // the package's own verdict
	faults   faults
}

func newTally() *tally {
	return &tally{verdict: map[string]string{}, output: map[string][]string{}, took: map[string]time.Duration{}}
}

func (t *tally) add(e event) {
	switch e.Action {
	case "run":
		t.verdict[e.Test] = ""
	case "output", "build-output":
		t.faults.add(e.Output)
		t.output[e.Test] = append(t.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.package_ = e.Action
			return
		}
		t.verdict[e.Test] = e.Action
		if !strings.Contains(e.Test, "/") {
			t.took[e.Test] = time.Duration(e.Elapsed * float64(time.Second))
		}
	}
}

// slow are the tests at the top that took long enough to be spoken of, the longest first.
func (t *tally) slow() []string {
	const long = 20 * time.Second
	var names []string
	for name, took := range t.took {
		if took >= long {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(t.took[b], t.took[a]), cmp.Compare(a, b)) })
	return names
}

// spoken is what the tests said, by name, without go test's own lines.
func (t *tally) spoken() []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(t.output)) {
		for _, line := range t.output[name] {
			if line = strings.TrimRight(line, "\n"); line != "" && !strings.HasPrefix(line, "=== ") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// count counts the tests that have no tests below them, and a failure once: a
// parent counts when it failed and nothing below it did. A test that began and
// didn't end has failed.
func (t *tally) count() (passed, failed, skipped int) {
	parent, blamed := map[string]bool{}, map[string]bool{}
	for name, v := range t.verdict {
		for i := strings.LastIndexByte(name, '/'); i > 0; i = strings.LastIndexByte(name[:i], '/') {
			parent[name[:i]] = true
			if bad(v) {
				blamed[name[:i]] = true
			}
		}
	}
	for name, v := range t.verdict {
		switch {
		case bad(v):
			if !blamed[name] {
				failed++
			}
		case parent[name]:
		case v == "skip":
			skipped++
		default:
			passed++
		}
	}
	return passed, failed, skipped
}

// said and width bound what the last summary repeats of a failure.
const (
	said  = 6   // lines
	width = 400 // bytes of each
)

// failures are those that count counts, sorted by name. dir is the package's: its test files tell what a test logged from what it
// failed with.
func (t *tally) failures(dir string) []failure {
	var out []failure
	ended := true
	for name, v := range t.verdict {
		ended = ended && v != ""
		below := func(other string) bool { return strings.HasPrefix(other, name+"/") && bad(t.verdict[other]) }
		if v == "skip" || bad(v) && !slices.ContainsFunc(slices.Collect(maps.Keys(t.verdict)), below) {
			out = append(out, failure{test: name, said: reasons(dir, t.output[name])})
		}
	}
	if out == nil || !ended {
		// The guest died, or it didn't build: what comes first says why, registers and the like come after it.
		all, _ := split(dir, t.output[""])
		out = append(out, failure{said: all[:min(len(all), said)]})
	}
	slices.SortFunc(out, func(a, b failure) int { return strings.Compare(a.test, b.test) })
	return out
}

// reasons are the last lines of those a test failed with: what it logged is left out, for a story's log is long and its end seldom
// says what went wrong. Where nothing else was said, by a panic or a timeout, they are the last lines of all.
func reasons(dir string, output []string) []string {
	all, failed := split(dir, output)
	if failed == nil {
		failed = all
	}
	return failed[max(0, len(failed)-said):]
}

// split are the lines of an output, and those of them that weren't logged.
func split(dir string, output []string) (all, failed []string) {
	logged, sources := true, map[string][]string{}
	for _, l := range output {
		l = strings.TrimRight(l, "\n")
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(strings.TrimSpace(l), "--- ") {
			continue
		}
		if m := location.FindStringSubmatch(l); m != nil {
			logged = strings.Contains(sourceLine(sources, filepath.Join(dir, m[1]), m[2]), "Log")
		}
		if len(l) > width {
			l = l[:width] + " […]"
		}
		all = append(all, l)
		if !logged {
			failed = append(failed, l)
		}
	}
	return all, failed
}

// location begins what a test logs or fails with.
var location = regexp.MustCompile(`^ {4,}(\w+_test\.go):(\d+): `)

// sourceLine is a line of a file, "" where there is none. sources are the files that were read before.
func sourceLine(sources map[string][]string, file, number string) string {
	if _, known := sources[file]; !known {
		text, _ := os.ReadFile(file) // without it what a test logged stays among what it failed with
		sources[file] = strings.Split(string(text), "\n")
	}
	lines := sources[file]
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || n > len(lines) {
		return ""
	}
	return lines[n-1]
}

func bad(verdict string) bool { return verdict == "fail" || verdict == "" }

// report writes what a reader needs of a package that isn't fine: the output of
// the tests that failed or were skipped, and what stands outside any test.
func (t *tally) report(w io.Writer) {
	var names []string
	for name, v := range t.verdict {
		if v != "pass" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range append(names, "") {
		for _, line := range t.output[name] {
			io.WriteString(w, "    "+strings.TrimSuffix(line, "\n")+"\n")
		}
	}
}

// readEvents hands every event of a stream to f. Lines that aren't events are
// what a tool said outside of any test.
func readEvents(r io.Reader, f func(event)) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil || e.Action == "" {
				e = event{Action: "output", Output: string(line)}
			}
			f(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// total adds results up.
func total(results []result) (sum result) {
	for _, r := range results {
		sum.passed += r.passed
		sum.failed += r.failed
		sum.skipped += r.skipped
		sum.took += r.took
		sum.faults.sum(r.faults)
	}
	return sum
}

// writeTable writes what ran where, what failed there once more, the fault matrix, and as the last line the sums.
func writeTable(w io.Writer, results []result) error {
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "where\tFRR\tpassed\tfailed\tskipped\tseconds\t  package")
	for _, r := range results {
		frr := r.frr
		if frr == "" {
			frr = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%.1f\t  %s\n", r.where, frr, r.passed, r.failed, r.skipped, r.took.Seconds(), r.pkg)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range results {
		for _, f := range r.failures {
			fmt.Fprintf(w, "\n%s %s %s\n", r.where, r.pkg, cmp.Or(f.test, "(outside any test)"))
			for _, line := range f.said {
				fmt.Fprintf(w, "    %s\n", line)
			}
		}
	}
	sum := total(results)
	if sum.faults != (faults{}) {
		fmt.Fprintf(w, "\n%s\n", sum.faults)
	}
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped)
	return err
}
