"""Lines, paragraphs and passages that many records have: how they are found in a text, and counted.

A line ends behind its line feed; a paragraph is a run of lines that are not blank, with the blank ones behind it. A
span of fewer words than a limit counts as none. A passage is so many words in a row, and each word begins one: what
two texts have in common is found from that length on, wherever it stands; words are what stands between white space.
Two spans are equal up to white space, as texts are, and known by 64 bits. Counting is a sort outside of memory: hashes
are gathered, sorted and written as runs to a scratch file, and the runs are merged range by range. What comes out
depends on the records alone, and not on their order.
"""

from __future__ import annotations

import mmap
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from headrace.stages.dedup import CODES_MORE, own_key, read_words
from headrace.stages.dedup.spans.span_file import HEADER_BYTES, UNITS, SpanFacts, begin_checksum, facts_of, write_header
from headrace.stages.text import SPACE, decode, flags_of, longest, text_bytes
from headrace.stages.text.machine import compiled, entry, prepared
from headrace.store import FormatError
from headrace.store.files import Scratch, whole_file

#: Spans that are gathered in memory (20 bytes each) before they are written as a run.
GATHERED_MAX = 1 << 21
#: Entries of all runs that are merged at once.
MERGED_MAX = 1 << 21
#: Hashes whose order and checksum are looked at, at once.
CHECKED_AT_ONCE = 1 << 20
#: Highest bits of a hash by which it is looked up.
PREFIX_BITS = 16

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
_SEED, _PRIME, _BASE = np.uint64(0x243F6A8885A308D3), np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
_FOLD = np.uint64(29)
_LINE_FEED = np.uint8(0x0A)
_RUN = np.dtype([("hash", "<u8"), ("owner", "<u8"), ("records", "<u4")])


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of a column of texts: each one's hash, its text, and where in the bytes of all it begins and ends."""

    hashes: Hashes
    texts: Numbers
    begins: Numbers
    ends: Numbers


def find_spans(column: Any, unit: str, words_min: int) -> Spans:
    """The spans of texts that have at least so many words."""
    data, offsets = text_bytes(column)
    if unit == UNITS[2]:
        return _find_passages(data, offsets, words_min)
    room = int(np.count_nonzero(data == _LINE_FEED)) + len(column) + 1
    hashes, places = np.empty(room, np.uint64), np.empty((room, 3), np.int64)
    size = max(1, longest(offsets))
    words = np.empty(size, np.uint64), np.empty(size + CODES_MORE, np.uint32)
    count = int(fill_spans(data, offsets, unit == UNITS[1], words_min, words, hashes, places))
    return Spans(hashes[:count], *(places[:count, column].copy() for column in range(3)))


def _find_passages(data: Any, offsets: Numbers, words: int) -> Spans:
    """Each `words` words in a row."""
    # Words are a byte apart in a text, and nothing is between two texts.
    room = (len(data) + len(offsets)) // 2
    hashes, places = np.empty(room, np.uint64), np.empty((room, 3), np.int64)
    found, bounds = np.empty(room, np.uint64), np.empty((room, 2), np.int64)
    count = int(fill_passages(data, offsets, words, found, bounds, hashes, places))
    return Spans(hashes[:count].copy(), *(places[:count, column].copy() for column in range(3)))


def owner_of(identity: str) -> int:
    """What stands for a record where one of several keeps a span: the least is that one's."""
    return xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogatepass"))


def compile_spans() -> None:
    """Compile what is not in the cache."""
    import pyarrow as pa

    with prepared("spans"):
        find_spans(pa.array(["A line.\n\nAnother one.\n"], pa.string()), UNITS[1], 1)
        found = np.zeros(1, np.bool_)
        find_spans(pa.array(["Three words here"], pa.string()), UNITS[2], 2)
        look_up(np.zeros(1, np.uint64), np.zeros((1 << PREFIX_BITS) + 1, np.int64), np.zeros(1, np.uint64), found)


@compiled
def _line_end(data: Any, at: int, end: int) -> Any:
    """Where the line that begins here ends, behind its line feed, and whether it is blank."""
    blank = True
    while at < end:
        code, width = decode(data, at)
        at += width
        if code == 0x0A:
            break
        blank = blank and flags_of(code) & SPACE != 0
    return at, blank


