"""A simulated source: the real Reading core, and a reader of objects that may change under it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from headrace.chaos.sim.network import Frame
from headrace.chaos.sim.world import RECORD_BYTES, SOURCE, InputReader, Member, Part, ViolationError
from headrace.controller.core.messages import messages as core
from headrace.stages.runtime import FragmentChanged
from headrace.store.ledger import UNKNOWN, Fragment, Gap, Range
from headrace.worker.task import Reading

#: Records that a source puts into a batch.
BATCH_RECORDS_MAX = 8
#: Fragments in a page of a listing.
PAGE_FRAGMENTS = 3


class SimulatedSource:
    """The source in one task."""

    def __init__(self, task: Member) -> None:
        self.core = Reading()
        self._task = task
        self._reader = InputReader(task.cluster.inputs)
        #: What is being listed, and for which order.
        self._listing: Iterator[Fragment] = iter(())
        self._asked: core.ListSource | None = None

    def list(self, message: core.ListSource) -> None:
        """The controller asks what there is to read."""
        self._asked, self._listing = message, self._task.cluster.inputs.listing()

    def give(self, message: core.ReadFragment) -> None:
        """The controller asks for the gaps of a fragment."""
        for gap in message.gaps:
            if gap.offset not in (UNKNOWN, gap.first * RECORD_BYTES):
                raise ViolationError(19, f"{message.fragment.uri}: record {gap.first} does not begin at {gap.offset}")
        self.core.give(message.fragment, message.gaps)

    def halt(self) -> None:
        """Let go of what has not been sent."""
        self.core.halt()
        self._reader.close()

    def step(self) -> bool:
        """Say a page of the listing, or read a batch; False if there is nothing to do."""
        if self._asked is not None:
            self._page(self._asked)
            return True
        following = self.core.next()
        if following is None:
            return False
        compared = following[0].version if self.core.compares else None
        try:
            if compared is not None:
                self._end(following[0], UNKNOWN, checksum=self._reader.checksum(following[0]), compared=compared)
            else:
                self._read(*following)
        except FragmentChanged as error:
            self._end(following[0], UNKNOWN, str(error), compared=compared)
        return True

    def _page(self, asked: core.ListSource) -> None:
        page = tuple(islice(self._listing, PAGE_FRAGMENTS))
        last = len(page) < PAGE_FRAGMENTS
        if last:
            self._asked = None
        task = self._task
        task.say(core.SourceListed(task.name, task.attempt, asked.stage, page, last, listing=asked.listing))

    def _read(self, fragment: Fragment, gaps: tuple[Gap, ...]) -> None:
        task = self._task
        count = self._reader.records(fragment)
        if not gaps or gaps[0].first >= count:
            self._end(fragment, count if gaps else UNKNOWN, checksum=self._reader.checksum(fragment) if gaps else b"")
            return
        first = gaps[0].first
        wanted = 1 if task.alone else task.cluster.world.rng.randint(1, BATCH_RECORDS_MAX)
        end = min(gaps[0].end, count, first + wanted)
        item, everyone = Range(fragment.id, first, end - first), (1 << (end - first)) - 1
        writing = self._reader.read(fragment, first, end)
        dead = everyone if task.condemned(fragment.id, first, SOURCE) else 0
        # A source that reads one record at a time says so; any other does not know how many it will read.
        hand = Range(fragment.id, first, 1 if task.alone else 0)
        if not dead and not task.outlives(SOURCE, [Part(item, everyone, 0)], hand):
            return
        size = item.count * RECORD_BYTES
        frame = Frame(task.epoch, size, fragment.id, first, item.count, everyone & ~dead)
        if task.process(frame._replace(quarantined=dead, read_from=writing)):
            self.sent(frame)

    def sent(self, frame: Frame) -> None:
        """A batch is behind all stages of the task."""
        end = frame.first + frame.records
        self.core.sent(frame.fragment, frame.first, end, end * RECORD_BYTES)

    def _end(
        self, fragment: Fragment, count: int, error: str = "", checksum: bytes = b"", compared: str | None = None
    ) -> None:
        self.core.ended(fragment.id, compared)
        self._reader.close()
        said = core.FragmentWasRead(self._task.name, self._task.attempt, fragment.id, count, error, bool(error))
        self._task.say(replace(said, checksum=checksum, compared=compared))
