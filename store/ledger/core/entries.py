"""The changes that a ledger entry holds, and their bytes.

An entry is one object of the log: a term and a list of changes. Everything durable is a change here; a reader that
folds the entries in order knows all that Headrace knows. The codec is msgpack with the change's name first, so an
entry can be read by anyone with a msgpack library (docs/reference/format.md). Decoding is total: any bytes
give an entry or an EntryError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias, cast, get_args

import msgpack
import xxhash

from headrace.pipeline import shape_problem
from headrace.store import NUMBER_MAX, Moment, Natural, misfit
from headrace.store.ledger.core.cluster_changes import ClusterChange
from headrace.store.ledger.core.fragments import Counts, Fragment, Range, StoredObject
from headrace.store.shards import is_checksum, is_key, is_key_of

#: Characters around one that cannot be encoded which are shown.
_SHOWN = 80
#: The version of the encoding below; a reader refuses one that it does not know.
ENTRY_FORMAT = 1
#: Bytes of a fragment's checksum.
CHECKSUM_BYTES = 16


class EntryError(ValueError):
    """Bytes that are no ledger entry of a format known here."""


def stored_object(role: str, key: str, checksum: str, size: int) -> StoredObject:
    """An object as an entry or a snapshot names it. Raises EntryError where key or checksum has another shape than
    those that sinks write: names of files are made of them.
    """
    if not is_key(key) or not is_key_of(role, key) or not is_checksum(checksum):
        raise EntryError(
            f"a {str(role)[:80]} {str(key)[:200]!r} with checksum {str(checksum)[:80]!r}: keys look like "
            "shards/7/<32 hex digits>.safetensors, checksums like xxh3-128:<32 hex digits>"
        )
    return StoredObject(role, key, checksum, size)


def counts_row(counts: Counts) -> list[Any]:
    """The values of counts in the order of the fields; of counters only where there are any, as before there were."""
    row = list(_VALUES_OF(counts))
    return row if counts.counters else row[:-1]


def counts_of(row: Sequence[Any]) -> Counts:
    """The inverse of `counts_row`. Where `edited` has `stage/name` besides stages, as it had, these are counters."""
    counts = Counts(*row)
    held = {key: count for key, count in counts.edited.items() if "/" in key}
    if not held:
        return counts
    edited = {key: count for key, count in counts.edited.items() if key not in held}
    return replace(counts, edited=edited, counters={**held, **counts.counters})


_VALUES_OF: Callable[[Counts], tuple[Any, ...]] = attrgetter(*Counts.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Led:
    """A term begins. `leader` names the process: host, boot, pid and its start, so that its death can be proved."""

    term: int
    leader: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resigned:
    """The leader of `term` has stopped by itself; whoever comes next need not wait for it."""

    term: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The leader lives and had nothing else to say."""

    term: int


@dataclass(frozen=True, slots=True)
class PipelineApplied:
    """The pipeline that makes the dataset from here on, as JSON, with its version."""

    version: str
    pipeline: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpochRaised:
    """Data of earlier epochs is fenced off. The epoch's number is that of this entry, or of an earlier one.

    `number` is then that entry: the tasks of the epoch were started before it was raised, and had nothing closed.
    """

    reason: str
    number: Natural = 0


@dataclass(frozen=True, slots=True)
class FragmentsListed:
    """A page of a source's listing; only fragments that the ledger did not know."""

    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class FragmentEnded:
    """A fragment was read to its end and holds `count` records.

    `checksum` is the xxh3-128 of its `size` bytes from `start` on, as they are stored; empty where nobody took it.
    """

    fragment: bytes
    count: Natural
    checksum: bytes = b""


@dataclass(frozen=True, slots=True)
class PrefixRead:
    """The first `count` records of a fragment that is being read lie in its first `size` bytes, as they are stored.

    `checksum` is the xxh3-128 of these bytes.
    """

    fragment: bytes
    count: Natural
    size: Natural
    checksum: bytes


