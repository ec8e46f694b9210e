"""The beginning of a remote shard, by one request: its header, and as many blocks as came with it."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from headrace.loader.fetch import ATTEMPTS_MAX
from headrace.store.blocks import BlockTable, read_blocks
from headrace.store.errors import FormatError
from headrace.store.header import HEADER_BYTES_MAX
from headrace.store.objects import ObjectStore, Stream, stream

#: header and pieces of a shard of the usual size
HEAD_BYTES: Final = 256 << 10


@dataclass(slots=True)
class Head:
    """The first bytes of a shard: `blocks` of them are whole and right."""

    #: where a rest is on its way, it is written over these once that is read on
    data: bytes | memoryview
    table: BlockTable
    blocks: int
    #: what follows these blocks, where it is on its way
    rest: Stream | None = None


def read_head(store: ObjectStore, key: str) -> Head | None:
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
        head = _checked(data, table)
        if head is not None:
            return head
    return None


def head_and_rest(store: ObjectStore, key: str, length: int, piece_bytes: int) -> Head | None:
    """The head of a shard of which up to `length` bytes are on their way by the same request, in pieces.

    None where the beginning is no head of right blocks: `read_head` says what it is. Raises the store's errors.
    """
    pieces = stream(store, key, 0, length, piece_bytes)
    with suppress(StopIteration, FormatError):
        data: bytes | memoryview = next(pieces)
        end = 8 + int.from_bytes(data[:8], "little")
        while len(data) < end <= HEADER_BYTES_MAX:
            data = bytes(data)
            data += next(pieces)
        table = parse_blocks(bytes(data[:end]))
        if table is not None and piece_bytes % table.block_bytes == 0:
            # whole blocks from here on
            over = max(0, len(data) - table.body) % table.block_bytes
            if over and len(data) < min(table.size, length):
                data = bytes(data)
                data += pieces.send(table.block_bytes - over)
            head = _checked(data, table)
            if head is not None:
                return Head(head.data, table, head.blocks, pieces)
    pieces.close()
    return None


def _checked(data: bytes | memoryview, table: BlockTable) -> Head | None:
    """The head with the blocks that lie in `data`, or None where one of them is not right."""
    blocks = max(0, len(data) - table.body) // table.block_bytes
    if len(data) >= table.size:
        blocks = table.count
    spans = [table.span(number, number + 1) for number in range(blocks)]
    view = memoryview(data)
    if all(table.is_right(number, view[at : at + size]) for number, (at, size) in enumerate(spans)):
        return Head(data[: table.size], table, blocks)
    return None


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
