"""A simulated sink: the core that tasks run, and shards that are written to the simulated store.

A ghost is a sink that was given up as lost. It wakes and proposes parts of what another sink has by now: a rare
coincidence, since the range was read again and both are about to propose it. The ghost may even have another verdict,
where a record kills at some times only, and it may name a record that is not in the log yet.

It speaks in the name of the sink that it comes before, since an attempt is believed by the session of its worker alone
and not every sink has had an attempt before this one. Answers to it are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

from headrace.chaos.sim.network import SimulatedFrame
from headrace.chaos.sim.nodes.parts import core_of
from headrace.chaos.sim.storage import CALM
from headrace.chaos.sim.world import GHOST_PROPOSALS, HELD_BYTES, Name, Part, keys_of
from headrace.controller.core.messages import (
    AnswerNeeds,
    AnswerProposal,
    Coverage,
    NeedsAsked,
    Outcome,
    SealSink,
    ShardProposed,
    VerdictsLetGo,
)
from headrace.store.ledger import Counts, Range, StoredObject
from headrace.store.shards import KEYS_ROLE, numbered_role
from headrace.worker.task import NEED_BYTES, HeldBatches, SealPolicy, held as core, sink_core

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.tasks import SimulatedTask

#: Seals by size, by held bytes and by age all happen within a simulated run.
POLICY = SealPolicy(target_bytes=120, held_bytes_max=200, age_s=2.0)
TARGET_BYTES = 8
#: Behind dedup a sink has room for so many verdicts that wait for the records that they name.
WAITING = 16
DEPENDENT_POLICY = SealPolicy(target_bytes=120, held_bytes_max=200 + WAITING * NEED_BYTES, age_s=2.0)


#: Share of ghosts whose record killed them, and of those that meet a log that does not answer; for seconds.
KILLED_SHARE, SILENT_SHARE, SILENT_S = 0.5, 0.5, (0.3, 2.0)
#: What was written, and the objects that hold it.
Written = tuple[tuple[Part, ...], tuple[StoredObject, ...]]


class SimulatedSink:
    """One sink in one task."""

    def __init__(self, task: SimulatedTask, name: str) -> None:
        self.name = name
        self.policy = DEPENDENT_POLICY if task.cluster.corpus.texts is not None else POLICY
        self._dependent = task.cluster.corpus.texts is not None
        self.core = HeldBatches[Part, Written](self.policy, dependent=self._dependent)
        #: Make the next shard claim one record twice and another not at all: a broken stage got past the sink.
        self.corrupt = False
        #: Have one that was given up propose a part of the next shard, a moment before this sink does.
        self.haunted = False
        self._task = task
        self._writing: dict[int, tuple[Part, ...]] = {}

    def add(self, frame: SimulatedFrame) -> None:
        """Take a batch; what is held already is left out."""
        whole = Range(frame.fragment, frame.first, frame.records, frame.first * HELD_BYTES, frame.records * HELD_BYTES)
        other = ((1 << frame.records) - 1) ^ frame.kept
        batch = Part(whole, frame.kept, other, frame.quarantined, frame.duplicates, frame.read_from, frame.settled)
        for item in self.core.missing(whole):
            part = batch if item is whole else batch.part(item)
            self.do(core.BatchHeld(part, TARGET_BYTES * part.kept.bit_count(), HELD_BYTES * item.count))

    def waiting(self) -> int:
        """How many verdicts it holds that name another record."""
        return sum(len(part.duplicates) for part in self.core.batches()) if self._dependent else 0

    def in_hand(self) -> tuple[Range, ...]:
        """What the writer is at."""
        return tuple(part.item for content in self._writing.values() for part in content)

    def told(self, message: object) -> bool:
        """Take a command that is for a sink; False for any other."""
        match message:
            case SealSink():
                self.do(sink_core.SealAsked(message.reason))
            case AnswerProposal():
                self._answered(message)
            case AnswerNeeds():
                self.do(core.DependenciesAnswered(message.proposal, message.open, message.gone))
            case _:
                return False
        return True

    def _answered(self, answer: AnswerProposal) -> None:
        if answer.proposal >= GHOST_PROPOSALS:
            return
        if answer.outcome is Outcome.ACCEPTED:
            self._task.cluster.checker.released(self._task.name, self.name, self.core.batches_of(answer.proposal))
            self.do(core.ProposalAccepted(answer.proposal))
        elif answer.outcome is Outcome.OVERLAPS:
            self.do(core.ProposalOverlaps(answer.proposal, answer.overlaps))
        else:
            self._task.die(1, f"refused: {answer.reason}")

    def do(self, event: core.Event) -> None:
        """Give the core an event, and carry out what follows from it."""
        world, task = self._task.cluster.world, self._task
        with core_of(task.label, event):
            commands = self.core.handle(event, task.clock.at(world.now))
        for command in commands:
            match command:
                case core.WriteBatches():
                    world.note(task.label, "seals a shard", command)
                    content = self._writing[command.shard] = self._content(command.batches)
                    world.after(world.between(0.01, 0.3), self._store, command.shard, content)
                case core.AskDependencies():
                    task.say(NeedsAsked(task.name, task.attempt, command.shard, self.name, command.records))
                case core.ProposeBatches():
                    self._propose(command)
                case core.ReportLetGo():
                    world.note(task.label, "lets go of", command)
                    task.say(VerdictsLetGo(task.name, task.attempt))
                case _:
                    assert_never(command)
        task.wake()

    def _content(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        joined = join(parts)
        if self.corrupt and joined[0].item.count > 1:
            # Record 0 has two fates and record 1 none; the counts are as they should be.
            self.corrupt = False
            first = joined[0]
            joined[0] = first._replace(
                kept=(first.kept | 1) & ~2,
                other=(first.other | 1) & ~2,
                quarantined=first.quarantined & ~2,
                duplicates=tuple(pair for pair in first.duplicates if pair[0] != first.item.first + 1),
            )
        return tuple(joined)

    def _store(self, shard: int, content: tuple[Part, ...]) -> None:
        """The writer has finished; if the task died meanwhile, the object may stand all the same."""
        world = self._task.cluster.world
        if self._task.alive and not self._task.outlives(self.name, content):
            return
        if not self._task.alive and world.chance(0.5):
            return
        if self._task.alive and self._task.sleeps(self._store, shard, content):
            return
        if self._task.alive and self._task.cluster.objects.fails():
            # The upload was torn, or took effect and the answer was lost: the writer cannot tell, and tries again.
            if world.chance(0.5):
                self._put_all(content, shard)
            world.after(world.between(0.1, 1.0), self._store, shard, content)
            return
        stored = self._put_all(content, shard)
        if self._task.alive:
            self._writing.pop(shard, None)
            self.do(core.BatchesWritten(shard, (content, stored)))

    def _put_all(self, content: tuple[Part, ...], shard: int) -> tuple[StoredObject, ...]:
        """Store a shard, and behind dedup the keys of what it keeps."""
        stored, keys = self.put(content, shard), keys_of(content) if self._dependent else ()
        if not keys:
            return (stored,)
        roles = [numbered_role(KEYS_ROLE, stage) for stage in range(self._task.cluster.corpus.dedups)]
        prefix = f"shards/{self._task.epoch}"
        return stored, *(self._task.cluster.objects.create(prefix, keys, role) for role in roles)

    def put(self, content: tuple[Part, ...], _shard: int) -> StoredObject:
        """Store a shard under the hash of its content."""
        return self._task.cluster.objects.create(f"shards/{self._task.epoch}", content)

    def _propose(self, command: core.ProposeBatches[Part, Written]) -> None:
        # A ghost has what the shard was to be, also where a broken stage has got into it.
        meant = tuple(join(command.batches))
        if (self.haunted or self._haunts()) and _wake_ghost(self._task, meant, self._ghost):
            self.haunted = False
        self._task.say(self._proposal(command))

    def _haunts(self) -> bool:
        """Whether one that was given up comes before this proposal, while faults happen."""
        cluster = self._task.cluster
        return not cluster.quiet and cluster.corpus.haunted > 0 and cluster.world.chance(cluster.corpus.haunted)

    def _ghost(self, number: int, parts: tuple[Part, ...]) -> ShardProposed:
        result = parts, self._put_all(parts, number)
        return self._proposal(core.ProposeBatches(number, parts, result, core.needs(parts), core.released(parts)))

    def _proposal(self, command: core.ProposeBatches[Part, Written]) -> ShardProposed:
        """What is proposed is what was written."""
        content, stored = command.result
        kept = sum(part.kept.bit_count() for part in content)
        dead = sum(part.quarantined.bit_count() for part in content)
        alike = sum(len(part.duplicates) for part in content)
        other = sum(part.other.bit_count() for part in content) - dead - alike
        return ShardProposed(
            task=self._task.name,
            attempt=self._task.attempt,
            proposal=command.shard,
            sink=self.name,
            version=self._task.version,
            epoch=self._task.epoch,
            ranges=tuple(part.item for part in content),
            coverage=tuple(Coverage(_bytes(part.kept, part.item), _bytes(part.other, part.item)) for part in content),
            objects=stored,
            counts=Counts(
                kept=kept,
                filtered=other,
                duplicate=alike,
                quarantined=dead,
                filtered_by={"filter/rule": other},
                quarantined_by={"killed its process": dead} if dead else {},
            ),
            needs=command.needs,
            released=command.released,
        )


def join(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring ranges in one, in the order of fragment and ordinal."""
    joined: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.item.fragment, part.item.first)):
        last, item = joined[-1] if joined else None, part.item
        if last is not None and last.item.fragment == item.fragment and last.item.end == item.first:
            known = last.item.offset >= 0 and item.stop >= 0
            offset, length = (last.item.offset, item.stop - last.item.offset) if known else (-1, -1)
            shift = last.item.count
            joined[-1] = Part(
                Range(item.fragment, last.item.first, shift + item.count, offset, length),
                last.kept | part.kept << shift,
                last.other | part.other << shift,
                last.quarantined | part.quarantined << shift,
                last.duplicates + part.duplicates,
                last.read_from if last.read_from == part.read_from else -1,
                last.settled | part.settled << shift,
            )
        else:
            joined.append(part)
    return joined


