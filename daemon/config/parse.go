package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"vtepd/alloc"
)

// Source is one file's name, as messages are to show it, and its bytes.
type Source struct {
	File string
	Data []byte
}

// Parse reads one file. A non-nil error is a Problems that holds everything
// found wrong.
func Parse(file string, data []byte) (*Config, error) {
	return ParseAll([]Source{{file, data}})
}

// ParseAll reads several files that make up one config: pools, endpoints and
// vnis may be spread over them, any other section is in one of them. A
// non-nil error is a Problems that holds everything found wrong.
func ParseAll(srcs []Source) (*Config, error) {
	if len(srcs) == 0 {
		return nil, Problems{{Pos{"config", 1, 1}, "", "there is no file; at least one is needed"}}
	}
	var (
		roots []*node
		probs Problems
	)
	for _, src := range srcs {
		root, ps := parseTree(src.File, src.Data)
		roots, probs = append(roots, root), append(probs, ps...)
	}
	if len(probs) > 0 {
		// What the broken file would have held is unknown, so nothing can be
		// said about the rest.
		probs.sort()
		return nil, probs
	}
	root, probs := merge(roots)
	d := &decoder{probs: probs, cfg: &Config{root: root.pos, pos: map[string]Pos{}}}
	d.config(root)
	if len(d.probs) > 0 {
		d.probs.sort()
		return nil, d.probs
	}
	return d.cfg, nil
}

// decoder fills cfg from a tree and collects what is wrong. The read methods
// report a wrong value themselves and say by ok whether there is a good one;
// what depends on a missing or wrong value is not checked any more.
type decoder struct {
	cfg   *Config
	probs Problems

	pools     map[string]bool // the names, of broken ones too; nil if they can't be known
	endpoints map[string]bool
	usable    map[string]bool // the pools without a problem
	entries   []span          // of all pools of addresses and prefixes, see poolOverlaps
	numbers   []numbers       // of all pools of numbers
}

func (d *decoder) bad(pos Pos, field, format string, args ...any) {
	d.probs = append(d.probs, Problem{pos, field, fmt.Sprintf(format, args...)})
}

// object is a mapping whose keys are all known.
type object struct {
	d    *decoder
	path string
	pos  Pos // of the key that holds it
	vals map[string]entry
}

// object reads n as the mapping at path; shape is its path in fields.
func (d *decoder) object(n *node, pos Pos, path, shape string) (object, bool) {
	known := fields[shape]
	if n.kind != yaml.MappingNode {
		right := "{}"
		if len(known) > 0 {
			right = "a mapping of " + strings.Join(known, ", ")
		}
		d.bad(n.pos, path, "is %s; must be %s", n.describe(), right)
		return object{}, false
	}
	o := object{d, path, pos, make(map[string]entry, len(n.entries))}
	for _, e := range n.entries {
		if slices.Contains(known, e.key) {
			o.vals[e.key] = e
			d.place(join(path, e.key), e)
			continue
		}
		right, isRefused := refused[shape][e.key]
		switch guess := closest(e.key, known); {
		case isRefused:
			d.bad(e.pos, join(path, e.key), "can't be set: %s; leave it out", right)
		case guess != "":
			d.bad(e.pos, join(path, e.key), "is not a known key; did you mean %s?", guess)
		case len(known) == 0:
			d.bad(e.pos, join(path, e.key), "is not a known key; there are none here")
		default:
			d.bad(e.pos, join(path, e.key), "is not a known key; known here: %s", strings.Join(known, ", "))
		}
	}
	return o, true
}

// place records where a field is.
func (d *decoder) place(path string, e entry) {
	if e.val.kind == yaml.MappingNode {
		d.cfg.pos[path] = e.pos
	} else {
		d.cfg.pos[path] = e.val.pos
	}
}

// section reads the mapping under one key of o.
func (o object) section(key, shape string) (object, bool) {
	e, ok := o.vals[key]
	if !ok {
		return object{}, false
	}
	return o.d.object(e.val, e.pos, join(o.path, key), shape)
}

