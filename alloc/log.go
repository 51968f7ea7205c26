package alloc

import "slices"

// logMost is how many changes are kept for those that ask what has changed; who asks for older ones gets everything.
const logMost = 1 << 16

// Log is the names of a ledger in the order that a Store saw them change, and what its cursors count. The zero Log is empty. It
// is not safe for concurrent use.
type Log struct {
	names  []string
	before uint64 // those that were forgotten
}

// Add notes that a name has changed.
func (l *Log) Add(name string) {
	l.names = append(l.names, name)
	if n := len(l.names); n > 2*logMost {
		l.names = slices.Clone(l.names[n-logMost:])
		l.before += uint64(n - logMost)
	}
}

// Since lists, sorted, the names that have changed since a cursor, and the cursor to ask with the next time. reset: it is none
// that this Log gave and still remembers; everything is to be told.
func (l *Log) Since(c Cursor) (names []string, next Cursor, reset bool) {
	// Zero is the beginning, so cursors are one more than what they count.
	end := l.before + uint64(len(l.names)) + 1
	if c == 0 || uint64(c) <= l.before || uint64(c) > end {
		return nil, Cursor(end), true
	}
	names = slices.Clone(l.names[uint64(c)-1-l.before:])
	slices.Sort(names)
	return slices.Compact(names), Cursor(end), false
}
