"""Stages that are a user's own functions."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.functions.functions import (
        FIELDS as FIELDS,
        pack_metadata as pack_metadata,
        settle as settle,
    )
else:
    __getattr__ = door(__name__)
