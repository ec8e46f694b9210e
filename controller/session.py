"""One worker's session, and what waits until its stream takes it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from headrace.protos import control_pb2 as pb

logger = logging.getLogger("headrace.controller")

#: Bytes that wait for one worker.
OUTBOX_BYTES_MAX = 256 << 20


class Session:
    """One worker's stream: messages wait here until the stream takes them."""

    def __init__(self, worker: str, end: Callable[[], object], *, allows_chaos: bool = False) -> None:
        self.worker, self.allows_chaos, self.leaves = worker, allows_chaos, False
        self.outbox: asyncio.Queue[pb.ToWorker | None] = SessionOutbox(worker, end)


class SessionOutbox(asyncio.Queue[pb.ToWorker | None]):
    """What waits for one worker, up to OUTBOX_BYTES_MAX; beyond it `end` ends the session.

    Its next registration makes good what the worker has not heard.
    """

    def __init__(self, worker: str, end: Callable[[], object]) -> None:
        super().__init__()
        self._queue = deque[pb.ToWorker | None]()
        self._worker, self._end, self._bytes, self._ended = worker, end, 0, False

    def _put(self, item: pb.ToWorker | None) -> None:
        if self._ended:
            return
        size = item.ByteSize() if item is not None else 0
        if self._bytes + size > OUTBOX_BYTES_MAX:
            logger.warning(
                "worker %s takes nothing: more than %d bytes wait for it, so its session ends",
                self._worker,
                OUTBOX_BYTES_MAX,
            )
            self._queue.clear()
            item, self._bytes, self._ended = None, 0, True
            self._end()
        else:
            self._bytes += size
        super()._put(item)

    def _get(self) -> pb.ToWorker | None:
        item = super()._get()
        self._bytes -= item.ByteSize() if item is not None else 0
        return item
