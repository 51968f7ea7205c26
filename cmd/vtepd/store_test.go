package main

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/server/v3/embed"

	"vtepd/daemon/config"
)

// etcdCommand is `etcd NAME`: an etcd of one member runs until the script ends, and the variable NAME is its HOST:PORT.
func etcdCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: etcd NAME")
	}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(ts.Getenv("WORK"), ".etcd-"+args[0])
	cfg.LogLevel, cfg.LogOutputs = "fatal", []string{os.DevNull}
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 20, 200
	var urls [2]url.URL
	for i := range urls {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		urls[i] = url.URL{Scheme: "http", Host: l.Addr().String()}
		ts.Check(l.Close())
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = urls[:1], urls[:1]
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = urls[1:], urls[1:]
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	ts.Check(err)
	ts.Defer(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		ts.Fatalf("etcd: %v", err)
	case <-time.After(time.Minute):
		ts.Fatalf("etcd isn't ready after a minute")
	}
	ts.Setenv(args[0], urls[0].Host)
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
