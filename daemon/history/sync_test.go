package history

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"vtepd/daemon/config"
)

// TestSync: the names of what is kept are on disk before the method that wrote it returns, and an error of that is one of the
// method's.
func TestSync(t *testing.T) {
	h := In(filepath.Join(t.TempDir(), "history"))
	sync := h.syncDir
	var synced [][]string
	var refuse error
	h.syncDir = func(dir string) error {
		entries, err := os.ReadDir(dir)
		if err != nil || dir != h.dir {
			t.Errorf("%s is synced, not %s (%v)", dir, h.dir, err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		synced = append(synced, names)
		return errors.Join(refuse, sync(dir))
	}
	srcs := func(text string) []config.Source { return []config.Source{{File: "a", Data: []byte(text)}} }
	const one, two, three = "00000000000000000001.json", "00000000000000000002.json", "00000000000000000003.json"
	for _, c := range []struct {
		what string
		do   func() error
		want []string // what is there when it is synced; nil: it isn't
	}{
		{"the first config", func() error { return h.Add(1, srcs("1")) }, []string{one}},
		{"the same", func() error { return h.Add(2, srcs("1")) }, nil},
		{"another", func() error { return h.Add(2, srcs("2")) }, []string{one, two}},
		{"a proposal", func() error { return h.Propose(3, srcs("3")) }, []string{one, two, proposedName}},
		{"one that isn't accepted", func() error { return h.Accept(2) }, nil},
		{"one that is", func() error { return h.Accept(3) }, []string{one, two, three}},
		{"none", func() error { return h.Accept(3) }, nil},
		{"what is kept", func() error { return h.Propose(4, srcs("3")) }, []string{one, two, three, proposedName}},
		{"accepted again", func() error { return h.Accept(4) }, []string{one, two, three}},
		{"what fails", func() error { return h.Propose(4, srcs("4")) }, []string{one, two, three, proposedName}},
		{"withdrawn", h.Withdraw, []string{one, two, three}},
		{"a pin", func() error { return h.SetPin(&Pin{Why: "so"}) }, []string{one, two, three, pinName}},
		{"no pin", func() error { return h.SetPin(nil) }, []string{one, two, three}},
		{"no pin again", func() error { return h.SetPin(nil) }, nil},
	} {
		synced = nil
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.want == nil && len(synced) > 0 || c.want != nil && (len(synced) != 1 || !slices.Equal(synced[0], c.want)) {
			t.Errorf("%s: synced %q, want %q", c.what, synced, c.want)
		}
	}
	refuse = errors.New("the disk is gone")
	for what, err := range map[string]error{"add": h.Add(5, srcs("5")), "propose": h.Propose(6, srcs("6")), "accept": h.Accept(6), "pin": h.SetPin(&Pin{}), "no pin": h.SetPin(nil)} {
		if !errors.Is(err, refuse) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
