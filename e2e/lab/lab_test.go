//go:build guest

package lab

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

const topology = "../../containerlab/evpn-l2.clab.yml"

// roots lets the tests of this package run on a machine's own kernel with the
// FRR of another root: VTEPD_LAB_ROOT is its directory.
func roots() map[string]string { return map[string]string{"": os.Getenv("VTEPD_LAB_ROOT")} }

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestDeploy(t *testing.T) {
	l := New(t, topology, Options{Roots: roots(), GoBGP: []string{"spine"}})
	ctx := within(t, time.Minute)
	if err := l.WaitBGP(ctx); err != nil {
		t.Fatal(err)
	}
	t.Log("BGP up")
	Eventually(ctx, "route", func(ctx context.Context) error {
		_, err := l.Node("leaf1").Exec(ctx, "ping", "-c1", "-W1", "-I", "10.0.1.1", "10.0.1.2")
		return err
	})
	fmt.Println(l.Node("spine").Exec(ctx, "ip", "route"))
	for _, e := range l.Node("spine").Speaker().Events() {
		fmt.Println(e.Time, e)
	}
}
