"""A version of the pipeline begins with an epoch: the run comes to rest, and all its tasks start anew."""

from dataclasses import replace

import pytest

from headrace.controller.core.cluster.records import plan_from_plain
from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import AmendState
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM, START_S_MAX
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import EpochRaised, PipelineApplied, Range
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store, succeeded
from tests.kits.controller.core import LOG, Stand, amending, changes, close, fragment, make_pipeline, of

ROLLED_BACK = "the change of the graph was rolled back"
A, B = fragment(0), fragment(1)
#: The first attempt of a task in the first term.
FIRST = ATTEMPTS_A_TERM + 1
OLD = make_pipeline()
DEDUP = Stage("dedup", StageKind.STATEFUL, "m:d", replicas=1)
DEDUPED = Pipeline.chain("run", LOG, *OLD.stages[:2], DEDUP, *OLD.stages[2:])


def resting() -> tuple[Stand, list[m.Command]]:
    """A run that reads two fragments; a dedup stage was asked for, and a sweep has its sources let go."""
    stand = Stand()
    stand.begin(A, B)
    return stand, stand.tell(amending(DEDUPED))


def test_a_version_with_another_index_begins_at_rest_with_an_epoch() -> None:
    stand, commands = resting()
    assert of(m.StartTask, commands) == []
    assert [ask.halt for ask in of(m.SweepTask, commands)] == [True]
    assert "coming to rest" in stand.run.amendment.words(stand.run.works)
    commands = stand.swept(commands, Range(A.id, 0, 4))
    assert of(m.StopTask, commands) == [], "its sink holds records"
    epoch = stand.run.ledger.epoch
    commands = close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.0"]
    assert of(m.AnswerRequest, commands) == []
    assert {start.version for start in of(m.StartTask, commands)} == {DEDUPED.version()}
    assert {start.epoch for start in of(m.StartTask, commands)} == {stand.run.ledger.epoch}
    assert stand.run.ledger.epoch > epoch
    assert [type(change) for change in stand.log[-1].changes] == [EpochRaised]
    assert stand.run.version == OLD.version(), "the next version is on trial"
    commands = stand.ready(commands)
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    assert [type(change) for change in stand.log[-1].changes] == [PipelineApplied]
    assert stand.run.version == DEDUPED.version()
    assert stand.run.committer.closings.sinks == ("write",)
    given = {order.fragment.id: order.gaps for order in of(m.ReadFragment, commands)}
    assert given == {A.id: (Gap(4, UNBOUNDED, -1),), B.id: (Gap(0, UNBOUNDED, 0),)}


def test_what_a_run_knows_outlives_the_version_that_it_leaves() -> None:
    stand = Stand()
    stand.join("w1")
    (start,) = of(m.StartTask, stand.apply())
    stand.tell(m.TaskExited(start.task, start.attempt, -9))
    stand.ready(stand.later(1.0))
    commands = stand.swept(stand.tell(amending(DEDUPED)))
    (ask,) = of(m.ListSource, stand.ready(commands))
    assert sum(stand.run.deaths.counts.values()) == 1
    assert ask.attempt > start.attempt + 1, "the listing that the task before had begun"
    (answer,) = of(m.AnswerRequest, stand.tell(m.SteerRequested(7, "run", replicas={"dedup": 2})))
    assert "one decides" in answer.reason


def test_attempts_are_numbered_on_across_an_epoch() -> None:
    stand, commands = resting()
    commands = stand.swept(commands)
    assert {start.task: start.attempt for start in of(m.StartTask, commands)}["run/read.0"] == FIRST + 1


def test_a_version_that_no_worker_can_have_leaves_the_one_in_force() -> None:
    stand = Stand()
    stand.begin(A, B)
    stand.join("w2")
    everywhere = dict.fromkeys((stage.name for stage in DEDUPED.stages), "w2")
    commands = stand.tell(replace(amending(DEDUPED), places=everywhere))
    stand.tell(m.WorkerLost("w2", "it burns"))
    commands = stand.swept(commands)
    (answer,) = of(m.AnswerRequest, commands)
    assert "the graph was not changed" in answer.reason
    assert (stand.run.version, stand.run.state.value) == (OLD.version(), "running")
    assert {order.fragment.id for order in of(m.ReadFragment, commands)} == {A.id, B.id}


