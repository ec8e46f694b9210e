"""Prefetching: shards, batches, and rows of local files before the training loop asks for them."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.prefetch.batch_prefetcher import BatchPrefetcher as BatchPrefetcher, Job as Job
    from headrace.loader.prefetch.readahead import Readahead as Readahead
    from headrace.loader.prefetch.shard_prefetcher import ShardPrefetcher as ShardPrefetcher
else:
    __getattr__ = door(__name__)
