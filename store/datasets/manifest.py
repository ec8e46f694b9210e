"""`manifest.json` beside its ledger: who may replace it, and whether what stands there is still so.

A manifest is derived, and it names the entry that published what it shows. So two manifests can be told apart without
a clock: the one of the later entry is the newer, and a writer never puts an older one over it, however long it slept.
A reader asks the ledger whether a later version was published; a manifest behind the ledger misleads nobody who can
read both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from headrace.store import Buffer, FormatError, ObjectMissing, ObjectStore
from headrace.store.ledger import (
    NUMBER_MAX,
    EntryError,
    LedgerState,
    Log,
    Removed,
    VersionPublished,
    decode_entry,
    read_behind,
)

MANIFEST_KEY: Final = "manifest.json"
#: The version of `manifest.json`; a reader refuses one that it does not know.
MANIFEST_FORMAT: Final = 1


def bring_forward(store: ObjectStore, manifest: Mapping[str, Any]) -> bool:
    """Write `manifest.json` unless one of a later entry stands; whether the store now holds this one.

    One that names a later entry is believed where the ledger has that entry, and it says so: a manifest is damaged
    sooner than an entry, and must not hold back all that come. Raises StoreError.
    """
    data = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    ahead = False

    def decide(standing: bytes | None) -> list[Buffer] | None:
        nonlocal ahead
        ahead = standing is not None and _is_later(store, standing, int(manifest["entry"]))
        return None if ahead or standing == data else [data]

    store.update(MANIFEST_KEY, decide)
    return not ahead


def mend(store: ObjectStore, manifest: Mapping[str, Any]) -> str:
    """As `bring_forward`, and what was wrong with the one that stood, if anything was. Raises StoreError."""
    try:
        standing: Any = orjson.loads(store.get(MANIFEST_KEY))
        wrong = doubt(store, entry_of(standing), standing["version"])
    except ObjectMissing:
        wrong = "was missing"
    except FormatError:
        wrong = f"named entry {entry_of(standing)}, which the ledger has not"
    except (ValueError, AttributeError, KeyError, TypeError):
        wrong = "could not be read"
    return wrong if bring_forward(store, manifest) else ""


def removal(entry: int) -> dict[str, Any]:
    """What takes the place of the manifest of a dataset that was removed: no version, as of this entry.

    It is not deleted, or whoever wakes late with an older one would find the place free.
    """
    return {"format": MANIFEST_FORMAT, "dataset": "", "version": 0, "entry": entry, "removed": True, "shards": []}


def entry_of(fields: Mapping[str, Any]) -> int:
    """The entry that a manifest names; -1 for one that names none, as those of before did."""
    entry = fields.get("entry", -1)
    return entry if type(entry) is int and -1 <= entry <= NUMBER_MAX else -1


def entry_shown(store: ObjectStore) -> int:
    """The entry that the standing manifest names; -1 where there is none, or it names none."""
    try:
        return entry_of(orjson.loads(store.get(MANIFEST_KEY)))
    except (ObjectMissing, ValueError, AttributeError):
        return -1


def _is_later(store: ObjectStore, data: bytes, entry: int) -> bool:
    """Whether these are the bytes of a manifest that an entry behind this one published, or that tells of a removal."""
    try:
        fields: Any = orjson.loads(data)
        named, version = entry_of(fields), fields.get("version")
    except (ValueError, AttributeError):
        return False  # damaged, so that any is better
    if named <= entry:
        return False
    try:
        published, gone = _said(store, named)
    except FormatError:
        return False  # an entry that the ledger has not, or not yet: who writes it finds this one then
    return gone or published.get(named) == version


def doubt(store: ObjectStore, entry: int, version: int) -> str:
    """Why a manifest of `version`, published by `entry` (-1 where it names none), is not what the ledger says by now.

    Empty where it is, and where there is neither an entry nor a ledger to hold it against. What is read are the
    entries from that one on, or a snapshot. Raises StoreError, and FormatError where the ledger lacks the entry.
    """
    if entry < 0:
        log = Log(store)
        # Without a ledger it was made by hand, or by another tool.
        return "" if store.head(log.key(0)) is None else "names no entry of the ledger"
    published, gone = _said(store, entry)
    newest = max(published, default=-1)
    if gone or not version:
        return "is of a dataset that was removed"
    if published.get(entry) != version:
        return f"names entry {entry} for version {version}, and that entry does not publish it"
    if newest > entry:
        return f"shows version {version}, and entry {newest} published version {published[newest]}"
    return ""


def _said(store: ObjectStore, entry: int) -> tuple[dict[int, int], bool]:
    """The versions that the ledger's entries from this one on publish, by their entries; whether it was removed.

    Raises StoreError, and FormatError where the ledger lacks the entry.
    """
    snapshot, entries = read_behind(Log(store), entry - 1)
    published, gone = dict[int, int](), False
    if snapshot is not None:
        if isinstance(state := snapshot[1], LedgerState):
            published, gone = {shown.number: number for number, shown in state.published.items()}, state.removed
    elif not entries:
        raise FormatError(
            f"{store.uri}: {MANIFEST_KEY} names entry {entry}, and the ledger beside it has none of that number: "
            "bring the whole of ledger/ here too, or open the dataset where it was written; where that is all of it, "
            f"`headrace dataset gc {store.uri}` derives the manifest anew"
        )
    for number, data in entries:
        try:
            changes = decode_entry(data).changes
        except EntryError as error:
            raise FormatError(f"{store.uri}: ledger entry {number}: {error}; restore it from a copy") from error
        for change in changes:
            gone = gone or isinstance(change, Removed)
            if isinstance(change, VersionPublished):
                published[number] = change.version
    return published, gone
