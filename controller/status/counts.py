"""Counts and balances on the wire, for commands that show them: controller/convert.py needs all of the core."""

from __future__ import annotations

from headrace.protos import control_pb2 as pb
from headrace.store.ledger import Balance, Counts


def counts_from(message: pb.Counts | pb.Balance) -> Counts:
    """The counts of a shard, or of all that is closed."""
    m = message
    return Counts(
        kept=m.kept,
        filtered=m.filtered,
        duplicate=m.duplicate,
        quarantined=m.quarantined,
        filtered_by=dict(m.filtered_by),
        quarantined_by=dict(m.quarantined_by),
        edited=dict(m.edited),
        tokens=m.tokens,
        sequences=m.sequences,
        padding=m.padding,
        counters=dict(m.counters),
    )


def counts_to(counts: Counts) -> pb.Counts:
    """Counts for the wire."""
    return pb.Counts(
        kept=counts.kept,
        filtered=counts.filtered,
        duplicate=counts.duplicate,
        quarantined=counts.quarantined,
        filtered_by=dict(counts.filtered_by),
        quarantined_by=dict(counts.quarantined_by),
        edited=dict(counts.edited),
        tokens=counts.tokens,
        sequences=counts.sequences,
        padding=counts.padding,
        counters=dict(counts.counters),
    )


def balance_from(message: pb.Balance) -> Balance:
    """The inverse of `balance_to`."""
    m = message
    return Balance(
        counts=counts_from(m),
        records_open=m.records_open,
        fragments=m.fragments,
        fragments_open=m.fragments_open,
        fragments_unended=m.fragments_unended,
        fragments_dropped=m.fragments_dropped,
        open_at=tuple(m.open_at),
        shards=m.shards,
        version=m.version,
        seq_len=m.seq_len,
        balanced=m.balanced,
        complete=m.complete,
    )


def balance_to(balance: Balance) -> pb.Balance:
    """A balance for the wire, with the keys of `Balance.to_dict`."""
    return pb.Balance(**balance.to_dict(), seq_len=balance.seq_len)
