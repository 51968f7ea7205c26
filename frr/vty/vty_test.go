package vty

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"vtepd/frr"
	"vtepd/frr/frrtest"
)

const config = "frr version 10.3\nroute-map VTEPD permit 10\n description vtepd marks its host routes with this map\nexit\n!\n" +
	"router bgp 65001\n !\n address-family ipv4 unicast\n%s exit-address-family\nexit\n!\n"

var (
	one    = netip.MustParsePrefix("10.255.0.1/32")
	two    = netip.MustParsePrefix("10.255.0.2/32")
	addOne = frr.Edit{Verb: frr.AddNetwork, ASN: 65001, Prefix: one}
	addTwo = frr.Edit{Verb: frr.AddNetwork, ASN: 65001, Prefix: two}
)

// bgpd is a script that keeps network lines, and answers to the lines in special as they say.
func bgpd(special map[string]frrtest.Answer) func(string) frrtest.Answer {
	nets := ""
	return func(line string) frrtest.Answer {
		if a, ok := special[line]; ok {
			return a
		}
		switch {
		case line == frr.CommandConfig:
			return frrtest.Answer{Text: fmt.Sprintf(config, nets)}
		case strings.HasPrefix(line, "network "):
			nets += "  " + line + "\n"
		case strings.HasPrefix(line, "no network "):
			nets = strings.Replace(nets, "  "+line[3:]+"\n", "", 1)
		}
		return frrtest.Answer{}
	}
}

// dir is short: a unix socket's path has 107 bytes.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "vty")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

func open(t *testing.T, d string, timeout time.Duration) *Router {
	t.Helper()
	r := New(d, timeout)
	t.Cleanup(func() { r.Close() })
	return r
}

// Each way in which FRR can't be reached or makes no sense has words of its own.
func TestErrors(t *testing.T) {
	hang, closed := frrtest.Answer{Hang: true}, frrtest.Answer{Close: true}
	for name, tt := range map[string]struct {
		special map[string]frrtest.Answer
		want    string
		is      error
	}{
		"silent":             {map[string]frrtest.Answer{"enable": hang}, `"enable": no answer in 100ms`, frr.ErrUnreachable},
		"silent later":       {map[string]frrtest.Answer{frr.CommandConfig: hang}, `"show running-config": no answer in 100ms`, frr.ErrUnreachable},
		"half an answer":     {map[string]frrtest.Answer{frr.CommandConfig: {Raw: []byte("frr version\x00\x00")}}, `"show running-config": no answer in 100ms`, frr.ErrUnreachable},
		"closed":             {map[string]frrtest.Answer{frr.CommandConfig: closed}, `"show running-config": bgpd closed the connection`, frr.ErrUnreachable},
		"closed half way":    {map[string]frrtest.Answer{frr.CommandConfig: {Raw: []byte("frr"), Close: true}}, `"show running-config": bgpd closed the connection`, frr.ErrUnreachable},
		"another protocol":   {map[string]frrtest.Answer{"enable": {Raw: []byte("HTTP/1.1 400\x00\x01\x02\x03\x04")}}, `FRR's answer makes no sense: enable: not the framing of a vty: "HTTP/1.1 400 0001020304"`, frr.ErrGarbage},
		"two answers":        {map[string]frrtest.Answer{"enable": {Raw: []byte("\x00\x00\x00\x00\x00\x00\x00\x00")}}, `FRR's answer makes no sense: enable: not the framing of a vty: "0000000000000000"`, frr.ErrGarbage},
		"no enable":          {map[string]frrtest.Answer{"enable": {Text: "% Unknown command.\n", RC: 2}}, `FRR's answer makes no sense: enable: return code 2: "% Unknown command."`, frr.ErrGarbage},
		"no such command":    {map[string]frrtest.Answer{frr.CommandConfig: {Text: "% Unknown command.\n", RC: 2}}, `FRR's answer makes no sense: show running-config: return code 2: "% Unknown command."`, frr.ErrGarbage},
		"not what was asked": {map[string]frrtest.Answer{frr.CommandConfig: {Text: "Lorem ipsum\n"}}, `FRR's answer makes no sense: show running-config: no frr version on the first line: "Lorem ipsum"`, frr.ErrGarbage},
		"nothing":            {map[string]frrtest.Answer{frr.CommandConfig: {}}, `FRR's answer makes no sense: show running-config: no frr version on the first line: nothing`, frr.ErrGarbage},
	} {
		d := dir(t)
		frrtest.Serve(t, d, "bgpd", bgpd(tt.special))
		r := open(t, d, 100*time.Millisecond)
		_, err := r.Observe(t.Context(), frr.Query{Config: true})
		if want := "frr: bgpd: socket " + d + "/bgpd.vty: " + tt.want; err == nil || err.Error() != want || !errors.Is(err, tt.is) {
			t.Errorf("%s:\ngot  %v\nwant %s", name, err, want)
		}
		if err2 := r.Apply(t.Context(), []frr.Edit{addOne}); err2 == nil || err2.Error() != err.Error() {
			t.Errorf("%s: Apply says %v", name, err2)
		}
	}
}

