"""A version of the pipeline has another index: its tasks are of the next epoch, and wait for it while records flow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.dedup import ServeIndex
from headrace.controller.core.run.amendment import why_without_keys
from headrace.controller.core.run.states import AmendState, RunState
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM, START_S_MAX
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.stages.library import dedup, dedup_keys
from headrace.store.ledger.core.entries import EpochRaised, PipelineApplied
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store, succeeded
from tests.kits.controller.core import LOG, Stand, amending, changes, close, fragment, make_pipeline, of

ROLLED_BACK = "the change of the graph was rolled back"
A, B = fragment(0), fragment(1)
#: The first attempt of a task in the first term.
FIRST = ATTEMPTS_A_TERM + 1
OLD = make_pipeline()
DEDUP = Stage("dedup", StageKind.STATEFUL, "m:d", replicas=1)
DEDUPED = Pipeline.chain("run", LOG, *OLD.stages[:2], DEDUP, *OLD.stages[2:])
EXACT, NEAR, LATER = dedup(near=False), dedup(folder="/index"), dedup(near=False, name="later")
KEYS = dedup_keys(near=False)


def chained(*stages: Stage) -> Pipeline:
    """`read` and `keep`, these stages, and `write`."""
    return Pipeline.chain("run", LOG, *OLD.stages[:2], *stages, *OLD.stages[2:])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (OLD, chained(*EXACT)),
        (chained(*EXACT), chained(*NEAR)),
        (chained(*NEAR), chained(*EXACT)),
        (chained(*LATER), chained(*LATER, *NEAR)),
        (chained(*NEAR, *LATER), chained(*LATER, *NEAR)),
        (chained(*NEAR, *LATER), chained(*LATER)),
        (chained(*dedup(by="url")), chained(*dedup(by="url", url_key="page"))),
    ],
)
def test_a_stage_without_keys_of_what_was_kept_is_refused(before: Pipeline, after: Pipeline) -> None:
    assert "of all that 'write' keeps, which has others or none" in why_without_keys(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (chained(*EXACT), OLD),
        (chained(KEYS), chained(*EXACT)),
        (chained(*EXACT), chained(EXACT[0], Stage("longer", StageKind.TRANSFORM, "m:longer"), EXACT[1])),
        (chained(*NEAR), chained(*dedup(folder="/elsewhere"))),
        (chained(*NEAR, *LATER), chained(*NEAR)),
    ],
)
def test_a_stage_with_keys_of_what_was_kept_is_taken(before: Pipeline, after: Pipeline) -> None:
    assert why_without_keys(before, after) == ""


def test_it_is_refused_before_anything_starts() -> None:
    stand = Stand()
    stand.begin(A, B)
    (answer,) = stand.tell(amending(chained(*EXACT)))
    assert isinstance(answer, m.AnswerRequest)
    assert not answer.accepted
    assert answer.reason.endswith(": write a new dataset")


def test_each_sink_needs_keys_of_its_own() -> None:
    """One of two has none: its stage that makes keys stood before the other."""
    read, keep, write = OLD.stages
    other = replace(write, name="other", after=("keep",))
    keys = replace(KEYS, after=("keep",))
    before = Pipeline("run", LOG, (read, keep, keys, replace(write, after=(KEYS.name,)), other))
    decide = replace(EXACT[1], after=(KEYS.name,))
    behind = [replace(sink, after=(decide.name,)) for sink in (write, other)]
    after = Pipeline("run", LOG, (read, keep, keys, decide, *behind))
    assert "of all that 'other' keeps" in why_without_keys(before, after)
    assert why_without_keys(after, after) == ""


def warming() -> tuple[Stand, list[m.Command]]:
    """A run that reads two fragments; a dedup stage was asked for, and the next tasks start."""
    stand = Stand()
    stand.replicas = 1
    stand.begin(A, B)
    return stand, stand.tell(amending(DEDUPED))


def handing_over() -> tuple[Stand, list[m.Command]]:
    """The next tasks are ready: a sweep is on its way, and the task in force was told to let go."""
    stand, commands = warming()
    return stand, stand.ready(commands)


def in_force() -> tuple[Stand, list[m.Command]]:
    """The version with the dedup stage."""
    stand, commands = handing_over()
    return stand, stand.swept(commands)


def test_tasks_of_another_index_start_beside_those_in_force() -> None:
    stand, commands = warming()
    starts = of(m.StartTask, commands)
    assert {(start.task, start.version) for start in starts} >= {("run/dedup.0", DEDUPED.version())}
    assert {start.epoch for start in starts} == {stand.run.ledger.number}
    assert stand.run.ledger.number > stand.run.ledger.epoch
    assert [start.task for start in starts if start.waits] == ["run/dedup.0"]
    assert [seal.task for seal in of(m.SealSink, commands)] == ["run/read.0"], "what it holds is closed meanwhile"
    assert of(m.StopTask, commands) == of(m.SweepTask, commands) == []
    assert close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4)) != []


def test_another_index_serves_when_those_in_force_are_empty() -> None:
    stand, commands = handing_over()
    number = stand.run.ledger.number
    assert {ask.task: ask.halt for ask in of(m.SweepTask, commands)}["run/read.0"]
    commands = stand.swept(commands, Range(A.id, 0, 4))
    given = {order.fragment.id: order.gaps for order in of(m.ReadFragment, commands)}
    assert [gaps[0].first for gaps in (given[A.id], given[B.id])] == [4, 0]
    assert (of(ServeIndex, commands), stand.run.version) == ([], OLD.version()), "the sink in force holds records"
    commands = close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    assert [entry.changes[0] for entry in stand.log[-2:]] == [
        EpochRaised("another index takes over", number),
        PipelineApplied(DEDUPED.version(), DEDUPED.to_dict()),
    ]
    assert [serve.task for serve in of(ServeIndex, commands)] == ["run/dedup.0"]
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.0"]
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    assert (stand.run.version, stand.run.state) == (DEDUPED.version(), RunState.RUNNING)
    assert stand.run.ledger.epoch == number


def test_a_kept_record_is_one_of_a_sink_behind_the_stage() -> None:
    stand, commands = handing_over()
    assert stand.run.committer.closings.sinks == ()
    stand.swept(commands)
    assert stand.run.committer.closings.sinks == ("write",)


def test_what_a_run_knows_outlives_the_version_that_it_leaves() -> None:
    stand = Stand()
    stand.join("w1")
    (start,) = of(m.StartTask, stand.apply())
    stand.tell(m.TaskExited(start.task, start.attempt, -9))
    stand.listed(stand.ready(stand.later(1.0)), A, B)
    stand.swept(stand.ready(stand.tell(amending(DEDUPED))))
    assert stand.run.version == DEDUPED.version()
    assert sum(stand.run.deaths.counts.values()) == 1
    (answer,) = of(m.AnswerRequest, stand.tell(m.SteerRequested(7, "run", replicas={"dedup": 2})))
    assert "one decides" in answer.reason


def test_a_stage_that_remembers_is_removed_with_an_epoch() -> None:
    stand, _ = in_force()
    epoch = stand.run.ledger.epoch
    commands = stand.ready(stand.tell(amending(OLD)))
    commands = stand.swept(commands)
    assert stand.run.version == OLD.version()
    assert stand.run.ledger.epoch > epoch
    assert "run/dedup.0" in {stop.task for stop in of(m.StopTask, commands)}
    assert stand.run.committer.closings.sinks == ()


def failed(name: str) -> m.TaskFailed:
    return m.TaskFailed(name, FIRST, "no module named x", final=True)


LOSSES = [failed("run/dedup.0"), m.TaskExited("run/dedup.0", FIRST, -11), None]


@pytest.mark.parametrize("phase", [warming, handing_over])
@pytest.mark.parametrize("loss", LOSSES)
def test_an_index_that_fails_leaves_what_is_in_force(
    loss: object, phase: Callable[[], tuple[Stand, list[m.Command]]]
) -> None:
    stand, _ = phase()
    epoch = stand.run.ledger.epoch
    if loss is None and phase is handing_over:
        loss = m.TaskExited("run/read.1", FIRST, -11)
    commands = stand.tell(loss) if loss is not None else stand.later(START_S_MAX)
    (answer,) = of(m.AnswerRequest, commands)
    assert ROLLED_BACK in answer.reason
    assert "run/read.0" not in {stop.task for stop in of(m.StopTask, commands)}
    assert of(m.StartTask, commands) == []
    assert (stand.run.version, stand.run.ledger.epoch) == (OLD.version(), epoch)
    assert (stand.run.amendment.busy, stand.run.committer.closings.sinks) == (False, ())
    assert not stand.run.deaths.counts, "what a version on trial loses is no loss of the run"


def test_no_two_versions_are_tried_in_one_epoch() -> None:
    stand, _ = warming()
    stand.tell(failed("run/dedup.0"))
    (answer,) = of(m.AnswerRequest, stand.tell(amending(DEDUPED)))
    assert answer.reason.endswith("at the beginning of an epoch: try again")
    assert answer.passes
    close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    starts = of(m.StartTask, stand.tell(amending(DEDUPED)))
    assert {start.task: start.attempt for start in starts}["run/dedup.0"] == FIRST + 1
    assert {start.epoch for start in starts} == {stand.run.ledger.number}


def test_a_next_index_that_dies_behind_the_epoch_waits_again() -> None:
    stand, commands = handing_over()
    stand.unresolved = True
    stand.swept(commands)
    assert stand.run.amendment.state is AmendState.SUCCEEDING
    stand.tell(m.TaskExited("run/dedup.0", FIRST, -9))
    stand.unresolved = False
    commands = stand.later(1.0)
    assert stand.run.version == DEDUPED.version()
    assert changes(stand).count("EpochRaised") == 2
    (start,) = (start for start in of(m.StartTask, commands) if start.task == "run/dedup.0")
    assert (start.epoch, start.attempt) == (stand.run.ledger.epoch, FIRST + 1)


# -- with a cluster's log --


def raised(slow: str, store: Store) -> Bench:
    """A leader of a cluster whose run has another index that takes over, and a log that is slow to take it."""
    leader = Bench(store, "a")
    leader.begun()
    commands = leader.tell(m.PipelineRequested(9, DEDUPED.to_dict(), amend=True, replicas=1))
    commands = leader.tell(*(m.TaskReady(start.task, start.attempt) for start in of(m.StartTask, commands)))
    leader.slow = slow
    leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, commands)))
    return leader


def test_a_version_with_another_index_is_recorded_before_it_is_applied() -> None:
    leader = raised(CLUSTER, Store())
    run = leader.core.runs["run"]
    assert (run.amendment.state, run.version) == (AmendState.RECORDING, OLD.version())
    commands = leader.hurry()
    assert [serve.task for serve in of(ServeIndex, commands)] == ["run/dedup.0"]
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    assert run.version == DEDUPED.version()


@pytest.mark.parametrize("slow", [LOG, CLUSTER])
def test_a_leader_that_dies_before_the_record_leaves_the_old_graph(slow: str) -> None:
    store = Store()
    leader = raised(slow, store)
    epoch = leader.core.runs["run"].ledger.epoch
    left = [
        m.RunningTask(name, FIRST, DEDUPED.version(), epoch, ready=True, waits="dedup" in name)
        for name in ("run/read.1", "run/dedup.0")
    ]
    second = succeeded(store)
    commands = second.join("w1", *left)
    run = second.core.runs["run"]
    assert {kill.task for kill in of(m.KillTask, commands)} == {task.task for task in left}
    assert (run.version, run.ledger.pipeline_version) == (OLD.version(), OLD.version())
    assert {start.version for start in of(m.StartTask, commands)} == {OLD.version()}


def test_a_successor_begins_with_the_version_that_was_recorded_alone() -> None:
    store = Store()
    leader = raised("", store)
    epoch = leader.core.runs["run"].ledger.epoch
    place = next(
        number
        for number, entry in enumerate(store.logs[LOG])
        if any(isinstance(change, PipelineApplied) and change.version == DEDUPED.version() for change in entry.changes)
    )
    del store.logs[LOG][place:]
    second = succeeded(store)
    starts = of(m.StartTask, second.join("w1"))
    run = second.core.runs["run"]
    assert run.version == DEDUPED.version()
    assert {(start.version, start.epoch) for start in starts} == {(DEDUPED.version(), run.ledger.epoch)}
    assert run.ledger.epoch > epoch
