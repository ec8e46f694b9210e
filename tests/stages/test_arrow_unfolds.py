"""What a message of Arrow would come to is counted before it is believed: schemas, buffers, values that rows share."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.arrow_check import (
    METADATA_BYTES_MAX,
    NESTING_MAX,
    UNFOLDED_BYTES_MAX,
    UnsoundArrow,
    check_messages,
    require_plain,
    sound,
)
from headrace.stages.arrow_stream import ArrowStream
from headrace.stages.command_process import CommandFailedError


class Flat:
    """A flatbuffer, from its front on: what is referred to comes later."""

    def __init__(self) -> None:
        self.data = bytearray(4)

    def table(self, **fields: int) -> dict[str, int]:
        """A table whose fields f0, f1, ... have 8 bytes each; where each of them lies."""
        numbers = {name: int(name[1:]) for name in fields}
        offsets = [0] * (max(numbers.values()) + 1)
        for place, name in enumerate(fields):
            offsets[numbers[name]] = 8 + 8 * place
        self.data += b"\0" * (-len(self.data) % 8)
        begin = len(self.data)
        self.data += struct.pack(f"<HH{len(offsets)}H", 4 + 2 * len(offsets), 8 + 8 * len(fields), *offsets)
        self.data += b"\0" * (-len(self.data) % 8)
        at = len(self.data)
        self.data += struct.pack("<iI", at - begin, 0) + b"".join(struct.pack("<q", value) for value in fields.values())
        return {"": at} | {name: at + 8 + 8 * place for place, name in enumerate(fields)}

    def point(self, at: int, to: int) -> None:
        struct.pack_into("<I", self.data, at, to - at)

    def vector(self, count: int) -> int:
        """Where a vector of references lies, which are not set yet."""
        self.data += struct.pack("<I", count) + bytes(4 * count)
        return len(self.data) - 4 * count - 4

    def fill(self, vector: int, count: int, to: int) -> None:
        """Have all of its references refer to one thing."""
        for place in range(count):
            self.point(vector + 4 + 4 * place, to)


def schema(*, levels: int, width: int, name: bytes = b"a") -> bytes:
    """A message with a schema of width^levels fields, all of which have the one name."""
    flat = Flat()
    message = flat.table(f0=4, f1=1, f2=0, f3=0)
    flat.point(0, message[""])
    table = flat.table(f1=0)
    flat.point(message["f2"], table[""])
    holder, names = table["f1"], list[int]()
    for _ in range(levels):
        vector = flat.vector(width)
        flat.point(holder, vector)
        field = flat.table(f0=0, f5=0)
        flat.fill(vector, width, field[""])
        names.append(field["f0"])
        holder = field["f5"]
    flat.point(holder, flat.vector(0))
    for place in names:
        flat.point(place, len(flat.data))
    flat.data += struct.pack("<I", len(name)) + name + bytes(1)
    return bytes(flat.data)


def test_a_schema_of_few_fields_is_taken():
    require_plain(schema(levels=2, width=8))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (schema(levels=6, width=30), "more than 4096 fields"),
        (schema(levels=NESTING_MAX + 1, width=1), "within each other"),
        (schema(levels=1, width=200, name=bytes(10_000)), "names and metadata have more than"),
        (bytes(METADATA_BYTES_MAX + 1), "bytes of metadata"),
    ],
)
def test_a_schema_that_refers_to_the_same_bytes_again_and_again_is_refused(what: bytes, said: str):
    with pytest.raises(UnsoundArrow, match=said):
        require_plain(what)


def test_a_command_that_announces_much_metadata_is_not_waited_for():
    with pytest.raises(CommandFailedError, match="bytes of metadata"):
        list(ArrowStream().take(b"\xff\xff\xff\xff" + struct.pack("<I", METADATA_BYTES_MAX + 8)))


def test_a_batch_whose_columns_lie_upon_one_another_is_refused():
    rows = pa.RecordBatch.from_pydict({"a": pa.array(range(64)), "b": pa.array(range(64))})
    whole = rows.serialize().to_pybytes()
    check_messages(whole)
    at = whole.rfind(struct.pack("<qq", 512, 512))
    with pytest.raises(UnsoundArrow, match="buffers have"):
        check_messages(whole[:at] + struct.pack("<qq", 0, 1024) + whole[at + 16 :])


ROWS = 1000
LONG = "t" * (UNFOLDED_BYTES_MAX // ROWS + 1)
VIEWS = np.tile(np.frombuffer(struct.pack("<i4sii", len(LONG), b"tttt", 0, 0), np.uint8), ROWS)
SHARED = {
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([LONG])),
    "view": pa.Array.from_buffers(
        pa.string_view(), ROWS, [None, pa.py_buffer(VIEWS.tobytes()), pa.py_buffer(LONG.encode())]
    ),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([LONG])),
    "within a list": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([LONG]))
    ),
}


@pytest.mark.parametrize("how", SHARED)
def test_rows_that_share_a_value_are_refused_where_they_come_to_too_much(how: str):
    with pytest.raises(UnsoundArrow, match="write it plainly"):
        sound(pa.RecordBatch.from_arrays([SHARED[how]], names=["text"]))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_rows_that_share_little_are_taken(kind: pa.DataType):
    column = pa.array(["a", None, "b" * 40], pa.string()).cast(kind)
    rows = pa.RecordBatch.from_arrays([column], names=["text"])
    assert sound(rows).to_pylist() == [{"text": "a"}, {"text": None}, {"text": "b" * 40}]
