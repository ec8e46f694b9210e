"""The solitary task's stages: one record at a time, so that a killer is known (`docs/design/solitary.md`).

A record that has killed its process is not given to that stage again: it is quarantined with the story.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from headrace.protos import control_pb2 as pb
from headrace.stages.runtime import Batch, Columns, FragmentEnd, Sink, quarantine
from headrace.store import Buffer, Capabilities, ObjectStore
from headrace.store.ledger import UNKNOWN, Fragment, Gap, Range
from headrace.worker.task.batch.coverage import part

#: Begins the reason of a verdict on a record that killed its process; the story follows.
KILLED = "killed its process: "


class Isolation:
    """Which records of a fragment are poison, at which stages, and why."""

    def __init__(self) -> None:
        #: By fragment, ordinal and stage: a record may kill several stages.
        self._stories: dict[tuple[bytes, int, str], str] = {}
        self.probed: set[bytes] = set()

    def learn(self, message: pb.ReadFragment) -> None:
        """Take what comes with an order to read."""
        for item in message.poison:
            self._stories[message.fragment.id, item.ordinal, item.stage] = item.story
        if message.trial:
            self.probed.add(message.fragment.id)

    def at(self, stage: str, batch: Batch) -> Batch:
        """The batch of one record, without that record where it is poison at this stage."""
        story = self._stories.get((batch.fragment, batch.first, stage))
        if story is None or not batch.rows.num_rows:
            return batch
        # One row, unless a stage before has split the record.
        return quarantine(batch, dict.fromkeys(range(batch.rows.num_rows), f"{KILLED}{story}"), stage)

    def around(self, stage: str, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Gap | Batch]:
        """The gaps without the records that are poison at the source, and a batch for each of those, in order."""
        poison = sorted(ordinal for name, ordinal, at in self._stories if name == fragment.id and at == stage)
        for piece, is_poison in (found for gap in gaps for found in split_at(gap, poison)):
            yield self._unread(stage, fragment, piece.first) if is_poison else piece

    def _unread(self, stage: str, fragment: Fragment, ordinal: int) -> Batch:
        """The batch of a record that its source cannot read: there is nothing of it to keep."""
        columns = Columns(fragment.uri)
        columns.reject(ordinal, None, f"{KILLED}{self._stories[fragment.id, ordinal, stage]}", b"")
        return columns.batch(fragment, stage, ordinal, 1, UNKNOWN, UNKNOWN)


def split_at(gap: Gap, ordinals: Iterable[int]) -> Iterator[tuple[Gap, bool]]:
    """The gap in parts that stop and begin at each of these ascending ordinals, and whether a part is one of them."""
    first, offset = gap.first, gap.offset
    for ordinal in ordinals:
        if not gap.first <= ordinal < gap.end:
            continue
        if first < ordinal:
            yield Gap(first, ordinal, offset), False
        yield Gap(ordinal, ordinal + 1, offset if first == ordinal else UNKNOWN), True
        first, offset = ordinal + 1, UNKNOWN
    if first < gap.end:
        yield Gap(first, gap.end, offset), False


def singly(items: Iterator[Batch | FragmentEnd]) -> Iterator[Batch | FragmentEnd]:
    """The same records, one a batch."""
    for item in items:
        if not isinstance(item, Batch) or item.count == 1:
            yield item
            continue
        for ordinal in range(item.first, item.first + item.count):
            yield part(item, Range(item.fragment, ordinal, 1))


def try_writing(sink: Sink, batch: Batch) -> None:
    """Have a sink write one record to nowhere: if that kills the process, it is known which record did."""
    sink.write([batch], cast("ObjectStore", _Nowhere()), "trial/")


class _Nowhere:
    """A store that keeps nothing."""

    uri = "nowhere:"
    is_remote = False
    capabilities = Capabilities()

    def create(self, _key: str, _parts: Sequence[Buffer]) -> bool:
        return True

    def head(self, _key: str) -> None:
        return None
