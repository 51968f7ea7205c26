package frrtest

import (
	"bytes"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// Answer is what a Server does about one line. The zero value is an empty answer with return code 0.
type Answer struct {
	Text  string
	RC    byte
	Raw   []byte // sent as it is instead of Text and RC, when not nil
	Hang  bool   // nothing is sent, and the connection stays open
	Close bool   // the connection is closed, after Raw if there is one
}

// Server is a vty socket that answers from a script and keeps the lines it got.
type Server struct {
	listener net.Listener
	mu       sync.Mutex
	lines    []string
	conns    []net.Conn
	stopped  bool
	wait     sync.WaitGroup
}

// Serve listens on DIR/DAEMON.vty until the test ends. answer is called for each line, `enable` included.
func Serve(t testing.TB, dir, daemon string, answer func(line string) Answer) *Server {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, daemon+".vty"))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{listener: l}
	s.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.stopped {
				conn.Close()
			}
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.wait.Go(func() { s.serve(conn, answer) })
		}
	})
	t.Cleanup(s.Stop)
	return s
}

// Stop closes the socket and every connection, as a daemon that ends does. Stopping twice does nothing.
func (s *Server) Stop() {
	s.listener.Close()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.Drop()
	s.wait.Wait()
}

// Drop closes every connection and goes on listening.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

// Lines returns the lines so far, in order, all connections in one list.
func (s *Server) Lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

func (s *Server) serve(conn net.Conn, answer func(string) Answer) {
	defer conn.Close()
	var pending []byte
	buf := make([]byte, 8192)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		pending = append(pending, buf[:n]...)
		for {
			line, rest, ok := bytes.Cut(pending, []byte{0})
			if !ok {
				break
			}
			pending = rest
			s.mu.Lock()
			s.lines = append(s.lines, string(line))
			s.mu.Unlock()
			a := answer(string(line))
			switch {
			case a.Hang:
				continue
			case a.Raw != nil || a.Close:
				conn.Write(a.Raw)
			default:
				conn.Write(append([]byte(a.Text), 0, 0, 0, a.RC))
			}
			if a.Close {
				return
			}
		}
	}
}
