"""Columns that wait in scratch files come back as they were, whatever was cut out of them meanwhile."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.stages.runtime.batch import Batch
from headrace.stages.sinks.spill import SpilledStrings, SpillFiles, cut_by_size, slice_rows, spill_strings
from headrace.store.files import scratch
from headrace.store.files.scratch import Scratch
from headrace.store.ledger.core.fragments import Range
from headrace.store.open import open_store
from headrace.worker.task.batch.coverage import part

COLUMNS = ("text", "metadata")
TEXTS = st.one_of(st.none(), st.text(max_size=5))


def with_columns(batch: Batch, texts: list[str | None], metadata: list[str | None]) -> Batch:
    columns = {**dict(zip(batch.rows.schema.names, batch.rows.columns, strict=True))}
    columns |= {"text": pa.array(texts, pa.string()), "metadata": pa.array(metadata, pa.string())}
    return batch.with_rows(pa.record_batch(columns))


def made(count: int, first: int = 0) -> Batch:
    rows = pa.record_batch({"__row": pa.array(range(first, first + count), pa.int64()), "id": ["i"] * count})
    verdicts = pa.record_batch({"row": pa.array([], pa.int64())})
    return Batch(b"\1" * 16, "file:///in", first, count, 0, count, rows, verdicts)


@given(
    st.lists(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), max_size=4),
    st.sets(st.integers(0, 3)),
    st.integers(0, 9),
    st.integers(0, 24),
)
def test_what_was_spilled_is_read_back_from_any_row_to_any_other(
    rows: list[list[tuple[str | None, str | None]]], alone: set[int], first: int, count: int
) -> None:
    common = Scratch.in_memory()
    batches: list[Batch] = []
    for number, pairs in enumerate(rows):
        batch = with_columns(made(len(pairs)), [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        file = Scratch.in_memory() if number in alone else common
        batches.append(spill_strings(batch, file, COLUMNS))
    strings = SpilledStrings(batches, COLUMNS)
    expected = [pair for pairs in rows for pair in pairs]
    end = min(first + count, len(expected))
    for place, name in enumerate(COLUMNS):
        column = strings.column(name, min(first, end), end)
        column.validate(full=True)
        assert column.to_pylist() == [pair[place] for pair in expected[min(first, end) : end]]
    sizes = [sum(len((text or "").encode()) for text in pair) for pair in expected]
    assert strings.sizes.tolist() == sizes


def test_rows_that_were_cut_out_are_not_read(batch_of: Callable[..., Batch]) -> None:
    spilled = spill_strings(batch_of(["a", "bb", "ccc", "d"]), Scratch.in_memory(), COLUMNS)
    left = [part(spilled, Range(spilled.fragment, first, count)) for first, count in ((0, 1), (2, 2))]
    strings = SpilledStrings(left, COLUMNS)
    assert strings.column("text", 0, 3).to_pylist() == ["a", "ccc", "d"]
    assert strings.column("text", 1, 2).to_pylist() == ["ccc"]


def test_a_slice_of_larger_memory_is_spilled_alone(batch_of: Callable[..., Batch]) -> None:
    whole = batch_of(["x" * 10_000, "middle", "y" * 10_000])
    batch = replace(whole, first=1, count=1, rows=whole.rows.slice(1, 1))
    file = Scratch.in_memory()
    spilled = spill_strings(batch, file, COLUMNS)
    assert file.size == len("middle") + len('{"n":1}')
    assert spilled.rows.get_total_buffer_size() < 200
    assert SpilledStrings([spilled], COLUMNS).column("text", 0, 1).to_pylist() == ["middle"]


def test_text_of_any_arrow_type_is_spilled(batch_of: Callable[..., Batch]) -> None:
    kinds: list[pa.DataType] = [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    for kind in kinds:
        column: Any = pa.array(["ä", None, "c"], pa.string()).cast(kind)
        rows = batch_of(["", "", ""]).rows
        batch = batch_of(["", "", ""]).with_rows(rows.set_column(2, "text", column))
        strings = SpilledStrings([spill_strings(batch, Scratch.in_memory(), COLUMNS)], COLUMNS)
        assert strings.column("text", 0, 3).to_pylist() == ["ä", None, "c"]


@given(st.lists(st.integers(0, 12)), st.integers(1, 20), st.integers(1, 5))
def test_runs_tile_rows_and_end_behind_a_limit(sizes: list[int], bytes_max: int, rows_max: int) -> None:
    runs = list(cut_by_size(np.array(sizes, np.int64), bytes_max=bytes_max, rows_max=rows_max))
    assert [row for first, end in runs for row in range(first, end)] == list(range(len(sizes)))
    for first, end in runs:
        assert first < end <= first + rows_max
        assert sum(sizes[first : end - 1]) < bytes_max
        assert end in (len(sizes), first + rows_max) or sum(sizes[first:end]) >= bytes_max


def test_rows_are_counted_over_all_batches(batch_of: Callable[..., Batch]) -> None:
    batches = [batch_of(["a", "b"]), batch_of([]), batch_of(["c", "d", "e"], first=2)]
    found = [batch.rows.column("text").to_pylist() for batch in slice_rows(batches, 1, 4)]
    assert found == [["b"], ["c", "d"]]


def test_a_scratch_file_holds_about_as_much_as_it_is_told_to(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch]
) -> None:
    store = open_store(str(tmp_path))
    files = SpillFiles(40)
    batches = [batch_of(["x" * 15], first=first) for first in range(4)]
    spilled = files.spilled(batches, store, lambda batch, file: spill_strings(batch, file, COLUMNS))
    assert [id(batch.scratch) for batch in spilled] == [
        id(spilled[0].scratch), id(spilled[0].scratch), id(spilled[2].scratch), id(spilled[2].scratch)
    ]  # fmt: skip
    assert spilled[0].scratch is not spilled[2].scratch
    assert files.spilled(spilled, store, lambda *_: pytest.fail("it is spilled already")) == spilled


def test_what_a_full_disk_refuses_waits_in_memory_aloud(
    tmp_path: pathlib.Path, batch_of: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "FREE_BYTES_MIN", 0)
    store, write, files = open_store(str(tmp_path)), os.pwrite, SpillFiles(1 << 20)

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if str(tmp_path) in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    def spill(text: str) -> Batch:
        return files.put(store, lambda file: spill_strings(batch_of([text]), file, COLUMNS))

    batches = [spill("on the disk")]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        batches.append(spill("in memory"))
    batches.append(spill("there too, until that file is full"))
    assert [batch.scratch.is_memory for batch in batches if batch.scratch is not None] == [False, True, True]
    texts = SpilledStrings(batches, COLUMNS).column("text", 0, 3).to_pylist()
    assert texts == ["on the disk", "in memory", "there too, until that file is full"]
