"""What people wished of a run or a worker is an entry of the cluster's log, and outlives the leader that took it up."""

from msgspec import structs

from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.cluster_changes import RunBegun, RunEnded, RunsCleared
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Entry
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store, living, succeeded
from tests.kits.controller.core import Stand, make_pipeline, of


def steer(bench: Bench, **request: object) -> m.AnswerRequest:
    (answer,) = of(m.AnswerRequest, bench.tell(m.SteerRequested(7, "run", **request)))  # type: ignore[arg-type]
    return answer


def drain(bench: Bench, worker: str, *, back: bool = False) -> m.AnswerRequest:
    (answer,) = of(m.AnswerRequest, bench.tell(m.DrainRequested(7, worker, back)))
    return answer


def test_a_paused_run_stays_paused_under_the_next_leader() -> None:
    store = Store()
    start = (first := Bench(store, "a")).begun()
    assert steer(first, pause=True).accepted
    second = succeeded(store)
    commands = second.join("w1", living(start))
    (sweep,) = of(m.SweepTask, commands)
    assert sweep.halt, "sources let go"
    run = second.core.runs["run"]
    second.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep))
    assert run.state is RunState.PAUSED
    assert steer(second, pause=False).accepted
    assert run.state is RunState.RUNNING
    third = succeeded(store)
    third.join("w1", living(start))
    assert third.core.runs["run"].state is RunState.RUNNING


def test_a_drained_worker_gets_no_task_under_the_next_leader() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    assert drain(first, "w1").accepted
    second = succeeded(store)
    second.join("w1")
    second.join("w2")
    (start,) = of(m.StartTask, second.apply())
    assert start.worker == "w2"
    assert drain(second, "w1", back=True).accepted
    assert succeeded(store).core.drained == set()


def registered(name: str, *, leaves: bool) -> m.WorkerRegistered:
    return m.WorkerRegistered(name, name, 1, 1 << 30, leaves=leaves)


def leaves(bench: Bench, worker: str) -> None:
    bench.tell(m.DrainRequested(0, worker, leaves=True))


def test_a_worker_that_leaves_is_given_no_task_by_the_next_leader() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    leaves(first, "w1")
    second = succeeded(store)
    second.tell(registered("w1", leaves=True))
    second.join("w2")
    (start,) = of(m.StartTask, second.apply())
    assert start.worker == "w2"
    assert second.core.drained == second.core.leaving == {"w1"}


def test_a_new_leader_hears_from_the_worker_itself_that_it_leaves() -> None:
    bench = Bench(Store(), "a")
    bench.tell(registered("w1", leaves=True))
    assert bench.core.drained == bench.core.leaving == {"w1"}
    bench.tell(m.WorkerLost("w1", "it has ended"))
    assert bench.core.drained == bench.core.leaving == set()


def test_a_worker_that_leaves_in_its_hello_is_answered_whatever_is_decided() -> None:
    asks = structs.replace(registered("w1", leaves=True), request=7)
    alone = Bench(Store(), "a")
    alone.begun()
    refused, *_ = of(m.AnswerRequest, alone.tell(asks))
    assert (refused.request, refused.accepted) == (7, False), refused
    assert "1 task has nowhere else to go" in refused.reason
    assert alone.core.leaving == set()
    alone.join("w2")
    assert [item.accepted for item in of(m.AnswerRequest, alone.tell(asks))] == [True]
    standby = Controller({"id": "b"}, standby=True, log=CLUSTER)
    (elsewhere,) = of(m.AnswerRequest, standby.handle(asks, 0.0))
    assert (elsewhere.request, elsewhere.accepted) == (7, False), "it does not lead"


def test_a_worker_that_left_under_an_earlier_leader_comes_anew() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    leaves(first, "w1")
    second = succeeded(store)
    second.join("w1")
    assert second.core.drained == second.core.leaving == set()
    assert succeeded(store).core.drained == set()


def test_what_a_person_drained_stays_drained_when_it_leaves_and_comes_anew() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    assert drain(first, "w1").accepted
    leaves(first, "w1")
    first.tell(m.WorkerLost("w1", "it has ended"))
    second = succeeded(store)
    second.join("w1")
    assert (second.core.drained, second.core.leaving) == ({"w1"}, set())


def test_a_drain_that_was_under_way_is_seen_to() -> None:
    store = Store()
    start = (first := Bench(store, "a")).begun()
    first.join("w2")
    assert drain(first, "w1").accepted
    second = succeeded(store)
    second.join("w2")
    commands = second.join("w1", living(start))
    (sweep,) = of(m.SweepTask, commands)
    moved = of(m.StartTask, second.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep)))
    assert [task.worker for task in moved] == ["w2"]


def test_a_change_not_made_is_made_by_the_next_leader_once() -> None:
    store = Store()
    start = (first := Bench(store, "a")).begun()
    assert steer(first, replicas={"read": 3}).accepted
    assert store.fold().runs["run"].waiting == [{"replicas": {"read": 3, "keep": 3, "write": 3}} | NOWHERE]
    second = succeeded(store)
    (sweep,) = of(m.SweepTask, second.join("w1", living(start)))
    second.tell(m.TaskSwept(sweep.task, sweep.attempt, sweep.sweep))
    run = second.core.runs["run"]
    assert run.tasks is not None
    assert len(run.tasks.plan.tasks) == 3
    record = store.fold().runs["run"]
    assert record.waiting == []
    assert record.wished["replicas"]["read"] == 3
    third = succeeded(store)
    third.join("w1", living(start))
    assert third.core.runs["run"].reconfiguration.waiting == []
    assert third.core.runs["run"].reconfiguration._counts["read"] == 3, "a plan that is made later has as many"


