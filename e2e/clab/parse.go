package clab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxSize is far above any lab that a person writes.
const maxSize = 1 << 20

// defaultMTU is containerlab's for every link without one.
const defaultMTU = 9500

var (
	labName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)
	nodeName  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`) // Docker wants two characters
	sysctlKey = regexp.MustCompile(`^net(\.[a-zA-Z0-9_-]+)+$`)
	envKey    = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	macAddr   = regexp.MustCompile(`^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}$`)
	yamlLine  = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
)

// Parse reads a topology. The name is that of the file, for the problems. The
// error is Problems.
func Parse(name string, data []byte) (*Topology, error) {
	p := parser{file: name}
	t := p.parse(data)
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int {
			return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Column, b.Pos.Column),
				cmp.Compare(a.Field, b.Field), cmp.Compare(a.Msg, b.Msg))
		})
		return nil, p.problems
	}
	return t, nil
}

type parser struct {
	file     string
	problems Problems
}

func (p *parser) at(n *yaml.Node) Pos { return Pos{p.file, n.Line, n.Column} }

func (p *parser) bad(n *yaml.Node, field, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.at(n), field, fmt.Sprintf(format, args...)})
}

func (p *parser) badFile(line int, format string, args ...any) *Topology {
	p.problems = append(p.problems, Problem{Pos{p.file, line, 1}, "", fmt.Sprintf(format, args...)})
	return nil
}

// parse reads the whole file.
func (p *parser) parse(data []byte) *Topology {
	if len(data) > maxSize {
		return p.badFile(1, "the file has %d bytes; at most %d are read", len(data), maxSize)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return p.badFile(1, "the file is empty; a topology has name and topology")
	case err != nil:
		return p.badYAML(err)
	}
	var more yaml.Node
	switch err := dec.Decode(&more); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return p.badYAML(err)
	default:
		p.bad(more.Content[0], "", "a second document; a topology is one")
		return nil
	}

	var d draft
	fields := p.mapping(doc.Content[0], "")
	for _, f := range fields {
		switch f.name {
		case "name":
			d.name = p.text(f, "name")
			if d.name != "" && !labName.MatchString(d.name) {
				p.bad(f.value, "name", "%q has other than letters, digits, '.', '_' and '-'", d.name)
			}
		case "prefix":
			s, _ := p.anyScalar(f.value, "prefix")
			d.prefix = &s
		case "topology":
			d.topology(p, f.value)
		default:
			p.unknown(f, "")
		}
	}
	for _, want := range []string{"name", "topology"} {
		if len(fields) > 0 && !slices.ContainsFunc(fields, func(f field) bool { return f.name == want }) {
			p.bad(doc.Content[0], want, "missing")
		}
	}
	return d.resolve(p)
}

func (p *parser) badYAML(err error) *Topology {
	line, msg := 1, err.Error()
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		msg = msg[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil && n > 0 {
			line = n
		}
	}
	return p.badFile(line, "not YAML: %s", msg)
}

// draft is the file as written, before inheritance.
type draft struct {
	name     string
	prefix   *string
	defaults definition
	kinds    map[string]definition
	groups   map[string]definition
	nodes    map[string]definition
	links    []draftLink
}

// definition is what can be said of a node, at any level.
type definition struct {
	pos                            Pos
	key                            *yaml.Node
	kind, group, image             said[string]
	hostname, network, pid         said[string]
	waitFor                        []string // nodes that containerlab makes before
	cmd, entrypoint                said[[]string]
	exec                           []string
	binds                          []said[Bind]
	env, sysctls, labels           map[string]string
	restart, privileged, positions said[string] // read for their form alone: a lab of namespaces has no use for them
}

// said is a value and where it was said; node is nil where it wasn't.
type said[T any] struct {
	value T
	node  *yaml.Node
}

func pick[T any](levels []definition, get func(definition) said[T]) said[T] {
	for _, d := range levels {
		if v := get(d); v.node != nil {
			return v
		}
	}
	return said[T]{}
}

func (d *draft) topology(p *parser, n *yaml.Node) {
	levels := func(n *yaml.Node, path string, check func(f field)) map[string]definition {
		m := map[string]definition{}
		for _, f := range p.mapping(n, path) {
			if check != nil {
				check(f)
			}
			m[f.name] = p.definition(f.key, f.value, path+"."+f.name)
		}
		return m
	}
	for _, f := range p.mapping(n, "topology") {
		switch path := "topology." + f.name; f.name {
		case "defaults":
			d.defaults = p.definition(f.key, f.value, path)
		case "kinds":
			d.kinds = levels(f.value, path, func(f field) { p.kind(f.key, path, f.name) })
		case "groups":
			d.groups = levels(f.value, path, nil)
		case "nodes":
			d.nodes = levels(f.value, path, func(f field) {
				if !nodeName.MatchString(f.name) {
					p.bad(f.key, path, "node name %q: two or more letters, digits, '.', '_' and '-' are wanted", f.name)
				}
			})
			if len(d.nodes) == 0 && f.value.Kind == yaml.MappingNode {
				p.bad(f.value, path, "no node")
			}
		case "links":
			d.links = p.links(f.value, path)
		default:
			p.unknown(f, "topology")
		}
	}
	if n.Kind == yaml.MappingNode && d.nodes == nil {
		p.bad(n, "topology.nodes", "missing")
	}
}

func (p *parser) kind(n *yaml.Node, path, kind string) {
	if kind != "" && kind != "linux" {
		p.bad(n, path, "kind %q: only linux is known here", kind)
	}
}

func (p *parser) definition(key, n *yaml.Node, path string) definition {
	d := definition{pos: p.at(key), key: key}
	if isNull(n) {
		return d
	}
	for _, f := range p.mapping(n, path) {
		sub := path + "." + f.name
		text := func() said[string] { return said[string]{p.text(f, sub), f.value} }
		switch f.name {
		case "kind":
			d.kind = text()
			p.kind(f.value, sub, d.kind.value)
		case "group":
			d.group = text()
		case "image":
			d.image = text()
		case "hostname":
			d.hostname = text()
		case "restart-policy":
			d.restart = text()
			if !slices.Contains([]string{"", "no", "on-failure", "always", "unless-stopped"}, d.restart.value) {
				p.bad(f.value, sub, "%q: no, on-failure, always or unless-stopped is wanted", d.restart.value)
			}
		case "privileged":
			d.privileged = text()
			if v := d.privileged.value; v != "" && v != "true" {
				p.bad(f.value, sub, "%q: only true is known here; a node sets addresses and routes", d.privileged.value)
			}
		case "position":
			d.positions = text()
		case "network-mode":
			d.network = text()
			if m := d.network.value; m != "" && m != "none" && !strings.HasPrefix(m, "container:") {
				p.bad(f.value, sub, "%q: none or container:NODE is wanted", m)
			}
		case "pid-mode":
			d.pid = text()
			if m := d.pid.value; m != "" && container(m) == "" {
				p.bad(f.value, sub, "%q: only container:NODE is known here", m)
			}
		case "stages":
			if !strings.HasPrefix(path, "topology.nodes.") {
				p.bad(f.key, sub, "known here in nodes alone")
				continue
			}
			d.waitFor = p.stages(f.value, sub)
		case "cmd":
			d.cmd = said[[]string]{p.words(f.value, sub, p.text(f, sub)), f.value}
		case "entrypoint":
			d.entrypoint = said[[]string]{p.words(f.value, sub, p.text(f, sub)), f.value}
		case "exec":
			for i, n := range p.sequence(f.value, sub) {
				at := fmt.Sprintf("%s[%d]", sub, i)
				line := p.scalar(n, at)
				if p.words(n, at, line) != nil {
					d.exec = append(d.exec, line)
				}
			}
		case "binds":
			for i, n := range p.sequence(f.value, sub) {
				at := fmt.Sprintf("%s[%d]", sub, i)
				if b, ok := p.bind(n, at, p.scalar(n, at)); ok {
					d.binds = append(d.binds, said[Bind]{b, n})
				}
			}
		case "env":
			d.env = p.settings(f.value, sub, envKey, "a letter or '_', then letters, digits and '_'")
		case "sysctls":
			d.sysctls = p.settings(f.value, sub, sysctlKey, "net.…, the only ones that a network namespace has")
		case "labels":
			d.labels = p.settings(f.value, sub, nil, "")
		default:
			p.unknown(f, path)
		}
	}
	return d
}

// stages reads which nodes are made before one: the only thing about the stages of a deployment that is known here.
func (p *parser) stages(n *yaml.Node, path string) (waitFor []string) {
	for _, stage := range p.mapping(n, path) {
		if stage.name != "create" {
			p.unknown(stage, path)
			continue
		}
		path := path + ".create"
		for _, f := range p.mapping(stage.value, path) {
			if f.name != "wait-for" {
				p.unknown(f, path)
				continue
			}
			for i, n := range p.sequence(f.value, path+".wait-for") {
				at := fmt.Sprintf("%s.wait-for[%d]", path, i)
				var node, stage string
				for _, f := range p.mapping(n, at) {
					switch f.name {
					case "node":
						node = p.text(f, at+".node")
					case "stage":
						stage = p.text(f, at+".stage")
					default:
						p.unknown(f, at)
					}
				}
				if node == "" || stage != "create" {
					p.bad(n, at, "{node: NODE, stage: create} is wanted; no other is known here")
					continue
				}
				waitFor = append(waitFor, node)
			}
		}
	}
	return waitFor
}

func (p *parser) bind(n *yaml.Node, path, s string) (b Bind, ok bool) {
	parts := strings.Split(s, ":")
	switch {
	case s == "":
		return b, false // scalar said why
	case len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "":
		p.bad(n, path, "%q: SOURCE:TARGET or SOURCE:TARGET:ro is wanted", s)
		return b, false
	case strings.ContainsRune(parts[0], '~') || strings.Contains(parts[0], "__clab"):
		p.bad(n, path, "%q: '~' and __clab…__ variables are not known here", s)
		return b, false
	case !strings.HasPrefix(parts[1], "/"):
		p.bad(n, path, "%q: the target is not an absolute path", s)
		return b, false
	}
	b = Bind{Source: clean(parts[0]), Target: clean(parts[1])}
	if b.Target == "/" {
		p.bad(n, path, "%q: the target is the node's root", s)
		return b, false
	}
	if b.Source == ".." || strings.HasPrefix(b.Source, "../") {
		p.bad(n, path, "%q: the source is outside the directory of the topology", s)
		return b, false
	}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			b.ReadOnly = true
		case "rw":
		default:
			p.bad(n, path, "%q: mode %q: ro or rw is wanted", s, parts[2])
			return b, false
		}
	}
	if strings.HasPrefix(b.Source, "/") && !b.ReadOnly {
		p.bad(n, path, "%q: an absolute source is the host's own; only ro is known here", s)
		return b, false
	}
	return b, true
}

func clean(s string) string { return path.Clean(s) }

type draftLink struct {
	Link
	ends [2]*yaml.Node
}

func (p *parser) links(n *yaml.Node, path string) []draftLink {
	var links []draftLink
	for i, n := range p.sequence(n, path) {
		at := fmt.Sprintf("%s[%d]", path, i)
		l := draftLink{Link: Link{Pos: p.at(n), MTU: defaultMTU}}
		brief, ends := true, []*yaml.Node(nil)
		fields := p.mapping(n, at)
		for _, f := range fields {
			if f.name == "type" {
				brief = false
				if t := p.text(f, at+".type"); t != "" && t != "veth" {
					p.bad(f.value, at+".type", "%q: only veth is known here", t)
				}
			}
		}
		for _, f := range fields {
			switch sub := at + "." + f.name; f.name {
			case "type", "labels", "vars": // the latter two are for people and for other tools
			case "mtu":
				s := p.text(f, sub)
				mtu, err := strconv.Atoi(s)
				switch {
				case s == "": // text said why
				case err != nil || mtu < 68 || mtu > 65535:
					p.bad(f.value, sub, "%q: a number from 68 to 65535 is wanted", s)
				default:
					l.MTU = mtu
				}
			case "endpoints":
				ends = p.sequence(f.value, sub)
				if len(ends) != 2 {
					if f.value.Kind == yaml.SequenceNode {
						p.bad(f.value, sub, "%d ends; a link has two", len(ends))
					}
					ends = nil
					continue
				}
				l.A = p.endpoint(ends[0], sub+"[0]", brief)
				l.B = p.endpoint(ends[1], sub+"[1]", brief)
				l.ends = [2]*yaml.Node(ends)
			default:
				p.unknown(f, at)
			}
		}
		if len(fields) > 0 && !slices.ContainsFunc(fields, func(f field) bool { return f.name == "endpoints" }) {
			p.bad(n, at+".endpoints", "missing")
		}
		if ends != nil {
			links = append(links, l)
		}
	}
	return links
}

func (p *parser) endpoint(n *yaml.Node, path string, brief bool) (e Endpoint) {
	if brief {
		s := p.scalar(n, path)
		if s == "" {
			return e
		}
		var ok bool
		if e.Node, e.Interface, ok = strings.Cut(s, ":"); !ok || e.Node == "" {
			p.bad(n, path, "%q: NODE:INTERFACE is wanted", s)
			return Endpoint{}
		}
	} else {
		for _, f := range p.mapping(n, path) {
			switch sub := path + "." + f.name; f.name {
			case "node":
				if e.Node = p.text(f, sub); e.Node == "" {
					return Endpoint{}
				}
			case "interface":
				if e.Interface = p.text(f, sub); e.Interface == "" {
					return Endpoint{}
				}
			case "mac":
				if e.MAC = p.text(f, sub); e.MAC != "" && !macAddr.MatchString(e.MAC) {
					p.bad(f.value, sub, "%q: a MAC address such as 02:00:00:00:00:01 is wanted", e.MAC)
				}
			case "vars":
			default:
				p.unknown(f, path)
			}
		}
		if n.Kind != yaml.MappingNode {
			return Endpoint{}
		}
		if e.Node == "" {
			p.bad(n, path+".node", "missing")
			return Endpoint{}
		}
		if e.Interface == "" {
			p.bad(n, path+".interface", "missing")
			return Endpoint{}
		}
	}
	if !interfaceName(e.Interface) {
		p.bad(n, path, "interface name %q: 1 to 15 bytes without '/', ':' or white space are wanted", e.Interface)
	}
	return e
}

// interfaceName is the kernel's dev_valid_name.
func interfaceName(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r\x00")
}

// resolve applies the inheritance, and checks what names what.
func (d *draft) resolve(p *parser) *Topology {
	t := &Topology{Name: d.name, Prefix: "clab"}
	if d.prefix != nil {
		t.Prefix = *d.prefix
	}
	for _, name := range slices.Sorted(maps.Keys(d.nodes)) {
		t.Nodes = append(t.Nodes, d.node(p, name))
	}
	for _, n := range t.Nodes {
		d.pids(p, t, n)
		of := n.NetworkOf()
		if of == "" {
			continue
		}
		node := d.nodes[n.Name]
		at, field := node.key, "topology.nodes."+n.Name+".network-mode"
		if node.network.node != nil {
			at = node.network.node
		}
		switch other, ok := t.Node(of); {
		case !ok:
			p.bad(at, field, "no node %q", of)
		case of == n.Name:
			p.bad(at, field, "the node itself")
		case other.NetworkOf() != "":
			p.bad(at, field, "node %q has no network namespace of its own", of)
		case other.PidOf() != "":
			p.bad(at, field, "node %q has not all namespaces of its own", of)
		}
		if len(n.Sysctls) > 0 {
			p.bad(at, field, "sysctls are not possible in the network namespace of node %q", of)
		}
	}
	used := map[Endpoint]Pos{}
	for i, l := range d.links {
		for j, e := range []Endpoint{l.A, l.B} {
			field := fmt.Sprintf("topology.links[%d].endpoints[%d]", i, j)
			if e.Node == "" {
				continue // said before
			}
			n, ok := t.Node(e.Node)
			switch key := (Endpoint{Node: e.Node, Interface: e.Interface}); {
			case !ok:
				p.bad(l.ends[j], field, "no node %q", e.Node)
			case n.NetworkOf() != "":
				p.bad(l.ends[j], field, "node %q has no network namespace of its own", e.Node)
			case used[key].Line != 0:
				p.bad(l.ends[j], field, "%s is an end of the link at %s already", e, used[key])
			default:
				used[key] = p.at(l.ends[j])
			}
		}
		t.Links = append(t.Links, l.Link)
	}
	return t
}

// pids checks whose process namespace a node uses. The other is to be there first: of a network namespace's owner
// containerlab sees to that by itself, of this one it doesn't.
func (d *draft) pids(p *parser, t *Topology, n Node) {
	node, of := d.nodes[n.Name], n.PidOf()
	at, field := node.key, "topology.nodes."+n.Name+".pid-mode"
	if node.pid.node != nil {
		at = node.pid.node
	}
	if of == "" {
		for _, name := range node.waitFor {
			p.bad(node.key, "topology.nodes."+n.Name+".stages", "a wait for %q; only one for the node of pid-mode is known here", name)
		}
		return
	}
	switch other, ok := t.Node(of); {
	case !ok:
		p.bad(at, field, "no node %q", of)
	case of == n.Name:
		p.bad(at, field, "the node itself")
	case other.PidOf() != "" || other.NetworkOf() != "":
		p.bad(at, field, "node %q has not all namespaces of its own", of)
	case !slices.Equal(node.waitFor, []string{of}):
		p.bad(at, field, "stages: {create: {wait-for: [{node: %s, stage: create}]}} is wanted beside it: containerlab doesn't make that node first by itself", of)
	}
}

func (d *draft) node(p *parser, name string) Node {
	own := d.nodes[name]
	n := Node{Name: name, Pos: own.pos, NetworkMode: "none"}

	// As containerlab has it: the group of a node can come from its kind, and the
	// kind of a node from its group.
	kind := own.kind
	if kind.node == nil && own.group.node != nil {
		kind = d.groups[own.group.value].kind
	}
	if kind.node == nil {
		kind = d.defaults.kind
	}
	group := own.group
	if group.node == nil {
		group = d.kinds[kind.value].group
	}
	if group.node == nil {
		group = d.defaults.group
	}
	if kind.node == nil {
		p.bad(own.key, "topology.nodes."+name+".kind", "missing")
	}
	if group.node != nil {
		if _, ok := d.groups[group.value]; !ok {
			p.bad(group.node, "topology.nodes."+name+".group", "no group %q", group.value)
		}
	}
	n.Kind, n.Group = kind.value, group.value

	levels := []definition{own, d.groups[group.value], d.kinds[kind.value], d.defaults}
	image := pick(levels, func(d definition) said[string] { return d.image })
	if image.node == nil {
		p.bad(own.key, "topology.nodes."+name+".image", "missing")
	}
	n.Image = image.value
	n.Entrypoint = pick(levels, func(d definition) said[[]string] { return d.entrypoint }).value
	n.Cmd = pick(levels, func(d definition) said[[]string] { return d.cmd }).value
	n.PidMode = pick(levels, func(d definition) said[string] { return d.pid }).value
	n.Hostname = cmp.Or(pick(levels, func(d definition) said[string] { return d.hostname }).value, name)
	network := pick(levels, func(d definition) said[string] { return d.network })
	if network.node == nil {
		p.bad(own.key, "topology.nodes."+name+".network-mode", "missing; the management network is not known here, so none or container:NODE is wanted")
	} else {
		n.NetworkMode = network.value
	}

	env, sysctls, labels := map[string]string{}, map[string]string{}, map[string]string{}
	binds := map[string]Bind{}
	seen := map[string]bool{}
	for _, l := range slices.Backward(levels) {
		maps.Copy(env, l.env)
		maps.Copy(sysctls, l.sysctls)
		maps.Copy(labels, l.labels)
		for _, b := range l.binds {
			binds[b.value.Target] = b.value
		}
		for _, e := range l.exec {
			if !seen[e] {
				seen[e] = true
				words, _ := Split(e) // was split when it was read
				n.Exec = append(n.Exec, words)
			}
		}
	}
	n.Env, n.Sysctls, n.Labels = settings(env), settings(sysctls), settings(labels)
	for _, target := range slices.Sorted(maps.Keys(binds)) {
		n.Binds = append(n.Binds, binds[target])
	}
	return n
}

func settings(m map[string]string) []Setting {
	var s []Setting
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, Setting{k, m[k]})
	}
	return s
}

// field is one entry of a mapping.
type field struct {
	name       string
	key, value *yaml.Node
}

func (p *parser) unknown(f field, path string) {
	if path != "" {
		path += "."
	}
	p.bad(f.key, path+f.name, "unknown field")
}

// mapping returns the entries of a mapping, each key once.
func (p *parser) mapping(n *yaml.Node, path string) []field {
	if !p.plain(n, path) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.bad(n, path, "%s; a mapping is wanted", describe(n))
		return nil
	}
	var fields []field
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if !p.plain(k, path) {
			continue
		}
		if k.Kind != yaml.ScalarNode || k.Tag == "!!merge" {
			p.bad(k, path, "%s as a key; a text is wanted", describe(k))
			continue
		}
		if f := first[k.Value]; f != nil {
			p.bad(k, strings.TrimPrefix(path+"."+k.Value, "."), "twice; first at %s", p.at(f))
			continue
		}
		first[k.Value] = k
		fields = append(fields, field{k.Value, k, v})
	}
	return fields
}

func (p *parser) sequence(n *yaml.Node, path string) []*yaml.Node {
	if !p.plain(n, path) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.bad(n, path, "%s; a list is wanted", describe(n))
		return nil
	}
	return n.Content
}

func (p *parser) text(f field, path string) string { return p.scalar(f.value, path) }

// scalar returns the text of a scalar as written, or a problem and empty: an
// empty text is a problem too, as nothing here has a use for one but prefix and
// the values of maps.
func (p *parser) scalar(n *yaml.Node, path string) string {
	s, ok := p.anyScalar(n, path)
	if ok && s == "" {
		p.bad(n, path, "empty; a text is wanted")
	}
	return s
}

func (p *parser) anyScalar(n *yaml.Node, path string) (string, bool) {
	if !p.plain(n, path) {
		return "", false
	}
	if n.Kind != yaml.ScalarNode || isNull(n) {
		p.bad(n, path, "%s; a text is wanted", describe(n))
		return "", false
	}
	if strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		p.bad(n, path, "%q has a control character", n.Value)
		return "", false
	}
	return n.Value, true
}

// plain refuses anchors and aliases: they can expand without end, and a
// topology has groups and kinds for what they are for.
func (p *parser) plain(n *yaml.Node, path string) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		p.bad(n, path, "anchors and aliases are not known here")
		return false
	}
	return true
}

func (p *parser) settings(n *yaml.Node, path string, key *regexp.Regexp, want string) map[string]string {
	m := map[string]string{}
	for _, f := range p.mapping(n, path) {
		if key != nil && !key.MatchString(f.name) {
			p.bad(f.key, path, "%q is not %s", f.name, want)
		}
		m[f.name], _ = p.anyScalar(f.value, path+"."+f.name)
	}
	return m
}

func (p *parser) words(n *yaml.Node, path, s string) []string {
	if s == "" {
		return nil // scalar said why
	}
	words, err := Split(s)
	switch {
	case err != nil:
		p.bad(n, path, "%q: %v", s, err)
		return nil
	case len(words) == 0:
		p.bad(n, path, "%q: no word", s)
	}
	return words
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	default:
		return strconv.Quote(n.Value)
	}
}

// Split cuts a line into words as containerlab does, which is a POSIX shell's
// way without its expansions: quotes, backslashes, and comments.
func Split(s string) ([]string, error) {
	var (
		words []string
		word  strings.Builder
		in    bool // inside a word
		quote rune
	)
	end := func() {
		if in {
			words = append(words, word.String())
			word.Reset()
			in = false
		}
	}
	runes := []rune(s)
	for i := 0; i < len(runes); i++ {
		switch r := runes[i]; {
		case quote == '\'':
			if r == '\'' {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\\':
			if i++; i == len(runes) {
				return nil, errors.New("ends in a backslash")
			}
			// Inside double quotes a shell keeps the backslash before most characters;
			// containerlab's splitter never does.
			word.WriteRune(runes[i])
			in = true
		case quote == '"':
			if r == '"' {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, in = r, true
		case r == ' ' || r == '\t' || r == '\r' || r == '\n':
			end()
		case r == '#' && !in:
			return words, nil
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a %c without its other", quote)
	}
	end()
	return words, nil
}
