"""Checking a dataset against its ledger: objects by checksum, records by ordinal, documents by their pieces."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headrace.store import ChecksumMismatch, FormatError, ObjectMissing, ObjectStore, counted
from headrace.store.datasets.dataset import Dataset, Description, fold_ledger, main_object
from headrace.store.datasets.manifest import MANIFEST_KEY, doubt, entry_of
from headrace.store.datasets.retraction import numbered_lines
from headrace.store.datasets.verify_whole import unnamed_objects, whole_problems
from headrace.store.ledger import Closed, LedgerState, Log, StoredObject, snapshot_problems
from headrace.store.shards import (
    GRAVITY,
    Ordinals,
    broken_rows,
    codes_of,
    keys_of,
    read_shard,
    read_table,
    rows_of,
    verify_object,
)

#: Problems that are told of one shard; the rest of them only repeat the story.
PROBLEMS_PER_SHARD_MAX = 50
_RESTORE = "`headrace dataset rebuild --restore` makes it again from its source"
#: What a manifest says that follows from the ledger alone.
_COMPARED = ("version", "entry", "complete", "pipeline", "shards", "retracted")
_NOTHING_SAID = Description(None, None, None, None, "")
_BROKEN_SINK = "the sink that wrote it is broken, write the dataset again and report it"


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and each problem in one line that names object and remedy."""

    shards: int
    objects: int
    #: bytes of the objects that were read
    size: int
    #: each once, though every sink closes it: those of the sink that has closed most
    records: int
    problems: tuple[str, ...]
    #: Objects that no entry names, and their bytes: what sinks that died have left.
    unnamed: int = 0
    unnamed_size: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_shards(store: ObjectStore, state: LedgerState, *, shards_only: bool = False) -> Report:
    """Check every shard of the folded ledger, one at a time.

    With `shards_only`, for an older version, neither manifest nor snapshots nor unnamed objects are looked at.
    Raises `StoreUnavailable` where the store cannot be read at all.
    """
    problems: list[str] = []
    objects = size = 0
    closed_by = Counter[str]()
    for shard in state.shards:
        closed = shard.closed
        found: list[str] = []
        intact: dict[str, StoredObject] = {}
        for item in closed.objects:
            problem = _object_problem(store, item)
            if problem is None:
                intact[item.role] = item
                size += item.size
            else:
                found.append(problem)
        found += [f"{problem}; {_BROKEN_SINK}" for problem in _content_problems(store, state, closed, intact)]
        problems += [f"entry {shard.number}: {problem}" for problem in found[:PROBLEMS_PER_SHARD_MAX]]
        objects += len(closed.objects)
        closed_by[closed.sink] += closed.counts.records
    records = max(closed_by.values(), default=0)
    problems += whole_problems(store, state)
    if shards_only:
        return Report(len(state.shards), objects, size, records, tuple(problems))
    problems += snapshot_problems(Log(store))
    try:
        problems += _manifest_problems(store, state)
    except FormatError as error:
        problems.append(str(error))
    unnamed = unnamed_objects(store, state)
    left = sum(info.size for info in unnamed)
    return Report(len(state.shards), objects, size, records, tuple(problems), len(unnamed), left)


def _object_problem(store: ObjectStore, item: StoredObject) -> str | None:
    try:
        size = verify_object(store, item.key, item.checksum)
    except ObjectMissing:
        return f"{item.key} is missing ({item.role}, {item.size} bytes); {_RESTORE}"
    except (ChecksumMismatch, FormatError) as error:
        return str(error)
    return None if size == item.size else f"{item.key} has {size} bytes, the ledger recorded {item.size}; {_RESTORE}"


