"""How a worker ends: it hands on its tasks first, so that nothing waits for what it held.

It does so at a signal, at a notice of whoever lends the host (a file that comes to be, or what the metadata service of
a cloud answers), and, if that is wanted, once it has had no task for a while. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from headrace.daemon import Effects, apart
from headrace.protos import control_pb2 as pb
from headrace.worker.core import LiveTasks

logger = logging.getLogger("headrace.worker")

#: Seconds between two looks for a notice or for idleness, and between two at whether the tasks are gone.
LOOK_S, GONE_S = 2.0, 0.1
#: Seconds in which another controller takes over from one that is gone: it is told too that this worker leaves.
TAKEOVER_S = 15.0
#: Seconds that a metadata service has for a whole answer, and bytes of it that are read.
ANSWER_S, ANSWER_BYTES_MAX = 2.0, 4096
#: Seconds after which something that was cancelled and goes on is cancelled again.
CANCEL_AGAIN_S = 0.5
#: Answers of a metadata service that are none.
_NO = ("", "false", "none")


class Departure:
    """Of a worker with `live` tasks; `connected` says whether a controller listens, `say` tells it something."""

    def __init__(
        self,
        live: LiveTasks,
        connected: Callable[[], bool],
        say: Callable[[pb.FromWorker], None],
        within_s: float,
        notice: str,
        idle_s: float,
    ) -> None:
        self._live, self._connected, self._say = live, connected, say
        self._within_s, self._notice, self._idle_s = within_s, notice, idle_s
        self._told, self._at_once = asyncio.Event(), asyncio.Event()
        #: Whether controllers are to hear, each as it is registered with, that this worker is about to end.
        self.leaves = False

    def ask(self) -> None:
        """This worker is to end."""
        self._told.set()

    def end(self) -> None:
        """It is to end at once."""
        self._at_once.set()
        self._told.set()

    def cannot(self, reason: str) -> None:
        """No other worker can have its tasks."""
        logger.warning("its tasks stay until it ends: %s", reason)
        self._at_once.set()

    async def wait(self) -> None:
        """Return when this worker may end."""
        if self._notice or self._idle_s:
            await self._look_out()
        await self._told.wait()
        loop = asyncio.get_running_loop()
        until, count = loop.time() + self._within_s, len(self._live.tasks)
        if self._at_once.is_set() or not count or not self._connected() or not self._within_s:
            return
        logger.info("hands on its tasks (%d) within %.0f s; a second signal ends it at once", count, self._within_s)
        self.leaves = True
        self._say(pb.FromWorker(leaving=pb.Leaving()))
        heard_at = loop.time()
        while self._live.tasks and not self._at_once.is_set() and loop.time() < min(until, heard_at + TAKEOVER_S):
            await _within(self._at_once, GONE_S)
            heard_at = loop.time() if self._connected() else heard_at
        if left := len(self._live.tasks):
            logger.warning(
                "ends with %d of its %d tasks: they start elsewhere, and read again what they held", left, count
            )

    async def _look_out(self) -> None:
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        while not self._told.is_set():
            await _within(self._told, LOOK_S)
            idle_since = loop.time() if self._live.tasks else idle_since
            if self._idle_s and loop.time() - idle_since >= self._idle_s:
                logger.info("has had no task for %.0f s, and is given back", self._idle_s)
                self.ask()
            elif self._notice != "" and await self._noticed():
                logger.warning("there is a notice at %s: this host will be taken away", self._notice)
                self.ask()

    async def _noticed(self) -> bool:
        """Whether there is a notice. A file system or a service that does not answer holds up no end."""
        effects = Effects()
        asking = effects.start("a look for a notice", apart("a notice", lambda: noticed(self._notice)))
        told = effects.start("the wait to be told", self._told.wait())
        try:
            await asyncio.wait({asking, told}, return_when=asyncio.FIRST_COMPLETED)
            return asking.done() and asking.result()
        finally:
            effects.cancel()


async def _within(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def end_task(task: asyncio.Task[object]) -> None:
    """Cancel a task until it has ended: a cancellation is lost that comes just when what the task awaits is there."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_S)


def noticed(where: str) -> bool:
    """Whether there is a notice: the file is there, or the URL answers with something but false and none."""
    if "://" not in where:
        return os.path.exists(where)  # False, too, where it cannot be told
    from http import HTTPStatus
    from http.client import HTTPException

    place = urlsplit(where)
    asked = place._replace(scheme="", netloc="", fragment="").geturl()
    try:
        status, answer = _ask(place.netloc, "GET", asked, {"Metadata-Flavor": "Google"})
        if status == HTTPStatus.UNAUTHORIZED:
            # Amazon's service wants a token that it gives to who can put.
            wants = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            _, token = _ask(place.netloc, "PUT", "/latest/api/token", wants)
            status, answer = _ask(place.netloc, "GET", asked, {"X-aws-ec2-metadata-token": token})
    except (OSError, ValueError, HTTPException):
        return False
    return status == HTTPStatus.OK and answer.lower() not in _NO


def _ask(place: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """The status and the text of an answer; no proxy is asked. Raises OSError, ValueError and HTTPException."""
    from http.client import HTTPConnection

    from headrace.store.s3.connection import TimedSocket

    connection, until = HTTPConnection(place, timeout=ANSWER_S), time.monotonic() + ANSWER_S
    try:
        connection.connect()
        connection.sock = TimedSocket.of(connection.sock, until)
        connection.request(method, path or "/", headers=headers)
        response = connection.getresponse()
        return response.status, response.read(ANSWER_BYTES_MAX).decode("latin-1").strip()
    finally:
        connection.close()
