package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRecipeHashFollowsEveryValue(t *testing.T) {
	seen := map[string]string{Default.Hash(): "the recipe in use"}
	for name, change := range map[string]func(*Recipe){
		"a release's options": func(r *Recipe) { r.Releases[0].AptOpts = []string{"x"} },
		"a release's FRR":     func(r *Recipe) { r.Releases[0].FRR = "9.1" },
		"one release fewer":   func(r *Recipe) { r.Releases = r.Releases[1:] },
		"a package more":      func(r *Recipe) { r.Packages = append(r.Packages, "gdb") },
		"another kernel":      func(r *Recipe) { r.Prefix = "linux-image-6.1" },
		"a module more":       func(r *Recipe) { r.Modules = append(r.Modules, "geneve") },
		"the revision":        func(r *Recipe) { r.Revision++ },
	} {
		r := Default
		r.Releases, r.Packages, r.Modules = slices.Clone(r.Releases), slices.Clone(r.Packages), slices.Clone(r.Modules)
		change(&r)
		if other, ok := seen[r.Hash()]; ok {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[r.Hash()] = name
	}
	if again := Default.Hash(); seen[again] != "the recipe in use" {
		t.Errorf("the hash isn't stable: %s", again)
	}
}

func TestReleaseNames(t *testing.T) {
	for name, frr := range map[string]string{"bookworm": "8.4.4", "trixie": "10.3", "sid": "10.7.1"} {
		r, err := Default.Release(name)
		if err != nil || r.FRR != frr {
			t.Errorf("%s: %v, %v, would be FRR %s", name, r, err, frr)
		}
	}
	_, err := Default.Release("woody")
	if want := `release "woody": unknown, would be one of bookworm, trixie, sid`; err == nil || err.Error() != want {
		t.Errorf("%v, would be: %s", err, want)
	}
}

func TestParseFRRVersion(t *testing.T) {
	for text, want := range map[string]string{
		"zebra version 10.3\nCopyright 1996-2005 Kunihiro Ishiguro, et al.\n": "10.3",
		"zebra version 8.4.4":  "8.4.4",
		"zebra version \n":     "",
		"bgpd version 10.3\n":  "",
		"":                     "",
		"\nzebra version 10.3": "",
	} {
		got, ok := parseFRRVersion(text)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q, %v, would be %q", text, got, ok, want)
		}
	}
}

func TestMissingToolsAreNamedWithTheirPackages(t *testing.T) {
	err := need(
		tool{name: "surely-not-there", pkg: "first"}, tool{name: "sh", pkg: "never"},
		tool{name: "nor-this", pkg: "second first"}, tool{name: "by-its-path", paths: []string{"/bin/sh"}})
	want := "this host lacks surely-not-there, nor-this; install: apt-get install -y --no-install-recommends first second"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwould be: %s", err, want)
	}
}

