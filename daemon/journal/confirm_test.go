package journal_test

import (
	"testing"
	"time"

	"vtepd/daemon/journal"
)

// TestUnconfirmed: the deadline and the place survive the process; what follows the wait ends it.
func TestUnconfirmed(t *testing.T) {
	deadline := time.Date(2026, 3, 4, 5, 6, 7, 890, time.UTC)
	ask := do(1)
	ask.Deadline = deadline
	for _, c := range []struct {
		marks    []journal.Mark
		waits    bool
		rejected bool
	}{
		{nil, false, false},
		{[]journal.Mark{do(0)}, false, false},
		{[]journal.Mark{do(0), ask}, true, false},
		{[]journal.Mark{do(0), undo(0)}, false, false},
		{[]journal.Mark{do(0), ask, undo(1)}, false, true},
		{[]journal.Mark{do(0), ask, undo(1), undo(0)}, false, true},
		{[]journal.Mark{do(0), ask, {Forward: true}}, false, false},
		{[]journal.Mark{do(0), ask, {Forward: true}, do(2)}, false, false},
	} {
		dir := t.TempDir()
		j := journal.In(dir)
		j.Place = "boot/17"
		check(t, j.Begin(somePlan()))
		for _, m := range c.marks {
			check(t, j.Mark(m))
		}
		rec, err := journal.In(dir).Load()
		check(t, err)
		var want time.Time
		if c.waits {
			want = deadline
		}
		if got := rec.Unconfirmed(); !got.Equal(want) || rec.Rejected() != c.rejected || rec.Place != "boot/17" {
			t.Errorf("%+v: waits until %s, rejected %t, place %q", c.marks, got, rec.Rejected(), rec.Place)
		}
	}
}
