"""The batches that a sink holds, and the shards that are made of them: the pure half of `worker/task/sink.py`.

`Gathering` decides by ranges when a shard is asked for, written, proposed and released. Here the batches follow the
ranges. A batch is the shell's own: Arrow tables in a task, bits in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

import numpy as np
from msgspec import Struct

from headrace.store.ledger import Range
from headrace.worker.task.core import sink
from headrace.worker.task.core.ranges import Columns, Ordinals, Ranges
from headrace.worker.task.core.sink import Gathering, SealAsked, SealPolicy, SealTimePassed, ShardStalled

#: A record as the ledger names it: fragment and ordinal.
Name = tuple[bytes, int]
#: Records by fragment, in order.
Records = tuple[tuple[bytes, tuple[int, ...]], ...]
#: Ordinals are below 1 << ORDINAL_BITS: the number of a fragment and an ordinal are one key.
ORDINAL_BITS = 40
#: In place of the number of a fragment.
SETTLED = -1


@dataclass(frozen=True, slots=True, eq=False)
class Duplicates:
    """Duplicates as columns `[n]`: record `rows[i]` names record `targets[i]` of `fragments[numbers[i]]`.

    A number of SETTLED: the record that it names was kept before the epoch began, so nothing is to be asked.
    """

    rows: Ordinals
    numbers: Ordinals
    targets: Ordinals
    fragments: tuple[bytes, ...] = ()

    @staticmethod
    def of(pairs: Sequence[tuple[int, Name | None]]) -> Duplicates:
        """These ordinals, and the record that each names; None: a settled one."""
        numbers: dict[bytes, int] = {}
        table = [
            (row, SETTLED, 0) if name is None else (row, numbers.setdefault(name[0], len(numbers)), name[1])
            for row, name in pairs
        ]
        rows, places, targets = np.array(table, np.int64).reshape(-1, 3).T
        return Duplicates(rows, places, targets, tuple(numbers))


class Holdable(Protocol):
    """A batch at a sink, with the fate of each of its records."""

    @property
    def item(self) -> Range:
        """From its first record to its last."""
        ...

    def cut(self, ranges: Columns) -> Sequence[Any]:
        """Those of its records that lie in these ranges, which lie in `item`, as batches of the same kind."""
        ...

    def duplicate_names(self) -> Duplicates:
        """What dedup found to be duplicates."""
        ...

    def standing_rows(self) -> Ordinals:
        """The ordinals that a duplicate may name: of those that dedup let through all but the released."""
        ...

    def released_rows(self) -> Ordinals:
        """The ordinals that dedup may have let through and that are not kept."""
        ...


_NOTHING: Ordinals = np.zeros(0, np.int64)

B = TypeVar("B", bound=Holdable)
R = TypeVar("R")


class BatchHeld(Struct, Generic[B], frozen=True):
    """A batch arrived that is not held yet. Sizes and `quarantined` are those of `BatchGathered`."""

    batch: B
    target_bytes: int
    held_bytes: int
    spilled_bytes: int = 0
    quarantined: int = 0


class BatchesWritten(sink.OfShard, Generic[R], frozen=True):
    """The objects of a shard are durable; `result` is what the writer says of them."""

    result: R


class ProposalAccepted(sink.OfShard, frozen=True):
    """The ledger names the shard."""


class ProposalOverlaps(sink.OfShard, frozen=True):
    """Parts of the shard's ranges are closed already."""

    overlaps: tuple[Range, ...]


class DependenciesAnswered(sink.OfShard, frozen=True):
    """Of the records that a shard's duplicates name, those that are not closed yet and those that are not kept."""

    open: Records = ()
    gone: Records = ()


class WriteBatches(sink.OfShard, Generic[B], frozen=True):
    """Write a shard of these batches, in this order."""

    batches: tuple[B, ...]
    reason: str


class ProposeBatches(sink.OfShard, Generic[B, R], frozen=True):
    """Propose a shard that is written. `needs` are records that its duplicates name, `released` claims to give back."""

    batches: tuple[B, ...]
    result: R
    needs: Records
    released: Records


class AskDependencies(sink.OfShard, frozen=True):
    """Ask the controller which of these records are kept."""

    records: Records


class ReportLetGo(Struct, frozen=True):
    """Verdicts were let go of: the controller has their records read again."""

    ranges: Ranges


Event = (
    BatchHeld[Any]
    | SealAsked
    | BatchesWritten[Any]
    | ShardStalled
    | ProposalAccepted
    | ProposalOverlaps
    | DependenciesAnswered
    | SealTimePassed
)
Command = WriteBatches[Any] | ProposeBatches[Any, Any] | AskDependencies | ReportLetGo


