"""To which worker a socket of this host belongs: the kernel's table of sockets, open files, and a mark.

A process names its worker in a variable of its environment, which its tasks inherit.
"""

from __future__ import annotations

import os
import pathlib

_PROC = pathlib.Path("/proc")
#: Columns of /proc/net/{tcp,udp}: the local address, and the inode (proc_net_tcp(5)).
_LOCAL, _INODE = 1, 9


def owner_of(protocol: str, port: int, mark: str) -> str:
    """The value of `mark` in the process that has a socket ("tcp" or "udp") on this local port; "" if none has."""
    inodes = {inode for name in (protocol, f"{protocol}6") for inode in _inodes(name, port)}
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    prefix = f"{mark}=".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            value = next((item[len(prefix) :] for item in variables if item.startswith(prefix)), b"")
            if value and any(_target(entry / "fd" / name) in wanted for name in os.listdir(entry / "fd")):
                return value.decode()
        except OSError:
            continue
    return ""


def _inodes(table: str, port: int) -> list[str]:
    try:
        rows = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [row.split() for row in rows]
    return [row[_INODE] for row in fields if int(row[_LOCAL].rpartition(":")[2], 16) == port and row[_INODE] != "0"]


def _target(link: pathlib.Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
