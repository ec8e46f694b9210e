"""The ends of a task's links: inbox, outbox, and how each is opened."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.worker.links.ends import (
        DESCRIPTORS as DESCRIPTORS,
        Attached as Attached,
        Inbox as Inbox,
        Outbox as Outbox,
        attach as attach,
    )
    from headrace.worker.links.gate import (
        ASK_BYTES_MAX as ASK_BYTES_MAX,
        HOST as HOST,
        VARIABLE as VARIABLE,
        gate_port as gate_port,
    )
    from headrace.worker.links.host import HostLinks as HostLinks, Lost as Lost
    from headrace.worker.links.quic import Remote as Remote
    from headrace.worker.links.relay import Relaying as Relaying
else:
    __getattr__ = door(__name__)
