package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Serve answers GET /status on l, and whatever routes add, until ctx ends, and closes l.
func (b *Board) Serve(ctx context.Context, l net.Listener, routes ...func(*http.ServeMux)) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		s, _ := b.Get()
		s.Goroutines = runtime.NumGoroutine()
		w.Header().Set("Content-Type", "application/json")
		_ = s.JSON(w) // the reader went away: nobody is left to tell
	})
	for _, add := range routes {
		add(mux)
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("status socket %s: %w", l.Addr(), err)
	}
	return nil
}

// Listen makes a unix socket at path that only root (or the daemon's own user) can open. One that an earlier daemon left
// is replaced; one that still answers is an error: two daemons on one router. Call it before there are other goroutines
// that make files: it changes the umask for a moment.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("status socket %s: %w", path, err)
	}
	return l, nil
}

func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSocket == 0 {
		return nil, errors.New("what is there is no socket; move it away, or use another path")
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return nil, errors.New("another vtepd answers there; stop it first, or give this one another socket")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The mode is right from the first moment: nobody can connect before a chmod.
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	return net.Listen("unix", path)
}

// Client speaks HTTP over the unix socket at path, whatever the host of a URL.
func Client(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
}

// Fetch asks the daemon at path for its snapshot.
func Fetch(ctx context.Context, path string) (Snapshot, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://vtepd/status", nil)
	if err != nil {
		return Snapshot{}, err
	}
	resp, err := Client(path).Do(req)
	if err != nil {
		return Snapshot{}, fmt.Errorf("no answer from vtepd at %s: %w", path, err)
	}
	defer resp.Body.Close()
	var s Snapshot
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("vtepd at %s answers %s", path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return s, fmt.Errorf("vtepd at %s: %w", path, err)
	}
	return s, nil
}
