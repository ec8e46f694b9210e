"""The batches that a sink holds, and the shards that are made of them: the pure half of `worker/task/sink.py`.

`Gathering` decides by ranges when a shard is asked for, written, proposed and released. Here the batches follow the
ranges. A batch is the shell's own: Arrow tables in a task, bits in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

from headrace.store.ledger import Range
from headrace.worker.task.core import sink
from headrace.worker.task.core.sink import Gathering, SealAsked, SealPolicy, ShardStalled, TimePassed

#: A record as the ledger names it: fragment and ordinal.
Name = tuple[bytes, int]
#: Records by fragment, in order.
Records = tuple[tuple[bytes, tuple[int, ...]], ...]


class Holdable(Protocol):
    """A batch at a sink, with the fate of each of its records."""

    @property
    def item(self) -> Range:
        """The records that it covers."""
        ...

    def cut(self, item: Range) -> Any:
        """The records of `item`, which lies within, as a batch of the same kind."""
        ...

    def duplicate_names(self) -> Sequence[tuple[int, Name]]:
        """The ordinals that dedup found to be duplicates, and the record that each names."""
        ...

    def kept_rows(self) -> Iterable[int]:
        """The ordinals that are kept."""
        ...

    def released_rows(self) -> Iterable[int]:
        """The ordinals that dedup may have let through and that are not kept."""
        ...


B = TypeVar("B", bound=Holdable)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class BatchHeld(Generic[B]):
    """A batch arrived that is not held yet. Sizes and `quarantined` are those of `BatchGathered`."""

    batch: B
    target_bytes: int
    held_bytes: int
    spilled_bytes: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class ShardWritten(Generic[R]):
    """The objects of a shard are durable; `result` is what the writer says of them."""

    shard: int
    result: R


@dataclass(frozen=True, slots=True)
class ProposalAccepted:
    """The ledger names the shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class ProposalOverlaps:
    """Parts of the shard's ranges are closed already."""

    shard: int
    overlaps: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class DependenciesAnswered:
    """Of the records that a shard's duplicates name, those that are not closed yet and those that are not kept."""

    shard: int
    open: Records = ()
    gone: Records = ()


