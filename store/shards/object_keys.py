"""What the key of an object says of it: the folder of its epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Folders whose objects sinks write, under the epoch that they were born with and the hash of the object's bytes.
FOLDERS = ("shards", "quarantine")
#: The role of the object of a shard that has the keys of its kept records, where a dedup stage ran.
KEYS_ROLE = "keys"
#: The role of the object that has their sketches, where a judge compares them.
SKETCHES_ROLE = "sketches"
#: Between the kind of an object and the number of the dedup stage, behind the first, whose keys or sketches it has.
_NUMBERED = "-"
#: The one kind of checksum that objects have: its name before the colon, the hash of all bytes behind it.
_CHECKSUM = re.compile(r"xxh3-128:[0-9a-f]{32}")
_KEY = re.compile(r"(?:shards|quarantine)/([0-9]{1,18})/[0-9a-f]{32}(?:\.[a-z]+)+")
#: So many of either, each with the end of a line behind it: one match is half the time of as many.
_CHECKSUMS = re.compile(r"(?:xxh3-128:[0-9a-f]{32}\n)*+")
_KEYS = re.compile(r"(?:(?:shards|quarantine)/[0-9]{1,18}+/[0-9a-f]{32}+(?:\.[a-z]++)++\n)*+")


def numbered_role(kind: str, number: int) -> str:
    """The role of the keys or sketches of dedup stage `number`, counted from 0 in the order of the pipeline."""
    return f"{kind}{_NUMBERED}{number}" if number else kind


def kind_of(role: str) -> str:
    """The kind of an object, without the number of the dedup stage that it is for."""
    return role.partition(_NUMBERED)[0]


#: Where the objects of a role lie, and how their keys end.
_OF_ROLE = {
    "tokens": ("shards", ".safetensors"),
    "documents": ("shards", ".documents.parquet"),
    "verdicts": ("shards", ".verdicts.parquet"),
    "samples": ("shards", ".samples.parquet"),
    "quarantine": ("quarantine", ".parquet"),
}


def is_key_of(role: object, key: str) -> bool:
    """Whether an object of this role may have this key: who reads it knows by the key what it is to hold."""
    folder, ending = _OF_ROLE.get(str(role), ("", ""))
    return key.startswith(folder) and key.endswith(ending)


def epoch_of(key: str) -> int | None:
    """The epoch in whose folder an object lies; None for a key that no sink of ours writes."""
    match = _KEY.fullmatch(key)
    return None if match is None else int(match[1])


def is_key(key: object) -> bool:
    """Whether a key has the shape of those that sinks write: folder, epoch, hash of the bytes, and an ending."""
    return isinstance(key, str) and _KEY.fullmatch(key) is not None


def is_checksum(checksum: object) -> bool:
    """Whether this is `xxh3-128:` and 32 hex digits."""
    return isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum) is not None


def are_keys(keys: Sequence[str]) -> bool:
    """Whether all of these are keys, as `is_key` has it."""
    return _are(_KEYS, keys)


def are_checksums(checksums: Sequence[str]) -> bool:
    """Whether all of these are checksums, as `is_checksum` has it."""
    return _are(_CHECKSUMS, checksums)


def _are(shape: re.Pattern[str], found: Sequence[str]) -> bool:
    lines = "\n".join([*found, ""])
    return lines.count("\n") == len(found) and shape.fullmatch(lines) is not None


def quarantine_prefix(shards_prefix: str) -> str:
    """Where the raw bytes of quarantined records go: `shards/7/` to `quarantine/7/`."""
    return f"quarantine/{shards_prefix.removeprefix('shards/')}"
