"""Object stores, the shard format, the ledger and datasets."""
