"""Threads whose end somebody learns of, whatever they raised.

A thread that dies of an error leaves a line on standard error, and those who wait for what it does wait for ever. So
what runs on a thread of its own either ends as an answer that is asked for (`OneThread`, `effects.apart`), or takes its
process with it (`start`): the end of a process is an event for all who deal with it.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
#: Exit code of a process whose thread died of an error.
THREAD_DIED = 70


def start(name: str, work: Callable[[], None], died: Callable[[], None] | None = None) -> threading.Thread:
    """Begin `work` on a thread that does not keep its process alive.

    Where it raises, the error is written to standard error, and `died` is called; without `died` the process ends.
    """
    thread = threading.Thread(target=_live, args=(name, work, died or _end), name=name, daemon=True)
    thread.start()
    return thread


class OneThread:
    """A thread that does one piece of work after the other. It begins with the first."""

    def __init__(self, name: str) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def submit(self, work: Callable[[], T], told: Callable[[], None]) -> Future[T]:
        """Have work done; `told` is called on that thread behind its result or error, which the caller asks for."""
        future = self.pool.submit(work)
        # Behind the result and not at the end of the work: who is woken finds it done.
        future.add_done_callback(lambda _: told())
        return future

    def close(self, *, wait: bool) -> None:
        """Begin no more work, and end behind what is being done; with `wait` not before that."""
        self.pool.shutdown(wait=wait, cancel_futures=True)


def _live(name: str, work: Callable[[], None], died: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:  # noqa: BLE001 - a thread that dies silently is what this is about
        print(f"headrace: thread {name} died:", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
        died()


def _end() -> None:
    os._exit(THREAD_DIED)
