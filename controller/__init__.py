"""The controller: a pure core and its shell."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.controller.commits import CommitTimes as CommitTimes
    from headrace.controller.convert import task_event as task_event
    from headrace.controller.offline_writer import Pen as Pen, with_pen as with_pen
    from headrace.controller.process import (
        identity as identity,
        is_alive as is_alive,
        look_for_cycles_seldom as look_for_cycles_seldom,
    )
    from headrace.controller.server import main as main
    from headrace.controller.shell import Shell as Shell
else:
    __getattr__ = door(__name__)
