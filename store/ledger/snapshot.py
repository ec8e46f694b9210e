"""A fold as one object beside the log: columns, so that a billion closed records open in seconds.

The bytes are a magic, the length of a msgpack header, the header, and after it little-endian arrays, each at a multiple
of 8. The header names the fold's kind, its scalars and tables of words, and for each array its type, length and place;
a checksum of the arrays stands in it too. A snapshot is derived: it says what the entries up to its number say.
Decoding is total: any bytes give a fold or a FormatError.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import xxhash

from headrace.pipeline import shape_problem
from headrace.store import FormatError, misfit
from headrace.store.ledger.core.cluster_changes import QueueSet, TokenSpent, WorkerJoined
from headrace.store.ledger.core.cluster_fold import ClusterState, RunRecord
from headrace.store.ledger.core.entries import (
    Closed,
    FragmentDropped,
    PrefixRead,
    VersionSeen,
    counts_of,
    counts_row,
    stored_object,
)
from headrace.store.ledger.core.fold import ClosedShard, FragmentState, LedgerState, Published
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from headrace.store.ledger.core.intervals import IntervalSet
from headrace.store.ledger.core.log_state import LogState
from headrace.store.ledger.core.totals import Totals
from headrace.store.shards import is_checksum

MAGIC = b"HRSNAP01"
#: The version of what the header and the arrays hold.
SNAPSHOT_FORMAT = 1
#: That of a fold with a version that is held: a Headrace which knows no gate would publish it.
HELD_FORMAT = 2
_ALIGNMENT = 8
_LOG_FIELDS = ("number", "term", "leader", "resigned", "origin", "led_at")
_LEDGER_FIELDS = (
    "pipeline",
    "pipeline_version",
    "pipeline_number",
    "pipelines",
    "epoch",
    "version",
    "published",
    "retracted",
    "erased",
    "retracted_at",
    "held_at",
    "held",
    "removed",
)
#: Every field of a fold stands in a snapshot, but for `totals`, counted anew; a test holds this to the classes.
LEDGER_COVERED = {*_LOG_FIELDS, *_LEDGER_FIELDS, "fragments", "seen", "shards", "accepted", "counts", "totals"}
CLUSTER_COVERED = {*_LOG_FIELDS, "workers", "runs", "tokens", "drained", "leaving", "expelled", "queues", "queued"}

Arrays = dict[str, npt.NDArray[Any]]


class _Words(dict[str, int]):
    """Strings by number, each once."""

    def number(self, word: str) -> int:
        return self.setdefault(word, len(self))


def encode_snapshot(state: LogState) -> bytes:
    """The bytes of a fold: the same for the same fold."""
    scalars = {name: _plain(getattr(state, name)) for name in _LOG_FIELDS}
    if isinstance(state, LedgerState):
        kind, (tables, arrays) = "ledger", _ledger_columns(state)
        scalars.update({name: _plain(getattr(state, name)) for name in _LEDGER_FIELDS})
    elif isinstance(state, ClusterState):
        kind, tables, arrays = "cluster", _cluster_tables(state), {}
    else:
        raise TypeError(f"a snapshot holds no {type(state).__name__}")
    body, places = _joined(arrays)
    known = HELD_FORMAT if isinstance(state, LedgerState) and state.held else SNAPSHOT_FORMAT
    header = [known, kind, scalars, tables, places, xxhash.xxh3_128_hexdigest(body)]
    packed = msgpack.packb(header, use_bin_type=True)
    packed += b"\xc1" * (-(len(MAGIC) + 8 + len(packed)) % _ALIGNMENT)
    return b"".join((MAGIC, len(packed).to_bytes(8, "little"), packed, body))


def decode_snapshot(data: bytes) -> LogState:
    """The fold of these bytes. Raises FormatError for any others."""
    collects = gc.isenabled()
    # All that is made here stays: looking for garbage in it takes a third of the time.
    gc.disable()
    try:
        return _decode(data)
    finally:
        if collects:
            gc.enable()


def _decode(data: bytes) -> LogState:
    try:
        if data[: len(MAGIC)] != MAGIC:
            raise FormatError("not a snapshot of a ledger: it does not begin with HRSNAP01")
        length = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 8], "little")
        start = len(MAGIC) + 8
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=max(1, length))
        unpacker.feed(data[start : start + length])
        known, kind, scalars, tables, places, checksum = unpacker.unpack()
        if known not in (SNAPSHOT_FORMAT, HELD_FORMAT):
            raise FormatError(
                f"a snapshot of format {known!r}; this Headrace reads {SNAPSHOT_FORMAT} and {HELD_FORMAT}: upgrade it"
            )
        body = memoryview(data)[start + length :]
        if xxhash.xxh3_128_hexdigest(body) != checksum:
            raise FormatError("a snapshot whose arrays do not have their checksum")
        arrays = {
            name: np.frombuffer(body, dtype=_dtype_of(name, dtype), count=count, offset=offset)
            for name, dtype, count, offset in places
        }
        _check_naturals(arrays)
        state: LogState = _ledger(tables, arrays) if kind == "ledger" else _cluster(tables)
        if isinstance(state, LedgerState):
            scalars["published"] = _published(state, scalars)
            scalars["held"] = tuple(scalars.get("held", ()))
            for checksum, rows in scalars.get("erased", {}).values():
                if not is_checksum(checksum) or not all(type(row) is int and row >= 0 for row in rows):
                    raise FormatError("a snapshot with erased rows of no checksum: no Headrace writes that")
        names = (*_LOG_FIELDS, *_LEDGER_FIELDS) if isinstance(state, LedgerState) else _LOG_FIELDS
        for name in names:
            if name in scalars:
                setattr(state, name, scalars[name])
        _sound(state, names)
        _check_pipelines(state)
        return state
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"not a snapshot ({len(data)} bytes): {type(error).__name__}: {error}") from error


#: Counts, ordinals and sizes.
_NATURALS = {"range.first", "range.count", "object.size", "run.first"}


def _check_naturals(arrays: Arrays) -> None:
    for name in _NATURALS & arrays.keys():
        if arrays[name].size and (least := int(arrays[name].min())) < 0:
            raise FormatError(f"a snapshot whose array {name!r} holds {least}: no Headrace writes that")


def _check_pipelines(state: LogState) -> None:
    found: list[Mapping[str, Any]] = []
    if isinstance(state, LedgerState):
        found = [state.pipeline, *state.pipelines.values()]
    elif isinstance(state, ClusterState):
        found = [run.pipeline for run in (*state.runs.values(), *state.queued.values())]
    if problem := next(filter(None, map(shape_problem, found)), ""):
        raise FormatError(f"a snapshot with a pipeline that is none: {problem}: no Headrace writes that")


def _dtype_of(name: str, said: str) -> np.dtype[Any]:
    """The type of an array, which its name has already: 16 bytes for what names or checks, else a number."""
    known = "|V16" if name.endswith((".id", ".value")) else "<i8"
    if said != known:
        raise FormatError(f"a snapshot whose array {name!r} is of {said!r}, not of {known}")
    return np.dtype(known)


def _sound(record: Any, names: Sequence[str] = ()) -> Any:
    """The record, if what was read into its fields is of their kind. Raises FormatError."""
    if wrong := misfit(record, names):
        raise FormatError(f"a snapshot with a {type(record).__name__} whose {wrong}: no Headrace writes that")
    return record


def _joined(arrays: Arrays) -> tuple[bytes, list[list[Any]]]:
    parts: list[bytes] = []
    places: list[list[Any]] = []
    offset = 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        places.append([name, array.dtype.str, len(array), offset])
        padding = -len(data) % _ALIGNMENT
        parts += [data, b"\0" * padding]
        offset += len(data) + padding
    return b"".join(parts), places


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _column(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array(values, dtype="<i8")


# -- a dataset's ledger --


def _ledger_columns(state: LedgerState) -> tuple[dict[str, Any], Arrays]:
    words = _Words()
    arrays: Arrays = {}
    index = {name: number for number, name in enumerate(state.fragments)}
    fragments = [item.fragment for item in state.fragments.values()]
    arrays["fragment.id"] = _ids(index)
    for name in ("start", "end", "size"):
        arrays[f"fragment.{name}"] = _column([getattr(item, name) for item in fragments])
    for name in ("stage", "uri", "version", "reader"):
        arrays[f"fragment.{name}"] = _column([words.number(getattr(item, name)) for item in fragments])
    counts = [-1 if item.count is None else item.count for item in state.fragments.values()]
    arrays["fragment.count"] = _column(counts)
    checked = [(number, item.checksum) for number, item in enumerate(state.fragments.values()) if item.checksum]
    arrays["checksum.fragment"] = _column([number for number, _ in checked])
    arrays["checksum.value"] = _ids(checksum for _, checksum in checked)
    _interval_columns(state, words, arrays)
    _shard_columns(state, words, index, arrays)
    arrays["accepted.id"] = _ids(state.accepted)
    arrays["accepted.number"] = _column(list(state.accepted.values()))
    tables = {
        "words": list(words),
        "counts": {sink: _counts_row(item) for sink, item in state.counts.items()},
        "dropped": [
            [name, item.dropped.reason, item.dropped.reread]
            for name, item in state.fragments.items()
            if item.dropped is not None
        ],
        "prefixes": [
            [name, item.prefix.count, item.prefix.size, item.prefix.checksum]
            for name, item in state.fragments.items()
            if item.prefix is not None
        ],
        "seen": [[item.stage, item.uri, item.version, item.same] for item in state.seen.values()],
        "released": [
            [name, sink, sorted(rows)] for name, item in state.fragments.items() for sink, rows in item.released.items()
        ],
        "shard_counts": [_counts_row(shard.closed.counts) for shard in state.shards],
    }
    return tables, arrays


def _interval_columns(state: LedgerState, words: _Words, arrays: Arrays) -> None:
    """The closed intervals of each fragment and sink, as rows of (fragment, sink, runs) before their runs."""
    rows: list[tuple[int, int, int]] = []
    runs: tuple[list[int], ...] = ([], [], [], [])
    for number, item in enumerate(state.fragments.values()):
        for sink, intervals in item.closed.items():
            columns = intervals.columns()
            rows.append((number, words.number(sink), len(columns[0])))
            for held, column in zip(runs, columns, strict=True):
                held.extend(column)
    for position, name in enumerate(("fragment", "sink", "runs")):
        arrays[f"closed.{name}"] = _column([row[position] for row in rows])
    for name, held in zip(("first", "end", "offset", "stop"), runs, strict=True):
        arrays[f"run.{name}"] = _column(held)


def _shard_columns(state: LedgerState, words: _Words, index: dict[bytes, int], arrays: Arrays) -> None:
    closed = [shard.closed for shard in state.shards]
    arrays["shard.number"] = _column([shard.number for shard in state.shards])
    arrays["shard.sink"] = _column([words.number(item.sink) for item in closed])
    arrays["shard.version"] = _column([words.number(item.version) for item in closed])
    arrays["shard.epoch"] = _column([item.epoch for item in closed])
    arrays["shard.ranges"] = _column([len(item.ranges) for item in closed])
    arrays["shard.objects"] = _column([len(item.objects) for item in closed])
    ranges = [part for item in closed for part in item.ranges]
    arrays["range.fragment"] = _column([index[part.fragment] for part in ranges])
    for name in ("first", "count", "offset", "length"):
        arrays[f"range.{name}"] = _column([getattr(part, name) for part in ranges])
    objects = [part for item in closed for part in item.objects]
    for name in ("role", "key", "checksum"):
        arrays[f"object.{name}"] = _column([words.number(getattr(part, name)) for part in objects])
    arrays["object.size"] = _column([part.size for part in objects])


def _ids(parts: Iterable[bytes]) -> npt.NDArray[Any]:
    joined = b"".join(parts)
    return np.frombuffer(joined, dtype="V16") if joined else np.empty(0, dtype="V16")


def _counts_row(counts: Counts) -> list[Any]:
    return [value if isinstance(value, int) else dict(value) for value in counts_row(counts)]


def _ledger(tables: Any, arrays: Arrays) -> LedgerState:
    words: list[str] = tables["words"]
    if not all(type(word) is str for word in words):
        raise FormatError("a snapshot whose words are no texts")
    state = LedgerState()
    ids = [bytes(item) for item in arrays["fragment.id"].tolist()]
    columns = [arrays[f"fragment.{name}"].tolist() for name in _FRAGMENT]
    for name, stage, uri, version, start, end, reader, size, count in zip(ids, *columns, strict=True):
        fragment = Fragment(name, words[stage], words[uri], words[version], start, end, words[reader], size)
        state.fragments[name] = FragmentState(fragment, None if count < 0 else count)
    for number, checksum in zip(*(arrays[name].tolist() for name in _CHECKSUM if name in arrays), strict=True):
        state.fragments[ids[number]].checksum = bytes(checksum)
    state.seen = {(row[0], row[1]): _sound(VersionSeen(*row)) for row in tables.get("seen", ())}
    for name, reason, reread in tables.get("dropped", ()):
        state.fragments[name].dropped = _sound(FragmentDropped(name, reason, reread))
    for name, *row in tables.get("prefixes", ()):
        state.fragments[name].prefix = _sound(PrefixRead(name, *row))
    for name, sink, rows in tables.get("released", ()):
        state.fragments[name].released[sink] = set(rows)
        _sound(state.fragments[name], ("released",))
    _restore_intervals(state, ids, words, arrays)
    _restore_shards(state, ids, words, arrays, [_sound(counts_of(row)) for row in tables["shard_counts"]])
    accepted = [bytes(item) for item in arrays["accepted.id"].tolist()]
    state.accepted = dict(zip(accepted, arrays["accepted.number"].tolist(), strict=True))
    state.counts = {sink: _sound(counts_of(row)) for sink, row in tables["counts"].items()}
    state.totals = Totals.of(state.fragments.values())
    _sound(state, ("counts",))
    return state


def _published(state: LedgerState, scalars: dict[str, Any]) -> dict[int, Published]:
    """What each version shows. Snapshots of before told the entry alone, and the newest apart from the others."""
    found: dict[int, Any] = dict(scalars["published"])
    if (number := scalars.pop("version_number", -1)) >= 0:
        found.setdefault(scalars["version"], number)
    closed = all(fragment.done(tuple(state.counts)) for fragment in state.fragments.values())
    return {
        version: Published(row, row, closed or version < scalars["version"])
        if isinstance(row, int)
        else Published(*row[:5], *(tuple(tuple(item) for item in part) for part in row[5:]))
        for version, row in found.items()
    }


_CHECKSUM = ("checksum.fragment", "checksum.value")
_FRAGMENT = ("stage", "uri", "version", "start", "end", "reader", "size", "count")


def _restore_intervals(state: LedgerState, ids: list[bytes], words: list[str], arrays: Arrays) -> None:
    runs = [arrays[f"run.{name}"].tolist() for name in ("first", "end", "offset", "stop")]
    rows = [arrays[f"closed.{name}"].tolist() for name in ("fragment", "sink", "runs")]
    start = 0
    for fragment, sink, count in zip(*rows, strict=True):
        held = IntervalSet.of_columns(*(column[start : start + count] for column in runs))
        state.fragments[ids[fragment]].closed[words[sink]] = held
        start += count


def _restore_shards(
    state: LedgerState, ids: list[bytes], words: list[str], arrays: Arrays, counts: list[Counts]
) -> None:
    columns = [arrays[f"range.{name}"].tolist() for name in ("fragment", "first", "count", "offset", "length")]
    ranges = [Range(ids[row[0]], *row[1:]) for row in zip(*columns, strict=True)]
    columns = [arrays[f"object.{name}"].tolist() for name in ("role", "key", "checksum", "size")]
    rows = zip(*columns, strict=True)
    objects = [stored_object(words[role], words[key], words[check], size) for role, key, check, size in rows]
    columns = [arrays[f"shard.{name}"].tolist() for name in ("number", "sink", "version", "epoch", "ranges", "objects")]
    range_at = object_at = 0
    for row, count in zip(zip(*columns, strict=True), counts, strict=True):
        number, sink, version, epoch, many, few = row
        mine, stored = tuple(ranges[range_at : range_at + many]), tuple(objects[object_at : object_at + few])
        closed = Closed(words[sink], words[version], epoch, mine, stored, count)
        state.shards.append(ClosedShard(number, closed))
        range_at, object_at = range_at + many, object_at + few


# -- the cluster's log --


def _cluster_tables(state: ClusterState) -> dict[str, Any]:
    return {
        "workers": [_row(item) for item in state.workers.values()],
        "runs": {name: _row(item) for name, item in state.runs.items()},
        "tokens": [_row(item) for item in state.tokens.values()],
        "drained": sorted(state.drained),
        "leaving": sorted(state.leaving),
        "expelled": state.expelled,
        "queues": [_row(item) for item in state.queues.values()],
        "queued": {name: _row(item) for name, item in state.queued.items()},
    }


def _row(record: Any) -> list[Any]:
    return [_plain(getattr(record, name)) for name in record.__match_args__]


def _cluster(tables: Any) -> ClusterState:
    state = ClusterState()
    state.workers = {row[0]: _sound(WorkerJoined(*row)) for row in tables["workers"]}
    state.runs = {name: _sound(RunRecord(*row)) for name, row in tables["runs"].items()}
    state.tokens = {row[0]: _sound(TokenSpent(*row)) for row in tables["tokens"]}
    state.drained, state.leaving = set(tables.get("drained", ())), set(tables.get("leaving", ()))
    state.expelled = {member: list(keys) for member, keys in tables.get("expelled", {}).items()}
    state.queues = {row[0]: _sound(QueueSet(*row)) for row in tables.get("queues", ())}
    state.queued = {name: _sound(RunRecord(*row)) for name, row in tables.get("queued", {}).items()}
    _sound(state, ("runs", "drained", "leaving", "expelled", "queued"))
    return state
