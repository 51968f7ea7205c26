package alloc

import "fmt"

// Reason is the one word that says why a Condition is what it is.
type Reason string

// Reasons of a Claim's condition, type Allocated. All but the first are refusals.
const (
	Bound                     Reason = "Bound"
	PreferredValueUnavailable Reason = "PreferredValueUnavailable" // stays until the preference goes or the value is free
	PoolExhausted             Reason = "PoolExhausted"             // stays until a value is freed or the pool grows
	PoolNotFound              Reason = "PoolNotFound"
	PoolRefInvalid            Reason = "PoolRefInvalid"      // the pool is of another kind
	MultipleAllocations       Reason = "MultipleAllocations" // two answers; nothing is guessed
	LedgerDamaged             Reason = "LedgerDamaged"       // an unreadable allocation may be the claim's
	LedgerUnavailable         Reason = "LedgerUnavailable"   // the store can't be reached or written
)

// Reasons of a Pool's condition, type Available.
const (
	HasCapacity Reason = "HasCapacity"
	Exhausted   Reason = "Exhausted"
)

// Reasons of an Allocation's condition, type Valid; the third is PoolNotFound.
const (
	ValueInRange    Reason = "ValueInRange"
	ValueOutOfRange Reason = "ValueOutOfRange"
)

// Types of conditions.
const (
	TypeAllocated = "Allocated"
	TypeAvailable = "Available"
	TypeValid     = "Valid"
)

// Condition is a verdict about a claim, a pool or an allocation. As an error it is a refusal of a claim.
type Condition struct {
	Type    string `json:"type"`
	Status  bool   `json:"status"`
	Reason  Reason `json:"reason"`
	Object  string `json:"object"` // the claim's, pool's or allocation's name
	Message string `json:"message"`
	err     error
}

func (c *Condition) Error() string { return fmt.Sprintf("%s: %s: %s", c.Object, c.Reason, c.Message) }

// Unwrap is the store's error behind LedgerUnavailable and LedgerDamaged.
func (c *Condition) Unwrap() error { return c.err }

func refuse(c Claim, r Reason, format string, args ...any) *Condition {
	return &Condition{Type: TypeAllocated, Reason: r, Object: c.Name, Message: fmt.Sprintf(format, args...)}
}

// PoolStatus is a pool with its condition. Counts above 2^64-1 are given as 2^64-1.
type PoolStatus struct {
	Name       string    `json:"name"`
	Kind       Kind      `json:"kind"`
	Condition  Condition `json:"condition"` // Available
	Total      uint64    `json:"total"`     // usable values
	Allocated  uint64    `json:"allocated"` // of them, bound or not
	Free       uint64    `json:"free"`
	OutOfRange uint64    `json:"outOfRange"` // allocations whose value isn't among the usable ones
}

// AllocationStatus is an allocation with its condition.
type AllocationStatus struct {
	Allocation
	Condition Condition `json:"condition"` // Valid
}
