package fabric

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// Interposer stands between vtepd and a daemon of FRR's, on the daemon's own socket: it passes everything on, but for the
// lines that it is told to answer itself. It is there to inject what a healthy FRR doesn't do.
type Interposer struct {
	path, real string
	listener   net.Listener
	answer     func(line string) (reply []byte, ok bool)
	wg         sync.WaitGroup
}

// Interpose takes the place of the socket DIR/DAEMON.vty until Close. answer gives the bytes to answer a line with, and
// whether to; nil bytes close the connection. It is called from several goroutines.
func Interpose(dir, daemon string, answer func(line string) (reply []byte, ok bool)) (*Interposer, error) {
	p := &Interposer{path: filepath.Join(dir, daemon+".vty"), answer: answer}
	p.real = p.path + ".real"
	if err := os.Rename(p.path, p.real); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", p.path)
	if err != nil {
		return nil, errors.Join(err, os.Rename(p.real, p.path))
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	p.listener = l
	p.wg.Go(p.serve)
	return p, nil
}

// Refusal is an answer in FRR's form: text, and the return code of a failed command.
func Refusal(text string) []byte { return append([]byte(text+"\n"), 0, 0, 0, 1) }

func (p *Interposer) serve() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.pass(c)
	}
}

func (p *Interposer) pass(c net.Conn) {
	defer c.Close()
	d, err := net.Dial("unix", p.real)
	if err != nil {
		return
	}
	defer d.Close()
	go func() {
		_, _ = io.Copy(c, d) // it ends when either side does
		c.Close()
	}()
	var pending []byte
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		pending = append(pending, buf[:n]...)
		for {
			line, rest, found := bytes.Cut(pending, []byte{0})
			if !found {
				break
			}
			pending = rest
			if reply, ok := p.answer(string(line)); ok {
				if reply == nil {
					return
				}
				_, err = c.Write(reply)
			} else {
				_, err = d.Write(append(line, 0))
			}
			if err != nil {
				return
			}
		}
	}
}

// Close puts the daemon's own socket back. Connections that are open stay so.
func (p *Interposer) Close() error {
	err := p.listener.Close()
	p.wg.Wait()
	return errors.Join(err, os.Rename(p.real, p.path))
}
