"""Lines of JSON from columns of text: {"id", "text", "metadata"}, as orjson writes them, but without Python strings.

A string of Python takes up to four times the memory of its UTF-8, and text is decoded and encoded only to put a few
backslashes into it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

#: What JSON cannot hold as it is and text often has. The backslash comes first, since the others bring one.
_ESCAPES = ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))
_FREQUENT = (b"\n", b"\r", b"\t")
#: Bytes below this one are control characters.
_SPACE = 0x20


def json_lines(ids: Sequence[Any], texts: pa.Array[Any], metadata: pa.Array[Any]) -> bytes:
    """A line for each row. `texts` and `metadata` are strings, the latter JSON objects, null or empty where none is."""
    parts: list[bytes | memoryview] = []
    plain = not _has_rare_controls(texts)
    for name, text, extra in zip(ids, _values(texts), _values(metadata), strict=True):
        parts += (b'{"id":', orjson.dumps(name), b',"text":', _quoted(text, plain=plain))
        if extra:
            parts += (b',"metadata":', extra)
        parts.append(b"}\n")
    return b"".join(parts)


def _quoted(value: memoryview | None, *, plain: bool) -> bytes:
    if value is None:
        return b"null"
    if not plain:
        return orjson.dumps(str(value, "utf-8"))
    text = bytes(value)
    for character, escaped in _ESCAPES:
        text = text.replace(character, escaped)
    return b'"%b"' % text


def _values(column: pa.Array[Any]) -> Iterator[memoryview | None]:
    """The values where they lie: a copy would stay beside those that are made of it."""
    buffers: Any = column.buffers()
    bounds: npt.NDArray[np.int32] = np.frombuffer(buffers[1], np.int32) if len(column) else np.zeros(1, np.int32)
    offsets: list[int] = bounds[column.offset : column.offset + len(column) + 1].tolist()
    data = memoryview(buffers[2] if buffers[2] is not None else b"")
    valid = np.asarray(column.is_valid()).tolist()
    for is_value, (low, high) in zip(valid, itertools.pairwise(offsets), strict=True):
        yield data[low:high] if is_value else None


def _has_rare_controls(column: pa.Array[Any]) -> bool:
    """Whether there may be control characters other than the frequent ones."""
    data: Any = column.buffers()[2]
    if data is None or not data.size:
        return False
    values = np.frombuffer(data, np.uint8)
    controls = int(np.count_nonzero(values < _SPACE))
    return controls != sum(int(np.count_nonzero(values == character[0])) for character in _FREQUENT)
