"""A run that is paused, resumed, scaled or drained: sealed before anything moves, and nothing read twice."""

from dataclasses import replace

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.amendment import LEAVE_S_MAX
from headrace.controller.core.run.reconfiguration import TRIES_MAX
from headrace.controller.core.run.states import AmendState, RunState
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import Stand, changes, fragment, make_pipeline, of

A, B = fragment(0), fragment(1)
COUNT = 10


def steer(stand: Stand, **request: object) -> tuple[m.AnswerRequest, list[m.Command]]:
    commands = stand.tell(m.SteerRequested(7, "run", **request))  # type: ignore[arg-type]
    (answer,) = of(m.AnswerRequest, commands)
    return answer, commands


def paused(stand: Stand) -> None:
    """A run that has read four records of one fragment and of the other none, and stands still."""
    stand.begin(A, B)
    _, commands = steer(stand, pause=True)
    assert [ask.halt for ask in of(m.SweepTask, commands)] == [True]
    assert of(m.SealSink, stand.swept(commands, Range(A.id, 0, 4)))[0].reason == "pause"
    assert stand.run.state is RunState.PAUSING
    stand.propose(Range(A.id, 0, 4))
    assert stand.run.state is RunState.PAUSED


def running(stand: Stand, *workers: str, cores: int = 1) -> list[m.Command]:
    """A run on these workers, its input listed: the orders to read."""
    stand.join(*workers, cores=cores)
    return stand.listed(stand.ready(stand.apply()), A, B)


def carried_out(stand: Stand, commands: list[m.Command]) -> list[m.Command]:
    """Every task that is started is ready, and every one that is asked to sweep answers, until nothing is asked."""
    said = list(commands)
    while commands:
        commands = [*stand.ready(commands), *stand.swept(commands)]
        said += commands
    return said


def workers_of(stand: Stand) -> list[str]:
    assert stand.run.tasks is not None
    return [task.plan.worker for task in stand.run.tasks]


def test_a_paused_run_has_committed_what_it_held_and_reads_nothing() -> None:
    stand = Stand()
    paused(stand)
    assert of(m.ReadFragment, stand.later(5.0)) == []


def test_a_resumed_run_reads_what_is_open_and_that_alone() -> None:
    stand = Stand()
    paused(stand)
    answer, commands = steer(stand, pause=False)
    assert answer.accepted
    orders = {order.fragment.id: [(gap.first) for gap in order.gaps] for order in of(m.ReadFragment, commands)}
    assert orders == {A.id: [4], B.id: [0]}
    assert stand.run.state is RunState.RUNNING


def test_the_tasks_of_a_paused_run_live_on() -> None:
    stand = Stand()
    paused(stand)
    before = stand.task()
    _, commands = steer(stand, pause=False)
    assert of(m.StartTask, commands) == of(m.StopTask, commands) == []
    assert stand.task() == before


def test_a_death_during_a_pause_delays_the_resumption() -> None:
    stand = Stand()
    paused(stand)
    stand.tell(m.TaskExited(*stand.task(), -9))
    started = stand.later(1.0)
    sweep = stand.ready(started)
    assert [ask.halt for ask in of(m.SweepTask, sweep)] == [True]
    _, commands = steer(stand, pause=False)
    assert of(m.ReadFragment, commands) == [], "a marker that lets sources go would meet what is handed out"
    orders = {order.fragment.id for order in of(m.ReadFragment, stand.swept(sweep))}
    assert orders == {A.id, B.id}


def test_a_paused_run_is_stopped_and_published() -> None:
    stand = Stand()
    paused(stand)
    commands = stand.tell(m.StopRequested("run", cancel=False))
    commands = [*commands, *stand.swept(commands)]
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "stopped")]


def test_a_run_resumed_after_a_pause_is_sealed_before_it_stops() -> None:
    stand = Stand()
    paused(stand)
    steer(stand, pause=False)
    commands = stand.tell(m.StopRequested("run", cancel=False))
    assert [ask.halt for ask in of(m.SweepTask, commands)] == [True]
    sealed = stand.swept(commands, Range(A.id, 4, 2))
    assert [order.reason for order in of(m.SealSink, sealed)] == ["stop"]
    assert of(m.ReportRun, sealed) == [], "a sink holds something"


