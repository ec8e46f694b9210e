"""`headrace dataset gc`, `retract` and `rm`: objects that nobody names, and what nobody may see any more."""

from __future__ import annotations

import json
import sys

from headrace.cli.ui import console, megabytes, number, title
from headrace.client import CliError, UsageError
from headrace.controller import Pen, is_alive, with_pen
from headrace.store import DatasetBusy, counted
from headrace.store.datasets import (
    MANIFEST_KEY,
    Collected,
    Dataset,
    Found,
    bring_forward,
    collect,
    find_records,
    mend,
    removal,
    write_rewritten,
)
from headrace.store.ledger import EpochRaised, LedgerState, Removed, Retracted, VersionPublished

#: Keys that are shown to people; `--json` gives all of them.
KEYS_SHOWN = 10


def collect_garbage(uri: str, *, dry_run: bool, as_json: bool) -> int:
    """Collect one dataset; the exit code."""
    dataset = Dataset.open(uri, removed=True)
    found = collect(dataset.store, dataset.state, dry_run=True)
    busy = "a run writes it" if _is_led(dataset.state) else ""
    mended = ""
    if not dry_run:
        if found.undecided and not busy:
            busy = _raise_floor(dataset.uri)
        state = Dataset.open(uri, removed=True).state if found.undecided else dataset.state
        found = collect(dataset.store, state, dry_run=False)
        if state.newest is not None:
            # Whoever published this version may have died before it said so.
            mended = mend(dataset.store, Dataset(dataset.store, state).manifest())
    if as_json:
        print(json.dumps({**_facts(dataset.uri, found, dry_run=dry_run, busy=busy), "manifest": mended}))
        return 0
    out = console(sys.stdout)
    verb = "would be deleted" if dry_run else "deleted"
    objects = f"{counted(len(found.keys), 'object')}, {megabytes(found.size)}, below epoch {found.floor} {verb}"
    out.print(title(dataset.uri, objects if found.keys else f"nothing below epoch {found.floor} is to be deleted"))
    for key in found.keys[:KEYS_SHOWN]:
        out.print(f"  {key}")
    if len(found.keys) > KEYS_SHOWN:
        out.print(f"  and {number(len(found.keys) - KEYS_SHOWN)} more; `--json` gives all of them")
    if mended:
        out.print(f"  {MANIFEST_KEY} {mended}: it was derived from the ledger again")
    if found.undecided:
        left = (
            f"{counted(found.undecided, 'object')}, {megabytes(found.undecided_size)}, of this epoch, named by no entry"
        )
        then = f"left alone, since {busy}" if busy else "a collection raises the epoch first, and deletes that too"
        out.print(f"  {left}: {then}")
    return 0


def _is_led(state: LedgerState) -> bool:
    """Whether a living process of this host leads the log; of another host's only its silence would tell."""
    return not state.resigned and is_alive(state.leader) is True


def _raise_floor(dataset: str) -> str:
    """Fence off every writer that was born before now; why that cannot be done, or nothing."""

    async def raised(pen: Pen) -> None:
        await pen.commit(EpochRaised("collection"))

    try:
        with_pen(dataset, raised)
    except DatasetBusy:
        return "a run writes it"
    return ""


