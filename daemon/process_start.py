"""What Headrace's own processes begin with: their command lines, and three standard streams that end nothing."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.pipeline import SecretShownError, check_arguments

if TYPE_CHECKING:
    import argparse

#: What a terminal of another encoding cannot show, and a name that is no UTF-8, is written as Python has it.
_ESCAPED = "backslashreplace"


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What `parser` makes of these arguments, else of the process's own; ends with 2 where one carries a secret."""
    mend_streams()  # a daemon that is no command has done nothing before
    given = sys.argv[1:] if arguments is None else arguments
    try:
        check_arguments(given, os.environ)
    except SecretShownError as error:
        parser.error(str(error))
    return parser.parse_args(given)


def mend_streams() -> None:
    """Give this process the standard streams that it needs; before it opens anything, and has threads.

    A closed one is /dev/null from now on: what is opened next would have its number, and be written to. Standard error
    loses what it cannot write: a full disk or a reader that has gone ends neither a command nor a thread.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPED)
    # Not what another program has put in its place.
    if sys.stderr is sys.__stderr__:
        encoding = sys.stderr.encoding if sys.stderr else "utf-8"
        at_once = isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.write_through  # `python -u`
        raw = _Lossy(2, "w", closefd=False)
        told: Any = raw if at_once else io.BufferedWriter(raw)
        sys.stderr = io.TextIOWrapper(told, encoding, _ESCAPED, line_buffering=True, write_through=at_once)


@contextlib.contextmanager
def said_aside() -> Iterator[None]:
    """What is written to standard output meanwhile goes to standard error, also by processes that begin here.

    The descriptor changes, and `sys.stdout` does not: the user's code may close, wrap or detach that.
    """
    if not _is_ours():
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    _flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _is_ours() -> bool:
    """Whether the streams are those of the process, and not a notebook's."""
    try:
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    except (AttributeError, OSError, ValueError):
        return False


def _flush() -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()


class _Lossy(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = 0
        return written or memoryview(data).nbytes
