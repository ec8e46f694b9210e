"""Deduplication: keys of texts, one decider that answers for a stage, and the index in which it remembers the kept."""
