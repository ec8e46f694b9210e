"""The tables of a dataset as streams of Arrow: kept documents, verdicts on what was not kept, quarantined records.

What is given is a `pyarrow.RecordBatchReader`, which pandas (`read_pandas()`), polars (`pl.DataFrame(reader)`), DuckDB
(`FROM reader`) and pyarrow (`read_all()`) take. It is read once, a shard at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from headrace.store.datasets.dataset import DOCUMENTS, VERDICTS, Dataset
from headrace.store.ledger import ClosedShard, StoredObject, main_sink
from headrace.store.shards import documents_schema, quarantine_schema, read_table, sidecar_schema, verdicts_schema

QUARANTINE = "quarantine"
#: The columns that each table has in any dataset; documents have the scores and texts of their shards behind them.
SCHEMAS: Mapping[str, Callable[[], pa.Schema]] = {
    DOCUMENTS: documents_schema,
    VERDICTS: verdicts_schema,
    QUARANTINE: quarantine_schema,
}


def read_rows(dataset: Dataset, role: str, sink: str = "") -> pa.RecordBatchReader:
    """The rows of one table of the version that is read, by the word of `sink`; without one, of the main sink.

    A column that a shard has not is null in its rows. What was retracted is left out. Reading raises StoreError and
    FormatError.
    """
    sink = sink or main_sink(dataset.state.counts)
    found = [(shard, item) for shard in dataset.shards if shard.closed.sink == sink and (item := shard.object(role))]
    schema = SCHEMAS[role]()
    if role == DOCUMENTS:
        for _, item in found:
            known = set(schema.names)
            for field in sidecar_schema(dataset.store, item.key):
                schema = schema if field.name in known else schema.append(field)
    return pa.RecordBatchReader.from_batches(schema, _batches(dataset, role, found, schema))


def _batches(
    dataset: Dataset, role: str, found: list[tuple[ClosedShard, StoredObject]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for shard, item in found:
        table = read_table(dataset.store, item.key)
        hidden = dataset.hidden_rows(shard) if role == DOCUMENTS else frozenset[int]()
        if hidden:
            shown = np.ones(table.num_rows, np.bool_)
            shown[sorted(hidden)] = False
            table = table.filter(pa.array(shown))
        yield from with_schema(table, schema).to_batches()


def with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema as a table has them; null where it has none."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
