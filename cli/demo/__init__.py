"""The quickstart: its pipeline, and the loop that learns from the shards."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.demo.steps import quickstart as quickstart
else:
    __getattr__ = door(__name__)
