"""Models that judge texts, and the process that holds one for all tasks of a host."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.stages.quality.models.model_host import file_digest as file_digest
else:
    __getattr__ = door(__name__)
