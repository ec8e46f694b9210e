"""Stages that make several records of one: their parts, which are accounted for by the record that they come from.

A part is `(row, part)`, with `part` counted from 0, and is called `<id of the record>/<part>`. A record is kept where
one of its parts is. A pipeline may split once on the way from a source to a sink (`preflight` says so), so that a
part needs one number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headrace.stages.functions.functions import FIELDS, MapBatches, MapRecords, pack_metadata, settle
from headrace.stages.runtime import PART, ROW, Batch, StageContractError, ordinals_of, text_of
from headrace.stages.text import with_column
from headrace.store.shards import PARTS_MAX

NO_PARTS = "function returned no parts"


class SplitRecords(MapRecords):
    """Calls `function(record) -> list of records`, each `{"text", "metadata"}`; an empty list or None filters.

    The record is as for MapRecords. A part without `metadata` has none.
    """

    splits = True

    def process(self, batch: Batch) -> Batch:
        """The batch with a row a part."""
        text_of(batch, self.name)
        places: list[int] = []
        texts: list[str] = []
        metadata: list[str | None] = []
        ids, old_texts, old_metadata = (batch.rows.column(field).to_pylist() for field in FIELDS)
        for index, (identity, text, packed) in enumerate(zip(ids, old_texts, old_metadata, strict=True)):
            record = {"id": identity, "text": text, "metadata": orjson.loads(packed) if packed else {}}
            for part in self._parts(self.function(record), str(identity)):
                places.append(index)
                texts.append(part["text"])
                metadata.append(pack_metadata(part.get("metadata"), packed))
        rows = batch.rows.take(pa.array(places, pa.int64()))
        rows = with_column(rows, "text", pa.array(texts, pa.string()))
        rows = with_column(rows, "metadata", pa.array(metadata, pa.string()))
        return number_parts(batch, rows, self.name)

    def _parts(self, answer: Any, identity: str) -> list[dict[str, Any]]:
        if answer is None:
            return []
        if isinstance(answer, (dict, str, bytes)) or not isinstance(answer, Iterable):
            raise StageContractError(
                f'stage "{self.name}": its function returned {type(answer).__name__} for record {identity!r}: '
                "a function that splits returns a list of records"
            )
        parts: list[dict[str, Any]] = []
        for part in answer:
            self._check(part, identity)
            parts.append(part)
            if len(parts) > PARTS_MAX:
                raise ValueError(f"more than {PARTS_MAX} parts of one record")
        return parts


class SplitBatches(MapBatches):
    """Calls `function(rows) -> rows` on Arrow record batches, in which a row may be given back any number of times.

    `__row` says which record a row is a part of; the parts are numbered in the order in which they come back.
    """

    splits = True

    def process(self, batch: Batch) -> Batch:
        """The batch with a row a part."""
        return number_parts(batch, self.answer(batch), self.name)


def number_parts(batch: Batch, rows: pa.RecordBatch, stage: str) -> Batch:
    """The batch with `rows` as its parts, numbered and named; a record without parts is filtered.

    Raises StageContractError for a part of a record that was not given.
    """
    order = np.argsort(ordinals_of(rows.column(ROW)), kind="stable")
    rows = rows.take(pa.array(order, pa.int64()))
    numbers = _numbers(ordinals_of(rows.column(ROW)))
    if len(numbers) and int(numbers.max()) >= PARTS_MAX:
        raise ValueError(f"more than {PARTS_MAX} parts of one record")
    settled = settle(batch, with_column(rows, PART, pa.array(numbers, pa.int32())), stage, NO_PARTS, splits=True)
    places = np.searchsorted(ordinals_of(batch.rows.column(ROW)), ordinals_of(settled.rows.column(ROW)))
    parents = batch.rows.column("id").take(pa.array(places, pa.int64()))
    names = [f"{parent}/{number}" for parent, number in zip(parents.to_pylist(), numbers.tolist(), strict=True)]
    return replace(settled, rows=with_column(settled.rows, "id", pa.array(names, pa.string())))


def _numbers(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many equal ordinals stand before each, of ordinals in ascending order."""
    places = np.arange(len(rows))
    starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]])) if len(rows) else places
    lengths = np.diff(np.append(starts, len(rows)))
    return np.asarray(places - np.repeat(starts, lengths), dtype=np.int64)
