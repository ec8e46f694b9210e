"""The bytes of a fragment's object: opened and checked, from this machine or a store, decompressed on the way."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from headrace.stages.runtime import DamagedInput, DeviceFailed, InputError, WrongFormat, is_device_error, unreadable
from headrace.stages.sources.objects.content import Content
from headrace.stages.sources.objects.formats import HEAD_BYTES, codec_of, misnamed
from headrace.stages.sources.objects.inputs import Inputs, changed, file_version, gone, to_path
from headrace.stages.sources.objects.patterns import WINDOW_BYTES
from headrace.stages.sources.objects.prefetch import FetchedSpan, spans_of
from headrace.stages.sources.objects.units import Cut, NoCut, first_unit
from headrace.stages.sources.objects.unpack import (
    STEP_BYTES,
    Bzip2,
    Gzip,
    Raw,
    Truncated,
    Unpacker,
    WideZstd,
    WindowTooLarge,
    Zstd,
)
from headrace.store import InputStore, ObjectInfo, ObjectMissing, get_with_info
from headrace.store.columnar import PositionedFile
from headrace.store.ledger import Fragment

#: Bytes of one request to a store. While a block is read the next one is fetched.
BLOCK_BYTES = 8 << 20
#: Bytes of the smallest request where a reader jumps about, as that of Parquet does.
RANDOM_BYTES_MIN = 64 << 10
#: Bytes that are fetched from a store for a checksum alone: what lies before the byte from which a fragment is read on.
FETCHED_BYTES_MAX = 64 << 20
#: Bytes that any stream may unfold to, and for each stored one beyond them: gzip comes to 1,032 at most.
UNFOLDED_BYTES_FREE, UNFOLDED_A_STORED = 1 << 30, 2048
#: Threads of this process that fetch ahead.
FETCHERS = 4

_fetchers: list[ThreadPoolExecutor] = []


class LocalFile(io.FileIO):
    """A file of this machine behind a fragment."""

    def __init__(self, inputs: Inputs, fragment: Fragment) -> None:
        self._fragment = fragment
        #: What takes the checksum of all that is read, if anything does.
        self.content: Content | None = None
        path = to_path(fragment.uri)
        try:
            super().__init__(path, "rb", opener=lambda path, _: inputs.open_file(path))
        except FileNotFoundError as error:
            raise gone(fragment) from error
        except OSError as error:
            if is_device_error(error):
                raise DeviceFailed(path, 0, error) from error
            raise unreadable("read", path, error) from error

    def read(self, size: int | None = -1) -> bytes:
        """As a file does. Raises DeviceFailed, and InputError where the system says no for another reason."""
        try:
            if self.content is None:
                return super().read(-1 if size is None else size)
            at = self.tell()
            data = super().read(-1 if size is None else size)
        except OSError as error:
            raise self._failed(error) from error
        self.content.passed(at, data)
        return data

    def readinto(self, buffer: Any) -> int:
        """As a file does; raises as `read` does."""
        try:
            if self.content is None:
                return super().readinto(buffer)
            at, count = self.tell(), super().readinto(buffer)
        except OSError as error:
            raise self._failed(error) from error
        self.content.passed(at, memoryview(buffer).cast("B")[:count])
        return count

    def readall(self) -> bytes:
        """As a file does; raises as `read` does."""
        try:
            return super().readall()
        except OSError as error:
            raise self._failed(error) from error

    def fetched(self, start: int, size: int) -> bytes:
        """Bytes from somewhere, which count for no checksum."""
        try:
            return os.pread(self.fileno(), size, start)
        except OSError as error:
            raise self._failed(error) from error

    def expect(self, start: int, size: int) -> None:
        """Nothing: the system reads ahead."""

    def expect_parts(self, parts: Sequence[tuple[int, int]]) -> None:
        """Nothing, likewise."""

    def check(self) -> None:
        """Raise FragmentChanged unless this is still the version that was listed."""
        try:
            found = file_version(os.fstat(self.fileno()))
        except OSError as error:
            raise self._failed(error) from error
        if found != self._fragment.version:
            raise changed(self._fragment, found)

    def _failed(self, error: OSError) -> InputError:
        path = to_path(self._fragment.uri)
        return DeviceFailed(path, self.tell(), error) if is_device_error(error) else unreadable("read", path, error)


class RemoteFile(PositionedFile):
    """An object of a store behind a fragment, read by ranges. `ahead`: it is read from front to back.

    Each answer says of which version it is, so that nothing is taken from an object that has changed.
    """

    def __init__(self, store: InputStore, key: str, fragment: Fragment, *, ahead: bool, size: int = -1) -> None:
        super().__init__()
        self._store, self._key, self._fragment = store, key, fragment
        #: As of a LocalFile; of what is read ahead.
        self.content: Content | None = None
        self._ahead = ahead
        #: bytes of the object; -1 until an answer, or a listing, has told
        self._size = size
        self._block, self._block_at = b"", 0
        self._next: tuple[int, Future[bytes]] | None = None
        #: where it begins, behind what it ends, and its bytes
        self._expected: list[tuple[int, int, Future[bytes]]] = []
        #: parts that are read in turn
        self._spans: list[FetchedSpan] = []

    @property
    def size(self) -> int:
        """Bytes of the object."""
        if self._size < 0:
            info = self._store.head(self._key)
            if info is None:
                raise gone(self._fragment)
            self._learn(info)
        return self._size

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; fewer at the end of a block, none only at the end of the object."""
        if not self._ahead:
            left = self.size - self._at
            wanted = left if size < 0 else min(size, left)
            return self._read_exactly(wanted) if wanted > 0 else b""
        start = self._at - self._block_at
        if not 0 <= start < len(self._block):
            if size == 0 or 0 <= self._size <= self._at:
                return b""
            self._turn_to(self._at)
            start = 0
        found = self._block[start:] if size < 0 else self._block[start : start + size]
        if self.content is not None:
            self.content.passed(self._at, found)
        self._at += len(found)
        return found

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as one read goes."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def begin(self) -> None:
        """Have the first block fetched: someone will read from the front soon."""
        self._next = (0, _pool().submit(self._fetch, 0, BLOCK_BYTES))

    def fetched(self, start: int, size: int) -> bytes:
        """Bytes from somewhere, which count for no checksum."""
        return self._fetch(start, size)

    def expect(self, start: int, size: int) -> None:
        """Have bytes fetched that will soon be read, in one request, if they are no more than a block.

        The last two of these are held.
        """
        if 0 < size <= BLOCK_BYTES and all(begin != start for begin, _, _ in self._expected):
            coming = _pool().submit(self._fetch, start, size)
            self._expected = [*self._expected[-1:], (start, start + size, coming)]

    def expect_parts(self, parts: Sequence[tuple[int, int]]) -> None:
        """Have parts (first byte, bytes) fetched, each a block ahead of where it is read; those of before are over."""
        self._spans = spans_of(parts, BLOCK_BYTES, lambda at, size: _pool().submit(self._fetch, at, size))

    def check(self) -> None:
        """Raise FragmentChanged unless this is the version that was listed; what was read has been judged already."""
        if not self._ahead and self._size < 0:
            _ = self.size

    def _learn(self, info: ObjectInfo) -> None:
        """Raises FragmentChanged."""
        if info.version != self._fragment.version:
            raise changed(self._fragment, info.version)
        self._size = info.size

    def _read_exactly(self, wanted: int) -> bytes:
        for span in self._spans:
            if span.holds(self._at, wanted):
                self._at += wanted
                found = span.read(self._at - wanted, wanted)
                if self.content is not None:
                    self.content.passed(self._at - wanted, found)
                return found
        start = self._at - self._block_at
        if not (start >= 0 and start + wanted <= len(self._block)):
            for begin, end, coming in self._expected:
                if begin <= self._at and self._at + wanted <= end:
                    self._block_at, self._block = begin, coming.result()
                    break
            else:
                self._block_at, self._block = self._at, self._fetch(self._at, max(wanted, RANDOM_BYTES_MIN))
            if self.content is not None:
                self.content.passed(self._block_at, self._block)
            start = self._at - self._block_at
        self._at += wanted
        return self._block[start : start + wanted]

    def _turn_to(self, at: int) -> None:
        """Take the block that begins at `at`, and have the one behind it fetched."""
        ready, self._next = self._next, None
        if ready is not None and ready[0] == at:
            self._block = ready[1].result()
        else:
            self._block = self._fetch(at, BLOCK_BYTES)
        self._block_at = at
        behind = at + len(self._block)
        if self._block and behind < self._size:
            self._next = (behind, _pool().submit(self._fetch, behind, BLOCK_BYTES))

    def _fetch(self, at: int, size: int) -> bytes:
        try:
            found, info = get_with_info(self._store, self._key, at, size)
        except ObjectMissing as error:
            raise gone(self._fragment) from error
        self._learn(info)
        if not found and at < info.size:
            raise changed(self._fragment, f"of {at} bytes")
        return found


