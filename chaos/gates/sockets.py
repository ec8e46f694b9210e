"""To which worker a socket of this host belongs: the kernel's table of sockets, open files, and a mark.

A process names its worker in a variable of its environment, which its tasks inherit.
"""

from __future__ import annotations

import contextlib
import os
import pathlib

_PROC = pathlib.Path("/proc")
#: Columns of /proc/net/{tcp,udp}: the local and the remote address, the state, and the inode (proc_net_tcp(5)).
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9
_LISTEN = "0A"


def owner_of(protocol: str, port: int, mark: str) -> str:
    """The value of `mark` in the process that has a socket ("tcp" or "udp") on this local port; "" if none has."""
    prefix = f"{mark}=".encode()
    for pid in holders(protocol, port, listening=False):
        try:
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        value = next((item[len(prefix) :] for item in variables if item.startswith(prefix)), b"")
        if value:
            return value.decode()
    return ""


def holders(protocol: str, port: int, *, listening: bool = True) -> list[int]:
    """The processes that have a socket on this local port open; for TCP those that listen there, or any."""
    return _open_in({inode for name in (protocol, f"{protocol}6") for inode in _inodes(name, port, listening)})


def callers(port: int) -> list[int]:
    """The processes that have a TCP socket which is connected to this remote port, on whatever host."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(name)]
    return _open_in({row[_INODE] for row in rows if _port(row[_REMOTE]) == port and row[_INODE] != "0"})


def _open_in(inodes: set[str]) -> list[int]:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    found: list[int] = []
    for entry in _PROC.iterdir() if wanted else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(_target(entry / "fd" / name) in wanted for name in os.listdir(entry / "fd")):
                    found.append(int(entry.name))
    return found


def _inodes(table: str, port: int, listening: bool) -> list[str]:
    fields = _rows(table)
    if listening and table.startswith("tcp"):
        fields = [row for row in fields if row[_STATE] == _LISTEN]
    return [row[_INODE] for row in fields if _port(row[_LOCAL]) == port and row[_INODE] != "0"]


def _rows(table: str) -> list[list[str]]:
    try:
        rows = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    return [row.split() for row in rows]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def _target(link: pathlib.Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
