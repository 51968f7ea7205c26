package kernel_test

import (
	"testing"

	"vtepd/dataplane"
	"vtepd/dataplane/fake"
	"vtepd/dataplane/kerneltest"
)

// fakeEnv makes the things of others in a fake.
type fakeEnv struct{ k *fake.Kernel }

func (e fakeEnv) Add(_ testing.TB, links ...dataplane.Link) { e.k.Add(links...) }
func (e fakeEnv) Remove(_ testing.TB, names ...string)      { e.k.Remove(names...) }
func (e fakeEnv) AddChild(_ testing.TB, l dataplane.Link)   { e.k.AddChild(l) }
func (e fakeEnv) AddNetns(_ testing.TB, links ...dataplane.Link) string {
	e.k.AddNetns("elsewhere", links...)
	return "elsewhere"
}

func openFake(testing.TB) (dataplane.Kernel, kerneltest.Env) {
	k := fake.New()
	return k, fakeEnv{k}
}

func TestFakeAndKernelAgree(t *testing.T) {
	kerneltest.Random(t, kerneltest.Plain, openSuite, openFake)
}