// names reads a mapping from names to anything. ok is false if it is there
// and no mapping.
func (o object) names(key, of string, most int) (entries []entry, ok bool) {
	e, ok := o.vals[key]
	if !ok {
		return nil, true
	}
	if e.val.kind != yaml.MappingNode {
		o.d.bad(e.val.pos, join(o.path, key), "is %s; must be a mapping from %s, or left out", e.val.describe(), of)
		return nil, false
	}
	if n := len(e.val.entries); n > most {
		o.d.bad(e.pos, join(o.path, key), "holds %d entries; at most %d are possible", n, most)
		return nil, false
	}
	for _, e := range e.val.entries {
		o.d.place(join(key, e.key), e)
	}
	return e.val.entries, true
}

func (o object) has(key string) bool { _, ok := o.vals[key]; return ok }

func (o object) at(key string) Pos { return o.d.cfg.pos[join(o.path, key)] }

// bad reports a problem with the value of a key that is there.
func (o object) bad(key, format string, args ...any) {
	o.d.bad(o.at(key), join(o.path, key), format, args...)
}

// missing reports a key that must be there.
func (o object) missing(key, right string) {
	o.d.bad(o.pos, join(o.path, key), "is missing; %s", right)
}

// wrong reports a value of the wrong type.
func (o object) wrong(key, want string) {
	o.bad(key, "is %s; must be %s", o.vals[key].val.describe(), want)
}

func (o object) text(key, want string) (string, bool) {
	e, ok := o.vals[key]
	if !ok {
		return "", false
	}
	switch {
	case e.val.kind == yaml.ScalarNode && e.val.tag == "!!str":
		return e.val.value, true
	case e.val.kind == yaml.ScalarNode && e.val.tag != "!!null":
		o.wrong(key, want+", in quotes if it looks like a number or a date")
	default:
		o.wrong(key, want)
	}
	return "", false
}

// link reads a link name.
func (o object) link(key string) (string, bool) {
	s, ok := o.text(key, "a link name")
	if !ok {
		return "", false
	}
	if why := badLink(s); why != "" {
		o.bad(key, "%s", why)
		return "", false
	}
	return s, true
}

// plain reads a decimal number without sign or leading zeros.
func plain(s string) (int64, bool) {
	if s == "" || len(s) > 1 && s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = 1<<63 - 1 // out of any range
	}
	return n, true
}

func (o object) number(key string, least, most int64, unit string) (int64, bool) {
	e, ok := o.vals[key]
	if !ok {
		return 0, false
	}
	n, ok := plain(e.val.value)
	if !ok || e.val.kind != yaml.ScalarNode || e.val.quoted || n < least || n > most {
		o.wrong(key, fmt.Sprintf("a decimal number from %d to %d%s", least, most, unit))
		return 0, false
	}
	return n, true
}

func (o object) boolean(key string) bool {
	e, ok := o.vals[key]
	if !ok {
		return false
	}
	if e.val.kind == yaml.ScalarNode && e.val.tag == "!!bool" {
		switch e.val.value {
		case "true":
			return true
		case "false":
			return false
		}
	}
	o.wrong(key, "true or false")
	return false
}

func choice[T ~string](o object, key string, options ...T) T {
	e, ok := o.vals[key]
	if !ok {
		return options[0] // the default comes first
	}
	words := make([]string, len(options))
	for i, option := range options {
		if words[i] = string(option); e.val.kind == yaml.ScalarNode && e.val.value == words[i] {
			return option
		}
	}
	o.wrong(key, strings.Join(words, " or "))
	return options[0]
}

func (o object) duration(key string, def, most time.Duration) (time.Duration, bool) {
	e, ok := o.vals[key]
	if !ok {
		return def, true
	}
	if e.val.kind == yaml.ScalarNode {
		if t, err := time.ParseDuration(e.val.value); err == nil && t > 0 && t <= most && e.val.value[0] != '+' {
			return t, true
		}
	}
	want := fmt.Sprintf("a duration over 0s and up to %s, such as %s", short(most), short(def))
	if _, ok := plain(e.val.value); ok {
		want += ", with its unit"
	}
	o.wrong(key, want)
	return def, false
}

