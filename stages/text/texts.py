"""A column of texts as the bytes that the loops run over, and what they find made into verdicts or tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.runtime import LINEAGE, Batch, as_column
from headrace.store import counted
from headrace.store.shards import SCORE_PREFIX

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]
#: A reason and the records that it holds for.
Rule = tuple[str, Mask]
#: Bytes behind the last text that the loops may read.
PADDING = 64
#: Bytes of an array that a `LoopRoom` keeps: several times those of a usual batch.
KEPT_BYTES_MAX = 8 << 20
ONE_WORD = pa.array(["word"], pa.string())
#: The name of the counter of lines that a stage took out of texts which it kept.
LINES_DROPPED = "lines dropped"


class LoopRoom:
    """Arrays that loops write into, which the next batch of the same stage finds again: new memory is zeroed first.

    What is larger than KEPT_BYTES_MAX is not kept. An array holds until the next one of its name is taken.
    """

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, name: str, count: int, kind: Any) -> npt.NDArray[Any]:
        """An array of so many numbers of a kind, with whatever stands in it."""
        nbytes = count * np.dtype(kind).itemsize
        kept = self._kept.get(name)
        if kept is None or kept.nbytes < nbytes:
            kept = np.empty(nbytes, np.uint8)
            if nbytes <= KEPT_BYTES_MAX:
                self._kept[name] = kept
        return kept[:nbytes].view(kind)


def text_bytes(
    column: pa.Array[Any], room: LoopRoom | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of a column of `n` texts with `PADDING` behind them, and the int64 offsets `[n + 1]` of each text.

    They are copied, which takes a hundredth of the time of the cheapest filter: Arrow promises no bytes behind a text.
    """
    if column.null_count:
        raise ValueError(f"text is null in {counted(column.null_count, 'record')}")
    kind = np.int64 if pa.types.is_large_string(column.type) else np.int32
    buffers: Any = column.buffers()
    _, bounds, content = buffers
    if bounds is None or content is None or not len(column):
        return np.zeros(PADDING, np.uint8), np.zeros(len(column) + 1, np.int64)
    offsets = np.frombuffer(bounds, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = (room or LoopRoom()).take("texts", last - first + PADDING, np.uint8)
    data[: last - first] = np.frombuffer(content, np.uint8)[first:last]
    data[last - first :] = 0
    return data, offsets - first


def longest(offsets: npt.NDArray[np.int64]) -> int:
    """The bytes of the longest text."""
    return int(np.diff(offsets).max()) if len(offsets) > 1 else 0


def share(part: Any, whole: Any) -> Numbers:
    """`part / whole`, and 0 where there is nothing to divide by."""
    parts, wholes = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes != 0)


def drop(batch: Batch, stage: str, rules: Sequence[Rule]) -> Batch:
    """Filter the rows for which a rule's mask holds, for the reason of the first such rule."""
    broken = np.zeros(batch.rows.num_rows, np.int64)
    for number in range(len(rules), 0, -1):
        broken[rules[number - 1][1]] = number
    if not broken.any():
        return batch
    names = [None, *(reason for reason, _ in rules)]
    return batch.keep(broken == 0, stage, [names[number] for number in broken.tolist()])


def tag(batch: Batch, stage: str, scores: dict[str, Any]) -> Batch:
    """The same rows, with a column for each score: numbers, booleans or strings `[n]`."""
    rows = batch.rows
    for name, values in scores.items():
        column = pa.array(values, pa.string()) if isinstance(values, list) else as_column(np.asarray(values))
        rows = with_column(rows, score_column(stage, name), column)
    return batch.with_rows(rows)


def score_column(stage: str, name: str) -> str:
    """The column of the documents table that holds a stage's score of this name."""
    return f"{SCORE_PREFIX}{stage}.{name.replace(' ', '_')}"


def scores_of(table: pa.Table, stage: str) -> tuple[dict[str, Any], Mask]:
    """A stage's scores by name, of the rows that have them, and which rows those are `[rows]`."""
    begin = score_column(stage, "")
    names = [name for name in table.schema.names if name.startswith(begin)]
    known = np.full(table.num_rows, bool(names), np.bool_)
    for name in names:
        known &= np.asarray(pc.is_valid(table.column(name)).to_numpy())
    rows = table.select(names).filter(as_column(known)) if known.any() else table.select(names).slice(0, 0)
    return {name.removeprefix(begin).replace("_", " "): rows.column(name).to_numpy() for name in names}, known


def with_texts(
    batch: Batch,
    stage: str,
    texts: pa.Array[Any],
    kept: Mask,
    lines_dropped: npt.NDArray[np.int64] | None = None,
    removed: Mapping[int, Sequence[int]] | None = None,
) -> Batch:
    """The batch with other texts. Those among `kept` that changed are counted as edits, and the lines they lost.

    `removed` has for places of texts what they lost: begin and end of each range, in bytes of the text before.
    """
    old: Any = batch.rows.column("text")
    changed = pc.not_equal(texts, old.cast(texts.type)).to_numpy(zero_copy_only=False) & kept
    rows = with_column(batch.rows, "text", texts)
    if not changed.any():
        return replace(batch, rows=rows)
    edits = {**batch.edits, stage: batch.edits.get(stage, 0) + int(changed.sum())}
    if lines_dropped is not None:
        batch = batch.counted(stage, LINES_DROPPED, int(lines_dropped[changed].sum()))
    return replace(batch, rows=with_edits(rows, changed, stage, removed), edits=edits)


def with_edits(
    rows: pa.RecordBatch, changed: Mask, stage: str, removed: Mapping[int, Sequence[int]] | None = None
) -> pa.RecordBatch:
    """The rows with this stage in the lineage of each whose text it changed, and what it `removed` of that."""
    lineage: list[Any] = rows.column(LINEAGE).to_pylist() if LINEAGE in rows.schema.names else [None] * rows.num_rows
    for index in np.flatnonzero(changed).tolist():
        story: dict[str, Any] = orjson.loads(lineage[index]) if lineage[index] else {"edited_by": []}
        story["edited_by"].append(stage)
        if removed is not None:
            story.setdefault("removed", {})[stage] = list(removed[index])
        lineage[index] = orjson.dumps(story).decode()
    return with_column(rows, LINEAGE, pa.array(lineage, pa.string()))


def with_column(rows: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    """The rows with this column, in the place of the one of its name or behind the others."""
    names = list(rows.schema.names)
    columns: list[Any] = list(rows.columns)
    if name in names:
        columns[names.index(name)] = values
    else:
        names.append(name)
        columns.append(values)
    return pa.RecordBatch.from_arrays(columns, names=names)
