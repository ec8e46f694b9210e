"""A batch is the same behind a link, whatever its columns."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.batch import ROW, Batch, no_verdicts
from headrace.transport.frame import body_size, decode, encode
from headrace.worker.wire import batch_to_frame, frame_to_batch


def rows(count: int) -> pa.RecordBatch:
    """Columns of every kind that a stage may make: with nulls, nested, of a dictionary, of bits."""
    return pa.RecordBatch.from_pydict(
        {
            ROW: pa.array(np.arange(count)),
            "text": pa.array([None if i % 5 == 0 else "é" * (i % 33) for i in range(count)], pa.string()),
            "tokens": pa.array([[1] * (i % 9) for i in range(count)], pa.list_(pa.uint32())),
            "language": pa.array(["en", "de"] * count, pa.string()).dictionary_encode()[:count],
            "kept": pa.array([True] * count, pa.bool_()),
            "nothing": pa.nulls(count),
        }
    )


@pytest.mark.parametrize("count", [0, 1, 7, 4096])
def test_rows_arrive_as_they_were_sent(count: int) -> None:
    batch = Batch(bytes(16), "file:///x", 5, count, 0, 100, rows(count), no_verdicts())
    found = frame_to_batch(decode(encode(batch_to_frame(batch, 3))))
    assert found.rows.equals(batch.rows)
    assert (found.first, found.count, found.uri) == (5, count, "file:///x")


def test_what_stages_counted_travels_with_the_rows() -> None:
    batch = Batch(bytes(16), "file:///x", 5, 1, 0, 100, rows(1), no_verdicts(), {"upper": 1}).counted("urls", "new", 7)
    found = frame_to_batch(decode(encode(batch_to_frame(batch, 3))))
    assert (found.edits, found.counters) == ({"upper": 1}, {"urls/new": 7})


def test_a_slice_travels_without_the_rows_around_it() -> None:
    part = Batch(bytes(16), "file:///x", 5, 10, 0, 100, rows(4096).slice(100, 10), no_verdicts())
    frame = batch_to_frame(part, 3)
    assert frame_to_batch(frame).rows.equals(part.rows)
    assert body_size(frame) < 8192