def test_a_paused_run_is_cancelled() -> None:
    stand = Stand()
    paused(stand)
    assert of(m.ReportRun, stand.tell(m.StopRequested("run", cancel=True)))[0].outcome == "cancelled"


def test_a_run_scaled_up_keeps_its_task_and_starts_others() -> None:
    stand = Stand()
    running(stand, "w1")
    before = stand.task()
    answer, commands = steer(stand, replicas={"keep": 3})
    assert answer.warnings == ("read to 3 tasks, keep to 3 tasks, write to 3 tasks",), "fused stages go together"
    assert [start.task for start in of(m.StartTask, commands)] == ["run/read.1", "run/read.2"]
    said = carried_out(stand, commands)
    assert of(m.StopTask, said) == []
    assert not any(ask.halt for ask in of(m.SweepTask, said))
    assert before in [stand.task(index) for index in range(3)]
    assert stand.run.state is RunState.RUNNING


def test_fused_stages_are_not_given_two_numbers() -> None:
    stand = Stand()
    running(stand, "w1")
    answer, commands = steer(stand, replicas={"read": 3, "keep": 2})
    assert not answer.accepted
    assert "read, keep, write are fused and have the same tasks: 3 and 2 were asked for" in answer.reason
    assert of(m.StartTask, commands) == []
    assert steer(stand, replicas={"read": 3, "keep": 3})[0].accepted


def test_a_run_scaled_down_ends_the_surplus_and_reads_the_rest() -> None:
    stand = Stand()
    running(stand, "w1", cores=3)
    _, commands = steer(stand, replicas={"read": 1})
    assert [(ask.task, ask.halt) for ask in of(m.SweepTask, commands)] == [
        ("run/read.0", False),
        ("run/read.1", True),
        ("run/read.2", True),
    ]
    assert stand.run.state is RunState.RUNNING, "the task that stays reads on"
    commands = stand.swept(commands)
    assert {stop.task for stop in of(m.StopTask, commands)} == {"run/read.1", "run/read.2"}
    assert [order.task for order in of(m.ReadFragment, commands)] == ["run/read.0"], "what another had is left to it"


def test_a_task_that_comes_again_has_a_higher_attempt() -> None:
    stand = Stand()
    running(stand, "w1", cores=2)
    (_, first) = stand.task(1)
    carried_out(stand, steer(stand, replicas={"read": 1})[1])
    commands = steer(stand, replicas={"read": 2})[1]
    (start,) = of(m.StartTask, commands)
    assert (start.task, start.attempt) == ("run/read.1", first + 1)


def test_news_of_an_ended_task_moves_nothing() -> None:
    stand = Stand()
    running(stand, "w1", cores=2)
    ended = stand.task(1)
    stand.swept(steer(stand, replicas={"read": 1})[1])
    assert stand.tell(m.TaskExited(*ended, 0)) == []
    assert stand.run.state is RunState.RUNNING


def test_tasks_with_others_behind_them_give_way_with_those() -> None:
    """What is on its way to a task that leaves comes from one that leaves."""
    stand = Stand()
    stand.fuse = False
    carried_out(stand, running(stand, "w1"))
    said = carried_out(stand, steer(stand, replicas={"keep": 2})[1])
    assert [start.task for start in of(m.StartTask, said)] == ["run/read.1", "run/keep.2", "run/keep.1", "run/write.1"]
    assert {stop.task for stop in of(m.StopTask, said)} == {"run/read.0", "run/keep.0", "run/write.0"}
    assert {(link.sender, link.receiver) for link in of(m.MakeLink, said)} == {
        ("run/read.1", "run/keep.1"),
        ("run/read.1", "run/keep.2"),
        ("run/keep.1", "run/write.1"),
        ("run/keep.2", "run/write.1"),
    }


def test_a_change_keeps_the_transports_that_were_asked_for_before() -> None:
    stand = Stand()
    stand.fuse = False
    carried_out(stand, running(stand, "w1"))
    said = carried_out(stand, steer(stand, transports={"write": "pipe"})[1])
    assert {link.transport for link in of(m.MakeLink, said) if link.receiver_stage == "write"} == {"pipe"}
    carried_out(stand, steer(stand, replicas={"read": 2})[1])
    assert stand.run.tasks is not None
    joined = sorted((link.sender_stage, link.transport) for link in stand.run.tasks.plan.links)
    assert joined == [("keep", "pipe"), ("read", "ring"), ("read", "ring")]


