package etcdstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"vtepd/alloc"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{file: filepath.Join(t.TempDir(), name+".pem")}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", sign(t, a.cert, a.cert, a.key, a.key))
	return a
}

func sign(t testing.TB, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// issue makes a certificate for 127.0.0.1 and a name, for both sides.
func (a *authority) issue(t testing.TB, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{name},
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
	writePEM(t, cert, "CERTIFICATE", sign(t, c, a.cert, k, a.key))
	writePEM(t, key, "EC PRIVATE KEY", der)
	return cert, key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// works claims a value, and looks whether another handle sees it.
func works(t *testing.T, o Options) {
	t.Helper()
	made, err := open(t, o).Create(t.Context(), sample(1))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, o).Get(t.Context(), made.Name); err != nil || got.Version != made.Version {
		t.Errorf("get: %+v %v", got, err)
	}
}

// denied makes one call, which must fail with that cause, soon.
func denied(t *testing.T, o Options, want string) {
	t.Helper()
	s := open(t, o)
	_, err := s.Create(t.Context(), sample(1))
	if !errors.Is(err, alloc.ErrUnavailable) || err.Error() != "create p@10.0.0.1: ledger unavailable: etcd "+want {
		t.Errorf("create: %v\nwant the cause %s", err, want)
	}
	_, err = s.Changes(t.Context(), 0)
	if !errors.Is(err, alloc.ErrUnavailable) || err.Error() != "read: ledger unavailable: etcd "+want {
		t.Errorf("changes: %v", err)
	}
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t, "one"), newAuthority(t, "other")
	serverCert, serverKey := ca.issue(t, "server")
	clientCert, clientKey := ca.issue(t, "client")
	strayCert, strayKey := other.issue(t, "stray")
	e := server(t, func(c *embed.Config) {
		c.ListenClientUrls[0].Scheme, c.AdvertiseClientUrls[0].Scheme = "https", "https"
		c.ClientTLSInfo = transport.TLSInfo{CertFile: serverCert, KeyFile: serverKey, TrustedCAFile: ca.file, ClientCertAuth: true}
	})
	url := endpoints(e)[0]
	right := Options{Endpoints: []string{url}, CA: ca.file, Cert: clientCert, Key: clientKey, Timeout: 3 * time.Second}
	works(t, right)
	with := func(change func(*Options)) Options {
		o := right
		change(&o)
		return o
	}
	denied(t, with(func(o *Options) { o.CA = other.file }), url+": tls: failed to verify certificate: x509: certificate signed by unknown authority")
	denied(t, with(func(o *Options) { o.Cert, o.Key = "", "" }), url+": remote error: tls: certificate required")
	denied(t, with(func(o *Options) { o.Cert, o.Key = strayCert, strayKey }), url+": remote error: tls: unknown certificate authority")
	name := strings.Replace(url, "127.0.0.1", "localhost", 1)
	denied(t, with(func(o *Options) { o.Endpoints = []string{name} }), name+": tls: failed to verify certificate: x509: certificate is valid for server, not localhost")
	plain := strings.Replace(url, "https:", "http:", 1)
	denied(t, Options{Endpoints: []string{plain}, Timeout: 3 * time.Second}, plain+": it closes the connection without a word; does it want https?")

	// Renewed under the same names, for handshakes to come.
	o := with(func(o *Options) { o.Cert, o.Key = strayCert, strayKey })
	s := open(t, o)
	for from, to := range map[string]string{clientCert: strayCert, clientKey: strayKey} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Get(t.Context(), "p@10.0.0.1"); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
}

func TestAuthentication(t *testing.T) {
	e := server(t, func(c *embed.Config) { c.BcryptCost = 4 })
	root, err := clientv3.New(clientv3.Config{Endpoints: endpoints(e), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const password = "hush-hush"
	ctx := t.Context()
	for _, f := range []func() error{
		func() error { _, err := root.RoleAdd(ctx, "root"); return err },
		func() error { _, err := root.UserAdd(ctx, "root", "r"); return err },
		func() error { _, err := root.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := root.RoleAdd(ctx, "vtepd"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "vtepd", "/vtepd/", clientv3.GetPrefixRangeEnd("/vtepd/"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserAdd(ctx, "leaf", password); return err },
		func() error { _, err := root.UserGrantRole(ctx, "leaf", "vtepd"); return err },
		func() error { _, err := root.AuthEnable(ctx); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	right := Options{Endpoints: endpoints(e), Username: "leaf", Password: password, Timeout: 3 * time.Second}
	works(t, right)
	url := endpoints(e)[0]
	denied(t, Options{Endpoints: endpoints(e), Username: "leaf", Password: "wrong-secret"}, url+": etcdserver: authentication failed, invalid user ID or password")
	denied(t, Options{Endpoints: endpoints(e)}, url+": etcdserver: user name is empty")
	elsewhere := right
	elsewhere.Prefix = "/other"
	denied(t, elsewhere, url+": etcdserver: permission denied")

	// Watching too, and past the end of a token: etcd forgets all of them when it is asked to.
	s := open(t, right)
	first, err := s.Changes(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, right).Create(ctx, sample(2)); err != nil {
		t.Fatal(err)
	}
	if ch, err := s.Changes(ctx, first.Next); err != nil || len(ch.Set) != 1 {
		t.Errorf("changes: %+v %v", ch, err)
	}
	asRoot, err := clientv3.New(clientv3.Config{Endpoints: endpoints(e), Logger: zap.NewNop(), Username: "root", Password: "r"})
	if err != nil {
		t.Fatal(err)
	}
	defer asRoot.Close()
	// Whatever changes who may do what makes tokens from before it useless for a while.
	if _, err := asRoot.UserAdd(ctx, "another", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, sample(3)); err != nil {
		t.Errorf("after a change of users: %v", err)
	}
	if _, err := asRoot.UserChangePassword(ctx, "leaf", "changed"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Create(ctx, sample(4))
	if err == nil || strings.Contains(fmt.Sprintf("%+v %#v", err, err), password) {
		t.Errorf("with the old password: %v", err)
	}
}
