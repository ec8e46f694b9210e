"""`python -m headrace.worker`: the daemon, and before it is imported the nursery, for which a run waits longest."""

from __future__ import annotations

import gc
import os
import sys

from headrace.worker.cradle import start_nursery


def main() -> int:
    """Start a nursery, import the daemon, and be it; the exit code."""
    nursery = start_nursery()
    # What is imported stays: looking for garbage in it is a tenth of the time that imports take.
    gc.disable()
    from headrace.worker.daemon import main as work

    gc.freeze()
    gc.enable()
    return work(nursery=nursery)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. What Python would still do, module by module, whoever waits for us would wait for.
    os._exit(code)