def test_what_was_in_force_waits_for_a_worker_that_leaves_meanwhile() -> None:
    stand, commands = resting()
    stand.unresolved = True
    stand.swept(commands)
    stand.tell(m.WorkerLost("w1", "it burns"))
    stand.unresolved = False
    commands = stand.later(1.0)
    assert of(m.StartTask, commands) == []
    assert ROLLED_BACK in of(m.AnswerRequest, commands)[0].reason
    starts = of(m.StartTask, stand.join("w2"))
    assert {(start.worker, start.version) for start in starts} == {("w2", OLD.version())}


def failed(name: str) -> m.TaskFailed:
    return m.TaskFailed(name, FIRST, "no module named x", final=True)


LOSSES = [
    failed("run/dedup.0"),
    m.TaskExited("run/dedup.0", FIRST, -11),
    m.WorkerLost("w1", "it burns"),
    m.StopRequested("run", cancel=False),
    None,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_version_that_fails_at_rest_is_rolled_back(loss: object) -> None:
    stand, commands = resting()
    commands = stand.swept(commands, Range(A.id, 0, 4))
    commands = close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    stops = {start.task for start in of(m.StartTask, commands)}
    commands = stand.tell(loss) if loss is not None else stand.later(START_S_MAX)
    (answer,) = of(m.AnswerRequest, commands)
    assert ROLLED_BACK in answer.reason
    assert {stop.task for stop in of(m.StopTask, commands)} <= stops
    commands = stand.join("w1") if isinstance(loss, m.WorkerLost) else commands
    starts = of(m.StartTask, commands)
    assert {(start.task, start.version) for start in starts} == {("run/read.0", OLD.version())}
    assert {start.epoch for start in starts} == {stand.run.ledger.epoch}
    assert changes(stand).count("PipelineApplied") == 1
    assert stand.run.committer.closings.sinks == ()
    commands = stand.ready(starts)
    if isinstance(loss, m.StopRequested):
        stand.swept(commands)
        assert changes(stand)[-2:] == ["VersionPublished", "Resigned"]
        return
    given = {order.fragment.id: order.gaps for order in of(m.ReadFragment, stand.swept(commands) or commands)}
    assert given == {A.id: (Gap(4, UNBOUNDED, -1),), B.id: (Gap(0, UNBOUNDED, 0),)}
    assert (stand.run.version, stand.run.state.value) == (OLD.version(), "running")


def test_what_a_version_on_trial_loses_is_no_loss_of_the_run() -> None:
    stand, commands = resting()
    stand.swept(commands)
    stand.tell(failed("run/dedup.0"))
    assert not stand.run.deaths.counts
    assert not stand.run.amendment.busy


def test_a_stop_while_the_epoch_is_raised_rolls_the_change_back() -> None:
    stand, commands = resting()
    stand.unresolved = True
    stand.swept(commands)
    stand.tell(m.StopRequested("run", cancel=False))
    stand.unresolved = False
    commands = stand.later(1.0)
    assert ROLLED_BACK in of(m.AnswerRequest, commands)[0].reason
    assert {start.version for start in of(m.StartTask, commands)} == {OLD.version()}


def test_a_change_can_be_asked_for_again_when_one_was_rolled_back() -> None:
    stand, commands = resting()
    stand.swept(commands)
    commands = stand.tell(failed("run/dedup.0"))
    stand.swept(stand.ready(commands))
    commands = stand.swept(stand.tell(amending(DEDUPED)))
    assert {start.task: start.attempt for start in of(m.StartTask, commands)}["run/dedup.0"] == FIRST + 1
    stand.ready(commands)
    assert stand.run.version == DEDUPED.version()


def test_a_sweep_that_begins_before_the_epoch_is_durable_begins_again() -> None:
    stand, commands = resting()
    stand.unresolved = True
    stand.swept(commands)
    stand.tell(m.TaskExited("run/read.0", FIRST, -9))
    commands = stand.ready(stand.later(1.0))
    assert [ask.task for ask in of(m.SweepTask, commands)] == ["run/read.0"]
    stand.unresolved = False
    commands = stand.ready(stand.later(1.0))
    assert {ask.task for ask in of(m.SweepTask, commands)} >= {"run/dedup.0"}
    stand.swept(commands)
    assert (stand.run.version, stand.run.state.value) == (DEDUPED.version(), "running")


def test_a_stop_ends_a_change_that_waits_for_rest() -> None:
    stand, _ = resting()
    (answer,) = of(m.AnswerRequest, stand.tell(m.StopRequested("run", cancel=False)))
    assert answer.reason == "the graph was not changed: the pipeline is draining"
    assert not stand.run.amendment.busy


def test_a_run_held_meanwhile_has_its_next_version_and_stays_paused() -> None:
    stand, commands = resting()
    stand.run.handle(m.HoldDecided("run", held=True), stand.now)
    stand.ready(stand.swept(commands))
    assert (stand.run.version, stand.run.state.value) == (DEDUPED.version(), "paused")


# -- with a cluster's log --


def rested(slow: str) -> tuple[Store, Bench]:
    """A leader of a cluster whose run came to rest for a version with an index, and a log that is slow to take it."""
    store = Store()
    leader = Bench(store, "a")
    leader.begun()
    commands = leader.tell(m.PipelineRequested(9, DEDUPED.to_dict(), amend=True, replicas=1))
    commands = leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, commands)))
    leader.slow = slow
    starts = of(m.StartTask, commands)
    leader.tell(*(m.TaskReady(start.task, start.attempt) for start in starts))
    return store, leader


