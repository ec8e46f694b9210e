"""Bytes for an HTTP server that may be dead, slow or hostile: a line is read of it, within a deadline."""

from __future__ import annotations

import re
import socket
import ssl
import time
from dataclasses import dataclass

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
