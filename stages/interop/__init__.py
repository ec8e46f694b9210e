"""Stages within other people's pipelines, and their blocks within ours: datatrove and Ray Data."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.interop.blocks import (
        datatrove_block as datatrove_block,
        to_datatrove as to_datatrove,
        to_ray as to_ray,
    )
else:
    __getattr__ = door(__name__)
