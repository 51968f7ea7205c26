package cni

import (
	"slices"
	"testing"
)

func TestLowered(t *testing.T) {
	for _, c := range []struct {
		name  string
		caps  uint64
		lower bool
		keeps []uintptr
	}{
		{"root", 1<<41 - 1, true, []uintptr{12, 21}},
		{"no SETUID", 1<<12 | 1<<13 | 1<<21 | 1<<6, false, nil},
		{"no SETGID", 1<<12 | 1<<13 | 1<<21 | 1<<7, false, nil},
		{"no SYS_ADMIN", 1<<12 | 1<<6 | 1<<7, true, []uintptr{12}},
		{"nothing", 0, false, nil},
	} {
		who, keeps := lowered(c.caps)
		if (who != nil) != c.lower || who != nil && (who.Uid != nobody || who.Gid != nobody) || !slices.Equal(keeps, c.keeps) {
			t.Errorf("%s: %+v keeps %v", c.name, who, keeps)
		}
	}
}
