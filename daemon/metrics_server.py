"""A page of metrics for Prometheus: what a daemon reads of itself at each scrape, so nothing is counted twice.

Plain HTTP, served from a thread that asks the daemon's event loop. The names and labels are the daemon's; none holds
anything of a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

#: Seconds that the event loop has to give a reading.
READING_S = 5.0


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


def serve_metrics(address: str, read: Callable[[], Iterable[Metric]]) -> WSGIServer:
    """Let Prometheus read this daemon at HOST:PORT, on loopback if no host is given. Raises OSError."""
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry()
    registry.register(LoopCollector(asyncio.get_running_loop(), read))
    server, _thread = start_http_server(int(port), host or "127.0.0.1", registry)
    return server
