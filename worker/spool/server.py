"""Take records by HTTP into a spool: `python -m headrace.worker.spool.server FOLDER`.

It listens at a socket that only this user may reach. `--listen tls:HOST:PORT` with `--certificate`, `--key` and
`--token-file` takes pushes from other hosts: each client shows a token of that file (`Authorization: Bearer TOKEN`).
`--listen insecure-tcp:127.0.0.1:8077` lets every user of this host push and close. A page in a browser may
never push: a request with an `Origin` is refused.

`POST /records` with lines of JSON as its body is answered with 200 and {"records": n, "shed": 0} when they are
durable. A header `Idempotency-Key` makes it safe to send the same again. A full spool answers 503 with Retry-After:
that is its backpressure. With `--shed` it answers 200 and {"records": 0, "shed": n} instead, once it is durable that
it shed them. `POST /close` ends it for good: who reads the spool ends behind what it holds. `GET /` says how full it
is. SIGTERM seals the open segment. With `--dataset`, segments go when that dataset has closed them.

Which segments of a spool a dataset has closed: these may go, and make room for what is pushed.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import setproctitle

from headrace.daemon import (
    BODIES_MAX,
    INSECURE,
    SOCKET,
    AddressError,
    Clients,
    Guarded,
    Paced,
    check_plain,
    hear,
    host_and_port,
    loopback,
    parse_arguments,
    runtime_folder,
    threads,
    to_listen,
)
from headrace.pipeline import Pipeline, StageKind
from headrace.stages.sources.objects import to_path
from headrace.store import FormatError, StoreError, open_store
from headrace.store.ledger import EntryError, FoldError, LedgerState, Log, fold_log
from headrace.worker.spool.guard import (
    BODY_S_MAX,
    HANDSHAKE_S_MAX,
    HEAD_BYTES_MAX,
    HEAD_S_MAX,
    GuardError,
    Tokens,
    server_context,
)
from headrace.worker.spool.spool import SEGMENT_AGE_S, SEGMENT_BYTES, Spool, SpoolClosedError, SpoolFullError

#: Its socket, in the runtime folder.
SOCKET_NAME = "spool.sock"
#: Bytes of one push.
PUSH_BYTES_MAX = 64 << 20
#: Seconds after which a client that was refused should try again.
RETRY_AFTER_S = 2
KEY_CHARACTERS_MAX = 256
TLS = "tls:"
_DIGITS = re.compile(r"[0-9]+")
_DIGITS_MAX = 16
#: What browsers say of the page that asks, and other clients do not.
_OF_BROWSERS = ("Origin", "Sec-Fetch-Site")
_TICK_S = 0.5
#: Seconds between two looks at the dataset for which segments may go.
RELEASE_S = 2.0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    spool: Spool
    tokens = Tokens()
    head_s, body_s = HEAD_S_MAX, BODY_S_MAX
    server: _TcpServer | _SocketServer

    def setup(self) -> None:
        """Shake hands, where TLS is spoken, and read with a deadline from then on."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(HANDSHAKE_S_MAX)
            self.request.do_handshake()
        super().setup()
        self.rfile.close()
        self._paced = Paced(self.connection)
        self.rfile = io.BufferedReader(self._paced)

    def handle_one_request(self) -> None:
        """Take one request, whose head has its own deadline and limit."""
        self.server.clients.begin_head(self.request)
        self._paced.allow(self.head_s, HEAD_BYTES_MAX)
        super().handle_one_request()

    def _may_not(self) -> bool:
        """Whether the client is none that may ask anything; it has been answered then."""
        if any(name in self.headers for name in _OF_BROWSERS):
            self._answer(403, {"error": "a page in a browser may not push here"}, close=True)
        elif not self.tokens.admit(self.headers.get("Authorization", "")):
            self._answer(401, {"error": "show a token of this spool: Authorization: Bearer TOKEN"}, close=True)
        else:
            self.server.clients.end_head(self.request)
            self.connection.settimeout(self.body_s)
            return False
        return True

    def do_GET(self) -> None:
        """How full the spool is."""
        if self._may_not():
            return
        used = {"used_bytes": self.spool.used_bytes(), "limit_bytes": self.spool.limit_bytes}
        self._answer(200, {**used, "closed": self.spool.closed})

    def do_POST(self) -> None:
        """Take a push, or the end of all pushes."""
        if self._may_not():
            return
        if self.path == "/close":
            self._finish()
            return
        length, key = self.headers.get("Content-Length", ""), self.headers.get("Idempotency-Key", "")
        if self.path != "/records":
            self._answer(404, {"error": f"nothing at {self.path}; push to /records"}, close=True)
        elif not _DIGITS.fullmatch(length) or "Transfer-Encoding" in self.headers:
            self._answer(411, {"error": "a push needs a Content-Length, and comes in one piece"}, close=True)
        elif len(length) > _DIGITS_MAX or int(length) > PUSH_BYTES_MAX:
            problem = f"a push of {length[:_DIGITS_MAX]} bytes, the limit is {PUSH_BYTES_MAX}; send it in parts"
            self._answer(413, {"error": problem}, close=True)
        elif len(key) > KEY_CHARACTERS_MAX:
            problem = f"an Idempotency-Key of {len(key)} characters, the limit is {KEY_CHARACTERS_MAX}"
            self._answer(400, {"error": problem}, close=True)
        else:
            self._push(int(length), key)

    def _finish(self) -> None:
        try:
            self.spool.finish()
        except OSError as error:
            self._answer(507, {"error": f"the disk does not take the end: {error.strerror}; ask again"}, close=True)
        else:
            self._answer(200, {"closed": True}, close=True)

    def _push(self, length: int, key: str) -> None:
        if not self.server.clients.bodies.acquire(blocking=False):
            self._answer(503, {"error": f"{BODIES_MAX} pushes are being received; try again"}, close=True)
            return
        try:
            self._paced.allow(self.body_s, length)
            data = self.rfile.read(length)
            if len(data) < length:
                self.close_connection = True
            else:
                self._take(data, key)
        finally:
            self.server.clients.bodies.release()

    def _take(self, data: bytes, key: str) -> None:
        try:
            self._answer(200, asdict(self.spool.push(data, key)))
        except SpoolFullError as error:
            self._answer(503, {"error": str(error)})
        except SpoolClosedError as error:
            self._answer(410, {"error": f"{error}: it takes nothing more"})
        except OSError as error:
            self._answer(507, {"error": f"the disk does not take it: {error.strerror}; nothing of it was taken"})

    def _answer(self, status: int, body: dict[str, Any], *, close: bool = False) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status in (503, 507):
            self.send_header("Retry-After", str(RETRY_AFTER_S))
        if close:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Say nothing of what went well."""


class _TcpServer(Guarded, ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext | None = None

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.clients = Clients()
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection; its thread shakes hands, so that nobody waits for another's."""
        connection, peer = super().get_request()
        if self.context is not None:
            connection = self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer


