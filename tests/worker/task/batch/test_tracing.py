"""Spans of batches: named by what they are of, and sent to a collector that may be anything."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.daemon import PostPlace, post
from headrace.daemon.post import is_taken
from headrace.protos import control_pb2 as pb
from headrace.store.ledger import Range
from headrace.worker.metrics import Counters
from headrace.worker.task.batch import tracing
from headrace.worker.task.batch.tracing import COLLECTOR, SHARE, Collector, Tracer, is_sampled, trace_of
from tests.kits.run.collector import CollectorServer

FRAGMENT = bytes(range(16))
WAIT_S = 120.0


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    with CollectorServer() as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "REQUEST_S", WAIT_S)
    for name, seconds in (("GATHER_S", 0.01), ("PAUSE_S_MAX", 0.02), ("END_S", WAIT_S)):
        monkeypatch.setattr(tracing, name, seconds)


def tracer(port: int, share: float = 1.0) -> Tracer:
    return Tracer(Collector(PostPlace("127.0.0.1", port), share), "books/read.0", 3, "read")


def until(so: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while not so():
        assert time.monotonic() < deadline
        pause.wait(0.005)


def shard(*ranges: tuple[int, int]) -> pb.Proposed:
    proposed = pb.Proposed(proposal=7, sink="write", counts=pb.Counts(kept=9))
    for first, count in ranges:
        proposed.ranges.add(fragment=FRAGMENT, first=first, count=count)
    proposed.objects.add(checksum="00ff")
    return proposed


def test_a_collector_reads_a_span_a_batch_and_stage(collector: CollectorServer) -> None:
    made = tracer(collector.port)
    for first in (0, 512):
        made.batch("read", Range(FRAGMENT, first, 512), 512, 0, 0.5)
        made.batch("filter", Range(FRAGMENT, first, 512), 512, 12, 0.25)
        made.gathered("write", Range(FRAGMENT, first, 512), 500, 0.125)
    made.proposed(shard((0, 1024)))
    made.close()
    assert {(path, kind) for path, kind, _ in collector.requests} == {("/v1/traces", "application/x-protobuf")}
    spans = collector.spans()
    assert [span.name for span in spans] == ["read", "filter", "write"] * 2 + ["write shard"]
    for number, first in enumerate((0, 512)):
        read, filtered, written = spans[3 * number : 3 * number + 3]
        assert {span.trace_id for span in (read, filtered, written)} == {trace_of(FRAGMENT, first)}
        assert read.parent_span_id == b""
        assert filtered.parent_span_id == written.parent_span_id == read.span_id
        assert read.end_time_unix_nano - read.start_time_unix_nano == 500_000_000
        assert ("headrace.dropped", 12) in [(item.key, item.value.int_value) for item in filtered.attributes]
        link = spans[6].links[number]
        assert (link.trace_id, link.span_id) == (written.trace_id, written.span_id)
    of = ExportTraceServiceRequest.FromString(collector.requests[0][2]).resource_spans[0].resource
    told = {item.key: item.value.string_value or item.value.int_value for item in of.attributes}
    assert told == {
        "service.name": "headrace",
        "service.instance.id": "books/read.0",
        "headrace.pipeline": "books",
        "headrace.attempt": 3,
    }
    assert (made.sent, made.dropped) == (7, 0)


def test_a_shard_links_to_its_own_batches_and_once(collector: CollectorServer) -> None:
    made = tracer(collector.port)
    for first in (0, 512, 1024):
        made.gathered("write", Range(FRAGMENT, first, 512), 500, 0.0)
    made.proposed(shard((0, 512), (1024, 512)))
    made.proposed(shard((0, 512), (1024, 512)))
    made.close()
    (span,) = [span for span in collector.spans() if span.name == "write shard"]
    assert [link.trace_id for link in span.links] == [trace_of(FRAGMENT, 0), trace_of(FRAGMENT, 1024)]


def test_every_process_samples_the_same_batches() -> None:
    traces = [trace_of(FRAGMENT, first) for first in range(0, 4_000_000, 400)]
    small, large = ([trace for trace in traces if is_sampled(trace, share)] for share in (0.01, 0.1))
    assert set(small) < set(large)
    assert 70 < len(small) < 130
    assert all(is_sampled(trace, 1.0) and not is_sampled(trace, 0.0) for trace in traces)
    assert trace_of(FRAGMENT, 5).hex() == "2d7746662d9822b419dc4720a2b2179b", "other versions have the same names"


def test_what_is_not_sampled_costs_no_thread() -> None:
    made = tracer(9, share=0.0)
    made.batch("read", Range(FRAGMENT, 0, 512), 512, 0, 0.5)
    made.gathered("write", Range(FRAGMENT, 0, 512), 512, 0.5)
    made.proposed(shard((0, 512)))
    assert made._thread is None
    made.close()
    assert (made.sent, made.dropped) == (0, 0)


ANSWERS = {
    "an error": b"HTTP/1.1 503 Busy\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
    "no HTTP": b"\x00" * 4096,
    "a line without end": b"HTTP/1.1 200 " + b"x" * (1 << 20),
    "nothing": b"",
}


@contextlib.contextmanager
def server_that_says(answer: bytes, *, holds: bool) -> Iterator[int]:
    """Answers each connection so; one that holds never answers and never closes."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    held.append(client)
                    with contextlib.suppress(OSError):
                        client.sendall(answer)
                        if not holds:
                            client.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    for client in held:
        client.close()


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("holds", [False, True], ids=["closes", "holds"])
def test_what_a_collector_does_not_take_is_dropped_and_counted(
    answer: str, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "REQUEST_S", 0.3)
    with server_that_says(ANSWERS[answer], holds=holds) as port:
        made = tracer(port)
        made.batch("read", Range(FRAGMENT, 0, 512), 512, 0, 0.5)
        until(lambda: made.dropped == 1)
        made.close()
    assert (made.sent, made.dropped) == (0, 1)


