"""Processes that are forked and not started anew: they begin with what this one has imported, and share its memory.

A fork copies the one thread that asks for it; a lock that another held stays shut for ever. So only a process with one
thread may fork, and what is forked never comes back to its caller's code.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Protocol

#: Exit code of a process that ended with an error of its own.
FAILED = 1
_FIRST_BEHIND_STANDARD = 3


class Process(Protocol):
    """What a `subprocess.Popen` and a forked process have in common."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        ...

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        ...

    def kill(self) -> None:
        """Send SIGKILL, unless it is known to be dead."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it is known to be dead."""
        ...


class Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        return self._reaped(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        code = self._reaped(0)
        assert code is not None
        return code

    def kill(self) -> None:
        """Send SIGKILL, unless it is known to be dead."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless it is known to be dead."""
        if self.poll() is None:
            os.kill(self._pid, sig)

    def _reaped(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def may_fork() -> bool:
    """Whether this process has one thread."""
    return len(os.listdir("/proc/self/task")) == 1


def fork(live: Callable[[], int], keep: Collection[int]) -> Forked:
    """Fork a child that does `live` and ends with its exit code.

    Of the descriptors behind the standard ones it has those of `keep` alone. Raises OSError where there is no room for
    another process.
    """
    # What is there lives on in the child: to look for garbage in it would copy its pages.
    gc.freeze()
    pid = os.fork()
    if pid:
        return Forked(pid)
    code = FAILED
    try:
        _close_all_but(keep)
        code = live()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except BaseException:  # noqa: BLE001 - nothing of the child may go on as its parent
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _close_all_but(keep: Collection[int]) -> None:
    # Not all numbers that there may be: where that is a million, closing them takes longer than the imports saved.
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor >= _FIRST_BEHIND_STANDARD and descriptor not in keep:
            with contextlib.suppress(OSError):  # that of the listing itself is closed by now
                os.close(descriptor)
