package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
)

// DefaultPrefix is where the keys of a ledger are when nothing else is said.
const DefaultPrefix = "/vtepd"

// DefaultTimeout bounds one call, retries included.
const DefaultTimeout = 5 * time.Second

// Options say where a ledger is, and how to be let in.
type Options struct {
	// Endpoints are the members' client URLs, "https://10.0.0.1:2379". Without a scheme it is https if CA, Cert or Key is given, and
	// http if not. One that answers will do.
	Endpoints []string
	Prefix    string // of all keys; "" is DefaultPrefix
	CA        string // PEM file of who signed the members' certificates; "" is the system's
	Cert, Key string // PEM files of the client's own certificate, read anew for each handshake; "" is none
	Username  string // "" is without authentication by name
	Password  string // never in an error
	Timeout   time.Duration
	ReadOnly  bool // every write fails with alloc.ErrReadOnly
	// Cache is a file that keeps what the claims of Node (those named Node/…) hold, for a start while etcd is away: "" is none. It
	// also remembers which ledger it was, so that an etcd that has lost it isn't taken for an empty one.
	Cache string
	Node  string
}

// Check says what is wrong with o, as far as that can be said without asking anybody.
func (o Options) Check() error {
	_, _, err := o.parse()
	return err
}

// parse is o with its defaults, the endpoints in full, and the TLS configuration, which is nil for http.
func (o Options) parse() (Options, *tls.Config, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	secure := o.CA != "" || o.Cert != "" || o.Key != ""
	o.Endpoints = slices.Clone(o.Endpoints)
	if len(o.Endpoints) == 0 {
		bad("endpoints: at least one is needed; https://10.0.0.1:2379 would be right")
	}
	https := 0
	for i, e := range o.Endpoints {
		full, err := endpoint(e, secure)
		if err != nil {
			bad("endpoints[%d]: %w", i, err)
			continue
		}
		if slices.Contains(o.Endpoints[:i], full) {
			bad("endpoints[%d]: %s is there twice", i, full)
		}
		o.Endpoints[i] = full
		if strings.HasPrefix(full, "https:") {
			https++
		}
	}
	switch {
	case len(errs) > 0:
	case https > 0 && https < len(o.Endpoints):
		bad("endpoints: some are https and some http; all of one kind would be right")
	case https == 0 && secure:
		bad("endpoints: http has no use for certificates; https would be right")
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Prefix == "/" || strings.HasSuffix(o.Prefix, "/") || strings.ContainsFunc(o.Prefix, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		bad("prefix: %q: no slash at the end and no space would be right, as in %s", o.Prefix, DefaultPrefix)
	}
	switch {
	case o.Username == "" && o.Password != "":
		bad("username: a password without a name")
	case o.Username != "" && o.Password == "":
		bad("password: %s needs one", o.Username)
	}
	if o.Timeout < 0 {
		bad("timeout: %s; a positive duration would be right", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Cache != "" && o.Node == "" {
		bad("node: a cache needs the name of whose claims it keeps")
	}
	cfg, err := o.tls()
	if err != nil {
		errs = append(errs, err)
	}
	if https == 0 {
		cfg = nil
	}
	return o, cfg, errors.Join(errs...)
}

func endpoint(s string, secure bool) (string, error) {
	full := s
	if !strings.Contains(s, "://") {
		full = "http://" + s
		if secure {
			full = "https://" + s
		}
	}
	u, err := url.Parse(full)
	if err == nil && u.User != nil {
		// Not quoted: what comes before the @ may be a password.
		return "", errors.New("an endpoint has no user; username and password are fields of their own")
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		if strings.Contains(s, "@") {
			return "", errors.New("not a URL of an etcd member; https://10.0.0.1:2379 would be right")
		}
		return "", fmt.Errorf("%q is not a URL of an etcd member; https://10.0.0.1:2379 would be right", s)
	}
	return u.Scheme + "://" + u.Host, nil
}

func (o Options) tls() (*tls.Config, error) {
	var errs []error
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		cfg.RootCAs = x509.NewCertPool()
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("ca: %w", err))
		case !cfg.RootCAs.AppendCertsFromPEM(pem):
			errs = append(errs, fmt.Errorf("ca: %s: no certificate in it", o.CA))
		}
	}
	switch {
	case (o.Cert == "") != (o.Key == ""):
		errs = append(errs, errors.New("cert: a certificate and its key go together; one of them is missing"))
	case o.Cert != "":
		load := func() (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(o.Cert, o.Key)
			if err != nil {
				return nil, fmt.Errorf("cert: %s with %s: %w", o.Cert, o.Key, err)
			}
			return &c, nil
		}
		if _, err := load(); err != nil {
			errs = append(errs, err)
		}
		// So that a renewed certificate needs no restart.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return cfg, errors.Join(errs...)
}

// hostOf is an endpoint as a dialer has it, and the name that its certificate must have.
func hostOf(endpoint string) (address, name string) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return endpoint, ""
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), u.Hostname()
}
