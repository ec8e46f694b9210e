"""What a rollback hides of a ledger: its state and its balance without that, and whether a version lacks of its input.

Folds keep what is hidden, since it stays closed and another rollback shows it again.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import add

from headrace.store.ledger.core.balance import Balance, balance_of
from headrace.store.ledger.core.fold import ClosedShard, FragmentState, LedgerState
from headrace.store.ledger.core.fragments import Counts


def without_hidden(state: LedgerState) -> LedgerState:
    """A ledger's state without the shards that a rollback hides: those of its newest version, and those closed since.

    It is the state itself where nothing is hidden.
    """
    newest = state.newest
    if newest is None or not newest.rollbacks or not state.rolled_back:
        return state
    shards = [shard for shard in state.shards if not newest.hides_entry(shard.number)]
    closed = {item.fragment for shard in state.shards for item in shard.closed.ranges}
    found = state_of(state, shards, [name for name in state.fragments if name not in closed])
    found.pipeline_version, found.pipeline = state.pipeline_version, state.pipeline
    found.version, found.published = state.version, state.published
    found.retracted, found.retracted_at = state.retracted, state.retracted_at
    found.held_at, found.held = state.held_at, state.held
    return found


def balance_shown(ledger: LedgerState) -> Balance:
    """What became of the records that no rollback hides, by the word of the main sink."""
    return balance_of(without_hidden(ledger))


def lacks_input(ledger: LedgerState) -> bool:
    """Whether the next version is incomplete, though all is closed: a rollback hides a part of its input.

    So it is behind a rollback to an incomplete version, and where a rollback hides some ranges of a fragment and other
    ranges are shown: its run was killed, and a later run has read the rest.
    """
    newest = ledger.newest
    if newest is None or not ledger.rolled_back:
        return False
    incomplete = [(shows, number) for shows, number, _, own in newest.rollbacks if _incomplete(ledger, own)]
    hidden, shown = set[tuple[str, bytes]](), set[tuple[str, bytes]]()
    for shard in ledger.shards:
        if any(shows < shard.number <= number for shows, number in incomplete):
            return True
        parts = hidden if newest.hides_entry(shard.number) else shown
        parts.update((shard.closed.sink, item.fragment) for item in shard.closed.ranges)
    return not hidden.isdisjoint(shown)


def _incomplete(ledger: LedgerState, version: int) -> bool:
    published = ledger.published.get(version)
    return published is not None and not published.complete


def state_of(state: LedgerState, shards: list[ClosedShard], more: Collection[bytes] = ()) -> LedgerState:
    """What a ledger says of some shards; of fragments, those of which they hold any, and `more`."""
    found = LedgerState(
        number=state.number, term=state.term, leader=state.leader, resigned=state.resigned, origin=state.origin,
        pipelines=state.pipelines, pipeline_number=state.pipeline_number, epoch=state.epoch, seen=state.seen,
        shards=shards, erased=state.erased,
    )  # fmt: skip
    for shard in shards:
        sink = shard.closed.sink
        for item in shard.closed.ranges:
            known = state.fragments[item.fragment]
            held = found.fragments.get(item.fragment)
            if held is None:
                held = FragmentState(known.fragment, known.count, known.checksum, dropped=known.dropped)
                held.released = known.released
                found.fragments[item.fragment] = held
            held.of(sink).add(item.first, item.end, item.offset, item.stop)
    for sink in dict.fromkeys(shard.closed.sink for shard in shards):
        found.counts[sink] = reduce(add, (item.closed.counts for item in shards if item.closed.sink == sink), Counts())
    found.fragments.update((name, state.fragments[name]) for name in more)
    found.totals = found.totals.of(found.fragments.values())
    return found
