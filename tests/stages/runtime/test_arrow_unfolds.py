"""What a message of Arrow would come to is counted before it is believed: schemas, buffers, values that rows share."""

from __future__ import annotations

import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.stages.commands.arrow_stream import END_OF_STREAM, ArrowStream
from headrace.stages.commands.process import CommandFailedError
from headrace.stages.runtime import arrow_check
from headrace.stages.runtime.arrow_check import (
    METADATA_BYTES_MAX,
    NESTING_MAX,
    SCHEMA_FIELDS_MAX,
    UNFOLDED_BYTES_MAX,
    UnsoundArrow,
    check_messages,
    require_plain,
    sound,
)


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
        field = flat.table(f0=0, f2=1, f3=0, f5=0)
        flat.fill(vector, width, field[""])
        names.append(field["f0"])
        holder = field["f5"]
    flat.point(holder, flat.vector(0))
    for place in names:
        flat.point(place, len(flat.data))
    flat.data += struct.pack("<I", len(name)) + name + bytes(1)
    return bytes(flat.data)


def test_a_schema_of_few_fields_is_taken():
    require_plain(memoryview(schema(levels=2, width=8)))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (schema(levels=6, width=30), "more than 4096 fields"),
        (schema(levels=NESTING_MAX + 1, width=1), "within each other"),
        (schema(levels=1, width=200, name=bytes(10_000)), "names and metadata have more than"),
        (bytes(METADATA_BYTES_MAX + 1), "bytes of metadata"),
    ],
)
def test_a_schema_that_refers_to_the_same_bytes_is_refused(what: bytes, said: str):
    with pytest.raises(UnsoundArrow, match=said):
        require_plain(memoryview(what))


@pytest.mark.parametrize(
    "what",
    [
        schema(levels=1, width=SCHEMA_FIELDS_MAX),
        schema(levels=NESTING_MAX, width=1),
        schema(levels=1, width=1).ljust(METADATA_BYTES_MAX, b"\0"),
    ],
)
def test_a_schema_at_a_limit_is_taken(what: bytes):
    check_messages(b"\xff\xff\xff\xff" + struct.pack("<I", len(what)) + what + END_OF_STREAM)


PLAIN = pa.schema([("abc", pa.int64())])
#: a name of three bytes comes to seven, as each text has the bytes of its length before it
COUNTED = {
    "a name": (PLAIN, 7),
    "two names": (pa.schema([("abc", pa.int64()), ("d", pa.int64())]), 12),
    "metadata": (PLAIN.with_metadata({"k": "value"}), 7 + 5 + 9),
    "metadata of a field": (pa.schema([pa.field("abc", pa.int64(), metadata={"key": "v"})]), 7 + 7 + 5),
    "names within": (pa.schema([("abc", pa.list_(pa.field("d", pa.int64())))]), 7 + 5),
    "a time zone": (pa.schema([("abc", pa.timestamp("s", "UTC"))]), 7 + 7),
    "no time zone": (pa.schema([("abc", pa.timestamp("s"))]), 7 + 4),
    "a union": (pa.schema([("abc", pa.sparse_union([pa.field("d", pa.int64())], [9]))]), 7 + 5 + 5),
}


@pytest.mark.parametrize("what", COUNTED)
def test_each_text_of_a_schema_counts(what: str, monkeypatch: pytest.MonkeyPatch):
    given, counted = COUNTED[what]
    metadata = memoryview(given.serialize())[8:]
    monkeypatch.setattr(arrow_check, "SCHEMA_BYTES_MAX", counted)
    require_plain(metadata)
    monkeypatch.setattr(arrow_check, "SCHEMA_BYTES_MAX", counted - 1)
    with pytest.raises(UnsoundArrow, match="names and metadata have more than"):
        require_plain(metadata)


