// Package journal keeps the record of a Plan and how far it went, and of the state that was last committed, in a directory
// that one daemon owns. It knows no kernel and no FRR: daemon/txn says what the records mean.
//
// The journal is one file of lines, each a CRC-32C in hex, a space, and a JSON value: first the Plan, then one mark for
// every step that begins. A line is on disk before what it speaks of is done. A torn last line is what a crash leaves,
// and means that the mark wasn't made; damage before it is reported, and nothing is guessed.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"

	"vtepd/daemon/disk"
	"vtepd/daemon/plan"
	"vtepd/daemon/state"
)

// Version is that of the files; one with a higher number is refused.
const Version = 1

const (
	journalName   = "journal"
	committedName = "committed.json"
)

// What Load and Committed can return, wrapped with the file's name.
var (
	ErrDamaged = errors.New("damaged")
	ErrNewer   = errors.New("written by a newer vtepd")
)

// Mark is a point that a transaction reached.
type Mark struct {
	// Do and Undo are the number of a step whose action or inverse begins.
	Do   *int `json:"do,omitempty"`
	Undo *int `json:"undo,omitempty"`
	// Deadline is until when the step that begins waits to be confirmed; zero for any other.
	Deadline time.Time `json:"deadline,omitzero"`
	// Forward: the point of no return is passed.
	Forward bool `json:"forward,omitempty"`
}

// Record is a journal as read: the plan and its marks.
type Record struct {
	Plan  plan.Plan
	Place string // of the Journal that began it
	Marks []Mark
}

// Begun is how many steps have begun: the steps before it may have been done, wholly or in part.
func (r Record) Begun() int {
	n := 0
	for _, m := range r.Marks {
		if m.Do != nil {
			n = max(n, *m.Do+1)
		}
	}
	return n
}

// Unconfirmed is the deadline of the confirmation that the transaction was waiting for when the journal ends; zero when it
// was not.
func (r Record) Unconfirmed() time.Time {
	if len(r.Marks) == 0 {
		return time.Time{}
	}
	return r.Marks[len(r.Marks)-1].Deadline
}

// Rejected reports whether the way back had begun from a confirmation that was waited for: it was refused, or not given.
func (r Record) Rejected() bool {
	asked := false
	for _, m := range r.Marks {
		asked = asked || !m.Deadline.IsZero()
	}
	return asked && !r.Forward() && r.Unconfirmed().IsZero()
}

// Forward reports whether the point of no return is passed.
func (r Record) Forward() bool {
	for _, m := range r.Marks {
		if m.Forward {
			return true
		}
	}
	return false
}

// Committed is what the last transaction that succeeded left.
type Committed struct {
	Version    int         `json:"version"`
	Generation uint64      `json:"generation"`
	State      state.State `json:"state"`
}

type header struct {
	Version int       `json:"version"`
	Place   string    `json:"place,omitempty"`
	Plan    plan.Plan `json:"plan"`
}

// Journal is the directory, and the open journal of a running transaction.
type Journal struct {
	// Place tells the network namespace that transactions work in from any other, one before a reboot too. It is written
	// into each record: what an earlier transaction made elsewhere is gone.
	Place string

	dir  string
	file *os.File // nil: no transaction
	// What is on disk once these have returned is what a crash leaves; tests see by them what that is.
	syncFile func(*os.File) error
	syncDir  func(dir string) error
}

// In returns the Journal of a directory. It reads nothing; the first write makes the directory, for root alone, when it
// isn't there.
func In(dir string) *Journal {
	return &Journal{dir: dir, syncFile: (*os.File).Sync, syncDir: disk.SyncDir}
}

func (j *Journal) makeDir() error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