// confirm is the one duration that may be 0s.
func (o object) confirm() time.Duration {
	if e, ok := o.vals["confirm"]; ok && e.val.kind == yaml.ScalarNode && e.val.value == "0s" {
		return 0
	}
	t, ok := o.duration("confirm", time.Minute, 24*time.Hour)
	if _, given := o.vals["confirm"]; !given || !ok {
		return 0
	}
	return t
}

// short is a duration as people write it: 1h, not 1h0m0s.
func short(t time.Duration) string {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (d *decoder) config(root *node) {
	o, _ := d.object(root, root.pos, "", "")
	if !o.has("version") {
		o.missing("version", "write version: 1, once in all files; without it a file that was cut off could pass for a whole one")
	} else if v := o.vals["version"].val; v.kind != yaml.ScalarNode || v.tag != "!!int" || v.value != "1" {
		if n, ok := plain(v.value); ok && v.tag == "!!int" {
			// The rest may be right by rules that aren't known here.
			d.probs = nil
			o.bad("version", "is %d; must be 1, the only version known here", n)
			return
		}
		o.wrong("version", "the number 1")
	}
	d.node(o)
	d.store(o)
	d.cfg.FRR.EVPN = EVPNRequire
	if f, ok := o.section("frr", "frr"); ok {
		d.cfg.FRR.EVPN = choice(f, "evpn", EVPNRequire, EVPNCreate)
	}
	d.transaction(o)
	if b, ok := o.section("vlanBridge", "vlanBridge"); ok {
		if !b.has("name") {
			b.missing("name", "name the bridge, such as br-evpn")
		}
		d.cfg.VLANBridge, _ = b.link("name")
	}

	if entries, ok := o.names("pools", "pool names to their addresses", maxPools); ok {
		d.pools, d.usable = map[string]bool{}, map[string]bool{}
		for _, e := range entries {
			d.pools[e.key] = true
			d.readPool(e)
		}
	}
	slices.SortFunc(d.cfg.Pools, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	d.poolOverlaps()
	d.numberOverlaps()

	if entries, ok := o.names("endpoints", "endpoint names to their settings", maxEndpoints); ok {
		d.endpoints = map[string]bool{}
		for _, e := range entries {
			d.endpoints[e.key] = true
			d.endpoint(e)
		}
	}
	slices.SortFunc(d.cfg.Endpoints, func(a, b Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	if entries, ok := o.names("loopbacks", "link names to their settings", maxLoopbacks); ok {
		for _, e := range entries {
			d.loopback(e)
		}
	}
	slices.SortFunc(d.cfg.Loopbacks, func(a, b Loopback) int { return cmp.Compare(a.Name, b.Name) })
	d.addressClashes()

	if entries, ok := o.names("vnis", "VNIs to their settings", maxVNIs); ok {
		for _, e := range entries {
			d.vni(e, o.has("vlanBridge"))
		}
	}
	slices.SortFunc(d.cfg.VNIs, func(a, b VNI) int { return cmp.Compare(a.VNI, b.VNI) })
	d.bridgeClashes()
	d.loopbackClashes()
}

func (d *decoder) node(o object) {
	n, ok := o.section("node", "node")
	if !ok {
		if !o.has("node") {
			o.missing("node", "write node: {name: NAME}, the name of this router in claims")
		}
		return
	}
	if !n.has("name") {
		n.missing("name", "give the name of this router in claims")
	}
	if name, ok := n.text("name", "a name"); ok {
		if why := badName(name); why != "" {
			n.bad("name", "%s", why)
		}
		d.cfg.Node.Name = name
	}
	if index, ok := n.number("index", 0, 1<<31-1, ""); ok {
		d.cfg.Node.Index, d.cfg.Node.HasIndex = int(index), true
	}
}

func (d *decoder) transaction(o object) {
	t := &d.cfg.Transaction
	*t = Transaction{DrainQuiet: DefaultDrainQuiet, DrainLimit: DefaultDrainLimit, Timeout: DefaultTimeout}
	s, ok := o.section("transaction", "transaction")
	if !ok {
		return
	}
	t.Timeout, _ = s.duration("timeout", DefaultTimeout, 24*time.Hour)
	t.Confirm = s.confirm()
	t.AllowDisruptive = s.boolean("allowDisruptive")
	dr, ok := s.section("drain", "transaction.drain")
	if !ok {
		return
	}
	var quietOK, limitOK bool
	t.DrainQuiet, quietOK = dr.duration("quiet", DefaultDrainQuiet, time.Hour)
	t.DrainLimit, limitOK = dr.duration("limit", DefaultDrainLimit, 24*time.Hour)
	if quietOK && limitOK && t.DrainQuiet > t.DrainLimit {
		key := "quiet"
		if !dr.has(key) {
			key = "limit"
		}
		dr.bad(key, "quiet is %s and limit is %s; quiet must not be longer than limit", short(t.DrainQuiet), short(t.DrainLimit))
	}
}

// pool is the pool of that name, or the zero Pool.
func (d *decoder) pool(name string) Pool {
	i, ok := slices.BinarySearchFunc(d.cfg.Pools, name, func(p Pool, name string) int { return cmp.Compare(p.Name, name) })
	if !ok {
		return Pool{}
	}
	return d.cfg.Pools[i]
}

// item is a text in a list, with its path and place.
type item struct {
	value string
	field string
	pos   Pos
}

// list reads a list of texts and records the place of each.
func (o object) list(key, want, each string) ([]item, bool) {
	e, ok := o.vals[key]
	if !ok {
		return nil, false
	}
	if e.val.kind != yaml.SequenceNode {
		o.wrong(key, want)
		return nil, false
	}
	items := make([]item, 0, len(e.val.items))
	for i, n := range e.val.items {
		at := fmt.Sprintf("%s[%d]", join(o.path, key), i)
		o.d.cfg.pos[at] = n.pos
		if n.kind != yaml.ScalarNode || n.tag == "!!null" {
			o.d.bad(n.pos, at, "is %s; must be %s", n.describe(), each)
			continue
		}
		items = append(items, item{n.value, at, n.pos})
	}
	return items, true
}

func (d *decoder) endpoint(e entry) {
	path := join("endpoints", e.key)
	if why := badLink(e.key); why != "" {
		d.bad(e.pos, path, "%s", why)
	}
	o, ok := d.object(e.val, e.pos, path, "endpoints.*")
	if !ok {
		return
	}
	ep := Endpoint{Name: e.key, Announce: choice(o, "announce", AnnounceBGP, AnnounceNone)}
	d.placement(e, o, &ep)
	if !o.has("address") {
		o.missing("address", "write {pool: NAME}, {static: ADDRESS} or {cidr: PREFIX, from: index}")
	}
	if a, ok := o.section("address", "endpoints.*.address"); ok {
		d.address(a, &ep.Address)
	}
	d.cfg.Endpoints = append(d.cfg.Endpoints, ep)
}

func (d *decoder) address(o object, a *Address) {
	var kinds []string
	for _, key := range []string{"pool", "static", "cidr"} {
		if o.has(key) {
			kinds = append(kinds, key)
		}
	}
	switch {
	case len(kinds) == 0:
		d.bad(o.pos, o.path, "has none of pool, static and cidr; must have exactly one of the three")
	case len(kinds) > 1:
		o.bad(kinds[1], "stands beside %s at %s; an address has exactly one of pool, static and cidr", kinds[0], o.at(kinds[0]))
	}
	for _, need := range [][2]string{{"prefer", "pool"}, {"group", "pool"}, {"from", "cidr"}, {"exclude", "cidr"}} {
		if o.has(need[0]) && !o.has(need[1]) && len(kinds) > 0 {
			o.bad(need[0], "goes with %s, which is not here; leave it out", need[1])
		}
	}
	if len(kinds) != 1 {
		return
	}
	switch a.Kind = AddressKind(kinds[0]); a.Kind {
	case AddressPool:
		d.fromPool(o, a)
	case AddressStatic:
		a.Static, _ = o.addr("static")
	case AddressCIDR:
		d.fromCIDR(o, a)
	}
}

func (o object) addr(key string) (netip.Addr, bool) {
	s, ok := o.text(key, "an IP address")
	if !ok {
		return netip.Addr{}, false
	}
	addr, why := parseAddr(s)
	if why != "" {
		o.bad(key, "%s", why)
		return netip.Addr{}, false
	}
	return addr, true
}

func (d *decoder) fromPool(o object, a *Address) {
	name, ok := o.text("pool", "the name of a pool")
	if ok && d.pools != nil && !d.pools[name] {
		o.bad("pool", "%s", noSuch("pool", name, d.pools))
		ok = false
	}
	a.Pool = name
	if group, given := o.text("group", "a name"); given {
		if why := badName(group); why != "" {
			o.bad("group", "%s", why)
		}
		a.Group = group
	}
	if ok && d.usable[name] {
		if kind := d.pool(name).Kind(); kind != PoolAddress {
			o.bad("pool", "pool %s at %s is of kind %s; %s needs a pool with addresses", name, d.cfg.At(join("pools", name)), kind, askerAt(o.path))
			ok = false
		}
	}
	prefer, preferOK := o.addr("prefer")
	if !preferOK || !ok || !d.usable[name] {
		return
	}
	a.Prefer = prefer
	pool := d.pool(name)
	path := join("pools", name)
	if !slices.ContainsFunc(pool.Addresses, func(p netip.Prefix) bool { return p.Contains(prefer) }) {
		o.bad("prefer", "%s is outside of pool %s at %s, which holds %s", prefer, name, d.cfg.At(path+".addresses"), prefixes(pool.Addresses))
	} else if pool.excludes(prefer) {
		o.bad("prefer", "%s is excluded from pool %s at %s", prefer, name, d.cfg.At(path+".exclude"))
	}
}

// askerAt is what asks for the address at a path.
func askerAt(path string) string {
	if strings.HasPrefix(path, "loopbacks.") {
		return "a loopback"
	}
	return "an endpoint"
}

func (d *decoder) fromCIDR(o object, a *Address) {
	if !o.has("from") {
		o.missing("from", "write from: index, the only way there is")
	} else {
		choice(o, "from", "index")
	}
	s, ok := o.text("cidr", "a prefix such as 10.255.0.0/24")
	if !ok {
		return
	}
	prefix, why := parsePrefix(s)
	if why != "" {
		o.bad("cidr", "%s", why)
		return
	}
	a.CIDR = prefix
	var exclude []string
	items, ok := o.list("exclude", "a list of addresses, ranges and prefixes", "an address, a range or a prefix")
	for _, e := range items {
		if _, why := parseRange(e.value); why != "" {
			d.bad(e.pos, e.field, "%s", why)
			ok = false
			continue
		}
		exclude = append(exclude, e.value)
	}
	given, there := d.cfg.pos["node.index"]
	switch {
	case !d.cfg.Node.HasIndex && there:
		o.bad("cidr", "%v: what stands at %s is none", alloc.NoIndex(prefix), given)
		return
	case !d.cfg.Node.HasIndex:
		o.bad("cidr", "%v; node.index says which of them is this router's", alloc.NoIndex(prefix))
		return
	case !ok && o.has("exclude"):
		return
	}
	addr, err := alloc.FromIndex(prefix, d.cfg.Node.Index, exclude)
	if err != nil {
		o.bad("cidr", "node.index at %s: %v", given, err)
		return
	}
	a.Derived = addr
}

func (d *decoder) vni(e entry, bridged bool) {
	path := join("vnis", e.key)
	n, numberOK := plain(e.key)
	if numberOK = numberOK && n >= 1 && n <= 1<<24-1; !numberOK {
		d.bad(e.pos, path, "%s is not a VNI; must be a decimal number from 1 to 16777215", bare(e.key))
	}
	o, ok := d.object(e.val, e.pos, path, "vnis.*")
	if !ok {
		return
	}
	v := VNI{VNI: uint32(n), Port: DefaultPort}
	if !o.has("endpoint") {
		o.missing("endpoint", "name the endpoint that carries it")
	}
	if v.Endpoint, ok = o.text("endpoint", "the name of an endpoint"); ok && d.endpoints != nil && !d.endpoints[v.Endpoint] {
		o.bad("endpoint", "%s", noSuch("endpoint", v.Endpoint, d.endpoints))
	}
	if port, ok := o.number("port", 1, 65535, ""); ok {
		v.Port = uint16(port)
	}
	d.mtu(o, &v)
	if o.has("vlan") {
		if vlan, ok := o.number("vlan", 1, 4094, ""); ok {
			v.VLAN = uint16(vlan)
		}
		switch {
		case o.has("bridge"):
			o.bad("vlan", "stands beside bridge at %s; a VNI has at most one of the two", o.at("bridge"))
		case !bridged:
			o.bad("vlan", "needs vlanBridge, which is missing; write vlanBridge: {name: br-evpn} or leave vlan out")
		}
	} else {
		v.Bridge = "br" + e.key
	}
	if o.has("bridge") {
		v.Bridge, _ = o.link("bridge")
	}
	if numberOK {
		d.cfg.VNIs = append(d.cfg.VNIs, v)
	}
}

// mtu reads a VNI's MTU. An IPv6 packet of 1280 bytes must pass any link
// (RFC 8200, section 5), and the kernel takes IPv6 off a link of less.
func (d *decoder) mtu(o object, v *VNI) {
	if !o.has("mtu") || o.vals["mtu"].val.value == "0" && !o.vals["mtu"].val.quoted {
		return
	}
	mtu, ok := o.number("mtu", 68, 65535, " bytes, or 0 to derive it")
	if !ok {
		return
	}
	v.MTU = int(mtu)
	i, found := slices.BinarySearchFunc(d.cfg.Endpoints, v.Endpoint, func(e Endpoint, name string) int { return cmp.Compare(e.Name, name) })
	if found && mtu < 1280 && d.family6(d.cfg.Endpoints[i].Address) {
		o.bad("mtu", "is %d, and endpoint %s has an IPv6 address; must be at least 1280", mtu, v.Endpoint)
	}
}

// family6 reports whether an address can only be IPv6.
func (d *decoder) family6(a Address) bool {
	if addr, ok := a.Fixed(); ok {
		return addr.Is6()
	}
	if a.Prefer.IsValid() {
		return a.Prefer.Is6()
	}
	entries := d.pool(a.Pool).Addresses
	return len(entries) > 0 && !slices.ContainsFunc(entries, func(p netip.Prefix) bool { return p.Addr().Is4() })
}

// bare shows a key as it stands in the file, unless that would garble the
// message.
func bare(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return oddRune(r) != "" }) {
		return quote(s)
	}
	return cut(s)
}

// noSuch says that a reference leads nowhere, and what exists.
func noSuch(kind, name string, exist map[string]bool) string {
	names := make([]string, 0, len(exist))
	for n := range exist {
		names = append(names, n)
	}
	slices.Sort(names)
	msg := fmt.Sprintf("there is no %s %s", kind, quote(name))
	switch guess := closest(name, names); {
	case len(names) == 0:
		return fmt.Sprintf("%s; this config has no %ss", msg, kind)
	case guess != "":
		return fmt.Sprintf("%s; did you mean %s?", msg, bare(guess))
	}
	return fmt.Sprintf("%s; this config has %s", msg, listing(names))
}