def _content_problems(
    store: ObjectStore, state: LedgerState, closed: Closed, intact: dict[str, StoredObject]
) -> Iterator[str]:
    """Yield what the tables of one shard say otherwise than the ledger; objects known to be broken are left out."""
    documents = verdicts = None
    try:
        if "documents" in intact:
            documents = read_table(store, intact["documents"].key, ["fragment", "row", "part", "tokens"])
        if "verdicts" in intact:
            verdicts = read_table(store, intact["verdicts"].key, ["fragment", "row", "part", "verdict"])
        if documents is not None and verdicts is not None:
            yield from _ordinal_problems(state, closed, documents, verdicts, intact["verdicts"].key)
            yield from _count_problems(closed, documents, verdicts, intact["verdicts"].key)
        if documents is not None and "tokens" in intact:
            yield from _piece_problems(closed, read_shard(store, intact["tokens"].key), documents, intact["tokens"].key)
        if verdicts is not None:
            yield from _quarantine_problems(store, closed, verdicts, intact)
        main = main_object(closed)
        if documents is not None and main is not None and "lines" in intact:
            lines = numbered_lines(store, intact["lines"].key, documents.num_rows, state.erased_rows(main.key))
            deque(lines, maxlen=0)  # the last one says whether there are as many as rows
    except (FormatError, pa.ArrowException, KeyError) as error:
        yield f"a table or shard cannot be read: {error}"


def _ordinal_problems(
    state: LedgerState, closed: Closed, documents: pa.Table, verdicts: pa.Table, key: str
) -> Iterator[str]:
    """Conservation: documents and verdicts together are the ordinals of the ranges, each once (or its parts are)."""
    found = _keys(documents, verdicts)
    expected: dict[str, list[Ordinals]] = {}
    for item in closed.ranges:
        expected.setdefault(item.fragment.hex(), []).append(np.arange(item.first, item.end))
    for fragment in sorted(expected.keys() | found.keys()):
        closes = np.concatenate(expected.get(fragment, [np.zeros(0, np.int64)]))
        keys = found.get(fragment, np.zeros(0, np.int64))
        known = state.fragments.get(_unhex(fragment))
        name = f"fragment {fragment}" if known is None else known.fragment.uri
        unique = np.unique(rows_of(keys))
        for verb, wrong in (
            ("lack", np.setdiff1d(closes, unique)),
            ("hold beyond its ranges", np.setdiff1d(unique, closes)),
            ("hold more than once, or not in all parts,", broken_rows(keys)),
        ):
            if wrong.size:
                what = counted(wrong.size, "record")
                yield f"{key} and its documents {verb} {what} of {name}, first record {wrong[0]}"


def _keys(*tables: pa.Table) -> dict[str, Ordinals]:
    """Return the keys (`headrace.store.shards.core.parts`) of the tables' rows, by fragment."""
    both = pa.concat_tables([_with_part(table).select(["fragment", "row", "part"]) for table in tables])
    codes, names = codes_of(both, "fragment")
    rows = keys_of(_integers(both, "row", -1), both.column("part"))
    found = {name: rows[codes == code] for code, name in enumerate(names)}
    if (codes < 0).any():
        found["(null)"] = rows[codes < 0]
    return found


def _with_part(table: pa.Table) -> pa.Table:
    """The table; one of the time before records could be split has no parts."""
    if "part" in table.column_names:
        return table
    return table.append_column("part", pa.nulls(table.num_rows, pa.int32()))


def _integers(table: pa.Table, column: str, null: int) -> Ordinals:
    values: Any = table.column(column)
    return np.asarray(values.fill_null(null), dtype=np.int64)


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _count_problems(closed: Closed, documents: pa.Table, verdicts: pa.Table, key: str) -> Iterator[str]:
    kept = {fragment: rows_of(keys) for fragment, keys in _keys(documents).items()}
    given = _lost(verdicts, kept)
    counts = closed.counts
    held = sum(len(np.unique(rows)) for rows in kept.values())
    expected = {"filtered": counts.filtered, "duplicate": counts.duplicate, "quarantined": counts.quarantined}
    if held != counts.kept:
        yield f"{key}: its documents table has {counted(held, 'record')}, the ledger counts {counts.kept} kept"
    for verdict in sorted({*given, *expected}):
        if given.count(verdict) != expected.get(verdict, 0):
            yield f"{key} has {given.count(verdict)} {verdict}, the ledger counts {expected.get(verdict, 0)}"


