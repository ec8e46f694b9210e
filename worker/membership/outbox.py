"""What waits to be said to a controller, which may be away for hours while tasks go on talking."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Hashable

from headrace.protos import control_pb2 as pb

#: Bytes that wait while no controller listens.
WAITING_BYTES_MAX = 64 << 20

#: Of these a task says the newest again and again: by the field that tells one from another, where there are several.
_REPEATED = {"progress": "", "proposed": "proposal", "needs": "proposal"}


class ControllerOutbox(asyncio.Queue[pb.FromWorker]):
    """A queue in which what a task says again takes the place of what it said before: one copy waits, the newest."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: OrderedDict[Hashable, pb.FromWorker] = OrderedDict()
        self._numbers = itertools.count()
        #: Bytes of what waits.
        self.bytes = 0

    def _put(self, item: pb.FromWorker) -> None:
        key = self._key(item)
        if (before := self._queue.get(key)) is not None:
            self.bytes -= before.ByteSize()
        self._queue[key] = item
        self.bytes += item.ByteSize()

    def _get(self) -> pb.FromWorker:
        _, item = self._queue.popitem(last=False)
        self.bytes -= item.ByteSize()
        return item

    def trim(self) -> None:
        """Nobody listens: let go of the oldest, which the next registration makes good, where too much waits.

        The ends of tasks stay. No other word tells what they had in hand, and while nobody listens no task is started.
        """
        while self.bytes > WAITING_BYTES_MAX:
            others = (key for key, item in self._queue.items() if item.task.WhichOneof("event") != "exited")
            if (oldest := next(others, None)) is None:
                return
            self.bytes -= self._queue.pop(oldest).ByteSize()

    def _key(self, item: pb.FromWorker) -> Hashable:
        kind = item.task.WhichOneof("event")
        field = _REPEATED.get(kind or "")
        if kind is None or field is None:
            return next(self._numbers)
        return kind, item.task.task, item.task.attempt, getattr(getattr(item.task, kind), field) if field else 0
