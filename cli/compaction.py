"""`headrace dataset compact`: another dataset of the same records, in fewer and larger shards.

It is a pipeline from dataset to dataset: the old one is only read, so whoever trains from it goes on, and it is removed
when nobody needs it any more. The new one's ledger lists the same fragments and closes the same records, so it is
audited, rebuilt from the source, and gone on with as if its sink had gathered more before it sealed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from headrace.cli.errors import CliError, UsageError
from headrace.cli.page import console, title
from headrace.cli.words import megabytes, number
from headrace.controller.pen import Pen, with_pen
from headrace.pipeline.graph import Pipeline
from headrace.stages.compaction import groups, left_to_do, merge, retracted_rows
from headrace.stages.errors import InputError
from headrace.store.dataset import Dataset, write_manifest
from headrace.store.entries import (
    Change,
    ClaimsReleased,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    PipelineApplied,
    Retracted,
    VersionPublished,
)
from headrace.store.fold import LedgerState
from headrace.store.objects import open_store
from headrace.store.words import counted

#: Fragments in one entry, as in a page of a listing.
PAGE_FRAGMENTS = 1000
REASON = "compaction"


def compact_dataset(uri: str, into: str, *, shard_bytes: int, as_json: bool) -> int:
    """Compact one dataset into another; the exit code. Killed on the way, it goes on where it was."""
    old = Dataset.open(uri)
    target = open_store(into)
    if target.uri == old.uri:
        raise UsageError("compact into another place: whoever reads the old dataset shall find it as it was")

    async def compacted(pen: Pen) -> bool:
        return await _compact(pen, old, target.uri, shard_bytes)

    try:
        fresh = with_pen(target.uri, compacted)
    except InputError as error:
        raise CliError(f"{target.uri}: {error}") from error
    new = Dataset.open(target.uri)
    write_manifest(new.store, new.manifest())
    facts = {
        "dataset": new.uri,
        "from": old.uri,
        "fresh": fresh,
        "version": new.state.version,
        "shards": len(new.shards),
        "shards_before": len(old.shards),
        "bytes": _bytes(new),
        "bytes_before": _bytes(old),
        "padding": sum(counts.padding for counts in new.state.counts.values()),
        "padding_before": sum(counts.padding for counts in old.state.counts.values()),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        before = counted(len(old.shards), "shard has", "shards have")
        what = f"{before} become {number(len(new.shards))}, {megabytes(_bytes(new))}"
        console(sys.stdout).print(title(new.uri, what if fresh else "stands already, nothing is to be done"))
    return 0


async def _compact(pen: Pen, old: Dataset, target: str, shard_bytes: int) -> bool:
    """Close group after group, then publish. False if it was done already."""
    # Refuse another's dataset before anything is written to it.
    todo = left_to_do(old.state, pen.ledger)
    if pen.ledger.version and not todo:
        return False
    store = open_store(target)
    await pen.commit(*_applied(old.state, pen.ledger, target), EpochRaised(REASON))
    for page in _listed(old.state, pen.ledger):
        await pen.commit(*page)
    for group in groups(todo, shard_bytes):
        await pen.commit(await pen.beside(partial(merge, old.store, group, store, pen.ledger.epoch)))
    again = Dataset.open(old.uri)
    if again.state.retracted != old.state.retracted:
        raise CliError(
            f"records were retracted from {old.uri} meanwhile, and {target} may hold them: "
            f"`headrace dataset rm --yes {target}`, and compact again"
        )
    new = Dataset(store, pen.ledger)
    version = pen.ledger.version + 1
    hidden = await pen.beside(lambda: retracted_rows(old, new))
    given_up = [
        state.dropped
        for name, state in old.state.fragments.items()
        if state.dropped is not None and pen.ledger.fragments[name].dropped is None
    ]
    retraction = [Retracted(version, hidden, ())] if hidden else []
    released = [
        ClaimsReleased(sink, ((name, tuple(sorted(rows))),))
        for name, state in old.state.fragments.items()
        for sink, rows in state.released.items()
    ]
    await pen.commit(*given_up, *released, *retraction, VersionPublished(version, REASON))
    return True


def _applied(old: LedgerState, new: LedgerState, target: str) -> Iterator[Change]:
    """The pipelines of the old dataset that the new one does not know, the one in force last."""
    if new.pipeline_version == old.pipeline_version:
        return
    for version in sorted(old.pipelines, key=lambda version: version == old.pipeline_version):
        pipeline = replace(Pipeline.from_dict(old.pipelines[version]), dataset=target)
        yield PipelineApplied(version, pipeline.to_dict())


def _listed(old: LedgerState, new: LedgerState) -> Iterator[list[Change]]:
    """The fragments that the new dataset does not know, and the ends that are logged, a page at a time."""
    states = list(old.fragments.items())
    for begin in range(0, len(states), PAGE_FRAGMENTS):
        page = states[begin : begin + PAGE_FRAGMENTS]
        fresh = tuple(state.fragment for name, state in page if name not in new.fragments)
        changes: list[Change] = [FragmentsListed(fresh)] if fresh else []
        for name, state in page:
            known = new.fragments.get(name)
            if state.count is not None and (known is None or known.count is None):
                changes.append(FragmentEnded(name, state.count))
        if changes:
            yield changes


def _bytes(dataset: Dataset) -> int:
    return sum(item.size for shard in dataset.shards for item in shard.closed.objects)
