"""Processes that are forked and not started anew: they begin with what this one has imported, and share its memory.

A fork copies the one thread that asks for it; a lock that another held stays shut for ever. So only a process with one
thread may fork, and what is forked never comes back to its caller's code.

A process that loses its parent ends within END_S, whatever its threads wait for: a silent store, a lock, a long call.
Only the parent holds the writing end of a pipe, the lifeline, which closes when the parent dies. The process may end in
order then; a timer of the kernel ends it where that takes longer, since its event loop and its threads may never have
their turn. A stopped process is continued first, or it would never learn of it.

The kernel kills at once a process that has nothing to end in order: tasks, which run the code of others
(`headrace.worker.task.forkserver_main`), and the commands that a command of ours starts (`ENDS_WITH`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from headrace.daemon import threads
from headrace.daemon.signals import end_within

if TYPE_CHECKING:
    import subprocess

#: Seconds that a process has to end in order once its parent is gone.
END_S = 1.0
#: The variable that names, to a command of ours, the process that started it and with which it ends.
ENDS_WITH = "HEADRACE_ENDS_WITH"
#: Exit code of a process whose parent was gone before it could ask to end with it.
ORPHANED = 71
#: Descriptors that a daemon may have, where its hard limit allows them: as many as its unit of systemd has. No more:
#: what it starts inherits the limit, and some programs close one by one as many as they may have.
OPEN_FILES_MAX = 65_536
_PR_SET_PDEATHSIG = 1
#: Exit code of a process that ended with an error of its own.
FAILED = 1
_FIRST_BEHIND_STANDARD = 3


class Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

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
            os.kill(self.pid, sig)

    def _reaped(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


ChildProcess: TypeAlias = "Forked | subprocess.Popen[bytes]"


def raise_open_files() -> None:
    """Raise the soft limit of open files, for this process and what it starts: each link inside a worker takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(OPEN_FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def end_with_parent(descriptor: int) -> None:
    """Watch the reading end of a lifeline, on a thread of its own. Called on the main thread; -1: there is none."""
    if descriptor < 0:
        return
    # The kernel's own handler, which needs nobody's turn; it may have been ignored by whoever started this.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _at_parents_end(signal.SIGCONT)
    threads.start("lifeline", lambda: _watch(descriptor))


def ending_with_this() -> Mapping[str, str]:
    """What to add to the environment of a command of ours that is to be killed when this process ends.

    Start it on the main thread: it ends with the thread that has started it.
    """
    return {ENDS_WITH: str(os.getpid())}


def end_with_starter() -> None:
    """Be killed with the process that ENDS_WITH names, if it names one; what this process starts is not concerned."""
    starter = os.environ.pop(ENDS_WITH, "")
    if starter.isdecimal():
        be_killed_with(int(starter))


def be_killed_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies (prctl(2)); ends at once where it is gone already."""
    _at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def _at_parents_end(number: signal.Signals) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    end_within(END_S)
