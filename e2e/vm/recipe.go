// Package vm is the lab's ground: it builds a guest root for each FRR release,
// boots it in a virtual machine and runs command lines inside. It owns the
// cache of built guests and the processes of the machines that it boots, and
// never changes anything of the host but that cache.
package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Release is a Debian release whose FRR the lab tests against.
type Release struct {
	Name    string   // the suite, as in an apt source
	FRR     string   // the FRR version that it brings, as FRR says it
	AptOpts []string // options that its package lists need
}

// Recipe is everything that decides what a built guest holds. Its hash names
// the cache, so that a changed recipe is a new guest.
type Recipe struct {
	Releases []Release
	Packages []string // in every guest root
	Kernels  []string // packages, the first that the host knows: each points at a KernelPrefix one
	Prefix   string   // of the kernel package to fetch
	Modules  []string // loaded before the first job
	Revision int      // counts changes in how the values are used
}

// Default is the recipe in use. Every step was measured; see Build.
var Default = Recipe{
	Releases: []Release{
		{Name: "bookworm", FRR: "8.4.4"},
		{Name: "trixie", FRR: "10.3"},
		// Its release file can be past its date.
		{Name: "sid", FRR: "10.7.1", AptOpts: []string{`Acquire::Check-Valid-Until "false"`}},
	},
	Packages: []string{
		"frr", "frr-pythontools", "containernetworking-plugins", "etcd-server",
		"iproute2", "iputils-ping", "kmod", "iperf3", "tcpdump", "procps", "util-linux", "mount", "ethtool",
	},
	Kernels:  []string{"linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"},
	Prefix:   "linux-image-6.12",
	Modules:  []string{"overlay", "ipvlan", "vrf", "vxlan", "dummy", "bridge", "veth", "8021q", "macvlan", "tun"},
	Revision: 1,
}

// Containers is the recipe of the guest with a container engine, which only what is about containers needs.
var Containers = func() Recipe {
	r := Default
	r.Releases = []Release{{Name: "trixie", FRR: "10.3"}}
	r.Packages = append(slices.Clone(r.Packages), "docker.io", "docker-cli", "docker-compose")
	return r
}()

// Tested are the releases that the whole test suite runs on.
var Tested = []string{"bookworm", "trixie"}

// Hash is 16 hexadecimal digits over every value of the recipe.
func (r Recipe) Hash() string {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Release finds a release by its name.
func (r Recipe) Release(name string) (Release, error) {
	var known []string
	for _, x := range r.Releases {
		if x.Name == name {
			return x, nil
		}
		known = append(known, x.Name)
	}
	return Release{}, fmt.Errorf("release %q: unknown, would be one of %s", name, strings.Join(known, ", "))
}

// Cache is where the built guests are: below the user's cache directory, never
// in a checkout.
func (r Recipe) Cache() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the built guests: %w", err)
	}
	return filepath.Join(base, "vtepd", "guest-"+r.Hash()), nil
}

// Root is a guest as Build leaves it.
type Root struct {
	Release Release
	FRR     string // the version that the FRR in it says
	Dir     string // the root file system; never written to after it was built
	Kernel  string // the kernel's image
	Modules string // the kernel's module directory, lib/modules/VERSION
}

