// Package alloc provides pools of values (numbers, addresses, prefixes), the claims on them and the allocations that
// answer claims: pure rules over a ledger that a Store keeps. The ledger is the only state; the rules never renumber a
// holder, never guess between two answers, and never touch the network or the disk themselves.
package alloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind is what the values of a pool are. The zero Kind in a Claim means that any kind will do.
type Kind string

// The kinds of pools, with the canonical form of their values.
const (
	KindIndex   Kind = "index"   // "64512"
	KindAddress Kind = "address" // "10.255.0.11", "2001:db8::1"
	KindPrefix  Kind = "prefix"  // "10.0.0.0/26"
)

// Claim is a request for one value of a pool.
type Claim struct {
	Name   string `json:"name"`             // who asks: router/object, as in "leaf1/endpoint/vtep0"
	UID    string `json:"uid,omitempty"`    // tells a claim from an earlier one with the same name; opaque here
	Pool   string `json:"pool"`             // the pool's name
	Kind   Kind   `json:"kind,omitempty"`   // what the asker can use; "" is anything
	Prefer string `json:"prefer,omitempty"` // the value wanted, or "" for the lowest free one
	Group  string `json:"group,omitempty"`  // claims of one group and pool share one value (anycast)
}

// Holder is a claim that an allocation is bound to.
type Holder struct {
	Claim string `json:"claim"`
	UID   string `json:"uid,omitempty"`
	// Supersedes names the allocations that the claim held when it took this one: a move in progress. Until the older
	// ones are released the claim holds several values and this mark, which names each of them, tells that from a
	// mistake. Names that the claim no longer holds mean nothing.
	Supersedes []string `json:"supersedes,omitempty"`
}

// Allocation is a value taken from a pool. It is an object of its own: making it is the lock on the value.
type Allocation struct {
	Name  string `json:"name"`  // Name(Pool, Value)
	Pool  string `json:"pool"`  // the pool's name
	Value string `json:"value"` // canonical
	Group string `json:"group,omitempty"`
	// Holders are the claims that it is bound to, sorted by claim and UID: one, or with Group any number. Without any,
	// it is unbound (made by hand, or retained), and the value is taken all the same.
	Holders []Holder `json:"holders,omitempty"`
	// For names the claim that an unbound allocation is kept for: whoever it was made for, or had it last.
	For string `json:"for,omitempty"`
	// AllowBinding lets the claim named by For, or one named like the holder but with another UID, have it. It is an
	// operator's word and stays when it has been used.
	AllowBinding bool `json:"allowBinding,omitempty"`
	// Retain is the pool's reclaim when the allocation was made; it counts only once the pool is gone.
	Retain bool `json:"retain,omitempty"`
	// Created is for people. Nothing is decided by it: clocks jump.
	Created time.Time `json:"created"`
	// Version is the store's and opaque: two equal ones mean that nothing has changed in between.
	Version string `json:"-"`
}

// Bound reports whether any claim holds a.
func (a Allocation) Bound() bool { return len(a.Holders) > 0 }

// HeldBy reports whether the claim with that name and UID holds a.
func (a Allocation) HeldBy(claim, uid string) bool { return a.holder(claim, uid) >= 0 }

func (a Allocation) holder(claim, uid string) int {
	return slices.IndexFunc(a.Holders, func(h Holder) bool { return h.Claim == claim && h.UID == uid })
}

// Addr is the value of an allocation of an address pool.
func (a Allocation) Addr() (netip.Addr, error) { return netip.ParseAddr(a.Value) }

// Prefix is the value of an allocation of a prefix pool.
func (a Allocation) Prefix() (netip.Prefix, error) { return netip.ParsePrefix(a.Value) }

// Index is the value of an allocation of an index pool.
func (a Allocation) Index() (uint64, error) { return strconv.ParseUint(a.Value, 10, 64) }

