"""Conservation by ordinals, checked where the rows are: each record of a batch has exactly one fate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.runtime import ROW, Batch, ordinals_of, row_keys, verdict_keys
from headrace.store.ledger import Range
from headrace.store.shards import broken_rows


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


def part(batch: Batch, item: Range) -> Batch:
    """The records of `item` alone; the batch itself where that is all of it."""
    if item.first == batch.first and item.count == batch.count:
        return batch
    return replace(
        batch,
        first=item.first,
        count=item.count,
        offset=item.offset,
        length=item.length,
        rows=_between(batch.rows, ROW, item),
        verdicts=_between(batch.verdicts, "row", item),
        edits={},
        counters={},
    )


def join(covered: Sequence[tuple[Range, npt.NDArray[np.bool_]]]) -> list[tuple[Range, bytes, bytes]]:
    """Neighbouring ranges in one, with the bits of the kept and of the others, lowest bit first."""
    joined: list[tuple[Range, list[npt.NDArray[np.bool_]]]] = []
    for item, mask in sorted(covered, key=lambda pair: (pair[0].fragment, pair[0].first)):
        last = joined[-1][0] if joined else None
        if last is not None and last.fragment == item.fragment and last.end == item.first:
            length = item.stop - last.offset if last.offset >= 0 and item.stop >= 0 else -1
            whole = Range(
                last.fragment, last.first, last.count + item.count, last.offset if length >= 0 else -1, length
            )
            joined[-1] = (whole, [*joined[-1][1], mask])
        else:
            joined.append((item, [mask]))
    return [(item, *_bits(np.concatenate(masks))) for item, masks in joined]


def _bits(mask: npt.NDArray[np.bool_]) -> tuple[bytes, bytes]:
    return np.packbits(mask, bitorder="little").tobytes(), np.packbits(~mask, bitorder="little").tobytes()


def _between(batch: pa.RecordBatch, column: str, item: Range) -> pa.RecordBatch:
    values = ordinals_of(batch.column(column))
    return batch.filter(pa.array((values >= item.first) & (values < item.end)))
