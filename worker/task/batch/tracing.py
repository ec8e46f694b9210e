"""Spans of batches for a collector of OpenTelemetry, if HEADRACE_TRACES names one: a span a batch and stage.

A trace is named by the hash of its batch's fragment and first ordinal, so no context travels with a batch, and every
process samples the same batches by that name. A shard's span links to those of its batches. A thread of its own
sends spans; a collector that is dead, slow or hostile costs spans, which are counted, and nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from headrace.daemon import PostPlace, threads
from headrace.protos import control_pb2 as pb
from headrace.store.ledger import Range

logger = logging.getLogger("headrace.task")

#: Where the collector is, as http[s]://HOST[:PORT], and the share of batches that are traced.
COLLECTOR, SHARE = "HEADRACE_TRACES", "HEADRACE_TRACES_SHARE"
USUAL_SHARE, USUAL_PORT = 0.01, 4318
#: Spans that wait to be sent, and spans of one request.
SPANS_MAX, REQUEST_SPANS_MAX = 2048, 256
#: Sampled batches that are remembered for their shard's span, and its links.
GATHERED_MAX, LINKS_MAX = 1024, 128
#: Seconds between two requests; the longest pause after failed ones; at the end of the task.
GATHER_S, PAUSE_S_MAX, END_S = 1.0, 30.0, 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """What a stage did to a batch, or a sink to a shard. Times are nanoseconds since 1970."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    began: int
    ended: int
    facts: Mapping[str, int | str]
    links: Sequence[tuple[bytes, bytes]] = ()


def trace_of(fragment: bytes, first: int) -> bytes:
    """The trace of a batch, 16 bytes, the same in every process."""
    return xxhash.xxh3_128_digest(fragment + first.to_bytes(8, "little", signed=True))


