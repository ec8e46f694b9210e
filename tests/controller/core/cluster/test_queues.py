"""Pipelines that wait in queues: their places, who gives way, and what the next leader knows of them."""

from dataclasses import replace

import pytest

from headrace.controller.core.cluster.scheduler import ClaimState
from headrace.controller.core.messages import messages as m
from headrace.controller.core.plan.placement import Need
from headrace.controller.core.run.states import RunState
from headrace.pipeline.graph import Pipeline
from headrace.store.ledger.core.cluster_changes import QueueSet, RunBegun, RunHeld, RunQueued, RunUnqueued
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Entry, Led
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store, living, succeeded
from tests.kits.controller.core import Stand, make_pipeline, of


def named(name: str) -> dict[str, object]:
    made = make_pipeline(name=name)
    return Pipeline(name, f"file:///{name}", made.stages, environment=made.environment).to_dict()


def apply(name: str, queue: str = "", *, number: int = 1, **more: object) -> m.PipelineRequested:
    return m.PipelineRequested(number, named(name), queue=queue, token=name, **more)  # type: ignore[arg-type]


def queue(name: str, **more: object) -> m.QueueRequested:
    return m.QueueRequested(9, name, **more)  # type: ignore[arg-type]


def answer(commands: list[m.Command]) -> m.AnswerRequest:
    return of(m.AnswerRequest, commands)[-1]


def a_bench(store: Store, *queues: m.QueueRequested) -> Bench:
    bench = Bench(store, "a")
    bench.join("w1")
    for item in queues:
        assert answer(bench.tell(item)).accepted
    return bench


def a_store(*pipelines: str) -> Store:
    store = Store()
    store.logs |= {f"file:///{name}": [] for name in pipelines}
    return store


def test_an_apply_is_told_its_place_and_begins_when_there_are_cores() -> None:
    bench = a_bench(a_store("one", "two"), queue("a"))
    (first,) = of(m.StartTask, bench.tell(apply("one", "a")))
    told = answer(bench.tell(apply("two", "a", number=2)))
    assert (told.accepted, told.waits) == (True, "queue a: place 1 of 1: asks for 1 core, and 0 are free")
    assert list(bench.core.queues.waiting) == ["two"]
    begun = of(m.StartTask, bench.tell(m.StopRequested("one", cancel=True)))
    assert [start.task.split("/")[0] for start in begun] == ["two"]
    assert first.task.startswith("one/")


def test_a_run_of_higher_priority_begins_when_the_other_has_sealed() -> None:
    bench = a_bench(a_store("one", "two"), queue("low"), queue("high", priority=1))
    (first,) = of(m.StartTask, bench.tell(apply("one", "low")))
    bench.tell(m.TaskReady(first.task, first.attempt))
    (sweep,) = of(m.SweepTask, bench.tell(apply("two", "high", number=2)))
    assert sweep.halt, "its sinks commit, its sources let go"
    assert list(bench.core.queues.waiting) == ["two"]
    (second,) = of(m.StartTask, bench.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep)))
    assert second.task.startswith("two/")
    assert bench.core.runs["one"].state is RunState.PAUSED
    refused = answer(bench.tell(m.SteerRequested(7, "one", pause=False)))
    assert "goes on by itself: queue low: place 1 of 1" in refused.reason
    bench.tell(m.StopRequested("two", cancel=True))
    assert bench.core.runs["one"].state is RunState.RUNNING


def test_who_gives_its_cores_away_keeps_its_memory() -> None:
    bench = a_bench(a_store("one", "two"), queue("low"), queue("high", priority=1))
    stages = tuple(stage.placed(cores=1.0, memory_bytes=1 << 20) for stage in make_pipeline().stages)
    pipelines = [Pipeline(name, f"file:///{name}", stages).to_dict() for name in ("one", "two")]
    (first,) = of(m.StartTask, bench.tell(replace(apply("one", "low"), pipeline=pipelines[0])))
    bench.tell(m.TaskReady(first.task, first.attempt))
    reserved = bench.core.reserved_by_others
    assert reserved("one") == {}
    assert reserved("two") == {"w1": Need(1.0, 3 << 20)}
    assert reserved("two", frozenset({"one"})) == {"w1": Need(0.0, 3 << 20)}, "if it gave way"
    (sweep,) = of(m.SweepTask, bench.tell(replace(apply("two", "high", number=2), pipeline=pipelines[1])))
    assert of(m.StartTask, bench.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep)))
    assert reserved("two") == {"w1": Need(0.0, 3 << 20)}, "it has given way"


