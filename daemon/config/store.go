package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Store is where claims are kept: a directory or an etcd. The zero Store is the directory that the daemon has by default,
// named ledger in its state directory.
type Store struct {
	Directory string `json:"directory,omitempty"` // an absolute path; "" for the default one, or where Etcd is set
	Etcd      Etcd   `json:"etcd,omitzero"`       // set where it has endpoints
}

// Etcd is an etcd cluster, and a part of its keys. A password is never held, only the file that has it.
type Etcd struct {
	Endpoints    []string `json:"endpoints"` // http://HOST:PORT or https://HOST:PORT, all of one scheme; sorted
	Prefix       string   `json:"prefix"`    // of all keys; begins with a slash, and ends with none
	CA           string   `json:"ca,omitempty"`
	Cert         string   `json:"cert,omitempty"` // with Key
	Key          string   `json:"key,omitempty"`
	Username     string   `json:"username,omitempty"` // with PasswordFile
	PasswordFile string   `json:"passwordFile,omitempty"`
}

// DefaultPrefix is that of the keys in etcd.
const DefaultPrefix = "/vtepd"

// maxEtcd is the most endpoints of an etcd; a cluster has seven members at most.
const maxEtcd = 32

// IsEtcd reports whether s is an etcd.
func (s Store) IsEtcd() bool { return len(s.Etcd.Endpoints) > 0 }

// Equal reports whether s and t are the same in every field.
func (s Store) Equal(t Store) bool {
	return s.Directory == t.Directory && s.Etcd.Prefix == t.Etcd.Prefix && slices.Equal(s.Etcd.Endpoints, t.Etcd.Endpoints) &&
		s.Etcd.CA == t.Etcd.CA && s.Etcd.Cert == t.Etcd.Cert && s.Etcd.Key == t.Etcd.Key &&
		s.Etcd.Username == t.Etcd.Username && s.Etcd.PasswordFile == t.Etcd.PasswordFile
}

// String is s as ParseStore reads it, with no more than names of places.
func (s Store) String() string {
	if s.IsEtcd() {
		return "etcd:" + strings.Join(s.Etcd.Endpoints, ",") + s.Etcd.Prefix
	}
	return "dir:" + s.Directory
}

// ParseStore reads a store as it is written on a command line: dir:PATH, or etcd:ENDPOINT[,ENDPOINT...][/PREFIX] with each
// endpoint as in a config; scheme, http or https, is for those that are HOST:PORT alone.
func ParseStore(s, scheme string) (Store, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "dir":
		if why := badPath(rest); why != "" {
			return Store{}, fmt.Errorf("%s: %s", s, why)
		}
		return Store{Directory: rest}, nil
	case "etcd":
		out := Store{Etcd: Etcd{Prefix: DefaultPrefix}}
		endpoints := strings.Split(rest, ",")
		last := &endpoints[len(endpoints)-1]
		host := *last
		if _, after, ok := strings.Cut(host, "://"); ok {
			host = after
		}
		if i := strings.IndexByte(host, '/'); i >= 0 {
			out.Etcd.Prefix = host[i:]
			*last = strings.TrimSuffix(*last, out.Etcd.Prefix)
		}
		if why := badPrefix(out.Etcd.Prefix); why != "" {
			return Store{}, fmt.Errorf("%s: %s", s, why)
		}
		for _, e := range endpoints {
			u, why := parseEndpoint(e, scheme)
			if why != "" {
				return Store{}, fmt.Errorf("%s: %s", s, why)
			}
			out.Etcd.Endpoints = append(out.Etcd.Endpoints, u)
		}
		slices.Sort(out.Etcd.Endpoints)
		out.Etcd.Endpoints = slices.Compact(out.Etcd.Endpoints)
		return out, out.Etcd.oneScheme()
	}
	return Store{}, fmt.Errorf("%s is not a store; must be dir:PATH or etcd:ENDPOINT[,ENDPOINT...][/PREFIX]", quote(s))
}

func (e Etcd) oneScheme() error {
	if first, last := e.Endpoints[0], e.Endpoints[len(e.Endpoints)-1]; strings.HasPrefix(first, "http:") && strings.HasPrefix(last, "https:") {
		return errors.New("some endpoints are http and some https; all must be the same")
	}
	return nil
}

// store reads where claims are kept.
func (d *decoder) store(root object) {
	o, ok := root.section("store", "store")
	if !ok {
		return
	}
	switch {
	case o.has("directory") && o.has("etcd"):
		o.bad("etcd", "stands beside directory at %s; a store is exactly one of the two", o.at("directory"))
	case o.has("directory"):
		d.cfg.Store.Directory = o.file("directory")
	case o.has("etcd"):
		if e, ok := o.section("etcd", "store.etcd"); ok {
			d.etcd(e)
		}
	default:
		d.bad(o.pos, o.path, "has neither directory nor etcd; must have exactly one of the two, or be left out")
	}
}

