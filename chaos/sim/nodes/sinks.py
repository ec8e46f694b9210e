"""A simulated sink: the real Gathering core, and shards that are written to the simulated store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.chaos.sim.network import Frame
from headrace.chaos.sim.nodes import dependencies, ghosts
from headrace.chaos.sim.world import Member, Part
from headrace.controller.core.messages import AnswerProposal, Coverage, Outcome, ShardProposed
from headrace.controller.core.run import AnswerNeeds, NeedsAsked, VerdictsLetGo
from headrace.store.ledger import Counts, Range, StoredObject
from headrace.store.shards import KEYS_ROLE
from headrace.worker.task import sink_core as core

#: Seals by size, by held bytes and by age all happen within a simulated run.
POLICY = core.SealPolicy(target_bytes=120, held_bytes_max=200, age_s=2.0)
TARGET_BYTES, HELD_BYTES = 8, 10
#: Behind dedup a sink has room for so many verdicts that wait for the records that they name.
WAITING = 16
LEANING_POLICY = core.SealPolicy(target_bytes=120, held_bytes_max=200 + WAITING * core.NEED_BYTES, age_s=2.0)


class SimulatedSink:
    """One sink in one task."""

    def __init__(self, task: Member, name: str) -> None:
        self.name = name
        self.policy = LEANING_POLICY if task.cluster.corpus.texts is not None else POLICY
        self._leans = task.cluster.corpus.texts is not None
        self.core = core.Gathering(self.policy, leans=self._leans)
        #: Make the next shard claim one record twice and another not at all: a broken stage got past the sink.
        self.corrupt = False
        #: Have one that was given up propose a part of the next shard, a moment before this sink does.
        self.haunted = False
        self._task = task
        self._batches: dict[tuple[bytes, int], Part] = {}
        self._parts: dict[int, list[Part]] = {}
        self._writing: dict[int, tuple[Part, ...]] = {}
        self._written: dict[int, tuple[tuple[Part, ...], tuple[StoredObject, ...]]] = {}
        self._timer_at: float | None = None

    def add(self, frame: Frame) -> None:
        """Take a batch; what is held already is left out."""
        whole = Range(frame.fragment, frame.first, frame.records, frame.first * HELD_BYTES, frame.records * HELD_BYTES)
        other = ((1 << frame.records) - 1) ^ frame.kept
        batch = Part(whole, frame.kept, other, frame.quarantined, frame.duplicates, frame.read_from)
        for item in core.without((whole,), self.core.held(frame.fragment)):
            part = self._batches[item.fragment, item.first] = batch if item is whole else batch.cut(item)
            target = TARGET_BYTES * part.kept.bit_count()
            self._do(core.BatchGathered(item, target, HELD_BYTES * item.count))

    def seal(self, reason: str) -> None:
        """Write what is gathered."""
        self._do(core.SealAsked(reason))

    def needs_answered(self, answer: AnswerNeeds) -> None:
        """Take the controller's answer about what the duplicates of a shard lean on."""
        held = self._parts.get(answer.proposal)
        if not held:
            return
        waiting, void = dependencies.leaning_on(held, answer.open), dependencies.leaning_on(held, answer.gone)
        if self.core.asks(answer.proposal):
            for item in waiting:
                part = next(part for part in held if part.holds(item))
                self._batches[item.fragment, item.first] = part.cut(item)
        self._do(core.NeedsAnswered(answer.proposal, waiting, void))

    def leaning(self) -> int:
        """How many verdicts it holds that name another record."""
        held = [part for parts in self._parts.values() for part in parts]
        return sum(len(part.duplicates) for part in (*self._batches.values(), *held)) if self._leans else 0

    def in_hand(self) -> tuple[Range, ...]:
        """What the writer is at."""
        return tuple(part.item for content in self._writing.values() for part in content)

    def answered(self, answer: AnswerProposal) -> None:
        """Take the controller's answer."""
        if answer.proposal >= ghosts.FIRST:
            return
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
        for command in self.core.handle(event, self._task.clock.at(world.now)):
            match command:
                case core.WriteShard():
                    world.note(self._task.label, "seals a shard", command)
                    self._write(command)
                case core.AskNeeds():
                    self._ask(command)
                case core.ProposeShard():
                    self._propose(command.shard)
                case core.LetGo():
                    world.note(self._task.label, "lets go of", command)
                    self._task.say(VerdictsLetGo(self._task.name, self._task.attempt))
                    for item in command.ranges:
                        del self._batches[item.fragment, item.first]
                case core.RenewShard():
                    self._parts[command.into] = self._parts.pop(command.shard)
                    self._written.pop(command.shard, None)
                case core.ReleaseShard():
                    self._parts.pop(command.shard, None)
                    self._written.pop(command.shard, None)
                    self._task.wake()
        self._set_timer()

    def _set_timer(self) -> None:
        wake_at = self.core.wake_at()
        if wake_at is not None and (self._timer_at is None or wake_at < self._timer_at):
            self._timer_at = wake_at
            self._task.cluster.world.at(self._task.clock.when(wake_at), self._tick)

    def _tick(self) -> None:
        if self._task.alive and self._task.sleeps(self._tick):
            return
        self._timer_at = None
        if self._task.alive:
            self._do(core.TimePassed())

    def _ask(self, command: core.AskNeeds) -> None:
        records = dependencies.needs(self._taken(command.shard, command.ranges))
        if records:
            self._task.say(NeedsAsked(self._task.name, self._task.attempt, command.shard, self.name, records))
        else:
            self._do(core.NeedsAnswered(command.shard))

    def _taken(self, shard: int, ranges: Sequence[Range]) -> list[Part]:
        """The batches of a shard, which gather no longer; of those that it had, what these ranges leave."""
        if shard in self._parts:
            held = self._parts[shard]
            parts = [next(part for part in held if part.holds(item)).cut(item) for item in ranges]
        else:
            parts = [self._batches.pop((item.fragment, item.first)) for item in ranges]
        self._parts[shard] = parts
        return parts

    def _write(self, command: core.WriteShard) -> None:
        parts = self._taken(command.shard, command.ranges)
        content = self._writing[command.shard] = self._content(parts)
        world = self._task.cluster.world
        world.after(world.between(0.01, 0.3), self._store, command.shard, content)

    def _content(self, parts: list[Part]) -> tuple[Part, ...]:
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
            self._written[shard] = (content, stored)
            self._do(core.ShardWritten(shard))

    def _put_all(self, content: tuple[Part, ...], shard: int) -> tuple[StoredObject, ...]:
        """Store a shard, and behind dedup the keys of what it keeps."""
        stored, keys = self.put(content, shard), dependencies.keys_of(content) if self._leans else ()
        if not keys:
            return (stored,)
        return stored, self._task.cluster.objects.create(f"shards/{self._task.epoch}", keys, KEYS_ROLE)

    def put(self, content: tuple[Part, ...], _shard: int) -> StoredObject:
        """Store a shard under the hash of its content."""
        return self._task.cluster.objects.create(f"shards/{self._task.epoch}", content)

    def _propose(self, number: int) -> None:
        content, stored = self._written[number]
        # A ghost has what the shard was to be, also where a broken stage has got into it.
        meant = tuple(join(self._parts[number]))
        if (self.haunted or self._haunts()) and ghosts.wake(self._task, meant, self._proposal_of):
            self.haunted = False
        self._task.say(self._proposal(number, self._parts[number], content, stored))

    def _haunts(self) -> bool:
        """Whether one that was given up comes before this proposal, while faults happen."""
        cluster = self._task.cluster
        return not cluster.quiet and cluster.corpus.haunted > 0 and cluster.world.chance(cluster.corpus.haunted)

    def _proposal_of(self, number: int, parts: tuple[Part, ...]) -> ShardProposed:
        return self._proposal(number, parts, parts, self._put_all(parts, number))

    def _proposal(
        self, number: int, parts: Sequence[Part], content: tuple[Part, ...], stored: tuple[StoredObject, ...]
    ) -> ShardProposed:
        """What is proposed is what was written; what it leans on is asked of what was to be written."""
        kept = sum(part.kept.bit_count() for part in content)
        dead = sum(part.quarantined.bit_count() for part in content)
        alike = sum(len(part.duplicates) for part in content)
        other = sum(part.other.bit_count() for part in content) - dead - alike
        return ShardProposed(
            task=self._task.name,
            attempt=self._task.attempt,
            proposal=number,
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
            needs=dependencies.needs(parts) if self._leans else (),
            released=dependencies.released(content) if self._leans else (),
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
            )
        else:
            joined.append(part)
    return joined


def _bytes(bits: int, item: Range) -> bytes:
    return bits.to_bytes((item.count + 7) // 8, "little")