def _lost(verdicts: pa.Table, kept: dict[str, Ordinals]) -> list[str]:
    """The verdict of each record that was not kept: of several parts the gravest."""
    given = [str(verdict) for verdict in verdicts.column("verdict").to_pylist()]
    if "part" not in verdicts.column_names or verdicts.column("part").null_count == verdicts.num_rows:
        return given
    gravest: dict[tuple[str, int], str] = {}
    held = {(fragment, row) for fragment, rows in kept.items() for row in rows.tolist()}
    columns: list[Any] = [verdicts.column(name).to_pylist() for name in ("fragment", "row")]
    for fragment, row, verdict in zip(*columns, given, strict=True):
        if (fragment, row) not in held:
            gravest[fragment, row] = min(gravest.get((fragment, row), verdict), verdict, key=_gravity)
    return list(gravest.values())


def _gravity(verdict: str) -> int:
    return GRAVITY.index(verdict) if verdict in GRAVITY else len(GRAVITY)


def _piece_problems(
    closed: Closed, arrays: dict[str, npt.NDArray[Any]], documents: pa.Table, key: str
) -> Iterator[str]:
    """Pieces lie apart inside the sequences, and a document's are as long as its row says."""
    if arrays["tokens"].ndim != 2:
        yield f"{key}: its tokens have the shape {arrays['tokens'].shape}, not [sequences, seq_len]"
        return
    sequences, seq_len = arrays["tokens"].shape
    names = ("piece_document", "piece_sequence", "piece_start", "piece_length")
    document, sequence, start, length = (arrays[name].astype(np.int64) for name in names)
    tokens = _integers(documents, "tokens", 0)
    if not document.shape == sequence.shape == start.shape == length.shape:
        yield f"{key}: its piece arrays differ in length"
        return
    outside = (document < 0) | (document >= tokens.size) | (sequence < 0) | (sequence >= sequences)
    outside |= (start < 0) | (length < 1) | (start + length > seq_len)
    if outside.any():
        lie = counted(int(outside.sum()), "piece lies", "pieces lie")
        yield f"{key}: {lie} outside of sequences or documents, first piece {outside.argmax()}"
        return
    begin = sequence * seq_len + start
    order = np.argsort(begin, kind="stable")
    overlaps = begin[order][1:] < (begin + length)[order][:-1]
    if overlaps.any():
        found = counted(int(overlaps.sum()), "piece overlaps another", "pieces overlap others")
        yield f"{key}: {found}, first in sequence {sequence[order][1:][overlaps][0]}"
    if (np.diff(document) < 0).any():
        yield f"{key}: its pieces are not in the order of the documents"
    repeated = arrays.get("piece_repeated", np.zeros(1, np.int32)).astype(np.int64) * np.ones_like(length)
    yield from _overlap_problems(arrays["tokens"].reshape(-1), document, begin, length, repeated, key)
    sums = np.bincount(document, weights=length - repeated, minlength=tokens.size).astype(np.int64)
    wrong = np.flatnonzero(sums != tokens)
    if wrong.size:
        at = int(wrong[0])
        differ = counted(wrong.size, "document differs", "documents differ")
        yield f"{key}: {differ} from the pieces, row {at} by {sums[at]} to {tokens[at]} tokens"
    counts, total = closed.counts, int((length - repeated).sum())
    if (total, sequences, sequences * seq_len - int(length.sum())) != (counts.tokens, counts.sequences, counts.padding):
        yield (
            f"{key} has {total} tokens in {sequences} sequences, the ledger counts {counts.tokens} "
            f"in {counts.sequences} with {counts.padding} of padding"
        )


