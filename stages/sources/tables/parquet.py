"""The source of Parquet files."""

from __future__ import annotations

from headrace.stages.sources.objects import PARQUET, LocalFile, RemoteFile
from headrace.stages.sources.tables.columns import ColumnSource
from headrace.store.columnar import ColumnarGate, ColumnarHead, UnsoundColumns, footer_of


class ParquetSource(ColumnSource):
    """Reads Parquet, by row groups."""

    FORMAT = PARQUET
    READER = "parquet/1"
    GROUP = "row group"
    FOOTER = "Parquet footer"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        footer = footer_of(raw)
        if not footer:
            raise UnsoundColumns("no Parquet has its last bytes")
        return gate.open(raw, footer)
