"""Bytes for an HTTP server that may be dead, slow or hostile: a line is read of it, within a deadline.

And the clients of an HTTP server with a thread for each: so many at most, and each for so long. Of more clients than
there is room for, the one that has been at its head for longest goes, so that who says nothing keeps nobody out.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

from headrace.daemon.control_address import is_host

#: Seconds for a request, and bytes of an answer's first line. Nothing else is read of it.
REQUEST_S, LINE_BYTES_MAX = 5.0, 1024
_PLACE = re.compile(r"(https?)://([A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:.]{2,45}\])(?::([0-9]{1,5}))?/?")
_TAKEN = re.compile(rb"HTTP/1\.[01] 2[0-9][0-9](?: [ -~]*)?\r\n")


@dataclass(frozen=True, slots=True)
class PostPlace:
    """A server that takes what is posted to it."""

    host: str
    port: int
    tls: bool = False

    @staticmethod
    def of(text: str, usual_port: int) -> PostPlace:
        """The server of http[s]://HOST[:PORT]. Raises ValueError, without what was given: it may hold a secret."""
        found = _PLACE.fullmatch(text)
        port = int(found[3] or usual_port) if found else 0
        if found is None or not is_host(found[2]) or not 0 < port < 1 << 16:
            raise ValueError("give http://HOST:PORT or https://HOST:PORT, without a path or user")
        return PostPlace(found[2].strip("[]"), port, found[1] == "https")

    def post(self, path: str, kind: str, body: bytes) -> None:
        """Have a body taken. Raises OSError where it is not, after REQUEST_S at the latest."""
        until = time.monotonic() + REQUEST_S
        sock = socket.create_connection((self.host, self.port), REQUEST_S)
        try:
            if self.tls:
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self.host)
            host = f"[{self.host}]" if ":" in self.host else self.host
            head = f"POST {path} HTTP/1.1\r\nHost: {host}:{self.port}\r\nContent-Type: {kind}\r\n"
            _set_deadline(sock, until)
            sock.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
            line = b""
            while b"\n" not in line:
                _set_deadline(sock, until)
                part = sock.recv(LINE_BYTES_MAX - len(line))
                if not part:
                    break
                line += part
        finally:
            sock.close()
        if not is_taken(line):
            raise OSError(f"it answered {line[:80]!r}")


def is_taken(answer: bytes) -> bool:
    """Whether the beginning of an answer says that the server has what was posted."""
    return _TAKEN.match(answer) is not None


def _set_deadline(sock: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError(f"no answer within {REQUEST_S:g} s")
    sock.settimeout(left)


#: Clients at once; and bodies that are being received, which are in memory.
CLIENTS_MAX = 64
BODIES_MAX = 16


class Paced(io.RawIOBase):
    """A client's bytes, until a deadline, and at most so many of them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0
        self._left = 0

    def allow(self, seconds: float, size: int) -> None:
        """From now on, so many seconds and bytes."""
        self._until, self._left = time.monotonic() + seconds, size

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, into: Any, /) -> int:
        """Receive what there is into a buffer. Raises TimeoutError behind the deadline or behind its bytes."""
        left_s = self._until - time.monotonic()
        if left_s <= 0 or self._left <= 0:
            raise TimeoutError("it took too long, or sent too much")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(into)
        self._left -= count
        return count


class Clients:
    """The connections of one server: at most CLIENTS_MAX, BODIES_MAX of which send a body."""

    def __init__(self, clients_max: int = CLIENTS_MAX, bodies_max: int = BODIES_MAX) -> None:
        self._clients_max = clients_max
        self._lock = threading.Lock()
        self._all: set[socket.socket] = set()
        #: Those at their head, the one that has been there for longest first.
        self._at_head: dict[socket.socket, None] = {}
        self.bodies = threading.BoundedSemaphore(bodies_max)

    def come(self, connection: socket.socket) -> bool:
        """Take a connection in, if need be for the oldest that is still at its head; whether there is room."""
        with self._lock:
            if len(self._all) >= self._clients_max:
                oldest = next(iter(self._at_head), None)
                if oldest is None:
                    return False
                self._leave(oldest)
                _shut(oldest)
            self._all.add(connection)
            self._at_head[connection] = None
            return True

    def begin_head(self, connection: socket.socket) -> None:
        """It waits for its next request, or sends its head."""
        with self._lock:
            if connection in self._all:
                self._at_head.pop(connection, None)
                self._at_head[connection] = None

    def end_head(self, connection: socket.socket) -> None:
        """Its head is there, and believed: it is not sent away for another."""
        with self._lock:
            self._at_head.pop(connection, None)

    def go(self, connection: socket.socket) -> None:
        """It has ended."""
        with self._lock:
            self._leave(connection)

    def _leave(self, connection: socket.socket) -> None:
        self._all.discard(connection)
        self._at_head.pop(connection, None)


def _shut(connection: socket.socket) -> None:
    """Wake whoever reads from it, with its end; the thread that has it closes it."""
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # its peer was faster


class Guarded:
    """Mixed into a server: it takes in as many clients as `clients` has room for."""

    clients: Clients

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection to a thread of its own, or close it where there is no room."""
        if self.clients.come(request):
            super().process_request(request, client_address)  # type: ignore[misc]
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """The end of a connection."""
        self.clients.go(request)
        super().shutdown_request(request)  # type: ignore[misc]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off, or speaks no HTTP, is no event: the next one is served."""
