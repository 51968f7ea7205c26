package alloc_test

import (
	"fmt"
	"slices"
	"testing"

	"vtepd/alloc"
)

// TestLog: a cursor brings what came after it, once and sorted, as long as that is remembered; any other brings a reset.
func TestLog(t *testing.T) {
	var l alloc.Log
	if names, next, reset := l.Since(0); names != nil || next != 1 || !reset {
		t.Errorf("of an empty log: %v %d %v", names, next, reset)
	}
	for _, n := range []string{"c", "a", "c", "b"} {
		l.Add(n)
	}
	if names, next, reset := l.Since(2); !slices.Equal(names, []string{"a", "b", "c"}) || next != 5 || reset {
		t.Errorf("%v %d %v", names, next, reset)
	}
	if names, _, reset := l.Since(5); len(names) != 0 || reset {
		t.Errorf("at the end: %v %v", names, reset)
	}
	if _, _, reset := l.Since(6); !reset {
		t.Error("a cursor from the future")
	}
	for i := range 1 << 18 {
		l.Add(fmt.Sprint(i))
	}
	_, next, reset := l.Since(5)
	if !reset || next != 1<<18+5 {
		t.Errorf("forgotten: %d %v", next, reset)
	}
	if names, _, reset := l.Since(next - 1); !slices.Equal(names, []string{fmt.Sprint(1<<18 - 1)}) || reset {
		t.Errorf("the last one: %v %v", names, reset)
	}
}