// Build makes what is missing of the guests for the named releases and returns
// them in that order. Several builds, of several processes, wait for each other.
func (r Recipe) Build(ctx context.Context, log io.Writer, names ...string) ([]Root, error) {
	cache, err := r.Cache()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	roots := make([]Root, len(names))
	for i, name := range names {
		if roots[i].Release, err = r.Release(name); err != nil {
			return nil, err
		}
	}
	// The kernel first: its modules go into every root.
	kernel := filepath.Join(cache, "kernel")
	if err := once(kernel, func(tmp string) error { return r.buildKernel(ctx, log, tmp) }); err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	for i, root := range roots {
		group.Go(func() error {
			dir := filepath.Join(cache, root.Release.Name)
			return once(dir, func(tmp string) error { return r.buildRoot(ctx, log, root.Release, kernel, tmp) })
		})
		roots[i].Dir = filepath.Join(cache, root.Release.Name, "root")
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i := range roots {
		version, err := os.ReadFile(filepath.Join(cache, roots[i].Release.Name, "frr-version"))
		if err != nil {
			return nil, err
		}
		roots[i].FRR = string(version)
		if roots[i].Kernel, err = onlyMatch(kernel + "/boot/vmlinuz-*"); err != nil {
			return nil, err
		}
		if roots[i].Modules, err = onlyMatch(kernel + "/lib/modules/*"); err != nil {
			return nil, err
		}
	}
	return roots, nil
}

// Clean removes every built guest of this recipe.
func (r Recipe) Clean() error {
	cache, err := r.Cache()
	if err != nil {
		return err
	}
	return os.RemoveAll(cache)
}

// once makes the directory final unless it is there: under a lock, in a
// temporary directory that gets its name only when it is whole.
func once(final string, make func(tmp string) error) error {
	if _, err := os.Stat(final); err == nil {
		return nil
	}
	lock, err := os.OpenFile(final+".lock", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := flock(lock); err != nil {
		return fmt.Errorf("wait for another build of %s: %w", final, err)
	}
	if _, err := os.Stat(final); err == nil {
		return nil
	}
	tmp := final + ".tmp"
	if err := os.RemoveAll(tmp); err != nil { // of a build that was killed
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	if err := make(tmp); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return os.Rename(tmp, final)
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (r Recipe) buildKernel(ctx context.Context, log io.Writer, dir string) error {
	if err := need(mmdebstrap, kmod); err != nil {
		return err
	}
	name, err := r.kernelPackage(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "lab: fetching the guest's kernel, %s\n", name)
	if err := run(ctx, dir, "apt-get", "download", "-q", name); err != nil {
		return err
	}
	deb, err := onlyMatch(dir + "/*.deb")
	if err != nil {
		return err
	}
	if err := run(ctx, dir, "dpkg", "-x", deb, dir); err != nil {
		return err
	}
	modules, err := onlyMatch(dir + "/lib/modules/*")
	if err != nil {
		return err
	}
	if err := run(ctx, dir, "depmod", "-b", dir, filepath.Base(modules)); err != nil {
		return err
	}
	return os.Remove(deb)
}

// kernelPackage finds the newest kernel that the host's package lists offer.
func (r Recipe) kernelPackage(ctx context.Context) (string, error) {
	for _, meta := range r.Kernels {
		out, err := exec.CommandContext(ctx, "apt-cache", "depends", meta).Output()
		if err != nil {
			continue // not known to this host
		}
		for _, line := range strings.Split(string(out), "\n") {
			_, name, ok := strings.Cut(line, "Depends: ")
			if ok && strings.HasPrefix(name, r.Prefix) {
				return strings.TrimSpace(name), nil
			}
		}
	}
	return "", fmt.Errorf("no %s* kernel behind any of %s in this host's package lists; try: apt-get update",
		r.Prefix, strings.Join(r.Kernels, ", "))
}

func (r Recipe) buildRoot(ctx context.Context, log io.Writer, rel Release, kernel, dir string) error {
	if err := need(mmdebstrap, kmod); err != nil {
		return err
	}
	fmt.Fprintf(log, "lab: building the %s guest, once\n", rel.Name)
	root := filepath.Join(dir, "root")
	args := []string{"--quiet", "--mode=root", "--variant=apt", "--include=" + strings.Join(r.Packages, ",")}
	for _, o := range rel.AptOpts {
		args = append(args, "--aptopt="+o)
	}
	if err := run(ctx, dir, "mmdebstrap", append(args, rel.Name, root)...); err != nil {
		return err
	}
	if err := run(ctx, dir, "cp", "-a", kernel+"/lib/modules", root+"/usr/lib/"); err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, "chroot", root, "/usr/lib/frr/zebra", "--version").Output()
	if err != nil {
		return fmt.Errorf("ask the %s guest for its FRR version: %w", rel.Name, err)
	}
	said, ok := parseFRRVersion(string(version))
	if !ok {
		return fmt.Errorf("the %s guest's zebra doesn't say its version: %q", rel.Name, firstLine(version))
	}
	return os.WriteFile(filepath.Join(dir, "frr-version"), []byte(said), 0o644)
}

// parseFRRVersion takes 10.3 out of "zebra version 10.3\n…".
func parseFRRVersion(text string) (string, bool) {
	line, _, _ := strings.Cut(text, "\n")
	version, ok := strings.CutPrefix(line, "zebra version ")
	version = strings.TrimSpace(version)
	return version, ok && version != ""
}

// run runs a program of the host and gives back what it wrote when it failed.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(out, 4000))
	}
	return nil
}

func tail(b []byte, n int) []byte {
	return bytes.TrimSpace(b[max(0, len(b)-n):])
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(string(b), "\n")
	return line
}

func onlyMatch(pattern string) (string, error) {
	all, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%s: %d matches, would be one", pattern, len(all))
	}
	return all[0], nil
}

