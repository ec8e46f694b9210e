"""Lines of a byte range, in bounded memory whatever the file holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.stages.batch import RAW_BYTES_MAX

BOM = b"\xef\xbb\xbf"


class Bytes(Protocol):
    """What lines are read from; `read` gives none only at the end."""

    def read(self, size: int = ..., /) -> bytes:
        """Up to `size` bytes."""
        ...

    def seek(self, position: int, /) -> int:
        """Go to a byte."""
        ...


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines that lie end to end, without their newlines; bytes `[offset, stop)` of the file.

    `overlong_bytes` is 0, or the size of the one line of which only a prefix is here.
    """

    offset: int
    stop: int
    lines: list[bytes]
    overlong_bytes: int = 0


def first_line_from(file: Bytes, start: int, end: int, block_bytes: int) -> int:
    """The byte at which the first line that begins at `start` or later begins; `end` or more where none does."""
    position = start - 1
    file.seek(position)
    while position < end:
        block = file.read(block_bytes)
        if not block:
            return end
        found = block.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(block)
    return end


def scan_lines(file: Bytes, start: int, end: int, *, block_bytes: int, line_bytes_max: int) -> Iterator[Lines]:
    """The lines that begin in `[start, end)`, in runs of about `block_bytes`; a line begins at `start`.

    A line above `line_bytes_max` may come as an overlong one: alone, and only its first RAW_BYTES_MAX bytes.
    """
    if start >= end:
        return
    file.seek(start)
    position, carry = start, b""
    while position < end:
        block = file.read(block_bytes)
        data = carry + block if carry else block
        if not block:
            if data:
                yield Lines(position, position + len(data), [data])
            return
        cut = _owned(data, end - 1 - position)
        carry, whole = data[cut:], data[: cut - 1].split(b"\n") if cut else []
        # While the lines are worked on nothing else holds their bytes.
        del block, data
        if cut:
            yield Lines(position, position + cut, whole)
            position += cut
        del whole
        if len(carry) > line_bytes_max and position < end:
            overlong = _pass_over(file, carry, position, block_bytes)
            yield overlong
            position, carry = overlong.stop, b""
            file.seek(position)


def _owned(data: bytes, last: int) -> int:
    """How many bytes of `data` are whole lines that begin at index `last` or before."""
    if last >= len(data):
        return data.rfind(b"\n") + 1
    return (data.find(b"\n", last) + 1) or (data.rfind(b"\n", 0, last) + 1)


def _pass_over(file: Bytes, head: bytes, offset: int, block_bytes: int) -> Lines:
    """The prefix of the line that begins with `head`, read to its end; no line at all if it is blank."""
    size, blank, found = len(head), head.isspace(), -1
    while found < 0:
        block = file.read(block_bytes)
        if not block:
            break
        found = block.find(b"\n")
        part = block if found < 0 else block[:found]
        size += len(part)
        blank = blank and (not part or part.isspace())
    stop = offset + size + (found >= 0)
    return Lines(offset, stop, [] if blank else [head[:RAW_BYTES_MAX]], 0 if blank else size)