def is_sampled(trace: bytes, share: float) -> bool:
    """Whether a trace is among this share; one of a smaller share is among each larger one."""
    return int.from_bytes(trace[8:], "big") < share * (1 << 64)


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans go, and which."""

    place: PostPlace
    share: float

    @staticmethod
    def of(environ: Mapping[str, str]) -> Collector | None:
        """The collector of an environment; None without one. Raises ValueError with the variable and what it takes."""
        place = environ.get(COLLECTOR, "")
        if not place:
            return None
        try:
            at = PostPlace.of(place, USUAL_PORT)
        except ValueError as error:
            raise ValueError(f"{COLLECTOR}: {error}") from None
        try:
            share = float(environ.get(SHARE) or USUAL_SHARE)
        except ValueError:
            share = -1.0
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{SHARE}: give a number from 0 to 1")
        return Collector(at, share)


class Tracer:
    """The spans of one task. Its methods never wait and never raise."""

    def __init__(self, collector: Collector, task: str, attempt: int, source: str) -> None:
        self._collector, self._task, self._attempt = collector, task, attempt
        #: The stage whose span is the parent of the others': where a batch began.
        self._source = source
        self._queue: deque[Span] = deque()
        #: Sampled batches that the sink holds: when each came, and its span.
        self._gathered: dict[tuple[bytes, int], tuple[int, bytes, bytes]] = {}
        self._lock, self._some, self._closing = threading.Lock(), threading.Event(), threading.Event()
        #: Set where spans are to go at once: the run may end with a shard.
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_failing = False
        #: Spans that the collector took, and that it did not get.
        self.sent, self.dropped = 0, 0

    @staticmethod
    def of(task: str, attempt: int, source: str) -> Tracer | None:
        """The tracer of a task, if anybody asks for spans. What cannot be done is logged."""
        try:
            collector = Collector.of(os.environ)
            if collector is None:
                return None
            from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: F401
        except ValueError as error:
            logger.warning("no traces: %s", error)
        except ImportError:
            logger.warning("no traces: %s needs `pip install 'headrace[otel]'`", COLLECTOR)
        else:
            return Tracer(collector, task, attempt, source)
        return None

    def batch(self, stage: str, of: Range, records: int, dropped: int, seconds: float) -> None:
        """A stage has been at a batch for so long."""
        trace = trace_of(of.fragment, of.first)
        if is_sampled(trace, self._collector.share):
            counts = {"headrace.first": of.first, "headrace.records": records, "headrace.dropped": dropped}
            self._put(self._span(stage, trace, seconds, {**counts, "headrace.fragment": of.fragment.hex()}))

    def gathered(self, sink: str, of: Range, records: int, seconds: float) -> None:
        """A batch was handed to the sink."""
        trace = trace_of(of.fragment, of.first)
        if is_sampled(trace, self._collector.share):
            span = self._span(sink, trace, seconds, {"headrace.records": records})
            self._put(span)
            self._gathered[of.fragment, of.first] = span.began, trace, span.id
            if len(self._gathered) > GATHERED_MAX:
                self._gathered.pop(next(iter(self._gathered)))

    def proposed(self, proposal: pb.Proposed) -> None:
        """A shard is written: its span links to those of its batches that are sampled."""
        if not self._gathered:
            return
        spans = {
            key: found
            for key, found in self._gathered.items()
            if any(
                item.fragment == key[0] and item.first <= key[1] < item.first + item.count for item in proposal.ranges
            )
        }
        if not spans:
            return
        for key in spans:
            del self._gathered[key]
        links = tuple((trace, span) for _, trace, span in spans.values())[:LINKS_MAX]
        name = xxhash.xxh3_128_digest(b"".join(item.checksum.encode() for item in proposal.objects) + links[0][0])
        facts = {"headrace.proposal": proposal.proposal, "headrace.records": proposal.counts.kept}
        began = min(at for at, _, _ in spans.values())
        span = Span(f"{proposal.sink} shard", name, self._id(name, "shard"), b"", began, time.time_ns(), facts, links)
        self._put(span)
        self._hurry.set()

    def progress(self) -> pb.Progress:
        """What became of the spans, for a report."""
        return pb.Progress(spans_sent=self.sent, spans_dropped=self.dropped)

    def close(self) -> None:
        """Give the collector a moment for the last spans, unless it took none of late."""
        self._closing.set()
        self._hurry.set()
        self._some.set()
        if self._thread is not None and not self._is_failing:
            self._thread.join(END_S)
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()
        if self.sent or self.dropped:
            logger.info("spans: %d sent, %d dropped", self.sent, self.dropped)

    def _span(self, stage: str, trace: bytes, seconds: float, facts: Mapping[str, int | str]) -> Span:
        now = time.time_ns()
        # The source's span bears no attempt, so that who comes after it knows its name without a message.
        parent = xxhash.xxh3_64_digest(trace)
        own = parent if stage == self._source else self._id(trace, stage)
        return Span(stage, trace, own, b"" if own == parent else parent, now - int(seconds * 1e9), now, facts)

    def _id(self, trace: bytes, stage: str) -> bytes:
        return xxhash.xxh3_64_digest(trace + f"{stage} {self._task} {self._attempt}".encode())

    def _put(self, span: Span) -> None:
        with self._lock:
            if len(self._queue) >= SPANS_MAX:
                self.dropped += 1
                return
            self._queue.append(span)
        self._some.set()
        if self._thread is None:
            self._thread = threads.start("spans", self._send, died=self._closing.set)

    def _send(self) -> None:
        """Send what waits until the task ends."""
        pause = 0.0
        while True:
            self._some.wait()
            if pause:
                self._closing.wait(pause)
            else:
                self._hurry.wait(GATHER_S)
            with self._lock:
                spans = [self._queue.popleft() for _ in range(min(len(self._queue), REQUEST_SPANS_MAX))]
                if not self._queue and not self._closing.is_set():
                    self._some.clear()
                    self._hurry.clear()
            if not spans:
                if self._closing.is_set():
                    return
                continue
            try:
                self._collector.place.post("/v1/traces", "application/x-protobuf", self._request(spans))
            except OSError as error:
                if not self._is_failing:
                    logger.warning("the collector of HEADRACE_TRACES refuses spans; they are dropped: %s", error)
                self._is_failing, pause = True, min(PAUSE_S_MAX, 2 * pause or GATHER_S)
                self.dropped += len(spans)
                if self._closing.is_set():
                    return
            else:
                self._is_failing, pause = False, 0.0
                self.sent += len(spans)

    def _request(self, spans: Sequence[Span]) -> bytes:
        """Spans as OTLP has them."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        of = request.resource_spans.add()
        about = {"service.name": "headrace", "service.instance.id": self._task}
        about |= {"headrace.pipeline": self._task.partition("/")[0]}
        for key, text in about.items():
            of.resource.attributes.add(key=key).value.string_value = text
        of.resource.attributes.add(key="headrace.attempt").value.int_value = self._attempt
        scope = of.scope_spans.add()
        scope.scope.name = "headrace"
        for span in spans:
            made = scope.spans.add(
                trace_id=span.trace,
                span_id=span.id,
                parent_span_id=span.parent,
                name=span.name,
                kind=1,
                start_time_unix_nano=span.began,
                end_time_unix_nano=span.ended,
            )
            for key, value in span.facts.items():
                if isinstance(value, str):
                    made.attributes.add(key=key).value.string_value = value
                else:
                    made.attributes.add(key=key).value.int_value = value
            for trace, linked in span.links:
                made.links.add(trace_id=trace, span_id=linked)
        return request.SerializeToString()
