"""What several targets need: files that lie in memory, and what a source makes of one."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.stages.runtime.batch import ROW, Batch
from headrace.stages.runtime.contract import FragmentEnd, Source
from headrace.stages.sources.objects.inputs import file_version
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap

#: A folder of files in memory, where the system has one: targets write thousands of files a second.
_MEMORY = Path("/dev/shm")
WHOLE = (Gap(0, UNBOUNDED, 0),)


@contextmanager
def file_of(data: bytes) -> Iterator[str]:
    """The path of a file with these bytes, which is gone when the process is, however that ends."""
    descriptor = os.memfd_create("fuzzed")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder of its own."""
    folder = tempfile.mkdtemp(prefix="fuzz-of-decoders-", dir=_MEMORY if _MEMORY.is_dir() else None)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def folder_of_process() -> Path:
    """A folder that is gone when the process ends in order."""
    folder = tempfile.mkdtemp(prefix="fuzz-of-decoders-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def fragment_of(path: str, reader: str, *, start: int = 0, end: int = -1) -> Fragment:
    """The fragment of a range of a file, as a listing names it."""
    found = os.stat(path)
    size = (found.st_size if end < 0 else end) - start
    return Fragment.named("read", f"file://{path}", file_version(found), start=start, end=end, reader=reader, size=size)


def fates(source: Source, fragment: Fragment, gaps: Sequence[Gap] = WHOLE) -> list[tuple[Any, ...]]:
    """What became of each record of a fragment, in their order; no record is left out, and none is there twice."""
    *batches, end = source.read(fragment, gaps)
    assert isinstance(end, FragmentEnd)
    found: dict[int, tuple[Any, ...]] = {}
    for batch in batches:
        assert isinstance(batch, Batch)
        for row in batch.rows.to_pylist():
            assert row[ROW] not in found
            found[row[ROW]] = ("kept", row["id"], row["text"], row["metadata"])
        for row in batch.verdicts.to_pylist():
            assert row["row"] not in found
            found[row["row"]] = (row["verdict"], row["id"], row["reason"], row["raw"])
        assert all(ordinal in found for ordinal in range(batch.first, batch.first + batch.count))
    first = gaps[0].first
    assert sorted(found) == list(range(first, end.count))
    return [found[ordinal] for ordinal in sorted(found)]
