"""The input of a simulated run: fragments of so many records, and what becomes of each record.

A verdict follows from (pipeline version, fragment, ordinal) alone, so any run must come to the same ones. In some
seeds some records kill the task whose stage touches them: each must be quarantined alone (docs/design/solitary.md).
Some of them kill at some times only, and are kept or quarantined: one sink may hold such a record as kept while
another closes it as quarantined.

Which records of a simulated input are like others: the keys of each at each dedup stage, from its name alone. A
record has a text, which some others have too, and two bands, which records of other texts share. So a record may be
like two that are not like each other, and which of them are kept depends on the order in which they come. Behind the
first dedup stage there may be another, which compares something else: addresses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from headrace.chaos.sim.world.world import World
from headrace.controller.core.messages import ChangedInput
from headrace.pipeline import Pipeline, Stage, StageKind
from headrace.store.ledger import Fragment, Range
from headrace.worker.task import Columns, Duplicates, Ordinals

#: A record as the ledger names it: fragment and ordinal.
Name = tuple[bytes, int]

#: Texts and bands of each kind that there are, for some 400 to 800 records that come to the decider.
TEXTS, BANDS = 300, 900
_BAND, _OTHER_BAND, _ADDRESS = 1 << 20, 1 << 21, 1 << 22
#: Addresses that there are.
ADDRESSES = 400


class SimulatedTexts:
    """The keys of records, made when they are asked for."""

    def __init__(self) -> None:
        self._keys: dict[Name, tuple[int, ...]] = {}

    def keys(self, name: Name, stage: int = 0) -> tuple[int, ...]:
        """The keys of a record at a dedup stage, that of its text first; two that share one are duplicates."""
        if stage:
            return (_ADDRESS * stage + xxhash.xxh3_64_intdigest(name[0], seed=~name[1] & 0xFFFF_FFFF) % ADDRESSES,)
        keys = self._keys.get(name)
        if keys is None:
            text = xxhash.xxh3_64_intdigest(name[0], seed=name[1]) % TEXTS
            bands = xxhash.xxh3_64_intdigest(text.to_bytes(4, "little"))
            keys = (text, _BAND + bands % BANDS, _OTHER_BAND + bands // BANDS % BANDS)
            self._keys[name] = keys
        return keys

    def alike(self, one: Name, other: Name, stage: int = 0) -> bool:
        """Whether two records share a key of a dedup stage."""
        return not set(self.keys(one, stage)).isdisjoint(self.keys(other, stage))


#: Records that a source puts into a batch, and what each counts as at a sink.
BATCH_RECORDS_MAX = 8
HELD_BYTES = 10
#: The first number of the proposals of a ghost (`nodes/sinks.py`).
GHOST_PROPOSALS = 1 << 30
#: The bytes of a record in a simulated fragment; offsets follow from it.
RECORD_BYTES = 10
#: Fragments of an input; fused stages take fewer events a record, so they get more records.
FRAGMENTS, FRAGMENTS_FUSED = (9, 11), (23, 25)
RECORDS_MIN, RECORDS_MAX = 36, 56
#: Share of seeds in which people change the input, and records of what they write.
CHANGING_SHARE, REWRITTEN_MAX = 0.35, 40
#: Of so many seeds, those whose sources say of which bytes all is that they have read.
PREFIXES = 7, (0, 1)
#: Share of seeds with records that kill, of those with dedup, and how many they have.
DEADLY_SHARE, DEADLY_DEDUP_SHARE, DEADLY_MAX = 0.3, 0.6, 2
#: Share of those records that kill at some times only, as for want of memory; and of these times.
FICKLE_SHARE, FICKLE_KILLS = 0.4, 0.6
#: Share of those in which two stages die, each of records of its own: of two sinks it may be one, or both.
TWO_CULPRITS_SHARE = 0.3
#: Share of seeds whose pipeline has a dedup stage before its sinks.
DEDUP_SHARE = 0.33
#: Share of those in which a stage before a sink filters what it lets through; of several, before each or not.
LATE_FILTER_SHARE = 0.4
#: Partitions of its index, seed by seed; 0: the decider has it.
PARTITIONS = (3, 2, 1, 0, 0)
#: Shares of the proposals of a seed with dedup that a sink which was given up comes before: none, or many.
HAUNTED = (0.0, 0.5)
#: Shares of seeds without dedup and with it whose pipeline has two sinks, and of the latter that have a third.
TWO_SINKS_SHARE, TWO_BEHIND_SHARE, THIRD_SINK_SHARE = 0.3, 0.5, 0.4
#: Share of seeds whose sinks are on other workers than their sources, and the labels of the two kinds of workers.
SPREAD_SHARE = 0.35
TIERS = ("tier=near", "tier=far")
DATASET = "sim://dataset"
#: The cluster's own log, where the cluster has one, and the share of seeds in which it has.
CLUSTER = "sim://cluster"
CLUSTER_SHARE = 0.5
PIPELINE = "simulated"
#: Where a record killed an attempt that nobody saw.
GHOST = "ghost"
SOURCE, FILTER, SINK, SECOND_SINK, THIRD_SINK = "read", "filter", "write", "archive", "sample"
#: The dedup stages that there may be, and the stage before each, which asks it.
DEDUPS, ASKERS = ("dedup", "dedup-again"), (FILTER, "again")
#: Of so many seeds one has both, if it has dedup: that which leaves this remainder.
BOTH_DEDUPS = 7, 5
#: The stage that another graph has more.
MORE = "more"


def make_pipeline(
    rule: int, sinks: tuple[str, ...] = (SINK,), *, dedups: int = 0, spread: bool = False, partitions: int = 0
) -> Pipeline:
    """Read, filter, perhaps dedup once or twice, write, each sink on its own.

    Another `rule` filters otherwise: another version.

    The third one has a stage more, which lets everything through.

    Where it is `spread`, sinks are on other workers than what feeds them.
    """
    near, far = TIERS if spread else ("", "")
    # An index stays where what stands before it is the same: there the new stage stands behind.
    first = MORE if rule == 3 and not dedups else SOURCE
    before = FILTER
    deciding: list[Stage] = []
    late = rule == 3 and dedups > 0
    for number in range(dedups):
        if number:
            asking_task = Stage(ASKERS[number], StageKind.TRANSFORM, "simulated:again", after=(before,), on=near)
            deciding.append(asking_task)
        replicas, name = 1 + partitions, DEDUPS[number]
        asking = (ASKERS[number],)
        deciding.append(Stage(name, StageKind.STATEFUL, "simulated:dedup", replicas=replicas, after=asking, on=near))
        before = name
    stages = (
        Stage(SOURCE, StageKind.SOURCE, "simulated:read", on=near),
        *((Stage(MORE, StageKind.TRANSFORM, "simulated:pass", after=(SOURCE,), on=near),) if first == MORE else ()),
        Stage(FILTER, StageKind.TRANSFORM, "simulated:keep", {"rule": 1 if late else rule}, after=(first,), on=near),
        *deciding,
        *((Stage(MORE, StageKind.TRANSFORM, "simulated:pass", after=(before,), on=near),) if late else ()),
        *(Stage(sink, StageKind.SINK, "simulated:write", after=(MORE if late else before,), on=far) for sink in sinks),
    )
    return Pipeline(PIPELINE, DATASET, stages)


class Part(NamedTuple):
    """Records of a batch or a shard: of `item`, those in `kept` and those with another verdict, one bit each.

    `quarantined` are those of `other` that killed their task, `duplicates` those that name another record: ordinals in
    the fragment, what stands in their place, and the number of the dedup stage that says so; `settled` those of them
    whose record was kept before the epoch.
    `read_from` is the writing of the object whose bytes they are, or -1 where these are of several.
    """

    item: Range
    kept: int
    other: int
    quarantined: int = 0
    duplicates: tuple[tuple[int, Name, int], ...] = ()
    read_from: int = 0
    settled: int = 0

    def cut(self, ranges: Columns) -> list[Part]:
        """See `Holdable`: a part for each range."""
        return [self.part(Range(self.item.fragment, first, end - first)) for first, end, _, _ in ranges.tolist()]

    def part(self, item: Range) -> Part:
        """The records of `item`, which lies within."""
        start, everyone = item.first - self.item.first, (1 << item.count) - 1
        kept, other, dead = self.kept >> start, self.other >> start, self.quarantined >> start
        alike = tuple(pair for pair in self.duplicates if item.first <= pair[0] < item.end) if self.duplicates else ()
        settled = self.settled >> start & everyone
        return Part(item, kept & everyone, other & everyone, dead & everyone, alike, self.read_from, settled)

    def duplicate_names(self) -> Duplicates:
        """See `Holdable`."""
        first = self.item.first
        return Duplicates.of(
            [(row, None if self.settled >> row - first & 1 else name) for row, name, _ in self.duplicates]
        )

    def standing_rows(self) -> Ordinals:
        """See `Holdable`."""
        return np.array(ordinals(self.standing, self.item.first), np.int64)

    @property
    def standing(self) -> int:
        """The records that a duplicate may name, one bit each."""
        named = sum(1 << row - self.item.first for row, *_ in self.duplicates)
        return (self.kept | self.other) & ~self.quarantined & ~named

    def released_rows(self) -> Ordinals:
        """See `Holdable`: those that killed their task."""
        return np.array(ordinals(self.quarantined, self.item.first), np.int64)

    def holds(self, item: Range) -> bool:
        """Whether `item` lies within."""
        return self.item.fragment == item.fragment and self.item.first <= item.first and item.end <= self.item.end


def keys_of(content: Sequence[Part]) -> tuple[Part, ...]:
    """What lies in the file of keys beside a shard: who is kept; the keys follow from that. Empty if nobody is."""
    # Of two who write the same, one may have lost the offsets at a cut.
    kept = [part for part in content if part.kept]
    return tuple(Part(Range(part.item.fragment, part.item.first, part.item.count), part.kept, 0) for part in kept)


def ordinals(bits: int, first: int) -> list[int]:
    """The ordinals that bits stand for, the lowest for `first`."""
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(first + low.bit_length() - 1)
        bits ^= low
    return found


class Corpus:
    """The fragments of one seed."""

    def __init__(self, world: World, *, fused: bool = False) -> None:
        #: The keys of records, where there is a dedup stage.
        self.texts = SimulatedTexts() if world.chance(DEDUP_SHARE) else None
        filters_late = self.texts is not None and world.chance(LATE_FILTER_SHARE)
        self.dedups = (1 + (world.seed % BOTH_DEDUPS[0] == BOTH_DEDUPS[1])) if self.texts is not None else 0
        #: In how many partitions the index of each lies.
        self.partitions = PARTITIONS[world.seed % len(PARTITIONS)] if self.texts is not None else 0
        #: How often a sink that was given up is first.
        self.haunted = world.rng.choice(HAUNTED) if self.texts is not None else 0.0
        share = TWO_SINKS_SHARE if self.texts is None else TWO_BEHIND_SHARE
        #: The sinks, each of which closes every record, and those with a filter between them and dedup.
        self.sinks: tuple[str, ...] = (SINK, SECOND_SINK) if world.chance(share) else (SINK,)
        if self.texts is not None and len(self.sinks) > 1 and world.chance(THIRD_SINK_SHARE):
            self.sinks = (*self.sinks, THIRD_SINK)
        self.filters_late: tuple[str, ...] = self.sinks if filters_late else ()
        if filters_late and len(self.sinks) > 1 and world.chance(0.5):
            self.filters_late = self.sinks[1:]
        self.spread = world.chance(SPREAD_SHARE)
        self.records: dict[bytes, int] = {}
        #: Every fragment that ever stood, and the number of its writing.
        self.fragments: list[Fragment] = []
        self.writings: dict[bytes, int] = {}
        self._masks: dict[tuple[bytes, str], int] = {}
        #: By version: the one that filters as it does, by the same rule.
        self._filters = self._alike() if self.dedups else {}
        for index in range(world.rng.randint(*(FRAGMENTS_FUSED if fused else FRAGMENTS))):
            few = world.rng.randint(0, 2)
            count = few if world.chance(0.1) else world.rng.randint(RECORDS_MIN, RECORDS_MAX)
            self._written(f"sim://input/{index}", "1", count)
        #: Records that kill the task whose stage touches them, by that stage, one bit each.
        self._deadly: dict[str, dict[bytes, int]] = {}
        #: Those of them that kill at some times only.
        self._fickle: dict[bytes, int] = {}
        #: Whether a filter's worker has to kill its task, because the record never ends.
        self.hangs = world.chance(0.5)
        if world.chance(DEADLY_SHARE if self.texts is None else DEADLY_DEDUP_SHARE):
            stages = (SOURCE, FILTER, *self.sinks)
            for stage in world.rng.sample(stages, 2 if world.chance(TWO_CULPRITS_SHARE) else 1):
                self._poison(world, stage)
        #: Whether people change the input while it is read, and what is to become of what was open of it.
        self.changes = world.chance(CHANGING_SHARE)
        #: Whether sources say of which bytes all is that they have read of a fragment.
        self.tells_prefixes = self.changes and world.seed % PREFIXES[0] in PREFIXES[1]
        self.changed_input = world.rng.choice(list(ChangedInput)) if self.changes else ChangedInput.HALT

    def write(self, uri: str, version: str, rng: random.Random, of_size: Fragment | None = None) -> Fragment:
        """Another version of an object, or a new object; with as many records as another has."""
        count = rng.randint(0, REWRITTEN_MAX) if of_size is None else self.records[of_size.id]
        return self._written(uri, version, count)

    def touch(self, fragment: Fragment, version: str) -> Fragment:
        """The same bytes as another version."""
        touched = self._written(fragment.uri, version, self.records[fragment.id])
        self.writings[touched.id] = self.writings[fragment.id]
        return touched

    def _written(self, uri: str, version: str, count: int) -> Fragment:
        fragment = Fragment.named(SOURCE, uri, version, start=0, end=-1, reader="lines", size=count * RECORD_BYTES)
        self.fragments.append(fragment)
        self.writings[fragment.id] = len(self.fragments)
        self.records[fragment.id] = count
        return fragment

    def _poison(self, world: World, stage: str) -> None:
        deadly = self._deadly[stage] = dict[bytes, int]()
        for _ in range(world.rng.randint(1, DEADLY_MAX)):
            name = world.rng.choice([name for name, count in self.records.items() if count])
            record = 1 << world.rng.randrange(self.records[name])
            deadly[name] = deadly.get(name, 0) | record
            if world.chance(FICKLE_SHARE):
                self._fickle[name] = self._fickle.get(name, 0) | record

    def dies(self, stage: str) -> bool:
        """Whether a stage dies of any record."""
        return stage in self._deadly

    def kills(self, stage: str, part: Part, world: World) -> bool:
        """Whether a stage that is given the kept records of `part` dies of one, this time."""
        deadly = self._deadly.get(stage)
        if deadly is None:
            return False
        item = part.item
        touched = deadly.get(item.fragment, 0) >> item.first & part.kept
        fickle = touched & self.fickle(item.fragment, item.first, item.count)
        return touched != fickle or (fickle != 0 and world.chance(FICKLE_KILLS))

    def spook(self, name: Name) -> None:
        """A record has killed an earlier attempt, for want of memory, and will kill no other."""
        fragment, row = name
        deadly = self._deadly.setdefault(GHOST, {})
        deadly[fragment] = deadly.get(fragment, 0) | 1 << row
        self._fickle[fragment] = self._fickle.get(fragment, 0) | 1 << row

    def fickle(self, fragment: bytes, first: int, count: int) -> int:
        """Which of `count` records from `first` kill at some times only, so that they may be quarantined or not."""
        return self._fickle.get(fragment, 0) >> first & ((1 << count) - 1)

    def quarantined(self, version: str, sink: str, fragment: bytes, first: int, count: int) -> int:
        """Which of them may kill a task on their way to that sink: a sink can only die of what the filter passes."""
        if not self._deadly:
            return 0
        dead = 0
        for stage, deadly in self._deadly.items():
            if stage == sink:
                passed = self.passed(version, fragment, first, count)
                dead |= deadly.get(fragment, 0) >> first & passed & self.passed_late(sink, fragment, first, count)
            elif stage not in self.sinks:
                dead |= deadly.get(fragment, 0) >> first
        return dead & ((1 << count) - 1)

    def passed_late(self, sink: str, fragment: bytes, first: int, count: int) -> int:
        """Which of them a filter between dedup and a sink lets through."""
        return self.passed("late", fragment, first, count) if sink in self.filters_late else (1 << count) - 1

    def _alike(self) -> dict[str, str]:
        found: dict[str, str] = {}
        by_rule: dict[str, str] = {}
        for rule in (1, 2, 3):
            made = make_pipeline(rule, self.sinks, dedups=self.dedups)
            found[made.version()] = by_rule.setdefault(str(made.stage(FILTER).parameters), made.version())
        return found

    def passed(self, version: str, fragment: bytes, first: int, count: int) -> int:
        """Which of them the filter of that version lets through."""
        version = self._filters.get(version, version)
        mask = self._masks.get((fragment, version))
        if mask is None:
            name = fragment + version.encode()
            bits = b"".join(xxhash.xxh3_128_digest(name, seed=seed) for seed in range(2 * (RECORDS_MAX // 128 + 1)))
            half = len(bits) // 2
            mask = int.from_bytes(bits[:half], "little") | int.from_bytes(bits[half:], "little")
            self._masks[fragment, version] = mask
        return mask >> first & ((1 << count) - 1)
