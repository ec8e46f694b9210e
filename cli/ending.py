"""How a command ends: its errors as a line on standard error, and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from headrace.client import EXIT_FAULT, EXIT_INTERRUPTED, CliError, Interrupted, UsageError, explain
from headrace.daemon import printable
from headrace.pipeline import mask

#: Characters of a name that is no text that are shown.
NAME_CHARACTERS_MAX = 200


def outcome(call: Callable[[], object], understand: Callable[[Exception], CliError | None] | None = None) -> int:
    """Carry a command out; its exit code. Errors of the system around us become a line on standard error.

    `understand` says what an error of the command line is, where its parser has errors of its own.
    """
    try:
        code = call()
        sys.stdout.flush()
    except KeyboardInterrupt:
        _drop_output()
        return _complain(Interrupted(), EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has enough of it.
        _drop_output()
        return EXIT_FAULT
    except Exception as error:
        known = (understand(error) if understand is not None else None) or explain(error) or _no_text(error)
        if known is None or "HEADRACE_TRACEBACK" in os.environ:
            raise
        return _complain(known, known.exit_code)
    return code if isinstance(code, int) else 0


def _no_text(error: Exception) -> CliError | None:
    """A name from the command line that no message and no table can hold."""
    if not isinstance(error, UnicodeEncodeError):
        return None
    return UsageError(f"{error.object[:NAME_CHARACTERS_MAX]!r} is not UTF-8")


def _drop_output() -> None:
    """Send what is left in the buffer of standard output nowhere: to flush it would wait for its reader again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(error: CliError, code: int) -> int:
    message = " ".join(str(error).split())
    details = [f"  {printable(part)}" for line in error.details for part in line.split("\n")]
    # files, stores and hosts have their words in it, and a terminal obeys some
    print(mask("\n".join([f"headrace: {printable(message)}", *details])), file=sys.stderr)
    return code


def leave(code: int) -> NoReturn:
    """End this process with that exit code."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Python's own end takes a tenth of a second and changes nothing.
    atexit._run_exitfuncs()
    os._exit(code)
