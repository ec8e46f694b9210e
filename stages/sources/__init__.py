"""Sources: JSON Lines, Parquet, WARC, documents and the spool."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.sources.options import ReadOptions as ReadOptions
    from headrace.stages.sources.spool import (
        CLOSED as CLOSED,
        PUSH_RECORDS_MAX as PUSH_RECORDS_MAX,
        shed_entry as shed_entry,
    )
    from headrace.stages.sources.tables import (
        find_iceberg as find_iceberg,
        folder_of_table as folder_of_table,
        library as library,
        newest_delta as newest_delta,
        open_catalog as open_catalog,
        refuse_code as refuse_code,
    )
else:
    __getattr__ = door(__name__)
