"""Running recorded pipelines without a controller: a shard made again from its source, and canaries."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.rebuild.canary import compare_versions as compare_versions
    from headrace.worker.rebuild.shard_rebuild import (
        code_of as code_of,
        order as order,
        own_key as own_key,
        rebuild as rebuild,
    )
else:
    __getattr__ = door(__name__)