def test_a_version_with_an_epoch_is_recorded_before_it_is_applied() -> None:
    _, leader = rested(CLUSTER)
    assert leader.core.runs["run"].amendment.state is AmendState.RECORDING
    commands = leader.hurry()
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    assert leader.core.runs["run"].version == DEDUPED.version()


def test_the_plan_that_is_left_is_not_recorded_again() -> None:
    store, leader = rested(LOG)
    leader.join("w2")
    leader.tell(m.WorkerLost("w1", "it burns"))
    assert leader.core.runs["run"].amendment.state is AmendState.APPLYING
    record = store.fold().runs["run"]
    assert record.plan is not None
    assert any("dedup" in task.stages for task in plan_from_plain(record.plan).tasks)


def test_a_leader_that_dies_in_a_trial_leaves_the_old_graph() -> None:
    store = Store()
    leader = Bench(store, "a")
    leader.begun()
    commands = leader.tell(m.PipelineRequested(9, DEDUPED.to_dict(), amend=True, replicas=1))
    commands = leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, commands)))
    tried = [
        m.RunningTask(start.task, start.attempt, start.version, start.epoch, True)
        for start in of(m.StartTask, commands)
    ]
    second = succeeded(store)
    commands = second.join("w1", *tried)
    run = second.core.runs["run"]
    assert {kill.task for kill in of(m.KillTask, commands)} == {task.task for task in tried}
    assert (run.version, run.ledger.pipeline_version) == (OLD.version(), OLD.version())
    assert {start.version for start in of(m.StartTask, commands)} == {OLD.version()}


def test_a_successor_begins_with_the_version_that_waits_for_its_epoch() -> None:
    store, _ = rested(LOG)
    second = succeeded(store)
    starts = of(m.StartTask, second.join("w1"))
    run = second.core.runs["run"]
    assert run.version == DEDUPED.version()
    assert {(start.version, start.epoch) for start in starts} == {(DEDUPED.version(), run.ledger.epoch)}
