package config

import _ "embed" // for the two files below

// Reference is an example config with every field, its default and its unit
// explained. It is itself valid.
//
//go:embed reference.yaml
var Reference []byte

// Schema is a JSON Schema (draft 2020-12) of one file, for editors.
//
//go:embed schema.json
var Schema []byte

// fields is every key that a file may hold, by the path of its mapping; "*"
// stands for any name. Whatever isn't here is an unknown key.
var fields = map[string][]string{
	"":                     {"version", "node", "store", "pools", "endpoints", "loopbacks", "vlanBridge", "vnis", "frr", "transaction"},
	"node":                 {"name", "index"},
	"store":                {"directory", "etcd"},
	"store.etcd":           {"endpoints", "prefix", "tls", "username", "passwordFile"},
	"store.etcd.tls":       {"ca", "cert", "key"},
	"pools.*":              {"addresses", "ranges", "prefixes", "length", "exclude", "reclaim"},
	"endpoints.*":          {"ipvlan", "loopback", "cni", "address", "announce"},
	"endpoints.*.ipvlan":   {"parent", "parentNetns"},
	"endpoints.*.loopback": {},
	"endpoints.*.cni":      {"conflist", "interfaceName", "pluginDirs", "cacheDir"},
	"loopbacks.*":          {"role", "ipv4", "ipv6"},
	"loopbacks.*.ipv4":     {"pool", "prefer", "group", "static", "cidr", "from", "exclude"},
	"loopbacks.*.ipv6":     {"pool", "prefer", "group", "static", "cidr", "from", "exclude"},
	"endpoints.*.address":  {"pool", "prefer", "group", "static", "cidr", "from", "exclude"},
	"vlanBridge":           {"name"},
	"vnis.*":               {"endpoint", "port", "bridge", "vlan", "mtu"},
	"frr":                  {"evpn"},
	"transaction":          {"drain", "timeout", "confirm", "allowDisruptive"},
	"transaction.drain":    {"quiet", "limit"},
}

// named is the sections whose keys are names, and which several files may
// add to.
var named = map[string]bool{"pools": true, "endpoints": true, "loopbacks": true, "vnis": true}
