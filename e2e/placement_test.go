//go:build guest

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"vtepd/e2e/fabric"
	"vtepd/e2e/lab"
)

// cniOn is a placement by CNI plugins on a parent, and the file that it needs.
func cniOn(parent, more string) (placement, file, conflist string) {
	file = "/etc/vtepd/" + parent + ".conflist"
	return "cni: {conflist: " + file + more + "}", file, `{"cniVersion": "1.0.0", "name": "uplink", "plugins": [
  {"type": "ipvlan", "mode": "l3", "master": "` + parent + `", "ipam": {"type": "static"}, "capabilities": {"ips": true}}]}
`
}

// TestPlacement: one endpoint goes through every placement under traffic, its address kept, and loses nothing.
func TestPlacement(t *testing.T) {
	s := deploy(t)
	same := s.foreign()
	for _, parent := range []string{"eth1", "eth2"} {
		_, file, conflist := cniOn(parent, "")
		s.must(s.one.Sidecar.Drop(file, conflist))
	}
	on1, _, _ := cniOn("eth1", "")
	named, _, _ := cniOn("eth1", ", interfaceName: uplink0")
	on2, _, _ := cniOn("eth2", "")
	one := s.overlay(2)
	one.Placement = "loopback: {}"
	s.carry(s.one, one, "10.0.0.11")
	heard := s.lab.Node("spine").Speaker()
	mark := heard.Len()
	tr := s.traffic()
	ctx := s.within(5 * time.Minute)
	for _, c := range []struct{ what, placement, link, kind string }{
		{"loopback to ipvlan", "ipvlan: {parent: eth1}", "vtep0-", "ipvlan"},
		{"ipvlan to CNI, on the same parent", on1, "net1-", "ipvlan"},
		{"another name", named, "uplink0-", "ipvlan"},
		{"another parent", on2, "net1-", "ipvlan"},
		{"CNI to loopback", "loopback: {}", "vtep0-", "dummy"},
		{"loopback to CNI", on1, "net1-", "ipvlan"},
		{"CNI to ipvlan, on the same parent", "ipvlan: {parent: eth1}", "vtep0-", "ipvlan"},
	} {
		t.Log(c.what)
		one.Placement = c.placement
		s.carry(s.one, one, "10.0.0.11")
		out, err := s.one.Leaf.Exec(ctx, "ip", "-d", "-br", "addr", "show", "to", "10.0.0.11")
		s.must(err)
		links, err := s.one.Leaf.Exec(ctx, "ip", "-d", "link", "show", "type", c.kind)
		s.must(err)
		if strings.Count(out, "10.0.0.11/32") != 1 || !strings.HasPrefix(out, c.link) || !strings.Contains(links, c.link) {
			t.Errorf("%s: the address is on\n%sand there are\n%s", c.what, out, links)
		}
	}
	for _, e := range heard.Since(mark) {
		if fabric.Lost(e, s.one.Loopback) {
			t.Errorf("something was withdrawn: %v", e)
		}
	}
	s.account(tr)
	s.noAttachments()
	same()
}

// until polls a condition that no status tells of.
func (s *story) until(ctx context.Context, what string, is func() bool) error {
	return lab.Eventually(ctx, what, func(context.Context) error {
		if !is() {
			return errors.New("not yet")
		}
		return nil
	})
}

// noAttachments: neither a record nor a cache entry nor a link of an attachment is left at leaf1.
func (s *story) noAttachments(but ...string) {
	s.Helper()
	ctx := s.within(time.Minute)
	out, err := s.one.Sidecar.Exec(ctx, "find", "/var/lib/vtepd/cni", "-type", "f")
	s.must(err)
	links, err := s.one.Leaf.Exec(ctx, "ip", "-br", "link")
	s.must(err)
	for line := range strings.Lines(out + links) {
		mine := strings.Contains(line, "net1-") || strings.Contains(line, "uplink0-") || strings.Contains(line, "hold-") || strings.Contains(line, "/cni/")
		for _, b := range but {
			mine = mine && !strings.Contains(line, b)
		}
		if mine {
			s.Errorf("left: %s", line)
		}
	}
}
