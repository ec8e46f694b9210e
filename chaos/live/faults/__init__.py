"""Faults that are done to real processes, disks and hosts."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.chaos.live.faults.processes import (
        Handle as Handle,
        Marked as Marked,
        Process as Process,
        ProcessRole as ProcessRole,
        every_process as every_process,
        hold as hold,
        matching as matching,
        parent_of as parent_of,
    )
    from headrace.chaos.live.faults.remote import HostReach as HostReach
    from headrace.chaos.live.faults.tools import (
        TOOLED as TOOLED,
        Begun as Begun,
        Disk as Disk,
        Tools as Tools,
        enter_namespace as enter_namespace,
    )
else:
    __getattr__ = door(__name__)
