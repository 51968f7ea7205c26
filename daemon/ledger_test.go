package daemon

import (
	"vtepd/alloc"
	"vtepd/daemon/config"
	"vtepd/daemon/journal"
)

// ledgerOn is a Ledger on a store, whatever the config says.
func ledgerOn(store alloc.Store) *StoreLedger {
	return NewLedger(LedgerOptions{
		Open:    func(config.Store, string, string) (alloc.Store, error) { return store, nil },
		Journal: journal.In("/nonexistent"),
	})
}
