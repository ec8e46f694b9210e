"""What became otherwise of the records of one input: between two versions of a dataset, or between two datasets.

Records are matched by the object, its version, the range and the ordinal that they were read from. Shards that both
sides have are not read; of the others the sidecars are, and the texts of records that both keep are compared by hash.
Fragments are taken together until they hold GROUP_RECORDS, so that this much is in memory, whatever the datasets hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.store import FormatError, StoreRefused
from headrace.store.datasets import Dataset, numbered_lines
from headrace.store.ledger import ClosedShard, main_sink
from headrace.store.shards import codes_of, column_names, read_row_groups, read_shard, read_table

#: Records whose fates are in memory at once, of each side, and the ordinals that one fragment may reach.
GROUP_RECORDS = 1 << 22
FRAGMENT_RECORDS_MAX = 1 << 28
#: Records that are named of each kind of difference.
SAMPLES_MAX = 3
ABSENT, KEPT, RETRACTED = "absent", "kept", "retracted"
OTHER_TEXT = "kept, other text"
_FIXED = (ABSENT, KEPT, RETRACTED)
_IS_ABSENT, _IS_KEPT, _IS_RETRACTED = range(3)

Place = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class ChangedRecord:
    """A record whose fate or text is another one."""

    id: str
    source: str
    row: int


@dataclass(slots=True)
class Differences:
    """How many records became what, and some of each."""

    #: Records of both sides together.
    records: int = 0
    #: By fate before and after: "kept", "absent", "retracted", "kept, other text", or verdict, stage and reason.
    changed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    samples: dict[tuple[str, str], list[ChangedRecord]] = field(
        default_factory=dict[tuple[str, str], list[ChangedRecord]]
    )
    #: Whether texts were compared: tokens of two tokenizers, or tokens and texts, are not.
    texts: bool = True


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a shard says of records of one fragment: ordinals, fates by number, hashes of texts."""

    fragment: str
    rows: npt.NDArray[np.int64]
    fates: npt.NDArray[np.int32]
    texts: npt.NDArray[np.uint64]


