"""Parquet, ORC and Arrow IPC that others wrote: decoded in a child of bounded memory."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.columnar.child import PositionedFile as PositionedFile
    from headrace.store.columnar.gate import (
        ColumnarGate as ColumnarGate,
        ColumnarHead as ColumnarHead,
        UnsoundColumns as UnsoundColumns,
        footer_of as footer_of,
        open_columns as open_columns,
    )
    from headrace.store.columnar.readers import ARROW_READER as ARROW_READER, ORC_READER as ORC_READER
else:
    __getattr__ = door(__name__)
