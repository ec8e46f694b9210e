"""The start of a nursery; apart from worker/births.py, since it is the first thing that a worker does.

What a nursery imports takes longer than what its worker does, and a run waits for it. So nothing but this stands before
its start (worker/__main__.py).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

#: What tasks are born with; who sets a variable otherwise has it so.
#: A task is one of as many as there are cores and keeps to its own: threads of linear algebra, which numpy makes when
#: it is imported, cost a process a third of its start-up.
#: A task takes and frees some ten MiB a batch, and an allocator that keeps what is freed keeps more the longer it runs
#: (docs/decisions/0035). Arrow has its memory from malloc like all else, in one heap, of which 4 MiB may be free at its
#: end, and what is larger than 4 MiB is a mapping of its own: the sink's writer takes turns with the task's thread, so
#: that a heap for each would hold free memory twice. jemalloc, which is in pyarrow all the same, begins a thread when
#: it is loaded, unless it is told not to; a nursery forks, and no thread lives through that.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(4 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
}

#: A nursery's process, and the socket on which it is asked for tasks.
Nursery = tuple["subprocess.Popen[bytes]", socket.socket]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of tasks where that of their worker is `given`."""
    return {**_ENVIRONMENT, **given}


def start_nursery() -> Nursery:
    """Start one. Raises OSError where the system has no room for a process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of our own
            [sys.executable, "-m", "headrace.worker.nursery", "--control-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment(os.environ),
        )
    return process, ours