def test_a_paused_run_gives_its_cores_away_when_told() -> None:
    """Until then it goes on if a person says so."""
    bench = a_bench(a_store("one", "two"), queue("low"), queue("high", priority=1))
    (first,) = of(m.StartTask, bench.tell(apply("one", "low")))
    bench.tell(m.TaskReady(first.task, first.attempt))
    (sweep,) = of(m.SweepTask, bench.tell(m.SteerRequested(7, "one", pause=True)))
    bench.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep))
    assert bench.core.runs["one"].state is RunState.PAUSED
    bench.slow = CLUSTER
    bench.tell(apply("two", "high", number=2))
    queued = bench.waiting.pop()
    bench.do(bench.core.handle(bench._written(queued), bench.now))
    assert [type(change) for change in bench.waiting[0].entry.changes] == [RunHeld]
    bench.later(1.0)
    assert bench.core.queues._scheduler.claims["one"].state is ClaimState.SEALING
    assert [start.task.split("/")[0] for start in of(m.StartTask, bench.hurry())] == ["two"]


def test_the_next_leader_knows_queues_places_and_who_was_held() -> None:
    store = a_store("one", "two", "three")
    bench = a_bench(store, queue("low", weight=2), queue("high", priority=1))
    (first,) = of(m.StartTask, bench.tell(apply("one", "low", by="operator/ann")))
    bench.tell(m.TaskReady(first.task, first.attempt))
    bench.tell(apply("two", "high", number=2), apply("three", "low", number=3))
    second = succeeded(store)
    assert second.core.queues.rules["low"].weight == 2
    assert sorted(second.core.queues.waiting) == ["three", "two"]
    commands = second.join("w1", living(first))
    (sweep,) = of(m.SweepTask, commands)
    (start,) = of(m.StartTask, second.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep)))
    assert start.task.startswith("two/"), "the hold of the earlier leader is seen to"
    assert second.core.queues.waits("one").startswith("queue low: place 1 of 2")
    assert second.core.runs["one"].request.by == "operator/ann"
    told = answer(second.tell(apply("three", "low", number=4)))
    assert told.waits.startswith("queue low: place 2 of 2"), "the same request, sent again"


def test_cores_of_runs_outside_of_all_queues_are_not_given() -> None:
    bench = a_bench(a_store("one", "two"))
    bench.tell(apply("one"), queue("a"))
    told = answer(bench.tell(apply("two", "a", number=2)))
    assert told.waits.endswith("asks for 1 core, and the cluster has 1, 1 of them used outside of all queues")
    assert of(m.StartTask, bench.tell(m.StopRequested("one", cancel=True)))


def test_the_next_leader_gives_no_cores_of_who_waits_for_its_log() -> None:
    store = a_store("one", "two")
    bench = a_bench(store)
    (first,) = of(m.StartTask, bench.tell(apply("one")))
    bench.tell(queue("a"), apply("two", "a", number=2))
    second = Bench(store, "b")
    second.slow = "file:///one"
    while not second.core.leads:
        second.later(1.0)
    second.join("w1", living(first))
    assert second.core.runs["one"].state is RunState.OPENING
    assert list(second.core.queues.waiting) == ["two"]


def test_what_waits_and_is_stopped_never_begins() -> None:
    store = a_store("one", "two")
    bench = a_bench(store, queue("a"))
    bench.tell(apply("one", "a"), apply("two", "a", number=2), m.StopRequested("two", cancel=False))
    assert not bench.core.queues.waiting
    assert not of(m.StartTask, bench.tell(m.StopRequested("one", cancel=True)))
    record = store.fold().runs["two"]
    assert (record.outcome, record.reason) == ("cancelled", "it was stopped while it waited in its queue")


def test_a_stop_of_what_waits_is_durable_before_it_is_answered() -> None:
    bench = a_bench(a_store("one", "two"), queue("a"))
    bench.tell(apply("one", "a"), apply("two", "a", number=2))
    bench.slow = CLUSTER
    twice = bench.tell(*(m.StopRequested("two", cancel=False, request=number) for number in (7, 8)))
    assert of(m.AnswerRequest, twice) == []
    answers = of(m.AnswerRequest, bench.hurry())
    assert answers == [m.AnswerRequest(7, accepted=True), m.AnswerRequest(8, accepted=True)]
    assert not bench.core.queues.waiting


