// Package image makes the container image of vtepd without a container engine: what the Dockerfile at the top of the checkout
// says, in an archive that is both an OCI image layout and what `docker load` takes. It reads the program, and writes
// nothing but the archive.
package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Config is what is in the image and how it starts; the Dockerfile's own words.
func Config(version string) v1.Config {
	return v1.Config{
		Entrypoint:  []string{"/usr/bin/vtepd"},
		Cmd:         []string{"run"},
		Env:         []string{"PATH=/usr/bin"},
		StopSignal:  "SIGTERM",
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/usr/bin/vtepd", "status"}},
		Volumes:     map[string]struct{}{"/etc/vtepd": {}, "/var/lib/vtepd": {}, "/run/vtepd": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "vtepd",
			"org.opencontainers.image.description": "VXLAN tunnel endpoints beside FRR",
			"org.opencontainers.image.version":     version,
		},
	}
}

// Write writes the archive of program, a static vtepd, as image ref to the file out. The same program and version make the
// same bytes.
func Write(out, program, version, ref string) error {
	bin, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	img, err := build(bin, version)
	if err != nil {
		return fmt.Errorf("image of %s: %w", program, err)
	}
	dir, err := os.MkdirTemp("", "vtepd-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := lay(dir, img, ref); err != nil {
		return fmt.Errorf("image of %s: %w", program, err)
	}
	return archive(out, dir)
}

// epoch is the time of everything in the image, so that it depends on nothing but its content.
var epoch = time.Unix(0, 0).UTC()

func build(bin []byte, version string) (v1.Image, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	cfg := Config(version)
	dirs := map[string]bool{}
	for _, leaf := range append(slices.Collect(maps.Keys(cfg.Volumes)), "/usr/bin") {
		for d := leaf; d != "/"; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	for _, d := range slices.Sorted(maps.Keys(dirs)) {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(d, "/") + "/", Mode: 0o755, ModTime: epoch}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/vtepd", Mode: 0o755, Size: int64(len(bin)), ModTime: epoch}
	if err := w.WriteHeader(h); err != nil {
		return nil, err
	}
	if _, err := w.Write(bin); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	img, err := mutate.Append(base, mutate.Addendum{
		Layer: layer, History: v1.History{CreatedBy: "COPY bin/vtepd /usr/bin/vtepd", Created: v1.Time{Time: epoch}},
	})
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", runtime.GOARCH, v1.Time{Time: epoch}, cfg
	return mutate.ConfigFile(img, file)
}

// lay writes img as an OCI layout, and beside it the list that `docker load` reads.
func lay(dir string, img v1.Image, ref string) error {
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{
		"org.opencontainers.image.ref.name": ref[strings.LastIndexByte(ref, ':')+1:],
		"io.containerd.image.name":          "docker.io/library/" + ref,
	}
	if err := at.AppendImage(img, layout.WithAnnotations(names)); err != nil {
		return err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
	list := []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{{Config: blob(manifest.Config.Digest), RepoTags: []string{ref}}}
	for _, l := range manifest.Layers {
		list[0].Layers = append(list[0].Layers, blob(l.Digest))
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), raw, 0o644)
}

// archive makes a tar of what is in dir, whole or not at all.
func archive(out, dir string) error {
	f, err := os.CreateTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone when it was renamed
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		raw, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: int64(len(raw)), ModTime: epoch}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(raw)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), out)
}
