package main

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.etcd.io/etcd/server/v3/embed"
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
