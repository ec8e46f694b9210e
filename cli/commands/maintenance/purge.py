"""`headrace dataset purge`: what was retracted is deleted, byte by byte, and a receipt says where it was."""

from __future__ import annotations

import socket
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.cli.commands.maintenance.checkpoints import loader_state_in, refuse_servers, sources_here
from headrace.cli.commands.maintenance.maintenance import commit_retraction, write_manifest
from headrace.cli.ui import FAINT, console, number, print_json, safe, title
from headrace.client import CliError
from headrace.controller import OfflineWriter, with_offline_writer
from headrace.stages.runtime import InputError
from headrace.store import ObjectStore, StoreError, counted
from headrace.store.datasets import Dataset, Erasable, collect, erase, main_object, to_erase
from headrace.store.history import Copy, copies_of, renew_copy
from headrace.store.ledger import EpochRaised, LedgerState, StoredObject
from headrace.store.shards import read_table

#: Shards that one entry replaces: each is a version, and is whole or was not done.
SHARDS_AT_ONCE = 64
#: Documents of a receipt that are shown to people; `--json` gives all of them.
DOCUMENTS_SHOWN = 20


def purge_dataset(uri: str, checkpoints: Sequence[str], *, dry_run: bool, as_json: bool) -> int:
    """Delete the text of all records that were taken down; the exit code. After a kill, the next call continues."""
    dataset = Dataset.open(uri)
    store, before = dataset.store, dataset.state
    waiting = to_erase(before)
    states = {path: loader_state_in(path) for path in checkpoints}
    freed: list[str] = []
    if not dry_run:
        with_offline_writer(dataset.uri, lambda writer: _purged(writer, store))
        # Behind the manifest, so that new readers are not sent to what is deleted here.
        freed = list(collect(store, Dataset.open(uri).state, dry_run=False).keys)
    after = Dataset.open(uri)
    receipt: dict[str, Any] = {
        "dataset": after.uri,
        "version": after.state.version,
        "dry_run": dry_run,
        "rewritten": len(waiting),
        "deleted": freed,
        "cached": [] if dry_run else _forget(before, after.state),
        "copies": [_renewed(after, copy, dry_run=dry_run) for copy in copies_of(after)],
        "documents": _documents(after, states),
    }
    if as_json:
        return print_json(receipt)
    _print(receipt)
    return 0


async def _purged(writer: OfflineWriter, store: ObjectStore) -> None:
    """Replace the objects of every shard that still holds text, some shards an entry."""
    waiting = to_erase(writer.ledger)
    if waiting:
        await writer.commit(EpochRaised("purge"))
    for first in range(0, len(waiting), SHARDS_AT_ONCE):
        part = waiting[first : first + SHARDS_AT_ONCE]
        made = await writer.beside(partial(_erase, store, part, writer.ledger.epoch))
        await commit_retraction(writer, "purge", (), made)
    # Also where nothing was left to erase: an earlier call may have been killed before it came to this.
    await write_manifest(writer, store)


def _erase(store: ObjectStore, shards: Sequence[Erasable], epoch: int) -> tuple[tuple[str, StoredObject], ...]:
    return tuple(item for shard in shards for item in erase(store, shard, epoch))


def _forget(before: LedgerState, after: LedgerState) -> list[str]:
    """Remove copies of what was erased from this user's cache; the checksums of those that somebody uses."""
    from headrace.loader.cache import ShardCache

    cache = ShardCache.default()
    old = {item.checksum for shard in before.shards for item in shard.closed.objects if item.role == "tokens"}
    stale = {origin for origin, _ in after.erased.values()}
    now = {item.checksum for shard in after.shards for item in shard.closed.objects}
    return sorted(checksum for checksum in (old | stale) - now if not cache.forget(checksum))


def _renewed(dataset: Dataset, copy: Copy, *, dry_run: bool) -> dict[str, Any]:
    """Write an export again without what was taken down since; of another copy what is to be done."""
    facts = {"place": copy.place, "kind": copy.kind, "version": copy.version}
    if copy.without >= dataset.state.retracted_at:
        return {**facts, "state": "without it"}
    if copy.host != socket.gethostname():
        return {**facts, "state": f"to do: on host {copy.host}, delete it and export again"}
    if dry_run:
        return {**facts, "state": "to do"}
    from headrace.stages.export import renew_export

    version = copy.version if copy.version in dataset.state.published else None
    try:
        why = renew_export(dataset.of_version(version), copy.place, copy.kind)
    except (InputError, StoreError, OSError) as error:
        # Text is erased already, and the receipt of that is not to be lost.
        why = str(error)
    if not why:
        renew_copy(dataset.store, copy, dataset.state.retracted_at)
    return {**facts, "state": f"left alone: {why}" if why else "written anew"}


