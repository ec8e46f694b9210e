"""The cache of shards on local disk: fetching, spans, blocks, and space."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.cache.cache import HeldShard as HeldShard, ShardCache as ShardCache
    from headrace.loader.cache.cached_files import (
        CHECKSUM_KIND as CHECKSUM_KIND,
        CacheFull as CacheFull,
        SpaceWait as SpaceWait,
        file_checksum as file_checksum,
    )
    from headrace.loader.cache.fetch import LOOK_S as LOOK_S, Pool as Pool, never as never, not_wanted as not_wanted
    from headrace.loader.cache.head import parse_blocks as parse_blocks
    from headrace.loader.cache.partial_shard import PartialShard as PartialShard
    from headrace.loader.cache.rowblocks import (
        AMONG_HOSTS as AMONG_HOSTS,
        CROWDED as CROWDED,
        ON_DISK as ON_DISK,
        ROOMY as ROOMY,
        Checking as Checking,
        Coalescing as Coalescing,
        RowBlocks as RowBlocks,
        joined as joined,
    )
    from headrace.loader.cache.spans import Arriving as Arriving
else:
    __getattr__ = door(__name__)
