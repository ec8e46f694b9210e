"""What a member of a cluster knows of it, and the addresses of its host. `join` makes one."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.cluster import Credentials


class JoinError(Exception):
    """The node did not become a member; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What a member knows of its cluster and itself."""

    name: str
    controllers: tuple[str, ...]
    credentials: Credentials


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: In fib_trie a local address is a leaf with this line below it (net/ipv4/fib_trie.c).
_LOCAL = "/32 host LOCAL"
_LEAF = re.compile(r"\|-- (\S+)")
#: The scope of an address that is good beyond its link, in if_inet6 (include/net/ipv6.h).
_GLOBAL_SCOPE = "00"
_PORT_MAX, _PORT_DIGITS = 65_535, 5
#: Characters of an address that an error shows.
_SHOWN = 80
#: Addresses that a worker names at most.
ADDRESSES_MAX = 16


def host_id() -> str:
    """What is equal for two processes that share a boot and a network, and for no others."""
    return f"{_BOOT_ID.read_text().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def own_addresses() -> list[str]:
    """This host's addresses, IPv4 first; loopback only where there is nothing else."""
    found = [*parse_fib_trie(_read("/proc/net/fib_trie")), *parse_if_inet6(_read("/proc/net/if_inet6"))]
    outward = [text for text in found if not ipaddress.ip_address(text).is_loopback]
    return outward[:ADDRESSES_MAX] or ["127.0.0.1"]


def join_address(host: str, port: int) -> str:
    """`10.0.0.1:7`, or `[fd00::1]:7`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """The inverse of `join_address`, of an address in numbers. Raises ValueError for anything else."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or len(port) > _PORT_DIGITS or not 0 < int(port) <= _PORT_MAX:
        raise ValueError(f"{text[:_SHOWN]!r} ends in no port")
    bare = str(ipaddress.ip_address(host.removeprefix("[").removesuffix("]")))
    # a scope, behind %, may be any text, which would be looked up as a name
    if "%" in bare or join_address(bare, int(port)) != text:
        raise ValueError(f"{text[:_SHOWN]!r} is no address as host:port")
    return bare, int(port)


def parse_fib_trie(text: str) -> list[str]:
    """The local IPv4 addresses in /proc/net/fib_trie, in its order and each once."""
    found: dict[str, None] = {}
    leaf = ""
    for line in text.splitlines():
        if match := _LEAF.search(line):
            leaf = match[1]
        elif _LOCAL in line:
            found[leaf] = None
    return list(found)


def parse_if_inet6(text: str) -> list[str]:
    """The IPv6 addresses in /proc/net/if_inet6 that are good beyond their link."""
    rows = (line.split() for line in text.splitlines())
    return [
        str(ipaddress.ip_address(bytes.fromhex(row[0]))) for row in rows if len(row) > 3 and row[3] == _GLOBAL_SCOPE
    ]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
