"""The worker's side of the nursery: asks for tasks, hears their process ids, and has another nursery when one dies."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgpack

from headrace.stages.inherited import Inherited
from headrace.worker.channel import Channel, ChannelClosed
from headrace.worker.cradle import Nursery, start_nursery
from headrace.worker.writing import write_on

logger = logging.getLogger("headrace.worker")

_PR_SET_CHILD_SUBREAPER = 36


class Births:
    """One nursery at a time. Called on the event loop's thread.

    `born` is told the number of an order and the process id of its task, `failed` the number of an order that came to
    nothing, and why.
    """

    def __init__(self, born: Callable[[int, int], None], failed: Callable[[int, str], None]) -> None:
        self._born, self._failed = born, failed
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._asked: set[int] = set()
        self._pidfd = -1
        self._bore = False
        #: What the nursery was told last, by module: of each it keeps one.
        self._preloaded: dict[str, dict[str, Any]] = {}

    def open(self, started: Nursery | None = None) -> None:
        """Have a nursery, this one if it is started already, so that it is ready when the first task is wanted."""
        # A task's parent ends as soon as it is forked: the task becomes the child of this process.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._process, ours = started or start_nursery()
        self._channel, self._bore = Channel(ours), False
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._readable, self._channel)
        self._pidfd = os.pidfd_open(self._process.pid)
        loop.add_reader(self._pidfd, self._ended)

    def preload(self, wanted: Sequence[Inherited]) -> None:
        """Have the nursery load what the next tasks inherit, unless it was told so last.

        A nursery that takes the place of a dead one is not told again: it may have died of that.
        """
        for module, parameters in wanted:
            if self._channel is not None and self._preloaded.get(module) != parameters:
                self._send(msgpack.packb((module, parameters)))
                self._preloaded[module] = parameters

    def ask(self, descriptors: Sequence[int]) -> int:
        """Ask for a task that is given these; the number of the order."""
        if self._channel is None:
            self.open()
        assert self._channel is not None
        number = next(self._numbers)
        self._asked.add(number)
        self._send(msgpack.packb(number), descriptors)
        return number

    def _send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        assert self._channel is not None
        try:
            self._channel.send(data, descriptors)
        except ChannelClosed:
            return  # It has died: `failed` is told when that is seen.
        write_on(self._channel)

    def close(self) -> None:
        """End the nursery. Tasks that it has borne live on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._bury()

    def reap_strangers(self, known: Collection[int]) -> None:
        """Let go of dead orphans that this process was made the parent of and that are none of its tasks."""
        while not self._asked:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in known or (self._process and found.si_pid == self._process.pid):
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
            self._bore = True
            self._asked.discard(number)
            if pid:
                self._born(number, pid)
            else:
                self._failed(number, "the system started no process for this task: are there too many?")

    def _ended(self) -> None:
        assert self._channel is not None
        self._readable(self._channel)
        code = self._bury()
        logger.warning("the nursery ended with %d; tasks that it has started are not concerned", code)
        failed, self._asked = sorted(self._asked), set()
        if self._bore:
            self.open()
        for number in failed:
            self._failed(number, f"the nursery ended with {code} before it had started this task")

    def _bury(self) -> int:
        """Wait for the nursery's end and close what led to it; its exit code."""
        assert self._process is not None
        assert self._channel is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        loop.remove_reader(self._channel.fileno())
        loop.remove_writer(self._channel.fileno())
        self._channel.close()
        code = self._process.wait()
        self._process = self._channel = None
        return code