def expect(inputs: Inputs, fragment: Fragment) -> None:
    """Have the beginning of a fragment fetched, if its object is in a store: `open_raw` will ask for it next."""
    place = inputs.store_of(fragment.uri) if fragment.size else None
    if place is None or (inputs.coming is not None and inputs.coming[0] == fragment.id):
        return
    raw = RemoteFile(*place, fragment, ahead=True)
    raw.begin()
    inputs.coming = fragment.id, raw


def open_raw(inputs: Inputs, fragment: Fragment, *, ahead: bool, size: int = -1) -> LocalFile | RemoteFile:
    """The object behind a fragment as it is stored, open and checked; raises InputError, FragmentChanged.

    One of a store whose `size` in bytes is known is checked by the first answer.
    """
    coming, inputs.coming = inputs.coming, None
    if ahead and coming is not None and coming[0] == fragment.id:
        begun: RemoteFile = coming[1]
        return begun
    place = inputs.store_of(fragment.uri)
    raw = LocalFile(inputs, fragment) if place is None else RemoteFile(*place, fragment, ahead=ahead, size=size)
    try:
        raw.check()
    except BaseException:
        raw.close()
        raise
    return raw


def checksum_of(raw: LocalFile | RemoteFile) -> bytes:
    """The checksum of an open object's fragment, which is to be checked after it. Raises as `read` does.

    Of an object of a store up to FETCHED_BYTES_MAX are fetched for it: it is empty where more has not passed.
    """
    content = raw.content
    if content is None:
        return b""
    if isinstance(raw, LocalFile) or content.missing <= FETCHED_BYTES_MAX:
        for _ in content.rest(raw):
            pass
    return content.checksum()