@dataclass(frozen=True, slots=True)
class WriteBatches(Generic[B]):
    """Write a shard of these batches, in this order."""

    shard: int
    batches: tuple[B, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ProposeBatches(Generic[B, R]):
    """Propose a shard that is written. `needs` are records that its duplicates name, `released` claims to give back."""

    shard: int
    batches: tuple[B, ...]
    result: R
    needs: Records
    released: Records


@dataclass(frozen=True, slots=True)
class AskDependencies:
    """Ask the controller which of these records are kept."""

    shard: int
    records: Records


@dataclass(frozen=True, slots=True)
class ReportLetGo:
    """Verdicts were let go of: the controller has their records read again."""

    ranges: tuple[Range, ...]


Event = (
    BatchHeld[Any]
    | SealAsked
    | ShardWritten[Any]
    | ShardStalled
    | ProposalAccepted
    | ProposalOverlaps
    | DependenciesAnswered
    | TimePassed
)
Command = WriteBatches[Any] | ProposeBatches[Any, Any] | AskDependencies | ReportLetGo


class HeldBatches(Generic[B, R]):
    """Everything that one sink holds. `dependent`: its batches may hold verdicts that name other records."""

    def __init__(self, policy: SealPolicy, *, dependent: bool = False) -> None:
        self.policy = policy
        self._dependent = dependent
        self._gathering = Gathering(policy, dependent=dependent)
        self._gathered: dict[tuple[bytes, int], B] = {}
        self._shards: dict[int, list[B]] = {}
        self._results: dict[int, R] = {}

    @property
    def accepts(self) -> bool:
        """Whether another batch may come."""
        return self._gathering.accepts

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of all batches that are not closed."""
        return self._gathering.held_bytes

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store; "" while none does."""
        return self._gathering.trouble

    @property
    def doubtful(self) -> bool:
        """Whether quarantined records are still to be counted."""
        return self._gathering.doubt.lasts

    def ranges(self, fragment: bytes | None = None) -> list[Range]:
        """The ranges that are held, of one fragment or of all."""
        return self._gathering.held(fragment)

    def missing(self, item: Range) -> tuple[Range, ...]:
        """What of a range is not held: another sink's loss has the same range read again for both."""
        return sink.without((item,), self._gathering.held(item.fragment))

    def batches(self) -> list[B]:
        """Every batch that is held."""
        return [*self._gathered.values(), *(batch for shard in self._shards.values() for batch in shard)]

    def batches_of(self, shard: int) -> list[B]:
        """The batches of a shard."""
        return self._shards.get(shard, [])

    def wake_at(self) -> float | None:
        """When `handle(TimePassed())` is wanted next."""
        return self._gathering.wake_at()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event; give the commands that follow from it."""
        match event:
            case BatchHeld():
                item = event.batch.item
                self._gathered[item.fragment, item.first] = event.batch
                sizes = event.target_bytes, event.held_bytes, event.spilled_bytes, event.quarantined
                return self._drive(sink.BatchGathered(item, *sizes), now)
            case ShardWritten():
                self._results[event.shard] = event.result
                return self._drive(sink.ShardWritten(event.shard), now)
            case ProposalAccepted():
                return self._drive(sink.ShardAccepted(event.shard), now)
            case ProposalOverlaps():
                return self._drive(sink.ShardOverlapped(event.shard, event.overlaps), now)
            case DependenciesAnswered():
                return self._answered(event, now)
            case SealAsked() | ShardStalled() | TimePassed():
                return self._drive(event, now)
            case _:
                assert_never(event)

    def _answered(self, event: DependenciesAnswered, now: float) -> list[Command]:
        held = self._shards.get(event.shard)
        if not held:
            return []
        waiting, void = dependents(held, event.open), dependents(held, event.gone)
        if self._gathering.asks(event.shard):
            for item, batch in zip(waiting, _cut(held, waiting), strict=True):
                self._gathered[item.fragment, item.first] = batch
        return self._drive(sink.NeedsAnswered(event.shard, waiting, void), now)

    def _drive(self, event: sink.Event, now: float) -> list[Command]:
        commands: list[Command] = []
        for command in self._gathering.handle(event, now):
            match command:
                case sink.WriteShard():
                    batches = self._take(command.shard, command.ranges)
                    commands.append(WriteBatches(command.shard, tuple(batches), command.reason))
                case sink.AskNeeds():
                    if records := needs(self._take(command.shard, command.ranges)):
                        commands.append(AskDependencies(command.shard, records))
                    else:
                        commands += self._drive(sink.NeedsAnswered(command.shard), now)
                case sink.ProposeShard():
                    commands.append(self._proposal(command.shard))
                case sink.LetGo():
                    for item in command.ranges:
                        del self._gathered[item.fragment, item.first]
                    commands.append(ReportLetGo(command.ranges))
                case sink.RenewShard():
                    self._shards[command.into] = self._shards.pop(command.shard)
                    self._results.pop(command.shard, None)
                case sink.ReleaseShard():
                    self._shards.pop(command.shard, None)
                    self._results.pop(command.shard, None)
                case _:
                    assert_never(command)
        return commands

    def _proposal(self, shard: int) -> ProposeBatches[B, R]:
        batches = tuple(self._shards[shard])
        tied = (needs(batches), released(batches)) if self._dependent else ((), ())
        return ProposeBatches(shard, batches, self._results[shard], *tied)

    def _take(self, shard: int, ranges: Sequence[Range]) -> list[B]:
        """The batches of a shard, which gather no longer; of those that it had, what these ranges leave."""
        if shard in self._shards:
            batches = _cut(self._shards[shard], ranges)
        else:
            batches = [self._gathered.pop((item.fragment, item.first)) for item in ranges]
        self._shards[shard] = batches
        return batches


def needs(batches: Iterable[Holdable]) -> Records:
    """The records that duplicates among these batches name and that are not kept here."""
    held = list(batches)
    named: dict[bytes, set[int]] = {}
    for batch in held:
        for _, (fragment, row) in batch.duplicate_names():
            named.setdefault(fragment, set()).add(row)
    for batch in held if named else ():
        if batch.item.fragment in named:
            named[batch.item.fragment].difference_update(batch.kept_rows())
    return _records(named)


def released(batches: Iterable[Holdable]) -> Records:
    """The records of these batches that dedup may have let through and that are not kept."""
    found: dict[bytes, set[int]] = {}
    for batch in batches:
        if rows := set(batch.released_rows()):
            found.setdefault(batch.item.fragment, set()).update(rows)
    return _records(found)


def dependents(batches: Iterable[Holdable], records: Records) -> tuple[Range, ...]:
    """The duplicates among these batches that name one of these records."""
    wanted: dict[bytes, set[int]] = {}
    for fragment, rows in records:
        wanted.setdefault(fragment, set()).update(rows)
    return tuple(
        Range(batch.item.fragment, row, 1)
        for batch in (batches if wanted else ())
        for row, (fragment, target) in batch.duplicate_names()
        if target in wanted.get(fragment, ())
    )


def _cut(held: Iterable[B], ranges: Sequence[Range]) -> list[B]:
    """The batches of these ranges, each cut out of the one that holds it; a shard may hold tens of thousands."""
    found: dict[bytes, list[B]] = {}
    for batch in held if ranges else ():
        found.setdefault(batch.item.fragment, []).append(batch)
    cut: list[B] = []
    for item in ranges:
        whole = next(
            batch for batch in found[item.fragment] if batch.item.first <= item.first and item.end <= batch.item.end
        )
        cut.append(whole.cut(item))
    return cut


def _records(names: dict[bytes, set[int]]) -> Records:
    return tuple((fragment, tuple(sorted(rows))) for fragment, rows in sorted(names.items()) if rows)