def test_a_change_that_no_worker_can_hold_is_refused_at_once() -> None:
    stand = Stand()
    running(stand, "w1")
    answer, commands = steer(stand, places={"read": "disk=ssd"})
    assert not answer.accepted
    assert "no worker has that name or label" in answer.reason
    assert of(m.SweepTask, commands) == []
    assert stand.run.state is RunState.RUNNING


@pytest.mark.parametrize(("replicas", "words"), [({"nope": 2}, "has no stage 'nope'"), ({"read": 0}, "headrace pause")])
def test_a_scale_that_makes_no_sense_is_refused(replicas: dict[str, int], words: str) -> None:
    stand = Stand()
    running(stand, "w1")
    answer, _ = steer(stand, replicas=replicas)
    assert words in answer.reason


def test_a_pipeline_that_is_not_here_cannot_be_steered() -> None:
    stand = Stand()
    answer, _ = steer(stand, pause=True)
    assert answer.reason == "pipeline 'run' is not here; there are: none"


def test_a_change_whose_workers_have_gone_is_dropped() -> None:
    stand = Stand()
    running(stand, "w1", "w2")
    steer(stand, places={"read": "w2"})
    stand.tell(m.WorkerLost("w2", "gone"))
    carried_out(stand, stand.later(1.0))
    assert "no worker has that name" in stand.run.reconfiguration.refused
    assert stand.run.state is RunState.RUNNING


def test_a_moved_stage_ends_where_it_was_and_starts_elsewhere() -> None:
    stand = Stand()
    running(stand, "w1", "w2")
    commands = carried_out(stand, steer(stand, places={"read": "w2"})[1])
    assert workers_of(stand) == ["w2"]
    assert {stop.worker for stop in of(m.StopTask, commands)} == {"w1"}
    assert of(m.StartTask, commands) == [], "the task of w2 stays"


def deduplicated(*late: Stage) -> Pipeline:
    return Pipeline.chain(
        "run",
        "file:///data",
        Stage("read", StageKind.SOURCE, "m:read"),
        Stage("dedup", StageKind.STATEFUL, "m:dedup", replicas=1),
        *late,
        Stage("write", StageKind.SINK, "m:write"),
    )


def test_both_plans_ask_the_same_decider_in_the_same_epoch() -> None:
    stand = Stand()
    stand.join("w1")
    carried_out(stand, stand.listed(carried_out(stand, stand.apply(deduplicated())), A))
    epoch = stand.run.ledger.epoch
    said = carried_out(stand, steer(stand, transports={"dedup": "pipe"})[1])
    assert {link.transport for link in of(m.MakeLink, said) if "dedup" in link.link} == {"pipe"}
    assert [start.task for start in of(m.StartTask, said)] == ["run/read.1"]
    assert [stop.task for stop in of(m.StopTask, said)] == ["run/read.0"]
    assert [task.plan.name for task in stand.run.tasks or ()] == ["run/read.1", "run/dedup.0"]
    assert (stand.run.ledger.epoch, stand.run.state) == (epoch, RunState.RUNNING)


def test_behind_a_dedup_stage_a_graph_is_changed_with_its_index() -> None:
    stand = Stand()
    stand.join("w1")
    carried_out(stand, stand.listed(carried_out(stand, stand.apply(deduplicated())), A))
    epoch, late = stand.run.ledger.epoch, Stage("late", StageKind.TRANSFORM, "m:late")
    said = carried_out(stand, stand.apply(deduplicated(late), amend=True))
    assert [start.stages for start in of(m.StartTask, said)] == [("read", "late", "write")]
    assert [answer.accepted for answer in of(m.AnswerRequest, said)] == [True]
    assert (stand.run.ledger.epoch, stand.run.version) == (epoch, deduplicated(late).version())


