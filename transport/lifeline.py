"""Who has lost its parent ends within END_S, whatever its threads wait for: a silent store, a lock, a long call.

The parent holds the writing end of a pipe, the lifeline, and nobody else does: its end is the parent's, however that
came. The process may end in order then; a timer of the kernel ends it where that takes longer, since its event loop and
its threads may never have their turn. Tasks, which run the code of others, are killed by the kernel at once
(`headrace.worker.nursery`).
"""

from __future__ import annotations

import select
import signal

from headrace.transport import threads

#: Seconds that a process has to end in order once its parent is gone.
END_S = 1.5


def end_with_parent(descriptor: int) -> None:
    """Watch the reading end of a lifeline, on a thread of its own. Called on the main thread; -1: there is none."""
    if descriptor < 0:
        return
    # The kernel's own handler, which needs nobody's turn; it may have been ignored by whoever started this.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    threads.start("lifeline", lambda: _watch(descriptor))


def _watch(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.poll()
    signal.setitimer(signal.ITIMER_REAL, END_S)