def _documents(dataset: Dataset, states: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each document that was taken down: where it lay, the versions that showed it, and the steps that read it."""
    state = dataset.state
    down: dict[str, set[int]] = {}
    for since, key, rows in state.retracted:
        if state.is_takedown(since):
            down.setdefault(key, set()).update(rows)
    asked = {key: sorted(rows) for key, rows in down.items()}
    steps = {path: _steps(path, one, asked, dataset.uri) for path, one in states.items()}
    found: list[dict[str, Any]] = []
    for shard in state.shards if down else ():
        main = main_object(shard.closed)
        rows = down.get(main.key, set()) if main is not None else set[int]()
        documents = shard.object("documents")
        if main is None or documents is None or not rows:
            continue
        facts = read_table(dataset.store, documents.key, ["id", "source", "row"])
        showing = sorted(version for version, one in state.published.items() if one.shows_entry(shard.number))
        gone: dict[int, set[int]] = {row: set() for row in rows}
        for since, retracted in dataset.retractions(main.key):
            for row in rows.intersection(retracted):
                gone[row].add(since)
        for row in sorted(rows):
            place = facts.slice(row, 1).to_pylist()[0]
            found.append(
                {
                    "id": place["id"],
                    "source": place["source"],
                    "record": place["row"],
                    "shard": main.key,
                    "entry": shard.number,
                    "erased": row in state.erased_rows(main.key),
                    "shown_by": _shown_by(state, showing, gone[row]),
                    "steps": {path: read.get((main.key, row), []) for path, read in steps.items()},
                }
            )
    return found


def _shown_by(state: LedgerState, versions: list[int], gone: set[int]) -> list[int]:
    """Of versions in order those whose reader was shown a row then that was retracted from these versions on."""
    end = min(since for since in gone if state.is_takedown(since))
    shown = versions[: bisect_left(versions, end)]
    for since in gone:
        if since < end:
            shown = [version for version in shown if version < since or not state.hides(since, version)]
    return shown


def _steps(
    path: str, state: dict[str, Any], documents: dict[str, list[int]], uri: str
) -> dict[tuple[str, int], list[int]]:
    from headrace.loader import steps_of
    from headrace.loader.order import LoaderError

    refuse_servers(path, state, uri)
    try:
        return steps_of(state, documents, sources_here(state, uri))
    except LoaderError as error:
        raise CliError(f"{path!r}: {error}") from error


def _print(receipt: dict[str, Any]) -> None:
    out = console()
    would = "would be " if receipt["dry_run"] else ""
    what = f"{counted(receipt['rewritten'], 'shard')} {would}written anew"
    out.print(title(receipt["dataset"], f"{what}, {counted(len(receipt['deleted']), 'object')} deleted"))
    for one in receipt["documents"][:DOCUMENTS_SHOWN]:
        versions = ", ".join(map(str, one["shown_by"])) or "none"
        state = "erased" if one["erased"] else "waits for its purge"
        out.print(f"  {safe(one['id'])}  {state}; versions that showed it: {versions}; {one['shard']}", markup=False)
        for path, steps in one["steps"].items():
            read = f"read by {counted(len(steps), 'step')}: {', '.join(map(str, steps[:10]))}" if steps else "not read"
            out.print(f"    {safe(path)}  {read}", style=FAINT, markup=False)
    if len(receipt["documents"]) > DOCUMENTS_SHOWN:
        more = number(len(receipt["documents"]) - DOCUMENTS_SHOWN)
        out.print(f"  and {more} more; `--json` gives all of them", style=FAINT)
    for copy in receipt["copies"]:
        out.print(f"  {copy['kind']} {safe(copy['place'])}  {safe(copy['state'])}", markup=False)
    for checksum in receipt["cached"]:
        out.print(
            f"  {checksum} is in use in the cache of this host: purge again when its job has ended", style="yellow"
        )
