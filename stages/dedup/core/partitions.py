"""The decider of a partitioned index: partitions say who holds which key, and what becomes of a record is decided here.

Each partition holds a range of the keys, by their highest bits. A batch is stamped, and each partition is asked for its
keys at once; batches are decided in the order of their stamps, each when all partitions have answered for it. So many
batches may be on their way, and their answers may come in any order.

A partition answers what it knew when it was asked. What has changed since, the decider knows itself: it has decided all
that comes before, and remembers what it claimed and released while the oldest open batch was on its way. So the
verdicts are those of one index that sees the records one by one, whatever the number of partitions and the order of
answers.

The death of a partition takes claims with it that are in no shard. The decider lets nothing through from then on; the
epoch is raised, and each partition loads its range of the keys of what is kept (docs/design/dedup-index.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from headrace.stages.dedup.core.decider import ClaimReleased

#: Batches that may be on their way at once: more wait at their senders.
BATCHES_MAX = 64
NOBODY = -1

#: A key of a record: the number of its word (0: the whole text), and its bits.
Key = tuple[int, int]


class PartitionedState(Enum):
    """What becomes of a batch."""

    SERVING = "serving"
    FENCED = "fenced"


class PartitionedTurn(Enum):
    """What moves it."""

    LOST = "a partition was lost"


TRANSITIONS: dict[tuple[PartitionedState, PartitionedTurn], PartitionedState] = {
    (PartitionedState.SERVING, PartitionedTurn.LOST): PartitionedState.FENCED,
    (PartitionedState.FENCED, PartitionedTurn.LOST): PartitionedState.FENCED,
}


@dataclass(frozen=True, slots=True)
class Record:
    """A record by its name, with its keys; those of the whole text first."""

    name: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class RecordsStamped:
    """Records came, which the decider takes after all that came before."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class PartitionAnswered:
    """Of each key that a partition was asked for: the record that holds it, or NOBODY."""

    stamp: int
    partition: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionLost:
    """A partition died, with the claims that it held."""

    partition: int


@dataclass(frozen=True, slots=True)
class AskPartition:
    """Ask a partition who holds keys. It answers with all that it was told before this, and nothing later."""

    stamp: int
    partition: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ClaimKeys:
    """Give keys, which nobody holds, to a record."""

    partition: int
    number: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class ReleaseNumber:
    """Let go of all keys of a record."""

    partition: int
    number: int


@dataclass(frozen=True, slots=True)
class AnswerStamp:
    """Of each record of a batch the name of the one that it is a duplicate of; None: it is kept."""

    stamp: int
    duplicates_of: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class DropStamp:
    """Let nothing of a batch through: it is read again in the next epoch."""

    stamp: int


Event = RecordsStamped | PartitionAnswered | ClaimReleased | PartitionLost
Command = AskPartition | ClaimKeys | ReleaseNumber | AnswerStamp | DropStamp

#: Of a record and the numbers of those that share a key with it, most shared keys first: which one it is a duplicate
#: of, or NOBODY.
Judge = Callable[[Record, Sequence[int]], int]


def partition_of(bits: int, partitions: int) -> int:
    """Which of so many partitions holds a key of 64 bits: equal ranges of its highest 32."""
    return ((bits >> 32) * partitions) >> 32


@dataclass(slots=True)
class _Open:
    """A batch that is not decided: its keys by partition, and the answers for them."""

    stamp: int
    records: tuple[Record, ...]
    asked: dict[int, tuple[Key, ...]]
    holders: dict[Key, int] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Recent:
    """What was decided after a batch was asked for: who took which key, and who was released."""

    taken: dict[Key, int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)


