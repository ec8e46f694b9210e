"""A sink inside a task: gathered batches, a thread that writes shards, and proposals that wait for their answers."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from headrace.daemon import OneThread, about
from headrace.protos import codec, control_pb2 as pb
from headrace.stages.runtime import QUARANTINED, Batch, Shard, Shelving, Sink, give_back
from headrace.store import ObjectStore, StoreStalled
from headrace.store.ledger import Range
from headrace.worker.processes import STAGES, WRITER, Hands
from headrace.worker.task.chain import StageStatistics, Watch
from headrace.worker.task.core import sink as core
from headrace.worker.task.coverage import fates, join, part
from headrace.worker.task.dependencies import Leaning, Rows
from headrace.worker.task.merge import apart, ranges_of

logger = logging.getLogger("headrace.task")

#: A batch, and which of its records are kept.
_Held = tuple[Batch, npt.NDArray[np.bool_]]


class Sinking:
    """One sink of a task. Called on the task's thread; only `Sink.write` runs on the writer's."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        store: ObjectStore,
        *,
        version: str,
        epoch: int,
        policy: core.SealPolicy,
        hands: Hands,
        leaning: Leaning | None = None,
    ):
        self.name = name
        #: The time of the writer's thread, and when it began what it is at now (seconds, of perf_counter); 0: nothing.
        self.writer = StageStatistics()
        self._writes_since = 0.0
        self._hands = hands
        self._sink = sink
        self._store = store
        self._version = version
        self._epoch = epoch
        self._leaning = leaning
        self._core = core.Gathering(policy, leans=leaning is not None)
        self._batches: dict[tuple[bytes, int], _Held] = {}
        self._parts: dict[int, list[_Held]] = {}
        self._written: dict[int, Shard] = {}
        self._writing: dict[int, Future[Shard]] = {}
        self._proposals: list[pb.Proposed] = []
        self._questions: list[pb.NeedsAsked] = []
        self._let_go = False
        self._thread = OneThread("writer")
        #: Readable when the writer has finished something.
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def writing_s(self) -> float:
        """Seconds for which the writer is at its shard; 0 while it is at none."""
        since = self._writes_since
        return time.perf_counter() - since if since else 0.0

    @property
    def accepts(self) -> bool:
        """Whether another batch may come."""
        return self._core.accepts

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of all batches that are not closed."""
        return self._core.held_bytes

    @property
    def open_ranges(self) -> int:
        """Ranges of all batches that are not closed."""
        return len(self._core.held())

    @property
    def held_records(self) -> int:
        """Records of all batches that are not closed."""
        return sum(item.count for item in self._core.held())

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store; "" while none does."""
        return self._core.trouble or (str(getattr(self._store, "trouble", "")) if self._writing else "")

    def wake_at(self) -> float | None:
        """When `tick` is wanted next."""
        return self._core.wake_at()

    def add(self, batch: Batch) -> None:
        """Take a batch. Raises ConservationError if a record has not exactly one fate.

        What this sink holds already is left out: another sink's loss has the same range read again for both.
        """
        mask = fates(batch)
        if batch.members:
            self._add_joint(batch, mask)
            return
        if self._leaning is not None:
            self._leaning.check(batch)
        whole = Range(batch.fragment, batch.first, batch.count, batch.offset, batch.length)
        doubtful = _quarantined(batch) if self._core.doubt.lasts else 0
        for item in core.without((whole,), self._core.held(batch.fragment)):
            fresh = part(batch, item)
            start = item.first - batch.first
            fresh, sizes = self._shelved(fresh, (item,))
            self._batches[item.fragment, item.first] = (fresh, mask[start : start + item.count])
            self._do(core.BatchGathered(item, *sizes, min(item.count, doubtful)))

    def _add_joint(self, batch: Batch, mask: npt.NDArray[np.bool_]) -> None:
        """Take a joint batch: measured and shelved as one, and held as one of each member."""
        ranges = ranges_of(batch)
        if self._leaning is not None or any(self._core.held(item.fragment) for item in ranges):
            for alone in apart(batch):
                self.add(alone)
            return
        doubtful = _quarantined(batch) if self._core.doubt.lasts else 0
        batch, whole = self._shelved(batch, ranges)
        start = 0
        for item, alone in zip(ranges, apart(batch), strict=True):
            self._batches[item.fragment, item.first] = (alone, mask[start : start + item.count])
            start += item.count
            # All of it counts with the last, behind which it is whole.
            sizes = (*whole, doubtful) if item is ranges[-1] else (0, 0, 0)
            self._do(core.BatchGathered(item, *sizes))

    def _shelved(self, batch: Batch, ranges: tuple[Range, ...]) -> tuple[Batch, tuple[int, int, int]]:
        """A batch as the sink keeps it; its size by the sink's measure, and bytes of it in memory and on the shelf."""
        held, shelved = _bytes_of(batch), 0
        self._hands.take(STAGES, self.name, ranges)
        size = self._sink.measure(batch)
        if isinstance(self._sink, Shelving):
            batch = self._sink.shelve(batch, self._store)
            if batch.scratch is not None and not batch.scratch.is_memory:
                held, shelved = _bytes_of(batch), max(0, held - _bytes_of(batch))
        self._hands.put_down(STAGES)
        return batch, (size, held, shelved)

    def seal(self, reason: str) -> None:
        """Write what is gathered."""
        self._do(core.SealAsked(reason))

    def tick(self) -> None:
        """Let timers run and take what the writer has finished. Raises what the writer raised, but for a stall."""
        for number in [number for number, future in self._writing.items() if future.done()]:
            try:
                self._written[number] = self._writing.pop(number).result()
            except StoreStalled as error:
                self._do(core.ShardStalled(number, str(error)))
            else:
                self._do(core.ShardWritten(number))
        self._do(core.TimePassed())

    def obey(self, message: pb.TaskCommand) -> None:
        """Take a command that is for a sink. Raises RuntimeError where it says that a proposal is refused."""
        match message.WhichOneof("command"):
            case "seal":
                self.seal(message.seal.reason)
            case "answer":
                self.answered(message.answer)
            case _:
                self.needs_answered(message.needs)

    def answered(self, answer: pb.Answer) -> None:
        """Take the controller's answer to a proposal. Raises RuntimeError if it was refused."""
        if answer.outcome == pb.Answer.ACCEPTED:
            self._do(core.ShardAccepted(answer.proposal))
        elif answer.outcome == pb.Answer.OVERLAPS:
            self._do(core.ShardOverlapped(answer.proposal, codec.ranges_from(answer.overlaps)))
        else:
            raise RuntimeError(f"sink {self.name}: the controller refused a shard: {answer.reason}")

    def needs_answered(self, answer: pb.NeedsAnswer) -> None:
        """Take the controller's answer about what the duplicates of a shard lean on."""
        held = [batch for batch, _ in self._parts.get(answer.proposal, ())]
        if self._leaning is None or not held:
            return
        waiting = self._leaning.leaning_on(held, _rows_from(answer.open))
        void = self._leaning.leaning_on(held, _rows_from(answer.gone))
        if self._core.asks(answer.proposal):
            parts = _by_fragment(self._parts[answer.proposal])
            for item in waiting:
                batch, mask = _holder(parts, item)
                start = item.first - batch.first
                self._batches[item.fragment, item.first] = part(batch, item), mask[start : start + 1]
        self._do(core.NeedsAnswered(answer.proposal, tuple(waiting), tuple(void)))

    def take_questions(self) -> list[pb.NeedsAsked]:
        """Questions to ask the controller since the last call."""
        ready, self._questions = self._questions, []
        return ready

    def take_let_go(self) -> bool:
        """Whether verdicts were let go of since the last call: the controller is to know."""
        let_go, self._let_go = self._let_go, False
        return let_go

    def held(self) -> pb.HeldRanges:
        """What is in this sink's hands, for a sweep."""
        message = pb.HeldRanges(sink=self.name)
        for item in self._core.held():
            message.ranges.append(codec.range_to(item))
        return message

    def take_proposals(self) -> list[pb.Proposed]:
        """Proposals to send since the last call."""
        ready, self._proposals = self._proposals, []
        return ready

    def _do(self, event: core.Event) -> None:
        for command in self._core.handle(event, time.monotonic()):
            match command:
                case core.WriteShard():
                    self._write(command)
                case core.AskNeeds():
                    self._ask(command)
                case core.ProposeShard():
                    self._proposals.append(self._proposal(command.shard))
                case core.LetGo():
                    self._let_go = True
                    for item in command.ranges:
                        del self._batches[item.fragment, item.first]
                case core.RenewShard():
                    self._parts[command.into] = self._parts.pop(command.shard)
                    self._written.pop(command.shard, None)
                case core.ReleaseShard():
                    self._parts.pop(command.shard, None)
                    self._written.pop(command.shard, None)

    def _ask(self, command: core.AskNeeds) -> None:
        assert self._leaning is not None
        needs = self._leaning.needs(batch for batch, _ in self._taken(command.shard, command.ranges))
        if needs:
            self._questions.append(pb.NeedsAsked(proposal=command.shard, sink=self.name, records=_records_of(needs)))
        else:
            self._do(core.NeedsAnswered(command.shard))

    def _taken(self, shard: int, ranges: Sequence[Range]) -> list[_Held]:
        """The batches of a shard, which gather no longer; of those that it had, what these ranges leave."""
        if shard in self._parts:
            held = _by_fragment(self._parts[shard])
            parts: list[_Held] = []
            for item in ranges:
                batch, mask = _holder(held, item)
                start = item.first - batch.first
                parts.append((part(batch, item), mask[start : start + item.count]))
        else:
            parts = [self._batches.pop((item.fragment, item.first)) for item in ranges]
        self._parts[shard] = parts
        return parts

    def _write(self, command: core.WriteShard) -> None:
        batches = [batch for batch, _ in self._taken(command.shard, command.ranges)]
        told = functools.partial(os.eventfd_write, self.wake_fd, 1)
        self._writing[command.shard] = self._thread.submit(functools.partial(self._write_now, batches), told)

    def _write_now(self, batches: list[Batch]) -> Shard:
        watch = Watch()
        self._writes_since = time.perf_counter()
        ranges = [Range(item.fragment, item.first, item.count, item.offset, item.length) for item in batches]
        self._hands.take(WRITER, self.name, ranges)
        try:
            prefix = f"shards/{self._epoch}/"
            shard = self._sink.write(batches, self._store, prefix)
            if self._leaning is not None:
                shard.objects = (*shard.objects, *self._leaning.write_keys(batches, self._store, prefix))
            return shard
        finally:
            give_back()
            self._hands.put_down(WRITER)
            self._writes_since = 0.0
            watch.stop(self.writer)

    def _proposal(self, number: int) -> pb.Proposed:
        shard = self._written[number]
        message = pb.Proposed(
            proposal=number,
            sink=self.name,
            version=self._version,
            epoch=self._epoch,
            objects=codec.objects_to(shard.objects),
            counts=codec.counts_to(shard.counts),
        )
        covered = [
            (Range(batch.fragment, batch.first, batch.count, batch.offset, batch.length), mask)
            for batch, mask in self._parts[number]
        ]
        for item, kept, verdicts in join(covered):
            message.ranges.append(codec.range_to(item, kept, verdicts))
        if self._leaning is not None:
            batches = [batch for batch, _ in self._parts[number]]
            message.needs.extend(_records_of(self._leaning.needs(batches)))
            message.released.extend(_records_of(self._leaning.released(batches)))
        return message