def test_what_waits_for_records_of_the_next_version_is_given_up() -> None:
    stand = Stand()
    stand.join("w1")
    carried_out(stand, stand.listed(carried_out(stand, stand.apply(deduplicated())), A))
    late = deduplicated(Stage("late", StageKind.TRANSFORM, "m:late"))
    commands = stand.swept(stand.ready(stand.apply(late, amend=True)), Range(A.id, 0, 4))
    (seal,) = of(m.SealSink, commands)
    assert of(m.StopTask, [*commands, *stand.later(LEAVE_S_MAX / 2)]) == [], "it may be closed"
    (order,) = of(m.ReadFragment, commands)
    commands = stand.later(LEAVE_S_MAX)
    assert [stop.task for stop in of(m.StopTask, commands)] == [seal.task]
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    carried_out(stand, commands)
    read = stand.tell(m.FragmentWasRead(order.task, order.attempt, A.id, 10))
    again = of(m.ReadFragment, stand.swept(read, Range(A.id, 4, 6)))
    assert [[(gap.first, gap.end) for gap in one.gaps] for one in again] == [[(0, 4)]], "what it held is read again"


def test_a_decider_that_dies_while_others_take_over_is_missed_by_them() -> None:
    stand = Stand()
    stand.join("w1")
    carried_out(stand, stand.listed(carried_out(stand, stand.apply(deduplicated())), A))
    stand.ready(steer(stand, transports={"dedup": "pipe"})[1])
    stand.tell(m.TaskExited(*stand.task(1), -9))
    assert stand.run.state is RunState.RUNNING, "it starts first"
    started = stand.later(1.0)
    assert [start.fenced for start in of(m.StartTask, started)] == [True]
    carried_out(stand, started)
    assert changes(stand).count("EpochRaised") == 2, "at the beginning, and for the index that was lost"
    assert (stand.run.amendment.busy, stand.run.state) == (False, RunState.RUNNING)


# -- drains --


def drained(stand: Stand, worker: str, *, back: bool = False) -> tuple[m.AnswerRequest, list[m.Command]]:
    commands = stand.tell(m.DrainRequested(8, worker, back))
    (answer,) = of(m.AnswerRequest, commands)
    return answer, commands


def test_the_tasks_of_a_drained_worker_end_when_others_have_their_input() -> None:
    stand = Stand()
    running(stand, "w1", "w2")
    answer, commands = drained(stand, "w1")
    assert answer.accepted
    assert [(start.worker, start.task) for start in of(m.StartTask, commands)] == [("w2", "run/read.2")]
    commands = stand.ready(commands)
    assert {(ask.task, ask.halt) for ask in of(m.SweepTask, commands)} == {
        ("run/read.0", True),
        ("run/read.1", False),
        ("run/read.2", False),
    }
    commands = stand.swept(commands, Range(A.id, 0, 4))
    assert [(seal.worker, seal.task) for seal in of(m.SealSink, commands)] == [("w1", "run/read.0")]
    assert of(m.StopTask, commands) == []
    commands = stand.propose(Range(A.id, 0, 4))
    assert [(stop.worker, stop.task) for stop in of(m.StopTask, commands)] == [("w1", "run/read.0")]
    assert workers_of(stand) == ["w2", "w2"]
    assert stand.run.state is RunState.RUNNING


def test_a_worker_that_is_left_is_not_waited_for_without_end() -> None:
    stand = Stand()
    running(stand, "w1", "w2")
    commands = stand.ready(drained(stand, "w1")[1])
    assert of(m.SweepTask, commands)
    assert stand.run.wake_at() is not None
    commands = stand.later(LEAVE_S_MAX)
    assert [(stop.worker, stop.task) for stop in of(m.StopTask, commands)] == [("w1", "run/read.0")]
    assert workers_of(stand) == ["w2", "w2"]
    again = carried_out(stand, commands)
    assert [order.fragment.id for order in of(m.ReadFragment, again)] == [A.id], "what it had is read again"


def test_workers_that_are_left_at_one_moment_are_one_change() -> None:
    stand = Stand()
    running(stand, "w1", "w2", "w3")
    (start,) = of(m.StartTask, drained(stand, "w1")[1])
    drained(stand, "w2")
    again = stand.tell(m.TaskFailed(start.task, start.attempt, "no room", final=False))
    said = carried_out(stand, again)
    assert {(stop.worker, stop.task) for stop in of(m.StopTask, said)} >= {("w1", "run/read.0"), ("w2", "run/read.1")}
    assert workers_of(stand) == ["w3"] * 3


