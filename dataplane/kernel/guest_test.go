//go:build guest

package kernel_test

import (
	"flag"
	"testing"

	"vtepd/dataplane/kerneltest"
)

func TestWholeSuite(t *testing.T) { kerneltest.Run(t, kerneltest.Full, openSuite) }

// TestFakeAndWholeKernelAgree takes a sample: the guest is slow, and each check makes namespaces.
func TestFakeAndWholeKernelAgree(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	before := checks.Value.String()
	if err := checks.Value.Set("12"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Value.Set(before) })
	kerneltest.Random(t, kerneltest.Full, openSuite, openFake)
}
