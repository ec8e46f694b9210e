"""The commands of an operator: daemons, pipelines, queues, and what they say of themselves."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.commands.cluster import daemons as daemons, launch as launch, operate as operate, queue as queue
else:
    __getattr__ = door(__name__)
