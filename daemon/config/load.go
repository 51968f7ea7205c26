package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Load reads the config at path: a file, or a directory whose *.yaml files
// are merged in the order of their names. Names that begin with a dot are
// passed over; symbolic links are followed, as a mounted Kubernetes ConfigMap
// needs. The error is a Problems if the config was read and is wrong, and
// otherwise says what couldn't be read.
func Load(path string) (*Config, error) {
	srcs, err := Read(path)
	if err != nil {
		return nil, err
	}
	return ParseAll(srcs)
}

// Read is the files that Load would parse. The error says what couldn't be
// read.
func Read(path string) ([]Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		src, err := read(path)
		return []Source{src}, err
	}
	// A ConfigMap is replaced as a whole, by turning the link ..data to
	// another directory. Files from before and after must not be mixed.
	for range 10 {
		before := dataLink(path)
		var srcs []Source
		srcs, err = readDir(path)
		switch {
		case dataLink(path) != before:
			err = fmt.Errorf("read %s: its files change faster than they can be read", path)
		case err == nil:
			return srcs, nil
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		// A file went between being listed and being read.
	}
	return nil, err
}

// dataLink is what ..data in dir points to, or "".
func dataLink(dir string) string {
	to, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		return ""
	}
	return to
}

func readDir(dir string) ([]Source, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, err
	}
	var srcs []Source
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".yaml") {
			continue
		}
		if len(srcs) == maxFiles {
			return nil, fmt.Errorf("read %s: more than %d *.yaml files", dir, maxFiles)
		}
		src, err := read(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		srcs = append(srcs, src)
	}
	if len(srcs) == 0 {
		return nil, fmt.Errorf("read %s: no *.yaml file in this directory", dir)
	}
	return srcs, nil
}

func read(path string) (Source, error) {
	// Opening a FIFO must not wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Source{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Source{}, err
	}
	if !info.Mode().IsRegular() {
		return Source{}, fmt.Errorf("read %s: not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Source{}, err
	}
	return Source{File: path, Data: data}, nil
}