@dataclass(frozen=True, slots=True)
class FragmentDropped:
    """What is open of a fragment is given up, since its object changed or vanished; what is closed stays closed.

    `reread`: later versions of the object are read as new ones; else they are not read.
    """

    fragment: bytes
    reason: str
    reread: bool


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """An object stands in this version now, and is not read for that.

    `same`: it holds the bytes that were read, whatever else it holds. Else somebody chose to pass it over, or its
    source has it no more: then `version` is empty.
    """

    stage: str
    uri: str
    version: str
    same: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """A shard and the ranges that it closes for one sink."""

    sink: str
    version: str
    epoch: int
    ranges: tuple[Range, ...]
    objects: tuple[StoredObject, ...]
    counts: Counts

    def identity(self) -> bytes:
        """The name of the proposal: equal for the same ranges and objects, whoever proposes them and when."""
        facts: list[Any] = [self.sink, [(r.fragment, r.first, r.count) for r in self.ranges]]
        facts.append([(o.role, o.key, o.checksum) for o in self.objects])
        return xxhash.xxh3_128_digest(msgpack.packb(facts))


@dataclass(frozen=True, slots=True)
class ClaimsReleased:
    """Records that dedup let through to a sink and that were not kept after all: no duplicate may lean on them.

    `records` are ordinals by fragment.
    """

    sink: str
    records: tuple[tuple[bytes, tuple[Natural, ...]], ...]


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """A version of the dataset that people may name.

    It shows the shards of the entries up to number `shows`; -1 means up to this entry. `complete` says that its input
    was read to the end, and nobody stopped it before. `at` is when the entry was written, in Unix seconds; 0: unknown.
    `restores` is the earlier version whose shards it shows again; 0: none, it goes on from the version before it.
    """

    version: Natural
    reason: str
    shows: int = -1
    complete: bool = True
    at: Moment = 0
    restores: Natural = 0


@dataclass(frozen=True, slots=True)
class VersionHeld:
    """A version that its gate did not let pass, and why: all is closed, and nothing more is shown than before.

    `at` is as in `VersionPublished`.
    """

    version: Natural
    reasons: tuple[str, ...]
    at: Moment = 0


@dataclass(frozen=True, slots=True)
class Retracted:
    """Records that no version from `version` on shows.

    `documents` are rows of documents tables by the key of the shard's tokens; `replaced` are the objects that take the
    place of others, by the key of these, since they held text of the records.
    """

    version: Natural
    documents: tuple[tuple[str, tuple[Natural, ...]], ...]
    replaced: tuple[tuple[str, StoredObject], ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """Nothing of what stands before this entry is in the dataset any more. Terms and epochs go on."""

    reason: str


Change: TypeAlias = (
    Led
    | Resigned
    | Beat
    | PipelineApplied
    | EpochRaised
    | FragmentsListed
    | FragmentEnded
    | PrefixRead
    | FragmentDropped
    | VersionSeen
    | Closed
    | ClaimsReleased
    | VersionPublished
    | VersionHeld
    | Retracted
    | Removed
    | ClusterChange
)

_CHANGES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Change)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the log."""

    term: int
    changes: tuple[Change, ...]


def encode_entry(entry: Entry) -> bytes:
    """The entry's bytes: the same for the same entry, always. EntryError where a text in it is not UTF-8."""
    body = [ENTRY_FORMAT, entry.term, [[type(change).__name__, _plain(change)] for change in entry.changes]]
    try:
        return msgpack.packb(body, use_bin_type=True)
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - _SHOWN) : error.end + _SHOWN]
        raise EntryError(
            f"the name {text!r} is not UTF-8, so that no ledger can hold it; rename the file or folder, or name it by "
            "a glob or by the folder above"
        ) from error