class _Fates:
    """Fates by number, the same on both sides."""

    def __init__(self) -> None:
        self.names: list[str] = list(_FIXED)
        self._numbers: dict[str, int] = {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


class _Side:
    """One dataset: its shards by fragment, without those that the other side has too."""

    def __init__(self, dataset: Dataset, fates: _Fates, shared: frozenset[str], *, texts: bool) -> None:
        self.dataset, self._fates, self._texts = dataset, fates, texts
        self.shards = [shard for shard in _shown(dataset) if _identity(shard) not in shared]
        #: By place of the fragment, its names here and the shards that close a part of it.
        self.ends: Counter[Place] = Counter()
        self.places: dict[str, Place] = {}
        self._of: dict[Place, list[int]] = {}
        for number, shard in enumerate(self.shards):
            for item in shard.closed.ranges:
                fragment = dataset.state.fragments[item.fragment].fragment
                place = (fragment.uri, fragment.version, fragment.start, fragment.end)
                if item.end > FRAGMENT_RECORDS_MAX:
                    raise FormatError(
                        f"{dataset.uri}: {fragment.uri} has {item.end} records, more than can be compared"
                    )
                self.places[item.fragment.hex()] = place
                self.ends[place] = max(self.ends[place], item.end)
                held = self._of.setdefault(place, [])
                if not held or held[-1] != number:
                    held.append(number)
        self._last: tuple[int, list[_Rows]] = (-1, [])

    def fill(self, starts: dict[Place, int], total: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]:
        """The fates and texts of the fragments at these places, each from its start on."""
        fates, texts = np.zeros(total, np.int32), np.zeros(total, np.uint64)
        for number in sorted({number for place in starts for number in self._of.get(place, ())}):
            for part in self._read(number):
                place = self.places.get(part.fragment)
                if place is None:
                    raise FormatError(
                        f"{self.dataset.uri}: a shard holds records of {part.fragment}, which it does not close"
                    )
                if place not in starts:
                    continue
                if part.rows.size and not 0 <= part.rows.min() <= part.rows.max() < self.ends[place]:
                    raise FormatError(f"{self.dataset.uri}: a shard holds records of {place[0]} beyond its ranges")
                at = part.rows + starts[place]
                # Of a record that was split, a part that is kept counts, and the texts of all of them together.
                kept = part.fates == _IS_KEPT
                fates[at[~kept]] = np.where(fates[at[~kept]] == _IS_KEPT, _IS_KEPT, part.fates[~kept])
                fates[at[kept]] = _IS_KEPT
                np.add.at(texts, at, part.texts)
        return fates, texts

    def _read(self, number: int) -> list[_Rows]:
        if self._last[0] != number:
            self._last = (number, list(_rows_of(self.dataset, self.shards[number], self._fates, texts=self._texts)))
        return self._last[1]

    def name(self, place: Place, row: int) -> str:
        """The id of a record; "" where this side has none."""
        for number in self._of.get(place, ()):
            shard = self.shards[number]
            for stored in (shard.object("documents"), shard.object("verdicts")):
                if stored is None:
                    continue
                table = read_table(self.dataset.store, stored.key, ["id", "fragment", "row"])
                here = np.flatnonzero(np.asarray(table.column("row")) == row).tolist()
                for found in table.take(pa.array(here, pa.int64())).to_pylist():
                    if self.places.get(found["fragment"]) == place:
                        return str(found["id"])
        return ""


def differences(before: Dataset, after: Dataset) -> Differences:
    """Compare two datasets by the word of their main sinks.

    Raises StoreRefused where they have no input in common, FormatError, StoreError.
    """
    both = [[_identity(shard) for shard in _shown(side)] for side in (before, after)]
    shared = frozenset(both[0]) & frozenset(both[1])
    fates = _Fates()
    comparable = before.describe().tokenizer == after.describe().tokenizer
    old, new = (_Side(side, fates, shared, texts=comparable) for side in (before, after))
    found = Differences(texts=comparable)
    if not shared and old.shards and new.shards and not old.ends.keys() & new.ends.keys():
        raise StoreRefused(
            f"{before.uri} and {after.uri} have no input in common: records are matched by the object, its version and "
            "the range that they were read from"
        )
    twins = {name: shard for shard in _shown(after) if (name := _identity(shard)) in shared}
    for shard in _shown(before):
        if (name := _identity(shard)) in shared:
            found.records += shard.closed.counts.records
            _hidden(before, after, (shard, twins[name]), found)
    for group in _groups(old, new):
        _compare(old, new, group, fates, found)
    return found


def _shown(dataset: Dataset) -> Iterator[ClosedShard]:
    """The shards of the main sink in the version that is read."""
    main = main_sink(dataset.state.counts)
    return (shard for shard in dataset.of_version().shards if shard.closed.sink == main)


def _identity(shard: ClosedShard) -> str:
    """What two shards have in common that say the same: the checksums of their objects."""
    ranges = [(item.fragment.hex(), item.first, item.count) for item in shard.closed.ranges]
    return repr((ranges, sorted((item.role, item.checksum) for item in shard.closed.objects if item.role in _COMPARED)))


_COMPARED = ("tokens", "documents", "verdicts", "lines")


def _hidden(before: Dataset, after: Dataset, twins: tuple[ClosedShard, ClosedShard], found: Differences) -> None:
    """Records of a shard that both have, and that only one shows."""
    if not before.state.retracted and not after.state.retracted:
        return
    shard = twins[0]
    gone, back = before.hidden_rows(twins[0]), after.hidden_rows(twins[1])
    documents = shard.object("documents")
    if documents is None:
        return
    for rows, kind in ((back - gone, (KEPT, RETRACTED)), (gone - back, (RETRACTED, KEPT))):
        if not rows:
            continue
        found.changed[kind] += len(rows)
        held = found.samples.setdefault(kind, [])
        first = pa.array(sorted(rows)[: SAMPLES_MAX - len(held)], pa.int64())
        table = read_table(before.store, documents.key, ["id", "source", "row"]).take(first)
        held += [ChangedRecord(str(row["id"]), str(row["source"]), int(row["row"])) for row in table.to_pylist()]


def _groups(old: _Side, new: _Side) -> Iterator[dict[Place, int]]:
    """Fragments that are compared together, with the place at which each begins."""
    group: dict[Place, int] = {}
    total = 0
    for place in dict.fromkeys((*old.ends, *new.ends)):
        size = max(old.ends[place], new.ends[place])
        if group and total + size > GROUP_RECORDS:
            yield group
            group, total = {}, 0
        group[place] = total
        total += size
    if group:
        yield group


def _compare(old: _Side, new: _Side, group: dict[Place, int], fates: _Fates, found: Differences) -> None:
    places, starts = list(group), np.array(list(group.values()), np.int64)
    last = places[-1]
    total = group[last] + max(old.ends[last], new.ends[last])
    (was, text_was), (now, text_now) = (side.fill(group, total) for side in (old, new))
    found.records += int(((was != _IS_ABSENT) | (now != _IS_ABSENT)).sum())
    other = np.flatnonzero(was != now)
    pairs = was[other].astype(np.int64) << 32 | now[other]
    kinds, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    for number, (kind, count) in enumerate(zip(kinds.tolist(), counts.tolist(), strict=True)):
        name = (fates.names[kind >> 32], fates.names[kind & 0xFFFFFFFF])
        found.changed[name] += count
        _name(old, new, places, starts, other[np.flatnonzero(inverse == number)[:SAMPLES_MAX]], name, found)
    texts = np.flatnonzero((was == _IS_KEPT) & (now == _IS_KEPT) & (text_was != text_now)) if found.texts else other[:0]
    if len(texts):
        found.changed[KEPT, OTHER_TEXT] += len(texts)
        _name(old, new, places, starts, texts[:SAMPLES_MAX], (KEPT, OTHER_TEXT), found)


def _name(
    old: _Side,
    new: _Side,
    places: Sequence[Place],
    starts: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    kind: tuple[str, str],
    found: Differences,
) -> None:
    held = found.samples.setdefault(kind, [])
    for at in chosen.tolist()[: SAMPLES_MAX - len(held)]:
        number = int(np.searchsorted(starts, at, side="right")) - 1
        place, row = places[number], at - int(starts[number])
        held.append(ChangedRecord(new.name(place, row) or old.name(place, row), place[0], row))


def _rows_of(dataset: Dataset, shard: ClosedShard, fates: _Fates, *, texts: bool) -> Iterator[_Rows]:
    store = dataset.store
    documents, verdicts = shard.object("documents"), shard.object("verdicts")
    if documents is not None:
        table = read_table(store, documents.key, ["fragment", "row"])
        codes = np.full(table.num_rows, _IS_KEPT, np.int32)
        codes[[row for row in dataset.hidden_rows(shard) if row < table.num_rows]] = _IS_RETRACTED
        hashes = _hashes(dataset, shard, table.num_rows) if texts else np.zeros(table.num_rows, np.uint64)
        yield from _by_fragment(table, codes, hashes)
    if verdicts is not None:
        table = read_table(store, verdicts.key, ["fragment", "row", "verdict", "stage", "reason"])
        yield from _by_fragment(table, _codes(table, fates), np.zeros(table.num_rows, np.uint64))


def _by_fragment(table: pa.Table, codes: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]) -> Iterator[_Rows]:
    rows = np.asarray(table.column("row"), np.int64)
    numbers, names = codes_of(table, "fragment")
    for number, name in enumerate(names):
        here = slice(None) if len(names) == 1 else np.flatnonzero(numbers == number)
        yield _Rows(name, rows[here], codes[here], hashes[here])