func TestOnce(t *testing.T) {
	final := filepath.Join(t.TempDir(), "guest")
	broken := errors.New("broken")
	err := once(final, func(tmp string) error {
		if err := os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("%v, would be: %v", err, broken)
	}
	if all, err := filepath.Glob(final + "*"); err != nil || !slices.Equal(all, []string{final + ".lock"}) {
		t.Fatalf("after a broken build there is %v (%v), would be the lock alone", all, err)
	}
	built := 0
	for range 2 {
		if err := once(final, func(tmp string) error {
			built++
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("a build starts with %v (%v), would be nothing", left, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if built != 1 {
		t.Errorf("built %d times, would be once", built)
	}
}

func TestTestTimeout(t *testing.T) {
	for _, c := range []struct {
		args []string
		want time.Duration
		err  string
	}{
		{nil, 0, ""},
		{[]string{"-test.v", "-test.run=x"}, 0, ""},
		{[]string{"-test.paniconexit0", "-test.timeout=10m0s"}, 10 * time.Minute, ""},
		{[]string{"--test.timeout=3s"}, 3 * time.Second, ""},
		{[]string{"-test.timeout", "5s"}, 5 * time.Second, ""},
		{[]string{"test.timeout=5s"}, 0, ""},
		{[]string{"-test.timeout=soon"}, 0, `-test.timeout: time: invalid duration "soon"`},
		{[]string{"-test.timeout"}, 0, `-test.timeout: time: invalid duration ""`},
	} {
		got, err := TestTimeout(c.args)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%q: %v, %v, would be %v, %q", c.args, got, err, c.want, c.err)
		}
	}
}

func TestLabEnvLetsOnlyTheProjectsNamesIn(t *testing.T) {
	lab := Lab{Checkout: "/src", Artifacts: "/src/bin/a", Root: Root{Release: Release{Name: "trixie"}, FRR: "10.3"}}
	got := lab.Env([]string{
		"HOME=/home/me", "SECRET=x", "PATH=/opt", "VTEPD_ARTIFACTS=/elsewhere", "VTEPD_X=1",
		"RAPID_CHECKS=5", "GOTRACEBACK=all", "GOTRACEBACKS=no",
	})
	want := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp", "LANG=C.UTF-8",
		"VTEPD_X=1", "RAPID_CHECKS=5", "GOTRACEBACK=all",
		"VTEPD_ARTIFACTS=/src/bin/a", "VTEPD_FRR_RELEASE=trixie", "VTEPD_FRR_VERSION=10.3", "VTEPD_BIN=/src/bin/vtepd",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got := lab.Env([]string{"VTEPD_BIN=/other"}); !slices.Contains(got, "VTEPD_BIN=/other") || slices.Contains(got, "VTEPD_BIN=/src/bin/vtepd") {
		t.Errorf("the caller's VTEPD_BIN isn't kept: %q", got)
	}
}

func TestLabSharesAreMountedOuterFirst(t *testing.T) {
	lab := Lab{
		Checkout: "/src", Artifacts: "/src/bin/artifacts/x",
		Extra: []Share{{"/tmp/go-build1/b001", false}, {"/src", true}, {"/a", true}},
	}
	want := []Share{{"/a", true}, {"/src", true}, {"/tmp/go-build1/b001", false}, {"/src/bin/artifacts/x", false}}
	got := lab.Shares()
	slices.SortStableFunc(got[:2], func(a, b Share) int { return strings.Compare(a.Path, b.Path) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}

func TestFindCheckout(t *testing.T) {
	top := t.TempDir()
	below := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := FindCheckout(below); err == nil || err.Error() != "no go.mod in "+below+" or above" {
		t.Errorf("without go.mod: %v", err)
	}
	if err := os.WriteFile(filepath.Join(top, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := FindCheckout(below); err != nil || got != top {
		t.Errorf("%q, %v, would be %q", got, err, top)
	}
}

func TestDropArtifactsKeepsWhatATestLeft(t *testing.T) {
	for left, kept := range map[string]bool{"console.log": false, "leaf1.pcap": true} {
		dir := filepath.Join(t.TempDir(), "a")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, left), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := DropArtifacts(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != kept {
			t.Errorf("with %s in it: %v, kept would be %v", left, err, kept)
		}
	}
}

func TestModuleFilesPutDependenciesFirst(t *testing.T) {
	dir := t.TempDir()
	dep := `kernel/drivers/net/vxlan/vxlan.ko.xz: kernel/net/ipv6/ip6_udp_tunnel.ko.xz kernel/net/ipv4/udp_tunnel.ko.xz
kernel/net/ipv6/ip6_udp_tunnel.ko.xz: kernel/net/ipv4/udp_tunnel.ko.xz
kernel/net/ipv4/udp_tunnel.ko.xz:
kernel/drivers/net/my-dummy.ko:
`
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := moduleFiles(dir, []string{"my_dummy", "vxlan", "udp_tunnel"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range got {
		names = append(names, moduleName(f))
	}
	if want := []string{"my_dummy", "udp_tunnel", "ip6_udp_tunnel", "vxlan"}; !slices.Equal(names, want) {
		t.Errorf("%q, would be %q", names, want)
	}
	if _, err := moduleFiles(dir, []string{"ipvlan"}); err == nil || err.Error() != "kernel module ipvlan: not in "+dir {
		t.Errorf("a module that isn't there: %v", err)
	}
}

func TestInitramfsIsAlignedAndEnds(t *testing.T) {
	dir := t.TempDir()
	self, module := filepath.Join(dir, "self"), filepath.Join(dir, "x.ko")
	for path, body := range map[string]string{self: "program", module: "mod"} {
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := writeInitramfs(&out, self, []string{module}); err != nil {
		t.Fatal(err)
	}
	if out.Len()%4 != 0 {
		t.Errorf("%d bytes, would be a multiple of 4", out.Len())
	}
	at := -1
	for _, name := range []string{"dev", "proc", "sys", "modules", "init", "modprobe", "modules/000-x.ko", "TRAILER!!!"} {
		i := bytes.Index(out.Bytes(), []byte(name+"\x00"))
		if i <= at || i < 110 || !bytes.Equal(out.Bytes()[i-110:i-104], []byte("070701")) || (i-110)%4 != 0 {
			t.Errorf("%s: at byte %d, would be an aligned entry after byte %d", name, i, at)
		}
		at = i
	}
}

func TestDeadlineSaysWhichOne(t *testing.T) {
	ctx, cancel := WithDeadline(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if got := context.Cause(ctx).Error(); got != "its deadline of 1ns passed" {
		t.Errorf("cause: %s", got)
	}
	ctx, cancel = WithDeadline(t.Context(), 0)
	defer cancel()
	if _, bounded := ctx.Deadline(); bounded {
		t.Error("0 sets a deadline, would set none")
	}
}