def test_a_message_is_checked_again_where_it_differs():
    good, bad = schema(levels=1, width=1), schema(levels=NESTING_MAX + 1, width=1)
    for _ in range(2):
        check_messages(b"\xff\xff\xff\xff" + struct.pack("<I", len(good)) + good + END_OF_STREAM)
        with pytest.raises(UnsoundArrow, match="within each other"):
            check_messages(b"\xff\xff\xff\xff" + struct.pack("<I", len(bad)) + bad + END_OF_STREAM)


def test_a_message_whose_fields_lie_before_it_is_refused():
    whole = bytearray(schema(levels=1, width=1))
    (at,) = struct.unpack_from("<I", whole)
    struct.pack_into("<i", whole, at, at + 1)
    with pytest.raises(UnsoundArrow, match="before its message"):
        require_plain(memoryview(whole))


def test_the_fields_of_a_message_may_lie_at_its_very_beginning():
    message = struct.pack("<IHHHHHH", 16, 0, 4, 8, 0, 0, 0) + struct.pack("<iII", 16, 3, 16)
    batch = struct.pack("<HHHHHH", 12, 8, 0, 0, 0, 4) + struct.pack("<iI", 12, 0)
    with pytest.raises(UnsoundArrow, match="compressed"):
        require_plain(memoryview(message + batch))


@pytest.mark.parametrize("field", ["f1", "f2"])
def test_a_message_without_a_header_is_refused(field: str):
    flat = Flat()
    flat.point(0, flat.table(**{field: 1, "f3": 0})[""])
    with pytest.raises(UnsoundArrow, match="a table without field"):
        require_plain(memoryview(bytes(flat.data)))


def test_a_dictionary_without_values_is_refused():
    flat = Flat()
    message = flat.table(f1=2, f2=0)
    flat.point(0, message[""])
    flat.point(message["f2"], flat.table(f0=0)[""])
    with pytest.raises(UnsoundArrow, match="a table without field 1"):
        require_plain(memoryview(bytes(flat.data)))


def test_a_command_that_announces_much_metadata_is_not_waited_for():
    with pytest.raises(CommandFailedError, match="bytes of metadata"):
        list(ArrowStream().take(b"\xff\xff\xff\xff" + struct.pack("<I", METADATA_BYTES_MAX + 8)))


def test_a_batch_whose_columns_lie_upon_one_another_is_refused():
    rows = pa.RecordBatch.from_pydict({"a": pa.array(range(64)), "b": pa.array(range(64))})
    whole = rows.serialize().to_pybytes()
    check_messages(whole)
    at = whole.rfind(struct.pack("<qq", 512, 512))
    first = whole.find(struct.pack("<qq", 0, 512))
    with pytest.raises(UnsoundArrow, match="buffers have"):
        check_messages(whole[:first] + struct.pack("<qq", 0, 1024) + whole[first + 16 :])
    for lie in (struct.pack("<qq", 0, 1024), struct.pack("<qq", 512, 513), struct.pack("<qq", 512, -1)):
        with pytest.raises(UnsoundArrow, match="buffers have"):
            check_messages(whole[:at] + lie + whole[at + 16 :])


def test_a_batch_that_has_more_buffers_than_bytes_is_refused():
    whole = pa.RecordBatch.from_pydict({"a": pa.array(range(64))}).serialize().to_pybytes()
    at = whole.find(struct.pack("<qqqq", 0, 0, 0, 512)) - 4
    assert struct.unpack_from("<I", whole, at) == (2,)
    with pytest.raises(UnsoundArrow, match="no message of Arrow: unpack_from"):
        check_messages(whole[:at] + struct.pack("<I", 1 << 31) + whole[at + 4 :])


