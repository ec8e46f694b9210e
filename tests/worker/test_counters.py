"""What a worker counts of its tasks."""

from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from headrace.protos import control_pb2 as pb
from headrace.store.ledger.core.fragments import Range
from headrace.transport.core.relay_table import RelayFullError, RelayTable, rendezvous
from headrace.worker.core.watchdog import Held, StageInHand
from headrace.worker.metrics import PROPOSALS_MAX, Counters, StageSums, families

TASK = "books/read.0"


def progress(records: int, attempt: int = 1) -> pb.TaskEvent:
    event = pb.TaskEvent(task=TASK, attempt=attempt)
    event.progress.stages.add(stage="read", records=records, bytes=10 * records, dropped=1, busy_s=0.5)
    event.progress.held_bytes, event.progress.open_ranges, event.progress.pending_fragments = 7, 3, 2
    event.progress.links.add(link="l", bytes=64, frames=2, in_flight_bytes=32, blocked=1)
    return event


def proposal(number: int, quarantined: int = 2) -> pb.TaskEvent:
    counts = pb.Counts(kept=10, quarantined=quarantined)
    return pb.TaskEvent(task=TASK, attempt=1, proposed=pb.Proposed(proposal=number, sink="write", counts=counts))


def answer(number: int, outcome: "pb.Answer.Outcome") -> pb.Answer:
    return pb.Answer(proposal=number, outcome=outcome)


def test_what_a_dead_attempt_did_is_counted_once() -> None:
    counters = Counters()
    for attempt in (1, 2):
        counters.began(TASK, attempt)
        counters.said(progress(50, attempt))
        counters.said(progress(100, attempt))
        counters.ended(TASK, attempt, -9, "")
    assert counters.stages() == {("books", "read"): StageSums(200, 2, 2000, 1.0)}
    assert counters.stages() == counters.stages(), "a reading changes nothing"
    assert counters.ends == {("books", "signal"): 2}


def held(since: float, stage: str = "read") -> Held:
    fragment = bytes(16)
    items = StageInHand(stage, Range(fragment, 0, 300)), StageInHand(stage, Range(fragment, 300, 212))
    return Held(since, True, items, thread=7, spent_s=0.5)


def test_what_a_task_is_at_adds_to_what_it_said() -> None:
    counters = Counters()

    def spent_s(thread: int) -> float:
        return 2.0 if thread == 7 else 0.0

    assert counters.at_work(TASK, 1, held(0.0), 9.0, spent_s) is None, "it has said nothing yet"
    counters.said(progress(50))
    told = counters.at_work(TASK, 1, held(4.0), 9.0, spent_s)
    assert told is not None
    (row,) = told.stages
    assert (row.busy_s, row.at_batch_s, row.batch_records, row.records) == (5.5, 5.0, 512, 50)
    assert row.cpu_s == 1.5, "of 5 s a core worked for what the thread has spent since"
    assert counters.stages()["books", "read"].busy_s == 0.5, "the sums are of what it has ended with"
    assert counters.at_work(TASK, 1, None, 9.0, spent_s) is None
    assert counters.at_work(TASK, 1, held(8.9), 9.0, spent_s) is None, "a task that is quick speaks for itself"


def test_verdicts_are_counted_when_they_are_closed_and_once() -> None:
    counters = Counters()
    for number in (1, 2, 3):
        counters.said(proposal(number))
    counters.answered(TASK, 1, answer(1, pb.Answer.ACCEPTED))
    counters.answered(TASK, 1, answer(1, pb.Answer.ACCEPTED))
    counters.said(proposal(1))  # made again while its answer was on its way
    counters.answered(TASK, 1, answer(1, pb.Answer.ACCEPTED))
    counters.answered(TASK, 1, answer(2, pb.Answer.OVERLAPS))
    counters.ended(TASK, 1, 0, "")
    counters.answered(TASK, 1, answer(3, pb.Answer.ACCEPTED))
    assert counters.closed["books", "write", "kept"] == 10
    assert counters.closed["books", "write", "quarantined"] == 2
    assert counters.shards == {("books", "write"): 1}


def test_proposals_without_an_answer_are_bounded() -> None:
    counters = Counters()
    for number in range(PROPOSALS_MAX + 10):
        counters.said(proposal(number))
    counters.answered(TASK, 1, answer(1, pb.Answer.ACCEPTED))
    assert not counters.shards
    for number in range(PROPOSALS_MAX + 10):
        counters.said(proposal(number))
        counters.answered(TASK, 1, answer(number, pb.Answer.ACCEPTED))
    assert len(counters._accepted) == PROPOSALS_MAX


def samples_of(found: Iterable[Metric]) -> dict[str, float]:
    """What Prometheus reads of them: a value for each name with its labels."""

    class Once(Collector):
        def collect(self) -> Iterable[Metric]:
            return found

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_prometheus_can_read_what_a_relay_passed_on_and_what_it_refused() -> None:
    table = RelayTable(paths_max=1, rate_bytes_s=10_000)
    near, far = ("10.0.0.1", 1), ("10.0.0.2", 2)
    table.open("link", (b"a", b"b"), 0.0)
    with pytest.raises(RelayFullError):
        table.open("another", (b"c", b"d"), 0.0)
    table.take(
        [(rendezvous(b"a"), near), (rendezvous(b"b"), far), (b"x" * 900, near), (b"y" * 200, near), (b"z", ("?", 3))],
        0.0,
    )
    samples = samples_of(families(Counters(), lambda task: 0, connected=True, relay=table.statistics()))
    assert {name: value for name, value in samples.items() if "relay" in name and "created" not in name} == {
        "headrace_worker_relay_paths": 1,
        "headrace_worker_relay_paths_max": 1,
        "headrace_worker_relay_rate_limit_bytes": 10_000,
        "headrace_worker_relay_refused_paths_total": 1,
        "headrace_worker_relay_bytes_total": 900,
        "headrace_worker_relay_datagrams_total passed": 1,
        "headrace_worker_relay_datagrams_total over rate": 1,
        "headrace_worker_relay_datagrams_total unknown sender": 1,
    }


def test_prometheus_can_read_all_of_it() -> None:
    counters = Counters()
    counters.began(TASK, 1)
    counters.said(pb.TaskEvent(task=TASK, attempt=1, ready=pb.TaskReady()))
    counters.said(progress(100))
    counters.said(pb.TaskEvent(task=TASK, attempt=1, lost=pb.LinkLost(link="l")))
    counters.said(proposal(1))
    counters.answered(TASK, 1, answer(1, pb.Answer.ACCEPTED))
    counters.ended("books/write.0", 1, -9, "it was at one record for 60 s")

    samples = samples_of(families(counters, lambda task: 4096, connected=True))
    assert not [name for name in samples if "relay" in name], "it relays for nobody"
    assert samples["headrace_worker_connected"] == 1
    assert samples["headrace_worker_stage_bytes_total books read"] == 1000
    assert samples["headrace_worker_tasks books ready"] == 1
    assert samples["headrace_worker_task_ends_total limit books"] == 1
    assert samples["headrace_worker_link_cuts_total books"] == 1
    assert samples["headrace_worker_closed_records_total books write kept"] == 10
    assert samples["headrace_worker_open_ranges books books/read.0"] == 3
    assert samples["headrace_worker_pending_fragments books books/read.0"] == 2
    assert samples["headrace_worker_link_in_flight_bytes l books books/read.0"] == 32
    assert samples["headrace_worker_task_resident_bytes books books/read.0"] == 4096
