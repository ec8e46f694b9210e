"""Who has lost its parent ends within END_S, whatever its threads wait for: a silent store, a lock, a long call.

The parent holds the writing end of a pipe, the lifeline, and nobody else does: its end is the parent's, however that
came. The process may end in order then; a timer of the kernel ends it where that takes longer, since its event loop and
its threads may never have their turn. One that was stopped is let go on first, or it would never learn of it.

Who has nothing to end in order is killed by the kernel at once: tasks, which run the code of others
(`headrace.worker.task.forkserver_main`), and the commands that a command of ours starts (`ENDS_WITH`).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Mapping

from headrace.daemon import threads
from headrace.daemon.signals import end_within

#: Seconds that a process has to end in order once its parent is gone.
END_S = 1.0
#: The variable that names, to a command of ours, the process that started it and with which it ends.
ENDS_WITH = "HEADRACE_ENDS_WITH"
#: Exit code of a process whose parent was gone before it could ask to end with it.
ORPHANED = 71
_PR_SET_PDEATHSIG = 1


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
