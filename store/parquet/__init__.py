"""Parquet that others wrote: decoded in a child of bounded memory."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.parquet.child import PositionedFile as PositionedFile
    from headrace.store.parquet.gate import (
        ParquetGate as ParquetGate,
        ParquetHead as ParquetHead,
        UnsoundParquet as UnsoundParquet,
        footer_of as footer_of,
        try_footer as try_footer,
    )
else:
    __getattr__ = door(__name__)
