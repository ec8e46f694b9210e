"""A sink inside a task: gathered batches, a thread that writes shards, and proposals that wait for their answers."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.protos import control_pb2 as pb
from headrace.stages.batch import Batch
from headrace.stages.contract import Shard, Shelving, Sink
from headrace.store.entries import Range
from headrace.store.errors import StoreStalled
from headrace.store.objects import ObjectStore
from headrace.worker.core import gathering as core
from headrace.worker.coverage import fates, join, part
from headrace.worker.hands import STAGES, WRITER, Hands


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
    ):
        self.name = name
        self.busy_s = 0.0
        self._hands = hands
        self._sink = sink
        self._store = store
        self._version = version
        self._epoch = epoch
        self._core = core.Gathering(policy)
        self._batches: dict[tuple[bytes, int], tuple[Batch, npt.NDArray[np.bool_]]] = {}
        self._parts: dict[int, list[tuple[Batch, npt.NDArray[np.bool_]]]] = {}
        self._written: dict[int, Shard] = {}
        self._writing: dict[int, Future[Shard]] = {}
        self._proposals: list[pb.Proposed] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        #: Readable when the writer has finished something.
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def accepts(self) -> bool:
        """Whether another batch may come."""
        return self._core.accepts

    @property
    def held_bytes(self) -> int:
        """Bytes of all batches that are not closed."""
        return self._core.held_bytes

    @property
    def open_ranges(self) -> int:
        """Ranges of all batches that are not closed."""
        return len(self._core.held())

    @property
    def trouble(self) -> str:
        """Why a shard waits for its store; "" while none does."""
        return self._core.trouble

    def wake_at(self) -> float | None:
        """When `tick` is wanted next."""
        return self._core.wake_at()

    def add(self, batch: Batch) -> None:
        """Take a batch. Raises ConservationError if a record has not exactly one fate.

        What this sink holds already is left out: another sink's loss has the same range read again for both.
        """
        mask = fates(batch)
        whole = Range(batch.fragment, batch.first, batch.count, batch.offset, batch.length)
        for item in core.without((whole,), self._core.held(batch.fragment)):
            fresh = part(batch, item)
            start = item.first - batch.first
            held = fresh.rows.nbytes + fresh.verdicts.nbytes
            self._hands.take(STAGES, self.name, (item,))
            size = self._sink.measure(fresh)
            if isinstance(self._sink, Shelving):
                fresh = self._sink.shelve(fresh, self._store)
            self._hands.put_down(STAGES)
            self._batches[item.fragment, item.first] = (fresh, mask[start : start + item.count])
            self._do(core.BatchGathered(item, size, held))

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

    def answered(self, answer: pb.Answer) -> None:
        """Take the controller's answer to a proposal. Raises RuntimeError if it was refused."""
        if answer.outcome == pb.Answer.ACCEPTED:
            self._do(core.ShardAccepted(answer.proposal))
        elif answer.outcome == pb.Answer.OVERLAPS:
            overlaps = tuple(Range(item.fragment, item.first, item.count) for item in answer.overlaps)
            self._do(core.ShardOverlapped(answer.proposal, overlaps))
        else:
            raise RuntimeError(f"sink {self.name}: the controller refused a shard: {answer.reason}")

    def held(self) -> pb.HeldRanges:
        """What is in this sink's hands, for a sweep."""
        message = pb.HeldRanges(sink=self.name)
        for item in self._core.held():
            message.ranges.append(_range(item))
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
                case core.ProposeShard():
                    self._proposals.append(self._proposal(command.shard))
                case core.ReleaseShard():
                    self._parts.pop(command.shard, None)
                    self._written.pop(command.shard, None)

    def _write(self, command: core.WriteShard) -> None:
        if command.shard in self._parts:
            held = self._parts[command.shard]
        else:
            held = [self._batches.pop((item.fragment, item.first)) for item in command.ranges]
        parts: list[tuple[Batch, npt.NDArray[np.bool_]]] = []
        for item in command.ranges:
            batch, mask = next(pair for pair in held if _holds(pair[0], item))
            start = item.first - batch.first
            parts.append((part(batch, item), mask[start : start + item.count]))
        self._parts[command.shard] = parts
        self._writing[command.shard] = self._thread.submit(self._write_now, [batch for batch, _ in parts])

    def _write_now(self, batches: list[Batch]) -> Shard:
        started = time.perf_counter()
        ranges = [Range(item.fragment, item.first, item.count, item.offset, item.length) for item in batches]
        self._hands.take(WRITER, self.name, ranges)
        try:
            return self._sink.write(batches, self._store, f"shards/{self._epoch}/")
        finally:
            self._hands.put_down(WRITER)
            self.busy_s += time.perf_counter() - started
            os.eventfd_write(self.wake_fd, 1)

    def _proposal(self, number: int) -> pb.Proposed:
        shard = self._written[number]
        message = pb.Proposed(proposal=number, sink=self.name, version=self._version, epoch=self._epoch)
        covered = [
            (Range(batch.fragment, batch.first, batch.count, batch.offset, batch.length), mask)
            for batch, mask in self._parts[number]
        ]
        for item, kept, verdicts in join(covered):
            message.ranges.append(_range(item, kept=kept, verdicts=verdicts))
        for stored in shard.objects:
            message.objects.append(
                pb.StoredObject(role=stored.role, key=stored.key, checksum=stored.checksum, size=stored.size)
            )
        counts = shard.counts
        for field in ("kept", "filtered", "duplicate", "quarantined", "tokens", "sequences", "padding"):
            setattr(message.counts, field, getattr(counts, field))
        message.counts.filtered_by.update(counts.filtered_by)
        message.counts.quarantined_by.update(counts.quarantined_by)
        message.counts.edited.update(counts.edited)
        return message


def _holds(batch: Batch, item: Range) -> bool:
    return batch.fragment == item.fragment and batch.first <= item.first and item.end <= batch.first + batch.count


def _range(item: Range, **bits: Any) -> pb.Range:
    return pb.Range(
        fragment=item.fragment, first=item.first, count=item.count, offset=item.offset, length=item.length, **bits
    )