def test_what_is_asked_meanwhile_is_made_behind_it() -> None:
    stand = Stand()
    first = running(stand, "w1", "w2")
    commands = [*first, *drained(stand, "w1")[1]]
    answer, _ = steer(stand, replicas={"read": 3})
    assert answer.accepted
    carried_out(stand, commands)
    assert workers_of(stand) == ["w2", "w2", "w2"]


def test_a_pause_that_is_asked_meanwhile_comes_first() -> None:
    stand = Stand()
    running(stand, "w1")
    steer(stand, replicas={"read": 2})
    _, commands = steer(stand, pause=True)
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.1"]
    carried_out(stand, commands)
    assert stand.run.state is RunState.PAUSED
    assert len(workers_of(stand)) == 2


def test_each_of_more_tasks_reads_once_it_is_ready() -> None:
    stand = Stand()
    running(stand, "w1")
    commands = steer(stand, replicas=dict.fromkeys(("read", "keep", "write"), 3))[1]
    first, second = of(m.StartTask, commands)
    stand.tell(m.TaskReady(first.task, first.attempt))
    assert stand.run.amendment.state is AmendState.HANDING_OVER
    assert stand.run.works is not None
    assert stand.run.works.on_trial, "until all are ready"
    failed = stand.tell(m.TaskFailed(second.task, second.attempt, "no room", final=False))
    assert [stop.task for stop in of(m.StopTask, failed)][:1] == [first.task]
    assert len(workers_of(stand)) == 1


def test_a_change_whose_tasks_cannot_work_is_refused() -> None:
    stand = Stand()
    running(stand, "w1")
    before = stand.task()
    commands = steer(stand, replicas={"read": 2})[1]
    for _ in range(TRIES_MAX):
        (start,) = of(m.StartTask, commands)
        commands = stand.tell(m.TaskFailed(start.task, start.attempt, "no room", final=True))
    assert of(m.StartTask, commands) == []
    assert stand.run.reconfiguration.refused.startswith("read to 2 tasks, keep to 2 tasks, write to 2 tasks: ")
    assert "no room" in stand.run.reconfiguration.refused
    assert (stand.task(), stand.run.state) == (before, RunState.RUNNING)
    assert len(workers_of(stand)) == 1


def test_a_drained_worker_gets_no_task_until_it_is_taken_back() -> None:
    stand = Stand()
    stand.join("w1", "w2")
    drained(stand, "w1")
    stand.apply()
    assert workers_of(stand) == ["w2"]
    drained(stand, "w1", back=True)
    stand.swept(stand.ready(steer(stand, replicas={"read": 2})[1]))
    stand.apply(make_pipeline(name="other"))
    assert "w1" not in stand.core.drained


def test_the_only_worker_of_a_run_cannot_be_drained() -> None:
    stand = Stand()
    running(stand, "w1")
    answer, _ = drained(stand, "w1")
    assert "pipeline 'run': 1 task has nowhere else to go, such as run/read.0" in answer.reason
    assert stand.run.state is RunState.RUNNING


def test_a_worker_that_is_not_here_cannot_be_drained() -> None:
    stand = Stand()
    stand.join("w1")
    answer, _ = drained(stand, "w9")
    assert answer.reason == "no worker 'w9'; there are: w1"


# -- several pipelines --


def hungry(name: str) -> Pipeline:
    """A pipeline of one task that takes two cores."""
    made = make_pipeline(name=name)
    first, *rest = (replace(stage, replicas=1) for stage in made.stages)
    return Pipeline(name, f"file:///{name}", (replace(first, cores=2.0), *rest))


def test_two_pipelines_share_what_a_worker_has() -> None:
    stand = Stand()
    stand.join("w1", "w2", cores=3)
    stand.apply(hungry("one"))
    stand.apply(hungry("two"))
    places = {name: [task.plan.worker for task in run.tasks or ()] for name, run in stand.core.runs.items()}
    assert places == {"one": ["w1"], "two": ["w2"]}
    (answer,) = of(m.AnswerRequest, stand.apply(hungry("three")))
    assert not answer.accepted
    assert "w1: 1 cores" in answer.reason


def test_what_an_ended_pipeline_reserved_is_free_again() -> None:
    stand = Stand()
    stand.join("w1", cores=3)
    stand.apply(hungry("one"))
    stand.tell(m.StopRequested("one", cancel=True))
    (answer,) = of(m.AnswerRequest, stand.apply(hungry("two")))
    assert answer.accepted
