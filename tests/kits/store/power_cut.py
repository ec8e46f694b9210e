"""A recording file layer: in which order bytes and names were made durable, and what a power failure would leave.

It takes the place of the functions of `headrace.store.files.disk`. The bytes of a file are those of its last sync, none
if it had none; a folder holds the names that it had at its last sync. That is the least that a file system may keep.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.store.files import disk


class Disk:
    """What was asked of the disk, in order, as (deed, name); and what of it is durable."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.deeds: list[tuple[str, str]] = []
        self._bytes: dict[int, bytes] = {}
        self._names: dict[str, dict[str, int]] = {}
        for name in ("sync", "sync_data"):
            patch.setattr(disk, name, self._sync)
        patch.setattr(disk, "sync_folder", self._sync_folder)
        self._link, self._rename = disk.link, disk.rename
        patch.setattr(disk, "link", self._linked)
        patch.setattr(disk, "rename", self._renamed)

    def left(self, folder: Path, into: Path) -> Path:
        """Make in `into` what a power failure now would leave of a folder that is durable itself."""
        into.mkdir(parents=True, exist_ok=True)
        for name in self._names.get(str(folder), {}):
            if str(folder / name) in self._names:
                self.left(folder / name, into / name)
            elif (number := self._names[str(folder)][name]) >= 0:
                (into / name).write_bytes(self._bytes.get(number, b""))
        return into

    def has_name(self, path: Path) -> bool:
        """Whether the name of a file or folder is durable, and those of all folders above that were made since."""
        return path.name in self._names.get(str(path.parent), {})

    def _sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.deeds.append(("sync", path))
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            self._bytes[os.fstat(descriptor).st_ino] = file.read()

    def _sync_folder(self, folder: str | Path) -> None:
        folder = os.path.realpath(folder)
        self.deeds.append(("sync folder", folder))
        with os.scandir(folder) as entries:
            found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
        self._names[folder] = {
            name: status.st_ino if stat.S_ISREG(status.st_mode) else -1 for name, status in found.items()
        }

    def _linked(self, source: str | Path, target: str | Path) -> None:
        self.deeds.append(("link", _named(target)))
        self._link(source, target)

    def _renamed(self, source: str | Path, target: str | Path) -> None:
        self.deeds.append(("rename", _named(target)))
        self._rename(source, target)


def _named(path: str | Path) -> str:
    """A path without the descriptor of a folder in it."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)
