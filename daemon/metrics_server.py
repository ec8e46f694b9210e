"""A page of metrics for Prometheus: what a daemon reads of itself at each scrape, so nothing is counted twice.

Plain HTTP, served from threads that ask the daemon's event loop. The names and labels are the daemon's; none holds
anything of a record. Of more clients than there is room for the oldest goes: a scrape takes milliseconds.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headrace.daemon.post import Clients, Guarded, Paced
from headrace.daemon.threads import start

#: Seconds that the event loop has to give a reading.
READING_S = 5.0
#: Scrapers at once; seconds for a head, and then for the answer to be taken; bytes of a head.
SCRAPERS_MAX, SCRAPE_S, HEAD_BYTES_MAX = 16, 10.0, 16 << 10


class LoopCollector(Collector):
    """Reads a daemon on its own loop when it is scraped, from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read: Callable[[], Iterable[Metric]]) -> None:
        self._loop, self._read = loop, read

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering does not scrape, since the loop that would answer may be this very thread's."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Every family. Raises TimeoutError if the loop does not turn."""

        async def reading() -> list[Metric]:
            return list(self._read())

        return asyncio.run_coroutine_threadsafe(reading(), self._loop).result(READING_S)


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Read with a deadline; what is left of it, the answer has."""
        super().setup()
        self.rfile.close()
        paced = Paced(self.connection)
        paced.allow(SCRAPE_S, HEAD_BYTES_MAX)
        self.rfile = io.BufferedReader(paced)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the library's name)
        """Say nothing of scrapes."""


class _Server(Guarded, ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family, self.clients = family, Clients(SCRAPERS_MAX)
        super().__init__(address, _Handler)


def serve_metrics(address: str, read: Callable[[], Iterable[Metric]]) -> WSGIServer:
    """Let Prometheus read this daemon at HOST:PORT, on loopback if no host is given. Raises OSError."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(LoopCollector(asyncio.get_running_loop(), read))
    found = socket.getaddrinfo(host or "127.0.0.1", int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, (where, *_) = found[0]
    server = _Server(family, (str(where), int(port)))
    server.set_app(make_wsgi_app(registry))
    # Where it dies the daemon goes on.
    start("metrics", server.serve_forever, died=lambda: None)
    return server
