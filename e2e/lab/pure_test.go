package lab

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vtepd/e2e/clab"
	"vtepd/frr/witness"
)

func TestSpeakerConfig(t *testing.T) {
	conf, err := os.ReadFile("../../containerlab/evpn-l2/spine/frr.conf")
	if err != nil {
		t.Fatal(err)
	}
	got, err := speakerConfig(string(conf))
	if err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr
	four, six := []witness.Family{witness.IPv4, witness.EVPN}, []witness.Family{witness.IPv6}
	want := witness.Config{
		AS: 65000, RouterID: ip("10.0.0.100"), Listen: []netip.Addr{ip("10.0.0.100"), ip("fd00::100")},
		Peers: []witness.Peer{
			{Addr: ip("10.0.0.1"), AS: 65000, Local: ip("10.0.0.100"), Passive: true, Client: true, Families: four},
			{Addr: ip("10.0.0.2"), AS: 65000, Local: ip("10.0.0.100"), Passive: true, Client: true, Families: four},
			{Addr: ip("fd00::1"), AS: 65000, Local: ip("fd00::100"), Passive: true, Client: true, Families: six},
			{Addr: ip("fd00::2"), AS: 65000, Local: ip("fd00::100"), Passive: true, Client: true, Families: six},
		},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, tt := range []struct{ conf, want string }{
		{"hostname x\n", "no router bgp with neighbours that have an update-source"},
		{"router bgp x\n", `line 1: strconv.ParseUint: parsing "x": invalid syntax`},
		{"router bgp 1\n bgp cluster-id 1.1.1.1\n", `line 2: "bgp cluster-id 1.1.1.1" is not known here`},
		{"router bgp 1\n neighbor LEAVES peer-group\n", `line 2: ParseAddr("LEAVES"): unable to parse IP`},
		{"router bgp 1\n neighbor 10.0.0.1 activate\n", `line 2: "neighbor 10.0.0.1 activate" is not known here`},
		{"router bgp 1\n address-family ipv4 vpn\n", `line 2: "address-family ipv4 vpn" is not known here`},
		{"!\nrouter bgp 1\n address-family ipv4 unicast\n  network 10.0.0.0/8\n", `line 4: "network 10.0.0.0/8" is not known here`},
	} {
		if _, err := speakerConfig(tt.conf); err == nil || err.Error() != tt.want {
			t.Errorf("%q: %v, want %s", tt.conf, err, tt.want)
		}
	}
}

func TestInside(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"run/frr", "var", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"var/run": "/run", "etc/up": "../../../etc", "loop": "loop", "etc/rel": "../run"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ path, want string }{
		{"/", ""},
		{"/var/run/frr/bgpd.vty", "run/frr/bgpd.vty"},
		{"/etc/up/passwd", "etc/passwd"},
		{"/etc/rel/frr", "run/frr"},
		{"/../../x", "x"},
		{"/no/../run", "run"},
	} {
		got, err := inside(root, tt.path)
		if want := filepath.Join(root, tt.want); err != nil || got != want {
			t.Errorf("inside(%s) = %s, %v; want %s", tt.path, got, err, want)
		}
	}
	if _, err := inside(root, "/loop/x"); err == nil || err.Error() != "/loop/x: too many symbolic links" {
		t.Errorf("a loop: %v", err)
	}
}

func TestCopyBinds(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"a/x", "a/sub/y", "a/.gitignore", "b"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	lab := func(binds ...string) *Lab {
		var n clab.Node
		for _, b := range binds {
			n.Binds = append(n.Binds, clab.Bind{Source: b, Target: "/" + b})
		}
		return &Lab{Topology: &clab.Topology{Nodes: []clab.Node{n, n}}, scratch: t.TempDir(), copies: map[string]string{}}
	}
	l := lab("a", "b", "/etc")
	if err := l.copyBinds(dir); err != nil {
		t.Fatal(err)
	}
	if len(l.copies) != 2 {
		t.Errorf("copies %v, want of a and b: an absolute source is bound as it is", l.copies)
	}
	if got, err := os.ReadFile(filepath.Join(l.copies["a"], "sub/y")); err != nil || string(got) != "a/sub/y" {
		t.Errorf("a/sub/y: %q, %v", got, err)
	}
	if exists(filepath.Join(l.copies["a"], ".gitignore")) {
		t.Error(".gitignore was copied")
	}
	if err := lab("a", "a/sub").copyBinds(dir); err == nil || err.Error() != `binds of "a" and of "a/sub" inside it: as copies they would not be the same files` {
		t.Errorf("a bind inside a bind: %v", err)
	}
	if err := os.Symlink("b", filepath.Join(dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	if err := lab("a").copyBinds(dir); err == nil || err.Error() != "bind source a: "+filepath.Join(dir, "a/link")+" is neither a file nor a directory" {
		t.Errorf("a symbolic link: %v", err)
	}
}

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		calls := 0
		err := Eventually(t.Context(), "x", func(context.Context) error {
			if calls++; calls < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil || calls != 3 || time.Since(start) != 100*time.Millisecond {
			t.Errorf("%v after %d calls and %v", err, calls, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = Eventually(ctx, "the light", func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.New("it is dark")
		})
		if err == nil || err.Error() != "the light: context deadline exceeded: it is dark" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("past the deadline: %v", err)
		}
		err = Eventually(t.Context(), "the light", func(context.Context) error { return Final(os.ErrNotExist) })
		if err == nil || err.Error() != "the light: file does not exist" || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a final error: %v", err)
		}
	})
}

func TestDeployedByAnother(t *testing.T) {
	topo, err := clab.Parse("two", []byte("name: two\ntopology:\n  defaults: {kind: linux, image: i, network-mode: none}\n  nodes: {n1: {}, n2: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Deploy(t.Context(), topo, ".", Options{Deployed: true, Adopted: map[string]int{"n1": os.Getpid()}})
	if want := "node n2: deployed by somebody else, but no process of it is given"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