def test_a_cluster_without_queues_begins_at_once() -> None:
    bench = a_bench(a_store("one"))
    assert of(m.StartTask, bench.tell(apply("one")))
    assert "no queue 'a'; there are: none" in answer(bench.tell(apply("two", "a"))).reason


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (apply("two"), "this cluster has queues: name one with --queue: a"),
        (apply("two", "b"), "no queue 'b'; there are: a"),
        (apply("two", "a", cores=9), "asks for 9 cores, and queue a has a quota of 4"),
        (apply("one", "a"), "pipeline 'one' waits in a queue: stop it first"),
        (queue("b", weight=0), "a weight of 0"),
        (queue("b", remove=True), "no queue 'b'; there are: a"),
        (queue("a", remove=True), "queue a has 1 pipeline, such as 'one': stop them first"),
    ],
)
def test_what_a_queue_cannot_take_is_refused(request_: m.PipelineRequested | m.QueueRequested, words: str) -> None:
    bench = a_bench(a_store("one", "two"), queue("a", cores=4))
    bench.tell(m.PipelineRequested(1, named("one"), queue="a", cores=2, token="other"))
    assert words in answer(bench.tell(request_)).reason


def test_the_grant_of_a_run_is_what_scaling_may_use() -> None:
    bench = a_bench(a_store("one", "two"), queue("a", cores=3))
    bench.join("w2")
    bench.tell(apply("one", "a", autoscale="on"))
    assert bench.core.queues.grant("one") == 2, "all that there are, below the quota"
    bench.tell(queue("a", cores=1))
    assert bench.core.queues.grant("one") == 1, "it changes with the quota"
    assert bench.core.queues.grant("other") is None, "whoever is in no queue has no bound"


def test_a_worker_that_is_back_at_once_stays_known_to_the_log() -> None:
    store = a_store()
    bench = a_bench(store)
    bench.slow = CLUSTER
    bench.tell(m.WorkerLost("w1", "it opened a new session"))
    bench.join("w1")
    bench.hurry()
    assert list(store.fold().workers) == ["w1"]


def test_who_sets_a_queue_is_answered_when_that_is_durable() -> None:
    bench = a_bench(a_store())
    bench.slow = CLUSTER
    bench.tell(queue("a", weight=2))
    assert not answer(bench.tell(m.QueueRequested(10, "a", weight=3))).accepted, "of the first, which is overtaken"
    first = bench.waiting.pop()
    bench.store.logs[CLUSTER].append(first.entry)
    told = bench.tell(m.EntryWritten(CLUSTER, first.number))
    assert not of(m.AnswerRequest, told), "the second is not durable yet"
    assert answer(bench.hurry()).accepted
    assert bench.core.queues.rules["a"].weight == 3


def test_each_who_sets_a_queue_is_answered_once() -> None:
    bench = a_bench(a_store())
    for request in (10, 11):
        said = bench.tell(m.QueueRequested(request, "a", weight=request))
        assert of(m.AnswerRequest, said) == [m.AnswerRequest(request, accepted=True)]


def test_nothing_is_waited_for_where_nobody_leads() -> None:
    store = a_store("one")
    bench = a_bench(store, queue("a"))
    bench.tell(apply("one", "a"))
    second = succeeded(store)
    waits_until = second.core.queues.wake_at
    assert waits_until is not None, "workers of the first may come"
    second.slow = CLUSTER
    second.tell(m.ShutdownAsked())
    assert not second.core.leads
    second.later(waits_until - second.now + 1.0)
    assert second.core.wake_at() != waits_until, "who does not lead would look for nothing, again and again"


def test_who_names_no_queue_is_in_the_one_named_default() -> None:
    bench = a_bench(a_store("one"), queue("default"))
    bench.tell(apply("one"))
    assert bench.core.runs["one"].request.queue == "default"


def test_queues_work_without_a_log_of_the_cluster() -> None:
    stand = Stand()
    stand.join("w1")
    stand.tell(queue("a"), apply("one", "a"), apply("two", "a", number=2))
    assert list(stand.core.queues.waiting) == ["two"]
    assert answer(stand.tell(m.StopRequested("two", cancel=True, request=7))) == m.AnswerRequest(7, accepted=True)
    assert list(stand.core.queues.dropped) == ["two"]
    stand.tell(apply("two", "a", number=3))
    assert list(stand.core.queues.waiting) == ["two"]
    begun = of(m.StartTask, stand.tell(m.StopRequested("one", cancel=True)))
    assert [start.task.split("/")[0] for start in begun] == ["two"]


