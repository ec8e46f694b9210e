"""To which worker a socket of this host belongs: the kernel's table of sockets, open files, and a mark.

A process names its worker in a variable of its environment, which its tasks inherit.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

_PROC = pathlib.Path("/proc")
#: Columns of /proc/net/{tcp,udp} (proc_net_tcp(5)): the local and the remote address, the state, the user, the inode.
_LOCAL, _REMOTE, _STATE, _USER, _INODE = 1, 2, 3, 7, 9
#: What stands before an IPv4 address in the tables of IPv6.
_MAPPED = f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
_LISTEN = "0A"
#: What the kernel is asked of UNIX sockets, and how it answers (sock_diag(7)).
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_SHOW_FILE, _SHOW_PEER, _FILE, _PEER = 2, 4, 1, 2
_HEADER, _ASKED, _SAID, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), "=BBBxI8x", "=HH"
_EVERY_STATE = 0xFFFFFFFF
_LISTENS = 10
_ANSWER_BYTES = 1 << 16
#: Seconds that the kernel has to answer.
_KERNEL_S = 5.0


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


def users_of(protocol: str, end: tuple[str, int], other: tuple[str, int] | None = None) -> set[int]:
    """The users whose sockets ("tcp" or "udp") have this local address on this host, by the kernel's table.

    With `other` those alone that are connected to it. A socket that nobody has open any more is nobody's.
    """
    found: set[int] = set()
    for name in (protocol, f"{protocol}6"):
        for row in _rows(name):
            here = row[_LOCAL] in _written(end, any_host=other is None)
            if here and (other is None or row[_REMOTE] in _written(other)) and row[_INODE] != "0":
                found.add(int(row[_USER]))
    return found


def _written(end: tuple[str, int], *, any_host: bool = False) -> set[str]:
    """An IPv4 address and port as the kernel's tables have them; `any_host`: or a socket that takes any address."""
    host, port = end
    word = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}"
    words = {word, f"0000000000000000{_MAPPED}{word}"} | ({"0" * 8, "0" * 32} if any_host else set())
    return {f"{item}:{port:04X}" for item in words}


def callers(port: int) -> list[int]:
    """The processes that have a TCP socket which is connected to this remote port, on whatever host."""
    rows = [row for name in ("tcp", "tcp6") for row in _rows(name)]
    return _open_in({row[_INODE] for row in rows if _port(row[_REMOTE]) == port and row[_INODE] != "0"})


@dataclass(frozen=True, slots=True)
class _UnixSocket:
    """One UNIX socket of this host: `file` is the inode of the socket's file, `peer` that of the other end's socket."""

    inode: int
    listens: bool
    file: int = 0
    peer: int = 0


def holders_of_socket(path: str) -> list[int]:
    """The processes that listen at the UNIX socket with this path."""
    return _open_in({str(item.inode) for item in _at(path) if item.listens})


def callers_of_socket(path: str) -> list[int]:
    """The processes that are connected to the UNIX socket with this path."""
    return _open_in({str(item.peer) for item in _at(path) if not item.listens and item.peer})


def _at(path: str) -> list[_UnixSocket]:
    """The sockets behind a path: the one that listens, and one for each that is connected to it."""
    try:
        file = os.stat(path).st_ino
    except OSError:
        return []
    return [item for item in _unix_sockets() if item.file == file]


def _unix_sockets() -> Iterator[_UnixSocket]:
    """Every UNIX socket of this network namespace, as the kernel tells it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_KERNEL_S)
        asked = _ASKED.pack(socket.AF_UNIX, 0, 0, _EVERY_STATE, 0, _SHOW_FILE | _SHOW_PEER, 0, 0)
        kernel.send(_HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + asked)
        while True:
            answer = kernel.recv(_ANSWER_BYTES)
            while len(answer) >= _HEADER.size:
                size, kind, _, _, _ = _HEADER.unpack_from(answer)
                if kind in (_DONE, _ERROR) or size < _HEADER.size:
                    return
                yield _unix_socket(answer[_HEADER.size : size])
                answer = answer[_aligned(size) :]


def _unix_socket(said: bytes) -> _UnixSocket:
    _, _, state, inode = struct.unpack_from(_SAID, said)
    found = {_FILE: 0, _PEER: 0}
    at = struct.calcsize(_SAID)
    while at + 4 <= len(said):
        size, kind = struct.unpack_from(_ATTRIBUTE, said, at)
        if size < 4:
            break
        if kind in found and size >= 8:
            (found[kind],) = struct.unpack_from("=I", said, at + 4)
        at += _aligned(size)
    return _UnixSocket(inode, state == _LISTENS, found[_FILE], found[_PEER])


def _aligned(size: int) -> int:
    return (size + 3) & ~3


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
