package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	"vtepd/alloc"
)

// keepAlive is how soon a member that has fallen silent is noticed: gRPC allows no less than ten seconds.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// probeAfter is how long a call is waited for before looking whether anyone can be reached at all.
const probeAfter = 300 * time.Millisecond

// pause is between two tries, and pauseAway between two looks whether etcd is back.
const (
	pause     = 50 * time.Millisecond
	pauseAway = 500 * time.Millisecond
)

// fail wraps the cause of a call's failure; the context's own error stays itself.
func (s *Store) fail(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var u unreachable
	if errors.As(err, &u) {
		return fmt.Errorf("%s: %w: etcd %w", what, alloc.ErrUnavailable, u)
	}
	return fmt.Errorf("%s: %w: etcd %s: %w", what, alloc.ErrUnavailable, s.names(), err)
}

// names are the endpoints, for people.
func (s *Store) names() string { return strings.Join(s.opts.Endpoints, ", ") }

// client is the connection, made by the first call that needs it: with a password, making it means asking etcd.
func (s *Store) client(ctx context.Context) (*clientv3.Client, error) {
	s.dialMu.Lock()
	if s.cli != nil {
		defer s.dialMu.Unlock()
		return s.cli, nil
	}
	d := s.dialing
	if d == nil {
		d = &dial{done: make(chan struct{})}
		s.dialing = d
		s.tasks.Go(func() {
			cli, err := clientv3.New(clientv3.Config{
				Endpoints: s.opts.Endpoints, TLS: s.tls, Username: s.opts.Username, Password: s.opts.Password,
				Context: s.life, DialTimeout: s.try(), DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
				Logger: zap.NewNop(), MaxUnaryRetries: 2, // the second is for a token that has run out
				// By itself gRPC comes to look once in two minutes.
				DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
					Backoff:           backoff.Config{BaseDelay: pause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: pauseAway},
					MinConnectTimeout: s.try(),
				})},
			})
			s.dialMu.Lock()
			s.cli, s.dialing, d.err = cli, nil, err
			s.dialMu.Unlock()
			close(d.done)
		})
	}
	s.dialMu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-d.done:
	}
	if d.err != nil {
		return nil, d.err
	}
	return s.client(ctx)
}

type dial struct {
	done chan struct{}
	err  error
}

// try is how long one member is given to answer before another is asked.
func (s *Store) try() time.Duration { return s.opts.Timeout / 3 }

// once calls f once. When nobody can be reached, it ends early with an unreachable.
func (s *Store) once(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.try())
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var away atomic.Pointer[unreachable]
	probe := time.AfterFunc(probeAfter, func() {
		first := s.probe(ctx)
		if first == nil || ctx.Err() != nil {
			return
		}
		away.Store(&first)
		// Twice: a connection that is cut once is no etcd that is away.
		if wait(ctx, pause) && s.probe(ctx) != nil {
			stop(first)
		}
	})
	defer probe.Stop()
	cli, err := s.client(ctx)
	if err == nil {
		err = f(ctx, cli)
	}
	if u := away.Load(); err != nil && ctx.Err() != nil && u != nil {
		return *u
	}
	return err
}

// read calls f until it has an answer, a refusal or no more time. f must be one that can be repeated.
func (s *Store) read(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var last error
	for {
		err := s.once(ctx, f)
		if err == nil || refusal(err) {
			return err
		}
		last = worse(last, err)
		if u := (unreachable{}); errors.As(err, &u) {
			return err
		}
		if !wait(ctx, pause) {
			return s.timedOut(last)
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// worse is the error that says more: a member's own words rather than silence.
func worse(last, err error) error {
	if last != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return last
	}
	return err
}

func (s *Store) timedOut(last error) error {
	if last == nil || errors.Is(last, context.DeadlineExceeded) || errors.Is(last, context.Canceled) {
		return fmt.Errorf("no answer within %s", s.opts.Timeout)
	}
	return fmt.Errorf("not within %s: %w", s.opts.Timeout, last)
}

// refusal reports whether err is etcd's word that it did nothing and won't.
func refusal(err error) bool {
	var r *replaced
	if errors.As(err, &r) || errors.Is(err, errUnsure) {
		return true
	}
	var e rpctypes.EtcdError
	if !errors.As(err, &e) && !errors.As(rpctypes.Error(err), &e) {
		return false
	}
	switch e.Code() {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange, codes.ResourceExhausted:
		return true
	}
	return false
}

// unreachable says of each endpoint why it can't be talked to.
type unreachable []string

func (u unreachable) Error() string { return strings.Join(u, "; ") }

// probe looks whether any endpoint speaks HTTP/2 to us: gRPC itself goes on trying and says nothing. nil when one does.
func (s *Store) probe(ctx context.Context) unreachable {
	causes := make(unreachable, len(s.opts.Endpoints))
	var wg sync.WaitGroup
	for i, e := range s.opts.Endpoints {
		wg.Go(func() {
			if err := s.greet(ctx, e); err != nil {
				causes[i] = fmt.Sprintf("%s: %v", e, err)
			}
		})
	}
	wg.Wait()
	for _, c := range causes {
		if c == "" {
			return nil
		}
	}
	return causes
}

// preface is how an HTTP/2 client begins (RFC 9113, section 3.4), with empty settings.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// greet opens a connection of its own. The answer to the preface is awaited because with TLS 1.3 that is when a client learns that its
// certificate isn't good enough.
func (s *Store) greet(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, s.try())
	defer cancel()
	address, name := hostOf(endpoint)
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return short(err)
	}
	defer conn.Close()
	undo := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer undo()
	if s.tls != nil {
		cfg := s.tls.Clone()
		cfg.ServerName, cfg.NextProtos = name, []string{"h2"}
		c := tls.Client(conn, cfg)
		if err := c.HandshakeContext(ctx); err != nil {
			return short(err)
		}
		conn = c
	}
	if _, err := io.WriteString(conn, preface); err != nil {
		return short(err)
	}
	var frame [9]byte
	if _, err := io.ReadFull(conn, frame[:]); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("it closes the connection without a word; does it want https?")
		}
		return short(err)
	}
	if frame[3] != 4 { // SETTINGS
		return errors.New("it doesn't speak HTTP/2; is it etcd?")
	}
	return nil
}

// short is a network error without the addresses, which are said already.
func short(err error) error {
	var t net.Error
	if errors.As(err, &t) && t.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer")
	}
	var op *net.OpError
	for errors.As(err, &op) && op.Op != "remote error" {
		err = op.Err
	}
	var sys interface{ Unwrap() error }
	if errors.As(err, &sys) {
		if inner := sys.Unwrap(); inner != nil && strings.HasPrefix(err.Error(), "connect: ") {
			return inner
		}
	}
	return err
}
