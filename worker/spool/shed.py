"""What a full spool does not take, where it is told to shed: a line for each push, durable before it is answered.

A segment of such lines, `<number>.shed`, is a fragment like any other: it gives each record that was shed its verdict
(`headrace.stages.sources.spool`). Of the records it holds the number alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from headrace.stages.sources import shed_entry
from headrace.store import StoreError
from headrace.store.files import disk

_OPEN, _SEALED = ".shed.open", ".shed"
_NAME = re.compile(r"[0-9]{12,18}\.shed(?:\.open)?")


def name_anew(source: Path, target: Path) -> None:
    """Give a segment its last name, durably. After an OSError it may have either, and another call goes on with it."""
    if source.exists():
        disk.rename(source, target)
    else:
        disk.sync_folder(target.parent)


class ShedLog:
    """The segments of one folder. Called by its Spool, under its lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment = -1
        self._name = ""
        self._end = 0
        #: Whether the name of the open segment is durable.
        self._named = False
        self.born_at = 0.0

    @property
    def open(self) -> bool:
        """Whether a segment grows."""
        return self._segment >= 0

    def note(self, number: int, records: int, size: int, key: str) -> None:
        """Write down that a push was shed; in segment `number` if none is open. OSError: nothing was written down."""
        if not self.open:
            self._name = f"{number:012d}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._segment = os.open(self._folder / (self._name + _OPEN), flags, 0o644)
            self._end, self.born_at = 0, time.monotonic()
            self._named = False
        line = orjson.dumps({"records": records, "bytes": size, "key": key}, option=orjson.OPT_APPEND_NEWLINE)
        try:
            if os.write(self._segment, line) < len(line):
                raise OSError(28, "the disk is full")
            disk.sync_data(self._segment)
            if not self._named:
                disk.sync_folder(self._folder)
                self._named = True
        except OSError:
            os.ftruncate(self._segment, self._end)
            raise
        self._end += len(line)

    def seal(self) -> None:
        """End the open segment, if there is one. After an OSError it is open, and another call tries again."""
        if self.open:
            name_anew(self._folder / (self._name + _OPEN), self._folder / (self._name + _SEALED))
            os.close(self._segment)
            self._segment = -1

    def recover(self) -> Iterator[tuple[int, int, str]]:
        """Number of the segment, records and key of every push; a segment that was left open is mended and sealed.

        Raises StoreError for a line that is no push.
        """
        for path in sorted(self._folder.glob("*.shed*")):
            if not _NAME.fullmatch(path.name):
                continue
            number, data = int(path.name.split(".", 1)[0]), path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if path.name.endswith(_OPEN):
                with open(path, "r+b") as file:
                    file.truncate(len(whole))
                    disk.sync(file.fileno())
                disk.rename(path, self._folder / (path.name.removesuffix(_OPEN) + _SEALED))
            try:
                pushes = [shed_entry(line) for line in whole.splitlines()]
            except ValueError as error:
                raise StoreError(f"spool {self._folder}: {path.name} is damaged ({error}); take it away") from error
            yield from ((number, *push) for push in pushes)