func (d *decoder) etcd(o object) {
	e := &d.cfg.Store.Etcd
	t, secure := o.section("tls", "store.etcd.tls")
	if secure {
		e.CA, e.Cert, e.Key = t.file("ca"), t.file("cert"), t.file("key")
		if t.has("cert") != t.has("key") {
			t.together("cert", "key")
		}
	}
	if o.has("username") != o.has("passwordFile") {
		o.together("username", "passwordFile")
	}
	if name, ok := o.text("username", "a name"); ok {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			o.bad("username", "%s can't be a name; must be text without control characters", quote(name))
		}
		e.Username = name
	}
	e.PasswordFile = o.file("passwordFile")
	e.Prefix = DefaultPrefix
	if p, ok := o.text("prefix", "a prefix of keys such as /vtepd"); ok {
		if why := badPrefix(p); why != "" {
			o.bad("prefix", "%s", why)
		}
		e.Prefix = p
	}
	if !o.has("endpoints") {
		o.missing("endpoints", "list the members to ask, such as [https://10.0.0.1:2379]")
		return
	}
	items, ok := o.list("endpoints", "a list of URLs such as [https://10.0.0.1:2379]", "a URL such as https://10.0.0.1:2379")
	if ok && len(o.vals["endpoints"].val.items) == 0 {
		o.bad("endpoints", "is an empty list; list the members to ask, such as [https://10.0.0.1:2379]")
	}
	if len(items) > maxEtcd {
		o.bad("endpoints", "holds %d entries; at most %d are possible", len(items), maxEtcd)
		return
	}
	scheme := "http"
	if o.has("tls") {
		scheme = "https"
	}
	first := map[string]item{}
	for _, s := range items {
		u, why := parseEndpoint(s.value, scheme)
		f, twice := first[u]
		switch {
		case why != "":
			d.bad(s.pos, s.field, "%s", why)
		case twice:
			d.bad(s.pos, s.field, "%s is here a second time, the first is at %s; keep one", u, f.pos)
		case o.has("tls") && strings.HasPrefix(u, "http:"):
			d.bad(s.pos, s.field, "%s is not https, and tls at %s asks for it; write https://", u, o.at("tls"))
		case len(e.Endpoints) > 0 && !strings.HasPrefix(u, e.Endpoints[0][:strings.IndexByte(e.Endpoints[0], ':')+1]):
			d.bad(s.pos, s.field, "%s has another scheme than %s; all endpoints must be http, or all https", u, e.Endpoints[0])
		default:
			first[u] = s
			e.Endpoints = append(e.Endpoints, u)
		}
	}
	slices.Sort(e.Endpoints)
}

// together reports that only one of two keys is there.
func (o object) together(a, b string) {
	if o.has(b) {
		a, b = b, a
	}
	o.bad(a, "goes with %s, which is missing; write both or neither", b)
}

// file reads an absolute path.
func (o object) file(key string) string {
	s, ok := o.text(key, "an absolute path")
	if !ok {
		return ""
	}
	if why := badPath(s); why != "" {
		o.bad(key, "%s", why)
		return ""
	}
	return s
}

// badPath says why s is no plain absolute path, or "".
func badPath(s string) string {
	switch {
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Sprintf("%s holds a control character; must be an absolute path", quote(s))
	case s == "" || s[0] != '/':
		return fmt.Sprintf("%s is not an absolute path; it must begin with '/'", quote(s))
	case len(s) > 4095:
		return fmt.Sprintf("%s is %d bytes long; a path has at most 4095", quote(s), len(s))
	case s == "/" || path.Clean(s) != s:
		return fmt.Sprintf("%s is not a plain path; write it without '//', '.', '..' or a '/' at its end", quote(s))
	}
	return ""
}

// badPrefix says why s is no prefix of keys, or "".
func badPrefix(s string) string {
	for _, r := range s {
		if what := oddRune(r); what != "" {
			return fmt.Sprintf("%s can't be a prefix of keys: it holds %s; must be one such as %s", quote(s), what, DefaultPrefix)
		}
	}
	if s == "" || s[0] != '/' || s == "/" || path.Clean(s) != s || len(s) > 255 {
		return fmt.Sprintf("%s can't be a prefix of keys; must begin with '/', end without, have no empty part and at most 255 bytes, such as %s", quote(s), DefaultPrefix)
	}
	return ""
}

// parseEndpoint reads the URL of a member, or HOST:PORT with scheme for it.
func parseEndpoint(s, scheme string) (endpoint, why string) {
	const right = "must be one such as https://10.0.0.1:2379 or 10.0.0.1:2379"
	full := s
	if !strings.Contains(s, "://") {
		full = scheme + "://" + s
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		// The error would show a password.
		return "", "is not a URL; " + right
	case u.User != nil:
		return "", "has a user or a password in it, which end up in logs; write username and passwordFile instead"
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Sprintf("%s is neither http nor https; %s", quote(s), right)
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return "", fmt.Sprintf("%s has more than a host and a port; %s", quote(s), right)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if u.Hostname() == "" || err != nil || port == 0 || strings.ContainsFunc(u.Host, func(r rune) bool { return oddRune(r) != "" || r == ',' }) {
		return "", fmt.Sprintf("%s has no host or no port; %s", quote(s), right)
	}
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), strconv.FormatUint(port, 10)), ""
}
