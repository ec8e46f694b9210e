"""Numbers with their nouns, for people."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """A count with its thousands set apart, and what is counted: "1 shard", "1,200 shards", `several` of "entries"."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
