"""Writing a few changes into the log of a dataset at rest: for commands that are no run, such as a collection.

The rules are those of `core/leadership.py`, which decides here as it does for a run; this drives it from a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.controller.core.log import LOST, OVER, Leadership, LeaderState
from headrace.controller.core.messages import (
    Command,
    EntryFailed,
    LogEvent,
    LogUnreadable,
    ReadLog,
    SnapshotWritten,
    TimePassed,
    TruncateLog,
    WriteEntry,
    WriteSnapshot,
)
from headrace.controller.logs import Logs, identity
from headrace.daemon import OneThread
from headrace.store import DatasetBusy, StoreError, StoreRefused, StoreUnavailable
from headrace.store.ledger import Change, EntryError, LedgerState

#: Seconds in which a command leads the log, or gives up: silence of an unknown leader, and a slow store.
LEAD_S_MAX = 30.0
#: Seconds in which an entry is written, or the command gives up.
WRITE_S_MAX = 60.0
#: Seconds of them in which a store that is full or silent may recover: somebody waits, and can look to it.
STALLED_S_MAX = 5.0
#: Seconds between two looks at what leadership wants.
_LOOK_S = 0.02

T = TypeVar("T")


class OfflineWriter:
    """The log of a dataset while this process leads it."""

    def __init__(self, dataset: str) -> None:
        self._logs = Logs()
        self._leadership = Leadership(dataset, identity(), LedgerState())
        self._dataset = dataset

    @property
    def ledger(self) -> LedgerState:
        """The fold up to the last durable entry."""
        return self._leadership.ledger

    async def commit(self, *changes: Change) -> None:
        """Write the changes as one entry, durable when this returns. Raises DatasetBusy, StoreUnavailable."""
        self._leadership.submit(*changes)
        await self._until(lambda: self._leadership.quiet, WRITE_S_MAX, "an entry was not written")

    async def beside(self, work: Callable[[], T]) -> T:
        """Do work in a thread, and go on leading meanwhile."""
        thread = OneThread("work")
        try:
            done = thread.submit(work, told=lambda: None)
            await self._until(done.done, None, "")
            return done.result()
        finally:
            thread.close(wait=False)

    async def lead(self) -> None:
        """Become the leader of the log. Raises DatasetBusy, StoreUnavailable."""
        await self._do(self._leadership.open())
        leads = lambda: self._leadership.state is LeaderState.LEADING  # noqa: E731
        await self._until(leads, LEAD_S_MAX, "it cannot be led")

    async def resign(self) -> None:
        """Hand the log over; what was submitted is durable."""
        self._leadership.resign()
        over = lambda: self._leadership.state in OVER  # noqa: E731
        try:
            await self._until(over, WRITE_S_MAX, "a resignation was not written", resigns=True)
        finally:
            self._logs.close()

    async def _until(
        self, done: Callable[[], bool], limit_s: float | None, what: str, *, resigns: bool = False
    ) -> None:
        """Let time pass until something is done, or the log is lost, which is as good to one that resigns."""
        began = time.monotonic()
        while True:
            now = time.monotonic()
            wake = self._leadership.wake_at()
            if wake is not None and now >= wake:
                await self._do(self._leadership.handle(TimePassed(), now))
            await self._do(self._leadership.flush(now))
            self._leadership.committed()
            # First: of a log that was lost nothing is on its way, as of one that has taken everything.
            if self._leadership.state in LOST and not resigns:
                broken = self._leadership.state is LeaderState.BROKEN
                raise (StoreRefused if broken else DatasetBusy)(self._leadership.why_not_leading())
            if done():
                return
            stalled_s, trouble = self._leadership.trouble(now)
            if limit_s is not None and self._leadership.stalled and stalled_s >= STALLED_S_MAX:
                raise StoreUnavailable(f"{self._dataset}: {what} in {STALLED_S_MAX:.0f} s: {trouble}; try again")
            if limit_s is not None and now >= began + limit_s:
                if self._leadership.state is LeaderState.WATCHING:
                    raise DatasetBusy(f"{self._leadership.why_not_leading()}: stop it, then try again")
                raise StoreUnavailable(f"{self._dataset}: {what} in {limit_s:.0f} s: {trouble}; try again")
            await asyncio.sleep(_LOOK_S)

    async def _do(self, commands: list[Command]) -> None:
        pending = list(commands)
        while pending:
            event = await self._execute(pending.pop(0))
            if event is not None:
                pending += self._leadership.handle(event, time.monotonic())

    async def _execute(self, command: Command) -> LogEvent | None:
        match command:
            case ReadLog():
                try:
                    return await self._logs.read(command)
                except StoreError as error:
                    return LogUnreadable(command.log, str(error))
            case WriteEntry():
                try:
                    return await self._logs.write(command)
                except (EntryError, StoreRefused) as error:
                    return EntryFailed(command.log, command.number, str(error))
            case WriteSnapshot():
                try:
                    return await self._logs.snapshot(command)
                except StoreError as error:
                    # The log is whole without it; the next leader writes one.
                    return SnapshotWritten(command.log, command.number, str(error))
            case TruncateLog():
                with contextlib.suppress(StoreError):  # what stands on is deleted after the next snapshot
                    await self._logs.truncate(command)
                return None
            case _:
                raise TypeError(f"a writer does no {type(command).__name__}")


def with_offline_writer(dataset: str, work: Callable[[OfflineWriter], Awaitable[T]]) -> T:
    """Lead the dataset's log, do the work, and resign. Raises DatasetBusy where a run writes it, StoreError."""

    async def led() -> T:
        writer = OfflineWriter(dataset)
        try:
            await writer.lead()
            done = await work(writer)
        except BaseException:
            with contextlib.suppress(StoreError):  # what failed first is what is told
                await writer.resign()
            raise
        await writer.resign()
        return done

    return asyncio.run(led())
