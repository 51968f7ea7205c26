//go:build containers || containerlab

package container

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"vtepd/e2e/lab"
)

// engine is a Docker of this guest's own. It is asked over its socket: the docker program would do the same, and take an
// emulated guest seconds each time.
type engine struct {
	dir  string
	api  *http.Client
	note func(format string, args ...any) // what happens, and when
}

// start starts containerd and dockerd with all they keep in memory. dockerd gets no bridge and touches no packet filter: the
// containers have the network namespaces that the lab gives them. At the test's end nothing of the engine may be left.
func start(t *testing.T, note func(string, ...any)) *engine {
	t.Helper()
	e := &engine{dir: t.TempDir(), note: note}
	e.api = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.socket())
	}}}
	// A shim outlives its container by a moment.
	gone := func(what string, is func() error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := lab.Eventually(ctx, what, func(context.Context) error { return is() }); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { gone("nothing of the engine is left", e.residue) })
	data := filepath.Join(e.dir, "data")
	if err := os.Mkdir(data, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", data, "tmpfs", 0, "mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gone("unmount "+data, func() error { return unix.Unmount(data, 0) }) }) // not in use by anything: no MNT_DETACH
	// containerd on its own: dockerd waits 15 seconds for the one that it starts, whatever the machine.
	config := filepath.Join(e.dir, "containerd.toml")
	if err := os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	containerd := filepath.Join(e.dir, "containerd.sock")
	e.daemon(t, "containerd", "--config="+config, "--root="+filepath.Join(data, "containerd"),
		"--state="+filepath.Join(e.dir, "containerd"), "--address="+containerd)
	e.daemon(t, "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=overlay2",
		"--data-root="+data, "--containerd="+containerd, "--exec-root="+filepath.Join(e.dir, "exec"),
		"--pidfile="+filepath.Join(e.dir, "pid"), "--host=unix://"+e.socket())
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var version struct{ Version, KernelVersion string }
	if err := lab.Eventually(ctx, "dockerd", func(ctx context.Context) error { return e.get(ctx, "/version", &version) }); err != nil {
		t.Fatal(err)
	}
	note("Docker Engine %s on Linux %s", version.Version, version.KernelVersion)
	e.follow(t)
	return e
}

// daemon runs a program until the end of the test.
func (e *engine) daemon(t *testing.T, args ...string) {
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
}

func (e *engine) socket() string { return filepath.Join(e.dir, "docker.sock") }

// do sends a request and returns the answer's body, which the caller closes.
func (e *engine) do(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return nil, err
	}
	if kind := "application/json"; body != nil {
		if strings.HasPrefix(path, "/images/") || strings.HasPrefix(path, "/build?") {
			kind = "application/x-tar"
		}
		req.Header.Set("Content-Type", kind)
	}
	resp, err := e.api.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 {
		said, err := io.ReadAll(resp.Body)
		return nil, errors.Join(fmt.Errorf("docker: %s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(said)), err, resp.Body.Close())
	}
	return resp.Body, nil
}

func (e *engine) get(ctx context.Context, path string, v any) error {
	body, err := e.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return errors.Join(json.NewDecoder(body).Decode(v), body.Close())
}

// post sends a request whose answer is a list of messages, of which one may be an error, or nothing.
func (e *engine) post(ctx context.Context, path string, in io.Reader) error {
	body, err := e.do(ctx, http.MethodPost, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	for d := json.NewDecoder(body); ; {
		var m struct{ Error string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("docker: POST %s: %w", path, err)
		}
		if m.Error != "" {
			return fmt.Errorf("docker: POST %s: %s", path, m.Error)
		}
	}
}

// follow notes what happens to the containers.
func (e *engine) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	body, err := e.do(ctx, http.MethodGet, `/events?filters={"type":["container"]}`, nil)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer body.Close()
		for d := json.NewDecoder(body); ; {
			var m struct {
				Action string
				Actor  struct{ Attributes map[string]string }
			}
			if d.Decode(&m) != nil {
				return
			}
			if !strings.HasPrefix(m.Action, "exec_") {
				e.note("  %s: %s %s", m.Actor.Attributes["name"], m.Action, m.Actor.Attributes["exitCode"])
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// image is what the engine says of an image.
type image struct {
	ID     string `json:"Id"`
	Size   int64
	Config v1.Config
}

func (e *engine) image(ctx context.Context, ref string) (i image, err error) {
	return i, e.get(ctx, "/images/"+ref+"/json", &i)
}

// imports makes an image of files of this guest's root: FRR's, and what those need.
func (e *engine) imports(ctx context.Context, ref string) error {
	files, err := routerFiles()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "tar", "--create", "--directory=/", "--no-recursion", "--null", "--files-from=-")
	cmd.Stdin = strings.NewReader(strings.Join(files, "\x00"))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	name, tag, _ := strings.Cut(ref, ":")
	err = e.post(ctx, "/images/create?fromSrc=-&repo="+name+"&tag="+tag, out)
	if werr := cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("tar: %w: %s", werr, said.Bytes()))
	}
	return err
}

// load brings in an archive that make image wrote.
func (e *engine) load(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("%w (make image makes it)", err)
	}
	defer f.Close()
	return e.post(ctx, "/images/load?quiet=1", f)
}

