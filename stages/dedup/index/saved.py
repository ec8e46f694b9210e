"""An index as one file, so that the next process opens it in place of loading all keys.

The file is named by what it was made from: the scheme and the files of keys, in order. One that was made from the first
files of a list is a beginning for all of them. It has a page of header, the slots as one run, and what is read into
memory when it is opened: fences, filter, fragments, spans and released records; the table of records stays where it is.
The header and what is read have checksums. A file that is not whole, of another version, or of somebody else is
refused, and made again.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from headrace.stages.dedup.index.filters import BLOCK_BYTES, PARTS, Filters
from headrace.stages.dedup.index.records import FRAGMENTS_MAX, RECORD_BYTES, RECORDS_MAX, Records
from headrace.stages.dedup.index.runs import FAN_IN, Levels, RunWriter, SortedRun, map_run, merge
from headrace.stages.dedup.index.slots import HASH_BITS, SECTION_BITS
from headrace.store import FormatError
from headrace.store.files import Scratch, disk

logger = logging.getLogger("headrace.dedup")

MAGIC = b"headrace keys\0\0\0"
VERSION = 1
SUFFIX = ".index"
#: Slots, fences, filter, fragments, spans, released, sources, records: where each begins, its bytes, its checksum.
_PARTS = 8
_HEADER = struct.Struct(f"<16sI16s32sQ{3 * _PARTS}Q")
_CHECKSUM = struct.Struct("<Q")
_HEADER_BYTES = 4096
_PIECE_BYTES = 1 << 24
#: Slots of a run of level 0, about.
LEVEL_SLOTS = 1 << 21


class Saved(Protocol):
    """An index with its keys on disk."""

    identity: str
    table: Records
    levels: Levels
    filters: Filters | None

    def seal(self) -> None:
        """Write what is gathered in memory as a run."""
        ...


def chain(scheme: str, sources: Sequence[str]) -> list[str]:
    """The names of the indexes of no source, of the first, of the first two, and so on."""
    names = [xxhash.xxh3_128_hexdigest(f"{VERSION} {scheme}".encode())]
    for source in sources:
        names.append(xxhash.xxh3_128_hexdigest(f"{names[-1]} {source}".encode()))
    return names


def save(index: Saved, folder: Path, sources: Sequence[str], counts: Sequence[int]) -> Path:
    """Write an index that holds the keys of these sources, of so many records each, and nothing else. Raises OSError.

    What was saved of the first of them goes.
    """
    names = chain(index.identity, sources)
    descriptor, draft = tempfile.mkstemp(dir=folder, suffix=".draft")
    try:
        file = Scratch(descriptor)
        _write(index, file, names[-1], counts)
        disk.sync(file.fileno())
        target = folder / f"{names[-1]}{SUFFIX}"
        disk.rename(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    for name in names[:-1]:
        (folder / f"{name}{SUFFIX}").unlink(missing_ok=True)
    return target


def find(folder: Path, scheme: str, sources: Sequence[str]) -> Iterator[tuple[Path, int]]:
    """The indexes that were saved of these sources or the first of them, most first, and of how many each is."""
    names = chain(scheme, sources)
    for count in range(len(sources), 0, -1):
        path = folder / f"{names[count]}{SUFFIX}"
        if path.exists():
            yield path, count


def open_saved(index: Saved, folder: Path, sources: Sequence[str]) -> list[int]:
    """Begin an empty index with what was saved of the first of these sources; how many records each of those has.

    Raises OSError.
    """
    for path, count in find(folder, index.identity, sources):
        try:
            return _read(index, path, count)
        except FormatError as error:
            logger.warning("%s; it is made again", error)
    return []


def _write(index: Saved, file: Scratch, name: str, counts: Sequence[int]) -> None:
    file.append(bytes(_HEADER_BYTES))
    run = _write_slots(index, file)
    records, filters = index.table, index.filters
    assert filters is not None
    blocks = np.stack([filters.table[:, 1], filters.table[:, 2]]).astype("<i8")
    bits = [filters.bits(part).data for part in range(PARTS)]
    lengths = bytes(map(len, records.known))
    spans = records.spans
    parts: list[list[Any]] = [
        [run.fences.astype("<i8").data],
        [blocks.data, *bits],
        [len(lengths).to_bytes(8, "little"), lengths, b"".join(records.known)],
        [spans[0].astype("<u8").data, spans[1].astype("<u8").data],
        [records.released_words().data],
        [np.array(counts, "<u8").data],
    ]
    placed = [(_HEADER_BYTES, 8 * run.slots, 0)]
    for pieces in parts:
        digest, at = xxhash.xxh3_64(), file.size
        for piece in pieces:
            digest.update(piece)
            file.append(piece)
        placed.append((at, file.size - at, digest.intdigest()))
    at = file.size
    for records_piece in records.pieces(_PIECE_BYTES // RECORD_BYTES):
        file.append(records_piece.data)
    placed.append((at, file.size - at, 0))
    flat = [number for part in placed for number in part]
    header = _HEADER.pack(MAGIC, VERSION, index.identity.encode(), name.encode(), records.count, *flat)
    file.patch(header + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(header)), 0)


def _write_slots(index: Saved, file: Scratch) -> SortedRun:
    index.seal()
    runs = index.levels.runs
    level = max((run.level for run in runs), default=0) + 1
    writer = RunWriter(file, sum(run.slots for run in runs), level)
    for _ in merge(runs, writer, index.table.row):
        pass
    index.table.check()
    return writer.finish()


def _read(index: Saved, path: Path, sources: int) -> list[int]:
    """Put what a file holds into an empty index. FormatError, with the path, where it is not to be trusted."""
    file = _opened(path)
    count, placed = _header(index.identity, path, file)
    slots, fences, filters, fragments, spans, released, counts, records = placed
    found_fences = np.frombuffer(_part(path, file, fences), "<i8").astype(np.int64)
    if found_fences[0] or int(found_fences[-1]) != slots[1] // 8 or (np.diff(found_fences) < 0).any():
        raise FormatError(f"{path}: its fences are in no order")
    known = _fragments(path, _part(path, file, fragments))
    begins, names = np.frombuffer(_part(path, file, spans), "<u8").reshape(2, -1)
    if len(begins) and (int(begins[-1]) >= count or (begins[1:] <= begins[:-1]).any()):
        raise FormatError(f"{path}: its spans are in no order")
    bits = np.frombuffer(_part(path, file, released), "<u8")
    held: list[int] = np.frombuffer(_part(path, file, counts), "<u8").tolist()
    if len(held) != sources or sum(held) != count:
        raise FormatError(f"{path}: its sources have {sum(held)} records, and it has {count}")
    whole = Filters()
    _read_filters(whole, path, file, filters)
    index.filters = whole
    index.table.restore(file, records[0], count, known, (begins, names), bits)
    index.levels.add(map_run(file, slots[0], found_fences, _level_of(slots[1] // 8)))
    return held


def _opened(path: Path) -> Scratch:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise FormatError(f"{path} cannot be opened: {error}") from error
    file, found = Scratch(descriptor), os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise FormatError(f"{path} is not a file of this user alone")
    file.size = found.st_size
    return file


def _header(scheme: str, path: Path, file: Scratch) -> tuple[int, list[tuple[int, int, int]]]:
    data = bytearray(_HEADER.size + _CHECKSUM.size)
    if file.size < _HEADER_BYTES:
        raise FormatError(f"{path} has {file.size} bytes, less than a header")
    file.read_into(memoryview(data), 0)
    header = bytes(data[: _HEADER.size])
    magic, version, made_by, name, count, *flat = _HEADER.unpack(header)
    if magic != MAGIC or version != VERSION:
        raise FormatError(f"{path} is no index of version {VERSION}")
    if _CHECKSUM.unpack(data[_HEADER.size :])[0] != xxhash.xxh3_64_intdigest(header):
        raise FormatError(f"{path}: its header is damaged")
    if made_by != scheme.encode() or f"{name.decode('ascii', 'replace')}{SUFFIX}" != path.name:
        raise FormatError(f"{path} is of another scheme or of other sources")
    placed = [(flat[at], flat[at + 1], flat[at + 2]) for at in range(0, len(flat), 3)]
    at = _HEADER_BYTES
    for begin, size, _ in placed:
        if begin != at:
            raise FormatError(f"{path}: its parts do not follow one another")
        at = begin + size
    slots, fences, _, _, spans, released, sources, records = (size for _, size, _ in placed)
    ranges = fences // 8 - 1
    whole = (
        at == file.size
        and not (slots % 8 or fences % 8 or spans % 16 or released % 8 or sources % 8)
        and ranges == 1 << max(ranges.bit_length() - 1, SECTION_BITS) <= 1 << HASH_BITS
        and count <= RECORDS_MAX
        and records == RECORD_BYTES * count
        and released * 8 >= count
    )
    if not whole:
        raise FormatError(f"{path}: its sizes contradict one another, or it was cut off")
    return count, placed


def _part(path: Path, file: Scratch, placed: tuple[int, int, int]) -> bytearray:
    at, size, checksum = placed
    data = bytearray(size)
    file.read_into(memoryview(data), at)
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise FormatError(f"{path} is damaged at {at}")
    return data


def _fragments(path: Path, data: bytearray) -> list[bytes]:
    count = int.from_bytes(data[:8], "little")
    lengths = data[8 : 8 + count]
    if count > FRAGMENTS_MAX or len(lengths) != count or 8 + count + sum(lengths) != len(data):
        raise FormatError(f"{path}: its names of fragments are cut off")
    ends = 8 + count + np.cumsum(np.frombuffer(lengths, np.uint8), dtype=np.int64)
    known = [bytes(data[end - size : end]) for end, size in zip(ends.tolist(), lengths, strict=True)]
    if len(set(known)) != len(known):
        raise FormatError(f"{path} names a fragment twice")
    return known


def _read_filters(filters: Filters, path: Path, file: Scratch, placed: tuple[int, int, int]) -> None:
    at, size, checksum = placed
    table = np.zeros((2, PARTS), "<i8")
    if size < table.nbytes:
        raise FormatError(f"{path}: its filter is cut off")
    view = table.data.cast("B")
    file.read_into(view, at)
    digest = xxhash.xxh3_64(view)
    if (table < 0).any() or (table[0] > size).any() or table.nbytes + BLOCK_BYTES * int(table[0].sum()) != size:
        raise FormatError(f"{path}: the parts of its filter are of other sizes than it has")
    at += table.nbytes
    for part in range(PARTS):
        bits = filters.restore(part, int(table[0, part]), int(table[1, part])).data.cast("B")
        for first in range(0, len(bits), _PIECE_BYTES):
            piece = bits[first : first + _PIECE_BYTES]
            file.read_into(piece, at)
            digest.update(piece)
            at += len(piece)
    if digest.intdigest() != checksum:
        raise FormatError(f"{path} is damaged at {placed[0]}")


def _level_of(slots: int) -> int:
    """The level at which a run of so many slots takes part in merges."""
    return max(1, int(math.log(max(slots, 1) / LEVEL_SLOTS, FAN_IN)))
