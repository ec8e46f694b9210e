"""`headrace dataset split`: clusters of duplicates go to a held-out dataset, and training shows them no more.

The held-out dataset is published first, then the version of training; what is chosen depends on the records alone, so
that a command that was killed is done again and ends what it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.cli.commands.maintenance.maintenance import (
    PAGE_FRAGMENTS,
    applied,
    listed,
    publish_without,
    write_manifest,
)
from headrace.cli.ui import console, number, print_json, title
from headrace.client import CliError, UsageError
from headrace.controller import OfflineWriter, with_offline_writer
from headrace.stages.dedup import Clusters, HeldOut, load_keys, rows_of
from headrace.stages.runtime import InputError
from headrace.stages.sinks import chosen_groups, write_chosen
from headrace.store import NoDataset, ObjectStore, counted, open_store
from headrace.store.datasets import Dataset, as_shown
from headrace.store.ledger import HELD_OUT_SPLIT, Change, EpochRaised, FragmentDropped, LedgerState, VersionPublished
from headrace.store.shards import read_table

#: Rows of documents tables by the key of the shard's tokens.
Rows = Mapping[str, Sequence[int]]


def split_dataset(
    uri: str, into: str, against: Sequence[str], *, share: float, shard_bytes: int, dry_run: bool, as_json: bool
) -> int:
    """Split one dataset; the exit code."""
    training, *references = (as_shown(Dataset.open(one)) for one in (uri, *against))
    target = open_store(into)
    names = [target.uri, training.uri, *(dataset.uri for dataset in references)]
    if len(set(names)) < len(names):
        raise UsageError("a dataset is given twice: training, the held-out dataset and references are three places")
    _refuse_texts(training)
    before = _standing(target.uri)
    reason = f"{HELD_OUT_SPLIT} of share {share:g}"
    if before is not None and before.state.version and _is_split(training, before):
        _refuse_another_share(before, reason)
        for dataset in (training, before):
            # A command that was killed may have come no further than this.
            with_offline_writer(dataset.uri, partial(write_manifest, store=dataset.store))
        return _show(training, before, None, {}, as_json=as_json)
    records, room, scheme = load_keys([training], references)
    places = np.asarray(records.table.column("dataset"), np.int64)
    found = Clusters(records, room, scheme).choose(share, places < len(references))
    if found.leaks:
        raise CliError(f"{training.uri}: {found.leaks} held-out records are near to others: nothing is done")
    rows, dropped = (rows_of(records, mask, len(references)) for mask in (found.held, found.dropped))
    if not found.clusters:
        raise CliError(
            f"{training.uri}: no cluster of its {counted(found.records, 'record')} is within a "
            f"share of {share}; {found.refused} were too large or near to a reference: ask for a larger one"
        )
    if dry_run:
        return _show(training, None, found, dropped, as_json=as_json)
    try:
        with_offline_writer(target.uri, lambda writer: _hold_out(writer, training, target, rows, shard_bytes, reason))
    except InputError as error:
        raise CliError(f"{target.uri}: {error}") from error
    gone = {key: {*rows.get(key, ()), *dropped.get(key, ())} for key in {*rows, *dropped}}
    since = "its clusters were looked for: do it again, into a new place"
    with_offline_writer(training.uri, lambda writer: publish_without(writer, training, HELD_OUT_SPLIT, gone, since))
    return _show(Dataset.open(uri), Dataset.open(into), found, dropped, as_json=as_json)


def _refuse_texts(training: Dataset) -> None:
    if any(shard.object("tokens") is None for shard in training.shards):
        raise CliError(f"{training.uri} holds text: only datasets of tokens are split; tokenize it first")


def _refuse_another_share(held: Dataset, asked: str) -> None:
    made = next((item.reason for item in held.state.published.values() if item.reason.startswith(HELD_OUT_SPLIT)), "")
    # Those of before do not say their share.
    if made not in (asked, HELD_OUT_SPLIT, ""):
        raise CliError(f"{held.uri} holds a {made}, and the {asked} is asked for: split into a new place")


def _standing(uri: str) -> Dataset | None:
    try:
        return Dataset.open(uri)
    except NoDataset:
        return None


def _is_split(training: Dataset, held: Dataset) -> bool:
    """Whether training shows none of the records of a held-out dataset, which are all its own."""
    names: set[tuple[str, str, int]] = set()
    for shard in held.shards:
        names.update((shard.closed.sink, item.fragment.hex(), item.first) for item in shard.closed.ranges)
    for shard in training.shards:
        tokens, documents = shard.object("tokens"), shard.object("documents")
        if tokens is None or documents is None or not names:
            continue
        hidden = sorted(training.retracted(tokens.key))
        table = read_table(training.store, documents.key, ["fragment", "row"]).take(pa.array(hidden, pa.int64()))
        columns = (table.column("fragment").to_pylist(), table.column("row").to_pylist())
        names.difference_update((shard.closed.sink, fragment, row) for fragment, row in zip(*columns, strict=True))
    return not names


async def _hold_out(
    writer: OfflineWriter, training: Dataset, target: ObjectStore, rows: Rows, shard_bytes: int, reason: str
) -> None:
    """Write and publish the held-out dataset, as far as that is not done."""
    left = _left(training, writer.ledger, rows)
    if writer.ledger.version and not left:
        await write_manifest(writer, target)
        return
    await writer.commit(*applied(training.state, writer.ledger, target.uri), EpochRaised(HELD_OUT_SPLIT))
    groups = list(chosen_groups(training.state.shards, left, shard_bytes))
    fragments = {item.fragment for group in groups for closed in group.shards for item in closed.ranges}
    for page in listed(training.state, writer.ledger, fragments):
        await writer.commit(*page)
    for group in groups:
        await writer.commit(
            await writer.beside(partial(write_chosen, training.store, group, target, writer.ledger.epoch))
        )
    for given_up in _given_up(writer.ledger):
        await writer.commit(*given_up)
    base = training.state.newest
    complete = base is not None and base.complete
    await writer.commit(VersionPublished(writer.ledger.version + 1, reason, writer.ledger.number, complete))
    await write_manifest(writer, target)


def _left(training: Dataset, held: LedgerState, rows: Rows) -> Rows:
    """The chosen rows that the held-out dataset has not closed. Raises InputError where it holds anything else."""
    left: dict[str, list[int]] = {}
    closed: dict[tuple[str, bytes], int] = {}
    for shard in training.state.shards:
        tokens, documents = shard.object("tokens"), shard.object("documents")
        mine = rows.get(tokens.key, ()) if tokens is not None else ()
        if tokens is None or documents is None or not mine:
            continue
        table = read_table(training.store, documents.key, ["fragment", "row"])
        for place in mine:
            name, row = bytes.fromhex(table.column("fragment")[place].as_py()), table.column("row")[place].as_py()
            state = held.fragments.get(name)
            if state is not None and state.of(shard.closed.sink).overlap(row, row + 1):
                closed[shard.closed.sink, name] = closed.get((shard.closed.sink, name), 0) + 1
            else:
                left.setdefault(tokens.key, []).append(place)
    for name, state in held.fragments.items():
        for sink, intervals in state.closed.items():
            if intervals.size != closed.get((sink, name), 0):
                raise InputError(f"it holds other records of {state.fragment.uri}: split into a new place")
    if held.version and left:
        raise InputError("it holds another split: split into a new place")
    return left


def _given_up(held: LedgerState) -> Iterator[list[Change]]:
    """What is open of the fragments stays in training: no run reads it for the held-out dataset."""
    whole = [
        FragmentDropped(name, HELD_OUT_SPLIT, reread=False)
        for name, state in held.fragments.items()
        if state.dropped is None and any(intervals.size != state.count for intervals in state.closed.values())
    ]
    for begin in range(0, len(whole), PAGE_FRAGMENTS):
        yield list(whole[begin : begin + PAGE_FRAGMENTS])


def _show(training: Dataset, held: Dataset | None, found: HeldOut | None, dropped: Rows, *, as_json: bool) -> int:
    facts: dict[str, object] = {"dataset": training.uri, "held_out": held.uri if held is not None else None}
    if found is None:
        text = ["stands already, and training shows none of its records: nothing is to be done"]
    else:
        count, gone = int(found.held.sum()), sum(map(len, dropped.values()))
        share, left = count / max(1, found.records), found.records - count - gone
        facts |= {"records": count, "share": share, "clusters": found.clusters, "refused": found.refused}
        facts |= {"dropped": gone, "training": left, "compared": found.compared, "leaks": found.leaks}
        facts["version"] = training.state.version if held is not None else None
        held_out = f"{counted(count, 'record')} in {counted(found.clusters, 'cluster')}"
        text = [
            f"{held_out} held out, {100 * share:.3f} %",
            f"{counted(gone, 'record')} near to them left training, which keeps {number(left)}",
            f"{counted(found.refused, 'cluster')} refused: too large, or near to a reference",
            f"{counted(found.compared, 'pair')} across the border compared, none near",
        ]
    if as_json:
        return print_json({**facts, "fresh": found is not None})
    page = console()
    page.print(title(held.uri if held is not None else training.uri, text[0]))
    for line in text[1:]:
        page.print(f"  {line}", markup=False)
    return 0
