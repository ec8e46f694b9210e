"""A source inside a task: the fragments that it was given, the one that is open, and what it has read and not told.

Of small files a batch is made of many: what they cost beside their records (Arrow's columns, a call of each stage, a
message) they then cost once together. The ledger knows nothing of it: each fragment keeps its ranges and its end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import (
    Batch,
    BatchDraft,
    ContentAnswer,
    DeviceFailed,
    FragmentChanged,
    FragmentEnd,
    InputError,
    batch_of,
)
from headrace.store.ledger import UNKNOWN, Fragment
from headrace.worker.task.chain import Chain
from headrace.worker.task.core.source import ReadQueue

#: Bytes of a draft up to which it may share a batch, and bytes and drafts with which a batch is full, if it is not
#: before by what the source was told.
SMALL_BYTES = 64 << 10
MERGED_BYTES = 512 << 10
MERGED_DRAFTS = 256
#: Seconds that a batch is filled for: where each file takes long to come, the task is to hear its worker meanwhile.
MERGED_S = 0.05
#: Fragments, and their bytes, behind which it is told at once that they were read: the controller is to have given more
#: before a task has read what it was given ahead (`headrace.controller.core.run.input.intake`).
TOLD_FRAGMENTS = 64
TOLD_BYTES = 1 << 20


#: The end of what was not asked to its end.
_NOTHING = FragmentEnd(UNKNOWN)


class TaskSource:
    """The source of one task."""

    def __init__(self, chain: Chain, reading: ReadQueue) -> None:
        self.core = reading
        self._chain = chain
        self._open: tuple[Fragment, Iterator[Batch | BatchDraft | FragmentEnd | ContentAnswer | None]] | None = None
        #: The version under which what is open is compared; None: it is read.
        self._compared: str | None = None
        #: What was read behind a batch and has no place in it.
        self._next: Batch | BatchDraft | None = None
        #: How many records of what is open have been read, and how many when its prefix was told last.
        self._count = self._told = 0
        self._reads: list[pb.FragmentRead] = []
        self._read_bytes = 0

    def halt(self) -> None:
        """Let go of what was read ahead."""
        self._tell_prefix()
        self._open = self._next = None

    @property
    def idle(self) -> bool:
        """There is nothing to read."""
        return not self.core.fragments

    @property
    def ahead(self) -> int:
        """Records that were read and are in no batch yet."""
        return 0 if self._next is None else self._next.count

    def read(self) -> Batch | None:
        """The next batch; None where there is none yet, as behind a fragment's end."""
        drafts: list[BatchDraft] = []
        size, records, until = 0, 0, time.monotonic() + MERGED_S
        size_max, records_max = min(MERGED_BYTES, self._chain.batch_bytes), self._chain.batch_records
        while (item := self._item()) is not None:
            if isinstance(item, FragmentEnd):
                if not drafts:
                    break
            elif not isinstance(item, BatchDraft) or not 0 <= item.length <= SMALL_BYTES:
                if not drafts:
                    return item.batch() if isinstance(item, BatchDraft) else item
                self._next = item
                break
            elif drafts and (size + item.length > size_max or records + item.count > records_max):
                self._next = item
                break
            else:
                drafts.append(item)
                size, records = size + item.length, records + item.count
                # At once, since the reader goes on: it is sent before anybody can ask.
                stop = item.offset + item.length if item.offset >= 0 and item.length >= 0 else UNKNOWN
                self.core.sent(item.fragment.id, item.first, item.first + item.count, stop)
            if size >= size_max or records >= records_max or len(drafts) == MERGED_DRAFTS or time.monotonic() >= until:
                break
        return batch_of(drafts) if drafts else None

    def take_reads(self, *, all_of_them: bool) -> pb.FragmentsRead | None:
        """What is to be told of fragments that were read: when that is enough, when there is nothing more to read, or
        when an error is among it; else only where `all_of_them` is asked for.
        """
        if all_of_them:
            self._tell_prefix()
        enough = len(self._reads) >= TOLD_FRAGMENTS or self._read_bytes >= TOLD_BYTES or self.idle
        if not self._reads or not (enough or all_of_them or self._reads[-1].error):
            return None
        told, self._reads, self._read_bytes = pb.FragmentsRead(reads=self._reads), [], 0
        return told

    def _item(self) -> Batch | BatchDraft | FragmentEnd | None:
        """What is read next, or a fragment's end; None where there is nothing yet: after an error, or in comparing."""
        if self._next is not None:
            held, self._next = self._next, None
            return held
        if self._open is None:
            following = self.core.next()
            if following is None:
                return None
            if self.core.compares:
                self._open, self._compared = (following[0], self._chain.compare(following[0])), following[0].version
            else:
                self._open, self._compared = (following[0], self._chain.drafts(*following)), None
            self._count = self._told = 0
        fragment, items = self._open
        try:
            item = next(items, _NOTHING)
        except InputError as error:
            self._ended(fragment, FragmentEnd(UNKNOWN), error)
            return None
        if item is None:
            return None
        if isinstance(item, (Batch, BatchDraft)):
            self._count = item.first + item.count
            if (behind := self.core.behind()) is not None:
                self._chain.expect(*behind)
            return item
        self._ended(fragment, item)
        return item if isinstance(item, FragmentEnd) else _NOTHING

    def _tell_prefix(self) -> None:
        """Of a fragment that is still read: in which bytes all lies that was read of it."""
        if self._open is None or self._count <= self._told or (prefix := self._chain.prefix(self._open[0])) is None:
            return
        self._told = self._count
        name = self._open[0].id
        read = pb.FragmentRead(fragment=name, count=self._count, checksum=prefix.checksum, prefix=prefix.size)
        self._reads.append(read)

    def _ended(self, fragment: Fragment, end: FragmentEnd | ContentAnswer, error: InputError | None = None) -> None:
        if error is not None:
            self._tell_prefix()
        self.core.ended(fragment.id, self._compared)
        self._open = None
        read = pb.FragmentRead(fragment=fragment.id, count=UNKNOWN, checksum=end.checksum, compared=self._compared)
        if isinstance(end, FragmentEnd):
            read.count = end.count
        else:
            read.continues = end.continues
        if error is not None:
            read.error = str(error)
            read.changed, read.unreadable = isinstance(error, FragmentChanged), isinstance(error, DeviceFailed)
        self._reads.append(read)
        self._read_bytes += fragment.size