// tool is a program that the lab needs on the host, and the package with it.
type tool struct {
	name, pkg string
	paths     []string // beside those of PATH
}

var (
	qemu       = tool{name: "qemu-system-x86_64", pkg: "qemu-system-x86"}
	virtiofsd  = tool{name: "virtiofsd", pkg: "virtiofsd", paths: []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"}}
	mmdebstrap = tool{name: "mmdebstrap", pkg: "mmdebstrap"}
	kmod       = tool{name: "depmod", pkg: "kmod", paths: []string{"/sbin/depmod", "/usr/sbin/depmod"}}

	// What the tests outside the guests need beside those.
	hostTools = []tool{
		{name: "make", pkg: "make"},
		{name: "gcc", pkg: "gcc libc6-dev"}, // the race detector's
		{name: "ip", pkg: "iproute2"},
		{name: "ping", pkg: "iputils-ping"},
		{name: "systemd-analyze", pkg: "systemd"},
	}
)

func (t tool) find() (string, bool) {
	if path, err := exec.LookPath(t.name); err == nil {
		return path, true
	}
	for _, path := range t.paths {
		if _, err := exec.LookPath(path); err == nil {
			return path, true
		}
	}
	return "", false
}

// MissingError says which programs of the host the lab lacks.
type MissingError struct {
	Tools    []string // programs
	Packages []string // what brings them
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("this host lacks %s; install: apt-get install -y --no-install-recommends %s",
		strings.Join(e.Tools, ", "), strings.Join(e.Packages, " "))
}

// need returns a *MissingError unless every tool is there.
func need(tools ...tool) error {
	var missing MissingError
	for _, t := range tools {
		if _, ok := t.find(); ok {
			continue
		}
		missing.Tools = append(missing.Tools, t.name)
		for _, p := range strings.Fields(hostPackage(t)) {
			if !slices.Contains(missing.Packages, p) {
				missing.Packages = append(missing.Packages, p)
			}
		}
	}
	if missing.Tools == nil {
		return nil
	}
	return &missing
}

// hostPackage knows that up to Debian 12, virtiofsd came with QEMU.
func hostPackage(t tool) string {
	if t.name == virtiofsd.name && debianVersion() == "12" {
		return qemu.pkg
	}
	return t.pkg
}

func debianVersion() string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(text), "\n") {
		if v, ok := strings.CutPrefix(line, "VERSION_ID="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// Setup installs what the lab lacks on a Debian host, as root, without asking.
func Setup(ctx context.Context, log io.Writer) error {
	wanted := append([]tool{qemu, virtiofsd, mmdebstrap, kmod}, hostTools...)
	var missing *MissingError
	err := need(wanted...)
	errors.As(err, &missing)
	if _, unknown := Default.kernelPackage(ctx); missing == nil && unknown == nil {
		return nil
	}
	if _, lookErr := exec.LookPath("apt-get"); lookErr != nil || os.Geteuid() != 0 {
		return errors.Join(err, errors.New("only root on Debian can have it installed"))
	}
	if err := apt(ctx, "update"); err != nil {
		return err
	}
	if missing == nil {
		return nil
	}
	fmt.Fprintf(log, "lab: installing %s\n", strings.Join(missing.Packages, " "))
	if err := apt(ctx, append([]string{"install", "-y", "--no-install-recommends"}, missing.Packages...)...); err != nil {
		return err
	}
	return need(wanted...)
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, tail(out, 4000))
	}
	return nil
}
