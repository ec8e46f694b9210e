"""The sources of ORC and of Arrow IPC, in files (Feather is one) and streams."""

from __future__ import annotations

from headrace.stages.sources.objects import ARROW, ORC, LocalFile, RemoteFile
from headrace.stages.sources.tables.columns import ColumnSource
from headrace.store.columnar import ARROW_READER, ORC_READER, ColumnarGate, ColumnarHead


class OrcSource(ColumnSource):
    """Reads ORC, by stripes."""

    FORMAT = ORC
    READER = "orc/1"
    GROUP = "stripe"
    FOOTER = "ORC footer"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        return gate.open(raw, kind=ORC_READER)


class ArrowSource(ColumnSource):
    """Reads Arrow IPC, by record batches: a file by its footer, a stream by its messages."""

    FORMAT = ARROW
    READER = "arrow/1"
    GROUP = "record batch"
    FOOTER = "Arrow IPC layout"

    def _head_of(self, gate: ColumnarGate, raw: LocalFile | RemoteFile) -> ColumnarHead:
        return gate.open(raw, kind=ARROW_READER)
