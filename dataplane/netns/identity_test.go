package netns_test

import (
	"os"
	"strings"
	"testing"

	"vtepd/dataplane/netns"
)

// TestIdentity: a namespace is itself whenever it is asked, and no other, not even one made after it is gone.
func TestIdentity(t *testing.T) {
	own, err := netns.Identity()
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(own, strings.TrimSpace(string(boot))+"/") {
		t.Errorf("%q is not of boot %s", own, boot)
	}
	seen := map[string]bool{own: true}
	for range 5 {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			err := ns.Do(func() error {
				id, err := netns.Identity()
				if err == nil && seen[id] != (i > 0) {
					t.Errorf("%s, seen before: %v", id, seen)
				}
				seen[id] = true
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		ns.Close()
	}
	if again, err := netns.Identity(); err != nil || again != own {
		t.Errorf("%s, was %s (%v)", again, own, err)
	}
}
