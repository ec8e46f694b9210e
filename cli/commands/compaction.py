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

from headrace.cli.ui import console, megabytes, number, title
from headrace.client import CliError, UsageError
from headrace.controller import Pen, with_pen
from headrace.pipeline import Pipeline
from headrace.stages.runtime import InputError
from headrace.stages.sinks import groups, left_to_do, merge, retracted_rows, write_retracted
from headrace.store import ObjectMissing, ObjectStore, counted, open_store
from headrace.store.datasets import Dataset, bring_forward
from headrace.store.ledger import (
    Change,
    ClaimsReleased,
    EpochRaised,
    FragmentEnded,
    FragmentsListed,
    LedgerState,
    PipelineApplied,
    Retracted,
    StoredObject,
    VersionPublished,
)

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
    except ObjectMissing as error:
        raise CliError(
            f"{error}: it went away while it was read, as by a retraction; compact again to go on"
        ) from error
    new = Dataset.open(target.uri)
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
    store = open_store(target)
    is_fresh = bool(todo) or not pen.ledger.version
    if is_fresh or old.state.retracted_at >= 0:
        await pen.commit(*_applied(old.state, pen.ledger, target), EpochRaised(REASON))
    if is_fresh:
        for page in _listed(old.state, pen.ledger):
            await pen.commit(*page)
        for group in groups(todo, shard_bytes):
            await pen.commit(await pen.beside(partial(merge, old.store, group, store, pen.ledger.epoch)))
    has_published = await _publish(pen, old, store, is_fresh=is_fresh)
    new = Dataset(store, pen.ledger)
    described = await pen.beside(new.describe)
    manifest = new.manifest(described)
    await pen.beside(lambda: bring_forward(store, manifest))
    return has_published


async def _publish(pen: Pen, old: Dataset, store: ObjectStore, *, is_fresh: bool) -> bool:
    """Publish what was merged, without what the old dataset has lost meanwhile; whether there was anything to publish.

    A retraction may come between a look at the old ledger and our entry, so that it is looked at again behind it; and
    the manifest is written when nothing has come.
    """
    base = old.state.newest
    has_published = False
    while True:
        now = Dataset.open(old.uri)
        hidden: tuple[tuple[str, tuple[int, ...]], ...] = ()
        replaced: tuple[tuple[str, StoredObject], ...] = ()
        if now.state.retracted_at >= 0:
            new = Dataset(store, pen.ledger)
            hidden = await pen.beside(partial(retracted_rows, now, new))
            replaced = await pen.beside(partial(write_retracted, now, new, pen.ledger.epoch))
        if not (is_fresh or hidden or replaced):
            return has_published
        version = pen.ledger.version + 1
        retraction = [Retracted(version, hidden, replaced)] if hidden or replaced else []
        complete = base is not None and base.complete
        published = VersionPublished(version, REASON, pen.ledger.number, complete)
        await pen.commit(*_settled(old.state, pen.ledger), *retraction, published)
        is_fresh, has_published = False, True
        if Dataset.open(old.uri).state.retracted_at == now.state.retracted_at:
            return True


def _settled(old: LedgerState, new: LedgerState) -> list[Change]:
    """What the old dataset has given up, and the claims that it has released, as far as the new one does not know."""
    given_up = [
        state.dropped
        for name, state in old.fragments.items()
        if state.dropped is not None and new.fragments[name].dropped is None
    ]
    released = [
        ClaimsReleased(sink, ((name, tuple(sorted(rows))),))
        for name, state in old.fragments.items()
        for sink, rows in state.released.items()
        if not rows <= new.fragments[name].released.get(sink, set())
    ]
    return [*given_up, *released]


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
