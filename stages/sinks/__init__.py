"""Sinks: shards of tokens, texts with sidecars, and compaction."""
