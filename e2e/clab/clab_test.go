package clab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vtepd/daemon/config"
)

// The files that the project ships are test inputs.
func TestShippedTopologies(t *testing.T) {
	files, err := filepath.Glob("../../containerlab/*.clab.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no topologies: %v", err)
	}
	for _, f := range files {
		topo, err := ReadFile(f)
		if err != nil {
			t.Errorf("ReadFile(%s):\n%v", f, err)
			continue
		}
		// containerlab refuses a source that isn't there.
		for _, n := range topo.Nodes {
			for _, b := range n.Binds {
				if _, err := os.Stat(filepath.Join(filepath.Dir(f), b.Source)); err != nil {
					t.Errorf("%s: node %s: %v", f, n.Name, err)
				}
			}
		}
	}
}

// So are the configs beside them, which their README has people drop.
func TestShippedConfigs(t *testing.T) {
	files, err := filepath.Glob("../../containerlab/*/leaf*/vtepd.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("%d configs: %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.Parse(f, text)
		if err != nil {
			t.Error(err)
		} else if leaf := filepath.Base(filepath.Dir(f)); c.Node.Name != leaf {
			t.Errorf("%s is for node %q", f, c.Node.Name)
		}
	}
}

func TestParse(t *testing.T) {
	const file = `
name: lab
topology:
  defaults:
    kind: linux
    image: base
    network-mode: none
    env: {A: "1", B: "1", C: "1"}
    exec: [ip link set lo up]
    binds: ["d:/x", "common:/y:ro"]
  kinds:
    linux:
      cmd: from kind
      env: {B: "2", C: "2"}
      sysctls: {net.ipv4.ip_forward: 1}
      exec: ["echo 'a b' c\\ d", ip link set lo up]
  groups:
    router:
      image: frr
      env: {C: "3"}
      binds: ["g:/x"]
  nodes:
    r2: {group: router, hostname: other, labels: {l: ""}, pid-mode: "container:h1", stages: {create: {wait-for: [{node: h1, stage: create}]}}}
    r1:
      group: router
      entrypoint: /sbin/init --x
      cmd: own
      binds: ["n:/x/:rw"]
      exec: [own]
    h1:
  links:
    - endpoints: ["r1:eth1", "r2:eth1"]
    - type: veth
      mtu: 1500
      labels: {a: b}
      endpoints:
        - {node: r1, interface: eth2, mac: "02:00:00:00:00:01"}
        - {node: h1, interface: eth1}
`
	got, err := Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	exec := [][]string{{"ip", "link", "set", "lo", "up"}, {"echo", "a b", "c d"}}
	sysctls := []Setting{{"net.ipv4.ip_forward", "1"}}
	want := &Topology{
		Name: "lab", Prefix: "clab",
		Nodes: []Node{{
			Name: "h1", Pos: Pos{"f", 30, 5}, Kind: "linux", Image: "base", Cmd: []string{"from", "kind"},
			Exec: exec, Binds: []Bind{{"d", "/x", false}, {"common", "/y", true}},
			Env: []Setting{{"A", "1"}, {"B", "2"}, {"C", "2"}}, Sysctls: sysctls, NetworkMode: "none", Hostname: "h1",
		}, {
			Name: "r1", Pos: Pos{"f", 24, 5}, Kind: "linux", Group: "router", Image: "frr",
			Entrypoint: []string{"/sbin/init", "--x"}, Cmd: []string{"own"},
			Exec: append(exec[:2:2], []string{"own"}), Binds: []Bind{{"n", "/x", false}, {"common", "/y", true}},
			Env: []Setting{{"A", "1"}, {"B", "2"}, {"C", "3"}}, Sysctls: sysctls, NetworkMode: "none", Hostname: "r1",
		}, {
			Name: "r2", Pos: Pos{"f", 23, 5}, Kind: "linux", Group: "router", Image: "frr", Cmd: []string{"from", "kind"},
			Exec: exec, Binds: []Bind{{"g", "/x", false}, {"common", "/y", true}},
			Env: []Setting{{"A", "1"}, {"B", "2"}, {"C", "3"}}, Sysctls: sysctls, Labels: []Setting{{"l", ""}},
			NetworkMode: "none", PidMode: "container:h1", Hostname: "other",
		}},
		Links: []Link{
			{Pos: Pos{"f", 32, 7}, A: Endpoint{"r1", "eth1", ""}, B: Endpoint{"r2", "eth1", ""}, MTU: 9500},
			{Pos: Pos{"f", 33, 7}, A: Endpoint{"r1", "eth2", "02:00:00:00:00:01"}, B: Endpoint{"h1", "eth1", ""}, MTU: 1500},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Parse (-want +got):\n%s", d)
	}
}

func TestProblems(t *testing.T) {
	// A whole file with the given node r1 or the given links.
	node := func(s string) string {
		return "name: x\ntopology:\n  nodes:\n    r1: {kind: linux, image: i, network-mode: none, " + s + "}\n    r2: {kind: linux, image: i, network-mode: none}"
	}
	links := func(s string) string { return node("") + "\n  links:\n  - " + s }
	tests := []struct{ name, file, want string }{
		{"empty", "", "f:1:1: the file is empty; a topology has name and topology"},
		{"comment alone", "# x\n", "f:1:1: the file is empty; a topology has name and topology"},
		{"not YAML", "name: x\n\ty: z", "f:2:1: not YAML: found a tab character that violates indentation"},
		{"two documents", "name: x\n---\nname: y\n", "f:3:1: a second document; a topology is one"},
		{"a list", "- x", "f:1:1: a list; a mapping is wanted"},
		{"null", "~", "f:1:1: nothing; a mapping is wanted"},
		{"no topology", "name: x", "f:1:1: topology: missing"},
		{"no name", "topology:\n  nodes:\n    r1: {kind: linux, image: i, network-mode: none}", "f:1:1: name: missing"},
		{"empty name", "name: ''\ntopology: {nodes: {r1: {kind: linux, image: i, network-mode: none}}}", "f:1:7: name: empty; a text is wanted"},
		{"lab name", "name: a b\ntopology: {nodes: {r1: {kind: linux, image: i, network-mode: none}}}", `f:1:7: name: "a b" has other than letters, digits, '.', '_' and '-'`},
		{"unknown at the top", node("") + "\nsettings: {}", "f:6:1: settings: unknown field"},
		{"unknown in topology", node("") + "\n  foo: {}", "f:6:3: topology.foo: unknown field"},
		{"management network", node("") + "\nmgmt: {network: none}", "f:6:1: mgmt: unknown field"},
		{"unknown in a node", node("startup-config: x"), "f:4:53: topology.nodes.r1.startup-config: unknown field"},
		{"twice", node("cmd: x, cmd: y"), "f:4:61: topology.nodes.r1.cmd: twice; first at f:4:53"},
		{"no nodes", "name: x\ntopology: {}", "f:2:11: topology.nodes: missing"},
		{"empty nodes", "name: x\ntopology: {nodes: {}}", "f:2:19: topology.nodes: no node"},
		{"null topology", "name: x\ntopology:", "f:2:10: topology: nothing; a mapping is wanted"},
		{"node without anything", "name: x\ntopology: {nodes: {r1: }}", "f:2:20: topology.nodes.r1.image: missing\n" +
			"f:2:20: topology.nodes.r1.kind: missing\n" +
			"f:2:20: topology.nodes.r1.network-mode: missing; the management network is not known here, so none or container:NODE is wanted"},
		{"node name", "name: x\ntopology: {nodes: {r: {kind: linux, image: i, network-mode: none}}}", `f:2:20: topology.nodes: node name "r": two or more letters, digits, '.', '_' and '-' are wanted`},
		{"kind", strings.Replace(node(""), "kind: linux", "kind: nokia_srlinux", 1), `f:4:16: topology.nodes.r1.kind: kind "nokia_srlinux": only linux is known here`},
		{"kind in kinds", node("") + "\n  kinds: {bridge: {}}", `f:6:11: topology.kinds: kind "bridge": only linux is known here`},
		{"group", node("group: g"), `f:4:60: topology.nodes.r1.group: no group "g"`},
		{"wrong type", node("cmd: [a]"), "f:4:58: topology.nodes.r1.cmd: a list; a text is wanted"},
		{"null value", node("cmd: "), "f:4:58: topology.nodes.r1.cmd: nothing; a text is wanted"},
		{"control character", node(`cmd: "a\nb"`), `f:4:58: topology.nodes.r1.cmd: "a\nb" has a control character`},
		{"a list wanted", node("exec: a"), `f:4:59: topology.nodes.r1.exec: "a"; a list is wanted`},
		{"empty exec", node("exec: ['']"), "f:4:60: topology.nodes.r1.exec[0]: empty; a text is wanted"},
		{"blank exec", node("exec: [' ']"), `f:4:60: topology.nodes.r1.exec[0]: " ": no word`},
		{"open quote", node(`exec: ["a 'b"]`), `f:4:60: topology.nodes.r1.exec[0]: "a 'b": a ' without its other`},
		{"restart policy", node("restart-policy: maybe"), `f:4:69: topology.nodes.r1.restart-policy: "maybe": no, on-failure, always or unless-stopped is wanted`},
		{"unprivileged", node("privileged: false"), `f:4:65: topology.nodes.r1.privileged: "false": only true is known here; a node sets addresses and routes`},
		{"network mode", strings.Replace(node(""), "mode: none", "mode: host", 1), `f:4:47: topology.nodes.r1.network-mode: "host": none or container:NODE is wanted`},
		{"no such node", strings.Replace(node(""), "mode: none", "mode: container:r3", 1), `f:4:47: topology.nodes.r1.network-mode: no node "r3"`},
		{"itself", strings.Replace(node(""), "mode: none", "mode: container:r1", 1), "f:4:47: topology.nodes.r1.network-mode: the node itself"},
		{"pid mode", node("pid-mode: host"), `f:4:63: topology.nodes.r1.pid-mode: "host": only container:NODE is known here`},
		{"no such node for processes", node("pid-mode: container:r3"), `f:4:63: topology.nodes.r1.pid-mode: no node "r3"`},
		{"its own processes", node("pid-mode: container:r1"), "f:4:63: topology.nodes.r1.pid-mode: the node itself"},
		{"processes before their node", node("pid-mode: container:r2"), "f:4:63: topology.nodes.r1.pid-mode: stages: {create: {wait-for: [{node: r2, stage: create}]}} is wanted beside it: containerlab doesn't make that node first by itself"},
		{"processes of processes", node("pid-mode: container:r3") + "\n    r3: {kind: linux, image: i, network-mode: container:r2}", `f:4:63: topology.nodes.r1.pid-mode: node "r3" has not all namespaces of its own`},
		{"network of one with another's processes", strings.Replace(node(""), "mode: none, ", "mode: container:r3", 1) + "\n    r3: {kind: linux, image: i, network-mode: none, pid-mode: container:r2, stages: {create: {wait-for: [{node: r2, stage: create}]}}}", `f:4:47: topology.nodes.r1.network-mode: node "r3" has not all namespaces of its own`},
		{"a wait for another", node("stages: {create: {wait-for: [{node: r2, stage: create}]}}"), `f:4:5: topology.nodes.r1.stages: a wait for "r2"; only one for the node of pid-mode is known here`},
		{"another stage", node("stages: {healthy: {}}"), "f:4:62: topology.nodes.r1.stages.healthy: unknown field"},
		{"more of a stage", node("stages: {create: {exec: []}}"), "f:4:71: topology.nodes.r1.stages.create.exec: unknown field"},
		{"a wait for a stage", node("stages: {create: {wait-for: [{node: r2, stage: healthy}]}}"), "f:4:82: topology.nodes.r1.stages.create.wait-for[0]: {node: NODE, stage: create} is wanted; no other is known here"},
		{"stages of a group", node("") + "\n  groups: {g: {stages: {}}}", "f:6:16: topology.groups.g.stages: known here in nodes alone"},
		{"sysctls beside", strings.Replace(node("sysctls: {net.a: 1}"), "mode: none", "mode: container:r2", 1), `f:4:47: topology.nodes.r1.network-mode: sysctls are not possible in the network namespace of node "r2"`},
		{"sysctl", node("sysctls: {kernel.x: 1}"), `f:4:63: topology.nodes.r1.sysctls: "kernel.x" is not net.…, the only ones that a network namespace has`},
		{"env", node("env: {1A: x}"), `f:4:59: topology.nodes.r1.env: "1A" is not a letter or '_', then letters, digits and '_'`},
		{"bind", node("binds: [a]"), `f:4:61: topology.nodes.r1.binds[0]: "a": SOURCE:TARGET or SOURCE:TARGET:ro is wanted`},
		{"bind target", node("binds: ['a:b']"), `f:4:61: topology.nodes.r1.binds[0]: "a:b": the target is not an absolute path`},
		{"bind root", node("binds: ['a:/x/..']"), `f:4:61: topology.nodes.r1.binds[0]: "a:/x/..": the target is the node's root`},
		{"bind mode", node("binds: ['a:/b:z']"), `f:4:61: topology.nodes.r1.binds[0]: "a:/b:z": mode "z": ro or rw is wanted`},
		{"bind outside", node("binds: ['a/../../c:/b']"), `f:4:61: topology.nodes.r1.binds[0]: "a/../../c:/b": the source is outside the directory of the topology`},
		{"bind absolute", node("binds: ['/a:/b']"), `f:4:61: topology.nodes.r1.binds[0]: "/a:/b": an absolute source is the host's own; only ro is known here`},
		{"bind variable", node("binds: ['__clabNodeDir__/a:/b']"), `f:4:61: topology.nodes.r1.binds[0]: "__clabNodeDir__/a:/b": '~' and __clab…__ variables are not known here`},
		{"anchor", node("cmd: &x a"), "f:4:58: topology.nodes.r1.cmd: anchors and aliases are not known here"},
		{"alias", node("cmd: &x a, entrypoint: *x"), "f:4:58: topology.nodes.r1.cmd: anchors and aliases are not known here\nf:4:76: topology.nodes.r1.entrypoint: anchors and aliases are not known here"},
		{"no such anchor", node("cmd: *x"), "f:1:1: not YAML: unknown anchor 'x' referenced"},
		{"merge key", node("<<: {cmd: x}"), "f:4:53: topology.nodes.r1: \"<<\" as a key; a text is wanted"},
		{"link type", links("{type: macvlan, endpoints: []}"), "f:7:12: topology.links[0].type: \"macvlan\": only veth is known here\nf:7:32: topology.links[0].endpoints: 0 ends; a link has two"},
		{"no ends", links("{mtu: 1500}"), "f:7:5: topology.links[0].endpoints: missing"},
		{"one end", links(`{endpoints: ["r1:e"]}`), "f:7:17: topology.links[0].endpoints: 1 ends; a link has two"},
		{"unknown in a link", links(`{endpoints: ["r1:e", "r2:e"], ipv4: []}`), "f:7:35: topology.links[0].ipv4: unknown field"},
		{"end without interface", links(`{endpoints: ["r1", "r2:e"]}`), `f:7:18: topology.links[0].endpoints[0]: "r1": NODE:INTERFACE is wanted`},
		{"long interface", links(`{endpoints: ["r1:abcdefghijklmnop", "r2:e"]}`), `f:7:18: topology.links[0].endpoints[0]: interface name "abcdefghijklmnop": 1 to 15 bytes without '/', ':' or white space are wanted`},
		{"no node at an end", links(`{endpoints: ["r1:e", "r3:e"]}`), `f:7:26: topology.links[0].endpoints[1]: no node "r3"`},
		{"an end twice", links(`{endpoints: ["r1:e", "r1:e"]}`), "f:7:26: topology.links[0].endpoints[1]: r1:e is an end of the link at f:7:18 already"},
		{"mtu", links(`{endpoints: ["r1:e", "r2:e"], mtu: 66000}`), `f:7:40: topology.links[0].mtu: "66000": a number from 68 to 65535 is wanted`},
		{"mac", links(`{type: veth, endpoints: [{node: r1, interface: e, mac: x}, {node: r2, interface: e}]}`), `f:7:60: topology.links[0].endpoints[0].mac: "x": a MAC address such as 02:00:00:00:00:01 is wanted`},
		{"extended without node", links(`{type: veth, endpoints: [{interface: e}, {node: r2}]}`), "f:7:30: topology.links[0].endpoints[0].node: missing\nf:7:46: topology.links[0].endpoints[1].interface: missing"},
		{"brief end in an extended link", links(`{type: veth, endpoints: ["r1:e", {node: r2, interface: e}]}`), `f:7:30: topology.links[0].endpoints[0]: "r1:e"; a mapping is wanted`},
		{"too big", strings.Repeat("#", maxSize+1), "f:1:1: the file has 1048577 bytes; at most 1048576 are read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topo, err := Parse("f", []byte(tt.file))
			if err == nil {
				t.Fatalf("no problem; want:\n%s", tt.want)
			}
			if topo != nil {
				t.Errorf("a topology beside problems")
			}
			if d := cmp.Diff(tt.want, err.Error()); d != "" {
				t.Errorf("problems (-want +got):\n%s", d)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	tests := []struct {
		in   string
		want []string
		err  string
	}{
		{in: ""},
		{in: "a  b\tc", want: []string{"a", "b", "c"}},
		{in: `'a b' "c d" e\ f`, want: []string{"a b", "c d", "e f"}},
		{in: `a'b'"c"`, want: []string{"abc"}},
		{in: `'' ""`, want: []string{"", ""}},
		{in: `"a\"b"`, want: []string{`a"b`}},
		{in: `'a\b'`, want: []string{`a\b`}},
		{in: `a # b`, want: []string{"a"}},
		{in: `a#b`, want: []string{"a#b"}},
		{in: `a "b`, err: `a " without its other`},
		{in: `a\`, err: "ends in a backslash"},
	}
	for _, tt := range tests {
		got, err := Split(tt.in)
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("Split(%q): error %v, want %s", tt.in, err, tt.err)
			}
			continue
		}
		if err != nil || !cmp.Equal(got, tt.want) {
			t.Errorf("Split(%q) = %q, %v, want %q", tt.in, got, err, tt.want)
		}
	}
}

func TestNodes(t *testing.T) {
	topo, err := ReadFile("../../containerlab/evpn-l2.clab.yml")
	if err != nil {
		t.Fatal(err)
	}
	n, ok := topo.Node("vtepd1")
	if !ok || n.NetworkOf() != "leaf1" {
		t.Errorf("vtepd1: %v, network of %q, want leaf1", ok, n.NetworkOf())
	}
	if n, ok := topo.Node("leaf1"); !ok || n.NetworkOf() != "" {
		t.Errorf("leaf1: %v, network of %q, want its own", ok, n.NetworkOf())
	}
	if _, ok := topo.Node("leaf3"); ok {
		t.Error("leaf3 is there")
	}
}

// FuzzParse: whatever the bytes, there is a whole topology or problems that lie
// in the file.
func FuzzParse(f *testing.F) {
	shipped, err := os.ReadFile("../../containerlab/evpn-l2.clab.yml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shipped)
	f.Add([]byte("name: x\ntopology: {nodes: {r1: {kind: linux, image: i, network-mode: none}}, links: [{endpoints: [r1:a, r1:b]}]}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		topo, err := Parse("f", data)
		if err != nil {
			ps, ok := err.(Problems)
			if !ok || len(ps) == 0 {
				t.Fatalf("error %T %v", err, err)
			}
			lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 2
			for _, p := range ps {
				if p.Pos.File != "f" || p.Pos.Line < 1 || p.Pos.Line > lines || p.Pos.Column < 1 || p.Msg == "" {
					t.Fatalf("problem %+v of a file with %d lines", p, lines)
				}
			}
			return
		}
		for _, n := range topo.Nodes {
			if n.Name == "" || n.Kind == "" || n.Image == "" || n.NetworkMode == "" {
				t.Fatalf("node %+v", n)
			}
		}
		for _, l := range topo.Links {
			for _, e := range []Endpoint{l.A, l.B} {
				if _, ok := topo.Node(e.Node); !ok || !interfaceName(e.Interface) {
					t.Fatalf("link %+v", l)
				}
			}
		}
	})
}
