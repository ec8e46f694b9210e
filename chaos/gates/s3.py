"""An HTTP proxy before an S3 server that makes faults, in threads of this process.

The Host header is passed on as it came, so signatures stay valid; a service that routes by host name, such as AWS's
own, cannot stand behind it. Requests and answers are held whole.
"""

from __future__ import annotations

import enum
import http.client
import http.server
import os
import random
import socket
import socketserver
import threading
import urllib.parse
from collections import deque
from dataclasses import dataclass
from typing import Self

from headrace.chaos.gates.sockets import users_of

GATE_S_MAX = 30.0
#: Requests that are remembered.
SEEN_MAX = 100_000


class S3Fault(enum.Enum):
    """What affects one request."""

    BUSY = "answered 503 SlowDown, not passed on"
    FULL = "answered 507 XMinioStorageFull, not passed on"
    BROKEN = "answered 500 without a body, not passed on"
    LOST_ANSWER = "carried out; the connection closes without an answer"
    BUSY_AFTER = "carried out, then answered 503"
    TORN_UPLOAD = "half of the body is passed on, then both connections close"
    TORN_ANSWER = "half of the answer's body comes back"
    FLIPPED_UPLOAD = "one bit of the body is changed on its way"
    FLIPPED_ANSWER = "one bit of the answer's body is changed on its way"
    HELD = "carried out; the answer waits for the gate"
    CONFLICT = "answered 409 ConditionalRequestConflict, not passed on"
    EXPIRED = "answered 400 ExpiredToken, not passed on"
    GONE = "the connection closes, not passed on"
    SLOW = "passed on after a while"


@dataclass(slots=True)
class Rule:
    """The next `times` requests of a method whose path or query holds `part` meet the fault."""

    fault: S3Fault
    method: str
    part: str
    times: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault that goes on: it affects `share` of the requests of a method ("": any). `delay_s` is for SLOW."""

    fault: S3Fault
    share: float = 1.0
    method: str = ""
    delay_s: float = 0.0


class S3Proxy:
    """A proxy to `upstream` (http://host:port, or https); a context manager. `seed` draws the affected requests."""

    def __init__(self, upstream: str, seed: int = 0) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.gate = threading.Event()
        #: `METHOD path?query` of each request, in order of arrival.
        self.seen: deque[str] = deque(maxlen=SEEN_MAX)
        #: Requests that a trouble affected.
        self.affected = 0
        self._rules: list[Rule] = []
        self._troubles: list[Trouble] = []
        self._chance = random.Random(seed)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The endpoint for a store."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def plan(self, fault: S3Fault, method: str = "", part: str = "", times: int = 1) -> None:
        """Let a fault affect the next matching requests."""
        with self._lock:
            self._rules.append(Rule(fault, method, part, times))

    def begin(self, trouble: Trouble) -> None:
        """A trouble begins."""
        with self._lock:
            self._troubles.append(trouble)

    def end(self, trouble: Trouble) -> None:
        """It is over."""
        with self._lock:
            self._troubles.remove(trouble)

    def mend(self) -> None:
        """Forget the faults that have not happened."""
        with self._lock:
            self._rules.clear()

    def waiting(self) -> int:
        """How many faults are planned and have not happened."""
        with self._lock:
            return sum(rule.times for rule in self._rules)

    def count(self, method: str, part: str = "") -> int:
        """How many requests of a kind were seen."""
        with self._lock:
            return sum(line.startswith(method + " ") and part in line for line in self.seen)

    def take(self, method: str, path: str) -> S3Fault | None:
        """The fault for a request that has come."""
        with self._lock:
            self.seen.append(f"{method} {path}")
            for rule in self._rules:
                if rule.times > 0 and rule.method in ("", method) and rule.part in path:
                    rule.times -= 1
                    return rule.fault
            delay_s, found = 0.0, None
            for trouble in self._troubles:
                if trouble.method in ("", method) and self._chance.random() < trouble.share:
                    self.affected += 1
                    delay_s += trouble.delay_s
                    found = trouble.fault if trouble.fault is not S3Fault.SLOW else found
        if delay_s:
            self._ended.wait(delay_s)
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    # Connections that clients keep open would be waited for.
    block_on_close = False
    request_queue_size = 128
    proxy: S3Proxy

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:  # noqa: ARG002 - the base class's
        """Only who runs as this user, or root, by the kernel's word."""
        host, port = self.server_address[:2]
        users = users_of("tcp", client_address, (str(host), int(port)))
        return bool(users) and users <= {os.geteuid(), 0}

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is a part of the faults."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.proxy.take(self.command, self.path)
        if fault is S3Fault.GONE:
            return self._close()
        if fault in _NOT_PASSED_ON:
            return self._answer(*_NOT_PASSED_ON[fault])
        if fault is S3Fault.TORN_UPLOAD:
            self._tear(body)
            return self._close()
        if fault is S3Fault.FLIPPED_UPLOAD:
            body = _flip(body)
        status, headers, answer = self._forward(body)
        if fault is S3Fault.HELD:
            self.server.proxy.gate.wait(GATE_S_MAX)
        if fault in (S3Fault.LOST_ANSWER, S3Fault.HELD):
            return self._close()
        if fault is S3Fault.BUSY_AFTER:
            return self._answer(*_NOT_PASSED_ON[S3Fault.BUSY])
        if fault is S3Fault.FLIPPED_ANSWER:
            answer = _flip(answer)
        self._relay(status, headers, answer, is_torn=fault is S3Fault.TORN_ANSWER)
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815 - the base class looks for these names

    def _upstream(self) -> http.client.HTTPConnection:
        upstream = self.server.proxy.upstream
        kind = http.client.HTTPSConnection if upstream.scheme == "https" else http.client.HTTPConnection
        return kind(upstream.hostname or "", upstream.port, timeout=GATE_S_MAX)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = self._upstream()
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _tear(self, body: bytes) -> None:
        connection = self._upstream()
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body[: len(body) // 2])
        connection.close()

    def _relay(self, status: int, headers: list[tuple[str, str]], body: bytes, is_torn: bool) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_torn else body)
        if is_torn:
            self._close()

    def _answer(self, status: int, body: bytes) -> None:
        self._relay(status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else body, False)

    def _close(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing: what came is in `seen`."""


def _error(code: str) -> bytes:
    return (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the scenario wants it</Message></Error>".encode()
    )


def _flip(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1]) if body else body


_NOT_PASSED_ON = {
    S3Fault.BUSY: (503, _error("SlowDown")),
    S3Fault.FULL: (507, _error("XMinioStorageFull")),
    S3Fault.BROKEN: (500, b""),
    S3Fault.CONFLICT: (409, _error("ConditionalRequestConflict")),
    S3Fault.EXPIRED: (400, _error("ExpiredToken")),
}
