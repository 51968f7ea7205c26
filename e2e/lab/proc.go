package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Proc is a process that runs in a node, until it ends, is ended, or the lab is
// destroyed. What it writes goes to a file, see Log.
type Proc struct {
	Name string // of the node and the command

	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // of Wait; set when done is closed
}

// Start runs a command in the node in the background. Without arguments it is what the topology
// says the node runs: its entrypoint and cmd.
func (n *Node) Start(ctx context.Context, args ...string) (*Proc, error) {
	if len(args) == 0 {
		args = append(append(args, n.Def.Entrypoint...), n.Def.Cmd...)
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("%s: nothing to start: the topology has neither entrypoint nor cmd", n.Name)
	}
	return n.startProc(ctx, n.command(args))
}

// StartWith is Start with further arguments at the end of those of the topology.
func (n *Node) StartWith(ctx context.Context, args ...string) (*Proc, error) {
	return n.Start(ctx, append(append(append([]string{}, n.Def.Entrypoint...), n.Def.Cmd...), args...)...)
}

func (n *Node) startProc(ctx context.Context, cmd *exec.Cmd) (*Proc, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	n.procs++
	base := filepath.Base(cmd.Args[0])
	p := &Proc{
		Name: n.Name + ": " + base,
		cmd:  cmd,
		log:  filepath.Join(n.lab.scratch, "log", fmt.Sprintf("%s-%02d-%s.log", n.Name, n.procs, base)),
		done: make(chan struct{}),
	}
	if err := os.MkdirAll(filepath.Dir(p.log), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = f
	}
	cmd.Stderr = f
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // an interrupt at the terminal is ours to handle
	if err := n.start(cmd); err != nil {
		return nil, fmt.Errorf("%s: start %s: %w", n.Name, strings.Join(cmd.Args, " "), err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	n.lab.onDestroy(func() error {
		p.cmd.Process.Kill()
		<-p.done
		return nil
	})
	return p, nil
}

// Pid is the process's id, as this program sees it.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Running says whether the process hasn't ended.
func (p *Proc) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal. A process that has ended is no error.
func (p *Proc) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process at once, with SIGKILL, and waits for its end.
func (p *Proc) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, with SIGTERM, and waits for its end. It returns
// what Wait does.
func (p *Proc) Stop(ctx context.Context) error {
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Wait waits for the end of the process. Its error is nil when the process ended with status 0, an
// *exec.ExitError with another status or by a signal, or the context's.
func (p *Proc) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("%s: still running: %w", p.Name, context.Cause(ctx))
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Log is what the process has written so far.
func (p *Proc) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// WaitLog waits until the process has written a line that contains text, and
// returns the line. The end of the process is an error.
func (p *Proc) WaitLog(ctx context.Context, text string) (string, error) {
	var line string
	err := Eventually(ctx, fmt.Sprintf("%s: a line with %q", p.Name, text), func(context.Context) error {
		running := p.Running()
		s := bufio.NewScanner(strings.NewReader(p.Log()))
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			if strings.Contains(s.Text(), text) {
				line = s.Text()
				return nil
			}
		}
		if !running {
			return Final(errors.New("the process has ended"))
		}
		return errors.New("not there yet")
	})
	return line, err
}
