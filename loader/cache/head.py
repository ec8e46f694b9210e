"""The beginning of a remote shard, by one request: its header, and as many blocks as came with it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from headrace.loader.cache.fetch import ATTEMPTS_MAX
from headrace.store import FormatError, ObjectStore, Stream, stream
from headrace.store.shards import HEADER_BYTES_MAX, BlockTable, read_blocks

#: header and pieces of a shard of the usual size
HEAD_BYTES: Final = 256 << 10
#: the header of one, which comes first where more follows
HEADER_BYTES: Final = 16 << 10


@dataclass(slots=True)
class ShardHead:
    """The first bytes of a shard: `blocks` of them are whole and right."""

    #: from the shard's first byte on; the stream of a rest writes over the last of them when it goes on
    parts: list[memoryview]
    table: BlockTable
    blocks: int
    #: what follows these blocks, where it is on its way
    rest: Stream | None = None

    @property
    def size(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self.parts)


def read_head(store: ObjectStore, key: str) -> ShardHead | None:
    """The head of a shard, or None where it has no checksums of its blocks that can be trusted.

    Such a shard is read whole, and its checksum decides. Raises the store's errors.
    """
    for _ in range(ATTEMPTS_MAX):
        data = store.get(key, 0, HEAD_BYTES)
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > HEADER_BYTES_MAX:
            return None
        if len(data) < 8 + length:
            data += store.get(key, len(data), 8 + length - len(data))
        try:
            table = parse_blocks(data[: 8 + length])
        except FormatError:
            continue
        if table is None:
            return None
        data = data[: table.size]
        blocks = _whole_blocks(table, len(data))
        if _are_right(table, 0, blocks, memoryview(data)[table.body :]):
            return ShardHead([memoryview(data)], table, blocks)
    return None


def head_and_rest(store: ObjectStore, key: str, length: int, piece_bytes: int) -> ShardHead | None:
    """The head of a shard of which up to `length` bytes are on their way by the same request, in pieces.

    None where the beginning is no head of right blocks: `read_head` says what it is. Raises the store's errors.
    """
    pieces = stream(store, key, 0, length, piece_bytes, HEADER_BYTES)
    with suppress(StopIteration, FormatError):
        data = bytes(next(pieces))
        end = 8 + int.from_bytes(data[:8], "little")
        if len(data) < end <= min(length, HEADER_BYTES_MAX):
            data += _more(pieces, end - len(data), piece_bytes)
        table = parse_blocks(data[:end])
        if table is not None and piece_bytes % table.block_bytes == 0:
            head = _with_blocks(data, table, pieces, min(table.size, length), piece_bytes)
            if head is not None:
                return head
    pieces.close()
    return None


def _more(pieces: Stream, size: int, piece_bytes: int) -> bytes:
    """The next `size` bytes, which may be more than one piece. Raises StopIteration where there are fewer."""
    found = b""
    while len(found) < size:
        found += pieces.send(min(size - len(found), piece_bytes))
    return found


def _with_blocks(data: bytes, table: BlockTable, pieces: Stream, end: int, piece_bytes: int) -> ShardHead | None:
    """The head that begins with `data`, with whole blocks up to some piece behind it, of which `end` is the last byte.

    None where a block is not right. What comes last of it is not copied.
    """
    over = max(0, len(data) - table.body) % table.block_bytes
    if over and len(data) < end:
        data += _more(pieces, min(table.block_bytes - over, end - len(data)), piece_bytes)
    data = data[: table.size]
    parts, first = [memoryview(data)], _whole_blocks(table, len(data))
    is_right = _are_right(table, 0, first, parts[0][table.body :])
    left = end - len(data)
    room = (piece_bytes - len(data)) // table.block_bytes * table.block_bytes
    if is_right and left > 0 and room > 0:
        parts.append(pieces.send(min(room, left)))
        is_right = _are_right(table, first, _whole_blocks(table, len(data) + parts[1].nbytes), parts[1])
    blocks = _whole_blocks(table, sum(part.nbytes for part in parts))
    return ShardHead(parts, table, blocks, pieces) if is_right else None


def _whole_blocks(table: BlockTable, size: int) -> int:
    """How many blocks lie in the first `size` bytes."""
    return table.count if size >= table.size else max(0, size - table.body) // table.block_bytes


def _are_right(table: BlockTable, first: int, end: int, data: memoryview) -> bool:
    """Whether `data` begins with the blocks `first` to `end`."""
    size = table.block_bytes
    return all(table.is_right(first + at, data[at * size : (at + 1) * size]) for at in range(end - first))


def parse_blocks(data: bytes) -> BlockTable | None:
    """The blocks that a shard's first bytes, up to its header's end, name.

    Raises FormatError, also where the header is damaged.
    """
    text = data[8:]
    try:
        header = orjson.loads(text)
        metadata = {str(name): str(value) for name, value in header.pop("__metadata__", {}).items()}
        end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise FormatError(f"a header of {len(text)} bytes is malformed: {type(error).__name__} {error}") from error
    return read_blocks(text, metadata, len(data) + end)