// holders says who holds a, for people.
func (a Allocation) holders() string {
	if !a.Bound() {
		return "nobody"
	}
	names := make([]string, len(a.Holders))
	for i, h := range a.Holders {
		names[i] = h.Claim
	}
	if a.Group != "" {
		return fmt.Sprintf("group %s (%s)", a.Group, strings.Join(names, ", "))
	}
	return strings.Join(names, ", ")
}

// clone copies what a shares with others.
func (a Allocation) clone() Allocation {
	a.Holders = slices.Clone(a.Holders)
	for i := range a.Holders {
		a.Holders[i].Supersedes = slices.Clone(a.Holders[i].Supersedes)
	}
	return a
}

func compareHolders(x, y Holder) int {
	return cmp.Or(cmp.Compare(x.Claim, y.Claim), cmp.Compare(x.UID, y.UID))
}

// with is a with the holder added in its place.
func (a Allocation) with(h Holder) Allocation {
	a = a.clone()
	a.Holders = append(a.Holders, h)
	slices.SortFunc(a.Holders, compareHolders)
	a.For = ""
	return a
}

// without is a with the holder gone.
func (a Allocation) without(claim, uid string) Allocation {
	a = a.clone()
	a.Holders = slices.DeleteFunc(a.Holders, func(h Holder) bool { return h.Claim == claim && h.UID == uid })
	return a
}

// The errors that a Store returns, to be compared with errors.Is.
var (
	ErrExists      = errors.New("allocation exists already")
	ErrNotFound    = errors.New("no such allocation")
	ErrConflict    = errors.New("allocation changed in between")
	ErrDamaged     = errors.New("not a readable allocation")
	ErrUnavailable = errors.New("ledger unavailable")
	ErrReadOnly    = errors.New("ledger opened for reading only")
)

// Cursor is how far a reader of one Store value has come. Zero is the beginning.
type Cursor uint64

// Damage is something in the ledger, under the name of an allocation or another, that can't be read as an allocation: torn,
// foreign, or written by a newer version. It is never overwritten, and the value that its name says, if any, is taken.
type Damage struct {
	Name  string // as in the ledger
	Pool  string // from the name; "" when the name isn't one that Name makes
	Value string
	Why   string
}

func (d Damage) Error() string { return fmt.Sprintf("%s: %s", d.Name, d.Why) }

// Unwrap makes a Damage an ErrDamaged.
func (d Damage) Unwrap() error { return ErrDamaged }

// Changes is what happened in the ledger since a Cursor, sorted by name. A name is in one of Set, Gone and Damaged at most.
type Changes struct {
	Reset   bool // all of the ledger follows: forget what was known
	Set     []Allocation
	Gone    []string
	Damaged []Damage
	Next    Cursor
}

// Store keeps the ledger. It is safe for concurrent use, and any number of Stores, in any number of processes, may be open on
// one ledger. Every method can also return the context's error, and an error wrapping ErrUnavailable and the cause when the
// ledger can't be reached or written; nothing that was there is lost then, and what was being written may or may not be there.
type Store interface {
	// Changes reports what has changed since the cursor, which this Store value returned, or everything. Writes by anyone
	// that had returned before the call are in it. What other methods of this Store have returned counts as reported: when it
	// goes or changes, that is a change, and a name in Gone may be one that was never in Set.
	Changes(ctx context.Context, since Cursor) (Changes, error)
	// Get reads one allocation. ErrNotFound; a Damage.
	Get(ctx context.Context, name string) (Allocation, error)
	// Create makes an allocation, durably and exclusively: of several racing for one name exactly one wins. ErrExists, also
	// when what exists can't be read.
	Create(ctx context.Context, a Allocation) (Allocation, error)
	// Update replaces an allocation if its version still is a.Version. ErrNotFound, ErrConflict, a Damage.
	Update(ctx context.Context, a Allocation) (Allocation, error)
	// Delete removes an allocation if its version still is version. ErrNotFound, ErrConflict, a Damage.
	Delete(ctx context.Context, name, version string) error
	// Watch returns a channel with a hint whenever something may have changed since the last hint was received. It is closed
	// after ctx ends or the Store closes.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Health says whether the ledger could be written now.
	Health(ctx context.Context) error
	// Close lets go of the ledger. Other methods fail with ErrUnavailable afterwards.
	Close() error
}

