"""`headrace dataset gc`: objects that no ledger entry names and none ever can."""

from __future__ import annotations

import json
import sys

from headrace.cli.page import console, megabytes, number, title
from headrace.controller.pen import Pen, with_pen
from headrace.controller.process import is_alive
from headrace.store.collect import Collected, collect
from headrace.store.dataset import Dataset
from headrace.store.entries import EpochRaised
from headrace.store.errors import DatasetBusy
from headrace.store.fold import LedgerState

#: Keys that are shown to people; `--json` gives all of them.
KEYS_SHOWN = 10


def collect_garbage(uri: str, *, dry_run: bool, as_json: bool) -> int:
    """Collect one dataset; the exit code."""
    dataset = Dataset.open(uri)
    found = collect(dataset.store, dataset.state, dry_run=True)
    busy = "" if at_rest(dataset.state) else "a run writes it"
    if not dry_run:
        if found.undecided and not busy:
            busy = _raise_floor(dataset.uri)
        state = Dataset.open(uri).state if found.undecided else dataset.state
        found = collect(dataset.store, state, dry_run=False)
    if as_json:
        print(json.dumps(_facts(dataset.uri, found, dry_run=dry_run, busy=busy)))
        return 0
    out = console(sys.stdout)
    verb = "would be deleted" if dry_run else "deleted"
    objects = f"{number(len(found.keys))} objects, {megabytes(found.size)}"
    out.print(title(dataset.uri, f"{objects} below epoch {found.floor} {verb}"))
    for key in found.keys[:KEYS_SHOWN]:
        out.print(f"  {key}")
    if len(found.keys) > KEYS_SHOWN:
        out.print(f"  and {number(len(found.keys) - KEYS_SHOWN)} more; `--json` gives all of them")
    if found.undecided:
        left = (
            f"{number(found.undecided)} objects, {megabytes(found.undecided_size)}, of this epoch are named by no entry"
        )
        then = f"they stay, since {busy}" if busy else "a collection raises the epoch first, and deletes them too"
        out.print(f"  {left}: {then}")
    return 0


def at_rest(state: LedgerState) -> bool:
    """Whether nobody can be seen to write the dataset: its last leader resigned or is proved dead on this host."""
    return state.resigned or is_alive(state.leader) is False


def _raise_floor(dataset: str) -> str:
    """Fence off every writer that was born before now; why that cannot be done, or nothing."""

    async def raised(pen: Pen) -> None:
        await pen.commit(EpochRaised("collection"))

    try:
        with_pen(dataset, raised)
    except DatasetBusy:
        return "a run writes it"
    return ""


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
