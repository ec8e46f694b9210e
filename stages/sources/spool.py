"""The source of a spool: records that are pushed (`headrace.worker.spool.spool`), read while more of them come.

A sealed segment is a fragment. The listing goes on as segments are sealed, and ends when the spool is closed; until
then a run of this source does not end. A segment of what a full spool shed says only how many records they were: each
gets the verdict *filtered* here, so that what was shed is accounted for like anything else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from headrace.stages.runtime import Batch, Columns, DamagedInput, FragmentChanged, FragmentEnd, InputError
from headrace.stages.sources.jsonl import JsonlSource
from headrace.stages.sources.objects import InputObject, file_at, open_raw, to_path
from headrace.store.ledger import UNBOUNDED, Fragment, Gap

#: What a spool's files are called: sealed segments, what was shed, and the mark that no more comes.
SEALED, SHED, CLOSED = ".jsonl", ".shed", "closed"
#: Records of one push: of its bytes (`headrace.worker.spool.server`) each has at least one, and a newline.
PUSH_RECORDS_MAX = 1 << 26
SHED_REASON = "shed: the spool was full"


class SpoolSource(JsonlSource):
    """Reads the segments of one folder, which the task's worker must have; else as JsonlSource."""

    #: The name of the numbers of what was shed, beside that of the records of a segment.
    SHED_READER = "spool-shed/1"

    def __init__(self, name: str, folder: str, **options: Any) -> None:
        self.folder = Path(folder).absolute()
        super().__init__(name, [str(self.folder)], **options)

    def list(self) -> Iterator[Fragment | None]:
        """Each sealed segment once, and None where there is no other yet; ends when the spool is closed."""
        seen: set[str] = set()
        while True:
            closed = (self.folder / CLOSED).exists()
            names = self._names()
            for name in names:
                found = file_at(str(self.folder / name), f"{self.folder}/") if name not in seen else None
                if found is not None:
                    yield found.fragment(self.name, self.SHED_READER if name.endswith(SHED) else self.READER)
            seen = set(names)
            if closed:
                return
            yield None

    def _names(self) -> Sequence[str]:
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith((SEALED, SHED)))
        except OSError as error:
            raise InputError(
                f"spool {self.folder}: {error.strerror}; start it there first, with "
                "`python -m headrace.worker.spool.server`, and place this stage on that worker"
            ) from error

    def fragments(self, found: InputObject) -> Iterator[Fragment]:
        """One segment: the whole of it."""
        yield found.fragment(self.name, self.READER)

    def read(self, fragment: Fragment, gaps: Sequence[Gap]) -> Iterator[Batch | FragmentEnd]:
        """See `Source.read`."""
        if fragment.reader != self.SHED_READER:
            yield from super().read(fragment, gaps)
            return
        count = self._shed_records(fragment)
        for gap in gaps:
            end = min(gap.end, count)
            for first in range(gap.first, end, self.batch_records):
                yield self._shed(fragment, first, min(first + self.batch_records, end))
            if gap.end != UNBOUNDED and gap.end > count:
                raise FragmentChanged(f"{fragment.uri} ends after record {count}: it is not what it was when listed")
        if gaps and gaps[-1].end == UNBOUNDED:
            yield FragmentEnd(count)

    def _shed_records(self, fragment: Fragment) -> int:
        with open_raw(self.inputs, fragment, ahead=False) as raw:
            data = raw.readall()
            raw.check()
        try:
            return sum(shed_entry(line)[0] for line in data.splitlines())
        except ValueError as error:
            raise DamagedInput(to_path(fragment.uri), f"it is no list of pushes that were shed ({error})") from error

    def _shed(self, fragment: Fragment, first: int, end: int) -> Batch:
        columns = Columns(fragment.uri)
        for ordinal in range(first, end):
            columns.drop(ordinal, None, SHED_REASON)
        batch = columns.batch(fragment, self.name, first, end - first, -1, -1)
        return replace(batch, offset=-1, length=-1)


def shed_entry(line: bytes) -> tuple[int, str]:
    """How many records of a push were shed, and the push's key, as a line says. Raises ValueError for anything else."""
    entry = orjson.loads(line)
    records, key = (entry.get("records"), entry.get("key")) if isinstance(entry, dict) else (None, None)
    if type(records) is not int or not 0 <= records <= PUSH_RECORDS_MAX or not isinstance(key, str):
        raise ValueError(f"{line[:80]!r} is no push")
    return records, key
