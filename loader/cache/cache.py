"""Shards of a remote store as files on the local disk, shared by all processes of a user on a host.

Files are named by their checksum, so two datasets that share a shard share its copy, and a name says what the bytes
must be. The rules, all held by the kernel's `flock`, which a killed process lets go of:

- a shard is written as `<checksum>.part` under an exclusive lock, checked, and renamed: what has its final name is
  whole. Whoever finds the lock taken waits for the other's work; whoever finds a `.part` without a lock writes it anew;
- a reader holds a shared lock on the file for as long as it has it mapped, and only a file whose exclusive lock can be
  had is evicted: so none goes that is in use, by any process;
- a final name carries the machine's boot. After a crash of the machine the bytes are checked again before use, which
  saves an fsync a shard;
- the files lie in a directory of the user's own with mode 0700, and one that belongs to somebody else is refused.

What is needed latest goes first: a `Plan` of each loop that reads through the cache tells when a shard is needed next.
Files that are in no plan go before all others, oldest first. A disk that is full before the cache has `bytes_max` bytes
is as a smaller bound (`headrace.loader.cache.cached_files` says when a thread waits for space).
"""

import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from headrace.loader.cache.cached_files import (
    DIRECTORY_VARIABLE,
    CacheFull,
    Said,
    allocate,
    evict_file,
    file_checksum,
    hold_file,
    lock_file,
    told,
    users_of,
    write_at,
)
from headrace.loader.cache.fetch import FetchCounts, Pool, fetch_object, not_wanted
from headrace.loader.cache.head import parse_blocks
from headrace.loader.cache.partial_shard import PARTIAL, Opened, PartialShard, file_bytes
from headrace.loader.cache.spans import Spans
from headrace.loader.order import LoaderError
from headrace.store import ChecksumMismatch, FormatError, ObjectMissing, ObjectStore
from headrace.store.shards import HEADER_BYTES_MAX, data_end, is_checksum

logger = logging.getLogger("headrace.loader")

CACHE_BYTES_DEFAULT: Final = 64 << 30
#: how long to wait for another process that fetches the shard, or for space
WAIT_S_MAX: Final = 600.0
#: a mode that gives group and others nothing
_PRIVATE: Final = 0o700
#: of some shards, named by the hash in their checksum, in how many samples those that are known are needed next
Plan: TypeAlias = Callable[[list[str]], Mapping[str, int]]