ROWS = 1000
LONG = "t" * (UNFOLDED_BYTES_MAX // ROWS + 1)
VIEWS = np.tile(np.frombuffer(struct.pack("<i4sii", len(LONG), b"tttt", 0, 0), np.uint8), ROWS)
SHARED = {
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array([LONG])),
    "view": pa.Array.from_buffers(
        pa.string_view(), ROWS, [None, pa.py_buffer(VIEWS.tobytes()), pa.py_buffer(LONG.encode())]
    ),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([LONG])),
    "within a view of a list": pa.ListViewArray.from_arrays(
        pa.array([0, 0], pa.int32()), pa.array([1, 1], pa.int32()), pa.array([LONG])
    ),
    "within a large view of a list": pa.LargeListViewArray.from_arrays(
        pa.array([0, 0], pa.int64()), pa.array([1, 1], pa.int64()), pa.array([LONG])
    ),
    "a view within a list": pa.array([["a"]], pa.list_(pa.string_view())),
    "runs within a row": pa.StructArray.from_arrays(
        [pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"]))], names=["a"]
    ),
    "a dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([["a"]])),
    "within a list": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()), pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([LONG]))
    ),
}


@pytest.mark.parametrize("how", SHARED)
def test_rows_sharing_a_value_beyond_limits_are_refused(how: str):
    with pytest.raises(UnsoundArrow, match="write it plainly"):
        sound(pa.RecordBatch.from_arrays([SHARED[how]], names=["text"]))


@pytest.mark.parametrize("kind", [pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_rows_that_share_little_are_taken(kind: pa.DataType):
    column = pa.array(["a", None, "b" * 40], pa.string()).cast(kind)
    rows = pa.RecordBatch.from_arrays([column], names=["text"])
    assert sound(rows).to_pylist() == [{"text": "a"}, {"text": None}, {"text": "b" * 40}]


def dictionary(indices: list[int | None], values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values)


#: what the rows of a column come to; a number and a null count as the longest number
SIZES = {
    "text": (dictionary([0, 1, 1], pa.array(["a" * 10, "b" * 100])), 210),
    "bytes": (dictionary([0, 0], pa.array([b"a" * 10])), 20),
    "text of fixed size": (dictionary([0, 0], pa.array([b"aaaa"], pa.binary(4))), 8),
    "no text": (dictionary([0, 1], pa.array(["aa", None])), 2),
    "no index": (dictionary([1, None], pa.array(["aaa", "bbbb"])), 7),
    "nothing": (dictionary([None, None], pa.array([], pa.string())), 0),
    "numbers": (dictionary([0, 1, 0], pa.array([1, 2])), 96),
    "decimals": (dictionary([0], pa.array([Decimal(1)], pa.decimal128(3))), 32),
    "nulls": (dictionary([0, 0], pa.nulls(1)), 64),
    "views": (pa.array(["a" * 10, "b" * 100, None], pa.string_view()), 110),
    "some of the views": (pa.array(["a" * 10, "b" * 100, "c" * 1000], pa.string_view())[1:2], 100),
    "views of bytes": (pa.array([b"a" * 10], pa.binary_view()), 10),
    "views in a dictionary": (dictionary([0, 0], pa.array(["a" * 50], pa.string_view())), 100),
    "no views": (pa.array([], pa.string_view()), 0),
}


@pytest.mark.parametrize("what", SIZES)
def test_what_rows_come_to_is_counted_to_the_byte(what: str, monkeypatch: pytest.MonkeyPatch):
    column, size = SIZES[what]
    rows = pa.RecordBatch.from_arrays([column], names=["text"])
    monkeypatch.setattr(arrow_check, "UNFOLDED_BYTES_MAX", size)
    assert sound(rows) is rows
    monkeypatch.setattr(arrow_check, "UNFOLDED_BYTES_MAX", size - 1)
    with pytest.raises(UnsoundArrow, match="write it plainly"):
        sound(rows)


def test_a_buffer_of_views_may_be_longer_than_its_views() -> None:
    views = pa.array(["a", "b" * 9], pa.string_view()).buffers()[1].to_pybytes()
    longer = pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(views + b"xyz")])
    assert arrow_check._sizes(longer).tolist() == [1, 9]
