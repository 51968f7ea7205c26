package memstore_test

import (
	"errors"
	"testing"

	"vtepd/alloc"
	"vtepd/alloc/memstore"
	"vtepd/alloc/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(storetest.TB) func() (alloc.Store, error) {
		l := memstore.New()
		return func() (alloc.Store, error) { return l.Open(), nil }
	})
}

func TestFail(t *testing.T) {
	s := memstore.New().Open()
	broken := errors.New("broken")
	s.Fail = func(op, name string) error {
		if op == "get" && name == "p@1" {
			return broken
		}
		return nil
	}
	_, err := s.Get(t.Context(), "p@1")
	if !errors.Is(err, broken) || !errors.Is(err, alloc.ErrUnavailable) || err.Error() != "get p@1: ledger unavailable: broken" {
		t.Errorf("get: %v", err)
	}
	if _, err := s.Get(t.Context(), "p@2"); !errors.Is(err, alloc.ErrNotFound) {
		t.Errorf("another name: %v", err)
	}
}
