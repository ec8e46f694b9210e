"""`python -m headrace.worker`: the daemon, and before it is imported the forkserver, for which a run waits longest.

What both need is imported before the fork, since the forkserver would begin with it all the same.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

import headrace.transport.pipe.pipe
import headrace.worker.core.watchdog
import headrace.worker.task.batch.in_flight  # noqa: F401 - for both
from headrace.daemon import end_with_starter, may_fork, mend_streams, raise_open_files
from headrace.worker.processes import fork_forkserver, hear, start_forkserver


def main(argv: Sequence[str] | None = None, word_fd: int = -1) -> int:
    """Fork a forkserver, import the daemon, and be it; the exit code.

    With `word_fd` nothing is imported before that descriptor has said what tasks will inherit: the forkserver has the
    cores to itself until then, and needs them more.
    """
    raise_open_files()
    forkserver = fork_forkserver() if may_fork() else start_forkserver()
    if word_fd >= 0 and not hear(word_fd, forkserver):
        return 0
    # What is imported stays: looking for garbage in it is a tenth of the time that imports take.
    gc.disable()
    from headrace.worker.daemon import main as work

    gc.freeze()
    gc.enable()
    return work(argv, forkserver)


if __name__ == "__main__":
    mend_streams()
    end_with_starter()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. What Python would still do, module by module, whoever waits for us would wait for.
    os._exit(code)
