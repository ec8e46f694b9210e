"""Stages made of a user's own function, on one record or on a batch of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.runtime import (
    FILTERED,
    LINEAGE,
    PART,
    ROW,
    Batch,
    StageContractError,
    Transform,
    UnsoundArrow,
    join_verdicts,
    load_target,
    ordinals_of,
    parts_of,
    row_keys,
    sound,
    text_of,
    verdicts_of,
)
from headrace.stages.text import with_column, with_edits
from headrace.store.shards import keys_of, rows_of

FIELDS = ("id", "text", "metadata")
RETURNED_NONE = "function returned None"
RETURNED_FALSE = "function returned False"
LEFT_OUT = "function left it out"
#: A reason is a name that is counted, and no place for what differs from record to record.
REASON_CHARACTERS_MAX = 100
REASONS_MAX = 100
_NOTHING: npt.NDArray[np.int64] = np.empty(0, np.int64)


class MapRecords(Transform):
    """Calls `function(record) -> record | str | None`: a string filters the record and says why, None without a reason.

    A record is a dict of `id`, `text` and `metadata` (a dict, empty where there is none). A text that the function
    changes is counted as an edit; the id cannot be changed.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name = name
        self.function = _load(function, name)
        self._reasons: set[str] = set()

    def process(self, batch: Batch) -> Batch:
        """The batch with what the function returned."""
        text_of(batch, self.name)
        kept: list[int] = []
        reasons: dict[int, str] = {}
        texts: list[str] = []
        metadata: list[str | None] = []
        ids, old_texts, old_metadata = (batch.rows.column(field).to_pylist() for field in FIELDS)
        for index, (identity, text, packed) in enumerate(zip(ids, old_texts, old_metadata, strict=True)):
            record = {"id": identity, "text": text, "metadata": orjson.loads(packed) if packed else {}}
            answer = self.function(record)
            if answer is None or isinstance(answer, str):
                reasons[index] = self._reason(answer, str(identity))
                continue
            self._check(answer, str(identity))
            kept.append(index)
            texts.append(answer["text"])
            metadata.append(pack_metadata(answer.get("metadata"), packed))
        rows = batch.rows if len(kept) == len(ids) else batch.rows.take(pa.array(kept, pa.int64()))
        if texts != old_texts:
            rows = with_column(rows, "text", pa.array(texts, pa.string()))
        if metadata != old_metadata:
            rows = with_column(rows, "metadata", pa.array(metadata, pa.string()))
        return settle(batch, rows, self.name, reasons)

    def _reason(self, answer: str | None, identity: str) -> str:
        if answer is None:
            return RETURNED_NONE
        who = f'stage "{self.name}": its function returned'
        if not 0 < len(answer) <= REASON_CHARACTERS_MAX or not answer.isprintable():
            raise StageContractError(
                f"{who} a string of {len(answer)} characters for record {identity!r}: a reason is a line of 1 to "
                f"{REASON_CHARACTERS_MAX}, and a record that is kept is a dict"
            )
        self._reasons.add(answer)
        if len(self._reasons) > REASONS_MAX:
            raise StageContractError(
                f"{who} more than {REASONS_MAX} different reasons, the last {answer!r}: reasons are counted by their "
                "names; leave out what differs from record to record"
            )
        return answer

    def _check(self, answer: Any, identity: str) -> None:
        who = f'stage "{self.name}": its function returned'
        if not isinstance(answer, dict):
            raise StageContractError(
                f"{who} {type(answer).__name__} for record {identity!r}: return a dict, a reason or None"
            )
        unknown = [key for key in answer if key not in FIELDS]
        if unknown:
            raise StageContractError(f"{who} the field {unknown[0]!r}: put fields of your own into record['metadata']")
        if not isinstance(answer.get("text"), str):
            raise StageContractError(f"{who} no text for record {identity!r}: record['text'] must be a string")
        if answer.get("id", identity) != identity:
            raise StageContractError(f"{who} another id for record {identity!r}: a record keeps its id")
        if not isinstance(answer.get("metadata") or {}, dict):
            kind = type(answer["metadata"]).__name__
            raise StageContractError(f"{who} {kind} as metadata for record {identity!r}: record['metadata'] is a dict")


