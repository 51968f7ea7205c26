package etcdstore

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"vtepd/alloc"
	"vtepd/alloc/storetest"
)

// server starts an etcd of one member in this process, and stops it when the test ends.
func server(t testing.TB, change func(*embed.Config)) *embed.Etcd {
	t.Helper()
	e := start(t, member(t, change))
	t.Cleanup(e.Close)
	return e
}

// member is the configuration of one that is alone, on ports that are free now.
func member(t testing.TB, change func(*embed.Config)) *embed.Config {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(t.TempDir(), "etcd")
	cfg.LogLevel, cfg.LogOutputs = "fatal", []string{os.DevNull}
	cfg.UnsafeNoFsync = true
	client, peer := freeURL(t), freeURL(t)
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	// As quick as one machine allows.
	cfg.TickMs, cfg.ElectionMs = 20, 200
	if change != nil {
		change(cfg)
	}
	return cfg
}

func start(t testing.TB, cfg *embed.Config) *embed.Etcd {
	t.Helper()
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatal(err)
	case <-time.After(30 * time.Second):
		t.Fatal("etcd isn't ready")
	}
	return e
}

func freeURL(t testing.TB) url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

func endpoints(es ...*embed.Etcd) []string {
	var out []string
	for _, e := range es {
		u := e.Config().ListenClientUrls[0]
		out = append(out, u.String())
	}
	return out
}

// open opens a Store that the test's end closes.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var ledgers atomic.Uint64

// newLedger makes ledgers in one etcd, each under a prefix of its own.
func newLedger(endpoints []string) storetest.NewLedger {
	return func(storetest.TB) func() (alloc.Store, error) {
		prefix := fmt.Sprintf("/test/%d", ledgers.Add(1))
		return func() (alloc.Store, error) { return Open(Options{Endpoints: endpoints, Prefix: prefix}) }
	}
}

func TestStore(t *testing.T) {
	storetest.Run(t, newLedger(endpoints(server(t, nil))))
}
