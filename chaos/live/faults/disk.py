"""A disk that can be filled at will: a tmpfs whose limit is lowered to what is used, and raised again.

Every byte more is then refused with ENOSPC by the kernel, as by a full disk, and no ballast has to be written. Only
root may mount, in this or in a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

from headrace.client import CliError

_MS_REMOUNT = 32
#: The tmpfs may grow to this share of the machine's memory while it is not full.
_ROOM = "50%"
#: Set in a process that was started again in a namespace of its own.
_INSIDE = "HEADRACE_CHAOS_NAMESPACE"


class Disk:
    """A tmpfs over a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._mount(0, _ROOM)

    def fill(self) -> None:
        """Leave no byte."""
        facts = os.statvfs(self._folder)
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        self._mount(_MS_REMOUNT, str(max(used, facts.f_frsize)))

    def free(self) -> None:
        """Give the room back."""
        self._mount(_MS_REMOUNT, _ROOM)

    def close(self, keep: bool) -> None:
        """Unmount it; what lies on it is moved below the folder first if it is to be kept."""
        saved = self._folder.with_name(self._folder.name + ".saved")
        if keep:
            shutil.copytree(self._folder, saved)
        if _libc().umount2(os.fsencode(self._folder), 2):
            raise CliError(f"cannot unmount {self._folder}: {os.strerror(ctypes.get_errno())}")
        if keep:
            self._folder.rmdir()
            saved.rename(self._folder)

    def _mount(self, flags: int, size: str) -> None:
        options = f"size={size},mode=755".encode()
        if _libc().mount(b"headrace-chaos", os.fsencode(self._folder), b"tmpfs", flags, options):
            raise CliError(
                f"cannot mount a tmpfs on {self._folder} ({os.strerror(ctypes.get_errno())}): the fault full_disk "
                "needs root, or the right to make user namespaces"
            )


def enter_namespace() -> None:
    """Where this user may not mount, start this command again in a user namespace in which it may."""
    if os.geteuid() == 0 or _INSIDE in os.environ:
        return
    wrapper = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which(wrapper[0]) is None or subprocess.call([*wrapper, "true"], stderr=subprocess.DEVNULL):  # noqa: S603
        raise CliError("the fault full_disk mounts a tmpfs: run as root, or where `unshare -Urm true` succeeds")
    os.environ[_INSIDE] = "1"
    os.execvp(wrapper[0], [*wrapper, *sys.orig_argv])  # noqa: S606 - itself, in a namespace


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
