package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestGuestPackagesAreThoseThatGrow(t *testing.T) {
	plain := []pkg{
		{ImportPath: "m/frr"},
		{ImportPath: "m/frr/vty", TestGoFiles: []string{"vty_test.go"}},
		{ImportPath: "m/dataplane", TestGoFiles: []string{"a_test.go"}},
		{ImportPath: "m/dataplane/kernel", XTestGoFiles: []string{"k_test.go"}},
		{ImportPath: "m/daemon/txn", Imports: []string{"m/daemon/state"}},
		{ImportPath: "m/daemon/state", Imports: []string{"fmt", "m/frr"}},
		{ImportPath: "m/e2e"},
		{ImportPath: "m/daemon/xfrr", Imports: []string{"other/frr/x"}},
	}
	tagged := slices.Clone(plain)
	tagged[1].TestGoFiles = []string{"real_test.go", "vty_test.go"}
	tagged[3].XTestGoFiles = []string{"g_test.go", "k_test.go"}
	tagged[4].TestGoFiles = []string{"sample_test.go"}
	tagged[6].XTestGoFiles = []string{"story_test.go"}
	tagged[7].TestGoFiles = []string{"x_test.go"}
	type row struct {
		path  string
		files []string
		frr   bool
	}
	var got []row
	for _, p := range guestPackages(plain, tagged) {
		got = append(got, row{p.ImportPath, p.files, p.frr})
	}
	want := []row{
		{"m/frr/vty", []string{"real_test.go"}, true},
		{"m/dataplane/kernel", []string{"g_test.go"}, false},
		{"m/daemon/txn", []string{"sample_test.go"}, true},
		{"m/e2e", []string{"story_test.go"}, true},
		{"m/daemon/xfrr", []string{"x_test.go"}, false},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhereATestBelongs(t *testing.T) {
	both, alone := []string{"bookworm", "trixie"}, []string{"sid"}
	for _, c := range []struct {
		pkg  string
		test string
		frr  bool
		all  []string
		want []string
	}{
		{"e2e", "TestSwap", true, both, both},
		{"e2e", "TestSwap", true, alone, alone},
		{"dataplane/kernel", "TestSwap", false, both, []string{"trixie"}},
		{"e2e", "TestClaims", true, both, []string{"trixie"}},
		{"e2e", "TestSoak", true, both, []string{"bookworm"}},
		{"e2e", "TestSoak", true, alone, alone},
		{"dataplane", "TestClaims", false, alone, alone},
		{"e2e/lab", "TestBGP", true, both, []string{"bookworm"}},
		{"e2e/lab", "TestBGP", true, alone, alone},
	} {
		var got []string
		for _, release := range c.all {
			if belongs(c.test, guestPkg{pkg: pkg{ImportPath: "m/" + c.pkg}, frr: c.frr}, release, c.all) {
				got = append(got, release)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s %s, frr %v, of %q: %q, would be %q", c.pkg, c.test, c.frr, c.all, got, c.want)
		}
	}
}

func TestSlowTestsAndWhatWasSaid(t *testing.T) {
	tl := newTally()
	for _, e := range []event{
		{Action: "output", Test: "TestB", Output: "=== RUN   TestB\n"},
		{Action: "output", Test: "TestB", Output: "b_test.go:1: seen\n"},
		{Action: "pass", Test: "TestA", Elapsed: 20},
		{Action: "pass", Test: "TestB", Elapsed: 90},
		{Action: "pass", Test: "TestB/x", Elapsed: 80},
		{Action: "pass", Test: "TestC", Elapsed: 19.9},
	} {
		tl.add(e)
	}
	if got, want := tl.slow(), []string{"TestB", "TestA"}; !slices.Equal(got, want) {
		t.Errorf("%q, would be %q", got, want)
	}
	if got, want := tl.spoken(), []string{"b_test.go:1: seen"}; !slices.Equal(got, want) {
		t.Errorf("%q, would be %q", got, want)
	}
}

func TestFunctions(t *testing.T) {
	dir := t.TempDir()
	src := `package x
func TestMain(m *testing.M) {}
func TestA(t *testing.T) {}
func Test(t *testing.T) {}
func Testify() {}
func Test_b(t *testing.T) {}
func (s suite) TestMethod(t *testing.T) {}
func BenchmarkB(b *testing.B) {}
func FuzzC(f *testing.F) {}
func helper() {}
`
	if err := os.WriteFile(filepath.Join(dir, "x_test.go"), []byte(src), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := functions(dir, []string{"x_test.go"}, "Test", "Fuzz")
	if want := []string{"TestA", "Test", "Test_b", "FuzzC"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, would be %q", got, err, want)
	}
}

func TestRunPattern(t *testing.T) {
	names := []string{"TestReaddress", "TestReparent", "TestCrash"}
	for user, want := range map[string]string{
		"":               "^(TestReaddress|TestReparent|TestCrash)$",
		"Re":             "^(TestReaddress|TestReparent)$",
		"^TestCrash$":    "^(TestCrash)$",
		"Crash/kill_-9$": "^(TestCrash)$/kill_-9$",
		"nothing":        "",
	} {
		if got, err := runPattern(names, user); err != nil || got != want {
			t.Errorf("%q: %q, %v, would be %q", user, got, err, want)
		}
	}
	if _, err := runPattern(names, "("); err == nil {
		t.Error("a pattern that doesn't compile is accepted")
	}
	if len(names) != 3 || names[0] != "TestReaddress" {
		t.Errorf("the names were changed: %q", names)
	}
}

func TestTallyCountsLeavesAndEachFailureOnce(t *testing.T) {
	for _, c := range []struct {
		name                    string
		events                  string
		passed, failed, skipped int
	}{
		{"nothing", "", 0, 0, 0},
		{"one of each", "run A, pass A, run B, fail B, run C, skip C", 1, 1, 1},
		{"a table", "run A, run A/x, run A/y, pass A/x, pass A/y, pass A", 2, 0, 0},
		{"a failure below", "run A, run A/x, run A/y, pass A/x, fail A/y, fail A", 1, 1, 0},
		{"a failure two below", "run A, run A/x, run A/x/y, fail A/x/y, fail A/x, fail A", 0, 1, 0},
		{"a parent's own failure", "run A, run A/x, pass A/x, fail A", 1, 1, 0},
		{"a skip below", "run A, run A/x, run A/y, skip A/x, pass A/y, pass A", 1, 0, 1},
		{"cut off", "run A, pass A, run B", 1, 1, 0},
		{"cut off below", "run A, run A/x", 0, 1, 0},
	} {
		tally := newTally()
		for _, e := range strings.Split(c.events, ", ") {
			if action, test, ok := strings.Cut(e, " "); ok {
				tally.add(event{Action: action, Test: test})
			}
		}
		passed, failed, skipped := tally.count()
		if passed != c.passed || failed != c.failed || skipped != c.skipped {
			t.Errorf("%s: %d, %d, %d, would be %d, %d, %d", c.name, passed, failed, skipped, c.passed, c.failed, c.skipped)
		}
	}
}

func TestReportShowsOnlyWhatIsNotFine(t *testing.T) {
	tally := newTally()
	err := readEvents(strings.NewReader(`{"Action":"run","Test":"A"}
{"Action":"output","Test":"A","Output":"fine\n"}
{"Action":"pass","Test":"A"}
{"Action":"run","Test":"B"}
{"Action":"output","Test":"B","Output":"b.go:1: wrong\n"}
{"Action":"fail","Test":"B"}
not json
{"Action":"fail"}
`), tally.add)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tally.report(&out)
	if want := "    b.go:1: wrong\n    not json\n"; out.String() != want {
		t.Errorf("%q, would be %q", out.String(), want)
	}
}

func TestFailuresAreTheLeavesWithWhatTheyFailedOf(t *testing.T) {
	dir := t.TempDir()
	source := "t.Logf(…)\nt.Errorf(…)\nw.must(err)\n"
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	tl := newTally()
	say := func(test string, lines ...string) {
		for _, l := range lines {
			tl.add(event{Action: "output", Test: test, Output: l + "\n"})
		}
	}
	for _, e := range []string{"run A", "run A/b", "run C", "run D", "run E", "fail A/b", "fail A", "pass C", "fail E"} {
		action, test, _ := strings.Cut(e, " ")
		tl.add(event{Action: action, Test: test})
	}
	say("A/b", "=== RUN   A/b", "    a_test.go:1: a step", "    a_test.go:2: not so", "        but so", "    a_test.go:1: a step", "        of two lines",
		"    a_test.go:3: nor so", "    a_test.go:1: the end", "    --- FAIL: A/b (1.00s)")
	say("D", "    a_test.go:1: a step", "panic: "+strings.Repeat("x", 400)) // what follows a step without a place is the step's own
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprint("line ", i))
	}
	say("E", many...)
	say("", slices.Concat([]string{"", "the guest is gone"}, many)...) // D didn't end
	want := []failure{
		{"", slices.Concat([]string{"the guest is gone"}, many[:5])},
		{"A/b", []string{"    a_test.go:2: not so", "        but so", "    a_test.go:3: nor so"}},
		{"D", []string{"    a_test.go:1: a step", "panic: " + strings.Repeat("x", 393) + " […]"}},
		{"E", many[14:]},
	}
	if diff := cmp.Diff(want, tl.failures(dir), cmp.AllowUnexported(failure{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTableEndsWithTheSums(t *testing.T) {
	var out bytes.Buffer
	err := writeTable(&out, []result{
		{pkg: "alloc", where: "native", passed: 12, took: 1500 * time.Millisecond, faults: faults{fake: 5, a: 3, b: 2}},
		{pkg: "frr/vty", where: "guest trixie", frr: "10.3", passed: 3, failed: 1, skipped: 2, took: time.Minute, failures: []failure{
			{test: "TestA/b", said: []string{"a.go:1: not so"}}, {said: []string{"exit status 2"}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `
         where   FRR  passed  failed  skipped  seconds  package
        native     -      12       0        0      1.5  alloc
  guest trixie  10.3       3       1        2     60.0  frr/vty

guest trixie frr/vty TestA/b
    a.go:1: not so

guest trixie frr/vty (outside any test)
    exit status 2

faults: fake=5 guest=0 ended_a=3 ended_b=2 between=0 leftovers=0

15 passed, 1 failed, 2 skipped
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestE2ELines(t *testing.T) {
	got := e2eLines([]result{
		{pkg: "e2e", frr: "8.4.4", passed: 5, failed: 1},
		{pkg: "e2e", frr: "10.3", passed: 6},
		{pkg: "e2e/vm", frr: "8.4.4", passed: 2, skipped: 1},
	})
	want := []string{"e2e: frr=8.4.4 passed=7 failed=1 skipped=1", "e2e: frr=10.3 passed=6 failed=0 skipped=0"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, would be %q", got, want)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		r  result
		ok bool
	}{{result{passed: 1}, true}, {result{}, false}, {result{passed: 1, faults: faults{between: 1}}, false}, {result{passed: 1, faults: faults{leftovers: 1}}, false}, {result{passed: 9, failed: 1}, false}, {result{passed: 9, skipped: 1}, false}} {
		if err := verdict([]result{c.r}); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
}

// A first run on a clean machine downloads what a linter needs, and says so.
func TestClean(t *testing.T) {
	for _, c := range []struct {
		script string
		ok     bool
	}{{"true", true}, {"echo 'go: downloading m v1' >&2", true}, {"echo file.go", false}, {"echo 'file.go:1: bad' >&2; exit 1", false}} {
		var out strings.Builder
		s := &suite{ctx: t.Context(), out: &out}
		if err := s.clean("sh", "-c", c.script); (err == nil) != c.ok {
			t.Errorf("%s: %v, printed %s", c.script, err, &out)
		}
		if strings.Contains(c.script, "file.go") && !strings.Contains(out.String(), "file.go") {
			t.Errorf("%s: what was found isn't in %s", c.script, &out)
		}
	}
}

func TestFaultsAreAddedUp(t *testing.T) {
	tl := newTally()
	for _, line := range []string{
		"    central_test.go:240: fake=100 ended_a=60 ended_b=39 between=1\n", "nothing\n",
		"    faults_test.go:140: guest=16 ended_a=10 ended_b=6 between=0 leftovers=2\n",
	} {
		tl.add(event{Action: "output", Test: "T", Output: line})
	}
	sum := total([]result{{faults: tl.faults}, {faults: faults{guest: 4, a: 3, b: 1}}})
	if got, want := sum.faults.String(), "faults: fake=100 guest=20 ended_a=73 ended_b=46 between=1 leftovers=2"; got != want {
		t.Errorf("%s, would be %s", got, want)
	}
}
