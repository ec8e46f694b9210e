"""Links through shared memory."""

from typing import TYPE_CHECKING

from headrace.pipeline.door import door

if TYPE_CHECKING:
    from headrace.transport.ring.memory import (
        DEFAULT_SOFT_BYTES as DEFAULT_SOFT_BYTES,
        Party as Party,
        RingHandles as RingHandles,
        RingOwner as RingOwner,
        create_ring as create_ring,
    )
    from headrace.transport.ring.ring import (
        RingReceiver as RingReceiver,
        RingSender as RingSender,
        memory_labels as memory_labels,
    )
else:
    __getattr__ = door(__name__)