def retract_records(uri: str, ids: list[str], sources: list[str], *, as_json: bool) -> int:
    """Retract records by id or by source; the exit code."""
    if not ids and not sources:
        raise UsageError("give the ids of records, or --source with the URI of what they were read from")
    dataset = Dataset.open(uri)
    store = dataset.store

    async def retracted(pen: Pen) -> Found:
        found = await pen.beside(lambda: find_records(store, pen.ledger, ids, sources))
        missing = [name for name in ids if name not in found.ids and not any(_part(name, one) for one in found.ids)]
        if missing or not found.ids:
            raise CliError(f"{dataset.uri}: no record has the id or source {(missing or sources)[0]!r}: none retracted")
        if found.documents or found.rewritten:
            await pen.commit(EpochRaised("retraction"))
            replaced = await pen.beside(lambda: write_rewritten(store, found, pen.ledger.epoch))
            version = pen.ledger.version + 1
            retraction = Retracted(version, found.documents, replaced)
            await pen.commit(retraction, *_shown_as_before(pen.ledger))
        if pen.ledger.newest is not None:
            # Also where nothing was left to retract: an earlier call may have been killed before it came to this.
            fresh = Dataset(store, pen.ledger)
            described = await pen.beside(fresh.describe)
            manifest = fresh.manifest(described)
            await pen.beside(lambda: bring_forward(store, manifest))
        return found

    found = with_pen(dataset.uri, retracted)
    after = Dataset.open(uri)
    collect(store, after.state, dry_run=False)
    documents = sum(len(rows) for _, rows in found.documents)
    facts = {
        "dataset": dataset.uri,
        "version": after.state.version,
        "records": len(found.ids),
        "documents": documents,
        "rewritten": [key for _, key in found.rewritten],
    }
    if as_json:
        print(json.dumps(facts))
    else:
        what = f"version {after.state.version} shows {counted(documents, 'document')} less"
        if after.state.newest is None:
            what = f"no version is published yet; the first one will show {counted(documents, 'document')} less"
        if not documents:
            what = "no version showed these records: they were not kept, or retracted before"
        if found.rewritten:
            what += f"; {counted(len(found.rewritten), 'object is', 'objects are')} written anew without their text"
        console(sys.stdout).print(title(dataset.uri, what))
    return 0


def _shown_as_before(ledger: LedgerState) -> list[VersionPublished]:
    """The next version: of the shards that the newest one shows, and no more of what a run has closed since."""
    base = ledger.newest
    if base is None:
        return []
    return [VersionPublished(ledger.version + 1, "retraction", base.shows, base.complete)]


def remove_dataset(uri: str, *, agreed: bool, as_json: bool) -> int:
    """Remove a dataset; the exit code. Killed on the way, it goes on where it was when it is called again."""
    dataset = Dataset.open(uri, removed=True)
    store = dataset.store
    objects = [item for shard in dataset.shards for item in shard.closed.objects]
    kept = sum(counts.kept for counts in dataset.state.counts.values())
    what = f"{counted(kept, 'kept record')} in {counted(len(objects), 'object')}"
    if not agreed:
        size = megabytes(sum(item.size for item in objects))
        raise UsageError(f"{dataset.uri} holds {what}, {size}: add --yes to delete them; nobody can bring them back")

    async def removed(pen: Pen) -> None:
        if not pen.ledger.removed:
            await pen.commit(EpochRaised("removal"), Removed("removal"))
        # Before the shards, so that nobody who comes now is sent to what is going away.
        await pen.beside(lambda: bring_forward(store, removal(pen.ledger.number)))

    with_pen(dataset.uri, removed)
    found = collect(store, Dataset.open(uri, removed=True).state, dry_run=False)
    if as_json:
        print(json.dumps({"dataset": dataset.uri, "objects": len(found.keys), "bytes": found.size}))
    else:
        gone = f"removed: {counted(len(found.keys), 'object')}, {megabytes(found.size)}"
        console(sys.stdout).print(title(dataset.uri, gone))
    return 0


def _part(name: str, one: str) -> bool:
    """Whether `one` is the id of a part of the record `name`."""
    return one.startswith(f"{name}/") and one[len(name) + 1 :].isdigit()


def _facts(uri: str, found: Collected, *, dry_run: bool, busy: str) -> dict[str, object]:
    return {
        "dataset": uri,
        "dry_run": dry_run,
        "floor": found.floor,
        "objects": len(found.keys),
        "bytes": found.size,
        "keys": list(found.keys),
        "undecided": found.undecided,
        "undecided_bytes": found.undecided_size,
        "live": bool(busy),
    }