func TestNoSocket(t *testing.T) {
	d := dir(t)
	r := open(t, d, 0)
	_, err := r.Observe(t.Context(), frr.Query{VNIs: true})
	want := "frr: zebra: socket " + d + "/zebra.vty: no such file: is FRR running, and is its socket directory shared with vtepd?"
	if err == nil || err.Error() != want || !errors.Is(err, frr.ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(d, "bgpd.vty"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	_, err = r.Observe(t.Context(), frr.Query{Config: true})
	want = "frr: bgpd: socket " + d + "/bgpd.vty: connection refused: bgpd is not running"
	if err == nil || err.Error() != want || !errors.Is(err, frr.ErrUnreachable) {
		t.Errorf("refused: %v", err)
	}

	long := filepath.Join(d, strings.Repeat("x", 120))
	_, err = open(t, long, 0).Observe(t.Context(), frr.Query{Config: true})
	want = "frr: bgpd: socket " + long + "/bgpd.vty: the path is too long for a unix socket"
	if err == nil || err.Error() != want || !errors.Is(err, frr.ErrUnreachable) {
		t.Errorf("long: %v", err)
	}
}

// TestDenied: a root without CAP_DAC_OVERRIDE, as the unit and the compose file have it, is told whose the socket is.
func TestDenied(t *testing.T) {
	d := dir(t)
	frrtest.Serve(t, d, "bgpd", func(string) frrtest.Answer { return frrtest.Answer{} })
	const user, group = 92, 64995
	socket := filepath.Join(d, "bgpd.vty")
	own := func(path string, mode fs.FileMode) {
		t.Helper()
		if err := errors.Join(os.Chown(path, user, group), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	groups = append(groups, os.Getegid())
	slices.Sort(groups)
	dial := func() (err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // for ever: the thread ends with what it is left of capabilities
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var sets [2]unix.CapUserData
			if err = unix.Capget(&head, &sets[0]); err == nil {
				sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
				err = unix.Capset(&head, &sets[0])
			}
			if err == nil {
				_, err = Dial(t.Context(), d, "bgpd", 0)
			}
		}()
		<-done
		return err
	}
	for what, mode := range map[string]fs.FileMode{"the socket": 0o755, "its directory": 0o750} {
		own(socket, 0o770)
		own(d, mode)
		if what == "the socket" {
			mode = 0o770
		}
		want := fmt.Sprintf("frr: bgpd: socket %s: permission denied: %s is of user 92 and group 64995 with mode %04o, and vtepd is user 0 in groups %d; "+
			"vtepd must be in that group: SupplementaryGroups= of its unit, FRRVTY_GID of compose.yaml", socket, what, mode, slices.Compact(groups))
		if err := dial(); err == nil || err.Error() != want || !errors.Is(err, frr.ErrUnreachable) || !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%v\nwould be:\n%s", err, want)
		}
	}
}

func TestContext(t *testing.T) {
	d := dir(t)
	asked := make(chan struct{})
	s := frrtest.Serve(t, d, "bgpd", func(line string) frrtest.Answer {
		if line == frr.CommandConfig {
			close(asked)
			return frrtest.Answer{Hang: true}
		}
		return frrtest.Answer{}
	})
	r := open(t, d, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, err := r.Observe(ctx, frr.Query{Config: true})
	if want := "frr: bgpd: socket " + d + `/bgpd.vty: "show running-config": no answer: context canceled`; err == nil || err.Error() != want ||
		!errors.Is(err, frr.ErrUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := r.Observe(ctx, frr.Query{Config: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before: %v", err)
	}
	if got := s.Lines(); !slices.Equal(got, []string{"enable", frr.CommandConfig}) {
		t.Error(got)
	}
}

func TestLines(t *testing.T) {
	d := dir(t)
	s := frrtest.Serve(t, d, "bgpd", func(string) frrtest.Answer { return frrtest.Answer{} })
	c, err := Dial(t.Context(), d, "bgpd", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for line, want := range map[string]string{
		"":                        "a vty line of 0 bytes: 1 to 3999 can be sent",
		strings.Repeat("x", 4000): "a vty line of 4000 bytes: 1 to 3999 can be sent",
		"end\nno router bgp":      `the vty line "end\nno router bgp" has a character at byte 4 that can't be sent`,
		"end\x00no router bgp":    `the vty line "end\x00no router bgp" has a character at byte 4 that can't be sent`,
		"\tend":                   `the vty line "\tend" has a character at byte 1 that can't be sent`,
		"end é":                   `the vty line "end é" has a character at byte 5 that can't be sent`,
	} {
		if _, _, err := c.Ask(t.Context(), line); err == nil || err.Error() != "frr: bgpd: socket "+d+"/bgpd.vty: "+want {
			t.Errorf("%.20q: %v", line, err)
		}
	}
	if _, _, err := c.Ask(t.Context(), strings.Repeat("x", 3999)); err != nil {
		t.Error(err)
	}
	if got := s.Lines(); len(got) != 2 {
		t.Errorf("sent: %.60q", got)
	}
}

func TestApply(t *testing.T) {
	head := []string{"enable", "show running-config"}
	burst := func(network string) []string {
		return []string{"configure terminal", "router bgp 65001", "address-family ipv4 unicast", network, "end"}
	}
	first, second := burst("network 10.255.0.1/32 route-map VTEPD"), burst("network 10.255.0.2/32 route-map VTEPD")
	refuse := func(line string, a frrtest.Answer) map[string]frrtest.Answer {
		return map[string]frrtest.Answer{line: a}
	}
	for name, tt := range map[string]struct {
		special map[string]frrtest.Answer
		edits   []frr.Edit
		lines   []string
		want    string
	}{
		"two":     {nil, []frr.Edit{addOne, addTwo}, slices.Concat(head, first, second, head[1:]), ""},
		"nothing": {nil, []frr.Edit{addOne.Inverse(), {Verb: frr.AddRouteMap, ASN: 65001}}, head, ""},
		"back and forth": {
			nil,
			[]frr.Edit{addOne, addOne.Inverse()},
			slices.Concat(head, first, burst("no network 10.255.0.1/32 route-map VTEPD"), head[1:]), "",
		},
		"refused": {
			refuse(first[3], frrtest.Answer{Text: "% [BGP] Unknown command:  network\n", RC: 2}),
			[]frr.Edit{addTwo, addOne, addTwo.Inverse()},
			slices.Concat(head, second, first),
			`network 10.255.0.1/32: line "network 10.255.0.1/32 route-map VTEPD": bgpd refused it (2): % [BGP] Unknown command: network`,
		},
		"refused early": {
			refuse(first[1], frrtest.Answer{Text: "BGP is already running; AS is 65002\n", RC: 13}),
			[]frr.Edit{addOne},
			slices.Concat(head, first[:2], []string{"end"}),
			`network 10.255.0.1/32: line "router bgp 65001": bgpd refused it (13): BGP is already running; AS is 65002`,
		},
		"refused with return code 0": {
			refuse(first[3], frrtest.Answer{Text: "warming up\n% Can't do that\n"}),
			[]frr.Edit{addOne},
			slices.Concat(head, first),
			`network 10.255.0.1/32: line "network 10.255.0.1/32 route-map VTEPD": bgpd refused it (0): warming up % Can't do that`,
		},
		"refused without words": {
			refuse(first[0], frrtest.Answer{RC: 1}),
			[]frr.Edit{addOne},
			slices.Concat(head, first[:1], []string{"end"}),
			`network 10.255.0.1/32: line "configure terminal": bgpd refused it (1): no words`,
		},
		"another instance": {
			nil,
			[]frr.Edit{{Verb: frr.AddNetwork, ASN: 65002, Prefix: one}},
			head,
			"network 10.255.0.1/32: not the BGP instance that was planned for: router bgp 65001 runs, router bgp 65002 was there",
		},
		"no instance": {
			refuse(frr.CommandConfig, frrtest.Answer{Text: "frr version 10.3\n"}),
			[]frr.Edit{addOne},
			head,
			"network 10.255.0.1/32: not the BGP instance that was planned for: no BGP instance in the default VRF, router bgp 65001 was there",
		},
		"not shown": {
			refuse(frr.CommandConfig, frrtest.Answer{Text: fmt.Sprintf(config, "")}),
			[]frr.Edit{addOne},
			slices.Concat(head, first, head[1:]),
			"network 10.255.0.1/32: bgpd accepted it, and its running configuration doesn't show it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := dir(t)
			s := frrtest.Serve(t, d, "bgpd", bgpd(tt.special))
			r := open(t, d, 0)
			err := r.Apply(t.Context(), tt.edits)
			if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
			var ee *frr.EditError
			if err != nil && !errors.As(err, &ee) {
				t.Errorf("%T", err)
			}
			if diff := cmp.Diff(tt.lines, s.Lines()); diff != "" {
				t.Error(diff)
			}
			if r.RoundTrips() != uint64(len(tt.lines)) {
				t.Errorf("%d round trips", r.RoundTrips())
			}
		})
	}
}

// A connection that ends under a line leaves unknown whether it was executed: nothing is sent again.
func TestApplyClosed(t *testing.T) {
	d := dir(t)
	line := "network 10.255.0.1/32 route-map VTEPD"
	s := frrtest.Serve(t, d, "bgpd", bgpd(map[string]frrtest.Answer{line: {Close: true}}))
	err := open(t, d, 0).Apply(t.Context(), []frr.Edit{addOne, addTwo})
	want := `network 10.255.0.1/32: line "` + line + `": frr: bgpd: socket ` + d + `/bgpd.vty: "` + line + `": bgpd closed the connection`
	var ee *frr.EditError
	if err == nil || err.Error() != want || !errors.As(err, &ee) || ee.Line != line || !errors.Is(err, frr.ErrUnreachable) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if got := s.Lines(); len(got) != 6 || got[5] != line {
		t.Errorf("lines: %q", got)
	}
}

// An end of ctx is seen between two edits, not inside one.
func TestApplyCanceled(t *testing.T) {
	d := dir(t)
	ctx, cancel := context.WithCancel(t.Context())
	script := bgpd(nil)
	s := frrtest.Serve(t, d, "bgpd", func(line string) frrtest.Answer {
		if line == "router bgp 65001" {
			cancel()
		}
		return script(line)
	})
	err := open(t, d, 0).Apply(ctx, []frr.Edit{addOne, addTwo})
	var ee *frr.EditError
	if err == nil || err.Error() != "network 10.255.0.2/32: not begun: context canceled" || !errors.As(err, &ee) || ee.Edit != addTwo || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := s.Lines(); len(got) != 7 || got[6] != "end" {
		t.Errorf("lines: %q", got)
	}
}

// A daemon that restarted between two looks is connected to again, once.
func TestReconnect(t *testing.T) {
	d := dir(t)
	s := frrtest.Serve(t, d, "bgpd", bgpd(map[string]frrtest.Answer{
		frr.CommandVRFs: {Text: `{"vrfs":{"default":{"routerId":"10.0.0.1"}}}`},
	}))
	r := open(t, d, 0)
	for range 3 {
		o, err := r.Observe(t.Context(), frr.Query{Config: true})
		if err != nil || o.Instance != (frr.Instance{ASN: 65001, RouterID: netip.MustParseAddr("10.0.0.1")}) {
			t.Fatal(o, err)
		}
		s.Drop()
	}
	want := strings.Repeat("enable\nshow running-config\nshow bgp vrfs json\n", 3)
	if diff := cmp.Diff(want, strings.Join(s.Lines(), "\n")+"\n"); diff != "" {
		t.Error(diff)
	}
	s.Stop()
	if _, err := r.Observe(t.Context(), frr.Query{Config: true}); !errors.Is(err, frr.ErrUnreachable) {
		t.Error(err)
	}
}

// recorded answers every command from what a real daemon of that version said.
func recorded(t *testing.T, version string, waiting bool) func(string) frrtest.Answer {
	t.Helper()
	updates := "sent"
	if waiting {
		updates = "waiting"
	}
	files := map[string]string{
		frr.CommandConfig: "config.txt", frr.CommandVRFs: "vrfs.json", frr.CommandSessions: "neighbors.json",
		frr.CommandVNIs: "vnis.json", frr.CommandType3: "type3.json", frr.CommandEVPNUpdates: "updates-sent.txt",
		"show bgp ipv4 unicast 10.255.0.11/32 json":           "route-local.json",
		"show bgp ipv4 unicast 10.0.0.2/32 json":              "route-foreign.json",
		"show bgp ipv4 unicast update-groups":                 "updates-" + updates + ".txt",
		"show bgp ipv4 unicast update-groups advertise-queue": "queue-" + updates + ".txt",
		"show bgp ipv6 unicast 2001:db8:ff::11/128 json":      "route-local6.json",
		"show bgp ipv6 unicast update-groups":                 "updates-sent.txt",
		"show bgp ipv6 unicast update-groups advertise-queue": "queue-sent.txt",
		"show bgp ipv6 unicast 2001:db8:ff::12/128 json":      "route-absent6.json",
	}
	return func(line string) frrtest.Answer {
		name, ok := files[line]
		if !ok {
			return frrtest.Answer{}
		}
		b, err := os.ReadFile(filepath.Join("..", "testdata", version, name))
		if err != nil {
			t.Error(err)
		}
		return frrtest.Answer{Text: string(b)}
	}
}

// TestNonsenseEndsTheSession: a session whose answers make no sense isn't asked again; the next question begins a new one.
func TestNonsenseEndsTheSession(t *testing.T) {
	for name, nonsense := range map[string]frrtest.Answer{"a return code": {RC: 2, Text: "% Unknown command"}, "other words": {Text: "Lorem ipsum"}} {
		t.Run(name, func(t *testing.T) {
			d := dir(t)
			special := map[string]frrtest.Answer{frr.CommandConfig: nonsense}
			s := frrtest.Serve(t, d, "bgpd", bgpd(special))
			r := New(d, time.Second)
			t.Cleanup(func() { r.Close() })
			if _, err := r.Observe(t.Context(), frr.Query{Config: true}); !errors.Is(err, frr.ErrGarbage) {
				t.Fatal(err)
			}
			delete(special, frr.CommandConfig)
			special[frr.CommandVRFs] = frrtest.Answer{Text: `{"vrfs":{"default":{"routerId":"10.0.0.1"}}}`}
			if _, err := r.Observe(t.Context(), frr.Query{Config: true}); err != nil {
				t.Fatal(err)
			}
			if n := len(slices.DeleteFunc(s.Lines(), func(l string) bool { return l != "enable" })); n != 2 {
				t.Errorf("%d sessions: %q", n, s.Lines())
			}
		})
	}
}

func TestObserve(t *testing.T) {
	local, foreign := netip.MustParsePrefix("10.255.0.11/32"), netip.MustParsePrefix("10.0.0.2/32")
	local6, absent6 := netip.MustParsePrefix("2001:db8:ff::11/128"), netip.MustParsePrefix("2001:db8:ff::12/128")
	for _, version := range []string{"8.4.4", "10.3", "10.7.1"} {
		for _, waiting := range []bool{false, true} {
			d := dir(t)
			frrtest.Serve(t, d, "bgpd", recorded(t, version, waiting))
			frrtest.Serve(t, d, "zebra", recorded(t, version, waiting))
			r := open(t, d, 0)
			all := frr.Query{Config: true, Sessions: true, VNIs: true, Type3: true, Prefixes: []netip.Prefix{local, absent6, foreign, local6}}
			o, err := r.Observe(t.Context(), all)
			if err != nil {
				t.Fatal(err)
			}
			if o.Instance.ASN != 65001 || o.Instance.RouterID != netip.MustParseAddr("10.0.0.1") || !o.RouteMap.Ours || !o.EVPN ||
				len(o.Sessions) != 4 || len(o.VNIs) < 2 || len(o.Type3) < 3 || len(o.Routes) != 4 {
				t.Errorf("%s: %+v", version, o)
			}
			route := o.Routes[0]
			sent, queued := []string{"10.1.3.2", "n1"}, []string(nil)
			trips := uint64(2 + 2 + 1 + 1 + 2 + 4 + 2) // two enables; Config; Sessions; VNIs; Type3; routes; families
			if waiting {
				sent, queued = []string{"n1"}, []string{"10.1.3.2"}
				trips++
			}
			if !slices.Equal(route.AdvertisedTo, sent) || !slices.Equal(route.Queued, queued) || !route.Local {
				t.Errorf("%s, waiting %v: %+v", version, waiting, route)
			}
			if r.RoundTrips() != trips {
				t.Errorf("%s: %d round trips", version, r.RoundTrips())
			}
		}
	}
}

// Without an instance bgpd fails the question, and the answer is: nothing.
func TestObserveNoInstance(t *testing.T) {
	d := dir(t)
	frrtest.Serve(t, d, "zebra", func(string) frrtest.Answer { return frrtest.Answer{} })
	frrtest.Serve(t, d, "bgpd", func(line string) frrtest.Answer {
		switch {
		case line == "enable":
			return frrtest.Answer{}
		case line == frr.CommandConfig:
			return frrtest.Answer{Text: "frr version 8.4.4\n"}
		case line == frr.CommandSessions:
			return frrtest.Answer{Text: "{}\n"}
		case line == frr.CommandType3:
			return frrtest.Answer{RC: 1}
		}
		return frrtest.Answer{Text: "{\n  \"warning\":\"Default BGP instance not found\"\n}\n", RC: 1}
	})
	o, err := open(t, d, 0).Observe(t.Context(), frr.Query{Config: true, Sessions: true, VNIs: true, Type3: true, Prefixes: []netip.Prefix{one}})
	if err != nil {
		t.Fatal(err)
	}
	want := frr.Observation{Version: frr.Version{Major: 8, Minor: 4, Patch: 4}, Routes: []frr.Route{{Prefix: one}}, Fingerprint: "331915a6b64e20c2"}
	if diff := cmp.Diff(want, o, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

// The number of round trips doesn't grow with the number of VNIs.
func TestObserveManyVNIs(t *testing.T) {
	d := dir(t)
	const n = 2000
	var vnis, type3 strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&vnis, `,{"vni":%d,"type":"L2","vxlanInterface":"vx%d","vtepIp":"10.255.0.1"}`, i, i)
		fmt.Fprintf(&type3, `,"10.0.0.1:%d":{"rd":"10.0.0.1:%d","[3]:[0]:[32]:[10.255.0.1]":{"ip":"10.255.0.1","advertisedTo":{"n1":{}},"paths":[[{"vni":"%d","valid":true,"local":true,"nexthops":[{"ip":"10.255.0.1","used":true}],"peer":{"peerId":"0.0.0.0"}}]]}}`, i, i, i)
	}
	script := func(line string) frrtest.Answer {
		switch line {
		case frr.CommandVNIs:
			return frrtest.Answer{Text: "[" + vnis.String()[1:] + "]\n"}
		case frr.CommandType3:
			return frrtest.Answer{Text: "{" + type3.String()[1:] + "}\n"}
		case frr.CommandEVPNUpdates:
			return frrtest.Answer{Text: "Update-subgroup 3:\n    Advertise list: not empty\n    Peers:\n      - n1\n"}
		}
		return frrtest.Answer{}
	}
	frrtest.Serve(t, d, "bgpd", script)
	frrtest.Serve(t, d, "zebra", script)
	r := open(t, d, 0)
	o, err := r.Observe(t.Context(), frr.Query{VNIs: true, Type3: true})
	if err != nil || len(o.VNIs) != n || len(o.Type3) != n || r.RoundTrips() != 5 {
		t.Fatal(len(o.VNIs), len(o.Type3), r.RoundTrips(), err)
	}
	if last := o.Type3[n-1]; last.VNI != n || last.AdvertisedTo != nil || !slices.Equal(last.Queued, []string{"n1"}) {
		t.Errorf("%+v", last)
	}
}

// Whatever a socket says, one exchange ends, and with text without NULs, or an error.
func FuzzExchange(f *testing.F) {
	f.Add([]byte("frr version 10.3\n\x00\x00\x00\x00"), 3)
	f.Add([]byte("\x00\x00\x00\x0d"), 1)
	f.Add([]byte("x\x00\x01\x00\x00"), 2)
	f.Fuzz(func(t *testing.T, answer []byte, chunk int) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := theirs.Read(make([]byte, 100)); err != nil {
				return
			}
			for len(answer) > 0 {
				n := min(max(chunk, 1), len(answer))
				if _, err := theirs.Write(answer[:n]); err != nil {
					return
				}
				answer = answer[n:]
			}
		}()
		c := &Client{daemon: "bgpd", path: "x", timeout: time.Minute, trips: new(atomic.Uint64), conn: ours}
		defer c.Close()
		text, _, err := c.Ask(t.Context(), "enable")
		if err != nil && !errors.Is(err, frr.ErrUnreachable) && !errors.Is(err, frr.ErrGarbage) || err == nil && strings.Contains(text, "\x00") {
			t.Errorf("%q, %v", text, err)
		}
		if errors.Is(err, io.EOF) && !errors.Is(err, frr.ErrUnreachable) {
			t.Error(err)
		}
	})
}
