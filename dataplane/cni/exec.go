package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// processes runs plugins as processes.
type processes struct{ version.PluginDecoder }

// Processes runs each plugin as a process of its own, as little privileged as can be: as nobody with no capability but those
// that a link and a namespace need, where vtepd may change its user (CAP_SETUID and CAP_SETGID), and else as vtepd, with what
// that has; without vtepd's environment, and killed, with all that it has started, when the context ends or vtepd dies.
func Processes() invoke.Exec { return &processes{} }

const (
	nobody      = 65534
	capSetGID   = 6
	capSetUID   = 7
	capNetAdmin = 12
	capSysAdmin = 21 // to enter the namespace that it is told, be it the one that it is in
	// mostOutput is how many bytes of a plugin's answer are read.
	mostOutput = 1 << 20
	// grace is how long a plugin that was killed may keep its pipes open.
	grace = time.Second
)

// passed are the variables that a plugin gets (CNI specification, "Parameters").
var passed = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_ARGS", "CNI_IFNAME", "CNI_PATH"}

func environment(from []string) []string {
	env := []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"CNI_NETNS_OVERRIDE=1", // newer plugins refuse a CNI_NETNS that they are in already, unless told so
	}
	for _, kv := range from {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(passed, name) {
			env = append(env, kv)
		}
	}
	return env
}

// capabilities are those that this process can use, by bit.
func capabilities() uint64 {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return caps
		}
	}
	return 0
}

// lowered is whom to run a plugin as, and the capabilities that it keeps: nil where this process can't change who it is.
func lowered(caps uint64) (*syscall.Credential, []uintptr) {
	has := func(bit uintptr) bool { return caps&(1<<bit) != 0 }
	if !has(capSetUID) || !has(capSetGID) {
		return nil, nil
	}
	var keep []uintptr
	for _, c := range []uintptr{capNetAdmin, capSysAdmin} {
		if has(c) {
			keep = append(keep, c)
		}
	}
	return &syscall.Credential{Uid: nobody, Gid: nobody}, keep
}

// ExecPlugin implements invoke.Exec.
func (p *processes) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	stdout, stderr := &limited{most: mostOutput}, &limited{most: mostOutput}
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(environ), "/", grace
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.SysProcAttr.Credential, cmd.SysProcAttr.AmbientCaps = lowered(capabilities())
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// The signal of a parent's death is that of its thread, which must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s was stopped: %w", path, context.Cause(ctx))
	case err != nil:
		return nil, refusal(path, err, stdout.kept, stderr.kept)
	case stdout.over:
		return nil, fmt.Errorf("%s answers with more than %d bytes", path, mostOutput)
	}
	return stdout.kept, nil
}

// refusal is a failure in the plugin's own words.
func refusal(path string, err error, stdout, stderr []byte) error {
	said := &cnitypes.Error{}
	if json.Unmarshal(stdout, said) == nil && said.Msg != "" {
		return said
	}
	if words := strings.Join(strings.Fields(string(append(stdout, stderr...))), " "); words != "" {
		return fmt.Errorf("%s: %w: %s", path, err, words[:min(len(words), 500)])
	}
	return fmt.Errorf("%s: %w", path, err)
}

// FindInPath implements invoke.Exec.
func (p *processes) FindInPath(plugin string, paths []string) (string, error) {
	if strings.Contains(plugin, "/") {
		return "", errors.New("a plugin's name has no slash")
	}
	return invoke.FindInPath(plugin, paths)
}

// limited keeps the first bytes of what is written.
type limited struct {
	kept []byte
	most int
	over bool
}

func (l *limited) Write(b []byte) (int, error) {
	keep := b[:min(len(b), l.most-len(l.kept))]
	l.over = l.over || len(keep) < len(b)
	l.kept = append(l.kept, keep...)
	return len(b), nil
}
