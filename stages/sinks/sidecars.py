"""What every sink writes beside its shard: a row for each record, kept or not, and the counts of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stages.runtime import (
    DUPLICATE,
    FILTERED,
    LINEAGE,
    QUARANTINED,
    ROW,
    Batch,
    StageContractError,
    as_column,
    merge,
    ordinals_of,
    parts_of,
    reason_class,
    sampled_of,
    verdict_keys,
)
from headrace.store import Buffer, ObjectStore, find, put, put_draft
from headrace.store.files import DraftFile, open_draft
from headrace.store.ledger import Counts, StoredObject
from headrace.store.shards import (
    GRAVITY,
    PROFILE_ROLE,
    PROFILE_SUFFIX,
    SCORE_PREFIX,
    ProfileBuilder,
    content_hash,
    documents_schema,
    encode_profile,
    quarantine_prefix,
    quarantine_schema,
    samples_schema,
    table_to_parquet,
    verdicts_schema,
)


def in_order(batches: Iterable[Batch]) -> list[Batch]:
    """The batches in an order that does not depend on when they came."""
    return sorted(batches, key=lambda batch: (batch.uri, batch.fragment, batch.first))


def create_object(
    store: ObjectStore, role: str, prefix: str, suffix: str, parts: list[Buffer], *, is_common: bool = False
) -> StoredObject:
    """Write an object under the hash of its bytes; not again where it `is_common` and stands there.

    Tasks that end together would put the same one at once, and SeaweedFS has a third writer of a key wait for a second.
    What stands in a bucket is durable; of a file that another process has just made only writing it says so.
    """
    digest = content_hash(parts)
    key = f"{prefix}{digest}{suffix}"
    if not (is_common and store.is_remote and find(store, key, parts)):
        put(store, key, parts)
    return StoredObject(role, key, f"xxh3-128:{digest}", sum(memoryview(part).nbytes for part in parts))


def write_object(
    store: ObjectStore, role: str, prefix: str, suffix: str, fill: Callable[[DraftFile], None]
) -> StoredObject:
    """Write an object under the hash of its bytes, which `fill` writes one after the other."""
    with open_draft(store) as draft:
        file = DraftFile(draft)
        fill(file)
        key = f"{prefix}{file.digest}{suffix}"
        put_draft(store, key, draft)
        return StoredObject(role, key, f"xxh3-128:{file.digest}", draft.size)


def documents_table(batches: Iterable[Batch], lengths: npt.NDArray[np.int64] | None = None) -> pa.Table:
    """A row a kept record, in the order of the batches; `lengths` are the tokens of each, none where it is None."""
    held = list(batches)
    table = gather(held, schema_of_documents(held), kept_of)
    counts = np.zeros(table.num_rows, np.int64) if lengths is None else lengths
    return with_column(table, "tokens", as_column(counts))


def schema_of_documents(batches: Iterable[Batch]) -> pa.Schema:
    """The schema of the documents table of these batches, scores and all."""
    return _with_scores(documents_schema(), batches)


def with_column(table: pa.Table, name: str, column: pa.Array[Any]) -> pa.Table:
    """The table with another column in the place of this one."""
    return table.set_column(table.schema.get_field_index(name), name, column)


def write_sidecars(
    batches: Sequence[Batch], store: ObjectStore, prefix: str, documents: pa.Table, *, has_ids: bool = True
) -> tuple[StoredObject, ...]:
    """Write the table of what was kept, and those of `write_lost`."""
    table = table_to_parquet(documents, has_ids=has_ids)
    kept = create_object(store, "documents", prefix, ".documents.parquet", [table])
    return (kept, *write_lost(batches, store, prefix, has_ids=has_ids))


def write_profile(builder: ProfileBuilder, counts: Counts, store: ObjectStore, prefix: str) -> StoredObject:
    """Write how the shard's records are distributed."""
    profile = builder.finish(counts.by_fate)
    return create_object(store, PROFILE_ROLE, prefix, PROFILE_SUFFIX, [encode_profile(profile)])


