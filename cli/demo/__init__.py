"""The loop of the quickstart that learns from the shards."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.demo.demo import TrainingResult as TrainingResult, train as train
else:
    __getattr__ = door(__name__)
