"""Checksums of the blocks of a token shard, in its own header: what a reader of a part of it holds that part against.

The ledger has one checksum a shard, over all of its bytes, and who reads one row would have to read them all. So the
header names a digest for each block of the body (`blocks`: kind, bytes a block, digests), and its own (`header_xxh3`,
computed with zeros in its place). A header that was damaged is refused by that, and a block by its digest. Both are
guards against damage, as the whole checksum is, and not against malice: a header and a body that were exchanged
together pass here, and fail the ledger's checksum (`headrace dataset verify`). Shards of before have neither; they
are read whole. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import xxhash

from headrace.store import FormatError

#: As in `headrace.store.contract`, which reaches a network.
Buffer: TypeAlias = bytes | bytearray | memoryview

#: A row of 2,048 tokens is 4 or 8 KiB, and a block of 64 rows of the default order at most eight of these.
BLOCK_BYTES: Final = 64 << 10
#: Blocks are larger in a shard that would have more: their digests take 16 bytes each in the header.
BLOCKS_MAX: Final = 1 << 14
#: Names in the header's metadata.
BLOCKS: Final = "blocks"
HEADER_CHECK: Final = "header_xxh3"

_KIND: Final = "xxh3-64"
_DIGEST_BYTES: Final = 8
_UNSEALED: Final = f'"{HEADER_CHECK}":"{"0" * 16}"'.encode()


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Where the blocks of a shard lie, and what each must be. All in bytes from the start of the file."""

    #: where the first block begins
    body: int
    #: of the whole file
    size: int
    block_bytes: int
    #: of all blocks, end to end
    digests: bytes

    @property
    def count(self) -> int:
        """How many blocks."""
        return len(self.digests) // _DIGEST_BYTES

    def span(self, first: int, end: int) -> tuple[int, int]:
        """(offset, length) of the blocks `first` to `end`."""
        begin = self.body + first * self.block_bytes
        return begin, min(self.body + end * self.block_bytes, self.size) - begin

    def covering(self, begin: int, end: int) -> tuple[int, int]:
        """The blocks (first, end) in which the bytes `begin` to `end` of the body lie."""
        return (begin - self.body) // self.block_bytes, -(-(end - self.body) // self.block_bytes)

    def is_right(self, block: int, data: Buffer) -> bool:
        """Whether these are the block's bytes."""
        at = block * _DIGEST_BYTES
        return xxhash.xxh3_64_digest(data) == self.digests[at : at + _DIGEST_BYTES]

    def first_wrong(self, first: int, data: memoryview) -> tuple[int | None, int]:
        """(the first block whose bytes these are not, or None; how many blocks these bytes are), from `first` on."""
        size, digest = self.block_bytes, xxhash.xxh3_64_digest
        found = [digest(data[at : at + size]) for at in range(0, data.nbytes, size)]
        begin = first * _DIGEST_BYTES
        if b"".join(found) == self.digests[begin : begin + len(found) * _DIGEST_BYTES]:
            return None, len(found)
        wrong = (
            at
            for at, one in enumerate(found, first)
            if one != self.digests[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES]
        )
        return next(wrong), len(found)


def block_bytes_for(size: int) -> int:
    """Bytes a block in a shard whose body has `size` bytes."""
    block_bytes = BLOCK_BYTES
    while block_bytes * BLOCKS_MAX < size:
        block_bytes *= 2
    return block_bytes


class BlockDigests:
    """The digests of a body's blocks, whose bytes come one part after the other; `size` are all that will come."""

    __slots__ = ("_block_bytes", "_digests", "_room", "_state", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._block_bytes = self._room = block_bytes_for(size)
        self._digests: list[str] = []
        self._state = xxhash.xxh3_64()

    def add(self, part: Buffer) -> None:
        """The next bytes."""
        view = memoryview(part).cast("B")
        at = 0
        while at < view.nbytes:
            piece = view[at : at + self._room]
            self._state.update(piece)
            at, self._room = at + piece.nbytes, self._room - piece.nbytes
            if not self._room:
                self._digests.append(self._state.hexdigest())
                self._state, self._room = xxhash.xxh3_64(), self._block_bytes

    def describe(self) -> dict[str, str]:
        """The metadata of the body, to be put into its header; then `seal` that. What has not come counts as zeros."""
        digests = list(self._digests)
        if self._room < self._block_bytes:
            digests.append(self._state.hexdigest())
        missing = -(-self.size // self._block_bytes) - len(digests)
        text = "".join(digests) + "0" * (2 * _DIGEST_BYTES * missing)
        return {BLOCKS: f"{_KIND}/{self._block_bytes}/{text}", HEADER_CHECK: "0" * 16}


def describe_blocks(parts: Sequence[Buffer]) -> dict[str, str]:
    """The metadata of a body of these parts."""
    digests = BlockDigests(sum(memoryview(part).nbytes for part in parts))
    for part in parts:
        digests.add(part)
    return digests.describe()


def seal(text: bytes) -> bytes:
    """The header's text with its own digest in the place that `describe_blocks` left for it."""
    if text.count(_UNSEALED) != 1:
        raise ValueError(f"a header has one place for {HEADER_CHECK}, this one has {text.count(_UNSEALED)}")
    return text.replace(_UNSEALED, _UNSEALED.replace(b"0" * 16, xxhash.xxh3_64_hexdigest(text).encode()))


def read_blocks(text: bytes, metadata: Mapping[str, str], size: int) -> BlockTable | None:
    """The blocks of a shard of `size` bytes whose header is `text`, or None where it names none of a known kind.

    Raises FormatError where the header is not as it was written.
    """
    kind, _, rest = metadata.get(BLOCKS, "").partition("/")
    if kind != _KIND:
        return None
    seal_ = metadata.get(HEADER_CHECK, "")
    unsealed = text.replace(f'"{HEADER_CHECK}":"{seal_}"'.encode(), _UNSEALED)
    if xxhash.xxh3_64_hexdigest(unsealed) != seal_:
        raise FormatError(f"the header is damaged: its own digest is {seal_!r} and not that of its {len(text)} bytes")
    bytes_text, _, digests = rest.partition("/")
    try:
        table = BlockTable(8 + len(text), size, int(bytes_text), bytes.fromhex(digests))
    except ValueError as error:
        raise FormatError(f"the header's {BLOCKS} are malformed: {error}") from error
    blocks = -(-(size - table.body) // max(table.block_bytes, 1))
    if table.block_bytes < 1 or table.count != blocks or len(table.digests) % _DIGEST_BYTES:
        raise FormatError(
            f"the header names {table.count} blocks of {table.block_bytes} bytes, and {size - table.body} bytes "
            f"follow it, which are {blocks}; the object was cut or is another"
        )
    return table
