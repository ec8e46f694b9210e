"""A place that is listed folder by folder, and only read."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.store import Capabilities, InvalidKey, ObjectInfo, ObjectMissing, StoreRefused, validate_key

#: Names of one folder, which are sorted in memory.
ENTRIES_MAX = 1_000_000
#: Folders within one another; deeper ones are a loop.
DEPTH_MAX = 64
#: Folders in a row without a file that is wanted: each of them may name two more.
BARREN_MAX = 100_000
#: Characters of a version.
VERSION_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A name in a folder, with a slash at its end where it is a folder; `info` of a file, where the listing has it."""

    name: str
    info: ObjectInfo | None = None


class FolderStore(abc.ABC):
    """An `InputStore` that is listed folder by folder. A key is the path below the place."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @property
    def capabilities(self) -> Capabilities:
        """See `InputStore.capabilities`."""
        return Capabilities(get_with_info=self.get_with_info, walk=self.walk)

    @abc.abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """See `InputStore.head`; None for a folder."""

    @abc.abstractmethod
    def get_with_info(self, key: str, offset: int, length: int) -> tuple[bytes, ObjectInfo]:
        """See `headrace.store.contract.objects.get_with_info`."""

    @abc.abstractmethod
    def entries(self, folder: str) -> Iterable[FolderEntry]:
        """What stands in a folder, whose key is empty or ends in a slash; nothing where there is none."""

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `InputStore.get`."""
        if length is None:
            info = self.head(key)
            if info is None:
                raise ObjectMissing(key, self.uri)
            length = max(0, info.size - offset)
        return self.get_with_info(key, offset, length)[0]

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See `InputStore.list`."""
        folder, slash, name = prefix.rpartition("/")
        first = folder + slash
        for info in self.walk(first, lambda _: True, lambda below: (first + below).startswith(prefix)):
            if info.key.startswith(first + name) and info.key.encode() > after.encode():
                yield info

    def walk(
        self, folder: str, enters: Callable[[str], bool], wanted: Callable[[str], bool], depth: int = 0
    ) -> Iterator[ObjectInfo]:
        """See `Capabilities.walk`."""
        barren = 0

        def entered(below: str) -> bool:
            nonlocal barren
            barren += 1
            if barren > BARREN_MAX:
                raise StoreRefused(
                    f"{self.uri}: {BARREN_MAX:,} folders below {folder!r} in a row hold no file that is wanted, the "
                    f"last one {below[:200]!r}; narrow the input"
                )
            return enters(below)

        for info in self._walk(folder, "", entered, wanted, depth):
            barren = 0
            yield info

    def _walk(
        self, top: str, below: str, enters: Callable[[str], bool], wanted: Callable[[str], bool], depth: int
    ) -> Iterator[ObjectInfo]:
        if depth > DEPTH_MAX:
            raise StoreRefused(f"{self.uri}: folder {top + below!r} lies below {DEPTH_MAX} others; narrow the input")
        for entry in self._sorted(top + below):
            path = below + entry.name
            if entry.name.endswith("/"):
                if enters(path[:-1]):
                    yield from self._walk(top, path, enters, wanted, depth + 1)
            elif wanted(path):
                info = entry.info or self.head(top + path)
                if info is None:
                    raise StoreRefused(f"{self.uri}: its listing names {top + path!r}, which is not there; list again")
                yield info

    def _sorted(self, folder: str) -> Sequence[FolderEntry]:
        found: dict[str, FolderEntry] = {}
        for entry in self.entries(folder):
            if len(found) >= ENTRIES_MAX:
                raise StoreRefused(f"{self.uri}: folder {folder!r} holds more than {ENTRIES_MAX:,} names; split it")
            if _is_name(entry.name) and _is_key(folder + entry.name.rstrip("/")):
                found.setdefault(entry.name, entry)
        return sorted(found.values(), key=lambda entry: entry.name.encode())


def _is_name(name: str) -> bool:
    bare = name.removesuffix("/")
    return bool(bare) and "/" not in bare


def _is_key(key: str) -> bool:
    try:
        validate_key(key)
    except InvalidKey:
        return False
    return True