class FilterRecords(MapRecords):
    """Calls `function(record) -> bool` and keeps each record as it was, or filters it."""

    judges = True

    def process(self, batch: Batch) -> Batch:
        """The batch less the records for which the function returned False."""
        text_of(batch, self.name)
        kept: list[bool] = []
        columns = (batch.rows.column(field).to_pylist() for field in FIELDS)
        for identity, text, packed in zip(*columns, strict=True):
            answer = self.function({"id": identity, "text": text, "metadata": orjson.loads(packed) if packed else {}})
            if not isinstance(answer, (bool, np.bool_)):
                raise StageContractError(
                    f'stage "{self.name}": its function returned {type(answer).__name__} for record {identity!r}: '
                    "return True or False"
                )
            kept.append(bool(answer))
        return batch.keep(np.array(kept, np.bool_), self.name, [RETURNED_FALSE] * len(kept))


class MapBatches(Transform):
    """Calls `function(rows) -> rows` on Arrow record batches.

    The rows have the columns `__row` (the record's ordinal) and `id`, which come back untouched, `text` and `metadata`
    (the JSON text of an object, or null). A row that the function leaves out is filtered; a text that it changes is
    counted as an edit.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name = name
        self.function = _load(function, name)

    def process(self, batch: Batch) -> Batch:
        """The batch with what the function returned."""
        return settle(batch, self.answer(batch), self.name, LEFT_OUT)

    def answer(self, batch: Batch) -> pa.RecordBatch:
        """What the function returned, with columns of the right types."""
        answer = self.function(batch.rows)
        if isinstance(answer, pa.Table):
            answer = _one_batch(answer)
        if not isinstance(answer, pa.RecordBatch):
            kind = type(answer).__name__
            raise StageContractError(f'stage "{self.name}": its function returned {kind}: return a pa.RecordBatch')
        try:
            sound(answer)
        except UnsoundArrow as error:
            raise StageContractError(f'stage "{self.name}": its function returned {error}') from error
        given = [name for name in batch.rows.schema.names if name != LINEAGE]
        missing = next((name for name in given if name not in answer.schema.names), "")
        if missing:
            raise StageContractError(
                f'stage "{self.name}": its function returned rows without {missing!r}: return every column'
            )
        unknown = next((name for name in answer.schema.names if name not in (*given, LINEAGE)), "")
        if unknown:
            raise StageContractError(
                f'stage "{self.name}": its function returned the column {unknown!r}: put what is your own into '
                "'metadata', as the JSON text of an object"
            )
        return self._normal(answer)

    def _normal(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        who = f'stage "{self.name}": column'
        for column, kind in _KINDS.items():
            if column not in rows.schema.names:
                continue
            found = rows.column(column)
            if kind == pa.string() and not _holds_text(found.type):
                wanted = "JSON text or null" if column == "metadata" else "text"
                raise StageContractError(f"{who} {column!r} holds {found.type}: it must be {wanted}")
            try:
                plain = found.cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise StageContractError(f"{who} {column!r} is no {kind}: {error}") from error
            if plain.null_count and column != "metadata":
                raise StageContractError(f"{who} {column!r} is null in {plain.null_count} rows")
            rows = with_column(rows, column, plain)
        return rows


#: What the columns of an answer are cast to.
_KINDS: dict[str, Any] = {
    ROW: pa.int64(),
    PART: pa.int32(),
    "id": pa.string(),
    "text": pa.string(),
    "metadata": pa.string(),
}


def _holds_text(kind: pa.DataType) -> bool:
    """Whether a column of this type is one of strings, or of nothing but nulls."""
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(check(kind) for check in kinds)


def settle(
    batch: Batch, rows: pa.RecordBatch, stage: str, reasons: str | Mapping[int, str], *, splits: bool = False
) -> Batch:
    """The batch with `rows` in ascending order; the rows left out are filtered, changed texts counted as edits.

    `reasons` is that of all which are left out, or of each by its place in the batch. `splits`: the rows are numbered
    parts, any number of them for a row of the batch. Raises StageContractError for a row that was not given, was
    returned twice or has another id, and for metadata that are no object.
    """
    whole = not splits and all(_is_same(rows, batch.rows, name) for name in (ROW, PART))
    before, lost = batch.rows, _NOTHING
    if not whole:
        rows, places = _in_order(rows, batch, stage, splits=splits)
        before = batch.rows.take(pa.array(places, pa.int64()))
        lost = np.setdiff1d(np.arange(batch.rows.num_rows), places)
    _check_kept(rows, before, stage)
    if LINEAGE in before.schema.names and LINEAGE not in rows.schema.names:
        rows = with_column(rows, LINEAGE, before.column(LINEAGE))
    rows, edited = _note_edits(rows, before, stage)
    verdicts = batch.verdicts
    if len(lost):
        gone = batch.rows.take(pa.array(lost, pa.int64()))
        why = [reasons if isinstance(reasons, str) else reasons[place] for place in lost.tolist()]
        verdicts = join_verdicts(verdicts, verdicts_of(gone, stage, FILTERED, why))
    edits = {**batch.edits, stage: batch.edits.get(stage, 0) + edited} if edited else batch.edits
    return replace(batch, rows=rows, verdicts=verdicts, edits=edits)


def _in_order(
    rows: pa.RecordBatch, batch: Batch, stage: str, *, splits: bool
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """The rows in ascending order, and of which rows of the batch they are."""
    given = row_keys(batch.rows)
    back = keys_of(ordinals_of(rows.column(ROW)), None if splits else parts_of(rows))
    if len(back) > 1 and not splits and not (back[1:] > back[:-1]).all():
        order = np.argsort(back, kind="stable")
        rows, back = rows.take(pa.array(order, pa.int64())), back[order]
    places = np.searchsorted(given, back)
    known = places < len(given)
    known[known] = given[places[known]] == back[known]
    if not known.all():
        raise StageContractError(f'stage "{stage}" returned record {rows_of(back[~known])[0]}, which it was not given')
    if not splits and (back[1:] == back[:-1]).any():
        twice = rows_of(back[1:][back[1:] == back[:-1]])[0]
        raise StageContractError(
            f'stage "{stage}" returned record {twice} twice: a stage that makes several of one says so by splits=True'
        )
    return rows, places


def _is_same(rows: pa.RecordBatch, before: pa.RecordBatch, name: str) -> bool:
    """Whether a column is the same in both, or in neither."""
    there, here = name in rows.schema.names, name in before.schema.names
    return there == here and (not there or rows.column(name).equals(before.column(name)))


def _check_kept(rows: pa.RecordBatch, before: pa.RecordBatch, stage: str) -> None:
    """Raise StageContractError unless each row has its record's id, and metadata that are an object or none."""
    same_ids = _is_same(rows, before, "id")
    renamed = -1 if same_ids else pc.index(pc.equal(rows.column("id"), before.column("id")), False).as_py()
    if renamed >= 0:
        given, found = before.column("id")[renamed].as_py(), rows.column("id")[renamed].as_py()
        raise StageContractError(
            f'stage "{stage}" returned the id {found!r} for record {given!r}: a record keeps its id, and `__row`'
        )
    if "metadata" not in rows.schema.names or rows.column("metadata").equals(before.column("metadata")):
        return
    pairs = zip(rows.column("metadata").to_pylist(), before.column("metadata").to_pylist(), strict=True)
    for place, (new, old) in enumerate(pairs):
        if new is not None and new != old and not _is_object(new):
            raise StageContractError(
                f'stage "{stage}" returned metadata for record {before.column("id")[place].as_py()!r} that are not the '
                f"JSON text of an object: {new[:40]!r}"
            )


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _note_edits(rows: pa.RecordBatch, before: pa.RecordBatch, stage: str) -> tuple[pa.RecordBatch, int]:
    """The rows with this stage in the lineage of each record whose text it changed, and how many those are."""
    names = {*rows.schema.names} & {*before.schema.names}
    if "text" not in names or _is_same(rows, before, "text"):
        return rows, 0
    changed = np.asarray(pc.not_equal(rows.column("text"), before.column("text")).to_numpy(zero_copy_only=False))
    # Of a record that was split, its parts count as one.
    edited = len(np.unique(np.asarray(before.column(ROW))[changed]))
    if not edited:
        return rows, 0
    return with_edits(rows, changed, stage), edited


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return (
        batches[0]
        if batches
        else pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], table.schema.names)
    )


def pack_metadata(metadata: Any, before: str | None) -> str | None:
    """Metadata as JSON, numpy's numbers too, null where there is none; as it was before where nothing changed."""
    if not metadata:
        return None
    packed = orjson.dumps(metadata, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return before if packed == before else packed


def _load(function: str, stage: str) -> Callable[[Any], Any]:
    loaded = load_target(function, stage)
    if not callable(loaded):
        raise StageContractError(f'stage "{stage}": {function} is not a function')
    return loaded  # type: ignore[no-any-return]
