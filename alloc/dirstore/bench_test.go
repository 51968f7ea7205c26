package dirstore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"vtepd/alloc"
)

// BenchmarkClaim is one claim and its release beside that many live allocations, on a disk: two files synced, a directory synced
// twice. BenchmarkSync is what the disk itself costs. A million of them are four gigabytes on most file systems.
func BenchmarkClaim(b *testing.B) {
	for _, live := range []int{10, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "claims")
			s := mustOpen(b, dir)
			pools := mustPools(b, "10.0.0.0/8")
			for i := range live {
				v := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
				data, err := alloc.Marshal(sample(v, fmt.Sprintf("leaf%d/x", i)))
				if err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, alloc.Name("p", v)), data, 0o640); err != nil {
					b.Fatal(err)
				}
			}
			c := alloc.NewClaimer(s, pools)
			if _, err := c.Pools(b.Context()); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				a, wrote, err := c.Acquire(b.Context(), alloc.Claim{Name: "new/x", Pool: "p"})
				if err != nil || !wrote {
					b.Fatal(wrote, err)
				}
				if err := c.Release(b.Context(), a.Name, "new/x", ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSync(b *testing.B) {
	dir := b.TempDir()
	path := filepath.Join(dir, "f")
	data := make([]byte, 300)
	for b.Loop() {
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		if err := syncPath(dir); err != nil {
			b.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
		if err := syncPath(dir); err != nil {
			b.Fatal(err)
		}
	}
}