class _SocketServer(Guarded, socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, handler: type[_Handler]) -> None:
        self.clients = Clients()
        super().__init__(address, handler)


def _serve(
    listen: str, handler: type[_Handler], context: ssl.SSLContext | None = None
) -> tuple[_TcpServer | _SocketServer, str]:
    """The server, and where it listens. Raises AddressError, OSError."""
    if context is not None:
        secure = _TcpServer(host_and_port(listen.removeprefix(TLS)), handler)
        secure.context = context
        return secure, f"{TLS}{secure.server_address[0]!s}:{secure.server_port}"
    if listen.startswith(SOCKET):
        target, _ = to_listen(listen)  # what holds the place is held until this process ends
        server = _SocketServer(target.removeprefix(SOCKET), handler)
        os.chmod(target.removeprefix(SOCKET), 0o600)
        return server, listen
    check_plain(listen)
    tcp = _TcpServer(host_and_port(loopback(listen.removeprefix(INSECURE))), handler)
    return tcp, f"{INSECURE}{tcp.server_address[0]!s}:{tcp.server_port}"


def _release(spool: Spool, dataset: str, folder: Path, stop: threading.Event) -> None:
    """Let go of what the dataset has closed, until the end."""
    releases: Releases | None = None
    while not stop.wait(RELEASE_S):
        try:
            releases = releases or Releases(dataset, folder)
            spool.release(releases.closed())
        except (StoreError, FormatError, EntryError, FoldError, ValueError, OSError) as error:
            print(f"headrace: no segment is released: dataset {dataset}: {error}", file=sys.stderr, flush=True)
            releases = None


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.worker.spool.server")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--listen", default="", help="unix:PATH, tls:HOST:PORT, insecure-tcp:127.0.0.1:PORT; port 0: any"
    )
    parser.add_argument("--limit-bytes", type=int, default=16 << 30)
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES)
    parser.add_argument("--age-seconds", type=float, default=SEGMENT_AGE_S)
    parser.add_argument("--shed", action="store_true", help="shed what a full spool does not take, with a verdict")
    parser.add_argument("--dataset", default="", help="delete segments that this dataset has closed")
    parser.add_argument(
        "--token-file", type=Path, help="who shows a token of this file may push: one a line, mode 0600"
    )
    parser.add_argument("--certificate", type=Path, help="the certificate for --listen tls:, in PEM")
    parser.add_argument("--key", type=Path, help="its key, in PEM")
    given = parse_arguments(parser, arguments)
    listen = given.listen or f"{SOCKET}{runtime_folder() / SOCKET_NAME}"
    secure = listen.startswith(TLS)
    if secure and not (given.token_file and given.certificate and given.key):
        parser.error(f"--listen {TLS} takes pushes from other hosts: it needs --certificate, --key and --token-file")
    try:
        if not secure:
            check_plain(listen)
        context = server_context(given.certificate, given.key) if secure else None
        tokens = Tokens.read(given.token_file) if given.token_file else Tokens()
    except AddressError as error:
        parser.error(f"--listen {error}")
    except GuardError as error:
        parser.error(str(error))
    setproctitle.setproctitle(f"headrace spool {given.folder}")
    try:
        spool = Spool(
            given.folder,
            limit_bytes=given.limit_bytes,
            segment_bytes=given.segment_bytes,
            age_s=given.age_seconds,
            sheds=given.shed,
        )
        server, address = _serve(listen, type("Handler", (_Handler,), {"spool": spool, "tokens": tokens}), context)
    except BlockingIOError:
        print(f"headrace: another process listens at {listen}; choose another with --listen", file=sys.stderr)
        return 1
    except (StoreError, OSError, AddressError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    hear(lambda *_: stop.set())
    threads.start("server", lambda: server.serve_forever(poll_interval=_TICK_S))
    print(f"spool serves on {address}", flush=True)
    if given.dataset:
        threads.start("release", lambda: _release(spool, given.dataset, given.folder, stop))
    _tend(spool, stop)
    server.shutdown()
    try:
        spool.close()
    except OSError as error:
        print(f"headrace: {_not_sealed(error)}; the next start does it", file=sys.stderr)
        return 1
    return 0


def _tend(spool: Spool, stop: threading.Event) -> None:
    """Seal what is old enough, until the end. A disk that does not take it is said once, and asked again."""
    said = ""
    while not stop.wait(_TICK_S):
        trouble = ""
        try:
            spool.tick()
        except OSError as error:
            trouble = _not_sealed(error)
        if trouble and trouble != said:
            print(f"headrace: {trouble}; it is tried again every {_TICK_S} s", file=sys.stderr, flush=True)
        said = trouble


def _not_sealed(error: OSError) -> str:
    return f"the disk does not let a segment be sealed: {error.strerror or error}"


class Releases:
    """Follows the ledger of one dataset. Its verbs raise StoreError, FormatError, EntryError and FoldError."""

    def __init__(self, dataset: str, folder: Path) -> None:
        self._log = Log(open_store(dataset))
        self._folder = folder.absolute()
        self._ledger = LedgerState()
        self._told: set[bytes] = set()

    def closed(self) -> list[str]:
        """The names of the segments that have become done since the last call, at every sink of the pipeline."""
        fold_log(self._log, self._ledger)
        return list(self._done())

    def _done(self) -> Iterator[str]:
        if not self._ledger.pipeline:
            return
        graph = Pipeline.from_dict(self._ledger.pipeline)
        sinks = tuple(stage.name for stage in graph.of_kind(StageKind.SINK))
        for name, state in self._ledger.fragments.items():
            if name in self._told or not state.done(sinks):
                continue
            self._told.add(name)
            path = Path(to_path(state.fragment.uri))
            if path.parent == self._folder:
                yield path.name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