def decode_entry(data: bytes, name: str = "it") -> Entry:
    """The entry that these bytes hold; EntryError, which calls it `name`, on any other bytes."""
    try:
        body: Any = msgpack.unpackb(data, raw=False, strict_map_key=True)
        known, term, changes = body
        if known != ENTRY_FORMAT:
            raise EntryError(f"is of format {known!r}, and this Headrace reads {ENTRY_FORMAT}{_NEWER}")
        entry = Entry(term, tuple(_build(name, values) for name, values in changes))
        if type(term) is not int or not 0 <= term <= NUMBER_MAX:
            raise EntryError(f"has the term {term!r:.80}, which is no number of one")
        return entry
    except EntryError as error:
        raise EntryError(f"{name} {error}") from error
    except Exception as error:
        raise EntryError(
            f"{name} is not a ledger entry, but {len(data)} other bytes ({type(error).__name__}: {error}); see what "
            "else writes there, and restore the entry from a copy"
        ) from error


def _plain(change: Any) -> list[Any]:
    """The values of a dataclass in the order of its fields, nested ones likewise."""

    return [_value(getattr(change, name)) for name in change.__match_args__]


def _value(item: Any) -> Any:
    if type(item) in _AS_THEY_ARE:
        return item
    if isinstance(item, (Fragment, Range, StoredObject)):
        return _plain(item)
    if isinstance(item, Counts):
        return [_value(value) for value in counts_row(item)]
    if isinstance(item, tuple):
        return [_value(inner) for inner in cast("Any", item)]
    if isinstance(item, Mapping):
        mapping = cast("Mapping[str, Any]", item)
        return {key: _value(mapping[key]) for key in sorted(mapping)}
    return item


#: What an entry tells that says more than this release knows.
_NEWER = ": a newer Headrace wrote it; upgrade this one, then run the same command again"

_AS_THEY_ARE = frozenset({int, str, bytes, bool, type(None)})


_NESTED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("FragmentsListed", "fragments"): lambda items: tuple(Fragment(*item) for item in items),
    ("Closed", "ranges"): lambda items: tuple(Range(*item) for item in items),
    ("Closed", "objects"): lambda items: tuple(stored_object(*item) for item in items),
    ("Closed", "counts"): counts_of,
    ("ClaimsReleased", "records"): lambda items: tuple((fragment, tuple(rows)) for fragment, rows in items),
    ("Retracted", "documents"): lambda items: tuple((key, tuple(rows)) for key, rows in items),
    ("RunsCleared", "names"): tuple,
    ("RunGated", "reasons"): tuple,
    ("VersionHeld", "reasons"): tuple,
    ("Retracted", "replaced"): lambda items: tuple((key, stored_object(*item)) for key, item in items),
}


def _build(name: str, values: list[Any]) -> Change:
    kind = _CHANGES.get(name)
    if kind is None:
        raise EntryError(f"holds a change named {name!r}, which this Headrace does not know{_NEWER}")
    names: tuple[str, ...] = kind.__match_args__
    if kind is VersionPublished and len(values) == 2:
        values = [*values, -1, values[1] != "stopped"]  # as entries were before a version said what it shows
    if kind is VersionPublished and len(values) == 4:
        values = [*values, 0, 0]  # as entries were before a version had a time
    if kind is EpochRaised and len(values) == 1:
        values = [*values, 0]  # as entries were before tasks could wait for their epoch
    if kind is FragmentEnded and len(values) == 2:
        values = [*values, b""]  # as entries were before content was compared
    if len(names) != len(values):
        newer = _NEWER if len(values) > len(names) else ""
        raise EntryError(f"holds a {name} of {len(values)} values, and this Headrace knows {len(names)}{newer}")
    built = {key: _NESTED.get((name, key), _same)(value) for key, value in zip(names, values, strict=True)}
    change = kind(**built)
    wrong = misfit(change)
    if not wrong and "pipeline" in built and (problem := shape_problem(built["pipeline"])):
        wrong = f"pipeline is none: {problem}"
    if wrong:
        raise EntryError(f"holds a {name} whose {wrong}: no Headrace writes that; restore the entry from a copy")
    return cast("Change", change)


def _same(value: Any) -> Any:
    return value
