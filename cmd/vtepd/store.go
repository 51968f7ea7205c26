package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vtepd/alloc"
	"vtepd/alloc/dirstore"
	"vtepd/alloc/etcdstore"
	"vtepd/daemon/config"
)

// ledger is the directory that claims are kept in where the config names no store.
func (p *places) ledger() string { return filepath.Join(p.state, "ledger") }

// store opens the store s. Where cache is a file, an etcd keeps in it what the claims of node hold.
func (p *places) store(s config.Store, cache, node string, readOnly bool) (alloc.Store, error) {
	if !s.IsEtcd() {
		path := s.Directory
		if path == "" {
			path = p.ledger()
		}
		if readOnly {
			return dirstore.OpenReadOnly(path)
		}
		return dirstore.Open(path)
	}
	files := []string{s.Etcd.PasswordFile, s.Etcd.CA}
	read, _ := contents(files) // what is wrong with them, they say who read them next
	password, err := passwordIn(s.Etcd.PasswordFile)
	if err != nil {
		return nil, err
	}
	e, err := etcdstore.Open(etcdstore.Options{
		Endpoints: s.Etcd.Endpoints, Prefix: s.Etcd.Prefix, CA: s.Etcd.CA, Cert: s.Etcd.Cert, Key: s.Etcd.Key,
		Username: s.Etcd.Username, Password: password, ReadOnly: readOnly, Cache: cache, Node: node,
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return letIn{e, files, read}, nil
}

// letIn is an etcd with what it took to be let in, which it was told when it was opened.
type letIn struct {
	*etcdstore.Store
	files []string
	read  []byte
}

// Outdated reports whether a Store opened now would be another: by what it knows, or because the password or the CAs have changed.
func (l letIn) Outdated() bool {
	now, err := contents(l.files)
	// One that is away is being replaced.
	return l.Store.Outdated() || err == nil && !bytes.Equal(now, l.read)
}

// contents are those of files; "" is none.
func contents(files []string) ([]byte, error) {
	var out []byte
	for _, path := range files {
		if path == "" {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		out = append(append(out, raw...), 0)
	}
	return out, nil
}

// passwordIn reads a file that holds a password, and a newline at most.
func passwordIn(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("passwordFile: %w", err)
	}
	password := strings.TrimRight(string(raw), "\r\n")
	if password == "" {
		return "", errors.New("passwordFile: " + path + " is empty")
	}
	return password, nil
}
