package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"vtepd/e2e/image"
)

// write makes an archive of a program that is no program.
func write(t *testing.T) (path string, program []byte) {
	t.Helper()
	dir := t.TempDir()
	program = bytes.Repeat([]byte("vtepd "), 1000)
	if err := os.WriteFile(filepath.Join(dir, "vtepd"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "out.tar")
	if err := image.Write(path, filepath.Join(dir, "vtepd"), "v1.2", "vtepd:v1.2"); err != nil {
		t.Fatal(err)
	}
	return path, program
}

// TestDockerArchive: what docker load reads is a whole image with the program in it, and the places to mount at.
func TestDockerArchive(t *testing.T) {
	path, program := write(t)
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	files := tar.NewReader(r)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name != "usr/bin/vtepd" {
			continue
		}
		got, err := io.ReadAll(files)
		if err != nil || !bytes.Equal(got, program) || h.Mode != 0o755 || h.Uid != 0 || h.Gid != 0 {
			t.Errorf("the program is not what was given: %v, mode %o", err, h.Mode)
		}
	}
	want := []string{"etc/", "etc/vtepd/", "run/", "run/vtepd/", "usr/", "usr/bin/", "var/", "var/lib/", "var/lib/vtepd/", "usr/bin/vtepd"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOCILayout: the same archive, unpacked, is an OCI layout.
func TestOCILayout(t *testing.T) {
	path, _ := write(t)
	dir := t.TempDir()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(files)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(h.Name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, h.Name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
}

func TestSameBytes(t *testing.T) {
	one, _ := write(t)
	two, _ := write(t)
	a, errA := os.ReadFile(one)
	b, errB := os.ReadFile(two)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("two builds of one program differ (%v, %v)", errA, errB)
	}
}

func TestNoProgram(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.tar")
	err := image.Write(out, "/nowhere/vtepd", "", "vtepd:latest")
	if err == nil || err.Error() != "open /nowhere/vtepd: no such file or directory" {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("there is an archive")
	}
}

// TestDockerfile: the Dockerfile makes the same image.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	got := v1.Config{Labels: map[string]string{}, Volumes: map[string]struct{}{}}
	list := func(s string) (l []string) {
		if err := json.Unmarshal([]byte(s), &l); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		return l
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "FROM":
			if rest != "scratch" {
				t.Errorf("FROM %s", rest)
			}
		case "COPY":
			if rest != "bin/vtepd /usr/bin/vtepd" {
				t.Errorf("COPY %s", rest)
			}
		case "LABEL":
			for i, f := range strings.Split(rest, `"`) {
				if i%2 == 0 {
					rest = strings.TrimSuffix(strings.TrimSpace(f), "=")
				} else {
					got.Labels[rest] = f
				}
			}
		case "ENV":
			got.Env = append(got.Env, rest)
		case "ENTRYPOINT":
			got.Entrypoint = list(rest)
		case "CMD":
			got.Cmd = list(rest)
		case "STOPSIGNAL":
			got.StopSignal = rest
		case "HEALTHCHECK":
			test := append([]string{"CMD"}, list(strings.TrimPrefix(rest, "CMD "))...)
			got.Healthcheck = &v1.HealthConfig{Test: test}
		case "VOLUME":
			for _, v := range list(rest) {
				got.Volumes[v] = struct{}{}
			}
		case "ARG", "#", "":
		default:
			t.Errorf("%s is unknown to this test", word)
		}
	}
	if diff := cmp.Diff(image.Config("$VERSION"), got); diff != "" {
		t.Errorf("(-image +Dockerfile):\n%s", diff)
	}
}
