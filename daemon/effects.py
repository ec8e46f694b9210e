"""Work beside an event loop, whose end somebody learns of, whatever it raised.

A task of asyncio whose error nobody asks for is forgotten with it, and a callback that raises leaves a line in a log:
what waited for them waits for ever. So a shell starts its tasks by `Effects`, and what they or callbacks raise that
nobody has thought of ends the process (`end_on_surprise`): that is an event for all who deal with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from headrace.daemon.threads import start

T = TypeVar("T")
logger = logging.getLogger("headrace")

#: Threads of one name that may be held up at once.
APART_MAX = 16
#: What begins the name of a module of ours in a traceback.
_OURS = "headrace"


async def apart(name: str, work: Callable[[], T]) -> T:
    """What `work` returns or raises, of a thread that nobody waits for, whoever stops to wait for this.

    The threads of `asyncio.to_thread` are few and shared, and a loop ends behind the last of them: what others may hold
    up for long is not for them. Raises TimeoutError where APART_MAX threads of that name have not ended.
    """
    if sum(thread.name == name for thread in threading.enumerate()) >= APART_MAX:
        raise TimeoutError(f"{name}: {APART_MAX} threads wait for it already")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    bears = contextvars.copy_context()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("T", result))

    def do() -> None:
        result, raised = None, None
        try:
            result = bears.run(work)
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, raised)

    start(name, do)
    return await answer


class Effects:
    """The tasks that one shell has started. Called on the event loop's thread."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, what: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin `work`, of which people are told as `what`. Where it raises, the loop is told as of a callback."""
        task = asyncio.create_task(work, name=what)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def cancel(self) -> None:
        """Have all of them end."""
        for task in self._tasks:
            task.cancel()

    async def settle(self, within_s: float) -> None:
        """Wait until all have ended, or for so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


def end_on_surprise(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Have `end` called when code of ours raises in a callback or a task that nobody waits for; it is logged first.

    What libraries raise in callbacks of their own is logged and no more.
    """

    def surprised(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, Exception) and _is_ours(error):
            logger.error("%s: %s: this process ends, see above", type(error).__name__, error)
            end()

    loop.set_exception_handler(surprised)


def _is_ours(error: BaseException) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS for frame in frames)