class HeldBatches(Generic[B, R]):
    """Everything that one sink holds. `dependent`: its batches may hold verdicts that name other records.

    `join` makes of batches that wait fewer ones with the same records.
    """

    def __init__(
        self, policy: SealPolicy, *, dependent: bool = False, join: Callable[[list[B]], list[B]] | None = None
    ) -> None:
        self._join = join or list[B]
        self.policy = policy
        self._dependent = dependent
        self.gathering = Gathering(policy, dependent=dependent)
        self._gathered: list[B] = []
        self._shards: dict[int, list[B]] = {}
        self._results: dict[int, R] = {}
        #: What the duplicates of a shard name that it does not keep itself.
        self._needs: dict[int, Records] = {}

    @property
    def accepts(self) -> bool:
        """Whether another batch may come."""
        return self.gathering.accepts

    def ranges(self, fragment: bytes | None = None) -> list[Range]:
        """The ranges that are held, of one fragment or of all."""
        return self.gathering.held(fragment)

    def missing(self, item: Range) -> Collection[Range]:
        """What of a range is not held: another sink's loss has the same range read again for both."""
        return self.gathering.missing(item)

    def batches(self) -> list[B]:
        """Every batch that is held."""
        return [*self._gathered, *(batch for shard in self._shards.values() for batch in shard)]

    def batches_of(self, shard: int) -> list[B]:
        """The batches of a shard."""
        return self._shards.get(shard, [])

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        return self.gathering.wake_at()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        match event:
            case BatchHeld():
                item = event.batch.item
                self._gathered.append(event.batch)
                sizes = event.target_bytes, event.held_bytes, event.spilled_bytes, event.quarantined
                return self._drive(sink.BatchGathered(item, *sizes), now)
            case BatchesWritten():
                self._results[event.shard] = event.result
                return self._drive(sink.ShardWritten(event.shard), now)
            case ProposalAccepted():
                return self._drive(sink.ShardAccepted(event.shard), now)
            case ProposalOverlaps():
                return self._drive(sink.ShardOverlapped(event.shard, event.overlaps), now)
            case DependenciesAnswered():
                return self._answered(event, now)
            case SealAsked() | ShardStalled() | SealTimePassed():
                return self._drive(event, now)
            case _:
                assert_never(event)

    def _answered(self, event: DependenciesAnswered, now: float) -> list[Command]:
        held = self._shards.get(event.shard)
        if not held:
            return []
        waiting, void = dependents(held, event.open), dependents(held, event.gone)
        asked = self.gathering.asks(event.shard)
        commands = self.gathering.handle(sink.NeedsAnswered(event.shard, waiting, void), now)
        if asked:
            self._needs[event.shard] = _without(_without(self._needs.get(event.shard, ()), event.open), event.gone)
            for command in commands:
                waiting = waiting.minus(command.ranges) if isinstance(command, sink.LetGo) else waiting
            self._gathered += self._join(_cut(held, waiting))
        return self._carry_out(commands, now)

    def _drive(self, event: sink.Event, now: float) -> list[Command]:
        return self._carry_out(self.gathering.handle(event, now), now)

    def _carry_out(self, orders: Iterable[sink.Command], now: float) -> list[Command]:
        commands: list[Command] = []
        for command in orders:
            match command:
                case sink.WriteShard():
                    batches = self._take(command.shard, command.ranges)
                    commands.append(WriteBatches(command.shard, tuple(batches), command.reason))
                case sink.AskNeeds():
                    records = self._needs[command.shard] = needs(self._take(command.shard, command.ranges))
                    if records:
                        commands.append(AskDependencies(command.shard, records))
                    else:
                        commands += self._drive(sink.NeedsAnswered(command.shard), now)
                case sink.ProposeShard():
                    commands.append(self._proposal(command.shard))
                case sink.LetGo():
                    commands.append(ReportLetGo(command.ranges))
                case sink.RenewShard():
                    self._shards[command.into] = self._shards.pop(command.shard)
                    self._forget(command.shard)
                case sink.ReleaseShard():
                    self._shards.pop(command.shard, None)
                    self._forget(command.shard)
                case _:
                    assert_never(command)
        return commands

    def _forget(self, shard: int) -> None:
        self._results.pop(shard, None)
        self._needs.pop(shard, None)

    def _proposal(self, shard: int) -> ProposeBatches[B, R]:
        batches = tuple(self._shards[shard])
        tied = (self._needs.get(shard, ()), released(batches)) if self._dependent else ((), ())
        return ProposeBatches(shard, batches, self._results[shard], *tied)

    def _take(self, shard: int, ranges: Ranges) -> list[B]:
        """The batches of a shard: all that gathers; of those that it had, what these ranges leave."""
        if shard in self._shards:
            self._shards[shard] = _cut(self._shards[shard], ranges)
        else:
            self._shards[shard], self._gathered = self._gathered, []
        return self._shards[shard]


