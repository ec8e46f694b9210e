"""Commands as other users of this host, who read nothing of root's but the interpreter and this repository."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def as_user(user: int, group: int, command: Sequence[str], hold: Path) -> list[str]:
    """The command as a user with a group of his own and one that he shares, in which he makes what he makes.

    Where the interpreter or the repository lies in a folder that he may not enter, such as /root, they are mounted for
    him alone; `hold` is an empty folder for it.
    """
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT]
    script = ["set -e", "umask 0022"]
    behind = [(path, closed) for path in needed if (closed := _closed_above(path)) is not None]
    for number, (path, _) in enumerate(behind):
        script += [f"mkdir -p {hold}/{number}", f"mount --bind {path} {hold}/{number}"]
    script += [f"mount -t tmpfs -o mode=755 none {closed}" for closed in {closed for _, closed in behind}]
    for number, (path, _) in enumerate(behind):
        script += [f"mkdir -p {path}", f"mount --bind {hold}/{number} {path}"]
    rights = ["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={group}", "--inh-caps=-all"]
    script += ["umask 0007", 'exec "$@"']
    return ["unshare", "--mount", "sh", "-c", "\n".join(script), "sh", *rights, *command]


def _closed_above(path: Path) -> Path | None:
    """The first folder on the way that others may not enter."""
    for folder in (*reversed(path.parents), path):
        if folder.is_dir() and not os.stat(folder).st_mode & stat.S_IXOTH:
            return folder
    return None