@entry("(u8[], i64[], bool, i64, (u64[], u32[]), u64[], i64[,]) -> i64")
def fill_spans(data: Any, offsets: Any, paragraphs: bool, words_min: int, words: Any, hashes: Any, places: Any) -> int:
    """Put the spans of texts into `hashes` and `places` `[spans, 3]`: the text, the begin, the end; how many."""
    count = 0
    for text in range(len(offsets) - 1):
        at, end = offsets[text], offsets[text + 1]
        while at < end:
            begin = at
            at, blank = _line_end(data, at, end)
            while paragraphs and at < end:
                behind, next_blank = _line_end(data, at, end)
                if blank and not next_blank:
                    break
                at, blank = behind, next_blank
            if read_words(data, begin, at, words[0], words[1]) >= words_min:
                hashes[count] = own_key(data, begin, at)[0]
                places[count, 0], places[count, 1], places[count, 2] = text, begin, at
                count += 1
    return count


@compiled
def _find_words(data: Any, begin: int, end: int, found: Any, bounds: Any) -> int:
    """Put the hashes of what stands between white space into `found`, and where it begins and ends; how many."""
    count, word, inside, at = 0, _SEED, False, begin
    while at < end:
        code, width = decode(data, at)
        if flags_of(code) & SPACE:
            inside = False
        else:
            if not inside:
                inside, word, bounds[count, 0] = True, _SEED, at
                count += 1
            word = (word ^ np.uint64(code)) * _PRIME
            word ^= word >> _FOLD
            found[count - 1], bounds[count - 1, 1] = word, at + width
        at += width
    return count


@entry("(u8[], i64[], i64, u64[], i64[,], u64[], i64[,]) -> i64")
def fill_passages(data: Any, offsets: Any, size: int, found: Any, bounds: Any, hashes: Any, places: Any) -> int:
    """Put the passages of `size` words into `hashes` and `places` `[spans, 3]`: text, begin, end; how many.

    The hash of a passage follows from that of the one before it (Karp and Rabin 1987).
    """
    count = 0
    leading = np.uint64(1)
    for _ in range(size - 1):
        leading *= _BASE
    for text in range(len(offsets) - 1):
        words = _find_words(data, offsets[text], offsets[text + 1], found, bounds)
        value = np.uint64(0)
        for place in range(words):
            if place >= size:
                value -= found[place - size] * leading
            value = value * _BASE + found[place]
            if place >= size - 1:
                mixed = (value ^ (value >> _FOLD)) * _PRIME
                hashes[count] = mixed ^ (mixed >> _FOLD)
                places[count, 0], places[count, 1], places[count, 2] = (
                    text,
                    bounds[place - size + 1, 0],
                    bounds[place, 1],
                )
                count += 1
    return count


@entry("(u64[], i64[], u64[], bool[])")
def look_up(values: Any, bounds: Any, wanted: Any, found: Any) -> None:
    """Which hashes `wanted` `[n]` are among ascending `values`, whose highest bits begin at `bounds`."""
    shift = np.uint64(64 - PREFIX_BITS)
    for place in range(len(wanted)):
        prefix = np.int64(wanted[place] >> shift)
        low, high = bounds[prefix], bounds[prefix + 1]
        while low < high:
            middle = (low + high) >> 1
            if values[middle] < wanted[place]:
                low = middle + 1
            else:
                high = middle
        found[place] = low < bounds[prefix + 1] and values[low] == wanted[place]


