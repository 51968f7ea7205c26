package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vtepd.yaml")
	write(t, path, base)
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.At("vnis.100").String(), path+":10:3"; got != want {
		t.Errorf("At = %s, want %s", got, want)
	}
	write(t, path, strings.Repeat("#", maxFile+5))
	if _, err := Load(path); err == nil || err.Error() != path+":1:1: the file is longer than 1048576 bytes; no config needs that much" {
		t.Error(err)
	}
}

// As the kubelet lays out a mounted ConfigMap.
func TestLoadConfigMap(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..2024_01/10-base.yaml"), head+"endpoints:\n  a: {loopback: {}, address: {static: 10.0.0.1}}\n")
	write(t, filepath.Join(dir, "..2024_01/20-vnis.yaml"), "vnis:\n  1: {endpoint: a}\n")
	link(t, "..2024_01", filepath.Join(dir, "..data"))
	link(t, "..data/10-base.yaml", filepath.Join(dir, "10-base.yaml"))
	link(t, "..data/20-vnis.yaml", filepath.Join(dir, "20-vnis.yaml"))
	write(t, filepath.Join(dir, ".20-vnis.yaml.swp"), "not read")
	write(t, filepath.Join(dir, ".hidden.yaml"), "not read")
	write(t, filepath.Join(dir, "README"), "not read")
	write(t, filepath.Join(dir, "30.yml"), "not read")
	c, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.VNIs) != 1 || len(c.Endpoints) != 1 {
		t.Errorf("got %+v", c)
	}
	if got, want := c.At("vnis.1").String(), filepath.Join(dir, "20-vnis.yaml")+":2:3"; got != want {
		t.Errorf("At = %s, want %s", got, want)
	}

	write(t, filepath.Join(dir, "..2024_01/20-vnis.yaml"), "vnis:\n  1: {endpoint: a}\nnode: {name: b}\n")
	_, err = Load(dir)
	want := filepath.Join(dir, "20-vnis.yaml") + ":3:1: node: is here a second time, the first is at " + filepath.Join(dir, "10-base.yaml") + ":2:1; keep one"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Load(dir); err == nil || err.Error() != "read "+dir+": no *.yaml file in this directory" {
		t.Error(err)
	}
	fifo := filepath.Join(dir, "fifo.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir} {
		if _, err := Load(path); err == nil || err.Error() != "read "+fifo+": not a regular file" {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	link(t, "nowhere", filepath.Join(dir, "a.yaml"))
	if _, err := Load(dir); err == nil || err.Error() != "open "+filepath.Join(dir, "a.yaml")+": no such file or directory" {
		t.Error(err)
	}
}
