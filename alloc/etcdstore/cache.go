package etcdstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"vtepd/alloc"
)

// cache is what is kept on disk of the ledger: which it is, and what the claims of one node hold in it. It is written before a claim
// is told that it has a value, and read once, by Open. Nothing is ever written to etcd because of it.
type cache struct {
	path, node string
	cached
	held    map[string]json.RawMessage // by allocation
	changed bool
	err     error // why it could not be written last
}

type cached struct {
	Version     int               `json:"version"`
	Ledger      string            `json:"ledger"`
	Revision    int64             `json:"revision"` // of the last change that is in it
	Allocations []json.RawMessage `json:"allocations"`
}

func (c *cache) load() error {
	c.held = map[string]json.RawMessage{}
	if c.path == "" {
		return nil
	}
	data, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	// A torn file can't be: it is replaced as a whole. What is foreign isn't overwritten.
	if err := json.Unmarshal(data, &c.cached); err != nil || c.Version != headVersion {
		return fmt.Errorf("cache: %s is not one; move it away", c.path)
	}
	for _, raw := range c.Allocations {
		a, err := decode(raw)
		if err != nil {
			return fmt.Errorf("cache: %s: %w", c.path, err)
		}
		c.held[a.Name] = raw
	}
	return nil
}

func decode(raw json.RawMessage) (alloc.Allocation, error) {
	var n struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(raw, &n); err != nil {
		return alloc.Allocation{}, err
	}
	return alloc.Unmarshal(n.Name, raw)
}

// mine reports whether a claim of the node holds a.
func (c *cache) mine(a alloc.Allocation) bool {
	return slices.ContainsFunc(a.Holders, func(h alloc.Holder) bool { return strings.HasPrefix(h.Claim, c.node+"/") })
}

// note takes in what a name means now.
func (c *cache) note(name string, e entry) {
	if c.path == "" {
		return
	}
	_, had := c.held[name]
	if e.gone || e.damage != "" || !c.mine(e.a) {
		// A value that can't be read any more may still be in use: it stays as it was last known.
		if had && e.damage == "" {
			delete(c.held, name)
			c.changed = true
		}
		return
	}
	raw, err := alloc.Marshal(e.a)
	if err != nil {
		c.err = err
		return
	}
	c.held[name], c.changed = raw, true
	c.Revision = max(c.Revision, e.rev)
}

// whole drops what isn't in the ledger any more, now that all of it has been read.
func (c *cache) whole(seen map[string]entry) {
	for n := range c.held {
		if e, ok := seen[n]; !ok || e.gone {
			delete(c.held, n)
			c.changed = true
		}
	}
}

// save writes what has changed. A failure is kept for Health and Unkept: a claim isn't refused because of it.
func (c *cache) save(ledger string) {
	if c.path == "" || !c.changed || ledger == "" {
		return
	}
	c.Version, c.Ledger, c.Allocations = headVersion, ledger, nil
	for _, n := range slices.Sorted(maps.Keys(c.held)) {
		c.Allocations = append(c.Allocations, c.held[n])
	}
	data, err := json.MarshalIndent(c.cached, "", "  ")
	if err == nil {
		err = renameio.WriteFile(c.path, append(data, '\n'), 0o640)
	}
	if c.err = err; err != nil {
		c.err = fmt.Errorf("cache %s: %w", c.path, err)
		return
	}
	c.changed = false
}

// advice is what to do about a ledger that isn't the one in the cache. It works on a Store that is open by Outdated.
func (c *cache) advice() string {
	if c.path == "" {
		return ""
	}
	return fmt.Sprintf("; if that is meant, remove %s", c.path)
}

// Known is what the claims of the node held when etcd last said so, sorted by name; nothing without a cache.
func (s *Store) Known() []alloc.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []alloc.Allocation
	for _, n := range slices.Sorted(maps.Keys(s.cache.held)) {
		if a, err := decode(s.cache.held[n]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// Unkept is why what Known says couldn't be written to the cache, which is tried once more; nil when it is there.
func (s *Store) Unkept() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache.err != nil && !s.strange {
		s.cache.save(s.ledger)
	}
	return s.cache.err
}

// Outdated reports whether a Store opened now could go on where this one can't: etcd has another ledger than this one knows, and the
// cache that says so has been removed.
func (s *Store) Outdated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.strange || s.cache.path == "" {
		return false
	}
	_, err := os.Stat(s.cache.path)
	return errors.Is(err, fs.ErrNotExist)
}
