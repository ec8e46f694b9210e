"""A controller's metrics, as Prometheus reads them over HTTP."""

import asyncio
import contextlib
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.controller.metrics import families
from headrace.controller.shell import CommitTimes
from headrace.daemon import metrics_server
from headrace.daemon.metrics_server import SCRAPERS_MAX, serve_metrics
from headrace.protos import control_pb2 as pb


def reading() -> list[Metric]:
    status = pb.PipelineStatus(pipeline="books", state="running", fragments=5, fragments_done=2, shards=3)
    status.stages.add(stage="read", records=100, bytes=1000, busy_s=1.5, dropped=7)
    status.counts["write"].kept = 90
    status.counts["write"].quarantined = 2
    task = status.tasks.add(task="books/read.0", stages=["read"], state="ready", restarts=4)
    task.progress.links.add(link="books/read.0->write.0", bytes=64, in_flight_bytes=32, blocked=1)
    sink = status.tasks.add(task="books/write.0", stages=["write"], state="starting")
    sink.progress.held_bytes = 12
    sink.progress.links.add(link="books/read.0->write.0", bytes=60)
    status.links.add(link="books/read.0->write.0", sender="books/read.0", receiver="books/write.0")
    reply = pb.StatusReply(pipelines=[status])
    reply.workers.add(worker="one", state="drained")
    commits = CommitTimes()
    commits.take(0.02)
    commits.take(20.0)
    return list(families(reply, commits))


async def scrape() -> str:
    """The page, fetched by another thread, as a scraper is one."""
    server = serve_metrics("127.0.0.1:0", reading)
    try:
        with ThreadPoolExecutor(1) as pool:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            fetched = asyncio.get_running_loop().run_in_executor(pool, lambda: urllib.request.urlopen(url, timeout=300))
            with await fetched as page:
                return page.read().decode()
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def test_a_scrape_gives_what_the_status_says() -> None:
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(asyncio.run(scrape()))
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted(labels.items()))]

    stage = {"pipeline": "books", "stage": "read"}
    assert value("headrace_stage_records_total", **stage) == 100
    assert value("headrace_stage_bytes_total", **stage) == 1000
    assert value("headrace_stage_dropped_records_total", **stage) == 7
    assert value("headrace_open_fragments", pipeline="books") == 3
    assert value("headrace_closed_records", pipeline="books", sink="write", verdict="quarantined") == 2
    assert value("headrace_tasks", pipeline="books", state="starting") == 1
    assert value("headrace_task_restarts", pipeline="books") == 4
    assert value("headrace_held_bytes", pipeline="books", task="books/write.0") == 12
    link = {"pipeline": "books", "link": "books/read.0->write.0"}
    assert value("headrace_link_in_flight_bytes", **link) == 32
    assert value("headrace_link_bytes", **link) == 64, "by the word of the sender, once"
    assert value("headrace_workers", state="drained") == 1
    assert value("headrace_commit_seconds_bucket", le="0.025") == 1
    assert value("headrace_commit_seconds_count") == 2


def test_scrapers_that_say_nothing_keep_nobody_out_and_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go for those who come, and the last in time."""
    monkeypatch.setattr(metrics_server, "SCRAPE_S", 3.0)

    async def scene() -> str:
        server = serve_metrics("127.0.0.1:0", reading)
        place = ("127.0.0.1", server.server_port)
        try:
            with contextlib.ExitStack() as held:
                silent = [held.enter_context(socket.create_connection(place, 60)) for _ in range(2 * SCRAPERS_MAX)]
                with await asyncio.to_thread(
                    urllib.request.urlopen, f"http://127.0.0.1:{place[1]}", timeout=60
                ) as page:
                    found = page.read().decode()
                for one in silent:
                    assert await asyncio.to_thread(one.recv, 1) == b""
                return found
        finally:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    assert "headrace_tasks" in asyncio.run(scene())
