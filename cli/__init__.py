"""The headrace command."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.cli.arguments import (
        ClusterFolder as ClusterFolder,
        ControllerAddress as ControllerAddress,
        Json as Json,
    )
    from headrace.cli.embedded import (
        AGAIN as AGAIN,
        DEATH_S as DEATH_S,
        START_S as START_S,
        Embedded as Embedded,
        begun_or_new as begun_or_new,
        seconds_since_start as seconds_since_start,
        usable_cores as usable_cores,
    )
    from headrace.cli.help import Application as Application
else:
    __getattr__ = door(__name__)