func (j *Journal) syncNames() error {
	if err := j.syncDir(j.dir); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// Begin makes the journal of p. One that is there already is an error: it must be recovered first.
func (j *Journal) Begin(p plan.Plan) error {
	if err := j.makeDir(); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path(journalName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.file = f
	err = j.append(header{Version: Version, Place: j.Place, Plan: p})
	if err == nil {
		err = j.syncNames()
	}
	if err != nil {
		return errors.Join(err, j.End()) // nothing has been done yet: nothing to recover
	}
	return nil
}

// Mark adds m and returns once it is on disk.
func (j *Journal) Mark(m Mark) error {
	if j.file == nil {
		return errors.New("journal: no transaction")
	}
	return j.append(m)
}

func (j *Journal) append(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	// A line that doesn't fit, on a full disk, is cut off again: what follows it must not look like damage.
	at, err := j.file.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	_, err = j.file.Write(line(raw))
	if err == nil {
		err = j.syncFile(j.file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("journal: %w", err), j.file.Truncate(at))
	}
	return nil
}

func line(raw []byte) []byte {
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(raw, castagnoli), raw)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// End removes the journal: the transaction is over, whichever way. None is success.
func (j *Journal) End() error {
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
	removed := os.Remove(j.path(journalName))
	if removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", removed)
	}
	if err := j.syncNames(); err != nil && (removed == nil || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	return nil
}

// Load reads the journal that an earlier daemon left and opens it for more marks; nil when there is none. A torn first
// line is none: nothing was done, and it is removed. Errors wrap ErrDamaged or ErrNewer.
func (j *Journal) Load() (*Record, error) {
	if j.file != nil {
		j.file.Close()
		j.file = nil
	}
	path := j.path(journalName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	rec, good, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	if rec == nil {
		return nil, j.End()
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j.file = f
	if err := f.Truncate(int64(good)); err != nil { // the torn tail: the next mark must begin a line
		return nil, fmt.Errorf("journal: %w", err)
	}
	return rec, nil
}

// Parse reads a journal's bytes. It returns nil and no error when not even the plan is whole, and how many bytes are
// good: what follows them is a torn last line.
func Parse(raw []byte) (*Record, int, error) {
	var rec *Record
	good, number := 0, 0
	for good < len(raw) {
		number++
		body, size, ok := cut(raw[good:])
		if !ok {
			if bytes.IndexByte(raw[good:], '\n') >= 0 && good+size < len(raw) {
				return nil, 0, fmt.Errorf("%w: line %d is not what was written, and lines follow it; "+
					"move the file away once you have seen to the router's state", ErrDamaged, number)
			}
			break
		}
		if rec == nil {
			var h header
			if err := json.Unmarshal(body, &h); err != nil {
				return nil, 0, newerOr(body, number, err)
			}
			if h.Version > Version {
				return nil, 0, fmt.Errorf("%w (version %d, this one knows %d)", ErrNewer, h.Version, Version)
			}
			rec = &Record{Plan: h.Plan, Place: h.Place}
		} else {
			var m Mark
			if err := json.Unmarshal(body, &m); err != nil {
				return nil, 0, fmt.Errorf("%w: line %d: %w", ErrDamaged, number, err)
			}
			if err := rec.legal(m); err != nil {
				return nil, 0, fmt.Errorf("%w: line %d: %w", ErrDamaged, number, err)
			}
			rec.Marks = append(rec.Marks, m)
		}
		good += size
	}
	return rec, good, nil
}

// newerOr explains a plan that can't be decoded: by its version where it has a higher one.
func newerOr(body []byte, number int, err error) error {
	var v struct{ Version int }
	if json.Unmarshal(body, &v) == nil && v.Version > Version {
		return fmt.Errorf("%w (version %d, this one knows %d)", ErrNewer, v.Version, Version)
	}
	return fmt.Errorf("%w: line %d: %w", ErrDamaged, number, err)
}

// legal reports why m can't be a mark of the record's plan.
func (r *Record) legal(m Mark) error {
	for _, k := range []*int{m.Do, m.Undo} {
		if k != nil && (*k < 0 || *k >= len(r.Plan.Steps)) {
			return fmt.Errorf("step %d of %d", *k, len(r.Plan.Steps))
		}
	}
	return nil
}

// cut takes one line off raw: its body, its size with the line's end, and whether it is whole and as written.
func cut(raw []byte) (body []byte, size int, ok bool) {
	size = bytes.IndexByte(raw, '\n') + 1
	if size == 0 {
		return nil, len(raw), false
	}
	sum, body, found := bytes.Cut(raw[:size-1], []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !found || err != nil || len(sum) != 8 || uint32(want) != crc32.Checksum(body, castagnoli) {
		return nil, size, false
	}
	return body, size, true
}

// Committed reads what was committed last; the zero value when nothing was. Errors wrap ErrDamaged or ErrNewer.
func (j *Journal) Committed() (Committed, error) {
	path := j.path(committedName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Committed{}, nil
	}
	if err != nil {
		return Committed{}, fmt.Errorf("committed state: %w", err)
	}
	var c Committed
	if err := json.Unmarshal(raw, &c); err != nil {
		return Committed{}, fmt.Errorf("committed state %s: %w: %w", path, ErrDamaged, err)
	}
	if c.Version > Version {
		return Committed{}, fmt.Errorf("committed state %s: %w (version %d, this one knows %d)", path, ErrNewer, c.Version, Version)
	}
	return c, nil
}

// Commit replaces what was committed last, at once and on disk.
func (j *Journal) Commit(c Committed) error {
	c.Version = Version
	if err := j.makeDir(); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("committed state: %w", err)
	}
	if err := renameio.WriteFile(j.path(committedName), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("committed state: %w", err)
	}
	return j.syncNames()
}

func (j *Journal) path(name string) string { return filepath.Join(j.dir, name) }