class InputStream:
    """The uncompressed bytes of a fragment's object, from front to back.

    Where the object is compressed, it is one from the fragment's first byte on: positions count from there, as if what
    lies before it had that many bytes. `seek` reads on to the byte, from the beginning if need be; `skipped` counts
    what was read only to get there. Frames of zstd with a window above `window_bytes_max` are refused.
    """

    #: Whether the bytes that are read are not those that are stored.
    compressed: bool

    def __init__(self, inputs: Inputs, fragment: Fragment, window_bytes_max: int = WINDOW_BYTES) -> None:
        self._raw = open_raw(inputs, fragment, ahead=True)
        self.content = self._raw.content = Content(fragment, scattered=isinstance(self._raw, RemoteFile))
        self._window_bytes_max = window_bytes_max
        self.fragment = fragment
        self._codec = codec_of(fragment.uri)
        self.compressed = bool(self._codec)
        #: The stored bytes, and of an object that is compressed where they and their positions begin.
        self._stored: Raw = self._raw
        self._begin = fragment.start if self._codec else 0
        #: Where the first unit of a fragment that was cut begins, and the byte before it; None for any other fragment.
        self._cut: tuple[int, bytes] | None = None
        self._prefix = b""
        self._no_cut: OSError | None = None
        self._source: Unpacker | None = None
        self._data, self._used = b"", 0
        self._told = self._begin
        self._at = self._raw.seek(self._begin) if self._begin else 0
        self.skipped = 0

    def cut(self, prefix: bytes) -> None:
        """Read the units that begin in the fragment's range; records begin with one that begins with `prefix`."""
        self._prefix, self._cut = prefix, (self._begin, b"\n")
        if self._begin:
            try:
                self._cut = first_unit(self._raw.fetched, self._codec, self._begin, prefix, self._window_bytes_max)
            except OSError as error:
                self._no_cut = error
        self._restart()

    @property
    def is_within_a_line(self) -> bool:
        """Whether the first byte is one of a line that began before it."""
        return self._cut is not None and self._cut[1] != b"\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the object."""
        self._raw.close()

    def check(self) -> None:
        """Raise FragmentChanged unless this is still the version that was listed."""
        self._raw.check()

    def checksum(self) -> bytes:
        """The checksum of the fragment's stored bytes, all of which are read for it if need be; see `checksum_of`."""
        return checksum_of(self._raw)

    def readable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position in uncompressed bytes."""
        return self._at if self._codec else self._raw.tell()

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes (-1: as many as come at once); none only at the end. Raises DamagedInput."""
        if not self._codec:
            return self._stored.read(STEP_BYTES if size < 0 else size) or b""
        if self._used == len(self._data):
            self._data, self._used = self._step(), 0
        found = self._data[self._used :] if size < 0 else self._data[self._used : self._used + size]
        self._used += len(found)
        self._at += len(found)
        return found

    def seek(self, position: int) -> int:
        """Go to an uncompressed byte; the new position, which is less where the stream ends before it."""
        if not self._codec:
            return self._raw.seek(position)
        if position < self._at:
            back = self._at - position
            if back <= self._used:
                self._used -= back
                self._at = position
                return position
            self._restart()
        while self._at < position:
            passed = len(self.read(min(STEP_BYTES, position - self._at)))
            if not passed:
                break
            self.skipped += passed
        self.stored_since()
        return self._at

    def stored_since(self) -> int:
        """Bytes of the object, as it is stored, that were read since this was asked or sought last."""
        at = self._raw.tell()
        if self._cut is not None:
            at = min(at, self.fragment.start + self.fragment.size)
        since, self._told = max(0, at - self._told), at
        return since

    def _restart(self) -> None:
        self._raw.seek(self._begin if self._cut is None else self._cut[0])
        self._at = self._begin
        self._source, self._data, self._used = None, b"", 0

    def _step(self) -> bytes:
        try:
            if self._source is None:
                self._source = self._unpacker()
            found = self._source.read()
            if not found and self._cut is None and self._raw.tell() == self._begin:
                raise Truncated
            self._bound(len(found))
            return found
        except WindowTooLarge as error:
            self._raw.check()
            if self._window_bytes_max <= WINDOW_BYTES or isinstance(self._source, WideZstd):
                raise self._damaged(error) from error
            return self._step_wide()
        except OSError as error:
            self._raw.check()
            raise self._damaged(error) from error

    def _bound(self, more: int) -> None:
        """Raise DamagedInput where little has unfolded to more than any stream of records comes to."""
        unfolded = self._at - self._begin + more
        stored = self._raw.tell() - (self._begin if self._cut is None else self._cut[0])
        if unfolded <= UNFOLDED_BYTES_FREE + UNFOLDED_A_STORED * max(0, stored):
            return
        self._raw.check()
        raise DamagedInput(
            to_path(self.fragment.uri),
            f"{stored:,} bytes of its {self._codec} stream unfold to more than {unfolded - more:,}: the limit is "
            f"{UNFOLDED_A_STORED:,} times as many beyond {UNFOLDED_BYTES_FREE >> 30} GiB; write it again by gzip",
        )

    def _unpacker(self) -> Unpacker:
        if self._cut is not None:
            return self._units(self.fragment.end)
        behind = self._begin > 0
        if self._codec == "gzip":
            return Gzip(self._stored, behind=behind)
        return Bzip2(self._stored, behind=behind) if self._codec == "bzip2" else Zstd(self._stored)

    def _units(self, end: int) -> Unpacker:
        assert self._cut is not None
        if self._no_cut is not None:
            raise self._no_cut
        place = self._codec, self._cut, end, self._prefix
        return Cut(self._stored, self._raw.fetched, *place, self._window_bytes_max)

    def _step_wide(self) -> bytes:
        """The next piece, from a reader that has the memory for it: it begins anew, and goes on from here."""
        self._raw.seek(self._begin)
        self._source = WideZstd(self._stored, self._window_bytes_max)
        left, found = self._at - self._begin, b""
        while left >= 0 and (found := self._step()):
            if left < len(found):
                return found[left:]
            left -= len(found)
        return found

    def _damaged(self, error: OSError) -> DamagedInput:
        name, codec = to_path(self.fragment.uri), self._codec
        known = self._at - self._begin
        if isinstance(error, NoCut):
            return DamagedInput(
                name, f"it cannot be cut among tasks: {error}; declare the source with fragment_bytes=1 << 40"
            )
        if not known and not self._begin:
            self._raw.seek(0)
            if what := misnamed(self._raw.read(HEAD_BYTES) or b"", codec):
                return WrongFormat(name, what, f"{codec} stream")
        if isinstance(error, WindowTooLarge):
            what = (
                f"one with a window above {self._window_bytes_max >> 20} MiB; declare the source with window_bytes_max="
                "2 << 30, which lets it take as much memory, write it again with zstd --long=27 or less"
            )
            return WrongFormat(name, what, "zstd stream that can be read")
        if isinstance(error, Truncated) and not self.fragment.size:
            return DamagedInput(name, f"it is empty, where a {codec} stream should be")
        if isinstance(error, Truncated):
            return DamagedInput(name, f"the {codec} stream is cut off after about {known} uncompressed bytes")
        return DamagedInput(name, f"not a sound {codec} stream after {known} uncompressed bytes ({error})")


def _pool() -> ThreadPoolExecutor:
    if not _fetchers:
        _fetchers.append(ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch"))
    return _fetchers[0]
