package fake_test

import (
	"errors"
	"strings"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/dataplane/kerneltest"
)

type cniEnv struct {
	*fake.CNI
	kernel *fake.Kernel
}

func (e cniEnv) Path() string { return "/usr/lib/cni" }

func (e cniEnv) Links(testing.TB) []string {
	var names []string
	for _, l := range e.kernel.Links() {
		if l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	return names
}

func (e cniEnv) Add(_ testing.TB, name string) {
	e.kernel.Add(dataplane.Link{Name: name, Kind: dataplane.Dummy, Up: true})
}
func (e cniEnv) Remove(_ testing.TB, name string)               { e.kernel.Remove(name) }
func (e cniEnv) LoseCache(_ testing.TB, a dataplane.Attachment) { e.CNI.LoseCache(a.Link) }
func (e cniEnv) Restart(testing.TB) dataplane.CNI               { e.CNI.Restart(); return e.CNI }
func openCNI(testing.TB) (dataplane.CNI, kerneltest.CNIEnv)     { e := newCNI(); return e.CNI, e }
func newCNI() cniEnv {
	k := fake.New()
	k.Add(dataplane.Link{Name: "eth1", Up: true})
	return cniEnv{fake.NewCNI(k), k}
}

func TestCNISuite(t *testing.T) { kerneltest.CNI(t, openCNI) }

// TestCNIFailures: an ADD that fails is taken away again, unless that fails too, and both are said.
func TestCNIFailures(t *testing.T) {
	e := newCNI()
	a := kerneltest.CNIAttachment(e.Path(), "net1-aaaaa", "192.0.2.1/32")
	e.FailAt(1, errors.New("no"))
	if err := e.Attach(t.Context(), a); err == nil || err.Error() != "CNI ADD of net1-aaaaa: no" {
		t.Errorf("%v", err)
	}
	if got := strings.Join(append(e.Links(t), e.State()...), " "); got != "eth1" {
		t.Errorf("left: %s", got)
	}
	e.FailAt(3, errors.New("no"))
	e.FailAt(4, errors.New("never"))
	if err := e.Attach(t.Context(), a); err == nil || err.Error() != "CNI ADD of net1-aaaaa: no; taking it away again: never" {
		t.Errorf("%v", err)
	}
	if err := e.Detach(t.Context(), a); err != nil {
		t.Error(err)
	}
	if got := strings.Join(append(e.Links(t), e.State()...), " "); got != "eth1" {
		t.Errorf("left: %s", got)
	}
}
