package fake_test

import (
	"fmt"
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/dataplane/kerneltest"
)

// env makes the things of others in a fake.
type env struct {
	k *fake.Kernel
	n int
}

func (e *env) Add(_ testing.TB, links ...dataplane.Link) { e.k.Add(links...) }
func (e *env) Remove(_ testing.TB, names ...string)      { e.k.Remove(names...) }
func (e *env) AddChild(_ testing.TB, l dataplane.Link)   { e.k.AddChild(l) }
func (e *env) AddNetns(_ testing.TB, l ...dataplane.Link) string {
	e.n++
	name := fmt.Sprintf("elsewhere-%d", e.n)
	e.k.AddNetns(name, l...)
	return name
}

func TestSuite(t *testing.T) {
	kerneltest.Run(t, kerneltest.Full, func(testing.TB) (dataplane.Kernel, kerneltest.Env) {
		k := fake.New()
		return k, &env{k: k}
	})
}
