"""The log of a controller's events, its causes, and the search in logs of a cluster."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.logging.event_log import (
        Causes as Causes,
        LogSearches as LogSearches,
        tell_command as tell_command,
        tell_entry as tell_entry,
        tell_event as tell_event,
    )
    from headrace.controller.logging.logs import Logs as Logs, identity as identity, is_alive as is_alive
else:
    __getattr__ = door(__name__)
