"""What stands before a spool: who may push, how much a client may send before it is believed, and how long it may take.

A client's head (its request line and headers) has a deadline and a limit of bytes, and so has its body. Of more clients
than there is room for, the one that has been at its head for longest goes, so that who says nothing keeps nobody out.
"""

from __future__ import annotations

import hmac
import io
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from headrace.daemon import read_private

#: Clients at once; and bodies that are being received, which are in memory.
CLIENTS_MAX = 64
BODIES_MAX = 16
#: Bytes of a request line and its headers. A little more may be read, as much as one read takes.
HEAD_BYTES_MAX = 16 << 10
#: Seconds from the end of one answer to the end of the next head; for a body; and for a TLS handshake.
HEAD_S_MAX = 60.0
BODY_S_MAX = 120.0
HANDSHAKE_S_MAX = 10.0
#: Bytes of the file of tokens; characters of a token at least and at most.
TOKENS_BYTES_MAX = 64 << 10
TOKEN_CHARACTERS_MIN, TOKEN_CHARACTERS_MAX = 16, 512
_SCHEME = "Bearer "


class GuardError(Exception):
    """What should guard the spool cannot: says which file, what is wrong and what to do."""


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


class Tokens:
    """The tokens of a file, any of which lets a client in. An empty one lets in all."""

    def __init__(self, tokens: tuple[str, ...] = ()) -> None:
        self._tokens = [token.encode() for token in tokens]

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """One token a line, in a file that this user alone may read. Raises GuardError."""
        try:
            data = read_private(path, TOKENS_BYTES_MAX)
        except OSError as error:
            raise GuardError(f"{path}: {error.strerror}; name a file with one token a line") from error
        tokens = tuple(line.strip() for line in data.decode("ascii", errors="replace").splitlines() if line.strip())
        if not tokens or not all(TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX for token in tokens):
            bounds = f"{TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX}"
            raise GuardError(f"{path} must hold one token a line, each of {bounds} characters")
        return cls(tokens)

    def admit(self, authorization: str) -> bool:
        """Whether a client that shows this header may push."""
        if not self._tokens:
            return True
        shown = authorization.removeprefix(_SCHEME).encode(errors="replace")
        fits = [hmac.compare_digest(shown, token) for token in self._tokens]
        return authorization.startswith(_SCHEME) and any(fits)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.3 with these files in PEM. Raises GuardError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise GuardError(f"{certificate} and {key} are no certificate and its key: {error}") from error
    return context


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
