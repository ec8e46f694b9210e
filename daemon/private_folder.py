"""Folders that only this user may enter, in which the sockets of this host's processes lie.

A UNIX socket is reached through its folder: who may not enter that may not connect. So a folder of sockets belongs to
this user, its mode is 0700, and nobody else can put another in its place: every folder above it belongs to this user or
to root, and is written by nobody else unless it is sticky, as /tmp is. All of this is looked at each time, by lstat.

The usual folder is `HEADRACE_RUNTIME_DIR`, else `headrace` in `XDG_RUNTIME_DIR`, else `/tmp/headrace-UID`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

VARIABLE = "HEADRACE_RUNTIME_DIR"
#: Bytes of a socket's path, without the zero at its end (unix(7)).
SOCKET_BYTES_MAX = 107
#: Symbolic links that are followed on the way to a folder.
LINKS_MAX = 40
#: Names that are tried for a folder of one process, of which others sweep away what nobody holds.
NAMES_MAX = 16
_PRIVATE = 0o700
_OTHERS_WRITE = 0o022
_CREDENTIALS = struct.Struct("3i")
#: Folders with long names, each with a descriptor by which it has a short one.
_held: dict[str, int] = {}


class NotPrivateError(OSError):
    """Others may enter this folder, or put another in its place."""


def runtime_folder() -> Path:
    """Where this user's sockets lie; it need not be there yet."""
    given = os.environ.get(VARIABLE, "")
    if given:
        return Path(os.path.abspath(given))
    login = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):
        # `su` and `sudo` may leave the variable as another user's login set it.
        if os.path.isabs(login) and os.lstat(login).st_uid == os.geteuid():
            return Path(login) / "headrace"
    return Path(f"/tmp/headrace-{os.geteuid()}")  # noqa: S108 - what is found there is looked at before it is used


def make_private(folder: Path) -> Path:
    """Make a folder for this user alone, if it is not there, and look at it. Raises OSError, NotPrivateError too."""
    with suppress(FileExistsError):
        os.mkdir(folder, _PRIVATE)
    check_private(folder)
    return folder


def check_private(folder: Path) -> None:
    """Raise NotPrivateError unless this user alone may enter the folder, OSError where it cannot be looked at."""
    if not folder.is_absolute():
        raise NotPrivateError(f"{folder} is no whole path")
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivateError(f"{folder} is no folder; name another with {VARIABLE}")
    if found.st_uid != os.geteuid():
        raise NotPrivateError(
            f"{folder} belongs to user {found.st_uid}, and this is user {os.geteuid()}: "
            f"act as its owner, or name a folder of your own with {VARIABLE}"
        )
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivateError(f"{folder} has mode {mode:04o}, so that others may enter it: give it mode 0700")
    _check_way(folder.parent, LINKS_MAX)


def _check_way(folder: Path, links: int) -> None:
    """Raise NotPrivateError where somebody else could put another folder in the place of this one."""
    for step in (*reversed(folder.parents), folder):
        found = os.lstat(step)
        if found.st_uid not in (0, os.geteuid()):
            raise NotPrivateError(f"{step} belongs to user {found.st_uid}: no folder below it is private")
        if stat.S_ISLNK(found.st_mode):
            if not links:
                raise NotPrivateError(f"{folder}: more than {LINKS_MAX} symbolic links on the way")
            # as it stands: a `..` leads up from where a link before it leads to
            _check_way(step.parent / os.readlink(step), links - 1)
        elif found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise NotPrivateError(f"others may write to {step}: no folder below it is private")


def check_socket(path: Path) -> None:
    """Raise NotPrivateError unless only a process of this user can have put this socket there, OSError if it is not."""
    check_private(path.parent)
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} is no socket of user {os.geteuid()}")


def short_path(path: Path) -> str:
    """A path by which the kernel takes a socket: one of more than SOCKET_BYTES_MAX bytes goes through a descriptor.

    It is good in this process alone. Raises OSError.
    """
    if len(os.fsencode(path)) <= SOCKET_BYTES_MAX:
        return str(path)
    folder = str(path.parent)
    there = os.stat(folder)
    held = _held.get(folder)
    if held is None or (os.fstat(held).st_dev, os.fstat(held).st_ino) != (there.st_dev, there.st_ino):
        if held is not None:
            os.close(held)
        held = _held[folder] = os.open(folder, os.O_PATH)
    found = f"/proc/self/fd/{held}/{path.name}"
    if len(os.fsencode(found)) > SOCKET_BYTES_MAX:
        raise OSError(f"{path.name}: a socket's name has at most {SOCKET_BYTES_MAX - 24} bytes; choose a shorter one")
    return found


def claim(path: Path) -> int:
    """Take the place of a socket for this process, and clear away what a dead one left there.

    The place is held until the descriptor that this returns is closed. Raises BlockingIOError where another process
    holds it, and OSError.
    """
    make_private(path.parent)
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            os.unlink(path)
    except BaseException:
        os.close(lock)
        raise
    return lock


def peer_user(connection: socket.socket) -> int:
    """The user that the process at the other end of a UNIX socket ran as when it connected, or listened."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


class Nook:
    """A private folder of one process, in the usual place. `close` removes it; a dead process's goes with the next."""

    def __init__(self, kind: str) -> None:
        """Raises OSError, NotPrivateError too."""
        home = make_private(runtime_folder())
        _sweep(home, kind)
        self._held: int | None = None
        for _ in range(NAMES_MAX):
            self.path = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=home))
            with suppress(FileNotFoundError, BlockingIOError):  # somebody sweeps: another name
                self._held = _held_folder(self.path)
                return
        raise OSError(f"no folder could be made in {home}: it is swept again and again")

    def close(self) -> None:
        """Remove it, with what is in it."""
        if self._held is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)
            self._held = None


def _held_folder(path: Path) -> int:
    """A descriptor that holds a folder. Raises BlockingIOError where another process does, OSError if it is gone."""
    held = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.lstat(path).st_ino != os.fstat(held).st_ino:
            raise FileNotFoundError(path)
    except BaseException:
        os.close(held)
        raise
    return held


def _sweep(home: Path, kind: str) -> None:
    """Remove the folders of dead processes."""
    for path in home.glob(f"{kind}-*"):
        with suppress(OSError):
            held = _held_folder(path)
            try:
                shutil.rmtree(path)
            finally:
                os.close(held)


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
