"""A simulated source: it lists the input, reads batches of it, and compares what may have changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import structs

from headrace.chaos.sim.network import SimulatedFrame
from headrace.chaos.sim.world import BATCH_RECORDS_MAX, RECORD_BYTES, SOURCE, InputReader, Part, ViolationError
from headrace.controller.core.messages import messages as core
from headrace.stages.runtime import FragmentChanged
from headrace.store.ledger import UNKNOWN, Fragment, Gap, Range
from headrace.worker.task import ReadQueue, messages

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.tasks import SimulatedTask

#: Fragments in a page of a listing.
PAGE_FRAGMENTS = 3
#: Share of batches with which a source says of which bytes all is that it has read of their fragment.
PREFIX_SHARE = 0.4


class SimulatedSource:
    """The source in one task."""

    def __init__(self, task: SimulatedTask, reading: ReadQueue) -> None:
        self._reading, self._task = reading, task
        self._reader = InputReader(task.cluster.inputs)
        #: What is being listed, and of which stage.
        self._listing: Iterator[Fragment] = iter(())
        self._stage = ""

    def list(self, message: core.ListSource) -> None:
        """The controller asks what there is to read."""
        self._stage, self._listing = message.stage, self._task.cluster.inputs.listing()

    def check(self, message: core.ReadFragment) -> None:
        """19: the controller knows where each gap begins, or says that it does not."""
        for gap in message.gaps:
            if gap.offset not in (UNKNOWN, gap.first * RECORD_BYTES):
                raise ViolationError(19, f"{message.fragment.uri}: record {gap.first} does not begin at {gap.offset}")

    def close(self) -> None:
        """Let go of the object."""
        self._reader.close()

    def page(self, listing: int) -> None:
        """Say a page of the listing."""
        page, task = tuple(islice(self._listing, PAGE_FRAGMENTS)), self._task
        last = len(page) < PAGE_FRAGMENTS
        task.say(core.SourceListed(task.name, task.attempt, self._stage, page, last, listing=listing))
        task.do(messages.PageListed(last))

    def read(self) -> None:
        """Read a batch, or say that a fragment has ended, or compare one."""
        following = self._reading.next()
        assert following is not None
        compared = following[0].version if self._reading.compares else None
        try:
            if compared is not None:
                self._end(following[0], UNKNOWN, checksum=self._reader.checksum(following[0]), compared=compared)
            else:
                self._read(*following)
        except FragmentChanged as error:
            self._end(following[0], UNKNOWN, str(error), compared=compared)

    def _read(self, fragment: Fragment, gaps: tuple[Gap, ...]) -> None:
        task = self._task
        count = self._reader.records(fragment)
        if not gaps or gaps[0].first >= count:
            self._end(fragment, count if gaps else UNKNOWN, checksum=self._reader.checksum(fragment) if gaps else b"")
            return
        first = gaps[0].first
        wanted = 1 if task.alone else task.cluster.world.rng.randint(1, BATCH_RECORDS_MAX)
        records = min(gaps[0].end, count, first + wanted) - first
        size, everyone = records * RECORD_BYTES, (1 << records) - 1
        item = Range(fragment.id, first, records, first * RECORD_BYTES, size)
        writing = self._reader.read(fragment, first, item.end)
        dead = everyone if task.poison(fragment.id, first, SOURCE) else 0
        # A source that reads one record at a time says so; any other does not know how many it will read.
        hand = Range(fragment.id, first, 1 if task.alone else 0)
        if dead or task.outlives(SOURCE, [Part(item, everyone, 0)], hand):
            if task.cluster.corpus.tells_prefixes and not task.alone and task.cluster.world.chance(PREFIX_SHARE):
                self._tell_prefix(fragment, item.end)
            frame = SimulatedFrame(task.epoch, size, fragment.id, first, records, everyone & ~dead, quarantined=dead)
            task.do(messages.BatchRead(frame._replace(read_from=writing), item))

    def _tell_prefix(self, fragment: Fragment, count: int) -> None:
        """Say of which bytes the first records are."""
        task, size = self._task, count * RECORD_BYTES
        checksum = self._reader.checksum(replace(fragment, size=size))
        said = core.FragmentWasRead(task.name, task.attempt, fragment.id, count, checksum=checksum, prefix=size)
        task.say(said)

    def _end(
        self, fragment: Fragment, count: int, error: str = "", checksum: bytes = b"", compared: str | None = None
    ) -> None:
        self._reading.ended(fragment.id, compared)
        self._reader.close()
        said = core.FragmentWasRead(self._task.name, self._task.attempt, fragment.id, count, error, bool(error))
        self._task.say(structs.replace(said, checksum=checksum, compared=compared))
