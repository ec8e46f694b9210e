"""Decider, sinks and committer in a world of their own, from a seed: what is closed breaks no invariant of dedup.

The machines are those that run: `Decider`, `Gathering`, `Committer`, `unmet` and the fold. Links, a log that
answers at once and the order of things are this file's. What a run does about a death stands in `test_needs.py`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from headrace.controller.core.messages.dedup import Records
from headrace.controller.core.messages.messages import Outcome
from headrace.controller.core.run.proposals import Committer, unmet
from headrace.stages.dedup.core import decider as core
from headrace.store.ledger.core.entries import (
    ClaimsReleased,
    Entry,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Range
from headrace.store.shards.dedup_files import RecordName
from headrace.worker.task.core import sink as sinks
from tests.kits.controller.core import bits, fragment, proposal
from tests.kits.store.duplicates import index_faults, leaning_faults, shared_keys

FRAGMENTS, RECORDS, TEXTS, SINKS = 3, 24, 20, 2
SEEDS = 100
STEPS_MAX = 20_000


class Remembered:
    """An index that is a dict."""

    def __init__(self) -> None:
        self.holders: dict[int, RecordName] = {}

    def decide(self, fragment: bytes, rows: list[int], keys: list[int], sketches: None) -> list[RecordName | None]:
        named = [RecordName(fragment, row) for row in rows]
        holders = [self.holders.setdefault(key, name) for name, key in zip(named, keys, strict=True)]
        return [None if holder == name else holder for name, holder in zip(named, holders, strict=True)]

    def release(self, name: RecordName) -> bool:
        mine = [key for key, holder in self.holders.items() if holder == name]
        for key in mine:
            del self.holders[key]
        return bool(mine)


@dataclass
class Sink:
    """The core of a sink, and the fates of the records that it holds: kept, or what each is a duplicate of."""

    core: sinks.Gathering = field(default_factory=lambda: sinks.Gathering(sinks.SealPolicy(age_s=1e9), dependent=True))
    link: list[Range] = field(default_factory=list[Range])
    asked: dict[int, tuple[Range, ...]] = field(default_factory=dict[int, tuple[Range, ...]])
    proposed: dict[int, tuple[Range, ...]] = field(default_factory=dict[int, tuple[Range, ...]])


class World:
    """One run, from a seed, with records whose texts repeat and some that raise behind dedup."""

    def __init__(self, seed: int, *, loads: int = 0) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        #: How many of the newest entries an index that begins is not shown: 0, but for the mutant.
        self._short = loads
        self.fragments = [fragment(number) for number in range(FRAGMENTS)]
        names = [RecordName(item.id, row) for item in self.fragments for row in range(RECORDS)]
        self.texts = {name: self.chance.randrange(TEXTS) for name in names}
        self.cursed = {name for name in names if self.chance.random() < 0.05}
        self.ledger = LedgerState()
        self.committer = Committer(self.ledger, ("write",))
        self._log(Led(1, {}))
        self._log(PipelineApplied("v", {}), EpochRaised("created"), FragmentsListed(tuple(self.fragments)))
        self._log(*(FragmentEnded(item.id, RECORDS) for item in self.fragments))
        self.kept: dict[RecordName, int] = {}
        self.duplicates: list[tuple[int, RecordName, RecordName]] = []
        self.fates: dict[RecordName, RecordName | None] = {}
        self.sinks = [Sink() for _ in range(SINKS)]
        self.deaths = 6
        self._begin_index()
        self._queue_all()

    def run(self) -> None:
        """Until everything is closed."""
        for _ in range(STEPS_MAX):
            if all(state.done(("write",)) for state in self.ledger.fragments.values()):
                return self._check()
            moves: list[Callable[[], None]] = [self._read, self._deliver, self._deliver, self._answer, self._tick]
            self.chance.choice([*moves, self._seal, self._strike])()
        raise AssertionError("what is open does not close")

    # -- what may happen --

    def _read(self) -> None:
        if not self.queue:
            self._find_lost()
            return
        first = self.queue.pop(self.chance.randrange(len(self.queue)))
        count = min(first.count, self.chance.randint(1, 6))
        if count < first.count:
            self.queue.append(Range(first.fragment, first.first + count, first.count - count))
        rows = list(range(first.first, first.first + count))
        names = [RecordName(first.fragment, row) for row in rows]
        (answer,) = self.decider.handle(
            core.BatchStamped(first.fragment, rows, [self.texts[name] for name in names]), self.now
        )
        assert isinstance(answer, core.AnswerBatch)
        self.fates.update(zip(names, answer.duplicates_of, strict=True))
        self.granted |= {name for name in names if self.fates[name] is None}
        self.chance.choice(self.sinks).link.append(Range(first.fragment, first.first, count))

    def _deliver(self) -> None:
        sink = self.chance.choice(self.sinks)
        if sink.link:
            item = sink.link.pop(0)
            for part in sink.core.missing(item):
                self._do(sink, sinks.BatchGathered(part, 1, 1))

    def _seal(self) -> None:
        self._do(self.chance.choice(self.sinks), sinks.SealAsked("end"))

    def _tick(self) -> None:
        self.now += 0.3
        for sink in self.sinks:
            self._do(sink, sinks.SealTimePassed())

    def _answer(self) -> None:
        """Somebody's question or proposal is answered."""
        sink = self.chance.choice(self.sinks)
        if sink.asked:
            shard, ranges = sink.asked.popitem()
            still_open, gone = unmet(self.committer.closings, self._needs(ranges))
            for fragment, rows in gone:
                for row in rows:
                    self.decider.handle(core.ClaimReleased(RecordName(fragment, row)), self.now)
                    self.granted.discard(RecordName(fragment, row))
            self._do(sink, sinks.NeedsAnswered(shard, self._leaning(ranges, still_open), self._leaning(ranges, gone)))
        elif sink.proposed:
            self._judge(sink, *sink.proposed.popitem())

    def _strike(self) -> None:
        """A sink dies with what it holds; or the index, and then the epoch is raised, seal before fence."""
        if not self.deaths or self.chance.random() < 0.8:
            return
        self.deaths -= 1
        if self.chance.random() < 0.5:
            self.sinks[self.chance.randrange(SINKS)] = Sink()
            return
        for sink in self.sinks:
            # What sinks cannot commit now they lose: as if each missed the deadline.
            sink.link.clear()
        self._log(EpochRaised("the dedup index was lost"))
        self.sinks = [Sink() for _ in range(SINKS)]
        self._begin_index()
        self._queue_all()

    # -- how it is done --

    def _begin_index(self) -> None:
        self.index, self.granted = Remembered(), set[RecordName]()
        self.decider = core.Decider(self.index)
        shown = [name for name, entry in self.kept.items() if entry <= self.ledger.number - self._short]
        for name in shown:
            self.index.holders[self.texts[name]] = name
        self.decider.handle(core.KeysLoaded(), self.now)

    def _queue_all(self) -> None:
        self.queue = [
            Range(name, gap.first, gap.end - gap.first)
            for name, state in self.ledger.fragments.items()
            for gap in state.open_gaps("write")
        ]

    def _find_lost(self) -> None:
        """A sweep: what is open, and neither on a link nor held, is read again."""
        for name, state in self.ledger.fragments.items():
            covered = state.of("write").copy()
            for sink in self.sinks:
                for item in (*sink.core.held(name), *(item for item in sink.link if item.fragment == name)):
                    covered.cover(item.first, item.end)
            self.queue += [Range(name, gap.first, gap.end - gap.first) for gap in covered.gaps(RECORDS)]

    def _do(self, sink: Sink, event: sinks.Event) -> None:
        for command in sink.core.handle(event, self.now):
            match command:
                case sinks.AskNeeds() if self._needs(command.ranges):
                    sink.asked[command.shard] = command.ranges
                case sinks.AskNeeds():
                    self._do(sink, sinks.NeedsAnswered(command.shard))
                case sinks.WriteShard():
                    sink.proposed[command.shard] = command.ranges
                    self._do(sink, sinks.ShardWritten(command.shard))
                case _:
                    pass

    def _judge(self, sink: Sink, shard: int, ranges: tuple[Range, ...]) -> None:
        mine = [item for item in sink.core.held() if item in ranges]
        kept = [bits(*(n.row - item.first for n in _names(item) if self._is_kept(n))) for item in mine]
        other = [bits(*(n.row - item.first for n in _names(item) if not self._is_kept(n))) for item in mine]
        released = tuple(
            (item.fragment, (name.row,))
            for item in mine
            for name in _names(item)
            if self.fates[name] is None and name in self.cursed
        )
        event = proposal(mine, kept=kept, other=other, epoch=self.ledger.epoch)
        event = structs.replace(event, needs=self._needs(tuple(mine)), released=released)
        judgement = self.committer.judge(event, "v", self.ledger.epoch)
        if judgement.outcome is Outcome.OVERLAPS:
            self._do(sink, sinks.ShardOverlapped(shard, judgement.overlaps))
            return
        assert judgement.closed is not None, judgement.reason
        self._log(judgement.closed, *([ClaimsReleased("write", released)] if released else []))
        self.committer.durable(judgement.closed)
        for item in mine:
            self._note(item)
        self._do(sink, sinks.ShardAccepted(shard))
        self._check()

    def _note(self, item: Range) -> None:
        for name in _names(item):
            target = self.fates[name]
            if target is not None:
                self.duplicates.append((self.ledger.number, name, target))
            elif name not in self.cursed:
                self.kept[name] = self.ledger.number

    def _is_kept(self, name: RecordName) -> bool:
        return self.fates[name] is None and name not in self.cursed

    def _needs(self, ranges: tuple[Range, ...]) -> Records:
        named = {self.fates[name] for item in ranges for name in _names(item)} - {None}
        mine = {name for item in ranges for name in _names(item) if self._is_kept(name)}
        return tuple((name.fragment, (name.row,)) for name in sorted(named - mine, key=str) if name is not None)

    def _leaning(self, ranges: tuple[Range, ...], records: Records) -> tuple[Range, ...]:
        wanted = {RecordName(fragment, row) for fragment, rows in records for row in rows}
        names = [name for item in ranges for name in _names(item)]
        return tuple(Range(name.fragment, name.row, 1) for name in names if self.fates[name] in wanted)

    def _log(self, *changes: object) -> None:
        self.ledger.apply(self.ledger.number + 1, Entry(1, changes))  # type: ignore[arg-type]

    def _check(self) -> None:
        """Invariants 9, 10 and 11."""
        assert list(leaning_faults(self.duplicates, self.kept)) == []
        assert list(shared_keys((name, (self.texts[name],)) for name in self.kept)) == []
        held = set(self.index.holders.values())
        assert list(index_faults(held, {name for name in self.kept if name not in self.granted}, self.granted)) == []


def _names(item: Range) -> list[RecordName]:
    return [RecordName(item.fragment, row) for row in range(item.first, item.end)]


def test_each_text_is_kept_once_in_any_order_of_arrival() -> None:
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        sound = {text for name, text in world.texts.items() if name not in world.cursed}
        assert {world.texts[name] for name in world.kept} == sound, f"seed {seed}"
        assert world.ledger.counts["write"].records == FRAGMENTS * RECORDS


def broken(seed: int, **parameters: int) -> bool:
    try:
        World(seed, **parameters).run()
    except AssertionError:
        return True
    return False


def test_a_committer_that_skips_needs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant "needs skipped": neither does the sink hold back what is open, nor the committer refuse it."""
    monkeypatch.setattr(Committer, "_needs_fault", lambda *_: "")
    monkeypatch.setitem(globals(), "unmet", lambda *_: ((), ()))
    assert sum(broken(seed) for seed in range(40)) > 30


def test_an_index_that_loads_one_entry_short_is_found() -> None:
    """The mutant "an index loaded one entry short": the last close before the epoch is not shown to it."""
    assert sum(broken(seed, loads=2) for seed in range(40)) > 10