class SpanCounter:
    """Counts in how many records each span stands. Its methods raise OSError where the disk is full."""

    def __init__(self, unit: str, words_min: int, folder: str | None = None) -> None:
        self.unit, self.words_min = unit, words_min
        self.records = 0
        self._file = Scratch.on_disk(folder)
        self._runs: list[tuple[int, int]] = []
        self._gathered: list[npt.NDArray[Any]] = []
        self._waiting = 0

    def add(self, ids: Any, texts: Any) -> None:
        """Count the spans of records: a column of ids, and one of texts."""
        spans = find_spans(texts, self.unit, self.words_min)
        self.records += len(texts)
        owners = np.array([owner_of(name) for name in ids.to_pylist()], np.uint64)
        # A record counts once, however often it repeats a span.
        order = np.argsort(spans.hashes, kind="stable")
        hashes, records = spans.hashes[order], spans.texts[order]
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = (hashes[1:] != hashes[:-1]) | (records[1:] != records[:-1])
        rows = np.empty(int(fresh.sum()), _RUN)
        rows["hash"], rows["owner"], rows["records"] = hashes[fresh], owners[records[fresh]], 1
        self._gathered.append(rows)
        self._waiting += len(rows)
        if self._waiting >= GATHERED_MAX:
            self._write_run()

    def _write_run(self) -> None:
        if self._waiting:
            run = _summed(np.concatenate(self._gathered))
            self._runs.append((self._file.append(run.tobytes()), len(run)))
        self._gathered, self._waiting = [], 0

    def frequent(self, records_min: int) -> Iterator[npt.NDArray[Any]]:
        """The spans of at least so many records, in ascending order of their hashes, some at a time."""
        self._write_run()
        if not self._runs:
            return
        mapped = mmap.mmap(self._file.fileno(), self._file.size, access=mmap.ACCESS_READ)
        runs = [np.frombuffer(mapped, _RUN, count, begin) for begin, count in self._runs]
        parts = max(1, -(-sum(map(len, runs)) // MERGED_MAX))
        bounds = [np.uint64((part << 64) // parts) for part in range(1, parts)]
        cuts = [[0, *np.searchsorted(run["hash"], np.array(bounds, np.uint64)).tolist(), len(run)] for run in runs]
        for part in range(parts):
            merged = _summed(
                np.concatenate([run[cut[part] : cut[part + 1]] for run, cut in zip(runs, cuts, strict=True)])
            )
            yield merged[merged["records"] >= records_min]

    def write(self, path: str | os.PathLike[str], records_min: int, *, keeps_one: bool) -> SpanFacts:
        """Write the index of what at least so many records have, whole or not at all."""
        place = pathlib.Path(path).absolute()
        owners = Scratch.on_disk()
        digest, count = begin_checksum(self.unit, self.words_min, records_min, keeps_one=keeps_one), 0
        with whole_file(place) as file:
            file.write(bytes(HEADER_BYTES))
            for found in self.frequent(records_min):
                hashes = np.ascontiguousarray(found["hash"]).tobytes()
                digest.update(hashes)
                file.write(hashes)
                count += len(found)
                if keeps_one:
                    owners.append(np.ascontiguousarray(found["owner"]).tobytes())
            for piece in owners.pieces():
                digest.update(piece)
                file.write(piece)
            checksum = digest.hexdigest()
            facts = SpanFacts(self.unit, self.words_min, records_min, keeps_one, self.records, count, checksum)
            file.seek(0)
            file.write(write_header(facts))
        return facts


def _summed(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows by hash, those of one hash as one: of all their records, with the least owner."""
    if not len(rows):
        return rows
    rows = rows[np.argsort(np.ascontiguousarray(rows["hash"]))]
    first = np.flatnonzero(np.concatenate([[True], rows["hash"][1:] != rows["hash"][:-1]]))
    found = rows[first]
    found["owner"] = np.minimum.reduceat(rows["owner"], first)
    records = np.add.reduceat(rows["records"].astype(np.uint64), first)
    found["records"] = np.minimum(records, np.uint64(0xFFFFFFFF))
    return found


class SpanIndex:
    """An index that is mapped. Raises OSError, and FormatError where the file is not the one that was written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.facts = facts_of(file.read(HEADER_BYTES), size, str(path))
            mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self._hashes = np.frombuffer(mapped, "<u8", self.facts.spans, HEADER_BYTES)
        behind = HEADER_BYTES + 8 * self.facts.spans
        self._owners = np.frombuffer(mapped, "<u8", self.facts.spans if self.facts.keeps_one else 0, behind)
        facts = self.facts
        digest = begin_checksum(facts.unit, facts.words_min, facts.records_min, keeps_one=facts.keeps_one)
        for held in (self._hashes, self._owners):
            for at in range(0, len(held), CHECKED_AT_ONCE):
                digest.update(held[at : at + CHECKED_AT_ONCE].tobytes())
        parts = (self._hashes[at : at + CHECKED_AT_ONCE + 1] for at in range(0, len(self._hashes), CHECKED_AT_ONCE))
        ascends = all(bool((part[1:] > part[:-1]).all()) for part in parts)
        if digest.hexdigest() != self.facts.checksum or not ascends:
            raise FormatError(f"{path} is damaged: its hashes are not those that were written; write it again")
        prefixes = np.arange(1, 1 << PREFIX_BITS, dtype=np.uint64) << np.uint64(64 - PREFIX_BITS)
        inner = np.searchsorted(self._hashes, prefixes)
        self._bounds = np.concatenate([[0], inner, [len(self._hashes)]]).astype(np.int64)

    def holds(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """`[n]`: which hashes are in the index."""
        found = np.zeros(len(hashes), np.bool_)
        look_up(self._hashes, self._bounds, hashes, found)
        return found

    def owners(self, hashes: Hashes) -> Hashes:
        """`[n]`: the owners of hashes that are all in the index, which `keeps_one`."""
        return self._owners[np.searchsorted(self._hashes, hashes)].astype(np.uint64)
