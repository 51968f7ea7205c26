package etcdstore

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	if err := os.WriteFile(junk, []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t, "one")
	cert, key := ca.issue(t, "client")
	for what, c := range map[string]struct {
		o    Options
		want string
	}{
		"right":           {Options{Endpoints: []string{"http://10.0.0.1:2379", "[2001:db8::1]:2379", "etcd.example:2379"}}, ""},
		"right, with TLS": {Options{Endpoints: []string{"10.0.0.1:2379"}, CA: ca.file, Cert: cert, Key: key, Username: "u", Password: "p"}, ""},
		"nothing":         {Options{}, "endpoints: at least one is needed; https://10.0.0.1:2379 would be right"},
		"no port":         {Options{Endpoints: []string{"10.0.0.1"}}, `endpoints[0]: "10.0.0.1" is not a URL of an etcd member; https://10.0.0.1:2379 would be right`},
		"a path":          {Options{Endpoints: []string{"http://a:1/v2"}}, `endpoints[0]: "http://a:1/v2" is not a URL of an etcd member; https://10.0.0.1:2379 would be right`},
		"another scheme":  {Options{Endpoints: []string{"ftp://a:1"}}, `endpoints[0]: "ftp://a:1" is not a URL of an etcd member; https://10.0.0.1:2379 would be right`},
		"a user":          {Options{Endpoints: []string{"http://root:secret@a:1"}}, "endpoints[0]: an endpoint has no user; username and password are fields of their own"},
		"a torn user":     {Options{Endpoints: []string{"http://root:se cret@a:x"}}, "endpoints[0]: not a URL of an etcd member; https://10.0.0.1:2379 would be right"},
		"twice":           {Options{Endpoints: []string{"a:1", "http://a:1"}}, "endpoints[1]: http://a:1 is there twice"},
		"mixed":           {Options{Endpoints: []string{"https://a:1", "http://b:1"}}, "endpoints: some are https and some http; all of one kind would be right"},
		"TLS for http":    {Options{Endpoints: []string{"http://a:1"}, CA: ca.file}, "endpoints: http has no use for certificates; https would be right"},
		"prefix":          {Options{Endpoints: []string{"a:1"}, Prefix: "/x/"}, `prefix: "/x/": no slash at the end and no space would be right, as in /vtepd`},
		"no name":         {Options{Endpoints: []string{"a:1"}, Password: "secret"}, "username: a password without a name"},
		"no password":     {Options{Endpoints: []string{"a:1"}, Username: "u"}, "password: u needs one"},
		"timeout":         {Options{Endpoints: []string{"a:1"}, Timeout: -1}, "timeout: -1ns; a positive duration would be right"},
		"no CA":           {Options{Endpoints: []string{"a:1"}, CA: "/no/ca.pem"}, "ca: open /no/ca.pem: no such file or directory"},
		"a foreign CA":    {Options{Endpoints: []string{"a:1"}, CA: junk}, "ca: " + junk + ": no certificate in it"},
		"no key":          {Options{Endpoints: []string{"a:1"}, CA: ca.file, Cert: cert}, "cert: a certificate and its key go together; one of them is missing"},
		"a foreign key": {
			Options{Endpoints: []string{"a:1"}, CA: ca.file, Cert: cert, Key: junk},
			"cert: " + cert + " with " + junk + ": tls: failed to find any PEM data in key input",
		},
		"a cache of nobody": {Options{Endpoints: []string{"a:1"}, Cache: "/c"}, "node: a cache needs the name of whose claims it keeps"},
		"several": {
			Options{Endpoints: []string{"a"}, Prefix: "/", Username: "u"},
			`endpoints[0]: "a" is not a URL of an etcd member; https://10.0.0.1:2379 would be right` + "\n" +
				`prefix: "/": no slash at the end and no space would be right, as in /vtepd` + "\npassword: u needs one",
		},
	} {
		t.Run(what, func(t *testing.T) {
			err := c.o.Check()
			if got := text(err); got != c.want {
				t.Errorf("%s\nwant %s", got, c.want)
			}
			if _, oerr := Open(c.o); (oerr == nil) != (c.want == "") {
				t.Errorf("open: %v", oerr)
			}
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
