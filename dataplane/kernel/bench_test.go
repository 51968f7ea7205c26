package kernel_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vtepd/dataplane"
)

// BenchmarkSwap changes the local address of 1,000 VXLANs as Apply does it, its reading included, and as `ip -batch` does it,
// one after the other on the same links: "ip/apply" is how many times as long ip takes.
func BenchmarkSwap(b *testing.B) {
	k, e := open(b)
	const n = 1000
	var ops []dataplane.Op
	for i := range uint32(n) {
		ops = append(ops, create(vx(i+1, "192.0.2.1")))
	}
	apply(b, k, ops...)
	apply(b, k, dataplane.Op{Verb: dataplane.GroupUp, Group: 7})
	swap := func(local string) []dataplane.Op {
		var ops []dataplane.Op
		for i := range uint32(n) {
			l := vx(i+1, local)
			l.Up = true
			ops = append(ops, set(l))
		}
		return ops
	}
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "link set vx%d type vxlan local 192.0.2.3\n", i+1)
	}
	ours, theirs := time.Duration(0), time.Duration(0)
	locals := []string{"192.0.2.1", "192.0.2.2"}
	for i := 0; b.Loop(); i++ {
		ops := swap(locals[i%2])
		start := time.Now()
		apply(b, k, ops...)
		ours += time.Since(start)
		err := e.router.Do(func() error {
			cmd := exec.Command("ip", "-batch", "-")
			cmd.Stdin = strings.NewReader(lines.String())
			start := time.Now()
			out, err := cmd.CombinedOutput()
			theirs += time.Since(start)
			if err != nil {
				err = fmt.Errorf("ip -batch: %w: %s", err, out)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(theirs)/float64(ours), "ip/apply")
	b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "apply-ms")
	b.ReportMetric(float64(theirs.Milliseconds())/float64(b.N), "ip-ms")
}
