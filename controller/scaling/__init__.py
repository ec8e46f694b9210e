"""Scaling in a controller: readings of its runs for the model."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.scaling.scaling import Scaling as Scaling
    from headrace.controller.scaling.status_reading import reading_of as reading_of
else:
    __getattr__ = door(__name__)
