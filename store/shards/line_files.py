"""The `.jsonl.zst` file of a shard: a line of JSON for each kept record, unfolded a piece at a time.

Whoever wrote the dataset says how much there is: a kilobyte of zstd unfolds to a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

import pyarrow as pa
import zstandard

from headrace.store import FormatError, ObjectStore

#: Bytes of a line: a sink writes records, and none is longer.
LINE_BYTES_MAX: Final = 1 << 30
#: Bytes that a file may unfold to: so many, and so many times as many as are stored.
UNFOLDED_BYTES_FREE, UNFOLDED_A_STORED = 1 << 30, 2048
_READ_BYTES: Final = 1 << 20


def read_lines(store: ObjectStore, key: str) -> Iterator[bytes]:
    """The lines of an object, each with its end. Raises FormatError, StoreError."""
    path = store.open_local(key)
    data = store.get(key) if path is None else None
    stored = path.stat().st_size if path is not None else memoryview(cast("Any", data)).nbytes
    raw: Any = path.open("rb") if path is not None else pa.BufferReader(data)
    try:
        with raw:
            yield from _cut(raw, UNFOLDED_BYTES_FREE + UNFOLDED_A_STORED * stored)
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"{store.uri}: {key!r} is not readable JSON Lines: {error}; restore it") from error


def _cut(raw: Any, bytes_max: int) -> Iterator[bytes]:
    """Raises ZstdError, ValueError."""
    stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    parts, held, total = list[bytes](), 0, 0
    while data := stream.read(_READ_BYTES):
        total += len(data)
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield b"".join((*parts, line, b"\n"))
            parts, held = [], 0
        parts, held = [*parts, rest] if rest else parts, held + len(rest)
        if held > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX:,} bytes")
        if total > bytes_max:
            raise ValueError(f"it unfolds to more than {bytes_max:,} bytes")
    if parts:
        yield b"".join(parts)