class PartitionedDecider:
    """The state machine of a decider with partitions."""

    def __init__(self, partitions: int, judge: Judge) -> None:
        self.state = PartitionedState.SERVING
        self._partitions = partitions
        self._judge = judge
        self._stamp = 0
        self._open: dict[int, _Open] = {}
        #: By the stamp of the newest batch that had been asked for: what changed between that and the next.
        self._recent: dict[int, _Recent] = {}
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more batch may come."""
        return len(self._open) < BATCHES_MAX

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it. ValueError for one that cannot come now."""
        del now
        match event:
            case RecordsStamped():
                return self._stamped(event.records)
            case PartitionAnswered():
                return self._answered(event)
            case ClaimReleased():
                return self._release(event.name)
            case PartitionLost():
                return self._lost()
            case _:
                assert_never(event)

    def _stamped(self, records: tuple[Record, ...]) -> list[Command]:
        if not self.has_room:
            raise ValueError(f"{len(self._open)} batches are on their way; the limit is {BATCHES_MAX}")
        self._stamp += 1
        stamp = self._stamp
        if self.state is PartitionedState.FENCED:
            return [DropStamp(stamp)]
        parts: dict[int, dict[Key, None]] = {}
        for key in (key for record in records for key in record.keys):
            parts.setdefault(partition_of(key[1], self._partitions), {})[key] = None
        asked = {partition: tuple(keys) for partition, keys in sorted(parts.items())}
        self._open[stamp] = _Open(stamp, records, asked)
        self._recent[stamp] = _Recent()
        asks: list[Command] = [AskPartition(stamp, partition, keys) for partition, keys in asked.items()]
        return asks + self._decide_all()

    def _answered(self, event: PartitionAnswered) -> list[Command]:
        if self.state is PartitionedState.FENCED:
            return []
        batch = self._open.get(event.stamp)
        keys = batch.asked.get(event.partition) if batch is not None else None
        if batch is None or keys is None or event.partition in batch.answered:
            raise ValueError(f"partition {event.partition} was not asked for batch {event.stamp}, or answered before")
        if len(event.holders) != len(keys) or not all(NOBODY <= it < len(self._names) for it in event.holders):
            raise ValueError(f"partition {event.partition} answers for other keys than those of batch {event.stamp}")
        batch.answered.add(event.partition)
        batch.holders.update(zip(keys, event.holders, strict=True))
        return self._decide_all()

    def _decide_all(self) -> list[Command]:
        commands: list[Command] = []
        while self._open:
            stamp, batch = next(iter(self._open.items()))
            if len(batch.answered) < len(batch.asked):
                break
            commands += self._decide(batch)
            del self._open[stamp]
            oldest = next(iter(self._open), self._stamp)
            for past in [known for known in self._recent if known < oldest]:
                del self._recent[past]
        return commands

    def _decide(self, batch: _Open) -> list[Command]:
        commands: list[Command] = []
        answers: list[str | None] = []
        for record in batch.records:
            holders = [self._holder(batch, key) for key in record.keys]
            same = self._numbers.get(record.name, NOBODY)
            if same != NOBODY and same in holders:
                answers.append(None)
                continue
            found = self._judge(record, _by_shared(holders))
            if found != NOBODY:
                answers.append(self._names[found])
                continue
            answers.append(None)
            number = len(self._names)
            self._names.append(record.name)
            self._numbers[record.name] = number
            free = [key for key, holder in zip(record.keys, holders, strict=True) if holder == NOBODY]
            self._recent[self._stamp].taken.update(dict.fromkeys(free, number))
            for partition in sorted({partition_of(key[1], self._partitions) for key in free}):
                mine = tuple(key for key in free if partition_of(key[1], self._partitions) == partition)
                commands.append(ClaimKeys(partition, number, mine))
        return [*commands, AnswerStamp(batch.stamp, tuple(answers))]

    def _holder(self, batch: _Open, key: Key) -> int:
        """Who holds a key now: what was answered, and what has changed since it was asked."""
        holder = batch.holders[key]
        for stamp, recent in self._recent.items():
            if stamp >= batch.stamp:
                holder = recent.taken.get(key, holder)
                if holder in recent.released:
                    holder = NOBODY
        return holder

    def _release(self, name: str) -> list[Command]:
        number = self._numbers.pop(name, NOBODY)
        if number == NOBODY or self.state is PartitionedState.FENCED:
            return []
        if self._recent:
            self._recent[self._stamp].released.add(number)
        return [ReleaseNumber(partition, number) for partition in range(self._partitions)]

    def _lost(self) -> list[Command]:
        self.state = TRANSITIONS[self.state, PartitionedTurn.LOST]
        dropped: list[Command] = [DropStamp(stamp) for stamp in self._open]
        self._open.clear()
        self._recent.clear()
        return dropped


def _by_shared(holders: Sequence[int]) -> list[int]:
    """The holders, those of most keys first, and of equals the first kept."""
    found = set(holders) - {NOBODY}
    return sorted(found, key=lambda number: (-holders.count(number), number))