def _overlap_problems(
    line: npt.NDArray[Any], document: Ordinals, begin: Ordinals, length: Ordinals, repeated: Ordinals, key: str
) -> Iterator[str]:
    """What a piece repeats is the end of its document's piece before; `begin` is where in `line` a piece lies."""
    later = np.flatnonzero(repeated != 0)
    before = later - 1
    fits = (before >= 0) & (repeated[later] > 0) & (repeated[later] < length[later])
    fits &= (document[before] == document[later]) & (repeated[later] <= length[before])
    wrong = int((~fits).sum())
    for piece in later[fits].tolist():
        count, end = repeated[piece], begin[piece - 1] + length[piece - 1]
        wrong += not np.array_equal(line[begin[piece] : begin[piece] + count], line[end - count : end])
    if wrong:
        begins = counted(wrong, "piece does", "pieces do")
        yield f"{key}: {begins} not begin with what the piece before them ends with, as they say"


def _quarantine_problems(
    store: ObjectStore, closed: Closed, verdicts: pa.Table, intact: dict[str, StoredObject]
) -> Iterator[str]:
    """Each quarantined record's raw bytes are kept."""
    named = any(item.role == "quarantine" for item in closed.objects)
    if named and "quarantine" not in intact:
        return
    mask = np.array([verdict == "quarantined" for verdict in verdicts.column("verdict").to_pylist()], dtype=np.bool_)
    expected = _keys(verdicts.filter(pa.array(mask))) if mask.any() else {}
    found = _keys(read_table(store, intact["quarantine"].key, ["fragment", "row", "part"])) if named else {}
    for fragment in sorted(expected.keys() | found.keys()):
        wanted, held = (np.sort(part.get(fragment, np.zeros(0, np.int64))) for part in (expected, found))
        if not np.array_equal(wanted, held):
            key = intact["quarantine" if named else "verdicts"].key
            raw = counted(held.size, "raw record")
            yield f"{key}: {raw} of fragment {fragment} for {wanted.size} that are quarantined"


def _manifest_problems(store: ObjectStore, state: LedgerState) -> Iterator[str]:
    """A manifest is what the ledger's newest version says.

    It may be newer than this fold, where a run goes on: then the ledger is folded again.
    """
    derive = f"verify again if a run is just publishing, else `headrace dataset gc {store.uri}` derives it anew"
    try:
        manifest: Any = orjson.loads(store.get(MANIFEST_KEY))
        entry, shown = entry_of(manifest), {name: manifest.get(name) for name in _COMPARED}
        named = {shard["tokens"]: shard["checksum"] for shard in manifest["shards"]}
    except ObjectMissing:
        if state.newest is not None:
            yield f"{MANIFEST_KEY} is missing, and entry {state.newest.number} published a version; {derive}"
        return
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"{MANIFEST_KEY} cannot be read ({type(error).__name__}: {error}); {derive}"
        return
    state = fold_ledger(store) if entry > state.number else state
    known = {item.key: item.checksum for shard in state.shards for item in shard.closed.objects}
    for key in sorted(named.keys(), key=str):
        if known.get(key) != named[key]:
            yield f"{MANIFEST_KEY} names {key} with {named[key]}, the ledger does not; {derive}"
            return
    if entry < 0:
        yield f"{MANIFEST_KEY} names no entry of the ledger, as those of an earlier Headrace; {derive}"
        return
    try:
        why = doubt(store, entry, manifest["version"])
    except FormatError as error:
        yield str(error)
        return
    if why:
        yield f"{MANIFEST_KEY} {why}; {derive}"
        return
    expected = Dataset(store, state).manifest(_NOTHING_SAID)
    for name in _COMPARED:
        if shown[name] != expected.get(name):
            yield f"{MANIFEST_KEY} says otherwise than the ledger in {name!r}; {derive}"