def test_a_dead_collector_costs_a_task_neither_time_nor_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "PAUSE_S_MAX", 60.0)
    monkeypatch.setattr(tracing, "GATHER_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    made = tracer(port)
    for first in range(tracing.SPANS_MAX + 100):
        made.batch("read", Range(FRAGMENT, first, 1), 1, 0, 0.0)
        made.gathered("write", Range(FRAGMENT, first, 1), 1, 0.0)
    assert len(made._queue) == tracing.SPANS_MAX
    assert len(made._gathered) == tracing.GATHERED_MAX
    made.close()
    assert made.sent == 0
    assert made.dropped == 2 * (tracing.SPANS_MAX + 100)


def test_a_collector_that_comes_back_gets_the_next_spans(collector: CollectorServer) -> None:
    made = tracer(1)
    made.batch("read", Range(FRAGMENT, 0, 512), 512, 0, 0.5)
    until(lambda: made.dropped == 1)
    made._collector = Collector(PostPlace("127.0.0.1", collector.port), 1.0)
    made.batch("read", Range(FRAGMENT, 512, 512), 512, 0, 0.5)
    until(lambda: made.sent == 1)
    made.close()
    assert [span.trace_id for span in collector.spans()] == [trace_of(FRAGMENT, 512)]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({COLLECTOR: "http://127.0.0.1"}, Collector(PostPlace("127.0.0.1", 4318), 0.01)),
        ({COLLECTOR: "https://[::1]:99/", SHARE: "0.5"}, Collector(PostPlace("::1", 99, True), 0.5)),
    ],
)
def test_the_environment_says_where_spans_go(environ: dict[str, str], found: Collector | None) -> None:
    assert Collector.of(environ) == found


@pytest.mark.parametrize(
    "environ",
    [
        {COLLECTOR: "127.0.0.1:4318"},
        {COLLECTOR: "http://me:secret@host:4318"},
        {COLLECTOR: "http://host:99999"},
        {COLLECTOR: "http://host/\r\nX: y"},
        {COLLECTOR: "http://host", SHARE: "2"},
        {COLLECTOR: "http://host", SHARE: "nan"},
        {COLLECTOR: "http://host", SHARE: "all"},
    ],
)
def test_a_wrong_environment_traces_nothing_and_stops_nothing(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Tracer.of("books/read.0", 1, "read") is None
    (line,) = caplog.messages
    assert line.startswith("no traces: HEADRACE_TRACES")
    assert "secret" not in line


def test_only_an_answer_of_http_with_success_is_one() -> None:
    assert is_taken(b"HTTP/1.1 200 OK\r\nX: y")
    assert is_taken(b"HTTP/1.0 202\r\n")
    chance = Random(1)
    for _ in range(200):
        assert not is_taken(chance.randbytes(40))


def test_a_worker_counts_the_spans_of_its_tasks_over_their_deaths() -> None:
    counters = Counters()
    for attempt in (1, 2):
        for sent in (3, 5):
            progress = pb.Progress(spans_sent=sent, spans_dropped=1)
            counters.said(pb.TaskEvent(task="books/read.0", attempt=attempt, progress=progress))
        counters.ended("books/read.0", attempt, -9, "")
    assert counters.spans == {("books", "sent"): 10, ("books", "dropped"): 2}
