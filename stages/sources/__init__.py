"""Sources: JSON Lines, Parquet, WARC, documents and the spool."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.sources.base import FileSource as FileSource, prefix_of as prefix_of
    from headrace.stages.sources.options import ReadOptions as ReadOptions
    from headrace.stages.sources.spool import (
        CLOSED as CLOSED,
        PUSH_RECORDS_MAX as PUSH_RECORDS_MAX,
        shed_entry as shed_entry,
    )
else:
    __getattr__ = door(__name__)
