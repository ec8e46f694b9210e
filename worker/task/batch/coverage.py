"""Conservation by ordinals, checked where the rows are: each record of a batch has exactly one fate.

A merged batch taken apart where its records are accounted for: a batch for each member, as if it had come alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import ROW, Batch, Member, as_column, no_verdicts, ordinals_of, row_keys, verdict_keys
from headrace.store.ledger import Range
from headrace.store.shards import broken_rows
from headrace.worker.task import runs

#: `[records of a span]`.
Mask = npt.NDArray[np.bool_]


class ConservationError(RuntimeError):
    """A stage lost, invented or repeated a record: a defect of the stage."""


def fates(batch: Batch) -> npt.NDArray[np.bool_]:
    """`[count]`: whether each record of the batch was kept. ConservationError unless each has exactly one fate.

    A record that was split has as many fates as parts, and is kept where one of them is.
    """
    kept = ordinals_of(batch.rows.column(ROW)) - batch.first
    other = ordinals_of(batch.verdicts.column("row")) - batch.first
    everyone = np.concatenate([kept, other])
    where = f"{batch.uri}, records {batch.first}..{batch.first + batch.count - 1}"
    if len(everyone) and (everyone.min() < 0 or everyone.max() >= batch.count):
        raise ConservationError(f"{where}: a row or verdict for a record outside the batch")
    times = np.bincount(everyone, minlength=batch.count)
    wrong = times == 0
    wrong[broken_rows(np.concatenate([row_keys(batch.rows), verdict_keys(batch.verdicts)])) - batch.first] = True
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ConservationError(
            f"{where}: record {batch.first + at} has {int(times[at])} fates, not one (or one for each part from 0 on)"
        )
    mask = np.zeros(batch.count, dtype=np.bool_)
    mask[kept] = True
    return mask


def part(batch: Batch, item: Range, held: Mask | None = None) -> Batch:
    """The records of `item` alone, those of them that `held` has; the batch itself where that is all of it."""
    if held is None and item.first == batch.first and item.count == batch.count:
        return batch
    inside = np.zeros(batch.count, np.bool_)
    inside[item.first - batch.first : item.end - batch.first] = True if held is None else held
    return parted(batch, item, inside)


def parted(batch: Batch, item: Range, inside: Mask) -> Batch:
    """The records of a batch that are `inside`, `[batch.count]`, from the first to the last of `item`.

    What stages counted stays with the kept rows, if all of them stay together.
    """
    kept, lost = (
        inside[ordinals_of(column) - batch.first] for column in (batch.rows.column(ROW), batch.verdicts.column("row"))
    )
    whole = bool(len(kept)) and bool(kept.all())
    return replace(
        batch,
        first=item.first,
        count=item.count,
        offset=item.offset,
        length=item.length,
        rows=batch.rows if whole else batch.rows.filter(pa.array(kept)),
        verdicts=batch.verdicts.filter(pa.array(lost)),
        edits=batch.edits if whole else {},
        counters=batch.counters if whole else {},
    )


#: Fragment, first, count, offset and length, as a `Range` has them, and two bitmaps. It is no object: where verdicts
#: have waited, each record between those that did not is a range of its own.
ProposedRange = tuple[bytes, int, int, int, int, bytes, bytes]


def join(covered: Iterable[tuple[Range, Mask, Mask | None]]) -> Iterator[ProposedRange]:
    """Neighbouring records in one range, with the bits of the kept and of the others, lowest bit first.

    Of each batch its span, which of its records are kept, and which of the span's it has; None: all of them.
    """
    found: dict[bytes, list[tuple[Range, Mask, Mask | None]]] = {}
    for batch in covered:
        found.setdefault(batch[0].fragment, []).append(batch)
    for fragment in sorted(found):
        yield from _joined(fragment, found[fragment])


def _joined(fragment: bytes, batches: Sequence[tuple[Range, Mask, Mask | None]]) -> Iterator[ProposedRange]:
    rows = np.concatenate([ordinals_in(item, held) for item, _, held in batches])
    kept = np.concatenate([mask if held is None else mask[held] for _, mask, held in batches])
    order = np.argsort(rows, kind="stable")
    rows, kept = rows[order], kept[order]
    firsts, ends = runs(rows)
    counts = ends - firsts
    # Each range begins at a byte of its own.
    edges = np.concatenate([[0], np.cumsum((counts + 7) // 8)])
    places = np.arange(len(rows)) + np.repeat(8 * edges[:-1] - (np.cumsum(counts) - counts), counts)
    bits = np.zeros((2, 8 * int(edges[-1])), np.bool_)
    bits[0, places], bits[1, places] = kept, ~kept
    yes, no = (packed.tobytes() for packed in np.packbits(bits, axis=1, bitorder="little"))
    whole = [item for item, _, held in batches if held is None and item.stop >= 0]
    offsets, stops = {item.first: item.offset for item in whole}, {item.end: item.stop for item in whole}
    for first, end, low, high in zip(
        *(column.tolist() for column in (firsts, ends, edges[:-1], edges[1:])), strict=True
    ):
        offset, stop = offsets.get(first, -1), stops.get(end, -1)
        at, length = (offset, stop - offset) if offset >= 0 and stop >= 0 else (-1, -1)
        yield fragment, first, end - first, at, length, yes[low:high], no[low:high]


def ordinals_in(item: Range, held: Mask | None) -> npt.NDArray[np.int64]:
    """The ordinals of a span, or those of it that are held."""
    return np.arange(item.first, item.end) if held is None else np.flatnonzero(held) + item.first


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
        Batch(of.fragment, of.uri, of.first, of.count, of.offset, of.length, kept, others, scratch=batch.scratch)
        for of, kept, others in zip(batch.members, rows, lost, strict=True)
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


def _range_of(member: Member) -> Range:
    return Range(member.fragment, member.first, member.count, member.offset, member.length)
