"""Files that hold secrets: they are read only where this user or root owns them, and nobody else reaches them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_private(path: Path, bytes_max: int, *, pipes: bool = False) -> bytes:
    """What stands in a file of mode 0600 or less, or in a pipe of this user's where `pipes` says so.

    It is opened first and looked at then, so that nobody exchanges it in between. Raises OSError, whose `strerror` says
    what is wrong and what to do: who owns it, its mode, or more than `bytes_max` bytes.
    """
    # A pipe is waited for only where one may stand.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if pipes else os.O_NONBLOCK))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) and not (pipes and stat.S_ISFIFO(found.st_mode)):
            raise _refusal(path, "it is no file")
        if found.st_uid not in (0, os.geteuid()):
            raise _refusal(path, f"it belongs to user {found.st_uid}, who chooses what is in it: own the file")
        if found.st_mode & 0o077:
            mode = stat.S_IMODE(found.st_mode)
            raise _refusal(path, f"it has mode {mode:04o}, so that others reach a secret: give it mode 0600")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise _refusal(path, f"it holds more than {bytes_max:,} bytes, which is more than such a file has")
    return data


def _refusal(path: Path, why: str) -> OSError:
    return PermissionError(errno.EPERM, why, str(path))