def needs(batches: Iterable[Holdable]) -> Records:
    """The records that duplicates among these batches name and that do not stand here."""
    held = list(batches)
    numbers: dict[bytes, int] = {}
    named = _names([batch.duplicate_names() for batch in held], lambda name: numbers.setdefault(name, len(numbers)))
    mine = [batch for batch in held if batch.item.fragment in numbers]
    kept = [_keys(numbers[batch.item.fragment], batch.standing_rows()) for batch in mine]
    return _records(np.setdiff1d(np.unique(named[named >= 0]), _joined(kept), assume_unique=True), numbers)


def _without(records: Records, others: Records) -> Records:
    """What is left of these records without others."""
    gone: dict[bytes, set[int]] = {}
    for fragment, rows in others:
        gone.setdefault(fragment, set()).update(rows)
    left = ((name, tuple(row for row in rows if row not in gone.get(name, ()))) for name, rows in records)
    return tuple((name, rows) for name, rows in left if rows) if gone else records


def released(batches: Iterable[Holdable]) -> Records:
    """The records of these batches that dedup may have let through and that are not kept."""
    found = [(batch.item.fragment, batch.released_rows()) for batch in batches]
    numbers = {name: number for number, name in enumerate({name for name, rows in found if len(rows)})}
    keys = [_keys(numbers[name], rows) for name, rows in found if len(rows)]
    return _records(np.unique(_joined(keys)), numbers)


def dependents(batches: Iterable[Holdable], records: Records) -> Ranges:
    """The duplicates among these batches that name one of these records."""
    if not records:
        return Ranges({})
    held = list(batches)
    numbers: dict[bytes, int] = {}
    wanted = [_keys(numbers.setdefault(name, len(numbers)), np.array(rows, np.int64)) for name, rows in records]
    columns = [batch.duplicate_names() for batch in held]
    found = np.isin(_names(columns, lambda name: numbers.get(name, len(numbers))), _joined(wanted))
    rows: dict[bytes, list[Ordinals]] = {}
    at = 0
    for batch, mine in zip(held, columns, strict=True):
        rows.setdefault(batch.item.fragment, []).append(mine.rows[found[at : at + len(mine.rows)]])
        at += len(mine.rows)
    return Ranges.of_records({name: _joined(parts) for name, parts in rows.items()})


def _names(columns: Iterable[Duplicates], number: Callable[[bytes], int]) -> Ordinals:
    """The keys of the records that all these duplicates name; those of settled ones are negative."""
    named = [mine for mine in columns if len(mine.rows)]
    numbers = [np.array([*map(number, mine.fragments), SETTLED], np.int64)[mine.numbers] for mine in named]
    return _keys(_joined(numbers), _joined(mine.targets for mine in named))


def _keys(numbers: Ordinals | int, rows: Ordinals) -> Ordinals:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < 1 << ORDINAL_BITS:
        raise ValueError(f"records {rows.min()} to {rows.max()}: an ordinal has {ORDINAL_BITS} bits")
    return (np.asarray(numbers, np.int64) << ORDINAL_BITS) | rows


def _joined(parts: Iterable[Ordinals]) -> Ordinals:
    return np.concatenate([_NOTHING, *parts])


def _records(keys: Ordinals, numbers: Mapping[bytes, int]) -> Records:
    """The records of ascending keys, by fragment."""
    edges = np.searchsorted(keys, np.arange(len(numbers) + 1, dtype=np.int64) << ORDINAL_BITS)
    rows: list[int] = (keys & ((1 << ORDINAL_BITS) - 1)).tolist()
    found = ((name, rows[edges[number] : edges[number + 1]]) for name, number in sorted(numbers.items()))
    return tuple((name, tuple(mine)) for name, mine in found if mine)


def _cut(held: Iterable[B], ranges: Ranges) -> list[B]:
    """The batches of these ranges, each cut out of the one that has it."""
    cut: list[B] = []
    for batch in held:
        inside = ranges.within(batch.item)
        if len(inside) == 1 and (inside[0, 0], inside[0, 1]) == (batch.item.first, batch.item.end):
            cut.append(batch)
        elif len(inside):
            cut += batch.cut(inside)
    return cut
