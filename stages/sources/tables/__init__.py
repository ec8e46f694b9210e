"""Sources of columns: Parquet, Arrow, ORC, and the tables of Delta and Iceberg."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.sources.tables.lakehouse import (
        find_iceberg as find_iceberg,
        folder_of_table as folder_of_table,
        library as library,
        newest_delta as newest_delta,
        open_catalog as open_catalog,
        refuse_code as refuse_code,
    )
else:
    __getattr__ = door(__name__)
