"""What survives a power failure: every sync, link and rename behind which something is promised goes through here.

The bytes of a file are durable behind `sync`, its name behind a sync of the folder that the name stands in. So a
promise takes both, in this order: first the bytes, then the name. Tests put a recording layer in the place of these
functions and look what a power failure would leave (`tests/kits/store/power_cut.py`); a test of the house finds who
goes around them. All raise OSError.

`whole_file` writes with them a file that is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def sync(descriptor: int) -> None:
    """Make the bytes of an open file durable, and all that the system knows of it."""
    os.fsync(descriptor)


def sync_data(descriptor: int) -> None:
    """Make the bytes of an open file durable, and its size."""
    os.fdatasync(descriptor)


def sync_folder(folder: str | Path) -> None:
    """Make durable which names stand in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: str | Path) -> None:
    """Make durable a folder with all that lies below it."""
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                sync(file.fileno())
        sync_folder(path)


def link(source: str | Path, target: str | Path) -> None:
    """Give a synced file one more name, durably. FileExistsError where the name is taken, durably as well.

    Who made the file that has the name may have died before its folder was synced, and who asks relies on it now.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        sync_folder(os.path.dirname(target))
        raise
    sync_folder(os.path.dirname(target))


def rename(source: str | Path, target: str | Path) -> None:
    """Give a synced file another name in the place of whatever has it, durably."""
    os.replace(source, target)
    sync_folder(os.path.dirname(target))


def make_folder(folder: str | Path, mode: int = 0o777) -> None:
    """Make a folder and its parents where they are missing, each durable in its parent."""
    path = os.path.abspath(folder)
    missing = [path]
    while not os.path.isdir(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    for made in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(made, mode)
        # Where it stood already, too: another process may have made it and died before this.
        with contextlib.suppress(PermissionError):
            sync_folder(os.path.dirname(made))
    if not os.path.isdir(path):
        raise NotADirectoryError(20, os.strerror(20), path)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What fails within is told of this path: a write that fails names none. Raises OSError."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A draft to write; behind the block it is durable and has the name, in the place of whatever had it.

    Where the block raises, nothing is left of the draft. Raises OSError.
    """
    with naming(path):
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with naming(path):
            with open(descriptor, "w+b") as file:
                yield file
                file.flush()
                sync(file.fileno())
            rename(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
