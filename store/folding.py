"""Folding a log from its store: from a snapshot where there is one, and the entries behind it."""

from __future__ import annotations

from typing import TypeVar

from headrace.store.entries import decode_entry
from headrace.store.log import Log
from headrace.store.log_state import LogState

S = TypeVar("S", bound=LogState)


def fold_log(log: Log, state: S) -> S:
    """Fold what stands behind `state` into it, and return it. Raises StoreError, FormatError, EntryError, FoldError."""
    snapshot, entries = log.read_from(state.number)
    if snapshot is not None:
        from headrace.store.snapshot import decode_snapshot  # numpy, which a ledger without one need not import

        state.restore(decode_snapshot(snapshot[1]))
    for number, data in entries:
        state.apply(number, decode_entry(data, f"entry {number} of {log.uri}"))
    return state
