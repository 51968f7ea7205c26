// Package history keeps the configs that were verified, the last ten, and the one that is pinned: carried out in place of
// what was dropped, until something else is dropped. It owns its directory; it knows nothing of what the configs mean.
package history

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"vtepd/daemon/config"
	"vtepd/daemon/disk"
)

// Keep is how many verified configs are kept.
const Keep = 10

// Entry is a config that was verified.
type Entry struct {
	Generation uint64          `json:"generation"`
	Time       time.Time       `json:"time"`
	Sources    []config.Source `json:"sources"`
}

// Pin is a config that stands in for what was dropped.
type Pin struct {
	// Over is the fingerprint of the dropped files that the pin stands in for: others end it.
	Over    string          `json:"over"`
	Sources []config.Source `json:"sources"` // none: nothing is carried out until something else is dropped
	Why     string          `json:"why"`     // for people
	// Confirm is how long the change to Sources waits to be confirmed, where it isn't what they say themselves.
	Confirm time.Duration `json:"confirm,omitempty"`
	// AllowDisruptive carries Sources out even where that isn't hitless, whatever they say themselves.
	AllowDisruptive bool `json:"allowDisruptive,omitempty"`
}

// History is the directory.
type History struct {
	dir     string
	syncDir func(dir string) error // tests see by it what is on disk, and when
}

// In returns the History of a directory. It reads nothing; the first write makes it, for root alone.
func In(dir string) *History { return &History{dir: dir, syncDir: disk.SyncDir} }

// Fingerprint tells files apart by their names and bytes; it is "" for none.
func Fingerprint(srcs []config.Source) string {
	if len(srcs) == 0 {
		return ""
	}
	h := sha256.New()
	for _, s := range srcs {
		fmt.Fprintf(h, "%d %s %d ", len(s.File), s.File, len(s.Data))
		h.Write(s.Data)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// ErrNone is returned where there is no such config.
var ErrNone = errors.New("no such config is kept")

const (
	pinName      = "pin.json"
	proposedName = "proposed.json"
)

// Propose writes down the config of a generation that is about to be carried out, for Accept. It replaces what was proposed before.
func (h *History) Propose(generation uint64, srcs []config.Source) error {
	return h.write(proposedName, Entry{Generation: generation, Time: now(), Sources: srcs})
}

// Withdraw forgets what was proposed; nothing is success.
func (h *History) Withdraw() error { return h.remove(proposedName) }

// Accept keeps the config that was proposed for a generation, now that it is verified, and no more than Keep; where another or none
// was proposed, or it is kept already, it does nothing.
func (h *History) Accept(generation uint64) error {
	var e Entry
	err := h.read(proposedName, &e)
	if errors.Is(err, ErrNone) || err == nil && e.Generation != generation {
		return nil
	}
	if err != nil {
		return err
	}
	newest, err := h.Newest()
	if err == nil && Fingerprint(newest.Sources) == Fingerprint(e.Sources) {
		return h.remove(proposedName)
	}
	if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	// It takes no room on a disk that is full by now.
	err = os.Rename(h.path(proposedName), h.path(entryName(generation)))
	if err == nil {
		err = h.syncDir(h.dir)
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return h.prune()
}

func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

func (h *History) path(name string) string { return filepath.Join(h.dir, name) }

// Add keeps the config of a generation that took no transaction, and no more than Keep. The one that is the newest already is not kept again.
func (h *History) Add(generation uint64, srcs []config.Source) error {
	newest, err := h.Newest()
	if err == nil && Fingerprint(newest.Sources) == Fingerprint(srcs) {
		return nil
	}
	if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	if err := h.write(entryName(generation), Entry{Generation: generation, Time: now(), Sources: srcs}); err != nil {
		return err
	}
	return h.prune()
}

// prune removes those that are too many.
func (h *History) prune() error {
	all, err := h.Generations()
	if err != nil {
		return err
	}
	for _, g := range all[:max(0, len(all)-Keep)] {
		if err := h.remove(entryName(g)); err != nil {
			return err
		}
	}
	return nil
}

func entryName(generation uint64) string { return fmt.Sprintf("%020d.json", generation) }

// Generations are those of the configs that are kept, the oldest first.
func (h *History) Generations() ([]uint64, error) {
	entries, err := os.ReadDir(h.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("history: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		if g, err := strconv.ParseUint(strings.TrimSuffix(e.Name(), ".json"), 10, 64); err == nil {
			out = append(out, g)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Get is the config of a generation. ErrNone.
func (h *History) Get(generation uint64) (Entry, error) {
	var e Entry
	err := h.read(entryName(generation), &e)
	if errors.Is(err, ErrNone) {
		all, _ := h.Generations()
		return e, fmt.Errorf("generation %d: %w; there are those of %v", generation, ErrNone, all)
	}
	return e, err
}

// Newest is the config that was verified last. ErrNone.
func (h *History) Newest() (Entry, error) {
	all, err := h.Generations()
	if err != nil {
		return Entry{}, err
	}
	if len(all) == 0 {
		return Entry{}, ErrNone
	}
	return h.Get(all[len(all)-1])
}

// Pinned is the pin, nil without one.
func (h *History) Pinned() (*Pin, error) {
	var p Pin
	err := h.read(pinName, &p)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// SetPin replaces the pin; nil ends it.
func (h *History) SetPin(p *Pin) error {
	if p != nil {
		return h.write(pinName, p)
	}
	return h.remove(pinName)
}

// remove removes a file; none is success.
func (h *History) remove(name string) error {
	err := os.Remove(h.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = h.syncDir(h.dir)
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

func (h *History) read(name string, into any) error {
	path := h.path(name)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("history: %s is not what vtepd writes (%w); move it away", path, err)
	}
	return nil
}

func (h *History) write(name string, v any) error {
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	err = renameio.WriteFile(h.path(name), raw, 0o600)
	if err == nil {
		err = h.syncDir(h.dir)
	}
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}
