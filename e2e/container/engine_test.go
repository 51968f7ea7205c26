//go:build containers

package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vtepd/e2e/lab"
)

// engine is a Docker of this guest's own.
type engine struct{ dir string }

// start starts dockerd with all it keeps in memory. It gets no bridge and touches no packet filter: the containers have the
// network namespaces that the lab gives them.
func start(t *testing.T) *engine {
	t.Helper()
	e := &engine{dir: t.TempDir()}
	data := filepath.Join(e.dir, "data")
	if err := os.Mkdir(data, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, "mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(data, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	// containerd on its own: dockerd waits 15 seconds for the one that it starts, whatever the machine.
	config := filepath.Join(e.dir, "containerd.toml")
	if err := os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	containerd := filepath.Join(e.dir, "containerd.sock")
	e.daemon(t, containerd, "containerd", "--config="+config, "--root="+filepath.Join(data, "containerd"),
		"--state="+filepath.Join(e.dir, "containerd"), "--address="+containerd)
	e.daemon(t, e.socket(), "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--data-root="+data, "--containerd="+containerd,
		"--exec-root="+filepath.Join(e.dir, "exec"), "--pidfile="+filepath.Join(e.dir, "pid"), "--host=unix://"+e.socket())
	return e
}

// daemon runs a program until the end of the test, and waits for its socket.
func (e *engine) daemon(t *testing.T, socket string, args ...string) {
	t.Helper()
	said, err := os.Create(filepath.Join(e.dir, args[0]+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("%s: %v", args[0], err)
		}
		if t.Failed() {
			log, err := os.ReadFile(said.Name())
			t.Logf("%s said (%v):\n%s", args[0], err, log[max(0, len(log)-6000):])
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err = lab.Eventually(ctx, args[0], func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return c.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (e *engine) socket() string { return filepath.Join(e.dir, "docker.sock") }

// docker runs the docker program and returns what it printed.
func (e *engine) docker(ctx context.Context, args ...string) (string, error) {
	return e.run(ctx, nil, nil, args...)
}

func (e *engine) run(ctx context.Context, env []string, in *exec.Cmd, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(append(os.Environ(), "DOCKER_HOST=unix://"+e.socket(), "HOME="+e.dir), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if in != nil {
		pipe, err := in.StdoutPipe()
		if err != nil {
			return "", err
		}
		in.Stderr = &said
		cmd.Stdin = pipe
		if err := in.Start(); err != nil {
			return "", err
		}
	}
	err := cmd.Run()
	if in != nil {
		err = errors.Join(err, in.Wait())
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// images brings in FRR, made of this guest's own Debian, and vtepd, from the archive that make image wrote.
func (e *engine) images(ctx context.Context, archive string) error {
	root := exec.Command("tar", "--create", "--one-file-system", "--directory=/", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*",
		"--exclude=./run/*", "--exclude=./tmp/*", "--exclude=./work", "--exclude=./usr/lib/modules", "--exclude=./usr/share/doc",
		"--exclude=./usr/share/locale", "--exclude=./usr/share/man", "--exclude=./var/lib/apt", "--exclude=./var/cache", "--exclude=./usr/libexec/docker",
		"--exclude=./usr/bin/docker*", "--exclude=./usr/sbin/dockerd", "--exclude=./usr/bin/containerd*", "--exclude=./usr/bin/etcd*", ".")
	if _, err := e.run(ctx, nil, root, "import", "-", "frr:10.3"); err != nil {
		return err
	}
	_, err := e.docker(ctx, "load", "--input", archive)
	return err
}

// pid is the first process of a running container, as this guest sees it.
func (e *engine) pid(ctx context.Context, container string) (int, error) {
	out, err := e.docker(ctx, "inspect", "--format", "{{.State.Pid}}", container)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(out)
	if err == nil && pid == 0 {
		err = errors.New("it isn't running")
	}
	if err != nil {
		return 0, fmt.Errorf("container %s: %w", container, err)
	}
	return pid, nil
}

// router is one compose project: a leaf.
type router struct {
	*engine
	name string
	env  []string
	drop string
}

// router prepares the project of a leaf, with the files of the containerlab topology.
func (e *engine) router(name string) (*router, error) {
	checkout, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	r := &router{engine: e, name: name, drop: filepath.Join(e.dir, name, "drop")}
	files := filepath.Join(checkout, "containerlab", "evpn-l2")
	group, err := exec.Command("getent", "group", "frrvty").Output()
	if err != nil {
		return nil, fmt.Errorf("group frrvty: %w", err)
	}
	r.env = []string{
		"FRR_CONF=" + filepath.Join(files, name, "frr.conf"), "FRR_COMMON=" + filepath.Join(files, "common"), "DROP=" + r.drop,
		"FRRVTY_GID=" + strings.Split(string(group), ":")[2],
	}
	return r, os.MkdirAll(r.drop, 0o755)
}

// compose runs docker compose on the file at the top of the checkout.
func (r *router) compose(ctx context.Context, args ...string) error {
	all := append([]string{"compose", "--file", "../../compose.yaml", "--project-name", r.name, "--progress", "plain"}, args...)
	_, err := r.run(ctx, r.env, nil, all...)
	return err
}

// container is the name of a service's container.
func (r *router) container(service string) string { return r.name + "-" + service + "-1" }

// service is the first process of a service's container.
func (r *router) service(ctx context.Context, service string) (int, error) {
	return r.pid(ctx, r.container(service))
}
