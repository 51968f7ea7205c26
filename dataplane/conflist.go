package dataplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Conflist is a CNI network configuration list that an endpoint can stand on: its first plugin is ipvlan in mode l3, which
// takes its addresses from static IPAM, which takes them from the capability `ips`.
type Conflist struct {
	Name    string
	Version string // cniVersion
	Master  string // the first plugin's
	MTU     int    // the first plugin's, in bytes; 0: the master's
	// Plugins are the binaries that are needed, in the chain's order, IPAM's behind the plugin that has it; none twice.
	Plugins []string
	Text    string // the whole of it, as JSON with sorted keys and without space
}

// maxConflist is the size of a conflist in bytes; it is kept in journals.
const maxConflist = 64 << 10

// checkVersions are the CNI versions that have CHECK and that libcni knows.
var checkVersions = []string{"0.4.0", "1.0.0", "1.1.0"}

// cniName is what libcni takes for a network's name.
var cniName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`)

// ParseConflist reads a conflist, or returns all that is wrong with it: each says where, what is wrong, and what would be
// right.
func ParseConflist(data []byte) (Conflist, []string) {
	p := &conflistParser{}
	c := p.parse(data)
	if len(p.problems) > 0 {
		return Conflist{}, p.problems
	}
	return c, nil
}

type conflistParser struct{ problems []string }

func (p *conflistParser) bad(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

func (p *conflistParser) parse(data []byte) (c Conflist) {
	top, err := decodeObject(data)
	if err != nil {
		p.bad("is no CNI conflist: %v; must be one JSON object with cniVersion, name and plugins", err)
		return c
	}
	p.spelling("", top, "cniVersion", "name", "plugins", "disableCheck", "srv6")
	if c.Version, _ = top["cniVersion"].(string); !slices.Contains(checkVersions, c.Version) {
		p.bad("cniVersion is %s; must be one of %s, which have CHECK", show(top["cniVersion"]), strings.Join(checkVersions, ", "))
	}
	if c.Name, _ = top["name"].(string); !cniName.MatchString(c.Name) || len(c.Name) > 63 {
		p.bad("name is %s; must be 1 to 63 letters, digits, '.', '-' and '_', the first a letter or a digit", show(top["name"]))
	}
	if v, ok := top["disableCheck"]; ok && v != false {
		p.bad("disableCheck is %s; leave it out: CHECK is how drift is found", show(v))
	}
	p.noSRv6("", top)
	list, ok := top["plugins"].([]any)
	if !ok || len(list) == 0 {
		p.bad("plugins is %s; must be a list that begins with the plugin ipvlan", show(top["plugins"]))
		return c
	}
	entries := make([]map[string]any, len(list))
	for i, v := range list {
		if entries[i], ok = v.(map[string]any); !ok {
			p.bad("plugins[%d] is %s; must be an object with a type", i, show(v))
		}
	}
	if len(p.problems) > 0 && slices.ContainsFunc(entries, func(e map[string]any) bool { return e == nil }) {
		return c
	}
	for i, e := range entries {
		p.entry(i, e, &c)
	}
	p.conditions(entries)
	c.Master, _ = entries[0]["master"].(string)
	if entries[0]["type"] == string(IPVLAN) && !linkName(c.Master) {
		p.bad("plugins[0].master is %s; must name the link to sit on, such as eth1", show(entries[0]["master"]))
	}
	if v, ok := entries[0]["mtu"]; ok {
		n, isNumber := v.(json.Number)
		if mtu, err := strconv.Atoi(string(n)); !isNumber || err != nil || mtu < 0 || mtu > 65535 {
			p.bad("plugins[0].mtu is %s; must be a number from 0 to 65535", show(v))
		} else {
			c.MTU = mtu
		}
	}
	text, err := json.Marshal(top)
	if err != nil {
		p.bad("can't be written again: %v", err)
	}
	if len(text) > maxConflist {
		p.bad("is longer than %d bytes; no conflist needs that much", maxConflist)
	}
	c.Text = string(text)
	return c
}

// entry checks what holds for every plugin of the chain, and notes which binaries it needs.
func (p *conflistParser) entry(i int, e map[string]any, c *Conflist) {
	at := fmt.Sprintf("plugins[%d]", i)
	p.spelling(at+".", e, "type", "mode", "master", "mtu", "ipam", "capabilities", "ips", "runtimeConfig", "args", "prevResult", "srv6")
	p.noSRv6(at+".", e)
	binary := func(where string, v any) {
		s, ok := v.(string)
		if !ok || !cniName.MatchString(s) || len(s) > 255 {
			p.bad("%s is %s; must be the name of a plugin's binary", where, show(v))
		} else if !slices.Contains(c.Plugins, s) {
			c.Plugins = append(c.Plugins, s)
		}
	}
	binary(at+".type", e["type"])
	if i > 0 && e["type"] == string(IPVLAN) {
		p.bad("%s is ipvlan; must be the first of the chain, and the only one: it makes the link that the others work on", at)
	}
	for _, key := range []string{"ips", "runtimeConfig", "prevResult"} {
		if v, ok := e[key]; ok {
			p.bad("%s.%s is %s; leave it out: addresses come from the endpoint's own `address`", at, key, show(v))
		}
	}
	if args, ok := e["args"].(map[string]any); ok {
		if cni, ok := args["cni"].(map[string]any); ok {
			if v, ok := cni["ips"]; ok {
				p.bad("%s.args.cni.ips is %s; leave it out: addresses come from the endpoint's own `address`", at, show(v))
			}
		}
	}
	if v, ok := e["ipam"]; ok {
		ipam, ok := v.(map[string]any)
		if !ok {
			p.bad("%s.ipam is %s; must be an object with type: static", at, show(v))
			return
		}
		p.spelling(at+".ipam.", ipam, "type", "addresses", "routes")
		if v, ok := ipam["type"]; ok {
			binary(at+".ipam.type", v)
		}
		if v, ok := ipam["addresses"]; ok {
			p.bad("%s.ipam.addresses is %s; leave it out: addresses come from the endpoint's own `address`", at, show(v))
		}
		if v, ok := ipam["routes"]; ok {
			p.bad("%s.ipam.routes is %s; leave it out: the old and the new attachment stand side by side, and a route can be only on one", at, show(v))
		}
	}
	if v, ok := e["capabilities"]; ok {
		caps, ok := v.(map[string]any)
		if !ok {
			p.bad("%s.capabilities is %s; must be an object with ips: true", at, show(v))
			return
		}
		p.spelling(at+".capabilities.", caps, "ips")
	}
}

// condition is one of the four that one and the same plugin entry must meet.
type condition struct {
	field string
	want  string
	get   func(map[string]any) any
}

var conditions = []condition{
	{"type", `"ipvlan"`, func(e map[string]any) any { return e["type"] }},
	{"mode", `"l3"`, func(e map[string]any) any { return e["mode"] }},
	{"ipam.type", `"static"`, func(e map[string]any) any { m, _ := e["ipam"].(map[string]any); return m["type"] }},
	{"capabilities.ips", "true", func(e map[string]any) any { m, _ := e["capabilities"].(map[string]any); return m["ips"] }},
}

func (c condition) met(e map[string]any) bool { return show(c.get(e)) == c.want }

// conditions says what the first entry lacks of the four conditions, and which other entry has it in vain.
func (p *conflistParser) conditions(entries []map[string]any) {
	for _, c := range conditions {
		if c.met(entries[0]) {
			continue
		}
		elsewhere := ""
		for i, e := range entries[1:] {
			if c.met(e) {
				elsewhere = fmt.Sprintf("; that of plugins[%d] doesn't count", i+1)
				break
			}
		}
		p.bad("plugins[0].%s is %s; must be %s in the same entry as the rest%s", c.field, show(c.get(entries[0])), c.want, elsewhere)
	}
}

// spelling refuses keys that differ from known ones in case alone: the plugins' own parser takes them for those.
func (p *conflistParser) spelling(at string, m map[string]any, known ...string) {
	for _, k := range sortedKeys(m) {
		for _, want := range known {
			if k != want && strings.EqualFold(k, want) {
				p.bad("%s%s must be spelled %s", at, cutText(k), want)
			}
		}
	}
}

func (p *conflistParser) noSRv6(at string, m map[string]any) {
	if v, ok := m["srv6"]; ok {
		p.bad("%ssrv6 is %s; leave it out: SRv6 is not supported over a CNI attachment, which carries VXLAN alone", at, show(v))
	}
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// decodeObject reads exactly one JSON object.
func decodeObject(data []byte) (map[string]any, error) {
	if len(data) > maxConflist {
		return nil, fmt.Errorf("longer than %d bytes", maxConflist)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("empty")
		}
		if at, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("at byte %d: %w", at.Offset, err)
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("at byte %d: something follows the object", d.InputOffset())
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s, not an object", show(v))
	}
	return m, nil
}

// show is a JSON value in a message.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "missing"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("%q", cutText(v))
	}
	return cutText(fmt.Sprint(v))
}

func cutText(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// linkName reports whether the kernel takes s for a link's name, and a message or a line can hold it.
func linkName(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || r == '/' || r == ':' || r == '%'
	})
}
