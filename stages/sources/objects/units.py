"""Compressed files of many units, cut among tasks: members of gzip, frames of zstd, streams of bzip2.

A cut is a stored byte. A fragment has the units that begin in its range, so its task must find the first of them: it
looks for a unit before the cut (the magic, and then nothing unsound) and walks from there. Stored data may hold a whole
gzip file, but not unbroken for CHAIN_BYTES: so a walk that comes so far is on the true chain. The task before it knows
that chain from the first byte on, and compares: where the two disagree, the file cannot be cut, and the run says so.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any, Final

from headrace.stages.sources.objects.unpack import Pieces, Raw, Truncated

#: Bytes that are looked at to see whether a file has several units.
LOOK_BYTES: Final = 256 << 10
#: Bytes that a walk has to come: a block of gzip has 64 KiB of stored data at most, one of zstd 128 KiB.
CHAIN_BYTES: Final = 256 << 10
#: Bytes before a cut where a unit is looked for first; then in sixteen times as many, and so on.
BACK_BYTES: Final = 1 << 20
#: Walks from one cut that break: more of them are no chance.
TRIES_MAX: Final = 1000
#: Bytes before a cut where a unit is looked for at most.
BACK_BYTES_MAX: Final = 256 << 20
#: Plain bytes of all walks to one cut: more come of a bomb, or of one unit without end.
WALK_BYTES_MAX: Final = 4 << 30
#: Plain bytes that a step gives at most.
_STEP_BYTES: Final = 128 << 10
_READ_BYTES: Final = 64 << 10
_ZSTD_BYTES: Final = 1 << 10
_MAGIC: Final = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh"}
#: What follows the magic and the size of a stream of bzip2.
_BZIP2_BLOCK: Final = b"1AY&SY"
_SKIPPABLE: Final = (b"\x2a\x4d\x18", 0x50, 0x60)

#: Gives bytes of the object from a byte on, fewer only at its end.
Fetch = Callable[[int, int], bytes]


class NoCut(OSError):  # noqa: N818 (named for what is so)
    """The file cannot be cut here."""


class Walk:
    """Units end to end, from one that begins at the stored byte `at`. `read` gives bytes from where it stands."""

    def __init__(self, read: Callable[[int], bytes], codec: str, at: int, window_bytes_max: int) -> None:
        self._read, self._codec, self._window = read, codec, window_bytes_max
        self._data = b""
        self._unit: Any = None
        #: The stored byte behind what was read.
        self._behind = at
        #: The stored byte at which this unit begins; of a walk that is over, where it ended.
        self.begins = at
        self._has_begun = False
        self.is_over = False

    def step(self, size: int = _STEP_BYTES) -> bytes:
        """Plain bytes of the unit; none where it has ended, and the next one begins at `begins`. Raises OSError."""
        while not self.is_over:
            unit = self._unit
            if unit is None:
                was_within, self._has_begun = self._has_begun, True
                self._begin()
                if was_within or self.is_over:
                    return b""
                continue
            needs = self._codec != "bzip2" or unit.needs_input
            if needs and not self._data:
                self._data = self._take(_READ_BYTES)
                if not self._data:
                    raise Truncated
            found = self._given(size) if needs else unit.decompress(b"", size)
            if unit.eof:
                self._data, self._unit = unit.unused_data + self._data, None
            if found:
                return found
        return b""

    def _given(self, size: int) -> bytes:
        given, self._data = self._data, b""
        try:
            if self._codec == "zstd":
                given, self._data = given[:_ZSTD_BYTES], given[_ZSTD_BYTES:]
                return bytes(self._unit.decompress(given))
            found = bytes(self._unit.decompress(given, size))
        except (zlib.error, OSError, EOFError, ValueError) as error:
            raise OSError(str(error)) from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            raise OSError(str(error)) from error
        if self._codec == "gzip" and not self._unit.eof:
            self._data = self._unit.unconsumed_tail
        return found

    def _begin(self) -> None:
        """Go to the next unit, over what belongs to none; or be over."""
        while True:
            if self._codec == "gzip":
                self._data = self._data.lstrip(b"\0")
            elif self._codec == "zstd" and self._skip():
                continue
            if self._data:
                self._unit = _opened(self._codec, self._window)
                break
            self._data = self._take(_READ_BYTES)
            if not self._data:
                self.is_over = True
                break
        self.begins = self._behind - len(self._data)

    def _skip(self) -> bool:
        """Whether a frame that is to be skipped was."""
        while len(self._data) < 8 and (more := self._take(_READ_BYTES)):
            self._data += more
        tail, low, high = _SKIPPABLE
        if self._data[1:4] != tail or not low <= self._data[0] < high:
            return False
        left = 8 + int.from_bytes(self._data[4:8], "little")
        while left > len(self._data):
            left -= len(self._data)
            self._data = self._take(_READ_BYTES)
            if not self._data:
                raise Truncated
        self._data = self._data[left:]
        return True

    def _take(self, size: int) -> bytes:
        found = self._read(size)
        self._behind += len(found)
        return found


class Cut(Pieces):
    """The plain bytes of the units that begin in a range of the object, and what follows up to the end of the record.

    `first` is where the first one begins. A record ends with `row`; where each begins with a unit, that one begins with
    `prefix` instead. Behind the last byte it is compared with what the next fragment's task will find.
    """

    def __init__(
        self,
        raw: Raw,
        fetch: Fetch,
        codec: str,
        first: tuple[int, bytes],
        end: int,
        prefix: bytes,
        window_bytes_max: int,
    ) -> None:
        super().__init__(raw)
        self._walk = Walk(raw.read, codec, first[0], window_bytes_max)
        self._fetch, self._codec, self._end, self._prefix = fetch, codec, end, prefix
        self._window = window_bytes_max
        self._last, self._held = first[1], b""
        self._within = self._is_done = False

    def _some(self, size: int) -> bytes:
        if self._held:
            found, self._held = self._held, b""
            self._last = found[-1:]
            return found
        walk = self._walk
        if not self._is_done and not self._within and 0 <= self._end <= walk.begins:
            # no unit begins here
            self._compare(walk.begins)
            self._is_done = True
        while not self._is_done:
            found = walk.step(size)
            if found:
                at = found.find(b"\n") if self._within else -1
                if at >= 0:
                    self._is_done = True
                    return found[: at + 1]
                self._last = found[-1:]
                return found
            if walk.is_over:
                self._is_done = True
                if not self._within and self._end >= 0:
                    self._compare(walk.begins)
            elif not self._within and 0 <= self._end <= walk.begins:
                begins, self._held = walk.begins, head_of(walk, self._prefix)
                if self._held.startswith(self._prefix):
                    self._finish(begins)
                if self._held and not self._is_done:
                    return self._some(size)
        return b""

    def _compare(self, begins: int) -> None:
        there = first_unit(self._fetch, self._codec, self._end, self._prefix, self._window)
        if there != (begins, self._last):
            raise NoCut(f"units seem to begin at byte {there[0]:,} where one begins at {begins:,}")

    def _finish(self, begins: int) -> None:
        self._compare(begins)
        if self._prefix or self._last == b"\n":
            self._is_done, self._held = True, b""
        else:
            self._within = True


def head_of(walk: Walk, prefix: bytes) -> bytes:
    """The first bytes of the unit at which a walk stands, at least as many as the prefix has if there are so many."""
    found, begins = b"", walk.begins
    while len(found) < len(prefix) and walk.begins == begins and not walk.is_over:
        part = walk.step()
        if not part:
            break
        found += part
    return found


def has_several(fetch: Fetch, codec: str, size: int, prefix: bytes, window_bytes_max: int) -> bool:
    """Whether a file has a second unit near its beginning, which a record begins with, and others further on."""
    walk, taken = Walk(_Reader(fetch, 0, LOOK_BYTES).read, codec, 0, window_bytes_max), 0
    try:
        while walk.begins == 0 and not walk.is_over and taken < 64 * LOOK_BYTES:
            taken += len(walk.step())
        if walk.is_over or walk.begins == 0 or not head_of(walk, prefix).startswith(prefix):
            return False
        for cut in (size // 2, size - size // 8):
            first_unit(fetch, codec, cut, prefix, window_bytes_max, back_bytes_max=BACK_BYTES)
    except OSError:
        return False
    return True


def first_unit(
    fetch: Fetch, codec: str, cut: int, prefix: bytes, window_bytes_max: int, back_bytes_max: int = BACK_BYTES_MAX
) -> tuple[int, bytes]:
    """The stored byte at which the first unit behind a cut begins, and the plain byte before it. Raises OSError.

    The end of the object, where none does.
    """
    search, tries, back, high = _Search(fetch, codec, cut, prefix, window_bytes_max), 0, BACK_BYTES, cut - CHAIN_BYTES
    while back <= back_bytes_max:
        at = low = max(0, cut - back)
        while (at := _next_magic(fetch, codec, at, high)) >= 0:
            try:
                return search.reached(at)
            except NoCut:
                raise
            except OSError as error:
                tries, at = tries + 1, at + 1
                if tries > TRIES_MAX:
                    raise NoCut(f"{TRIES_MAX} units before byte {cut:,} seem to begin, and are none") from error
        if not low:
            return search.reached(0)
        high, back = low, back * 16
    raise NoCut(f"no unit begins within {back_bytes_max >> 20:,} MiB before byte {cut:,}")


class _Search:
    """Walks to one cut, which share a budget."""

    def __init__(self, fetch: Fetch, codec: str, cut: int, prefix: bytes, window_bytes_max: int) -> None:
        self._fetch, self._codec, self._cut, self._prefix = fetch, codec, cut, prefix
        self._window, self._taken = window_bytes_max, 0

    def reached(self, at: int) -> tuple[int, bytes]:
        """Where a walk from a byte comes to behind the cut. Raises OSError where it breaks."""
        walk, last = Walk(_Reader(self._fetch, at, -1).read, self._codec, at, self._window), b"\n"
        while True:
            found = walk.step()
            self._taken += len(found)
            if self._taken > WALK_BYTES_MAX:
                raise NoCut(f"walks to byte {self._cut:,} come to more than {WALK_BYTES_MAX >> 30} GiB")
            if found:
                last = found[-1:]
            elif walk.is_over:
                return walk.begins, last
            elif walk.begins >= self._cut:
                begins, head = walk.begins, head_of(walk, self._prefix)
                if head.startswith(self._prefix):
                    return begins, last
                last = head[-1:] or last


def _next_magic(fetch: Fetch, codec: str, at: int, top: int) -> int:
    """The first byte from `at` on and before `top` where a unit may begin; -1 for none."""
    magic = _MAGIC[codec]
    while at < top:
        part = fetch(at, min(BACK_BYTES, top - at) + 16)
        found = part.find(magic)
        while found >= 0:
            if at + found < top and _may_begin(codec, part[found : found + 16]):
                return at + found
            found = part.find(magic, found + 1)
        if len(part) <= 16:
            return -1
        at += len(part) - 16
    return -1


def _may_begin(codec: str, head: bytes) -> bool:
    if codec == "gzip":
        return len(head) >= 10 and not head[3] & 0xE0
    return codec == "zstd" or (head[3:4] in b"123456789" and head[4:10] == _BZIP2_BLOCK)


class _Reader:
    """Reads on from a byte, by `fetch`; `size` bytes at most where that is not negative."""

    def __init__(self, fetch: Fetch, at: int, size: int) -> None:
        self._fetch, self._at, self._left = fetch, at, size
        self._data = b""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none only at the end."""
        if not self._data and self._left:
            wanted = BACK_BYTES if self._left < 0 else self._left
            self._data = self._fetch(self._at, wanted)
            self._at += len(self._data)
            self._left -= len(self._data) if self._left > 0 else 0
        found, self._data = self._data[:size], self._data[size:]
        return found


def _opened(codec: str, window_bytes_max: int) -> Any:
    if codec == "gzip":
        return zlib.decompressobj(31)
    if codec == "bzip2":
        return bz2.BZ2Decompressor()
    import zstandard  # here, since few files are cut

    return zstandard.ZstdDecompressor(max_window_size=window_bytes_max).decompressobj()
