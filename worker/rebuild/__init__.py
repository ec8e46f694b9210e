"""Making a shard again from its source."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.rebuild.shard_rebuild import order as order, own_key as own_key, rebuild as rebuild
else:
    __getattr__ = door(__name__)
