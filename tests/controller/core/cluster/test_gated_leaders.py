"""A gate that paused a run, and what people decided about it, under the leader that follows."""

from __future__ import annotations

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.cluster_changes import RunGated
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.cluster_log import CLUSTER, A, Bench, Store, living, succeeded
from tests.kits.controller.core import LOG, make_pipeline, of, proposal

WHY = ("kept is below 1",)


def flowing(store: Store) -> tuple[Bench, m.StartTask]:
    """A run with a gate that pauses it, and some of its input closed."""
    bench = Bench(store, "a")
    bench.join("w1")
    gate = {"kept": {"min": 1}}
    request = m.PipelineRequested(1, make_pipeline().to_dict(), replicas=1, gate=gate, gate_pauses=True)
    (start,) = of(m.StartTask, bench.tell(request))
    (ask,) = of(m.ListSource, bench.tell(m.TaskReady(start.task, start.attempt)))
    bench.tell(m.SourceListed(ask.task, ask.attempt, "read", (A,), last=True, listing=ask.listing))
    close(bench, start, Range(A.id, 0, 1))
    return bench, start


def close(bench: Bench, start: m.StartTask, item: Range) -> None:
    facts = {"version": start.version, "epoch": start.epoch, "task": start.task, "attempt": start.attempt}
    bench.tell(proposal([item], number=item.first, **facts))
    bench.later(1.0)


def audited(bench: Bench) -> None:
    bench.tell(m.DatasetAudited(LOG, bench.core.runs["run"].leadership.term, False, WHY))


def resume(bench: Bench) -> None:
    bench.tell(m.SteerRequested(7, "run", pause=False))


def gates(store: Store) -> int:
    return sum(isinstance(change, RunGated) for entry in store.logs[CLUSTER] for change in entry.changes)


def taken_over(store: Store, start: m.StartTask) -> Bench:
    bench = succeeded(store)
    bench.join("w1", living(start))
    bench.later(1.0)
    return bench


def state(bench: Bench) -> RunState:
    return bench.core.runs["run"].state


def test_a_gate_pauses_when_the_clusters_log_has_it() -> None:
    bench, _ = flowing(Store())
    bench.slow = CLUSTER
    audited(bench)
    audited(bench)
    assert state(bench) is RunState.RUNNING
    bench.hurry()
    assert state(bench) is RunState.PAUSING
    assert gates(bench.store) == 1


def test_a_successor_does_not_pause_what_somebody_resumed() -> None:
    bench, start = flowing(store := Store())
    audited(bench)
    resume(bench)
    bench = taken_over(store, start)
    audited(bench)
    assert state(bench) is RunState.RUNNING
    assert gates(store) == 1


def test_a_successor_keeps_the_pause_and_says_why() -> None:
    bench, start = flowing(store := Store())
    audited(bench)
    bench = taken_over(store, start)
    run = bench.core.runs["run"]
    assert run.state is RunState.PAUSING
    assert WHY[0] in run.trouble(bench.now)
    resume(bench)
    assert not run.reconfiguration.stands


def test_who_resumed_before_the_gate_broke_is_paused_by_it() -> None:
    bench, start = flowing(store := Store())
    resume(bench)
    bench = taken_over(store, start)
    audited(bench)
    assert state(bench) is RunState.PAUSING


def test_a_resumption_behind_the_gates_entry_ends_its_pause() -> None:
    bench, start = flowing(store := Store())
    bench.slow = CLUSTER
    audited(bench)
    resume(bench)
    bench.hurry()
    assert not bench.core.runs["run"].reconfiguration.stands
    assert store.fold().runs["run"].gated is False
    bench = taken_over(store, start)
    assert state(bench) is RunState.RUNNING