// Name is the name of the allocation of a value of a pool: unique, a valid file name, and reversible with ParseName. A colon
// becomes "-" and a slash "_": "vteps@10.255.0.11", "vteps@2001-db8--1", "lans@10.0.0.0_26".
func Name(pool, value string) string {
	return pool + "@" + toName.Replace(value)
}

var (
	toName   = strings.NewReplacer(":", "-", "/", "_")
	fromName = strings.NewReplacer("-", ":", "_", "/")
)

// ParseName is the pool and the value that a name was made from.
func ParseName(name string) (pool, value string, err error) {
	pool, v, ok := strings.Cut(name, "@")
	if !ok {
		return "", "", fmt.Errorf("%q is not the name of an allocation: POOL@VALUE expected", name)
	}
	if err := checkPoolName(pool); err != nil {
		return "", "", fmt.Errorf("%q is not the name of an allocation: %w", name, err)
	}
	value = fromName.Replace(v)
	canonical, _, err := Canonical(value)
	if err != nil {
		return "", "", fmt.Errorf("%q is not the name of an allocation: %w", name, err)
	}
	if Name(pool, canonical) != name {
		return "", "", fmt.Errorf("%q is not the name of an allocation: %s would be right", name, Name(pool, canonical))
	}
	return pool, canonical, nil
}

// Canonical is the one spelling of a value, and its kind.
func Canonical(value string) (string, Kind, error) {
	switch {
	case strings.Contains(value, "/"):
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return "", "", fmt.Errorf("%q is not a prefix", value)
		}
		if p.Addr().Is4In6() {
			return "", "", fmt.Errorf("%q is IPv4 mapped into IPv6", value)
		}
		if p != p.Masked() {
			return "", "", fmt.Errorf("%s has host bits set; %s would be right", value, p.Masked())
		}
		return p.String(), KindPrefix, nil
	case strings.ContainsAny(value, ".:"):
		a, err := netip.ParseAddr(value)
		if err != nil {
			return "", "", fmt.Errorf("%q is not an address", value)
		}
		if a.Is4In6() {
			return "", "", fmt.Errorf("%q is IPv4 mapped into IPv6; %s would be right", value, a.Unmap())
		}
		if a.Zone() != "" {
			return "", "", fmt.Errorf("%q has a zone", value)
		}
		return a.String(), KindAddress, nil
	default:
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return "", "", fmt.Errorf("%q is not a number, an address or a prefix", value)
		}
		return strconv.FormatUint(n, 10), KindIndex, nil
	}
}

func checkPoolName(s string) error {
	if s == "" {
		return errors.New("a pool needs a name")
	}
	if len(s) > 63 {
		return fmt.Errorf("pool name %q has %d bytes; 63 are allowed", s, len(s))
	}
	for i, r := range s {
		alnum := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !alnum && (i == 0 || !strings.ContainsRune("._-", r)) {
			return fmt.Errorf("pool name %q: letters, digits, '.', '_' and '-' are allowed, and a letter or digit first", s)
		}
	}
	return nil
}

// checkText says what is wrong with a claim's name, a UID or a group.
func checkText(what, s string) error {
	if len(s) > 253 {
		return fmt.Errorf("%s of %d bytes; 253 are allowed", what, len(s))
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s %q is not UTF-8", what, s)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return fmt.Errorf("%s %q has a space or control character", what, s)
	}
	return nil
}

func (c Claim) check() error {
	if c.Name == "" {
		return errors.New("a claim needs a name")
	}
	return errors.Join(checkText("claim name", c.Name), checkText("UID", c.UID), checkText("group", c.Group))
}
