"""A batch is the same behind a link, whatever its columns."""

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.runtime.batch import ROW, Batch, make_verdicts, no_verdicts
from headrace.transport.core.errors import FrameError
from headrace.transport.core.frame import Frame, FrameKind, body_size, decode, encode
from headrace.worker.task.codec import batch_to_frame, frame_to_batch


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


def frame(facts: object, body: bytes) -> Frame:
    return Frame(FrameKind.DATA, 1, bytes(16), 5, 2, metadata=msgpack.packb(facts), body=body)


def stream(table: pa.RecordBatch, batches: int = 1, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(table)
    return bytes(sink.getvalue().to_pybytes())


FACTS = ["file:///x", 0, 9, {"upper": 1}, {"urls/new": 7}, b""]
GOOD = stream(rows(2))


def test_a_frame_of_another_task_is_a_batch() -> None:
    assert frame_to_batch(frame(FACTS, GOOD)).rows.equals(rows(2))


@pytest.mark.parametrize(
    "facts",
    [
        None,
        FACTS[:5],
        [7, *FACTS[1:]],
        [*FACTS[:1], "0", *FACTS[2:]],
        [*FACTS[:1], True, *FACTS[2:]],
        [*FACTS[:3], [], *FACTS[4:]],
        [*FACTS[:3], {"upper": "1"}, *FACTS[4:]],
        [*FACTS[:4], {b"new": 1}, *FACTS[5:]],
        [*FACTS[:5], 7],
        [*FACTS[:5], GOOD],
    ],
)
def test_a_frame_that_says_other_things_of_a_batch_is_refused(facts: object) -> None:
    with pytest.raises(FrameError, match="holds no batch"):
        frame_to_batch(frame(facts, GOOD))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        GOOD[: len(GOOD) // 2],
        stream(rows(2), batches=0),
        stream(pa.record_batch({"text": ["a"]})),
        stream(pa.record_batch({ROW: ["a"]})),
        stream(pa.record_batch({ROW: pa.array([1, None], pa.int64())})),
        stream(pa.record_batch({ROW: pa.array([7] * 10_000)}), compression="zstd"),
        stream(pa.record_batch({ROW: pa.array([7] * 10_000)}), compression="zstd", use_legacy_format=True),
        stream(rows(2), use_legacy_format=True),
    ],
    ids=["nothing", "half", "no batch", "no row", "words", "null", "packed", "packed before 0.15", "before 0.15"],
)
def test_rows_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="holds no batch"):
        frame_to_batch(frame(FACTS, body))


def verdicts(*names: tuple[bytes | None, int | None]) -> pa.RecordBatch:
    """A verdict for each of these names of records."""
    made = make_verdicts(
        rows=pa.array(range(len(names)), pa.int64()), ids=pa.nulls(len(names), pa.string()), stage="dedup",
        verdict="duplicate", reasons=[None] * len(names),
    )  # fmt: skip
    for column, kind, values in (
        ("named_fragment", pa.binary(), [fragment for fragment, _ in names]),
        ("named_row", pa.int64(), [row for _, row in names]),
        ("named_settled", pa.bool_(), [None if fragment is None else row == 0 for fragment, row in names]),
    ):
        made = made.set_column(made.schema.get_field_index(column), column, pa.array(values, kind))
    return made


def test_what_a_duplicate_names_travels_with_its_verdict() -> None:
    lost = verdicts((b"a" * 16, 7), (None, None), (b"b" * 16, 0))
    batch = Batch(bytes(16), "file:///x", 0, 3, 0, 100, rows(0), lost)
    assert frame_to_batch(decode(encode(batch_to_frame(batch, 3)))).verdicts.equals(lost)


@pytest.mark.parametrize("name", [(b"a" * 16, None), (None, 7), (b"a" * 15, 7), (b"a" * 16, -1), (b"a" * 16, 1 << 40)])
def test_a_frame_whose_duplicates_name_no_record_is_refused(name: tuple[bytes | None, int | None]) -> None:
    facts = [*FACTS[:-1], stream(verdicts((b"a" * 16, 7), name))]
    with pytest.raises(FrameError, match="it has duplicates that name"):
        frame_to_batch(frame(facts, GOOD))


def test_a_frame_whose_duplicates_are_neither_settled_nor_not_is_refused() -> None:
    lost = verdicts((b"a" * 16, 7))
    at = lost.schema.get_field_index("named_settled")
    lost = lost.set_column(at, "named_settled", pa.nulls(1, pa.bool_()))
    with pytest.raises(FrameError, match="neither settled nor not"):
        frame_to_batch(frame([*FACTS[:-1], stream(lost)], GOOD))
