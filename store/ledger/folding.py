"""Folding a log from its store: from a snapshot where there is one, and the entries behind it."""

from __future__ import annotations

import logging
from typing import TypeVar

from headrace.store import FormatError, ObjectMissing
from headrace.store.ledger.core.entries import decode_entry
from headrace.store.ledger.core.log_state import LogState
from headrace.store.ledger.log import Log

logger = logging.getLogger("headrace.store")

S = TypeVar("S", bound=LogState)


def fold_log(log: Log, state: S) -> S:
    """Fold what stands behind `state` into it, and return it. Raises StoreError, FormatError, EntryError, FoldError."""
    snapshot, entries = read_behind(log, state.number)
    if snapshot is not None:
        state.restore(snapshot[1])
    for number, data in entries:
        state.apply(number, decode_entry(data, f"entry {number} of {log.uri}"))
    return state


def read_behind(log: Log, after: int) -> tuple[tuple[int, LogState] | None, list[tuple[int, bytes]]]:
    """What a reader that knows everything up to `after` needs: the fold of a snapshot or None, and the entries behind.

    A snapshot that cannot be read, as one that was cut, stops nobody while what it stands for is there: the one before
    it is taken, or the entries themselves, and a warning says so. Raises StoreError, and FormatError where neither is.
    """
    below: int | None = None
    wrong: FormatError | None = None
    while True:
        try:
            found, entries = log.read_from(after, below)
        except (FormatError, ObjectMissing) as error:
            raise wrong or error from error
        if found is None:
            return None, entries
        from headrace.store.ledger.snapshot import (
            decode_snapshot,  # numpy, which a log without a snapshot need not import
        )

        number, data = found
        try:
            return (number, decode_snapshot(data)), entries
        except FormatError as error:
            what = f"{log.uri}: {log.snapshot_key(number)} cannot be read: {error}"
            logger.warning("%s; what stands before it is read in its place", what)
            wrong = wrong or FormatError(f"{what}; restore it from a copy: the entries that it stands for are gone")
            below = number


def begins_a_term(log: Log, number: int) -> bool:
    """Whether the newest snapshot behind entry `number` counts it among those that begin a term. Raises StoreError.

    Such an entry is part of the log and stays: in its place an older leader could write. One that the snapshot does not
    know was created where a truncation had left a hole.
    """
    from headrace.store.ledger.snapshot import decode_snapshot

    snapshots = log.snapshots(number - 1)
    return bool(snapshots) and number in decode_snapshot(log.read_snapshot(snapshots[-1])).led_at


def snapshot_problems(log: Log) -> list[str]:
    """What is wrong with the snapshots of a log, a line each."""
    from headrace.store.ledger.snapshot import decode_snapshot

    problems: list[str] = []
    for number in log.snapshots():
        try:
            decode_snapshot(log.read_snapshot(number))
        except ObjectMissing:
            continue  # truncated meanwhile, behind a newer one
        except FormatError as error:
            problems.append(
                f"{log.snapshot_key(number)} cannot be read: {error}; readers take what stands before it: "
                "restore it from a copy, or delete it while that is there"
            )
    return problems
