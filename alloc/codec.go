package alloc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// formatVersion is what Marshal writes, and the newest that Unmarshal reads.
const formatVersion = 1

// MaxSize is the size in bytes above which nothing is an allocation.
const MaxSize = 1 << 20

type encoded struct {
	Version int `json:"version"`
	Allocation
}

// Check says what makes a no allocation that could be stored.
func (a Allocation) Check() error {
	if err := checkPoolName(a.Pool); err != nil {
		return err
	}
	canonical, _, err := Canonical(a.Value)
	if err != nil {
		return err
	}
	if canonical != a.Value {
		return fmt.Errorf("value %s is spelled %s", a.Value, canonical)
	}
	if want := Name(a.Pool, a.Value); a.Name != want {
		return fmt.Errorf("%q of pool %s is named %q, not %q", a.Value, a.Pool, want, a.Name)
	}
	if len(a.Holders) > 1 && a.Group == "" {
		return fmt.Errorf("%d holders without a group", len(a.Holders))
	}
	for i, h := range a.Holders {
		if h.Claim == "" {
			return errors.New("a holder without a claim")
		}
		if err := errors.Join(checkText("claim name", h.Claim), checkText("UID", h.UID)); err != nil {
			return err
		}
		if i > 0 && compareHolders(a.Holders[i-1], h) >= 0 {
			return fmt.Errorf("holder %s is out of order or there twice", h.Claim)
		}
		for _, n := range h.Supersedes {
			if _, _, err := ParseName(n); err != nil {
				return err
			}
		}
	}
	return errors.Join(checkText("group", a.Group), checkText("claim name", a.For))
}

// Marshal is the stored form of a: JSON, for people to read too.
func Marshal(a Allocation) ([]byte, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	a.Created = a.Created.UTC()
	b, err := json.MarshalIndent(encoded{formatVersion, a}, "", "  ")
	if err != nil {
		return nil, err
	}
	if len(b) >= MaxSize {
		return nil, fmt.Errorf("%d bytes; %d are allowed", len(b), MaxSize)
	}
	return append(b, '\n'), nil
}

// Unmarshal reads what Marshal wrote under that name. Whatever else it is given, it says why that isn't an allocation.
func Unmarshal(name string, data []byte) (Allocation, error) {
	if len(data) == 0 {
		return Allocation{}, errors.New("empty")
	}
	if len(data) > MaxSize {
		return Allocation{}, fmt.Errorf("larger than %d bytes", MaxSize)
	}
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return Allocation{}, fmt.Errorf("torn or foreign: %w", err)
	}
	switch {
	case v.Version == nil:
		return Allocation{}, errors.New("foreign: no version")
	case *v.Version > formatVersion:
		return Allocation{}, fmt.Errorf("format version %d is newer than %d, the newest known here", *v.Version, formatVersion)
	case *v.Version < 1:
		return Allocation{}, fmt.Errorf("foreign: format version %d", *v.Version)
	}
	var e encoded
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return Allocation{}, fmt.Errorf("foreign: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Allocation{}, errors.New("foreign: more after the end")
	}
	a := e.Allocation
	a.Created = a.Created.UTC()
	if len(a.Holders) == 0 {
		a.Holders = nil
	}
	for i, h := range a.Holders {
		if len(h.Supersedes) == 0 {
			a.Holders[i].Supersedes = nil
		}
	}
	if a.Name != name {
		return Allocation{}, fmt.Errorf("foreign: it says that it is %q", a.Name)
	}
	if err := a.Check(); err != nil {
		return Allocation{}, fmt.Errorf("foreign: %w", err)
	}
	return a, nil
}

// sameHolders reports whether a and b are bound alike.
func sameHolders(a, b []Holder) bool {
	return slices.EqualFunc(a, b, func(x, y Holder) bool {
		return compareHolders(x, y) == 0 && slices.Equal(x.Supersedes, y.Supersedes)
	})
}
