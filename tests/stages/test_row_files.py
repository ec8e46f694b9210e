"""What is left of a shelved batch lies in a file that is mapped, and reads as if it were in memory."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages import row_files
from headrace.stages.batch import Batch
from headrace.stages.row_files import RowFiles
from headrace.store.scratch import Scratch

MakeBatch = Callable[..., Batch]


@pytest.fixture
def new(tmp_path: pathlib.Path) -> Callable[[], Scratch]:
    return partial(Scratch.on_disk, str(tmp_path))


def large(batch_of: MakeBatch, first: int = 0) -> Batch:
    """Four hundred records, a quarter of them filtered: rows and verdicts are above the least that is mapped."""
    batch = batch_of([f"text {row}" * 3 for row in range(first, first + 400)], first=first)
    mask = np.arange(400) % 4 > 0
    batch = batch.keep(mask, "fourth", [None if kept else "one of four: for no other reason" for kept in mask])
    assert min(batch.rows.nbytes, batch.verdicts.nbytes) >= row_files.ROWS_BYTES_MIN
    return batch


def test_rows_and_verdicts_are_in_the_file_and_equal(batch_of: MakeBatch, new: Callable[[], Scratch]) -> None:
    files = RowFiles()
    batches = [large(batch_of, first) for first in range(0, 4000, 400)]
    before = pa.total_allocated_bytes()
    put = [files.put(batch, new) for batch in batches]
    assert pa.total_allocated_bytes() == before
    for _ in range(2):
        for batch, mapped in zip(batches, put, strict=True):
            assert mapped.rows.equals(batch.rows)
            assert mapped.verdicts.equals(batch.verdicts)
            mapped.rows.validate(full=True)
        files.forget()


def test_a_part_of_the_rows_is_cut_out_as_of_any(batch_of: MakeBatch, new: Callable[[], Scratch]) -> None:
    batch = large(batch_of)
    mapped = RowFiles().put(batch, new)
    assert mapped.rows.slice(17, 90).equals(batch.rows.slice(17, 90))


def test_what_was_put_outlives_the_shelf_and_its_files(batch_of: MakeBatch, new: Callable[[], Scratch]) -> None:
    batch = large(batch_of)
    files = RowFiles()
    mapped = files.put(batch, new)
    del files
    assert mapped.rows.equals(batch.rows)


def test_a_file_that_is_full_is_followed_by_another(
    batch_of: MakeBatch, new: Callable[[], Scratch], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Scratch] = []

    def counted() -> Scratch:
        made.append(new())
        return made[-1]

    monkeypatch.setattr(row_files, "ROOM_BYTES", 1 << 17)
    files = RowFiles()
    batches = [large(batch_of, first) for first in range(0, 8000, 400)]
    put = [files.put(batch, counted) for batch in batches]
    assert len(made) > 2
    files.forget()
    assert all(mapped.rows.equals(batch.rows) for batch, mapped in zip(batches, put, strict=True))


def test_small_tables_and_those_that_no_file_takes_stay_where_they_are(
    batch_of: MakeBatch, new: Callable[[], Scratch], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, batch = batch_of(["a", "b"]), large(batch_of)
    assert RowFiles().put(small, new).rows is small.rows
    assert RowFiles().put(batch, Scratch.in_memory).rows is batch.rows
    names = [*batch.rows.schema.names, "of few"]
    odd = pa.array(["x"] * batch.rows.num_rows).dictionary_encode()
    rows = pa.RecordBatch.from_arrays([*batch.rows.columns, odd], names=names)
    assert RowFiles().put(replace(batch, rows=rows), new).rows is rows
    monkeypatch.setattr(row_files, "ROOM_BYTES", 1 << 12)
    assert RowFiles().put(batch, new).rows is batch.rows


def test_a_full_disk_leaves_rows_in_memory(batch_of: MakeBatch) -> None:
    batch = large(batch_of)

    def full() -> Scratch:
        raise OSError(28, "No space left on device")

    assert RowFiles().put(batch, full).rows is batch.rows
