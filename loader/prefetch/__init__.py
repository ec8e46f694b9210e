"""Reading ahead of the training loop."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.loader.prefetch.ahead import Ahead as Ahead
    from headrace.loader.prefetch.prefetch import Job as Job, Prefetcher as Prefetcher
    from headrace.loader.prefetch.readahead import Readahead as Readahead
else:
    __getattr__ = door(__name__)
