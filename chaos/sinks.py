"""A simulated sink: the real Gathering core, and shards that are written to the simulated store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.chaos.corpus import Part
from headrace.chaos.frames import Frame
from headrace.chaos.parts import Member
from headrace.controller.core.messages import AnswerProposal, Coverage, Outcome, ShardProposed
from headrace.store.entries import Counts, Range, StoredObject
from headrace.worker.core import gathering as core

#: Seals by size, by held bytes and by age all happen within a simulated run.
POLICY = core.SealPolicy(target_bytes=120, held_bytes_max=200, age_s=2.0)
TARGET_BYTES, HELD_BYTES = 8, 10

Held = list[tuple[Range, int]]


class SimulatedSink:
    """One sink in one task."""

    def __init__(self, task: Member, name: str) -> None:
        self.name = name
        self.core = core.Gathering(POLICY)
        #: Make the next shard claim one record twice and another not at all: a broken stage got past the sink.
        self.corrupt = False
        self._task = task
        self._batches: dict[tuple[bytes, int], tuple[Range, int]] = {}
        self._parts: dict[int, Held] = {}
        self._written: dict[int, tuple[tuple[Part, ...], StoredObject]] = {}
        self._timer_at: float | None = None

    def add(self, frame: Frame) -> None:
        """Take a batch; what is held already is left out."""
        whole = Range(frame.fragment, frame.first, frame.count, frame.first * HELD_BYTES, frame.count * HELD_BYTES)
        for item in core.without((whole,), self.core.held(frame.fragment)):
            kept = slice_bits(frame.kept, item.first - frame.first, item.count)
            self._batches[item.fragment, item.first] = (item, kept)
            target = TARGET_BYTES * kept.bit_count()
            self._do(core.BatchGathered(item, target, HELD_BYTES * item.count))

    def seal(self, reason: str) -> None:
        """Write what is gathered."""
        self._do(core.SealAsked(reason))

    def answered(self, answer: AnswerProposal) -> None:
        """Take the controller's answer."""
        if answer.outcome is Outcome.ACCEPTED:
            if answer.proposal in self._parts:
                self._task.cluster.checker.released(self._task.name, self.name, self._parts[answer.proposal])
            self._do(core.ShardAccepted(answer.proposal))
        elif answer.outcome is Outcome.OVERLAPS:
            self._do(core.ShardOverlapped(answer.proposal, answer.overlaps))
        else:
            self._task.die(1, f"refused: {answer.reason}")

    def _do(self, event: core.Event) -> None:
        world = self._task.cluster.world
        for command in self.core.handle(event, world.now):
            match command:
                case core.WriteShard():
                    world.note(self._task.label, "seals a shard", command)
                    self._write(command)
                case core.ProposeShard():
                    self._task.say(self._proposal(command.shard))
                case core.ReleaseShard():
                    self._parts.pop(command.shard, None)
                    self._written.pop(command.shard, None)
                    self._task.wake()
        self._set_timer()

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at()
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self._task.cluster.world.at(wake_at, self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        if self._task.alive:
            self._do(core.TimePassed())

    def _write(self, command: core.WriteShard) -> None:
        held = self._parts.get(command.shard)
        if held is None:
            held = [self._batches.pop((item.fragment, item.first)) for item in command.ranges]
        parts: Held = []
        for item in command.ranges:
            whole, kept = next(pair for pair in held if _holds(pair[0], item))
            parts.append((item, slice_bits(kept, item.first - whole.first, item.count)))
        self._parts[command.shard] = parts
        world = self._task.cluster.world
        world.after(world.between(0.01, 0.3), self._store, command.shard, self._content(parts))

    def _content(self, parts: Held) -> tuple[Part, ...]:
        joined = [Part(item, kept, ((1 << item.count) - 1) ^ kept) for item, kept in join(parts)]
        if self.corrupt and joined[0].item.count > 1:
            # Record 0 has two fates and record 1 none; the counts are as they should be.
            self.corrupt = False
            first = joined[0]
            joined[0] = Part(first.item, (first.kept | 1) & ~2, (first.other | 1) & ~2)
        return tuple(joined)

    def _store(self, shard: int, content: tuple[Part, ...]) -> None:
        """The writer has finished; if the task died meanwhile, the object may stand all the same."""
        world = self._task.cluster.world
        if not self._task.alive and world.chance(0.5):
            return
        stored = self.put(content, shard)
        if self._task.alive:
            self._written[shard] = (content, stored)
            self._do(core.ShardWritten(shard))

    def put(self, content: tuple[Part, ...], _shard: int) -> StoredObject:
        """Store a shard under the hash of its content."""
        return self._task.cluster.objects.create(f"shards/{self._task.epoch}", content)

    def _proposal(self, number: int) -> ShardProposed:
        content, stored = self._written[number]
        kept = sum(part.kept.bit_count() for part in content)
        other = sum(part.other.bit_count() for part in content)
        return ShardProposed(
            task=self._task.name,
            attempt=self._task.attempt,
            proposal=number,
            sink=self.name,
            version=self._task.version,
            epoch=self._task.epoch,
            ranges=tuple(part.item for part in content),
            coverage=tuple(Coverage(_bytes(part.kept, part.item), _bytes(part.other, part.item)) for part in content),
            objects=(stored,),
            counts=Counts(kept=kept, filtered=other, filtered_by={"filter/rule": other}),
        )


def slice_bits(bits: int, start: int, count: int) -> int:
    """`count` bits from bit `start`."""
    return bits >> start & ((1 << count) - 1)


def join(parts: Sequence[tuple[Range, int]]) -> Held:
    """Neighbouring ranges in one, in the order of fragment and ordinal."""
    joined: Held = []
    for item, kept in sorted(parts, key=lambda pair: (pair[0].fragment, pair[0].first)):
        last, bits = joined[-1] if joined else (None, 0)
        if last is not None and last.fragment == item.fragment and last.end == item.first:
            known = last.offset >= 0 and item.stop >= 0
            offset, length = (last.offset, item.stop - last.offset) if known else (-1, -1)
            whole = Range(last.fragment, last.first, last.count + item.count, offset, length)
            joined[-1] = (whole, bits | kept << last.count)
        else:
            joined.append((item, kept))
    return joined


def _holds(whole: Range, item: Range) -> bool:
    return whole.fragment == item.fragment and whole.first <= item.first and item.end <= whole.end


def _bytes(bits: int, item: Range) -> bytes:
    return bits.to_bytes((item.count + 7) // 8, "little")
