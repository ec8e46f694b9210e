"""A bounded sample of what each stage removed, for each reason: the records whose hashed id is smallest (bottom-k).

Which records those are follows from their ids and a fixed seed, so the sample of a union is the sample of the samples
(Cohen and Kaplan 2007, "Summarizing Data using Bottom-k Sketches"): batches may be cut anew, shards written in another
order and records read again after a fault, and a dataset shows the same ones. A text travels in the column `raw` of its
verdict, so that a batch carries at most SAMPLES_MAX beginnings of texts a reason.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.stages.runtime.batch import QUARANTINED, Batch, as_column, reason_class, row_keys, verdict_keys
from headrace.store import ObjectStore
from headrace.store.shards import read_table, samples_schema

if TYPE_CHECKING:
    from headrace.store.datasets import Dataset

#: Samples of each stage and reason: in a batch, in a shard, and of a dataset.
SAMPLES_MAX = 5
#: Code points of a text that a sample keeps.
SAMPLE_CHARACTERS_MAX = 500
_SEED = 20


def rank(identity: str) -> int:
    """Where a record stands among those that a sample is drawn from: the smallest are drawn."""
    return xxhash.xxh3_64_intdigest(identity.encode("utf-8", "surrogatepass"), seed=_SEED)


def draw(places: Iterable[tuple[tuple[str, str], str, int]]) -> list[int]:
    """Of (stage and reason, id, place), the places of each stage's and reason's sample, in ascending order."""
    groups: defaultdict[tuple[str, str], list[tuple[int, str, int]]] = defaultdict(list)
    for group, identity, place in places:
        groups[group].append((rank(identity), identity, place))
    return sorted(place for found in groups.values() for _, _, place in heapq.nsmallest(SAMPLES_MAX, found))


def with_samples(answer: Batch, before: Batch) -> Batch:
    """The answer of a stage with the beginnings of texts in `raw`, for a sample of what it removed of `before`."""
    lost = answer.verdicts
    if lost.num_rows == before.verdicts.num_rows or "text" not in before.rows.schema.names:
        return answer
    given, rows = row_keys(before.rows), verdict_keys(lost)
    if not len(given):
        return answer
    at = np.minimum(np.searchsorted(given, rows), len(given) - 1)
    fresh = np.flatnonzero((given[at] == rows) & ~np.asarray(lost.column("raw").is_valid()))
    if not len(fresh):
        return answer
    places = as_column(fresh)
    columns: list[list[Any]] = [lost.column(name).take(places).to_pylist() for name in ("id", "stage", "reason")]
    names, stages, reasons = columns
    classes = {why: reason_class(why) for why in set(reasons)}
    named = zip(stages, reasons, names, fresh.tolist(), strict=True)
    chosen = draw(((stage, classes[why]), name, place) for stage, why, name, place in named)
    raw: list[bytes | None] = lost.column("raw").to_pylist()
    texts: Any = before.rows.column("text")
    for place in chosen:
        raw[place] = _beginning(texts[int(at[place])].as_buffer())
    column = pa.array(raw, pa.binary())
    return replace(answer, verdicts=lost.set_column(lost.schema.get_field_index("raw"), "raw", column))


def _beginning(text: Any) -> bytes:
    """The first code points of a text, of which no more is looked at."""
    begun = text.slice(0, min(text.size, 4 * SAMPLE_CHARACTERS_MAX)).to_pybytes()
    # What is cut off in the middle of a code point is behind them.
    return bytes(begun.decode("utf-8", "ignore")[:SAMPLE_CHARACTERS_MAX].encode())


def sampled_of(batch: Batch) -> dict[str, Any]:
    """The columns of the samples table, but for where the records are from, of what a batch carries."""
    lost = batch.verdicts
    chosen = np.zeros(lost.num_rows, np.bool_)
    if lost.num_rows:
        other = np.asarray(pc.not_equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string())))
        chosen = other & np.asarray(lost.column("raw").is_valid())
    rows = lost.filter(as_column(chosen)) if chosen.any() else lost.slice(0, 0)
    columns: dict[str, Any] = {name: rows.column(name) for name in ("id", "row", "part", "stage", "verdict", "reason")}
    return {**columns, "text": rows.column("raw").cast(pa.string())}


def merge(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of samples from several: of each stage and reason those that rank first, in that order."""
    table = pa.concat_tables(tables) if tables else samples_schema().empty_table()
    columns: list[list[Any]] = [table.column(name).to_pylist() for name in ("stage", "reason", "id")]
    groups = [(stage, reason_class(why)) for stage, why in zip(*columns[:2], strict=True)]
    chosen = draw((group, name, place) for place, (group, name) in enumerate(zip(groups, columns[2], strict=True)))
    order = sorted(chosen, key=lambda place: (groups[place], rank(columns[2][place]), columns[2][place]))
    return table.take(pa.array(order, pa.int64()))


def samples_table(store: ObjectStore, key: str) -> pa.Table:
    """A table of samples as ours are: of their types, and with a text where a sample has one. Raises FormatError."""
    table, columns = read_table(store, key), list[Any]()
    for field in samples_schema():
        held = field.name in table.column_names
        column: Any = table.column(field.name).cast(field.type) if held else pa.nulls(len(table), field.type)
        columns.append(column.fill_null("") if field.type == pa.string() else column)
    return pa.table(columns, schema=samples_schema())


def read_samples(dataset: Dataset, sink: str) -> dict[str, list[dict[str, Any]]]:
    """The samples of a dataset by `stage/reason`, as one of its sinks wrote them."""
    objects = [shard.object("samples") for shard in dataset.shards if shard.closed.sink == sink]
    rows = merge([samples_table(dataset.store, item.key) for item in objects if item is not None]).to_pylist()
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(f"{row['stage']}/{reason_class(row['reason'])}", []).append(row)
    return found