def _bytes_of(batch: Batch) -> int:
    return batch.rows.nbytes + batch.verdicts.nbytes


def _quarantined(batch: Batch) -> int:
    """How many verdicts of a batch are that."""
    return batch.verdicts.column("verdict").to_pylist().count(QUARANTINED)


def _by_fragment(held: Iterable[_Held]) -> dict[bytes, list[_Held]]:
    """Batches by their fragments: of small files a shard holds tens of thousands."""
    found: dict[bytes, list[_Held]] = {}
    for pair in held:
        found.setdefault(pair[0].fragment, []).append(pair)
    return found


def _holder(held: Mapping[bytes, Sequence[_Held]], item: Range) -> _Held:
    """The batch that a range is of, with its mask."""
    return next(
        pair
        for pair in held[item.fragment]
        if pair[0].first <= item.first and item.end <= pair[0].first + pair[0].count
    )


def _records_of(rows: Rows) -> list[pb.Records]:
    return codec.records_to((fragment, sorted(found)) for fragment, found in sorted(rows.items()))


def _rows_from(messages: Iterable[pb.Records]) -> Rows:
    return {fragment: set(rows) for fragment, rows in codec.records_from(messages)}


def policy_of(order: pb.StartTask, sink: Sink) -> core.SealPolicy:
    """What the request asks for, else what the sink was declared with, else the default."""
    default = core.SealPolicy()
    return core.SealPolicy(
        target_bytes=order.seal.target_bytes or sink.shard_bytes or default.target_bytes,
        held_bytes_max=order.seal.held_bytes_max or default.held_bytes_max,
        age_s=order.seal.age_s or default.age_s,
    )


def log_proposal(proposal: pb.Proposed) -> None:
    """A line of the task's log."""
    counts = proposal.counts
    logger.info(
        "proposes a shard: %d ranges, %d records kept, %d bytes",
        len(proposal.ranges),
        counts.kept,
        sum(item.size for item in proposal.objects),
        extra=about(stage=proposal.sink, proposal=proposal.proposal, quarantined=counts.quarantined or None),
    )
