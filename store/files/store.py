"""A store in a directory of a local file system: `file://`.

`create` writes a temporary file, syncs it, and links it to its final name. `link` fails where the
name is taken, so it is both the atomic publication and the race's referee; it needs a file system
with hard links. A process killed half-way leaves a file under `.tmp`, which no listing shows and
which a later `open` removes. Directories that are symbolic links are not listed, and nothing is
written or deleted through them: who may write there could lead that to the folders of others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import io
import itertools
import os
import pathlib
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence

from headrace.store import (
    KEY_BYTES_MAX,
    RESERVED_SEGMENT,
    WHOLE_BYTES_MAX,
    Buffer,
    Capabilities,
    Decide,
    FolderRefused,
    InvalidKey,
    InvalidUri,
    ObjectDraft,
    ObjectInfo,
    ObjectMissing,
    StoreError,
    StoreRefused,
    StoreStalled,
    StoreUnavailable,
    validate_key,
)
from headrace.store.files import disk
from headrace.store.files.scratch import Scratch, ScratchDraft

#: A temporary file younger than this is left alone: its writer may live in another container or on another host.
TEMP_AGE_MIN_S = 3600
#: For one writer of an object to let the next one in; whoever is frozen while it writes keeps the others out.
LOCK_S_MAX = 10.0
#: Who may open the lock may hold it for ever: the owner and its group.
LOCK_MODE = 0o660
_LOCK_LOOK_S = 0.01
#: Linux takes no more buffers in one writev (UIO_MAXIOV).
WRITEV_PARTS_MAX = 1024

_TEMP_NAME = re.compile(r"(?P<boot>[0-9a-f]{8})\.(?P<pid>\d+)\.\d+\.[0-9a-f]+\.tmp")
#: Linux alone leads from a descriptor to what stands in its folder; elsewhere a dataset is read, and its path will do.
_HOLDS = "O_PATH" in vars(os)
_FOLDER = (os.O_PATH if _HOLDS else os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: What no waiting mends.
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP, errno.ENXIO)
_REMEDIES = {
    errno.ENOSPC: "free space on the disk, or point the dataset at a larger one",
    errno.EDQUOT: "raise the disk quota, or free space under it",
    errno.EACCES: "give this user the right to read and write there",
    errno.EPERM: "the user lacks the right, or the file system has no hard links: choose ext4, xfs, btrfs or NFS",
    errno.EOPNOTSUPP: "the file system has no hard links: choose ext4, xfs, btrfs or NFS",
    errno.EROFS: "the file system is mounted read-only: mount it for writing",
    errno.ENXIO: "a pipe, a socket or a device stands there: delete it, and restore the object from a copy",
    errno.EIO: "the device failed: look into the kernel log, then try again",
    errno.EMFILE: "too many open files: raise `ulimit -n`",
    errno.ENFILE: "too many open files on this host: raise fs.file-max",
    errno.EXDEV: "parts of the store lie on different file systems: keep it on one",
    errno.ENOTDIR: "an object stands where a directory is needed: choose another place for the dataset",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one for the dataset",
}


class FileStore:
    """An `ObjectStore` whose objects are the files under one directory.

    Construct it through `open_store`. The directory is made at the first write.
    """

    __slots__ = ("_counter", "_durable", "_root", "_temps")

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.path.expanduser(root))
        self._temps = os.path.join(self._root, RESERVED_SEGMENT)
        self._counter = itertools.count()
        #: Directories that this process knows to survive a power failure, each with all of its parents.
        self._durable: set[str] = set()
        if os.path.exists(self._root) and not os.path.isdir(self._root):
            raise InvalidUri(f"store {self._root!r} is a file, not a directory; name the directory of the dataset")
        self._remove_leftovers()

    def __repr__(self) -> str:
        return f"FileStore({self._root!r})"

    @property
    def uri(self) -> str:
        """The `file:///` URI of the directory."""
        return pathlib.Path(self._root).as_uri()

    @property
    def is_remote(self) -> bool:
        """See `ObjectStore.is_remote`."""
        return False

    @property
    def capabilities(self) -> Capabilities:
        """See `ObjectStore.capabilities`."""
        return Capabilities(draft=self.draft, scratch_folder=self.scratch_folder)

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See `ObjectStore.create`."""
        validate_key(key)
        try:
            with self._place(key) as path:
                if os.path.lexists(path):
                    return self._refuse(key, path)
                with self._temporary() as (descriptor, temp):
                    _write_all(descriptor, parts)
                    disk.sync(descriptor)
                    return self._link(temp, key, path)
        except OSError as error:
            raise self._unavailable("create", key, error, size=_size_of(parts)) from error

    @contextlib.contextmanager
    def draft(self) -> Iterator[ObjectDraft]:
        """A temporary file that becomes an object by `link`: see `headrace.store.files.scratch`."""
        try:
            with self._temporary() as (descriptor, temp):
                scratch = Scratch(os.dup(descriptor))

                def create(key: str) -> bool:
                    validate_key(key)
                    try:
                        disk.sync(descriptor)
                        with self._place(key) as path:
                            return self._link(temp, key, path)
                    except OSError as error:
                        raise self._unavailable("create", key, error, size=scratch.size) from error

                complain = functools.partial(self._unavailable, "create", "an object")
                yield ScratchDraft(scratch, create, complain, stays=True)
        except OSError as error:
            raise self._unavailable("create", "an object", error) from error

    def scratch_folder(self) -> str:
        """Where `headrace.store.files.scratch` may put files. Raises OSError where it cannot be made."""
        with self._place(f"{RESERVED_SEGMENT}/"):
            return self._temps

    def replace(self, key: str, parts: Sequence[Buffer]) -> None:
        """See `ObjectStore.replace`."""
        validate_key(key)
        try:
            with self._place(key) as path, self._temporary() as (descriptor, temp):
                _write_all(descriptor, parts)
                disk.sync(descriptor)
                disk.rename(temp, path)
        except OSError as error:
            raise self._unavailable("replace", key, error, size=_size_of(parts)) from error

    def update(self, key: str, decide: Decide) -> bool:
        """See `ObjectStore.update`. Writers take turns by a lock, which the kernel takes from whoever dies."""
        path = self._path(key)
        try:
            with self._locked(key):
                try:
                    with open(path, "rb", buffering=0, opener=_open_file) as file:
                        standing: bytes | None = self._whole(file, key)
                except FileNotFoundError:
                    standing = None
                parts = decide(standing)
                if parts is not None:
                    self.replace(key, parts)
                return parts is not None
        except OSError as error:
            raise self._unavailable("update", key, error) from error

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        deadline = time.monotonic() + LOCK_S_MAX
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._place(f"{RESERVED_SEGMENT}/update.lock") as path:
            descriptor = os.open(path, flags, LOCK_MODE)
        try:
            found = os.fstat(descriptor)
            if found.st_uid == os.geteuid() and found.st_mode & 0o007:
                os.fchmod(descriptor, found.st_mode & 0o770)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise StoreStalled(
                            f"{self.uri}: cannot update {key!r}: another process has been writing it for "
                            f"{LOCK_S_MAX:.0f} s; end that one if it is frozen, then try again"
                        ) from error
                time.sleep(_LOCK_LOOK_S)
            yield
        finally:
            os.close(descriptor)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError(f"get {key!r}: offset {offset} and length {length} must not be negative")
        try:
            # Unbuffered: a big object is read straight into the bytes that are returned.
            with open(self._path(key), "rb", buffering=0, opener=_open_file) as file:
                if offset:
                    file.seek(offset)
                return self._whole(file, key, offset) if length is None else _read(file, length)
        except OSError as error:
            if error.errno in _ABSENT:
                raise ObjectMissing(key, self.uri) from error
            raise self._unavailable("get", key, error) from error

    def _whole(self, file: io.FileIO, key: str, offset: int = 0) -> bytes:
        """What stands from `offset` on. Raises StoreRefused for more than WHOLE_BYTES_MAX: a file may have holes."""
        size = os.fstat(file.fileno()).st_size - offset
        if size > WHOLE_BYTES_MAX:
            raise StoreRefused(
                f"{self.uri}: {key!r} has more than {WHOLE_BYTES_MAX:,} bytes, and no object of ours that is read "
                "whole has so many: see what else writes there, and restore it from a copy"
            )
        return _read(file, size)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        try:
            status = os.stat(self._path(key))
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise self._unavailable("head", key, error) from error
        return _info(key, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. One directory's names are held at a time, and of each of its parents."""
        if ".." in prefix.split("/") or prefix.startswith("/") or "\0" in prefix:
            raise InvalidKey(f"prefix {prefix!r} cannot start a key; prefixes look like 'shards/'")
        folder, _, _ = prefix.rpartition("/")
        return self._walk(folder + "/" if folder else "", prefix, after)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        validate_key(key)
        try:
            with self._place(key, make=False) as path:
                os.unlink(path)
                disk.sync_folder(os.path.dirname(path))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise self._unavailable("delete", key, error) from error

    def open_local(self, key: str) -> pathlib.Path | None:
        """See `ObjectStore.open_local`."""
        if self.head(key) is None:
            raise ObjectMissing(key, self.uri)
        return pathlib.Path(self._path(key))

    def _path(self, key: str) -> str:
        validate_key(key)
        return os.path.join(self._root, key)

    def _link(self, temp: str, key: str, path: str) -> bool:
        """Give a synced temporary file its name, durably, unless another has it."""
        try:
            disk.link(temp, path)
        except FileExistsError:
            return self._refuse(key, path)
        return True

    def _refuse(self, key: str, path: str) -> bool:
        if os.path.isdir(path):
            raise StoreUnavailable(
                f"{self.uri}: cannot create {key!r}: other objects lie below it; a key must not be another's folder"
            )
        # The winner may not have synced the directory yet, and our caller may rely on the object from now on.
        disk.sync_folder(os.path.dirname(path))
        return False

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `folder` ("" or "a/b/"), in order of their keys."""
        within = [(folder, iter(self._names(folder)))]
        while within:
            folder, names = within[-1]
            if (name := next(names, None)) is None:
                within.pop()
                continue
            key = folder + name
            if name.endswith("/"):
                may_match = key.startswith(prefix) or prefix.startswith(key)
                below = key > after or after.startswith(key)
                # A folder whose name is as long as that of an object may be has none in it.
                if may_match and below and key != RESERVED_SEGMENT + "/" and len(os.fsencode(key)) < KEY_BYTES_MAX:
                    within.append((key, iter(self._names(key))))
            elif key > after and key.startswith(prefix) and (info := self._listed(key)) is not None:
                yield info

    def _listed(self, key: str) -> ObjectInfo | None:
        try:
            return self.head(key)
        except InvalidKey:
            return None  # a file that someone else put there under a name that is no key
        except StoreRefused as error:
            raise FolderRefused(str(error), key[: key.rfind("/") + 1]) from error

    def _names(self, folder: str) -> Sequence[str]:
        """Return a directory's entries in key order; directories end in "/", since that is how their keys sort."""
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                return sorted(e.name + "/" if e.is_dir(follow_symlinks=False) else e.name for e in entries)
        except OSError as error:
            if error.errno in _ABSENT:
                return ()
            refused = self._unavailable("list", folder, error)
            if isinstance(refused, StoreRefused):
                raise FolderRefused(str(refused), folder) from error
            raise refused from error

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[int, str]]:
        """A temporary file's descriptor and path; it is gone afterwards, unless it was renamed."""
        name = f"{_boot_id()}.{os.getpid()}.{next(self._counter)}.{secrets.token_hex(4)}.tmp"
        with self._place(f"{RESERVED_SEGMENT}/{name}") as temp:
            descriptor = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                yield descriptor, temp
            finally:
                os.close(descriptor)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temp)

    @contextlib.contextmanager
    def _place(self, key: str, *, make: bool = True) -> Iterator[str]:
        """The path of an object, by way of a folder that is held: nobody puts another in its place meanwhile.

        The folder is made first, unless told otherwise. Raises StoreRefused where a link leads to it, OSError.
        """
        folder, _, name = key.rpartition("/")
        if make:
            self._make_root(self._root)
        descriptor = os.open(self._root, _FOLDER)
        try:
            at = self._root
            for part in filter(None, folder.split("/")):
                at, outer = os.path.join(at, part), descriptor
                descriptor = self._enter(outer, part, at, make=make)
                os.close(outer)
            yield os.path.join(_held(descriptor, at), name)
        finally:
            os.close(descriptor)

    def _enter(self, outer: int, part: str, at: str, *, make: bool) -> int:
        """Open a folder in another; make it where it is missing, durably."""
        try:
            found = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=outer)
            self._durable.discard(at)
            found = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except NotADirectoryError as error:
            if stat.S_ISLNK(os.stat(part, dir_fd=outer, follow_symlinks=False).st_mode):
                raise StoreRefused(
                    f"{self.uri}: {os.path.relpath(at, self._root)!r} is a link, and nothing is written or deleted "
                    "through links: put the folder itself in its place"
                ) from error
            raise
        if make and at not in self._durable:
            # Where it stood already, too: another process may have made it and died before its sync.
            disk.sync_folder(_held(outer, os.path.dirname(at)))
            self._durable.add(at)
        return found

    def _make_root(self, path: str) -> None:
        """Make the root and its parents, each durable in its parent, down from the first that is not known to be."""
        if path in self._durable and os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if os.path.isdir(parent):
            # Above the root only the parent is ours to sync: the rest stood before we came.
            self._durable.add(parent)
        else:
            self._make_root(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        with contextlib.suppress(PermissionError):
            disk.sync_folder(parent)
        self._durable.add(path)

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left under `.tmp`; a failure to do so harms nothing."""
        with (
            contextlib.suppress(OSError, StoreRefused),
            self._place(f"{RESERVED_SEGMENT}/", make=False) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                match = _TEMP_NAME.fullmatch(entry.name)
                if match is None or time.time() - entry.stat(follow_symlinks=False).st_mtime < TEMP_AGE_MIN_S:
                    continue
                if match["boot"] == _boot_id() and os.path.exists(f"/proc/{match['pid']}"):
                    continue
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)

    def _unavailable(self, verb: str, key: str, error: OSError, size: int | None = None) -> StoreError:
        amount = "" if size is None else f" ({size} bytes)"
        remedy = _REMEDIES.get(error.errno or 0, "see that the directory can be read and written, then try again")
        why = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            why += self._room()
        said = f"{self.uri}: cannot {verb} {key!r}{amount}: {why}; {remedy}"
        if error.errno in _DENIED:
            return StoreRefused(said)
        return StoreStalled(said) if error.errno in _FULL else StoreUnavailable(said)

    def _room(self) -> str:
        """What is left on the disk, in words: bytes, or files where those have run out."""
        try:
            room = os.statvfs(self._root)
        except OSError:
            return ""
        if room.f_files and not room.f_favail:
            return " (no more files: the file system has no free inode)"
        return f" ({room.f_bavail * room.f_frsize} bytes are free)"


def _held(descriptor: int, path: str) -> str:
    """The path of an open folder that leads to it whatever is put in its place, where there is such a one."""
    return f"/proc/self/fd/{descriptor}" if _HOLDS else path


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}")


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(8)
    except OSError:
        return "00000000"


def _write_all(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write every byte of the parts; the kernel may take fewer than asked (at most 2 GiB a call)."""
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + WRITEV_PARTS_MAX])
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]


def _size_of(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _open_file(path: str, flags: int) -> int:
    """An opener of files alone: a pipe has no end, and whoever opens one waits. `open` itself refuses a folder."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        os.close(descriptor)
        raise OSError(errno.ENXIO, "it is no file")
    return descriptor


def _read(file: io.FileIO, length: int) -> bytes:
    """Read `length` bytes; fewer only where the file ends."""
    # A caller may ask for more than there is, and must not be given memory for it.
    length = min(length, max(os.fstat(file.fileno()).st_size - file.tell(), 0))
    chunks: list[bytes] = []
    while length > 0 and (chunk := file.read(length)):
        chunks.append(chunk)
        length -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
