//go:build guest

package cni_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/cni"
	"vtepd/dataplane/kerneltest"
)

// real is this process's own namespace, with the plugins that the guest has.
type real struct{ lab }

func (r *real) Path() string { return "/usr/lib/cni" }

func ip(t testing.TB, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

func (r *real) Links(t testing.TB) []string {
	t.Helper()
	var names []string
	for line := range strings.Lines(ip(t, "-br link")) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
		if name != "lo" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *real) Add(t testing.TB, name string)    { t.Helper(); ip(t, "link add "+name+" type dummy") }
func (r *real) Remove(t testing.TB, name string) { t.Helper(); ip(t, "link del "+name) }

func (r *real) open() *cni.CNI { return cni.New(cni.Options{Dir: r.state}) }

func (r *real) Restart(testing.TB) dataplane.CNI { return r.open() }

func openReal(t testing.TB) (dataplane.CNI, kerneltest.CNIEnv) {
	t.Helper()
	r := &real{lab{state: filepath.Join(t.TempDir(), "cni")}}
	r.Add(t, "eth1")
	ip(t, "link set eth1 up")
	t.Cleanup(func() {
		for _, name := range r.Links(t) {
			if _, err := os.Stat("/sys/class/net/" + name); err == nil { // a parent takes its children along
				r.Remove(t, name)
			}
		}
	})
	return r.open(), r
}

// TestRealPlugins: the same suite with ipvlan and static of the guest, as the least privileged that they can be.
func TestRealPlugins(t *testing.T) { kerneltest.CNI(t, openReal) }

// TestRealDrift: CHECK sees an address that is gone, and one that is another's.
func TestRealDrift(t *testing.T) {
	p, env := openReal(t)
	a := kerneltest.CNIAttachment(env.Path(), "net1-aaaaa", "192.0.2.1/32")
	must(t, p.Attach(t.Context(), a))
	out := ip(t, "-d -o addr show dev net1-aaaaa") + ip(t, "-d -o link show dev net1-aaaaa")
	if !strings.Contains(out, "192.0.2.1/32") || !strings.Contains(out, "ipvlan") || !strings.Contains(out, "mode l3") {
		t.Errorf("ip says %s", out)
	}
	ip(t, "addr flush dev net1-aaaaa")
	err := p.Check(t.Context(), a)
	if err == nil || !strings.Contains(err.Error(), "CNI CHECK of net1-aaaaa: ") {
		t.Errorf("%v", err)
	}
	t.Log(fmt.Sprint(err))
	must(t, p.Detach(t.Context(), a))
}
