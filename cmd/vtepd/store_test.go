package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/server/v3/embed"

	"vtepd/alloc"
	"vtepd/daemon"
	"vtepd/daemon/config"
	"vtepd/daemon/journal"
)

// etcdCommand is `etcd NAME`: an etcd of one member runs until the script ends, and the variable NAME is its HOST:PORT.
func etcdCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: etcd NAME")
	}
	endpoint, stop, err := startEtcd(filepath.Join(ts.Getenv("WORK"), ".etcd-"+args[0]))
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv(args[0], endpoint)
}

// startEtcd runs an etcd of one member on data in dir, at HOST:PORT.
func startEtcd(dir string) (endpoint string, stop func(), err error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel, cfg.LogOutputs = "fatal", []string{os.DevNull}
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 20, 200
	var urls [2]url.URL
	for i := range urls {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", nil, err
		}
		urls[i] = url.URL{Scheme: "http", Host: l.Addr().String()}
		l.Close()
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[:1], urls[:1]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[1:], urls[1:]
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return urls[0].Host, e.Close, nil
	case err = <-e.Err():
	case <-time.After(time.Minute):
		err = errors.New("etcd isn't ready after a minute")
	}
	e.Close()
	return "", nil, err
}

// TestPasswordRotated: the daemon's ledger goes on with a new password once the file has it, without a restart.
func TestPasswordRotated(t *testing.T) {
	dir := t.TempDir()
	endpoint, stop, err := startEtcd(filepath.Join(dir, "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// ask asks etcd over its JSON gateway.
	ask := func(token, what, body string) (answer struct{ Token string }) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+endpoint+"/v3/auth/"+what, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", what, resp.Status, err)
		}
		return answer
	}
	ask("", "user/add", `{"name": "root", "password": "old"}`)
	ask("", "role/add", `{"name": "root"}`)
	ask("", "user/grant", `{"user": "root", "role": "root"}`)
	ask("", "enable", `{}`)

	p := &places{state: filepath.Join(dir, "state")}
	if err := os.Mkdir(p.state, 0o700); err != nil {
		t.Fatal(err)
	}
	ledger := daemon.NewLedger(daemon.LedgerOptions{
		Open:  func(s config.Store, cache, node string) (alloc.Store, error) { return p.store(s, cache, node, false) },
		State: p.state, Default: p.ledger(), Journal: journal.In(p.state),
	})
	defer ledger.Close()
	path := filepath.Join(dir, "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	cfg, err := config.Parse("f", []byte(fmt.Sprintf("version: 1\nnode: {name: r1}\nstore: {etcd: {endpoints: [%q], username: root, passwordFile: %s}}\n"+
		"pools: {p: {addresses: [10.0.0.0/29]}}\nendpoints: {v: {loopback: {}, address: {pool: p}}}\n", endpoint, path)))
	if err != nil {
		t.Fatal(err)
	}
	answers := func() error {
		t.Helper()
		ps, err := ledger.Propose(t.Context(), cfg)
		for limit := time.Now().Add(time.Minute); err != nil && strings.Contains(err.Error(), "no answer within") && time.Now().Before(limit); {
			ps, err = ledger.Propose(t.Context(), cfg) // etcd hashes a password slowly, on purpose
		}
		if err == nil && (len(ps) != 1 || ps[0].Allocation.Value != "10.0.0.0") {
			t.Fatalf("%+v", ps)
		}
		return err
	}
	if err := answers(); err != nil {
		t.Fatal(err)
	}
	token := ask("", "authenticate", `{"name": "root", "password": "old"}`).Token
	ask(token, "user/changepw", `{"name": "root", "password": "new"}`)
	if err := answers(); err == nil {
		t.Fatal("the old password lets in")
	}
	write("new\n")
	if err := answers(); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

// TestPassword: it comes from a file, and no error shows it.
func TestPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	for text, want := range map[string]string{
		"secret": "secret", "secret\n": "secret", "two words\r\n": "two words", "": "passwordFile: " + path + " is empty", "\n": "passwordFile: " + path + " is empty",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := passwordIn(path)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := places{state: t.TempDir()}
	s := config.Store{Etcd: config.Etcd{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/x", Username: "u", PasswordFile: path}}
	store, err := p.store(s, "", "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, err = store.Changes(t.Context(), 0)
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v", err)
	}
	s.Etcd.CA = filepath.Join(p.state, "ca.pem")
	if _, err := p.store(s, "", "", true); err == nil || !strings.HasPrefix(err.Error(), "etcd: endpoints: http has no use for certificates; https would be right") {
		t.Errorf("%v", err)
	}
	s.Etcd.Endpoints[0] = "https://127.0.0.1:1"
	if _, err := p.store(s, "", "", true); err == nil || err.Error() != "etcd: ca: open "+s.Etcd.CA+": no such file or directory" {
		t.Errorf("%v", err)
	}
}

// TestLetIn: a store says that it is outdated once its password or its CAs are others, and not while one of the files is away.
func TestLetIn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "password")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret")
	p := places{state: dir}
	s := config.Store{Etcd: config.Etcd{Endpoints: []string{"http://127.0.0.1:1"}, Prefix: "/x", Username: "u", PasswordFile: path}}
	opened, err := p.store(s, "", "", true)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	is := func(what string, want bool) {
		t.Helper()
		if got := opened.(letIn).Outdated(); got != want {
			t.Errorf("%s: outdated: %v", what, got)
		}
	}
	is("as it was", false)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	is("away", false)
	write("secret")
	is("the same again", false)
	write("another")
	is("rotated", true)
}