class HeldShard:
    """A whole shard's file that is not evicted until this object is gone."""

    __slots__ = ("opened", "size")

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.size = os.fstat(opened.descriptor).st_size


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts of this process since the cache was made."""

    hits: int
    misses: int
    evicted: int
    #: bytes that were read from stores
    fetched_bytes: int
    hedges: int
    retries: int


class ShardCache:
    """At most `bytes_max` bytes of shards below `directory`, in a directory of this user.

    Any number of processes may share it, and any number of threads may call it at once.
    """

    def __init__(self, directory: str | os.PathLike[str], bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self.directory = os.fspath(directory)
        self.bytes_max = bytes_max
        self._disk_bytes = bytes_max
        #: of waits for space
        self.said = Said()
        #: whether it was said to hold less than a window reads
        self.is_crowded = False
        self._root = Path(os.path.expanduser(directory)).absolute() / f"user-{os.getuid()}"
        self._is_made = False
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "evicted": 0}
        self._fetched = FetchCounts()
        self._pool = Pool()
        self.spans = Spans(self._pool, self._fetched, self._finished)
        self._boot = _boot()
        #: files from before the machine's last boot, by the name of their shard
        self._old: dict[str, list[Path]] = {}
        self._plans: tuple[Plan, ...] = ()
        #: name and inode of files that this process made or checked: they are not checked when they are opened again
        self._trusted: set[tuple[str, int]] = set()

    @classmethod
    def default(cls) -> "ShardCache":
        """The user's cache: below `$HEADRACE_CACHE`, else below `$XDG_CACHE_HOME` or `~/.cache`."""
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return cls(os.environ.get(DIRECTORY_VARIABLE) or os.path.join(base, "headrace"))

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCache, (self.directory, self.bytes_max)

    def replica(self) -> "ShardCache":
        """The same cache for another process."""
        return ShardCache(self.directory, self.bytes_max)

    def add_plan(self, plan: Plan) -> None:
        """Heed when a loop needs shards next, until `remove_plan`; any thread may ask it, also after that."""
        with self._lock:
            self._plans = (*self._plans, plan)

    def remove_plan(self, plan: Plan) -> None:
        """Heed it no more; a second call does nothing."""
        with self._lock:
            self._plans = tuple(one for one in self._plans if one != plan)

    def _next_uses(self, names: list[str]) -> dict[str, int]:
        """When the soonest of all loops needs each shard that one of them knows."""
        found: dict[str, int] = {}
        for plan in self._plans:
            for name, use in plan(names).items():
                found[name] = min(use, found.get(name, use))
        return found

    @property
    def space_bytes(self) -> int:
        """What the cache can hold, in bytes: `bytes_max`, or less where the disk was found to have less for it."""
        return min(self.bytes_max, self._disk_bytes)

    def look_at_disk(self) -> None:
        """Find out what the disk has for the cache, where that was found to be less than `bytes_max` or is not known.

        Raises LoaderError where the cache cannot be made or read.
        """
        with self._told():
            self._make()
            if self._disk_bytes < self.bytes_max:
                self._measure(self._entries())

    def _told(self) -> AbstractContextManager[None]:
        return told(f"the cache {self._root} cannot be used")

    def _measure(self, entries: list[tuple[str, int, float]]) -> None:
        disk = os.statvfs(self._root)
        self._disk_bytes = disk.f_bavail * disk.f_frsize + sum(size for _, size, _ in entries)

    def statistics(self) -> CacheStatistics:
        """What this process found, fetched and evicted."""
        fetched = self._fetched
        return CacheStatistics(
            **self._counts, fetched_bytes=fetched.bytes, hedges=fetched.hedges, retries=fetched.retries
        )

    def hold(
        self,
        store: ObjectStore,
        key: str,
        checksum: str,
        *,
        whole: bool = False,
        needed: int = 0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> HeldShard | PartialShard:
        """The local copy of the object: whole and checked, or with its header's blocks as they come by `spans`.

        With `whole` the request that brings the head goes on with what follows it, where the shard is not there.
        `needed` is what CacheFull has told: the store is not asked again until there is space for so many bytes.

        Raises CacheFull where all that is cached is in use or the disk has no space, LoaderError after WAIT_S_MAX and
        where the folder refuses it, the store's errors, and LoaderClosed once `stopped`.
        """
        with self._told():
            return self._hold(store, key, checksum, whole, needed, stopped)

    def _hold(
        self, store: ObjectStore, key: str, checksum: str, whole: bool, needed: int, stopped: Callable[[], bool]
    ) -> HeldShard | PartialShard:
        self._make()
        if not is_checksum(checksum):
            raise FormatError(
                f"{store.uri}: {key!r} has the checksum {checksum[:80]!r}; files are named by such of xxh3-128"
            )
        name = checksum.rpartition(":")[2]
        deadline = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline:
            held = self._find(name, checksum, store, key)
            if held is not None:
                self._counts["hits"] += 1
                return held
            part = lock_file(self._root / f"{name}.part", deadline, stopped)
            if part is None:
                if stopped():
                    raise not_wanted(key)
                break
            try:
                if any((self._root / (self._final(name) + end)).exists() for end in ("", PARTIAL)):
                    continue
                if needed:
                    self._require_room(part, needed, name)
                partial = self._begin(part, name, store, key, whole, stopped)
                if partial is None:
                    self._fill(part, name, store, key, checksum, stopped)
                self._counts["misses"] += 1
                if partial is not None:
                    return partial
                # the exclusive lock becomes a shared one, so that nobody evicts what was just fetched
                fcntl.flock(part, fcntl.LOCK_SH)
                if os.fstat(part).st_nlink:
                    return HeldShard(Opened(os.dup(part), store.uri))
            finally:
                os.close(part)
        raise LoaderError(
            f"{store.uri}: {key!r} was not in the cache {self._root} within {WAIT_S_MAX:.0f} s; another process holds "
            "its lock and does not finish, or the shard is evicted as soon as it is there: raise the cache's bytes_max"
        )

    def forget(self, checksum: str) -> bool:
        """Remove what is cached of an object; False where another process uses it, which removes it no more."""
        if not is_checksum(checksum):
            raise ValueError(f"{checksum[:80]!r} is no checksum")
        files = self._root.glob(f"{checksum.rpartition(':')[2]}.*") if self._root.is_dir() else ()
        return not [path for path in files if not evict_file(path)]

    def cached(self) -> dict[str, int]:
        """Bytes of each whole shard in the cache, by the hash in its checksum."""
        return {
            name.partition(".")[0]: size for name, size, _ in self._entries() if not name.endswith((".part", PARTIAL))
        }

    def _final(self, name: str) -> str:
        return f"{name}.{self._boot}"

    def _make(self) -> None:
        with self._lock:
            if not self._is_made:
                _make_private(self._root)
                entries = self._entries()
                self._measure(entries)
                # once: none come to be while the machine runs
                for name, _, _ in entries:
                    stem, _, rest = name.partition(".")
                    if not name.endswith(".part") and rest.partition(".")[0] != self._boot:
                        self._old.setdefault(stem, []).append(self._root / name)
                self._is_made = True

    def _find(self, name: str, checksum: str, store: ObjectStore, key: str) -> HeldShard | PartialShard | None:
        """The shard's file under a shared lock, whole or not, or None where there is none."""
        path = self._root / self._final(name)
        if not path.exists():
            self._adopt(name, checksum)
        for one in (path, self._root / (self._final(name) + PARTIAL)):
            descriptor = hold_file(one)
            if descriptor is not None:
                os.utime(descriptor)
                found = self._found(one, Opened(descriptor, store.uri), store, key)
                if found is not None:
                    return found
        return None

    def _found(self, path: Path, opened: Opened, store: ObjectStore, key: str) -> HeldShard | PartialShard | None:
        """What a file holds; None for one that is not as it was written, which is removed."""
        identity = (path.name.partition(".")[0], os.fstat(opened.descriptor).st_ino)
        size = opened.head(key).size
        try:
            table = parse_blocks(opened.get(key, 0, min(size, 8 + int.from_bytes(opened.get(key, 0, 8), "little"))))
            if table is None and path.suffix != PARTIAL and size == data_end(cast("ObjectStore", opened), key):
                return HeldShard(opened)
            if table is not None and size >= file_bytes(table):
                partial = PartialShard(opened, table, store, key)
                if identity not in self._trusted and partial.present.any():
                    partial.unchecked = partial.present.copy()
                    partial.checked = lambda: self._trusted.add(identity)
                return partial
            if table is not None and size == table.size and path.suffix != PARTIAL:
                return HeldShard(opened)
            problem = f"it has {size} bytes"
        except FormatError as error:
            problem = str(error)
        logger.warning("%s in the cache is not as it was written, and is fetched anew: %s", path, problem)
        with self._names_still():
            path.unlink(missing_ok=True)
        return None

    def _adopt(self, name: str, checksum: str) -> None:
        """Take over a file from before the machine's last boot, if its bytes are right."""
        for old in self._old.get(name, ()):
            with suppress(FileNotFoundError):
                # after a crash a block may be lost that the map has
                if old.suffix != PARTIAL and _whole_checksum(old) == checksum:
                    old.rename(self._root / self._final(name))
                else:
                    old.unlink()

    def _begin(
        self, part: int, name: str, store: ObjectStore, key: str, whole: bool, stopped: Callable[[], bool]
    ) -> PartialShard | None:
        """Make the file of a shard that has checksums of its blocks; None for one of before. `part` is the lock."""
        head = self.spans.begin(store, key, whole=whole, stopped=stopped)
        if head is None:
            return None
        self._fetched.came(head.size)
        try:
            self._reserve(part, file_bytes(head.table), name)
            partial = PartialShard(Opened(os.dup(part), store.uri), head.table, store, key)
            self._trusted.add((name, os.fstat(part).st_ino))
            partial.put(head.parts, 0, 0, head.blocks)
            self.spans.read_on(partial, head)
        except BaseException:
            self.spans.give_up(head)
            (self._root / f"{name}.part").unlink(missing_ok=True)
            raise
        # it has this name once its header stands in it
        with self._names_still():
            (self._root / f"{name}.part").rename(self._root / (self._final(name) + PARTIAL))
        fcntl.flock(part, fcntl.LOCK_SH)
        if partial.has_all(0, head.table.count):
            self._finished(partial)
        return partial

    def _finished(self, partial: PartialShard) -> None:
        """A shard of which every block is there gets the name of whole ones."""
        name = Path(os.readlink(f"/proc/self/fd/{partial.opened.descriptor}")).name
        if name.endswith(PARTIAL):
            with self._names_still(), suppress(FileNotFoundError):
                (self._root / name).rename(self._root / name.removesuffix(PARTIAL))

    def _fill(
        self, part: int, name: str, store: ObjectStore, key: str, checksum: str, stopped: Callable[[], bool]
    ) -> None:
        info = store.head(key)
        if info is None:
            raise ObjectMissing(key, store.uri)
        path = self._root / f"{name}.part"
        try:
            self._reserve(part, info.size, name)

            def write(offset: int, data: bytes) -> None:
                write_at(part, [memoryview(data)], offset)

            fetch_object(store, key, info.size, write, self._pool, self._fetched, stopped=stopped)
            found, _ = file_checksum(str(path))
            if found != checksum:
                raise ChecksumMismatch(key, store.uri, checksum, found)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        with self._names_still():
            path.rename(self._root / self._final(name))

    def _reserve(self, part: int, size: int, name: str) -> None:
        """Give the part its size once that fits; one thread of all processes at a time, so no two take one space."""
        if size > self.bytes_max:
            raise LoaderError(
                f"a shard of {size} bytes does not fit the cache {self._root} of {self.bytes_max} bytes; raise its "
                "bytes_max, or make smaller shards"
            )
        with self._names_still():
            self._evict_for(size, f"{name}.part", part)

    def _require_room(self, part: int, size: int, name: str) -> None:
        """Raise CacheFull before the store is asked for anything, where there is no space."""
        try:
            self._reserve(part, size, name)
        except CacheFull:
            (self._root / f"{name}.part").unlink(missing_ok=True)
            raise

    @contextmanager
    def _names_still(self) -> Iterator[None]:
        """No process frees space or renames meanwhile: a listing could miss a file that is renamed."""
        lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for one listing and some unlinks
            yield
        finally:
            os.close(lock)

    def _evict_for(self, needed: int, own: str, part: int) -> None:
        """Evict until `needed` bytes fit, what is needed latest first, and give them to `part`. Raises CacheFull."""
        os.ftruncate(part, 0)
        entries = [entry for entry in self._entries() if entry[0] != own]
        held = cached = sum(size for _, size, _ in entries)
        if held + needed <= self.bytes_max and allocate(part, needed):
            return
        uses = self._next_uses([entry.partition(".")[0] for entry, _, _ in entries])
        # not planned first and oldest first, then by the next use, latest first
        entries.sort(key=lambda entry: (-uses.get(entry[0].partition(".")[0], 1 << 63), entry[2]))
        in_use: list[Path] = []
        for entry, size, _ in entries:
            if not evict_file(self._root / entry):
                in_use.append(self._root / entry)
                continue
            held -= size
            self._counts["evicted"] += 1
            if held + needed <= self.bytes_max and allocate(part, needed):
                if cached + needed <= self.bytes_max:
                    self._disk_bytes = held + needed
                return
        raise self._full(needed, held, in_use)

    def _full(self, needed: int, held: int, in_use: list[Path]) -> CacheFull:
        """What is so where `needed` bytes do not fit beside `held` ones, which these files have."""
        users = ", ".join(map(str, users_of(in_use)))
        named = f" (by process {users})" if users else ""
        if held + needed > self.bytes_max:
            return CacheFull(
                f"the cache {self._root} has {self.bytes_max} bytes, {held} of them in use{named}, and needs {needed} "
                "for one more shard; raise bytes_max, or lower window_blocks",
                needed,
            )
        self._disk_bytes = held
        disk = os.statvfs(self._root)
        left = f"the disk of the cache {self._root} has {disk.f_bavail * disk.f_frsize} bytes left"
        so = (
            f", beside {held} of shards in use{named}"
            if in_use
            else ", with nothing in the cache that could be evicted"
        )
        return CacheFull(
            f"{left}{so}, and {needed} are needed for one more shard; free space there, or name another folder in "
            f"{DIRECTORY_VARIABLE} or by ShardCache(directory)",
            needed,
            in_use=bool(in_use),
        )

    def _entries(self) -> list[tuple[str, int, float]]:
        """(name, bytes, time of last use) of shards and parts."""
        found: list[tuple[str, int, float]] = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                if entry.name != "lock" and "." in entry.name[1:]:
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append((entry.name, status.st_size, status.st_mtime))
        return found


def _whole_checksum(path: Path) -> str:
    """The checksum of the shard in a file, without the map that may follow it."""
    with path.open("rb") as file:
        start = file.read(8)
        start += file.read(min(int.from_bytes(start, "little"), HEADER_BYTES_MAX))
    try:
        table = parse_blocks(start)
    except FormatError:
        return "damaged"
    return file_checksum(str(path), size_max=None if table is None else table.size)[0]


def _make_private(path: Path) -> None:
    with told(f"the cache {path} cannot be made"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=_PRIVATE)
        status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise LoaderError(
            f"the cache {path} must be a directory of user {os.getuid()} alone (mode 0700); it is mode "
            f"{stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}: remove it, or choose another directory"
        )


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return "00000000"
