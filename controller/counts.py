"""Counts on the wire; apart from controller/convert.py, which needs all of the core, for commands that show them."""

from __future__ import annotations

from headrace.protos import control_pb2 as pb
from headrace.store.entries import Counts


def counts_from(message: pb.Counts) -> Counts:
    """The counts of a shard."""
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
