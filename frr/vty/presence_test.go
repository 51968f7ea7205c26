package vty

import (
	"context"
	"testing"
	"time"

	"vtepd/frr/frrtest"
)

// TestPresence: the end of a daemon and its new beginning are one hint each, at once, and nothing is asked for either.
func TestPresence(t *testing.T) {
	d := dir(t)
	wake := make(chan struct{}, 1)
	p := Watch(d, "bgpd", wake)
	if p.String() != "presence of bgpd" {
		t.Error(p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	hint := func(of string) {
		t.Helper()
		select {
		case <-p.C:
		case <-time.After(20 * time.Second):
			t.Fatalf("no hint of %s", of)
		}
	}
	quiet := func(when string) {
		t.Helper()
		select {
		case <-p.C:
			t.Fatalf("a hint %s", when)
		default:
		}
	}
	quiet("of nobody")
	for range 3 {
		s := frrtest.Serve(t, d, "bgpd", func(string) frrtest.Answer { return frrtest.Answer{} })
		select {
		case wake <- struct{}{}:
		default: // it found out by itself
		}
		hint("the daemon")
		quiet("while it is there")
		s.Stop()
		hint("its end")
		if lines := s.Lines(); len(lines) > 0 {
			t.Errorf("it was asked %q", lines)
		}
	}
	s := frrtest.Serve(t, d, "bgpd", func(string) frrtest.Answer { return frrtest.Answer{} })
	hint("the daemon, without being woken")
	s.Stop()
	hint("its end")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
