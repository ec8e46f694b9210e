"""The input of a simulated run: fragments of so many records, and what becomes of each record.

A verdict follows from (pipeline version, fragment, ordinal) alone, so any run must come to the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from headrace.chaos.world import World
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.entries import Fragment, Range

#: The bytes of a record in a simulated fragment; offsets follow from it.
RECORD_BYTES = 10
FRAGMENTS_MIN, FRAGMENTS_MAX = 6, 12
RECORDS_MAX = 90
DATASET = "sim://dataset"
PIPELINE = "simulated"
SOURCE, FILTER, SINK = "read", "filter", "write"


def make_pipeline(rule: int, *, replicas: int | None = None) -> Pipeline:
    """Read, filter, write. Another `rule` filters otherwise, so it is another version."""
    return Pipeline.chain(
        PIPELINE,
        DATASET,
        Stage(SOURCE, StageKind.SOURCE, "simulated:read"),
        Stage(FILTER, StageKind.TRANSFORM, "simulated:keep", {"rule": rule}, replicas=replicas),
        Stage(SINK, StageKind.SINK, "simulated:write"),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Records of a shard: of `item`, those in `kept` and those with another verdict, one bit each."""

    item: Range
    kept: int
    other: int


class Corpus:
    """The fragments of one seed."""

    def __init__(self, world: World) -> None:
        self.records: dict[bytes, int] = {}
        self.fragments: list[Fragment] = []
        self._masks: dict[tuple[bytes, str], int] = {}
        for index in range(world.rng.randint(FRAGMENTS_MIN, FRAGMENTS_MAX)):
            count = 0 if world.chance(0.1) else world.rng.randint(1, RECORDS_MAX)
            fragment = Fragment.named(
                SOURCE, f"sim://input/{index}", "1", start=0, end=-1, reader="lines", size=count * RECORD_BYTES
            )
            self.fragments.append(fragment)
            self.records[fragment.id] = count

    def kept(self, version: str, fragment: bytes, first: int, count: int) -> int:
        """Which of `count` records from `first` are kept by that pipeline version, one bit each."""
        mask = self._masks.get((fragment, version))
        if mask is None:
            name = fragment + version.encode()
            bits = b"".join(xxhash.xxh3_128_digest(name, seed=seed) for seed in range(2 * (RECORDS_MAX // 128 + 1)))
            half = len(bits) // 2
            mask = int.from_bytes(bits[:half], "little") | int.from_bytes(bits[half:], "little")
            self._masks[fragment, version] = mask
        return mask >> first & ((1 << count) - 1)
