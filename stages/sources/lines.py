"""Lines of a byte range, in bounded memory whatever the file holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.stages.runtime import RAW_BYTES_MAX

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
class LineBlock:
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


def scan_lines(file: Bytes, start: int, end: int, *, block_bytes: int, line_bytes_max: int) -> Iterator[LineBlock]:
    """The lines that begin in `[start, end)`, in runs of about `block_bytes`; a line begins at `start`.

    A line above `block_bytes` comes alone. One above `line_bytes_max` may come as an overlong one: alone, and only its
    first RAW_BYTES_MAX bytes.
    """
    if start >= end:
        return
    file.seek(start)
    blocks = _Blocks(file, block_bytes)
    #: What was read of the line that begins at `position`. While lines are worked on nothing else holds their bytes.
    position, head = start, list[bytes]()
    while position < end:
        block = blocks.read()
        if not block:
            if any(head):
                yield LineBlock(position, position + _size(head), [_taken(head)])
            return
        if block.find(b"\n") < 0:
            head.append(block)
        else:
            at = position + _size(head)
            lines, carry = _split(block, end - 1 - at)
            at += len(block) - len(carry)
            del block
            head.append(lines[0])
            lines[0] = _taken(head)
            head.append(carry)
            del carry
            if len(lines[0]) > block_bytes:
                stop = position + len(lines[0]) + 1
                yield LineBlock(position, stop, [lines.pop(0)])
                position = stop
            if lines:
                yield LineBlock(position, at, lines)
            position = at
            del lines
        if _size(head) > line_bytes_max and position < end:
            overlong = _skip(blocks, head, position)
            yield overlong
            position = overlong.stop
            file.seek(position)


class _Blocks:
    """Blocks of `size` bytes of a file whose `read` may give less, as that of a compressed one does.

    A fault behind what was read of a block is raised when the next one is asked for.
    """

    def __init__(self, file: Bytes, size: int) -> None:
        self._file, self._size = file, size
        self._fault: Exception | None = None

    def read(self) -> bytes:
        """A whole block; less, or none, only at the end or before a fault."""
        parts = [self.read_some()]
        left = self._size - len(parts[0])
        while left > 0 and parts[-1]:
            try:
                parts.append(self._file.read(left))
            except Exception as error:  # noqa: BLE001 - raised again
                self._fault = error
                break
            left -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self) -> bytes:
        """What one read gives: the file stands no further behind it than it must."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault
        return self._file.read(self._size)


def _size(parts: list[bytes]) -> int:
    return sum(map(len, parts))


def _taken(parts: list[bytes]) -> bytes:
    """The bytes of these parts in one piece; the list is empty then."""
    joined = b"".join(parts)
    parts.clear()
    return joined


def _split(block: bytes, last: int) -> tuple[list[bytes], bytes]:
    """The lines that end in a block and begin at index `last` or before, and what is behind them.

    The first may have begun before the block; it always counts, and there is one.
    """
    if last >= len(block):
        lines = block.split(b"\n")
        return lines, lines.pop()
    cut = (block.find(b"\n", max(0, last)) + 1) or (block.rfind(b"\n", 0, last) + 1)
    return block[: cut - 1].split(b"\n"), block[cut:]


def _skip(blocks: _Blocks, head: list[bytes], offset: int) -> LineBlock:
    """The prefix of the line that begins with `head`, read to its end; no line at all if it is blank."""
    size, blank, found = _size(head), all(not part or part.isspace() for part in head), -1
    prefix = bytearray(_taken(head)[:RAW_BYTES_MAX])
    while found < 0:
        block = blocks.read_some()
        if not block:
            break
        found = block.find(b"\n")
        part = block if found < 0 else block[:found]
        size += len(part)
        prefix += part[: RAW_BYTES_MAX - len(prefix)]
        blank = blank and (not part or part.isspace())
    stop = offset + size + (found >= 0)
    return LineBlock(offset, stop, [] if blank else [bytes(prefix)], 0 if blank else size)
