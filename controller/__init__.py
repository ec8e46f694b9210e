"""The controller: a pure core and its shell."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.convert import task_event as task_event
    from headrace.controller.logs import Logs as Logs, identity as identity, is_alive as is_alive
    from headrace.controller.offline_writer import (
        OfflineWriter as OfflineWriter,
        with_offline_writer as with_offline_writer,
    )
    from headrace.controller.scaling import reading_of as reading_of
    from headrace.controller.server import look_for_cycles_seldom as look_for_cycles_seldom, main as main
else:
    __getattr__ = door(__name__)