def test_a_queued_pipeline_that_cannot_be_placed_waits_for_its_worker() -> None:
    store = a_store("one")
    bench = a_bench(store, queue("a"))
    told = answer(bench.tell(apply("one", "a", places={"read": "gpu"})))
    assert told.accepted
    assert "gpu" in told.waits
    labelled = m.WorkerRegistered("w2", "w2", 1, 1 << 30, labels=("gpu",))
    assert of(m.StartTask, bench.tell(labelled))


def test_a_run_whose_worker_left_as_it_began_waits_for_it() -> None:
    bench = a_bench(a_store("one"), queue("a"))
    labelled = m.WorkerRegistered("w2", "w2", 1, 1 << 30, labels=("gpu",))
    bench.tell(apply("one", "a", places={"read": "gpu"}))
    begun = bench.core.handle(labelled, bench.now)
    begun += bench.core.handle(m.WorkerLost("w2", "the cable"), bench.now)
    said = bench.do(begun)
    assert (of(m.StartTask, said), of(m.ReportRun, said)) == ([], [])
    assert of(m.StartTask, bench.tell(labelled))


STOP, STOPPED = m.StopRequested("one", cancel=True, request=6), m.AnswerRequest(6, accepted=True)


def taken_up(bench: Bench, queue: str) -> None:
    """A pipeline is applied while the cluster's log is slow, and stopped: nobody is answered yet."""
    bench.slow = CLUSTER
    said = bench.tell(replace(apply("one", queue), token="another"), STOP)
    assert of(m.AnswerRequest, said) == []


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("queues", [(), (queue("a"),)])
def test_a_stop_ends_what_is_about_to_begin(queues: tuple[m.QueueRequested, ...], *, ended: bool) -> None:
    bench = a_bench(a_store("one"), *queues)
    if ended:
        bench.tell(apply("one", "a" if queues else ""), STOP)
    taken_up(bench, "a" if queues else "")
    assert STOPPED in bench.hurry()
    assert bench.core.runs["one"].state is RunState.CANCELLED
    assert bench.store.fold().runs["one"].outcome == "cancelled"


def test_a_stop_ends_what_leaves_its_queue_just_now() -> None:
    bench = a_bench(a_store("one"), queue("a"))
    bench.slow = CLUSTER
    bench.tell(apply("one", "a"))
    queued = bench.waiting.pop()
    bench.do(bench.core.handle(bench._written(queued), bench.now))
    assert [type(change) for change in bench.waiting[0].entry.changes] == [RunBegun]
    bench.tell(STOP)
    assert STOPPED in bench.hurry()
    assert bench.core.runs["one"].state is RunState.CANCELLED


def test_a_stop_ends_what_is_about_to_wait() -> None:
    bench = a_bench(a_store("one", "two"), queue("a"))
    bench.tell(apply("two", "a"))
    taken_up(bench, "a")
    assert STOPPED in bench.hurry()
    assert not bench.core.queues.waiting
    assert bench.store.fold().runs["one"].outcome == "cancelled"


def test_a_stop_is_answered_where_its_pipeline_never_begins() -> None:
    bench = a_bench(a_store("one"))
    taken_up(bench, "")
    bench.store.logs[CLUSTER].append(Entry(9, (Led(9, {"id": "another"}),)))
    answers = {said.request: said.accepted for said in of(m.AnswerRequest, bench.hurry())}
    assert answers == {1: False, 6: False}


def test_the_fold_of_queues_is_what_the_entries_say() -> None:
    state, plain = ClusterState(), named("one")
    rule = QueueSet("a", 2, 8, 1, "operator/ann")
    state.apply(0, Entry(0, (rule, RunQueued("one", plain, {"queue": "a"}))))
    assert (state.queues, list(state.queued)) == ({"a": rule}, ["one"])
    state.apply(1, Entry(0, (RunUnqueued("one", "cancelled", "why"), RunHeld("one", True, "nobody runs so"))))
    assert not state.queued
    assert (state.runs["one"].outcome, state.runs["one"].held) == ("cancelled", False)
