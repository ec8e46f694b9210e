"""A disk that is soon full: a tmpfs of a few bytes. Root alone may mount one."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

MOUNT_S_MAX = 60.0


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: int) -> Iterator[pathlib.Path]:
    """A file system of `size` bytes, mounted for as long as it is needed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(command, check=True, timeout=MOUNT_S_MAX)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=MOUNT_S_MAX)


def enlarge(folder: pathlib.Path, size: int) -> None:
    """There is room again: `size` bytes in all."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True, timeout=MOUNT_S_MAX)
