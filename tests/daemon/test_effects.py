"""Tasks, callbacks and threads: whatever they raise, somebody learns of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from headrace.daemon import threads
from headrace.daemon.effects import Effects, end_on_surprise
from headrace.store.ledger.core.entries import decode_entry

DEADLINE_S = 300.0


async def fails() -> None:
    decode_entry(b"")


def ended_by(begin: Callable[[asyncio.AbstractEventLoop], object]) -> bool:
    """Whether the process would have been ended."""

    async def live() -> bool:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        end_on_surprise(loop, told.set)
        held = begin(loop)
        loop.call_later(0.1, done.set_result, None) if (done := loop.create_future()) else None
        waiting = asyncio.ensure_future(told.wait())
        await asyncio.wait({waiting, done}, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        del held
        return told.is_set()

    return asyncio.run(live())


def test_a_task_that_raises_ends_the_process() -> None:
    assert ended_by(lambda _: Effects().start("what is to be done", fails()))


def test_a_callback_that_raises_in_code_of_ours_ends_the_process() -> None:
    assert ended_by(lambda loop: loop.call_soon(decode_entry, b""))


def test_what_a_library_raises_in_a_callback_of_its_own_does_not() -> None:
    assert not ended_by(lambda loop: loop.call_soon(int, "no number"))


def test_a_task_that_is_cancelled_does_not() -> None:
    assert not ended_by(lambda _: Effects().start("a wait", asyncio.Event().wait()).cancel())


def test_a_thread_that_raises_takes_its_process_with_it() -> None:
    program = (
        "import threading; from headrace.daemon import threads\n"
        "threads.start('writer', lambda: 1 / 0); threading.Event().wait()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == threads.THREAD_DIED
    assert "thread writer died" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_who_wants_to_know_of_a_threads_death_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = threading.Event()
    threads.start("writer", lambda: 1 // 0 and None, died=told.set)
    assert told.wait(DEADLINE_S)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_work_that_raises_is_told_of_and_says_what_it_raised() -> None:
    told = threading.Event()
    thread = threads.OneThread("writer")
    done = thread.submit(lambda: 1 / 0, told.set)
    assert told.wait(DEADLINE_S)
    with pytest.raises(ZeroDivisionError):
        done.result()
    thread.close(wait=True)