def write_lost(
    batches: Sequence[Batch], store: ObjectStore, prefix: str, *, has_ids: bool = True
) -> tuple[StoredObject, ...]:
    """Write the table of what was not kept; if there are any, the raw bytes of the quarantined and a sample of what
    else was removed.
    """
    # Of small files most batches have none, and a shard has tens of thousands of batches.
    batches = [batch for batch in batches if batch.verdicts.num_rows]
    verdicts, raw = (gather(batches, verdicts_schema(), lost_of), gather(batches, quarantine_schema(), quarantined_of))
    tables = [("verdicts", prefix, ".verdicts.parquet", verdicts)]
    if raw.num_rows:
        tables.append(("quarantine", quarantine_prefix(prefix), ".parquet", raw))
    samples = merge([gather(batches, samples_schema(), sampled_of)])
    if samples.num_rows:
        tables.append(("samples", prefix, ".samples.parquet", samples))
    return tuple(
        create_object(store, role, at, suffix, [table_to_parquet(table, has_ids=has_ids)], is_common=not table.num_rows)
        for role, at, suffix, table in tables
    )


def kept_of(batch: Batch) -> dict[str, Any]:
    """The columns of the documents table but for the text."""
    rows, count = batch.rows, batch.rows.num_rows
    names = rows.schema.names
    parts = parts_of(rows)
    scores = {name: rows.column(name) for name in names if name.startswith(SCORE_PREFIX)}
    return {
        **scores,
        "id": rows.column("id"),
        "row": rows.column(ROW),
        "part": pa.nulls(count, pa.int32()) if parts is None else parts,
        "tokens": pa.nulls(count, pa.int64()),
        "lineage": rows.column(LINEAGE) if LINEAGE in names else pa.nulls(count, pa.string()),
        "metadata": rows.column("metadata") if "metadata" in names else pa.nulls(count, pa.string()),
    }


def lost_of(batch: Batch) -> dict[str, Any]:
    """The columns of the verdicts table."""
    verdicts = _sorted(batch.verdicts)
    return {**{name: verdicts.column(name) for name in verdicts.schema.names}, "duplicate_of": _names(verdicts)}


#: Arrow looks for a module of dates wherever it has to find out the type of a value.
_BETWEEN = pa.scalar("#", pa.string())


def _names(verdicts: pa.RecordBatch) -> pa.Array[Any]:
    """The records that duplicates name, as text (`headrace.store.shards.RecordName`)."""
    fragments: Any = verdicts.column("named_fragment").dictionary_encode()
    if not len(fragments.dictionary):
        return pa.nulls(verdicts.num_rows, pa.string())
    texts = pa.array([fragment.hex() for fragment in fragments.dictionary.to_pylist()], pa.string())
    rows: Any = verdicts.column("named_row").cast(pa.string())
    names: pa.Array[Any] = pc.binary_join_element_wise(texts.take(fragments.indices), rows, _BETWEEN)
    return names


def quarantined_of(batch: Batch) -> dict[str, Any]:
    """The columns of the quarantine table."""
    lost = batch.verdicts
    if lost.num_rows:
        lost = lost.filter(pc.equal(lost.column("verdict"), pa.scalar(QUARANTINED, pa.string())))
    lost = _sorted(lost)
    return {name: lost.column(name) for name in lost.schema.names}


def _sorted(verdicts: pa.RecordBatch) -> pa.RecordBatch:
    """The verdicts in the order of rows and parts."""
    if not verdicts.num_rows:
        return verdicts
    return verdicts.take(as_column(np.argsort(verdict_keys(verdicts), kind="stable")))


