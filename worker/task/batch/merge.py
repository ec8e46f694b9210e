"""A merged batch taken apart where its records are accounted for: a batch for each member, as if it had come alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import ROW, Batch, Member, as_column, no_verdicts, ordinals_of
from headrace.store.ledger import Range


def ranges_of(batch: Batch) -> tuple[Range, ...]:
    """The ranges of a batch: one, or one for each member of a merged batch."""
    if not batch.members:
        return (Range(batch.fragment, batch.first, batch.count, batch.offset, batch.length),)
    return tuple(_range_of(member) for member in batch.members)


def apart(batch: Batch) -> list[Batch]:
    """A batch for each member, in their order; edits and counters go with the first.

    Their rows lie in the memory of the merged batch, end to end. ValueError where its rows do not ascend.
    """
    edges = np.cumsum([0, *(member.count for member in batch.members)])
    shifts = np.array([member.first for member in batch.members], np.int64) - edges[:-1]
    rows = _shared(batch.rows, ROW, edges, shifts)
    verdicts = batch.verdicts
    if verdicts.num_rows:
        ordinals = ordinals_of(verdicts.column("row"))
        # A stage adds its verdicts behind those of the stages before it, and so it is within each member.
        order = np.argsort(np.searchsorted(edges, ordinals, side="right"), kind="stable")
        verdicts = verdicts.take(as_column(order))
    lost = _shared(verdicts, "row", edges, shifts) if verdicts.num_rows else [no_verdicts()] * len(batch.members)
    parts = [
        Batch(*_name_of(member), kept, others, scratch=batch.scratch)
        for member, kept, others in zip(batch.members, rows, lost, strict=True)
    ]
    return [replace(parts[0], edits=batch.edits, counters=batch.counters), *parts[1:]]


def _shared(
    table: pa.RecordBatch, column: str, edges: npt.NDArray[np.int64], shifts: npt.NDArray[np.int64]
) -> list[pa.RecordBatch]:
    """The rows of each member, which lie together in their order, under the ordinals of its own fragment."""
    places = ordinals_of(table.column(column))
    members = np.searchsorted(edges, places, side="right") - 1
    if len(members) > 1 and (np.diff(members) < 0).any():
        raise ValueError("the rows of a merged batch do not ascend")
    own = table.set_column(table.schema.get_field_index(column), column, as_column(places + shifts[members]))
    bounds = np.searchsorted(members, np.arange(len(shifts) + 1)).tolist()
    return [own.slice(low, high - low) for low, high in itertools.pairwise(bounds)]


def _name_of(member: Member) -> tuple[bytes, str, int, int, int, int]:
    return member.fragment, member.uri, member.first, member.count, member.offset, member.length


def _range_of(member: Member) -> Range:
    return Range(member.fragment, member.first, member.count, member.offset, member.length)
