"""The start of a nursery; apart from worker/births.py, since it is the first thing that a worker does.

What a nursery imports takes longer than what its worker does, and a run waits for it. So nothing but this stands before
its start (worker/__main__.py).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

#: What tasks are born with; who sets a variable otherwise has it so.
#: A task is one of as many as there are cores and keeps to its own: threads of linear algebra, which numpy makes when
#: it is imported, cost a process a third of its start-up. Of Arrow's allocators jemalloc gives back soonest what is
#: freed and took the least processor time (docs/performance.md); a thread of its own would not live through a fork. The
#: sink's writer takes turns with the task's thread, so that a heap for each would hold free memory twice.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "1",
}

#: A nursery's process, and the socket on which it is asked for tasks.
Nursery = tuple["subprocess.Popen[bytes]", socket.socket]


def start_nursery() -> Nursery:
    """Start one. Raises OSError where the system has no room for a process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
            [sys.executable, "-m", "headrace.worker.nursery", "--control-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=_ENVIRONMENT | os.environ,
        )
    return process, ours
