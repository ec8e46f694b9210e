"""A dataset as someone sees it who has no Headrace: JSON, safetensors, Parquet, and a hash.

Nothing here imports a stage or a reader, and of the store no more than plain reads: what the checker compares must not
come from the code that it checks (docs/reference/format.md is all that is needed to write this again).
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

#: What a manifest may name: paths are made of it.
_KEY = re.compile(r"shards/[0-9]+/[0-9a-f]{32}(?:\.[a-z]+)+")
#: Bytes of the hash that stands for a document's tokens.
_HASH_BYTES = 16
#: Records that a finding names; the rest are counted.
NAMED_MAX = 5

#: A record's fragment (hex) and its ordinal there.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a record: its verdict, and for a kept one a hash of its tokens and their number."""

    verdict: str
    id: str
    tokens: int
    proof: str


@dataclass(slots=True)
class Fates:
    """Every record of a dataset; `twice` are those that stand there more than once."""

    found: dict[Key, Fate]
    twice: list[Key]

    @property
    def ids(self) -> Counter[str]:
        """How often each id stands there."""
        return Counter(fate.id for fate in self.found.values())


@dataclass(frozen=True, slots=True)
class ShardDifference:
    """The differences between two datasets."""

    lost: tuple[Key, ...]
    added: tuple[Key, ...]
    changed: tuple[tuple[Key, Fate, Fate], ...]
    #: Pairs of records that changed places as the kept one and its duplicate, which is no fault.
    swapped: int = 0

    def lines(self) -> list[str]:
        """Each kind in a line, with the first few records by name."""
        lines: list[str] = []
        for word, keys in (("lost", self.lost), ("not in the reference", self.added)):
            if keys:
                named = ", ".join(f"{fragment}#{row}" for fragment, row in keys[:NAMED_MAX])
                lines.append(f"{len(keys)} records {word}: {named}")
        if self.changed:
            named = "; ".join(
                f"{after.id}: {_told(before)}, now {_told(after)}" for _, before, after in self.changed[:NAMED_MAX]
            )
            lines.append(f"{len(self.changed)} records with another fate: {named}")
        return lines


def read_fates(dataset: pathlib.Path) -> Fates:
    """The fate of each record that the manifest's shards hold."""
    fates = Fates({}, [])
    for shard in json.loads((dataset / "manifest.json").read_text(encoding="utf-8"))["shards"]:
        if not all(_KEY.fullmatch(str(shard[name])) for name in ("tokens", "documents", "verdicts")):
            raise ValueError(f"{dataset}: the manifest names {shard['tokens']!r}, which is no object of a shard")
        for key, fate in _of_shard(dataset, shard):
            if key in fates.found:
                fates.twice.append(key)
            fates.found[key] = fate
    return fates


def compare(reference: Fates, other: Fates) -> ShardDifference:
    """The differences of `other`.

    Which of several duplicates came first is chance: as many may have become duplicates as have become kept.
    """
    before, after = reference.found, other.found
    changed = [(key, before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]]
    now_kept = [item for item in changed if (item[1].verdict, item[2].verdict) == ("duplicate", "kept")]
    now_duplicate = [item for item in changed if (item[1].verdict, item[2].verdict) == ("kept", "duplicate")]
    swapped = len(now_kept) if len(now_kept) == len(now_duplicate) else 0
    if swapped:
        changed = [item for item in changed if item not in now_kept and item not in now_duplicate]
    return ShardDifference(
        lost=tuple(sorted(before.keys() - after.keys())),
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(changed, key=lambda item: item[0])),
        swapped=swapped,
    )


def _of_shard(dataset: pathlib.Path, shard: dict[str, Any]) -> Iterator[tuple[Key, Fate]]:
    proofs = _proofs(dataset / shard["tokens"])
    documents: dict[str, list[Any]] = pq.read_table(dataset / shard["documents"]).to_pydict()
    for index, key in enumerate(zip(documents["fragment"], documents["row"], strict=True)):
        count, proof = proofs.get(index, (0, ""))
        metadata = documents["metadata"][index] or ""
        yield key, Fate("kept", documents["id"][index], count, f"{proof} {metadata}")
    verdicts: dict[str, list[Any]] = pq.read_table(dataset / shard["verdicts"]).to_pydict()
    for index, key in enumerate(zip(verdicts["fragment"], verdicts["row"], strict=True)):
        why = f"{verdicts['stage'][index]}/{verdicts['reason'][index]}"
        yield key, Fate(verdicts["verdict"][index], verdicts["id"][index], 0, why)


def _proofs(path: pathlib.Path) -> dict[int, tuple[int, str]]:
    """For each row of the documents table the number and the hash of its tokens: its pieces, one behind the other."""
    arrays = load_file(path)
    names = ("piece_sequence", "piece_start", "piece_length", "piece_document")
    parts: dict[int, list[Any]] = {}
    for sequence, start, length, document in zip(*(arrays[name].tolist() for name in names), strict=True):
        parts.setdefault(document, []).append(arrays["tokens"][sequence, start : start + length])
    found: dict[int, tuple[int, str]] = {}
    for document, pieces in parts.items():
        whole = np.concatenate(pieces)
        found[document] = (whole.size, hashlib.blake2b(whole.tobytes(), digest_size=_HASH_BYTES).hexdigest())
    return found


def _told(fate: Fate) -> str:
    return f"kept with {fate.tokens} tokens" if fate.verdict == "kept" else f"{fate.verdict} ({fate.proof})"