def _codes(table: pa.Table, fates: _Fates) -> npt.NDArray[np.int32]:
    """The fate of each row of a table of verdicts, by number; particulars of a reason are left out."""
    key, names = np.zeros(table.num_rows, np.int64), [""]
    for column in ("verdict", "stage", "reason"):
        numbers, texts = codes_of(table, column)
        texts = [text.partition(": ")[0] for text in texts]
        key = key * max(1, len(texts)) + np.maximum(numbers, 0)
        behind = {"verdict": " ", "stage": "/", "reason": ""}[column]
        used, key = np.unique(key, return_inverse=True)
        # not of all pairs: a table may have as many stages, and as many reasons, as rows
        pairs = (divmod(number, max(1, len(texts))) for number in used.tolist())
        names = [f"{names[at]}{texts[text] if texts else ''}{behind}" for at, text in pairs]
    return np.array([fates.number(name) for name in names], np.int32)[key] if table.num_rows else key.astype(np.int32)


def _hashes(dataset: Dataset, shard: ClosedShard, rows: int) -> npt.NDArray[np.uint64]:
    """A hash of the text of each row of the documents table: of its tokens, else of its text."""
    store, tokens, documents = dataset.store, shard.object("tokens"), shard.object("documents")
    found = np.zeros(rows, np.uint64)
    digest = xxhash.xxh3_64_intdigest
    if tokens is not None:
        _hash_tokens(read_shard(store, tokens.key), found)
    elif documents is not None and "text" in column_names(store, documents.key):
        at = 0
        for table in read_row_groups(store, documents.key, ["text"]):
            texts = table.column("text").cast(pa.large_binary()).to_pylist()
            found[at : at + len(texts)] = [digest(text or b"") for text in texts]
            at += len(texts)
    elif documents is not None and (lines := shard.object("lines")) is not None:
        for row, line in numbered_lines(store, lines.key, rows, dataset.state.erased_rows(documents.key)):
            found[row] = digest(line.rstrip(b"\n"))
    return found


def _hash_tokens(arrays: dict[str, npt.NDArray[Any]], found: npt.NDArray[np.uint64]) -> None:
    packed = arrays["tokens"]
    width, columns = packed.dtype.itemsize, packed.shape[1] if packed.ndim == 2 else 0
    data: Any = memoryview(cast("Any", np.ascontiguousarray(packed).reshape(-1).view(np.uint8)))
    start = arrays["piece_sequence"].astype(np.int64) * columns + arrays["piece_start"]
    end = start + arrays["piece_length"]
    if "piece_repeated" in arrays:
        start = start + arrays["piece_repeated"]
    owner = arrays["piece_document"]
    if owner.size and not (
        0 <= owner.min() <= owner.max() < len(found) and start.min() >= 0 and end.max() <= packed.size
    ):
        raise FormatError(
            "a shard's pieces lie outside of its tokens or documents: `headrace dataset verify` says where"
        )
    single = np.bincount(owner, minlength=len(found))[owner] == 1
    digest = xxhash.xxh3_64_intdigest
    bounds = zip((start[single] * width).tolist(), (end[single] * width).tolist(), strict=True)
    found[owner[single]] = np.array([digest(data[first:stop]) for first, stop in bounds], np.uint64)
    several: dict[int, Any] = {}
    parts = (array[~single].tolist() for array in (owner, start * width, end * width))
    for document, first, stop in zip(*parts, strict=True):
        if document not in several:
            several[document] = xxhash.xxh3_64()
        several[document].update(data[first:stop])
    for document, state in several.items():
        found[document] = state.intdigest()
