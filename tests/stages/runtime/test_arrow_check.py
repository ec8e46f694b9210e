"""Arrow data of others is validated in full where it enters, and what lies in it is named and not read."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.commands.arrow_stream import END_OF_STREAM, ArrowStream
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.functions.functions import MapBatches
from headrace.stages.runtime.arrow_check import ROWS_MAX, UnsoundArrow, check_messages, sound
from headrace.stages.runtime.batch import ROW, Batch, no_verdicts
from headrace.stages.runtime.errors import StageContractError
from headrace.transport.core.errors import FrameError
from headrace.transport.core.frame import decode, encode
from headrace.worker.task.codec import batch_to_frame, frame_to_batch


def message_of(rows: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


GOOD = pa.RecordBatch.from_pydict({ROW: pa.array(range(9)), "text": [f"text {at}" for at in range(9)]})


#: of the three texts of `TEXTS`
OFFSETS = (0, 4, 8, 12)
TEXTS = pa.RecordBatch.from_pydict({ROW: pa.array(range(3)), "text": ["aaaa", "bbbb", "cccc"]})


def lying(offsets: tuple[int, ...], text: bytes = b"aaaabbbbcccc") -> bytes:
    """A stream whose offsets and text are as given."""
    whole = message_of(TEXTS)
    for old, new in (
        (np.array(OFFSETS, np.int32).tobytes(), np.array(offsets, np.int32).tobytes()),
        (b"aaaabbbbcccc", text),
    ):
        assert whole.count(old) == 1
        whole = whole.replace(old, new)
    return whole


LIES = [
    lying((0, 4, 8, 1 << 20)), lying((0, 8, 4, 12)), lying((0, 1 << 30, 8, 12)), lying((-4, 4, 8, 12)),
    lying(OFFSETS, b"aaaabb\xff\xfecccc"),
]  # fmt: skip


#: Of a schema's field, the table that says that it is an interval, and of which unit: 2, the one that Python knows.
INTERVAL = bytes.fromhex("0600 0800 0600 0600 0000 0000")
SPAN = pa.array([pa.MonthDayNano((1, 2, 3))])
UNKNOWN = {
    "plain": SPAN,
    "in a list": pa.array([[SPAN[0]]], pa.list_(SPAN.type)),
    "in a struct": pa.StructArray.from_arrays([SPAN], ["span"]),
    "a dictionary": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), SPAN),
}


@pytest.mark.parametrize("unit", [0, 1])
@pytest.mark.parametrize("how", UNKNOWN)
def test_a_type_that_python_has_no_class_for_is_refused(how: str, unit: int):
    whole = message_of(pa.RecordBatch.from_arrays([UNKNOWN[how]], names=["span"]))
    assert whole.count(INTERVAL + b"\2\0") == 1
    lie = whole.replace(INTERVAL + b"\2\0", INTERVAL + bytes([unit, 0]))
    with pa.ipc.open_stream(whole) as reader:
        sound(reader.read_next_batch())
    with pa.ipc.open_stream(lie) as reader, pytest.raises(UnsoundArrow, match="which Python does not know"):
        sound(reader.read_next_batch())


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_whose_columns_lie_is_refused(lie: bytes):
    with pa.ipc.open_stream(lie) as reader, pytest.raises(UnsoundArrow, match="columns are not sound"):
        sound(reader.read_next_batch())


def test_a_dictionary_whose_indices_lie_is_refused():
    column = pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(UnsoundArrow, match="columns are not sound"):
        sound(pa.RecordBatch.from_arrays([column], names=["text"]))


def test_a_batch_of_too_many_rows_is_refused_without_bytes():
    with pytest.raises(UnsoundArrow, match=f"the limit is {ROWS_MAX}"):
        sound(pa.RecordBatch.from_arrays([pa.nulls(ROWS_MAX + 1)], names=["nothing"]))


def test_a_batch_of_as_many_rows_as_anybody_sends_is_taken():
    sound(pa.RecordBatch.from_arrays([pa.nulls(ROWS_MAX)], names=["nothing"]))


@pytest.mark.parametrize("name", [b"outside", b"inside"])
def test_a_column_or_field_name_that_is_no_text_is_refused(name: bytes):
    whole = message_of(pa.RecordBatch.from_pydict({"outside": pa.array([{"inside": 1}])}))
    assert whole.count(name) == 1
    lie = whole.replace(name, b"\xff" * len(name))
    with pa.ipc.open_stream(lie) as reader, pytest.raises(UnsoundArrow, match="columns are not sound"):
        sound(reader.read_next_batch())


def test_a_message_that_is_compressed_is_refused_before_it_is_unpacked():
    check_messages(message_of(GOOD))
    with pytest.raises(UnsoundArrow, match="compressed"):
        check_messages(message_of(GOOD, "zstd"))


@pytest.mark.parametrize(
    "rows",
    [
        GOOD,
        # behind the field that would say that it is compressed, this one has another
        pa.RecordBatch.from_arrays([pa.array(["a", "b" * 40], pa.string_view())], names=["text"]),
        pa.RecordBatch.from_arrays([pa.array(["a", "b"]).dictionary_encode()], names=["text"]),
        pa.RecordBatch.from_arrays([pa.nulls(3)], names=["nothing"]),
    ],
)
def test_plain_messages_are_taken_with_and_without_an_end(rows: pa.RecordBatch):
    check_messages(message_of(rows))
    check_messages(message_of(rows)[: -len(END_OF_STREAM)])
    check_messages(message_of(rows) + b"what lies behind the end is never read")


@pytest.mark.parametrize("cut", [1, 7, 8, 16])
def test_a_stream_that_ends_within_a_body_is_refused(cut: int):
    with pytest.raises(UnsoundArrow, match="a message says that it has"):
        check_messages(message_of(GOOD)[: -len(END_OF_STREAM) - cut])


@pytest.mark.parametrize("cut", [1, 4, 5, 7])
def test_a_stream_that_ends_within_the_beginning_of_a_message_is_refused(cut: int):
    with pytest.raises(UnsoundArrow, match="no message of Arrow at byte"):
        check_messages(message_of(GOOD)[:-cut])


def test_a_dictionary_that_is_compressed_is_refused():
    words = pa.array(["word " * 100]).dictionary_encode()
    whole = message_of(pa.RecordBatch.from_arrays([words], names=["text"]), "zstd")
    schema = len(pa.schema([("text", words.type)]).serialize())
    first = pa.ipc.MessageReader.open_stream(whole[schema:]).read_next_message()
    assert first.type == "dictionary"
    with pytest.raises(UnsoundArrow, match="compressed"):
        check_messages(first.serialize())


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("borrow", [False, True])
def test_a_frame_of_another_worker_whose_columns_lie_is_no_batch(lie: bytes, borrow: bool):
    frame = batch_to_frame(Batch(bytes(16), "file:///x", 0, 3, 0, 1, TEXTS, no_verdicts()), 1)
    sent = encode(frame)
    assert sent.count(message_of(TEXTS)) == 1
    with pytest.raises(FrameError, match="holds no batch"):
        frame_to_batch(decode(sent)._replace(body=lie), borrow=borrow)


@pytest.mark.parametrize("lie", LIES)
def test_a_command_whose_columns_lie_fails(lie: bytes):
    with pytest.raises(CommandFailedError, match="no Arrow stream"):
        list(ArrowStream().take(lie))


def test_a_function_whose_columns_lie_breaks_its_contract():
    with pa.ipc.open_stream(LIES[0]) as reader:
        rows = reader.read_next_batch()
    stage = MapBatches("mine", "json:loads")
    stage.function = lambda _: rows
    with pytest.raises(StageContractError, match=r"its function returned a batch of 3 rows whose columns are not"):
        stage.answer(Batch(bytes(16), "file:///x", 0, 3, 0, 1, TEXTS, no_verdicts()))


def test_any_byte_of_a_message_gives_rows_or_named_errors():
    whole = bytearray(message_of(GOOD))
    for at in range(len(whole)):
        whole[at] ^= 0xFF
        try:
            for rows in ArrowStream().take(bytes(whole)):
                read_all(rows)
        except CommandFailedError:
            pass
        whole[at] ^= 0xFF


def read_all(rows: pa.RecordBatch) -> None:
    """Touch every byte that the columns name."""
    for column in rows.columns:
        column.to_pylist()


@pytest.mark.parametrize("options", [{"use_legacy_format": True}, {"use_legacy_format": True, "compression": "zstd"}])
def test_messages_before_arrow_0_15_are_refused_unseen(
    options: dict[str, object],
) -> None:
    rows, sink = pa.record_batch({"a": [7] * 10_000}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(rows)
    with pytest.raises(UnsoundArrow, match="no message of Arrow at byte 0"):
        check_messages(sink.getvalue())
