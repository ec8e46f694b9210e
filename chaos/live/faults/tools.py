"""Faults that are not signals: a disk that is full, a network and a store that misbehave. Each begins, and is ended.

A disk that can be filled at will: a tmpfs whose limit is lowered to what is used, and raised again. Every byte more
is then refused with ENOSPC by the kernel, as by a full disk, and no ballast has to be written. Only root may mount,
in this or in a user namespace.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.chaos.gates import (
    Affected,
    Impairment,
    NetworkFault,
    NetworkGates,
    NetworkNamespaces,
    S3Fault as StoreFault,
    S3Proxy,
    Trouble,
    Way,
)
from headrace.chaos.live.scenario import NETWORK, STORE, Kind, Planned
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


_TROUBLES = {
    Kind.STORE_ERRORS: (StoreFault.BUSY, ""),
    Kind.STORE_SLOW: (StoreFault.SLOW, ""),
    Kind.STORE_OUTAGE: (StoreFault.GONE, ""),
    Kind.STORE_TORN: (StoreFault.TORN_UPLOAD, "PUT"),
    Kind.STORE_LOST_ANSWERS: (StoreFault.LOST_ANSWER, "PUT"),
}
_WAYS = {"links": Way.LINK, "control": Way.CONTROL}
#: The kinds that a tool makes.
TOOLED = frozenset({Kind.FULL_DISK, Kind.UNPLUG}) | NETWORK | STORE


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that goes on: what it affects, in words, and what ends it. `affected` is counted as it goes on."""

    victims: tuple[str, ...]
    end: Callable[[], None]
    affected: Counter[Affected] = field(default_factory=Counter[Affected])


@dataclass(frozen=True, slots=True)
class Tools:
    """What stands ready for one run. `workers` and `controllers` are those of its own cluster, by name."""

    disk: Disk | None = None
    gates: NetworkGates | None = None
    namespaces: NetworkNamespaces | None = None
    store: S3Proxy | None = None
    workers: Sequence[str] = ()
    controllers: Sequence[str] = ()

    def begin(self, planned: Planned) -> Begun:
        """Begin one of the faults TOOLED. Only those that the scenario has are asked for, and their tools are there."""
        if planned.kind is Kind.FULL_DISK:
            return self._fill()
        if planned.kind is Kind.UNPLUG:
            return self._unplug(planned)
        return self._trouble(planned) if planned.kind in STORE else self._impairment(planned)

    def _fill(self) -> Begun:
        disk = self.disk
        assert disk is not None
        disk.fill()
        return Begun(("the disk of the output",), disk.free)

    def _unplug(self, planned: Planned) -> Begun:
        namespaces = self.namespaces
        assert namespaces is not None
        name = self.workers[int(planned.pick * len(self.workers))]
        namespaces.unplug(name)
        return Begun((f"the cable of worker {name}",), lambda: namespaces.plug(name))

    def _trouble(self, planned: Planned) -> Begun:
        store = self.store
        assert store is not None
        fault, method = _TROUBLES[planned.kind]
        trouble = Trouble(fault, planned.share, method, planned.delay_s)
        store.begin(trouble)
        return Begun((f"{planned.share:.0%} of {method or 'all'} requests",), lambda: store.end(trouble))

    def _impairment(self, planned: Planned) -> Begun:
        gates = self.gates
        assert gates is not None
        way = _WAYS.get(planned.target)
        ends: tuple[str, ...] = ()
        if way is None:
            names = self.workers if planned.target == "worker" else self.controllers
            ends = (names[int(planned.pick * len(names))],)
        impairment = Impairment(NetworkFault(planned.kind.value), planned.share, planned.delay_s, way, ends)
        affected = gates.begin(impairment)
        what = " ".join((planned.target, *ends))
        said = what if planned.share == 1 else f"{planned.share:.1%} of {what}"
        return Begun((said,), lambda: gates.end(affected), affected)