def gather(batches: Iterable[Batch], schema: pa.Schema, columns_of: Any) -> pa.Table:
    """The rows that `columns_of` finds in each batch, with the fragment that they are of."""
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        columns = columns_of(batch)
        count = len(columns["id"])
        if not count:
            continue
        columns["source"] = pa.repeat(pa.scalar(batch.uri, pa.string()), count)
        columns["fragment"] = pa.repeat(pa.scalar(batch.fragment.hex(), pa.string()), count)
        found = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
        parts.append(pa.RecordBatch.from_arrays(found, schema=schema))
    return pa.Table.from_batches(parts, schema=schema)


def in_one_piece(table: pa.Table) -> pa.Table:
    """The table with each column in one piece. The pieces of one are gone before the next is joined."""
    for name in table.schema.names:
        column: Any = table.column(name).combine_chunks()
        table = with_column(table, name, column)
    return table


def _with_scores(schema: pa.Schema, batches: Iterable[Batch]) -> pa.Schema:
    """The schema with the columns in which stages wrote scores, by name; a record that has none is null there."""
    scores: dict[str, pa.DataType] = {}
    for batch in batches:
        for field in batch.rows.schema if batch.rows.num_rows else ():
            if not field.name.startswith(SCORE_PREFIX):
                continue
            if not _is_score(field.type) or scores.setdefault(field.name, field.type) != field.type:
                raise StageContractError(
                    f"column {field.name!r} is {field.type} in some rows: a score is a number, a boolean or a string, "
                    "and of one type in all records"
                )
    for name, kind in sorted(scores.items()):
        schema = schema.append(pa.field(name, kind))
    return schema


def _is_score(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or kind in (pa.bool_(), pa.string())


def count_fates(batches: Sequence[Batch], *, tokens: int, sequences: int, padding: int) -> Counts:
    """What became of the records of these batches. A record that was split is kept where one of its parts is."""
    verdicts: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {FILTERED: Counter(), QUARANTINED: Counter(), DUPLICATE: Counter()}
    edited: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    kept = 0
    for batch in batches:
        edited.update(batch.edits)
        counters.update(batch.counters)
        rows = ordinals_of(batch.rows.column(ROW))
        kept += len(rows) if parts_of(batch.rows) is None else len(np.unique(rows))
        for stage, verdict, reason in fates_of_lost(batch):
            verdicts[verdict] += 1
            reasons[verdict][f"{stage}/{reason_class(reason)}"] += 1
    return Counts(
        kept=kept,
        filtered=verdicts[FILTERED],
        duplicate=verdicts[DUPLICATE],
        quarantined=verdicts[QUARANTINED],
        filtered_by=dict(sorted(reasons[FILTERED].items())),
        quarantined_by=dict(sorted(reasons[QUARANTINED].items())),
        edited=dict(sorted(edited.items())),
        tokens=tokens,
        sequences=sequences,
        padding=padding,
        counters=dict(sorted(counters.items())),
    )


def fates_of_lost(batch: Batch) -> list[tuple[str, str, str | None]]:
    """Stage, verdict and reason of each record that was not kept."""
    return list(fates_by_record(batch).values())


def fates_by_record(batch: Batch) -> dict[int, tuple[str, str, str | None]]:
    """As `fates_of_lost`, by ordinal.

    Of the parts of a record that was lost whole the gravest verdict speaks for it, of two alike that of the first.
    """
    lost = batch.verdicts
    if not lost.num_rows:
        return {}
    columns: list[list[Any]] = [lost.column(name).to_pylist() for name in ("stage", "verdict", "reason")]
    fates = list(zip(*columns, strict=True))
    rows = ordinals_of(lost.column("row")).tolist()
    if lost.column("part").null_count == lost.num_rows:
        return dict(zip(rows, fates, strict=True))
    keys = verdict_keys(lost).tolist()
    kept = set(ordinals_of(batch.rows.column(ROW)).tolist())
    first: dict[int, int] = {}
    for place in sorted(range(len(fates)), key=lambda place: (GRAVITY.index(fates[place][1]), keys[place])):
        if rows[place] not in kept:
            first.setdefault(rows[place], place)
    return {row: fates[place] for row, place in first.items()}
