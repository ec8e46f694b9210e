"""Parquet that others wrote: decoded in a child of bounded memory."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.store.parquet.gate import (
        Head as Head,
        ParquetGate as ParquetGate,
        UnsoundParquet as UnsoundParquet,
        footer_of as footer_of,
        try_footer as try_footer,
    )
else:
    __getattr__ = door(__name__)
