"""`python -m headrace.controller`: the controller's process."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from headrace.daemon import end_with_starter, mend_streams


def main(argv: Sequence[str] | None = None, word_fd: int = -1) -> int:
    """Import the server, and serve; the exit code. With `word_fd`, once a byte comes there, or not at all."""
    if word_fd >= 0 and not os.read(word_fd, 1):
        return 0
    # What is imported stays: looking for garbage in it is a tenth of the time that imports take.
    gc.disable()
    from headrace.controller.server import main as serve

    gc.freeze()
    gc.enable()
    return serve(argv)


if __name__ == "__main__":
    mend_streams()
    end_with_starter()
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. What Python would still do, module by module, whoever waits for us would wait for.
    os._exit(code)
