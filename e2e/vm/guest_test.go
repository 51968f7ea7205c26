//go:build guest

package vm

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestGuestKernelHasEveryLink(t *testing.T) {
	if err := ProbeNative(); err != nil {
		t.Fatal(err)
	}
}

func TestGuestFRRIsTheReleases(t *testing.T) {
	out, err := exec.Command("/usr/lib/frr/zebra", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	said, ok := parseFRRVersion(string(out))
	if !ok {
		t.Fatalf("zebra says %q", out)
	}
	rel, err := Default.Release(os.Getenv("VTEPD_FRR_RELEASE"))
	if err != nil {
		t.Fatal(err)
	}
	if want := os.Getenv("VTEPD_FRR_VERSION"); said != want || said != rel.FRR {
		t.Errorf("zebra says %s, the harness %s, the recipe %s", said, want, rel.FRR)
	}
}

func TestGuestSeesTheCheckoutReadOnly(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FindCheckout(dir); err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile("written-by-a-guest", nil, 0o644)
	if err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("write into the checkout: %v, would be refused as read-only", err)
	}
}

func TestGuestKeepsArtifacts(t *testing.T) {
	dir := os.Getenv("VTEPD_ARTIFACTS")
	file, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
}

// A static key has places in the scheduler that the kernel patches while they
// run. Emulated with two processors by QEMU 7.2, it panicked within fifty flips.
func TestGuestSurvivesItsKernelsPatches(t *testing.T) {
	for range 2 {
		busy := exec.Command("yes")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := busy.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = busy.Wait() // killed
		})
	}
	const key = "/proc/sys/kernel/sched_schedstats"
	for range 250 {
		for _, value := range []string{"1", "0"} {
			if err := os.WriteFile(key, []byte(value), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}
