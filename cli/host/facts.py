"""The facts of a host: what `headrace bench` measured, by name, in a file of this user's cache."""

from __future__ import annotations

import json
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.store.files import own_cache, whole_file

#: Rises when a fact is measured otherwise.
FACTS_FORMAT = 1
#: The file has some twenty lines.
FILE_BYTES_MAX = 1 << 16
_NOT_OF_A_NAME = re.compile(r"[^\w.-]")
#: Characters of where a fact was measured.
_WHERE_MAX = 500
#: Where a network was measured that is none.
LOOPBACK = "loopback"
#: What may be measured: the name of a fact, its unit, and what it says.
FACTS: Mapping[str, tuple[str, str]] = {
    "cores": ("cores", "cores that this process may use"),
    "memory_bytes": ("B", "memory of this host"),
    "disk_write_bytes_s": ("B/s", "one file written from its beginning to its end, and synchronised"),
    "disk_read_bytes_s": ("B/s", "the same file read, not from the page cache"),
    "disk_sync_s": ("s", "4 KiB written and synchronised, the median"),
    "net_bytes_s": ("B/s", "one TCP connection"),
    "net_round_s": ("s", "64 bytes there and back, the median"),
    "store_write_bytes_s": ("B/s", "objects of 8 MiB, one after the other"),
    "store_read_bytes_s": ("B/s", "the same objects read"),
    "store_wait_s": ("s", "an object of 64 bytes read, the median"),
    "reader_bytes_s": ("B/s", "text files read by one core"),
    "tokenizer_bytes_s": ("B/s", "text tokenized by one core"),
    "text_bytes_token": ("B", "bytes of text in a token"),
    "filters_bytes_s": ("B/s", "text through Gopher's, C4's and FineWeb's rules, one after the other, by one core"),
    "loader_tokens_s": ("tokens/s", "batches of every field from shards on this disk, one process"),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that was measured: where, and when in seconds since 1970."""

    value: float
    where: str
    at: float


@dataclass(frozen=True, slots=True)
class HostFacts:
    """All facts of one host, by their names in FACTS."""

    host: str
    facts: Mapping[str, Fact] = field(default_factory=dict[str, Fact])

    def joined(self, newer: Mapping[str, Fact]) -> HostFacts:
        """With newer facts in the place of those of the same names."""
        return HostFacts(self.host, {**self.facts, **newer})

    def plain(self) -> dict[str, Any]:
        """As the file holds it."""
        rows = {name: {"value": one.value, "where": one.where, "at": one.at} for name, one in self.facts.items()}
        return {"format": FACTS_FORMAT, "host": self.host, "facts": rows}


def facts_for_others() -> Mapping[str, float]:
    """What is told of this host to size or to place; what a loopback carries is no network."""
    kept = read_facts(facts_path()).facts
    return {name: fact.value for name, fact in kept.items() if fact.where != LOOPBACK}


def facts_path() -> Path | None:
    """The file of this host's facts; None where this user has no cache of their own. A home may be that of several."""
    folder = own_cache("facts")
    name = _NOT_OF_A_NAME.sub("_", socket.gethostname())[:200]
    return folder / f"{name or 'host'}.json" if folder else None


def read_facts(path: Path | None) -> HostFacts:
    """What the file holds; nothing where there is none, or none of ours. Unknown names are left out."""
    host = socket.gethostname()
    try:
        with open(path or os.devnull, "rb") as file:
            held = json.loads(file.read(FILE_BYTES_MAX))
        if held["format"] != FACTS_FORMAT or held["host"] != host:
            return HostFacts(host)
        return HostFacts(host, {name: _fact(held["facts"][name]) for name in FACTS if name in held["facts"]})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return HostFacts(host)


def keep_facts(path: Path | None, facts: HostFacts) -> str:
    """Write the file; why it could not be written, empty where it was."""
    if path is None:
        return "this user has no cache of their own: set XDG_CACHE_HOME to a folder that this user alone may write"
    try:
        with whole_file(path) as file:
            file.write(json.dumps(facts.plain(), indent=1).encode())
    except OSError as error:
        return f"cannot write {path}: {error.strerror}"
    return ""


def _fact(held: Any) -> Fact:
    value, where, at = held["value"], held["where"], held["at"]
    numbers = all(type(one) in (int, float) and math.isfinite(one) and one > 0 for one in (value, at))
    if not numbers or not isinstance(where, str) or len(where) > _WHERE_MAX:
        raise ValueError("no fact")
    return Fact(float(value), where, float(at))
