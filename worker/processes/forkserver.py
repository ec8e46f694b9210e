"""The worker's side of the forkserver: it asks for tasks, hears their process ids, and replaces one that dies."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgpack

from headrace.stages.shipping import Inherited
from headrace.worker.processes.forkserver_start import Forkserver, start_forkserver
from headrace.worker.task import Channel, ChannelClosed, write_on

logger = logging.getLogger("headrace.worker")

_PR_SET_CHILD_SUBREAPER = 36


class ForkserverClient:
    """One forkserver at a time. Called on the event loop's thread.

    `begun` is told the number of an order and the process id of its task, `failed` the number of an order that came to
    nothing, and why.
    """

    def __init__(self, begun: Callable[[int, int], None], failed: Callable[[int, str], None]) -> None:
        self._begun, self._failed = begun, failed
        self._numbers = itertools.count(1)
        self._forkserver: Forkserver | None = None
        self._asked: set[int] = set()
        self._pidfd = -1
        self._has_started = False
        #: What the last forkserver was told.
        self._told: dict[str, dict[str, Any]] = {}

    def open(self, started: Forkserver | None = None) -> None:
        """Have a forkserver, this one if it is started already, so that it is ready when the first task is wanted.

        Raises OSError where the system has no room for one.
        """
        # A task's parent ends as soon as it is forked: the task becomes the child of this process.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        forkserver = started or replace(start_forkserver(), told=self._told)
        try:
            self._pidfd = os.pidfd_open(forkserver.process.pid)
        except OSError:
            forkserver.channel.close()
            forkserver.process.send_signal(signal.SIGKILL)
            forkserver.process.wait()
            raise
        self._forkserver = forkserver
        self._told, self._has_started = forkserver.told, False
        loop = asyncio.get_running_loop()
        loop.add_reader(forkserver.channel.fileno(), self._readable, forkserver.channel)
        loop.add_reader(self._pidfd, self._ended)

    def preload(self, wanted: Sequence[Inherited]) -> None:
        """Have the forkserver load what the next tasks inherit, unless it was told so last.

        A forkserver that takes the place of a dead one is not told again: it may have died of that.
        """
        if self._forkserver is None:
            return
        try:
            self._forkserver.tell(wanted)
        except ChannelClosed:
            return  # It has died, which is seen in a moment.
        write_on(self._forkserver.channel)

    def ask(self, descriptors: Sequence[int]) -> int:
        """Ask for a task that is given these; the number of the order. Raises OSError where it cannot be asked."""
        if self._forkserver is None:
            self.open()
        assert self._forkserver is not None
        number = next(self._numbers)
        with suppress(ChannelClosed):  # It has died: `failed` is told when that is seen.
            self._forkserver.channel.send(msgpack.packb(number), descriptors)
        self._asked.add(number)
        write_on(self._forkserver.channel)
        return number

    def close(self) -> None:
        """End the forkserver. Tasks that it has started live on."""
        if self._forkserver is not None:
            self._forkserver.process.send_signal(signal.SIGKILL)
            self._bury()

    def reap_strangers(self, known: Collection[int]) -> None:
        """Let go of dead orphans that this process was made the parent of and that are none of its tasks."""
        while not self._asked:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if (
                found is None
                or found.si_pid in known
                or (self._forkserver and found.si_pid == self._forkserver.process.pid)
            ):
                return
            os.waitpid(found.si_pid, 0)

    def _readable(self, channel: Channel) -> None:
        try:
            messages = channel.receive()
        except ChannelClosed:
            asyncio.get_running_loop().remove_reader(channel.fileno())
            return
        for data in messages:
            number, pid = msgpack.unpackb(data)
            self._has_started = True
            self._asked.discard(number)
            if pid:
                self._begun(number, pid)
            else:
                self._failed(number, "the system started no process for this task: are there too many?")

    def _ended(self) -> None:
        assert self._forkserver is not None
        self._readable(self._forkserver.channel)
        code = self._bury()
        logger.warning("the forkserver ended with %d; tasks that it has started are not concerned", code)
        failed, self._asked = sorted(self._asked), set()
        if self._has_started:
            try:
                self.open()
            except OSError as error:
                logger.warning("no other forkserver before the next task is wanted: %s", error)
        for number in failed:
            self._failed(number, f"the forkserver ended with {code} before it had started this task")

    def _bury(self) -> int:
        """Wait for the forkserver's end and close what led to it; its exit code."""
        assert self._forkserver is not None
        channel = self._forkserver.channel
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        loop.remove_reader(channel.fileno())
        loop.remove_writer(channel.fileno())
        channel.close()
        code = self._forkserver.process.wait()
        self._forkserver = None
        return code