NOWHERE: dict[str, dict[str, str]] = {"places": {}, "transports": {}}


def test_what_no_plan_can_hold_is_refused_and_no_entry() -> None:
    store = Store()
    (bench := Bench(store, "a")).begun()
    before = len(store.logs[CLUSTER])
    assert "no stage 'nothing'" in steer(bench, replicas={"nothing": 2}).reason
    assert "no worker 'w9'" in drain(bench, "w9").reason
    assert len(store.logs[CLUSTER]) == before


def test_a_wish_on_its_way_is_answered_when_its_leader_steps_down() -> None:
    store = Store()
    (first := Bench(store, "a")).begun()
    succeeded(store)
    answer = steer(first, pause=True)
    assert not answer.accepted
    assert not first.core.leads


def test_a_standby_turns_wishes_away_and_says_who_leads() -> None:
    store = Store()
    Bench(store, "a").begun()
    standby = Bench(store, "b")
    assert "the one at a:1 leads" in steer(standby, pause=True).reason
    assert "the one at a:1 leads" in drain(standby, "w1").reason


def request(token: str, number: int = 1) -> m.PipelineRequested:
    return m.PipelineRequested(number, make_pipeline().to_dict(), replicas=1, token=token)


def test_an_apply_asked_again_of_the_next_leader_is_the_same() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    first.tell(request("t1"))
    second = succeeded(store)
    (answer,) = of(m.AnswerRequest, second.tell(request("t1", 2)))
    assert (answer.request, answer.accepted) == (2, True)
    (early,) = of(m.AnswerRequest, second.tell(request("t2", 3)))
    assert "of 1 worker none is back" in early.reason
    assert second.core.gathers("run", ""), "whoever asks is told to ask again"
    second.join("w1")
    (other,) = of(m.AnswerRequest, second.tell(request("t2", 3)))
    assert "stop it first" in other.reason
    assert len(store.fold().runs) == 1


def test_a_run_that_waits_for_a_worker_is_asked_again() -> None:
    store = Store()
    start = Bench(store, "a").begun()
    second = succeeded(store)
    second.join("w2")
    assert second.core.gathers("run", ""), "its worker may still be back"
    assert not second.core.gathers("other", ""), "somebody is back"
    second.join("w1", living(start))
    assert not second.core.gathers("run", "")


def test_an_apply_asked_again_after_its_run_failed_is_told_why() -> None:
    store = Store()
    first = Bench(store, "a")
    first.join("w1")
    (start,) = of(m.StartTask, first.tell(request("t1")))
    first.tell(m.TaskFailed(start.task, start.attempt, "the tokenizer is not there", final=True))
    second = succeeded(store)
    (answer,) = of(m.AnswerRequest, second.tell(request("t1", 2)))
    assert not answer.accepted
    assert "the tokenizer is not there" in answer.reason


def clear(bench: Bench, pipeline: str = "") -> m.AnswerRequest:
    (answer,) = of(m.AnswerRequest, bench.tell(m.ClearRequested(7, pipeline)))
    return answer


def test_an_ended_run_is_cleared_in_the_log_and_for_successors() -> None:
    store = Store()
    (first := Bench(store, "a")).begun()
    refused = clear(first, "run")
    assert not refused.accepted
    assert refused.reason == "pipeline 'run' is running: stop it first; those that have ended: none"
    first.tell(m.StopRequested("run", cancel=True))
    assert store.fold().runs["run"].outcome == "cancelled"
    cleared = clear(first, "run")
    assert (cleared.accepted, cleared.warnings) == (True, ("run",))
    assert first.core.runs == {}
    assert store.fold().runs == {}
    assert succeeded(store).core.runs == {}


def test_runs_ended_under_an_earlier_leader_are_cleared_too_at_once() -> None:
    store = Store()
    (first := Bench(store, "a")).begun()
    first.tell(m.StopRequested("run", cancel=True))
    second = succeeded(store)
    assert second.core.runs == {}
    assert store.fold().runs["run"].outcome == "cancelled"
    assert clear(second).warnings == ("run",)
    assert store.fold().runs == {}
    assert clear(second) == m.AnswerRequest(7, accepted=True), "there is nothing left to clear"
    assert clear(second, "run").reason == "pipeline 'run' is not here; those that have ended: none"


def test_a_run_begun_again_before_its_clearing_is_durable_goes_on() -> None:
    begun = RunBegun("run", {"name": "run"}, {})
    state = ClusterState()
    changes = (begun, RunEnded("run", "failed", "out of luck"), begun, RunsCleared(("run",)))
    for number, change in enumerate(changes):
        state.apply(number, Entry(0, (change,)))
    assert state.going_on().keys() == {"run"}


def test_without_a_log_a_run_that_was_refused_is_cleared_at_once() -> None:
    stand = Stand()
    stand.apply()
    stand.tell(m.StopRequested("run", cancel=True))
    assert stand.run.over
    (answer,) = of(m.AnswerRequest, stand.tell(m.ClearRequested(7, "run")))
    assert answer.accepted
    assert stand.core.runs == {}