def _bytes(bits: int, item: Range) -> bytes:
    return bits.to_bytes((item.count + 7) // 8, "little")


def _dependent_within(content: Sequence[Part]) -> tuple[Name, Name] | None:
    """A duplicate of a shard, and the record of the same shard that it names; None if there is none."""
    for part in content:
        for row, target, _ in part.duplicates:
            if _holder(content, target) is not None:
                return (part.item.fragment, row), target
    return None


def _wake_ghost(
    task: SimulatedTask, content: Sequence[Part], make: Callable[[int, tuple[Part, ...]], ShardProposed]
) -> bool:
    """Propose a record that a duplicate of this shard names, and then the duplicate. False if there is none."""
    pair = _dependent_within(content)
    if pair is None:
        return False
    world, cluster = task.cluster.world, task.cluster
    duplicate, target = pair
    kept = _one(content, target)
    if world.chance(KILLED_SHARE):
        cluster.corpus.spook(target)
        kept = kept._replace(kept=0, other=1, quarantined=1)
    if world.chance(SILENT_SHARE):
        cluster.log.error_share = 1.0
        world.after(world.between(*SILENT_S), _answer_again, task)
    world.note(task.name, "is haunted: a ghost proposes", (kept, duplicate))
    task.say(make(GHOST_PROPOSALS, (kept,)))
    task.say(make(GHOST_PROPOSALS + 1, (_one(content, duplicate),)))
    return True


def _answer_again(task: SimulatedTask) -> None:
    task.cluster.log.error_share = 0.0 if task.cluster.quiet else CALM


def _holder(content: Sequence[Part], name: Name) -> Part | None:
    fragment, row = name
    for part in content:
        if part.item.fragment == fragment and part.item.first <= row < part.item.end:
            return part if part.kept >> (row - part.item.first) & 1 else None
    return None


def _one(content: Sequence[Part], name: Name) -> Part:
    item = Range(name[0], name[1], 1)
    return next(part for part in content if part.holds(item)).part(item)
