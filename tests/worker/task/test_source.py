"""What a source's task reads of many small files at once, what it says of them, and what it lets go of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from headrace.stages.runtime.batch import Batch, BatchDraft, Columns
from headrace.stages.runtime.contract import ContentAnswer, FragmentChanged, FragmentEnd
from headrace.store.ledger.core.fragments import Fragment
from headrace.store.ledger.core.intervals import UNBOUNDED, UNKNOWN, Gap
from headrace.worker.task import source as sourcing
from headrace.worker.task.chain import Chain
from headrace.worker.task.core.source import ReadQueue
from headrace.worker.task.source import MERGED_BYTES, MERGED_DRAFTS, SMALL_BYTES, TOLD_BYTES, TOLD_FRAGMENTS, TaskSource


class Files:
    """In the place of a chain: files by number, each with the bytes of its one record, -1 for one that changed."""

    isolation = None
    batch_bytes, batch_records = 1 << 20, 4096

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.expected: list[int] = []

    def drafts(self, fragment: Fragment, _gaps: Sequence[Gap]) -> Iterator[Batch | BatchDraft | FragmentEnd]:
        size = self.sizes[number_of(fragment.id)]
        if size < 0:
            raise FragmentChanged(f"{fragment.uri} has changed")
        if size:
            columns = Columns(fragment.uri)
            columns.keep(0, None, b"text", {})
            yield BatchDraft(columns, fragment, "read", 0, 1, 0, size)
        yield FragmentEnd(1 if size else 0)

    def compare(self, fragment: Fragment) -> Iterator[ContentAnswer | None]:
        yield None
        yield ContentAnswer(fragment.version.encode())

    def prefix(self, fragment: Fragment) -> None:
        """Each file is read at once: none is ever read in part."""

    def expect(self, fragment: Fragment, _gaps: Sequence[Gap]) -> None:
        self.expected.append(number_of(fragment.id))


def number_of(fragment: bytes) -> int:
    return int.from_bytes(fragment, "big")


def given(files: Files, size: int = 1) -> TaskSource:
    """A source that was told to read all of these files, of which each has `size` bytes for the controller."""
    source = TaskSource(cast("Chain", files), ReadQueue())
    for number in range(len(files.sizes)):
        name = number.to_bytes(16, "big")
        fragment = Fragment(name, "read", f"file:///{number}", "1", 0, -1, "jsonl/1", size)
        source.core.give(fragment, [Gap(0, UNBOUNDED, 0)])
    return source


def files_of(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [number_of(member.fragment) for member in batch.members] or [number_of(batch.fragment)]


def told(source: TaskSource, *, all_of_them: bool = False) -> list[tuple[int, int]]:
    found = source.take_reads(all_of_them=all_of_them)
    return [(number_of(item.fragment), item.count) for item in found.reads] if found else []


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcing, "MERGED_S", 1000.0)


def test_small_files_are_read_into_one_batch_and_told_of_at_once() -> None:
    source = given(Files(10, 10, 10))
    assert files_of(source.read()) == [0, 1, 2]
    assert source.idle
    assert told(source) == [(0, 1), (1, 1), (2, 1)]


def test_what_is_in_a_joint_batch_is_pending_no_longer() -> None:
    source = given(Files(*[10] * (MERGED_DRAFTS + 1)))
    assert len(files_of(source.read())) == MERGED_DRAFTS
    assert [number_of(name) for name, _ in source.core.pending()][-1:] == [MERGED_DRAFTS]
    # The last of the batch has sent its record, and its end is not read yet.
    assert all(gap == Gap(1, UNBOUNDED, 10) for _, gaps in source.core.pending()[:-1] for gap in gaps)


def test_a_batch_is_full_by_its_bytes_too() -> None:
    files = MERGED_BYTES // SMALL_BYTES
    assert len(files_of(given(Files(*[SMALL_BYTES] * (files + 3))).read())) == files


def test_a_batch_holds_no_more_bytes_than_the_source_was_told() -> None:
    files = Files(10, 10, 11, 40)
    files.batch_bytes = 30
    source = given(files)
    assert [files_of(source.read()) for _ in range(3)] == [[0, 1], [2], [3]]


def test_a_batch_holds_no_more_records_than_the_source_was_told() -> None:
    files = Files(10, 10, 10)
    files.batch_records = 2
    source = given(files)
    # Between them comes the end of the second.
    assert [files_of(batch) for _ in range(4) if (batch := source.read())] == [[0, 1], [2]]


def test_a_batch_is_given_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcing, "MERGED_S", -1.0)
    assert files_of(given(Files(10, 10)).read()) == [0]


def test_a_large_draft_comes_alone_and_pending_until_sent() -> None:
    source = given(Files(10, SMALL_BYTES + 1, 10))
    assert files_of(source.read()) == [0]
    assert [number_of(name) for name, _ in source.core.pending()] == [1, 2]
    large = source.read()
    assert files_of(large) == [1]
    assert [number_of(name) for name, _ in source.core.pending()] == [1, 2]
    assert large is not None
    source.core.sent(large.fragment, large.first, large.first + large.count)
    assert source.read() is None, "its end comes by itself"
    assert files_of(source.read()) == [2]


def test_who_halts_lets_go_of_what_was_read_and_not_sent() -> None:
    source = given(Files(10, SMALL_BYTES + 1))
    source.read()
    source.core.halt()
    source.halt()
    assert source.idle
    assert source.read() is None


def test_an_error_comes_behind_the_records_that_were_read_before_it() -> None:
    source = given(Files(10, -1, 10))
    assert files_of(source.read()) == [0]
    assert told(source) == [(0, 1), (1, UNKNOWN)]
    assert files_of(source.read()) == [2]


def test_an_error_says_that_the_file_has_changed() -> None:
    source = given(Files(-1, 10))
    assert source.read() is None
    [read] = getattr(source.take_reads(all_of_them=False), "reads", [])
    assert (read.error, read.changed, read.unreadable) == ("file:///0 has changed", True, False)


def test_a_file_without_records_is_told_of() -> None:
    source = given(Files(10, 0, 10))
    assert files_of(source.read()) == [0, 2]
    assert told(source) == [(0, 1), (1, 0), (2, 1)]


@pytest.mark.parametrize(("files", "size"), [(TOLD_FRAGMENTS, 1), (2, TOLD_BYTES // 2)])
def test_fragments_are_told_of_when_they_are_enough(files: int, size: int) -> None:
    source = given(Files(*[0] * (files + 1)), size)
    for _ in range(files - 1):
        assert source.read() is None
        assert told(source) == []
    source.read()
    assert len(told(source)) == files


def test_fragments_are_told_of_when_they_are_asked_for() -> None:
    source = given(Files(0, 0))
    source.read()
    assert told(source) == []
    assert told(source, all_of_them=True) == [(0, 0)]
    assert told(source, all_of_them=True) == []


def test_what_is_read_next_is_expected() -> None:
    files: Any = Files(10, 10, 10)
    given(files).read()
    assert files.expected == [1, 2]


def test_a_fragment_that_is_read_and_compared_is_told_of_twice() -> None:
    source = given(Files(-1))
    name = (0).to_bytes(16, "big")
    there = Fragment(name, "read", "file:///0", "2", 0, -1, "jsonl/1", 1)
    source.core.give(there, ())
    while not source.idle:
        assert source.read() is None
    told = source.take_reads(all_of_them=True)
    assert told is not None
    facts = [(read.changed, read.HasField("compared"), read.compared, read.checksum) for read in told.reads]
    assert facts == [(True, False, "", b""), (False, True, "2", b"2")]
