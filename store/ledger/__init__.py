"""The ledger: the numbered log, its entries, folds and snapshots."""
