"""Folders of this user's cache, from which machine code and findings are believed: nobody else may write there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

#: Who shares a group with this user may exchange a folder in the cache, and then it is not this user's.
_WORLD_WRITES, _OTHERS_WRITE = 0o002, 0o022
#: What to do where there is none.
CACHE_ADVICE = "set XDG_CACHE_HOME to a folder that this user alone may write"
#: How often a lock is asked for.
_POLL_S = 0.05


def own_cache(*parts: str) -> Path | None:
    """A folder below `headrace` in `$CACHE_DIRECTORY` (systemd's), `$XDG_CACHE_HOME` or `~/.cache`, made if needed.

    None where it cannot be made, or where it, or one of ours above it, is a link or belongs to another user, or others
    may write to it: what is kept there is found out again each time.
    """
    # Of several folders systemd names the first that the unit does.
    unit = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]
    folder = Path(unit or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for part in ("headrace", *parts):
            folder /= part
            folder.mkdir(exist_ok=True, mode=0o700)
            found = folder.lstat()
            open_to = found.st_mode & (_OTHERS_WRITE if folder.name == parts[-1] else _WORLD_WRITES)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or open_to:
                return None
    except OSError:
        return None
    return folder


@contextlib.contextmanager
def taken_alone(folder: Path, name: str, wait_s: float) -> Iterator[None]:
    """Inside, one process of this user at a time holds the lock of this name, unless another holds it for `wait_s`.

    The lock goes when its holder ends.
    """
    deadline = time.monotonic() + wait_s
    with (folder / name).open("a") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            else:
                break
        yield
