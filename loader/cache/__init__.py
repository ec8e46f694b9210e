"""The cache of shards on local disk: fetching, spans, blocks, and room."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.cache.cache import Held as Held, ShardCache as ShardCache
    from headrace.loader.cache.fetch import LOOK_S as LOOK_S, Pool as Pool, never as never, not_wanted as not_wanted
    from headrace.loader.cache.head import parse_blocks as parse_blocks
    from headrace.loader.cache.reach import (
        AMONG_HOSTS as AMONG_HOSTS,
        CROWDED as CROWDED,
        ON_DISK as ON_DISK,
        ROOMY as ROOMY,
        Reach as Reach,
        joined as joined,
    )
    from headrace.loader.cache.room import CacheFull as CacheFull, RoomWait as RoomWait
    from headrace.loader.cache.rowblocks import Checking as Checking, RowBlocks as RowBlocks
    from headrace.loader.cache.spans import Arriving as Arriving
    from headrace.loader.cache.sparse import Sparse as Sparse
else:
    __getattr__ = door(__name__)
