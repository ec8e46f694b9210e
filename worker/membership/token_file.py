"""Where the token comes from with which a node joins: standard input, a file of its own, or the environment.

Never an argument: every user of a host reads the command lines of all processes, and whoever reads a token first may
join with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.cluster import PREFIX, TOKEN_LIMIT
from headrace.daemon import read_private
from headrace.worker.membership.member import JoinError

VARIABLE = "HEADRACE_JOIN_TOKEN"
STANDARD_INPUT = "-"
HOW = f"give it on standard input (--join -), in a file of mode 0600 (--join FILE), or in {VARIABLE}"
SHOWN = (
    f"a token on the command line is read by every user of this host: {HOW}; "
    "this one has been shown, so make another with `headrace cluster token`"
)


def is_token(argument: str) -> bool:
    """Whether an argument is a token itself, which it must not be."""
    return argument.strip().startswith(PREFIX)


def find_token(given: str) -> str:
    """The token of `--join`: `-` or a file's path; else that of the environment, which it leaves; else nothing.

    Raises JoinError.
    """
    # Tasks and their command stages inherit the environment, and need no token.
    lent = os.environ.pop(VARIABLE, "")
    if is_token(given):
        raise JoinError(SHOWN)
    if given == STANDARD_INPUT:
        return _bounded(sys.stdin.buffer.read(TOKEN_LIMIT + 1), "standard input")
    if given:
        try:
            return _bounded(read_private(Path(given), TOKEN_LIMIT, pipes=True), given)
        except OSError as error:
            raise JoinError(f"--join {given} cannot be read: {error.strerror}; {HOW}") from error
    return _bounded(lent.encode(errors="replace"), VARIABLE) if lent else ""


def _bounded(data: bytes, where: str) -> str:
    """The one token that stands there."""
    if len(data) > TOKEN_LIMIT:
        raise JoinError(f"{where} holds more than {TOKEN_LIMIT:,} bytes, and no token is so long")
    token = data.decode("ascii", errors="replace").strip()
    if not is_token(token):
        raise JoinError(f"{where} holds no join token: put the one line there that `headrace cluster token` prints")
    return token
