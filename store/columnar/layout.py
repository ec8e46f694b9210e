"""Where the rows of ORC and Arrow IPC lie in a file: stripes and record batches, found without decoding a column.

Formats: ORC v1 (https://orc.apache.org/specification/ORCv1/, "File Tail") and Arrow's "IPC Streaming Format" and "IPC
File Format" (https://arrow.apache.org/docs/format/Columnar.html). Both are read by offsets that the file declares, so
each is compared with the file's size before it is used.
"""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

#: Bytes of a file's footer and of one message's metadata, and how many groups a file has.
FOOTER_BYTES_MAX: Final = 64 << 20
METADATA_BYTES_MAX: Final = 64 << 20
GROUPS_MAX: Final = 1 << 20
#: Bytes of a decompressed block of a footer.
BLOCK_BYTES_MAX: Final = 64 << 20
#: Bytes that are read at once where headers are looked at.
_WINDOW_BYTES: Final = 64 << 10

#: Up to so many bytes from a place; fewer only at the end.
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are decoded together: where their bytes begin, how many bytes and rows. `order`: among all messages."""

    at: int
    size: int
    rows: int
    order: int = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """What an Arrow file or stream is made of: byte ranges. The schema of a file stands in its footer; None here."""

    schema: RowGroup | None
    dictionaries: tuple[RowGroup, ...]
    batches: tuple[RowGroup, ...]


class ReadWindow:
    """Reads small things one after another with few questions."""

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at, self.size = read_at, size
        self._at, self._data = 0, b""

    def bytes_at(self, at: int, size: int) -> bytes:
        """So many bytes. Raises ValueError where the file does not have them."""
        if at < 0 or size < 0 or at + size > self.size:
            raise ValueError(f"{size} bytes are named at byte {at}, of {self.size}")
        begin = at - self._at
        if not 0 <= begin <= begin + size <= len(self._data):
            self._at, self._data = at, self._read_at(at, max(size, min(_WINDOW_BYTES, self.size - at)))
            begin = 0
        found = self._data[begin : begin + size]
        if len(found) < size:
            raise ValueError(f"only {len(found)} of {size} bytes are at byte {at}")
        return found


def _check_apart(groups: list[RowGroup]) -> None:
    """Raise ValueError where two have a byte in common: a million of them may lie at one place."""
    held = sorted((group.at, group.at + group.size) for group in groups if group.size)
    for (_, end), (at, _) in itertools.pairwise(held):
        if at < end:
            raise ValueError(f"byte {at} is named twice by its footer")


# -- ORC --

_ORC_MAGIC: Final = b"ORC"
#: Fields by their numbers: of the postscript, of the footer, of a stripe.
_FOOTER_LENGTH, _COMPRESSION, _BLOCK_SIZE, _METADATA_LENGTH = 1, 2, 3, 5
_STRIPES: Final = 3
_OFFSET, _INDEX_LENGTH, _DATA_LENGTH, _STRIPE_FOOTER_LENGTH, _ROWS = 1, 2, 3, 4, 5
_MOST: Final = 1 << 62


def stripes_of(read_at: ReadAt, size: int) -> list[RowGroup]:
    """The stripes of an ORC file of so many bytes. Raises ValueError with what is wrong."""
    window = ReadWindow(read_at, size)
    if size < len(_ORC_MAGIC) + 2:
        raise ValueError(f"it has {size} bytes, too few for any")
    length = window.bytes_at(size - 1, 1)[0]
    postscript = window.bytes_at(size - 1 - length, length)
    if not postscript.endswith(_ORC_MAGIC):
        raise ValueError("no ORC has its last bytes; it may be cut off")
    says = {number: value for number, value in _fields(postscript) if isinstance(value, int)}
    footer_size = says.get(_FOOTER_LENGTH, 0)
    if footer_size + length + 1 > size or footer_size > FOOTER_BYTES_MAX:
        raise ValueError(f"its footer says it has {footer_size} bytes, of {size}")
    stored = window.bytes_at(size - 1 - length - footer_size, footer_size)
    codec, block = says.get(_COMPRESSION, 0), min(says.get(_BLOCK_SIZE) or 256 << 10, BLOCK_BYTES_MAX)
    found: list[RowGroup] = []
    for number, value in _fields(_unpacked(stored, codec, block)):
        if number == _STRIPES and isinstance(value, bytes):
            found.append(_stripe(value, len(found), size))
            if len(found) > GROUPS_MAX:
                raise ValueError(f"it has more than {GROUPS_MAX:,} stripes")
    _check_apart(found)
    return found


def _stripe(data: bytes, index: int, size: int) -> RowGroup:
    says = {number: value for number, value in _fields(data) if isinstance(value, int)}
    stored = sum(says.get(field, 0) for field in (_INDEX_LENGTH, _DATA_LENGTH, _STRIPE_FOOTER_LENGTH))
    at, rows = says.get(_OFFSET, 0), says.get(_ROWS, 0)
    if at + stored > size or rows > _MOST:
        raise ValueError(f"stripe {index} has {rows} rows in {stored} bytes at byte {at}, of {size}")
    return RowGroup(at, stored, rows)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message of protocol buffers, by number. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            length, at = _varint(data, at)
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"a field of its footer has {length} bytes, of {len(data) - at}")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of its footer has no end")


def _unpacked(stored: bytes, codec: int, block: int) -> bytes:
    """Blocks behind headers of three bytes: a length, doubled, and whether the block is as it was."""
    if codec == 0:
        return stored
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise ValueError(f"its compression is of kind {codec}, which is not read")
    parts: list[bytes] = []
    at = 0
    while at < len(stored):
        header = int.from_bytes(stored[at : at + 3], "little")
        part = stored[at + 3 : at + 3 + (header >> 1)]
        if len(part) < header >> 1:
            raise ValueError("a block of its footer is cut off")
        at += 3 + len(part)
        parts.append(part if header & 1 else unpack(part, block))
    return b"".join(parts)


def _inflated(data: bytes, limit: int) -> bytes:
    try:
        return zlib.decompressobj(-15).decompress(data, limit)
    except zlib.error as error:
        raise ValueError(f"its footer is no deflate: {error}") from error


def _snappy(data: bytes, limit: int) -> bytes:
    length, _ = _varint(data, 0)
    return _by_codec("snappy", data, length, limit)


def _lz4(data: bytes, limit: int) -> bytes:
    return _by_codec("lz4_raw", data, _lz4_length(data), limit)


def _lz4_length(data: bytes) -> int:
    """Bytes that a block of LZ4 unpacks to: literals and matches, one after another. Raises ValueError."""
    at = total = 0

    def more(count: int) -> int:
        nonlocal at
        while count >= 15 and at < len(data):
            byte = data[at]
            at, count = at + 1, count + byte
            if byte < 255:
                break
        return count

    while at < len(data):
        token = data[at]
        at += 1
        literals = more(token >> 4)
        at, total = at + literals, total + literals
        if at >= len(data):
            break
        at += 2
        total += more(token & 15) + 4
    if at != len(data):
        raise ValueError("a block of LZ4 is cut off")
    return total


def _by_codec(name: Literal["snappy", "lz4_raw"], data: bytes, length: int, limit: int) -> bytes:
    if length > limit:
        raise ValueError(f"a block of its footer says {length} bytes, of at most {limit}")
    codec: Any = pa.Codec(name)
    unpacked: bytes = codec.decompress(data, decompressed_size=length, asbytes=True)
    return unpacked


def _zstd(data: bytes, limit: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        # Arrow's `read` keeps what it set aside for ever where the stream is damaged.
        unpacked: bytes = stream.read_buffer(limit).to_pybytes()
        return unpacked


_UNPACK: Final[dict[int, Callable[[bytes, int], bytes]]] = {1: _inflated, 2: _snappy, 4: _lz4, 5: _zstd}

# -- Arrow IPC --

ARROW_MAGIC: Final = b"ARROW1"
_FEATHER_1: Final = b"FEA1"
_CONTINUES: Final = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
#: A block of a footer: its place, the bytes of its metadata, and those of its body.
_BLOCK: Final = struct.Struct("<qi4xq")


def messages_of(read_at: ReadAt, size: int) -> Messages:
    """The messages of an Arrow file or stream of so many bytes. Raises ValueError with what is wrong."""
    window = ReadWindow(read_at, size)
    head = window.bytes_at(0, min(size, 8))
    if not head:
        raise ValueError("it is empty")
    if head.startswith(_FEATHER_1):
        raise ValueError("it is Feather of version 1; write it again as version 2")
    if head.startswith(ARROW_MAGIC):
        return _of_file(window)
    return _of_stream(window)


def _of_file(window: ReadWindow) -> Messages:
    size, tail = window.size, len(ARROW_MAGIC) + 4
    end = window.bytes_at(size - tail, tail) if size >= tail + 8 else b""
    if not end.endswith(ARROW_MAGIC):
        raise ValueError("no Arrow file has its last bytes; it may be cut off")
    (length,) = struct.unpack_from("<i", end)
    if not 0 < length <= min(FOOTER_BYTES_MAX, size - tail):
        raise ValueError(f"its footer says it has {length} bytes, of {size}")
    footer = Table.root(window.bytes_at(size - tail - length, length))
    blocks = [*footer.blocks(2), *footer.blocks(3)]
    kinds = [_DICTIONARY] * len(footer.blocks(2)) + [_BATCH] * len(footer.blocks(3))
    found: dict[int, list[RowGroup]] = {_DICTIONARY: [], _BATCH: []}
    for order, ((at, metadata, body), kind) in enumerate(zip(blocks, kinds, strict=True)):
        message = _message(window, at)
        if message is None or message[0] != kind:
            raise ValueError(f"its footer names a message at byte {at}, where no such is")
        group = message[1]
        if metadata + body != group.size:
            raise ValueError(f"the message at byte {at} has {group.size} bytes, and {metadata + body} by the footer")
        found[kind].append(RowGroup(at, group.size, group.rows, order))
    _check_apart([*found[_DICTIONARY], *found[_BATCH]])
    return Messages(None, tuple(found[_DICTIONARY]), tuple(found[_BATCH]))


def _of_stream(window: ReadWindow) -> Messages:
    first = _message(window, 0)
    if first is None or first[0] != _SCHEMA:
        raise ValueError("no Arrow file or stream has its first bytes")
    found: dict[int, list[RowGroup]] = {_DICTIONARY: [], _BATCH: []}
    at, order = first[1].size, 0
    while at < window.size:
        message = _message(window, at)
        if message is None:
            break
        kind, group = message
        if kind not in found:
            raise ValueError(f"a message of kind {kind} is at byte {at}")
        found[kind].append(RowGroup(at, group.size, group.rows, order))
        at, order = at + group.size, order + 1
        if order > GROUPS_MAX:
            raise ValueError(f"it has more than {GROUPS_MAX:,} messages")
    return Messages(first[1], tuple(found[_DICTIONARY]), tuple(found[_BATCH]))


def _message(window: ReadWindow, at: int) -> tuple[int, RowGroup] | None:
    """The kind of a message, its place and its rows; None at the end of a stream. Raises ValueError."""
    prefix = window.bytes_at(at, min(8, window.size - at)) if 0 <= at <= window.size else b""
    head = 8 if prefix.startswith(_CONTINUES) else 4
    if len(prefix) < head:
        raise ValueError(f"it is cut off at byte {at}")
    (length,) = struct.unpack_from("<i", prefix, head - 4)
    if length == 0:
        return None
    if not 0 < length <= METADATA_BYTES_MAX or at + head + length > window.size:
        raise ValueError(f"the message at byte {at} says {length} bytes of metadata, of {window.size - at - head}")
    message = Table.root(window.bytes_at(at + head, length))
    kind, body = message.number(1, "<B"), message.number(3, "<q")
    if body < 0 or at + head + length + body > window.size:
        raise ValueError(f"the message at byte {at} is cut off: its body has {window.size - at} of {body} bytes")
    rows = 0
    if kind == _BATCH:
        rows = message.table(2).number(0, "<q")
        if not 0 <= rows <= _MOST:
            raise ValueError(f"the record batch at byte {at} says it has {rows} rows")
    return kind, RowGroup(at, head + length + body, rows)


class Table:
    """A table of a FlatBuffers buffer (https://flatbuffers.dev/internals/). Each place is checked before it is read."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._read("<i", at)
        self._fields_size = self._read("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """The table that a buffer is for. Raises ValueError."""
        try:
            return cls(data, struct.unpack_from("<I", data)[0])
        except struct.error as error:
            raise ValueError("its metadata is cut off") from error

    def number(self, field: int, kind: str) -> int:
        """A number; 0 where it is not there."""
        place = self._place(field)
        return self._read(kind, place) if place else 0

    def table(self, field: int) -> Table:
        """A table. Raises ValueError where it is not there."""
        place = self._place(field)
        if not place:
            raise ValueError(f"field {field} is not in its metadata")
        return Table(self._data, place + self._read("<I", place))

    def blocks(self, field: int) -> list[tuple[int, int, int]]:
        """A vector of blocks; empty where it is not there. Raises ValueError for one that is longer than its buffer."""
        place = self._place(field)
        if not place:
            return []
        begin = place + self._read("<I", place)
        count = self._read("<I", begin)
        if count > GROUPS_MAX or begin + 4 + count * _BLOCK.size > len(self._data):
            raise ValueError(f"its footer says it names {count:,} messages")
        return [_BLOCK.unpack_from(self._data, begin + 4 + at * _BLOCK.size) for at in range(count)]

    def _place(self, field: int) -> int:
        at = 4 + 2 * field
        if at + 2 > self._fields_size:
            return 0
        offset = self._read("<H", self._fields + at)
        return self._at + offset if offset else 0

    def _read(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self._data) - struct.calcsize(kind):
            raise ValueError("its metadata points out of itself")
        value: int = struct.unpack_from(kind, self._data, at)[0]
        return value


class RangeStream(io.RawIOBase):
    """Byte ranges of a file as one stream."""

    def __init__(self, read_at: ReadAt, ranges: list[tuple[int, int]]) -> None:
        super().__init__()
        self._read_at, self._left = read_at, ranges[::-1]

    def readable(self) -> bool:
        """Yes."""
        return True

    def read(self, size: int = -1) -> Any:
        """Up to `size` bytes, fewer only at the end."""
        parts: list[bytes] = []
        while self._left and size != 0:
            at, held = self._left.pop()
            part = self._read_at(at, held if size < 0 else min(held, size))
            if not part:
                break
            parts.append(part)
            if len(part) < held:
                self._left.append((at + len(part), held - len(part)))
            if size > 0:
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