// build has the engine follow the Dockerfile of a checkout with the program that lies there.
func (e *engine) build(ctx context.Context, checkout, ref, version string) error {
	program, err := os.ReadFile(filepath.Join(checkout, "bin", "vtepd"))
	if err != nil {
		return err
	}
	recipe, err := os.ReadFile(filepath.Join(checkout, "Dockerfile"))
	if err != nil {
		return err
	}
	return e.follows(ctx, ref, map[string]string{"VERSION": version}, map[string][]byte{"Dockerfile": recipe, "bin/vtepd": program})
}

// next gives the name of an image to another one, that differs in a label.
func (e *engine) next(ctx context.Context, ref string) error {
	return e.follows(ctx, ref, nil, map[string][]byte{"Dockerfile": []byte("FROM " + ref + "\nLABEL next=true\n")})
}

// follows has the engine follow a Dockerfile, with some files beside it.
func (e *engine) follows(ctx context.Context, ref string, args map[string]string, files map[string][]byte) error {
	values, err := json.Marshal(args)
	if err != nil {
		return err
	}
	var in bytes.Buffer
	tw := tar.NewWriter(&in)
	for name, data := range files {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return e.post(ctx, "/build?"+url.Values{"t": {ref}, "buildargs": {string(values)}, "rm": {"1"}}.Encode(), &in)
}

// container is what the engine says of a container.
type container struct {
	ID    string `json:"Id"`
	Image string // its id
	State struct {
		Pid    int
		Health struct {
			Status string
			Log    []struct{ Output string }
		}
	}
	HostConfig struct {
		ReadonlyRootfs  bool
		Privileged      bool
		CapAdd, CapDrop []string
	}
	Mounts []struct {
		Destination string
		RW          bool
	}
	Config struct {
		Image string
		Tty   bool
	}
}

func (e *engine) inspect(ctx context.Context, name string) (c container, err error) {
	return c, e.get(ctx, "/containers/"+name+"/json", &c)
}

// pid is the first process of a running container, as this guest sees it.
func (e *engine) pid(ctx context.Context, name string) (int, error) {
	c, err := e.inspect(ctx, name)
	if err == nil && c.State.Pid == 0 {
		err = fmt.Errorf("container %s isn't running", name)
	}
	return c.State.Pid, err
}

// logs gives each what a container has said, line by line; with follow also what it says from then on, until each returns false
// or ctx ends.
func (e *engine) logs(ctx context.Context, name string, follow bool, each func(line string) bool) error {
	c, err := e.inspect(ctx, name)
	if err != nil {
		return err
	}
	body, err := e.do(ctx, http.MethodGet, fmt.Sprintf("/containers/%s/logs?stdout=1&stderr=1&tail=60&follow=%t", name, follow), nil)
	if err != nil {
		return err
	}
	defer body.Close()
	if c.Config.Tty {
		lines := bufio.NewScanner(body)
		for lines.Scan() && each(lines.Text()) {
		}
		return lines.Err()
	}
	// Each piece: the stream, three zeros, four bytes of length, and a line.
	head := make([]byte, 8)
	for r := bufio.NewReader(body); ; {
		if _, err := io.ReadFull(r, head); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		line := make([]byte, binary.BigEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(r, line); err != nil {
			return err
		}
		if !each(strings.TrimSuffix(string(line), "\n")) {
			return nil
		}
	}
}

// says waits until a container has said something.
func (e *engine) says(ctx context.Context, name, what string) error {
	said := false
	err := e.logs(ctx, name, true, func(line string) bool {
		said = strings.Contains(line, what)
		return !said
	})
	if err == nil && !said {
		err = errors.New("it has ended")
	}
	if err != nil {
		return fmt.Errorf("container %s: waiting for %q: %w", name, what, err)
	}
	return nil
}

// left is what the engine still has of containers, volumes and networks that it doesn't have by itself.
func (e *engine) left(ctx context.Context) error {
	var containers []struct{ Names []string }
	var volumes struct{ Volumes []struct{ Name string } }
	var networks []struct{ Name string }
	if err := errors.Join(e.get(ctx, "/containers/json?all=1", &containers), e.get(ctx, "/volumes", &volumes), e.get(ctx, "/networks", &networks)); err != nil {
		return err
	}
	var left []string
	for _, c := range containers {
		left = append(left, "container "+strings.Join(c.Names, " "))
	}
	for _, v := range volumes.Volumes {
		left = append(left, "volume "+v.Name)
	}
	for _, n := range networks {
		if n.Name != "none" && n.Name != "host" {
			left = append(left, "network "+n.Name)
		}
	}
	if left != nil {
		return fmt.Errorf("left in the engine: %s", strings.Join(left, ", "))
	}
	return nil
}

// residue says what of an engine that has ended is still there: mounts and processes.
func (e *engine) residue() error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, e.dir) || strings.Contains(line, " nsfs ") {
			return fmt.Errorf("a mount is left: %s", strings.TrimSpace(line))
		}
	}
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	for _, exe := range programs {
		program, err := os.Readlink(exe)
		if err != nil {
			continue // the kernel's own, or gone meanwhile
		}
		if net, err := os.Readlink(filepath.Join(filepath.Dir(exe), "ns", "net")); err == nil && net != own {
			return fmt.Errorf("a process is left in network namespace %s: %s", net, program)
		}
		if base := filepath.Base(program); strings.HasPrefix(base, "containerd") || base == "dockerd" || base == "runc" || base == "vtepd" {
			return fmt.Errorf("a process is left: %s, %s", filepath.Dir(exe), program)
		}
	}
	return nil
}

// router is one compose project: a leaf.
type router struct {
	*engine
	name  string
	env   []string
	drop  string
	files []string // of the project
}

// router prepares the project of a leaf, with the files of the containerlab topology.
func (e *engine) router(name string) (*router, error) {
	checkout, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	r := &router{engine: e, name: name, drop: filepath.Join(e.dir, name, "drop"), files: []string{"../../compose.yaml"}}
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
	began := time.Now()
	options := []string{"--project-name", r.name, "--progress", "plain"}
	for _, f := range r.files {
		options = append(options, "--file", f)
	}
	// What docker runs for its word compose.
	cmd := exec.CommandContext(ctx, "docker-compose", append(options, args...)...)
	cmd.Env = slices.Concat(os.Environ(), []string{"DOCKER_HOST=unix://" + r.socket(), "HOME=" + r.dir}, r.env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: docker compose %s: %w: %s", r.name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	r.note("%s: docker compose %s: took %.1fs", r.name, strings.Join(args, " "), time.Since(began).Seconds())
	return nil
}

// container is the name of a service's container.
func (r *router) container(service string) string { return r.name + "-" + service + "-1" }
