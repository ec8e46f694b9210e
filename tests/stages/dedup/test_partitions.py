"""A partitioned index gives the verdicts of a whole one, with any number of partitions and any order of answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from headrace.stages.dedup.core import partitions as core
from headrace.stages.dedup.core.partitions import (
    NOBODY,
    AnswerStamp,
    AskPartition,
    ClaimKeys,
    ClaimReleased,
    DropStamp,
    Key,
    PartitionAnswered,
    PartitionedDecider,
    PartitionLost,
    Record,
    RecordsStamped,
    ReleaseNumber,
    partition_of,
)
from headrace.stages.dedup.index.partition import Partition


def judge(record: Record, candidates: Sequence[int]) -> int:
    """One of two candidates is the original, by a rule that depends on which stands first."""
    return next((number for number in candidates if (number + len(record.keys)) % 3), NOBODY)


class Holders(Protocol):
    """What remembers keys."""

    def ask(self, keys: Sequence[Key]) -> list[int]: ...

    def give(self, number: int, keys: Sequence[Key]) -> None: ...

    def let_go(self, number: int) -> None: ...


@dataclass
class Remembered:
    """A partition that is a dict."""

    keys: dict[Key, int] = field(default_factory=dict)

    def ask(self, keys: Sequence[Key]) -> list[int]:
        return [self.keys.get(key, NOBODY) for key in keys]

    def give(self, number: int, keys: Sequence[Key]) -> None:
        assert not self.keys.keys() & set(keys), "a key that another holds is given away"
        self.keys.update(dict.fromkeys(keys, number))

    def let_go(self, number: int) -> None:
        self.keys = {key: holder for key, holder in self.keys.items() if holder != number}


class OnIndex:
    """A partition that is an index."""

    def __init__(self) -> None:
        self._partition = Partition(4, "scheme")

    def ask(self, keys: Sequence[Key]) -> list[int]:
        found: list[int] = self._partition.ask(*self._columns(keys)).tolist()
        return found

    def give(self, number: int, keys: Sequence[Key]) -> None:
        self._partition.give(number, *self._columns(keys))

    def let_go(self, number: int) -> None:
        self._partition.let_go(number)

    def _columns(self, keys: Sequence[Key]) -> tuple[np.ndarray, np.ndarray]:
        bits = np.array([[value, value] for _, value in keys], np.uint64).reshape(-1, 2)
        return bits, np.array([word for word, _ in keys], np.int64)


def whole(batches: Sequence[Sequence[Record]], releases: dict[int, list[str]]) -> list[tuple[str | None, ...]]:
    """The verdicts of one index that sees the records one by one; before a batch some are released."""
    keys: dict[Key, int] = {}
    names: list[str] = []
    fates: list[tuple[str | None, ...]] = []
    for at, batch in enumerate(batches):
        for name in releases.get(at, ()):
            gone = {number for number, known in enumerate(names) if known == name}
            keys = {key: number for key, number in keys.items() if number not in gone}
        answers: list[str | None] = []
        for record in batch:
            holders = [keys.get(key, NOBODY) for key in record.keys]
            if any(holder != NOBODY and names[holder] == record.name for holder in holders):
                answers.append(None)
                continue
            candidates = sorted(set(holders) - {NOBODY}, key=lambda number: (-holders.count(number), number))
            found = judge(record, candidates)
            answers.append(names[found] if found != NOBODY else None)
            if found == NOBODY:
                names.append(record.name)
                keys.update({key: len(names) - 1 for key in record.keys if key not in keys})
        fates.append(tuple(answers))
    return fates


@dataclass
class World:
    """A decider, its partitions, and messages on their way: those of a partition in order, their answers in any."""

    partitions: list[Holders]
    chance: random.Random

    def __post_init__(self) -> None:
        self.decider = PartitionedDecider(len(self.partitions), judge)
        self.sent: list[list[core.Command]] = [[] for _ in self.partitions]
        self.answers: list[PartitionAnswered] = []
        self.fates: dict[int, tuple[str | None, ...]] = {}
        self.dropped: set[int] = set()

    def tell(self, event: core.Event) -> None:
        for command in self.decider.handle(event, 0.0):
            match command:
                case AnswerStamp():
                    assert command.stamp == len(self.fates) + 1, "batches are answered in order"
                    self.fates[command.stamp] = command.duplicates_of
                case DropStamp():
                    self.dropped.add(command.stamp)
                case AskPartition() | ClaimKeys() | ReleaseNumber():
                    self.sent[command.partition].append(command)

    def step(self) -> bool:
        """One partition takes its next message, or one answer arrives; False where all is quiet."""
        busy = [number for number, waiting in enumerate(self.sent) if waiting]
        if not busy and not self.answers:
            return False
        if self.answers and (not busy or self.chance.random() < 0.5):
            self.tell(self.answers.pop(self.chance.randrange(len(self.answers))))
            return True
        number = self.chance.choice(busy)
        command, partition = self.sent[number].pop(0), self.partitions[number]
        if isinstance(command, AskPartition):
            self.answers.append(PartitionAnswered(command.stamp, number, tuple(partition.ask(command.keys))))
        elif isinstance(command, ClaimKeys):
            partition.give(command.number, command.keys)
        elif isinstance(command, ReleaseNumber):
            partition.let_go(command.number)
        return True


def batches_of(chance: random.Random, count: int, different: int) -> list[list[Record]]:
    """Batches of records that share keys; some are read again."""
    values = [chance.getrandbits(64) for _ in range(different)]
    records: list[Record] = []
    found: list[list[Record]] = []
    for _ in range(count):
        batch: list[Record] = []
        for _ in range(chance.randint(1, 4)):
            if records and chance.random() < 0.1:
                batch.append(chance.choice(records))
                continue
            text = chance.choice(values)
            bands = [(word, chance.choice(values)) for word in range(2, chance.randint(2, 6))]
            batch.append(Record(f"r{len(records)}", ((0, text), *bands)))
            records.append(batch[-1])
        found.append(batch)
    return found


def run(
    world: World, batches: Sequence[Sequence[Record]], names: Sequence[str] = (), lost_after: int = 0
) -> dict[int, list[str]]:
    """Send all, with steps between; of `names` some are released. Which were, by how many batches were decided then."""
    steps, releases, pace = 0, dict[int, list[str]](), world.chance.choice([0.5, 0.8, 0.93, 0.97])
    for batch in batches:
        if names and world.chance.random() < 0.3:
            newest = [record.name for record in batches[len(world.fates) - 1]] if world.fates else []
            name = world.chance.choice(newest or names) if world.chance.random() < 0.7 else world.chance.choice(names)
            releases.setdefault(len(world.fates), []).append(name)
            world.tell(ClaimReleased(name))
        while not world.decider.has_room or world.chance.random() < pace:
            if not world.step():
                break
            steps += 1
            if steps == lost_after:
                world.tell(PartitionLost(0))
        world.tell(RecordsStamped(tuple(batch)))
    while world.step():
        pass
    return releases


@given(
    seed=st.integers(0, 1 << 32),
    partitions=st.sampled_from([1, 2, 7]),
    different=st.sampled_from([2, 6, 40]),
    lost_after=st.sampled_from([0, 0, 5, 60]),
)
@settings(max_examples=300, deadline=None)
def test_verdicts_are_those_of_one_index_whatever_answers_first(
    seed: int, partitions: int, different: int, lost_after: int
) -> None:
    """Where a partition is lost, those of the batches that were decided before; nothing gets through after it."""
    chance = random.Random(seed)
    batches = batches_of(chance, 30, different)
    names = sorted({record.name for batch in batches for record in batch})
    world = World([Remembered() for _ in range(partitions)], chance)
    releases = run(world, batches, names, lost_after)
    expected = whole(batches, releases)
    decided = [world.fates[stamp] for stamp in sorted(world.fates)]
    assert decided == expected[: len(decided)]
    assert len(decided) + len(world.dropped) == len(batches)
    assert world.dropped == set(range(len(decided) + 1, len(batches) + 1))
    if not lost_after:
        assert not world.dropped


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=10, deadline=None)
def test_partitions_on_indexes_give_the_same_verdicts(seed: int) -> None:
    chance = random.Random(seed)
    batches = batches_of(chance, 20, 12)
    names = sorted({record.name for batch in batches for record in batch})
    world = World([OnIndex() for _ in range(3)], chance)
    releases = run(world, batches, names)
    assert [world.fates[stamp] for stamp in sorted(world.fates)] == whole(batches, releases)


def test_an_epoch_after_a_loss_keeps_what_was_closed() -> None:
    """What was let through and is in no shard is read again; each record that was closed keeps its fate."""
    chance = random.Random(4)
    batches = batches_of(chance, 30, 1000)
    first = World([Remembered() for _ in range(3)], chance)
    run(first, batches, lost_after=40)
    assert first.dropped
    by_name = {record.name: record for batch in batches for record in batch}
    let_through = [
        record
        for stamp, fates in first.fates.items()
        for record, fate in zip(batches[stamp - 1], fates, strict=True)
        if fate is None
    ]
    closed = let_through[: len(let_through) // 2]
    again = World([Remembered() for _ in range(2)], chance)
    run(again, [closed, *batches])
    kept = {
        record.name
        for batch, fates in zip([closed, *batches], (again.fates[stamp] for stamp in sorted(again.fates)), strict=True)
        for record, fate in zip(batch, fates, strict=True)
        if fate is None
    }
    assert {record.name for record in closed} <= kept
    assert kept <= by_name.keys()


@pytest.mark.parametrize("partitions", [1, 2, 7, 256])
def test_partitions_are_even_ranges_of_the_keys(partitions: int) -> None:
    chance = random.Random(1)
    bits = sorted(chance.getrandbits(64) for _ in range(40_000))
    found = [partition_of(value, partitions) for value in bits]
    assert found == sorted(found)
    counts = [found.count(partition) for partition in range(partitions)]
    assert min(counts) > 40_000 / partitions * 0.6
    assert partition_of(0, partitions) == 0
    assert partition_of((1 << 64) - 1, partitions) == partitions - 1


@pytest.mark.parametrize(
    "answer",
    [
        PartitionAnswered(*given)
        for given in ((2, 0, (NOBODY,)), (1, 1, (NOBODY,)), (1, 0, ()), (1, 0, (0,)), (1, 0, (-2,)))
    ],
)
def test_an_answer_to_what_was_not_asked_is_refused(answer: PartitionAnswered) -> None:
    decider = PartitionedDecider(1, judge)
    decider.handle(RecordsStamped((Record("a", ((0, 5),)),)), 0.0)
    with pytest.raises(ValueError, match="partition"):
        decider.handle(answer, 0.0)


def test_more_batches_than_the_limit_are_refused() -> None:
    decider = PartitionedDecider(1, judge)
    for _ in range(core.BATCHES_MAX):
        assert decider.has_room
        decider.handle(RecordsStamped((Record("a", ((0, 5),)),)), 0.0)
    assert not decider.has_room
    with pytest.raises(ValueError, match="the limit is"):
        decider.handle(RecordsStamped(()), 0.0)
    dropped = decider.handle(PartitionLost(0), 0.0)
    assert dropped == [DropStamp(stamp) for stamp in range(1, core.BATCHES_MAX + 1)]
    assert decider.has_room
    assert decider.handle(PartitionLost(0), 0.0) == []


def test_a_claim_released_while_a_batch_was_asked_is_void() -> None:
    decider = PartitionedDecider(1, lambda _, candidates: candidates[0] if candidates else NOBODY)
    key = (0, 5)
    for name in ("a", "b", "c"):
        decider.handle(RecordsStamped((Record(name, (key,)),)), 0.0)
    assert decider.handle(PartitionAnswered(1, 0, (NOBODY,)), 0.0)[-1] == AnswerStamp(1, (None,))
    decider.handle(ClaimReleased("a"), 0.0)
    assert decider.handle(PartitionAnswered(2, 0, (NOBODY,)), 0.0) == [ClaimKeys(0, 1, (key,)), AnswerStamp(2, (None,))]
    assert decider.handle(PartitionAnswered(3, 0, (NOBODY,)), 0.0) == [AnswerStamp(3, ("b",))]
