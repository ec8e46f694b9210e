"""Connections to a server that may mean ill: each answer has a deadline, and a redirect leads to no host of our own.

A limit between two bytes bounds no answer: one byte each second, interim answers or ends of chunks without end keep a
reader for ever. So the sockets have a deadline, at which what they are read for raises TimeoutError.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import create_urllib3_context

#: Until the headers of an answer are there.
HEAD_S_MAX = 60.0
#: A body has so long, and longer where it is longer than this many bytes a second come to.
BODY_S, SLOWEST_BYTES_S = 120.0, 64 << 10

#: Is told the host and the address of a connection before anything is said there, and may raise.
Met = Callable[[str, str], None]


class _Timed:
    until = math.inf

    def recv_into(self, *given: Any) -> int:
        """See socket.socket. Raises TimeoutError behind the deadline."""
        if time.monotonic() > self.until:
            raise TimeoutError("the answer does not end")
        found: int = super().recv_into(*given)  # type: ignore[misc]
        return found


class TimedSocket(_Timed, socket.socket):
    """A socket that gives nothing after a moment of the clock."""

    @classmethod
    def of(cls, sock: socket.socket, until: float) -> TimedSocket:
        """A socket that goes on as this one, up to a time.monotonic()."""
        timed = cls(fileno=sock.detach())
        timed.settimeout(sock.timeout)
        timed.until = until
        return timed


class TimedTls(_Timed, ssl.SSLSocket):
    """The same, encrypted."""


def kind_of(address: str) -> str:
    """Whose network an address is of where it is this host's own: loopback or link-local; empty for others."""
    found = ipaddress.ip_address(address.partition("%")[0])
    bare = (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found
    return "loopback" if bare.is_loopback else "link-local" if bare.is_link_local else ""


def _timed(sock: socket.socket, host: str, met: Met | None) -> TimedSocket:
    timed = TimedSocket.of(sock, time.monotonic() + HEAD_S_MAX)
    try:
        if met is not None:
            met(host, timed.getpeername()[0])
    except BaseException:
        timed.close()
        raise
    return timed


def _begin(sock: Any) -> None:
    if isinstance(sock, (TimedSocket, TimedTls)):
        sock.until = time.monotonic() + HEAD_S_MAX


def allow(response: Any, seconds: float) -> None:
    """What is read of an answer from now on has so many seconds."""
    # which is closed where the answer has no body
    file = response._fp.fp
    if file is not None:
        file.raw._sock.until = time.monotonic() + seconds


def body_s(size: int) -> float:
    """Seconds that a body of so many bytes may take."""
    return BODY_S + size / SLOWEST_BYTES_S


def pools_of(pools: Any, ca: str, met: Met | None = None) -> Any:
    """The manager of urllib3's pools, with such sockets, and authorities for TLS."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _timed(super()._new_conn(), self.host, met)

        def getresponse(self) -> Any:
            _begin(self.sock)
            return super().getresponse()

    class Tls(Plain, HTTPSConnection):
        def connect(self) -> None:
            self.ssl_context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED)
            self.ssl_context.load_verify_locations(ca)
            self.ssl_context.sslsocket_class = TimedTls
            super().connect()

    plain = type("PlainPool", (HTTPConnectionPool,), {"ConnectionCls": Plain})
    tls = type("TlsPool", (HTTPSConnectionPool,), {"ConnectionCls": Tls})
    pools.connection_pool_kw["cert_reqs"] = "CERT_REQUIRED"
    pools.pool_classes_by_scheme = {"http": plain, "https": tls}
    return pools
