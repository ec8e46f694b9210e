"""The graph of a run is changed while records flow: tasks side by side, one version a shard, and a way back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import Allowance, ChangedInput
from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.plans import Change, RequestedChanges
from headrace.controller.core.run.amendment import why_an_epoch, why_not_amended
from headrace.controller.core.run.opening import Inheritance, Surroundings
from headrace.controller.core.run.run import Run
from headrace.controller.core.run.states import AmendState, RunState
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM
from headrace.controller.core.run.tasks.workers import Workers
from headrace.controller.servicer import _kept, dry_run
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.cluster_changes import RunAmended, RunPlanned
from headrace.store.ledger.core.entries import Closed, Led, PipelineApplied
from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.cluster_log import CLUSTER, Bench, Store, succeeded
from tests.kits.controller.core import LOG, Stand, amending, changes, close, fragment, make_pipeline, of

A, B = fragment(0), fragment(1)
COUNT = 10
#: The first attempt of a task in the first term.
FIRST = ATTEMPTS_A_TERM + 1
OLD, NEXT = make_pipeline(), make_pipeline(rule=2)
MORE = Pipeline.chain("run", LOG, *OLD.stages[:2], Stage("more", StageKind.TRANSFORM, "m:more"), *OLD.stages[2:])


def next_tasks(commands: Sequence[object]) -> list[tuple[str, int, str]]:
    return [(start.task, start.attempt, start.version) for start in of(m.StartTask, commands)]


def warming(pipeline: Pipeline = NEXT) -> tuple[Stand, list[m.Command]]:
    """A run that reads two fragments; another graph was asked for, and its task starts."""
    stand = Stand()
    stand.begin(A, B)
    return stand, stand.tell(amending(pipeline))


def handing_over() -> tuple[Stand, list[m.Command]]:
    """The next task is ready: a sweep is on its way, and the task in force was told to let go."""
    stand, commands = warming()
    return stand, stand.ready(commands)


def test_the_next_tasks_start_beside_those_in_force_which_read_on() -> None:
    stand, commands = warming()
    assert next_tasks(commands) == [("run/read.1", FIRST, NEXT.version())]
    assert of(m.StopTask, commands) == []
    assert of(m.SweepTask, commands) == []
    assert stand.run.version == OLD.version()
    assert close(stand, OLD.version(), "run/read.0", Range(A.id, 0, COUNT)) != []
    assert stand.run.amendment.words(stand.run.works).endswith("warming, 0 of 1 task ready")


def test_what_is_not_ready_yet_took_no_time_so_far() -> None:
    stand = Stand()
    stand.now = 100.0
    stand.join("w1")
    commands = stand.apply()
    assert dry_run(stand.core, amending(NEXT)).plan.shared_s == 0.0
    stand.now += 2.0
    stand.ready(commands)
    assert dry_run(stand.core, amending(NEXT)).plan.shared_s == pytest.approx(2.0)


def test_the_next_sources_read_what_is_open_and_that_alone() -> None:
    stand, commands = handing_over()
    assert [(ask.task, ask.halt) for ask in of(m.SweepTask, commands)] == [("run/read.0", True), ("run/read.1", False)]
    commands = stand.swept(commands, Range(A.id, 0, 4))
    assert [(seal.task, seal.reason) for seal in of(m.SealSink, commands)] == [("run/read.0", "amended")]
    orders = [(order.task, order.fragment.id, order.gaps[0].first) for order in of(m.ReadFragment, commands)]
    assert sorted(orders) == sorted([("run/read.1", A.id, 4), ("run/read.1", B.id, 0)])


def test_old_tasks_leave_when_they_are_empty_though_the_marker_waits_elsewhere() -> None:
    """The next sink may be full: its shards wait for the version that is applied when the old one is gone."""
    stand, commands = handing_over()
    (ask,) = (ask for ask in of(m.SweepTask, commands) if ask.task == "run/read.0")
    held = (("write", (Range(A.id, 0, 4),)),)
    commands = stand.tell(m.TaskSwept(ask.task, ask.attempt, ask.sweep, held=held))
    assert [(seal.task, seal.reason) for seal in of(m.SealSink, commands)] == [("run/read.0", "amended")]
    commands = close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.0"]
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    assert [again.task for again in of(m.SweepTask, commands)] == ["run/read.1"]


def test_a_shard_waits_until_its_version_is_in_force() -> None:
    stand, commands = handing_over()
    stand.swept(commands, Range(A.id, 0, 4))
    early = close(stand, NEXT.version(), "run/read.1", Range(B.id, 0, 4))
    assert of(m.AnswerProposal, early) == [], "neither refused nor closed: the sink asks again"
    commands = close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.0"]
    assert [answer.accepted for answer in of(m.AnswerRequest, commands)] == [True]
    again = close(stand, NEXT.version(), "run/read.1", Range(B.id, 0, 4))
    assert of(m.AnswerProposal, again)[0].outcome is m.Outcome.ACCEPTED
    found = [change for entry in stand.log for change in entry.changes if isinstance(change, Closed | PipelineApplied)]
    assert [change.version for change in found] == [OLD.version(), OLD.version(), NEXT.version(), NEXT.version()]
    assert changes(stand).count("EpochRaised") == 1, "the epoch stays"
    late = close(stand, OLD.version(), "run/read.0", Range(B.id, 4, 4))
    assert of(m.AnswerProposal, late) == []
    assert changes(stand).count("Closed") == 2


@pytest.mark.parametrize("gate", [{}, {"kept_share": {"min": 0.5}}])
def test_the_gate_is_that_of_the_version_in_force(gate: dict[str, dict[str, float]]) -> None:
    stand = Stand()
    stand.gate = {"kept_share": {"min": 0.9}}
    stand.begin(A, B)
    commands = stand.ready(stand.tell(replace(amending(NEXT), gate=gate)))
    stand.swept(commands)
    assert stand.run.version == NEXT.version()
    said = [*close(stand, NEXT.version(), "run/read.1", Range(A.id, 0, 4)), *stand.later(1.0)]
    assert [audit.gate for audit in of(m.AuditDataset, said)] == ([gate] if gate else [])


def test_what_a_gate_says_that_was_replaced_is_not_heeded() -> None:
    stand = Stand()
    stand.gate, stand.gate_pauses, stand.broken, stand.audits = {"kept_share": {"min": 0.9}}, True, ("kept: 0.4",), []
    stand.begin(A, B)
    close(stand, OLD.version(), "run/read.0", Range(A.id, 0, 4))
    stand.later(1.0)
    (asked,) = stand.audits
    gate = {"kept_share": {"min": 0.3}}
    stand.swept(stand.ready(stand.tell(replace(amending(OLD), gate=gate, gate_pauses=True))))
    stand.answer_audits()
    assert (asked.gate, stand.run.state, stand.run.trouble(stand.now)) == (stand.gate, RunState.RUNNING, "")
    stand.later(1.0)
    assert [audit.gate for audit in stand.audits] == [gate], "of the shards that the other was asked of"


@pytest.mark.parametrize(
    "options",
    [
        {"gate": {"kept": {"min": 1000}}},
        {"allowance": Allowance(0)},
        {"autoscale": "on"},
        {"limits": {"record_s": 1.0}},
        {"places": {"read": "w1"}},
        {"replicas": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_options_of_the_same_graph_are_taken_up(options: dict[str, Any]) -> None:
    stand = Stand()
    stand.begin(A, B)
    event = replace(amending(OLD), **options)
    commands = stand.tell(event)
    assert of(m.AnswerRequest, commands) == [], "it is in force when its tasks are"
    next_task = of(m.StartTask, commands)[0].task
    assert stand.run.amendment.options(next_task, stand.run.works) is event
    assert stand.run.amendment.options("run/read.0", stand.run.works) is None
    (answer,) = of(m.AnswerRequest, stand.swept(stand.ready(commands)))
    assert (answer.accepted, answer.warnings) == (True, ())
    assert [getattr(stand.run.request, name) for name in options] == [*options.values()]
    (again,) = of(m.AnswerRequest, stand.tell(replace(event, request=10)))
    assert again.warnings == ("pipeline run is in force as it was asked for",)


@pytest.mark.parametrize("pipeline", [OLD, NEXT])
def test_options_that_stay_as_they_were_applied_are_refused(pipeline: Pipeline) -> None:
    stand = Stand()
    stand.begin(A, B)
    event = replace(amending(pipeline), changed_input=ChangedInput.DROP, priority=2)
    (answer,) = of(m.AnswerRequest, stand.tell(event))
    assert not answer.accepted
    assert "keeps its changed input, priority while it runs: stop the pipeline" in answer.reason
    assert dry_run(stand.core, event).reason == answer.reason


def test_attempts_are_numbered_behind_those_of_an_earlier_version() -> None:
    stand, commands = handing_over()
    stand.swept(commands)
    assert stand.run.version == NEXT.version()
    commands = stand.tell(amending(OLD))
    assert next_tasks(commands) == [("run/read.0", FIRST + 1, OLD.version())]


@pytest.mark.parametrize("phase", [warming, handing_over])
@pytest.mark.parametrize(
    "loss",
    [
        lambda task: m.TaskFailed(*task, "no model", final=True),
        lambda task: m.TaskFailed(*task, "no model", final=False),
        lambda task: m.TaskExited(*task, -9, "no model"),
    ],
    ids=["fails for good", "fails", "dies"],
)
def test_what_the_next_version_loses_rolls_the_change_back(phase: object, loss: object) -> None:
    stand, commands = phase()  # type: ignore[operator]
    if phase is handing_over:
        commands = stand.swept(commands, Range(A.id, 0, 4))
        assert of(m.ReadFragment, commands)
    commands = stand.tell(loss(("run/read.1", FIRST)))  # type: ignore[operator]
    (answer,) = of(m.AnswerRequest, commands)
    assert not answer.accepted
    assert "rolled back: " in answer.reason
    assert "no model" in answer.reason
    assert (stand.run.state.value, stand.run.version) == ("running", OLD.version())
    assert stand.run.amendment.state is AmendState.IN_FORCE
    assert [task.plan.name for one in stand.run.task_sets for task in one] == ["run/read.0"]
    if phase is handing_over:
        again = stand.swept(commands, Range(A.id, 0, 4))
        orders = [(order.task, order.fragment.id) for order in of(m.ReadFragment, again)]
        assert sorted(orders) == sorted([("run/read.0", A.id), ("run/read.0", B.id)]), (
            "what the next one had is read again"
        )
    commands = stand.tell(amending(NEXT))
    assert next_tasks(commands) == [("run/read.1", FIRST + 1, NEXT.version())], "asked for again, it is tried again"


def test_a_change_that_fails_in_a_sweep_leaves_nothing_unread() -> None:
    """The task in force was told to let go, and has or has not when the change is rolled back."""
    fails = m.TaskFailed("run/read.1", FIRST, "no model", final=False)
    stand, _ = handing_over()
    commands = stand.swept(stand.tell(fails))
    assert {(order.task, order.fragment.id) for order in of(m.ReadFragment, commands)} == {
        ("run/read.0", A.id),
        ("run/read.0", B.id),
    }
    stand, _ = handing_over()
    (ask,) = of(m.SweepTask, stand.tell(fails))
    unread = (Gap(0, UNBOUNDED, 0),)
    commands = stand.tell(m.TaskSwept(ask.task, ask.attempt, ask.sweep, pending=((A.id, unread), (B.id, unread))))
    assert of(m.ReadFragment, commands) == [], "it has them still"
    stand.tell(*(m.FragmentWasRead(ask.task, ask.attempt, item.id, COUNT) for item in (A, B)))
    assert stand.run.intake.idle


def test_what_waits_is_handed_out_when_a_rolled_back_halt_has_passed() -> None:
    """The order to let go may be on its way still, and would let go of it."""
    stand, items = Stand(), [fragment(index, 5 << 20) for index in range(9)]
    stand.begin(*items)
    commands = stand.ready(stand.tell(amending(NEXT)))
    assert of(m.ReadFragment, commands), "the next task reads some, and others wait"
    commands = stand.tell(m.TaskFailed("run/read.1", FIRST, "no model", final=False))
    assert of(m.ReadFragment, commands) == []
    given = of(m.ReadFragment, stand.swept(commands))
    while len(given) < len(items):
        more = of(m.ReadFragment, stand.read(given[-1].fragment, COUNT))
        assert more
        given += more
    assert {order.fragment.id for order in given} == {item.id for item in items}


def test_what_a_dying_old_task_held_is_read_by_the_next() -> None:
    stand, commands = handing_over()
    stand.swept(commands, Range(A.id, 0, 4))
    stand.tell(m.TaskExited("run/read.0", FIRST, -9))
    commands = stand.ready(stand.later(1.0))
    sweeps = of(m.SweepTask, commands)
    assert [(ask.task, ask.attempt, ask.halt) for ask in sweeps] == [
        ("run/read.0", FIRST + 1, True),
        ("run/read.1", FIRST, False),
    ]
    answers = [m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in sweeps]
    commands = stand.tell(answers[0], structs.replace(answers[1], pending=((B.id, (Gap(0, UNBOUNDED, -1),)),)))
    assert {(order.task, order.fragment.id) for order in of(m.ReadFragment, commands)} <= {("run/read.1", A.id)}
    assert stand.run.version == NEXT.version()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (Pipeline("run", "file:///other", OLD.stages), "the dataset is"),
        (
            Pipeline.chain("run", LOG, Stage("read", StageKind.SOURCE, "m:read", {"keys": 2}), *OLD.stages[1:]),
            "'read' reads, and would do so otherwise",
        ),
        (
            Pipeline.chain("run", LOG, *OLD.stages[:2], Stage("write", StageKind.SINK, "m:write", {"seq_len": 2})),
            "'write' writes, and would do so otherwise",
        ),
        (
            Pipeline.chain("run", LOG, *OLD.stages[:2], Stage("out", StageKind.SINK, "m:write")),
            "what writes would be out",
        ),
    ],
)
def test_a_graph_of_other_sources_or_sinks_is_refused(after: Pipeline, words: str) -> None:
    assert words in why_not_amended(OLD, after)
    _, commands = warming(after)
    (answer,) = of(m.AnswerRequest, commands)
    assert not answer.accepted
    assert words in answer.reason
    assert "stop the pipeline, and apply it with --amend" in answer.reason


def test_a_stage_before_a_sink_may_be_inserted() -> None:
    assert why_not_amended(OLD, MORE) == why_not_amended(MORE, OLD) == ""
    assert why_an_epoch(OLD, MORE) == ""


def test_a_graph_made_of_another_version_is_refused() -> None:
    stand = Stand()
    stand.begin(A, B)
    (answer,) = of(m.AnswerRequest, stand.tell(replace(amending(MORE), was=NEXT.version())))
    assert not answer.accepted
    assert f"was changed meanwhile: it has version {OLD.version()}" in answer.reason
    (answer,) = of(m.AnswerRequest, stand.tell(replace(amending(OLD), was=NEXT.version())))
    assert answer.accepted, "it is what was asked for, whoever was first"
    assert next_tasks(stand.tell(replace(amending(MORE), was=OLD.version())))


def test_what_decides_nothing_is_no_change() -> None:
    stand = Stand()
    stand.begin(A, B)
    for event in (amending(make_pipeline(replicas=3)), replace(amending(make_pipeline(replicas=3)), was=OLD.version())):
        (answer,) = stand.tell(event)
        assert isinstance(answer, m.AnswerRequest)
        assert not answer.accepted
        assert "would decide as it does (keep.replicas: null -> 3)" in answer.reason
        assert not answer.passes
    assert not dry_run(stand.core, amending(make_pipeline(replicas=3))).accepted
    (answer,) = of(m.AnswerRequest, stand.tell(amending(OLD)))
    assert answer.accepted


def test_while_a_graph_is_changed_nothing_else_is() -> None:
    stand, _ = warming()
    for event in (amending(MORE), m.SteerRequested(7, "run", pause=True), m.DrainRequested(7, "w1")):
        (answer,) = of(m.AnswerRequest, stand.tell(event))
        assert not answer.accepted
        assert "is being changed: try again" in answer.reason
        assert answer.passes, "whoever asks does so again by himself"
    assert dry_run(stand.core, amending(MORE)).standby


def test_the_same_request_sent_again_is_answered_once() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.tell(amending(NEXT, token="mine"))
    assert of(m.AnswerRequest, stand.tell(amending(NEXT, token="mine", request=10))) == []
    commands = stand.ready(commands)
    assert [answer.request for answer in of(m.AnswerRequest, stand.swept(commands))] == [10]
    assert of(m.AnswerRequest, stand.tell(amending(NEXT, token="mine", request=11)))[0].accepted


def test_a_graph_in_force_is_granted_and_none_of_a_paused_run() -> None:
    stand = Stand()
    stand.begin(A)
    (answer,) = of(m.AnswerRequest, stand.tell(amending(OLD)))
    assert answer.accepted
    stand.tell(m.SteerRequested(7, "run", pause=True))
    (answer,) = of(m.AnswerRequest, stand.tell(amending(NEXT)))
    assert "is pausing: a graph is changed while it is running" in answer.reason


def test_a_run_that_is_stopped_meanwhile_says_so() -> None:
    stand, _ = warming()
    commands = stand.tell(m.StopRequested("run", cancel=False))
    assert "rolled back: the pipeline is draining" in of(m.AnswerRequest, commands)[0].reason
    stand, _ = handing_over()
    commands = stand.tell(m.StopRequested("run", cancel=True))
    assert of(m.AnswerRequest, commands)[0].reason == "the pipeline is cancelled: its graph is as it was"
    assert {stop.task for stop in of(m.StopTask, commands)} == {"run/read.0", "run/read.1"}


# -- with a cluster's log --


def amended(store: Store, slow: str = "") -> tuple[Bench, list[m.Command]]:
    """A leader of a cluster whose run was given another graph, at rest for a moment: it becomes empty at once."""
    leader = Bench(store, "a")
    leader.begun()
    leader.slow = slow
    commands = leader.tell(m.PipelineRequested(9, NEXT.to_dict(), amend=True, replicas=1))
    commands = leader.tell(*(m.TaskReady(start.task, start.attempt) for start in of(m.StartTask, commands)))
    sweeps = of(m.SweepTask, commands)
    return leader, leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in sweeps))


def test_a_successor_goes_on_with_the_graph_that_was_taken_up() -> None:
    store = Store()
    _, commands = amended(store)
    assert of(m.AnswerRequest, commands)[0].accepted
    kinds = [type(change) for entry in store.logs[CLUSTER] for change in entry.changes]
    assert RunAmended in kinds
    second = succeeded(store)
    epoch = second.core.runs["run"].ledger.epoch
    second.join("w1", m.RunningTask("run/read.1", FIRST, NEXT.version(), epoch, ready=True))
    run = second.core.runs["run"]
    assert run.version == NEXT.version()
    assert [(task.plan.name, task.attempt) for task in run.tasks or ()] == [("run/read.1", FIRST)]


def test_a_sweep_waits_for_no_task_of_a_graph_that_is_gone() -> None:
    """It begins while the cluster's log takes the change."""
    leader, _ = amended(Store(), slow=CLUSTER)
    assert leader.core.runs["run"].amendment.state is AmendState.RECORDING
    leader.tell(m.TaskExited("run/read.1", FIRST, -9))
    (start,) = of(m.StartTask, leader.later(1.0))
    sweeps = of(m.SweepTask, leader.tell(m.TaskReady(start.task, start.attempt)))
    assert [ask.task for ask in sweeps] == ["run/read.0", "run/read.1"]
    commands = leader.hurry()
    assert [stop.task for stop in of(m.StopTask, commands)] == ["run/read.0"]
    (ask,) = of(m.SweepTask, commands)
    commands = leader.tell(m.TaskSwept(ask.task, ask.attempt, ask.sweep))
    assert [order.task for order in of(m.ReadFragment, commands)] == ["run/read.1", "run/read.1"]


def test_a_plan_of_the_graph_before_is_not_written_behind_the_next() -> None:
    """Its worker is lost while the cluster's log takes the change, and its task is planned elsewhere."""
    store = Store()
    leader, _ = amended(store, slow=CLUSTER)
    leader.join("w2")
    leader.tell(m.WorkerLost("w1", "its session ended"))
    leader.later(60.0)
    run = leader.core.runs["run"]
    assert [(task.plan.name, task.plan.worker) for task in run.tasks or ()] == [("run/read.0", "w2")]
    leader.hurry()
    written = [change for entry in store.logs[CLUSTER] for change in entry.changes]
    behind = written[[type(change) for change in written].index(RunAmended) :]
    plans = [change.plan for change in behind if isinstance(change, RunPlanned)]
    assert [[row[0] for row in plan["tasks"]] for plan in plans] == [["run/read.1"]]


@pytest.mark.parametrize("stops", [False, True])
def test_a_run_does_not_end_between_two_logs(stops: bool) -> None:
    """The cluster's log takes another graph while the last of the input is closed, or the run is to stop."""
    leader, _ = amended(Store(), slow=CLUSTER)
    run = leader.core.runs["run"]
    assert run.amendment.state is AmendState.RECORDING
    ends = (m.FragmentWasRead("run/read.1", FIRST, item.id, 0) for item in (A, B))
    said = leader.tell(m.StopRequested("run", cancel=False)) if stops else leader.tell(*ends)
    for _ in range(2):
        said += leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, said)))
    assert of(m.ReportRun, said) == []
    said = leader.hurry()
    assert [answer.accepted for answer in of(m.AnswerRequest, said) if answer.request == 9] == [True]
    assert run.ledger.pipeline_version == NEXT.version()
    said += leader.tell(*(m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, said)))
    assert [end.outcome for end in of(m.ReportRun, said)] == ["stopped" if stops else "failed"]


def test_a_successor_applies_a_graph_that_was_recorded_alone() -> None:
    """The leader dies between the two: the successor applies it, in a new epoch, and starts its tasks anew."""
    store = Store()
    amended(store)
    place = next(
        number
        for number, entry in enumerate(store.logs[LOG])
        if any(isinstance(change, PipelineApplied) and change.version == NEXT.version() for change in entry.changes)
    )
    del store.logs[LOG][place:]
    second = succeeded(store)
    commands = second.join("w1", m.RunningTask("run/read.1", FIRST, NEXT.version(), 1, ready=True))
    run = second.core.runs["run"]
    assert (run.state.value, run.ledger.pipeline_version) == ("running", NEXT.version())
    assert [kill.task for kill in of(m.KillTask, commands)] == ["run/read.1"]
    assert [type(change).__name__ for change in store.logs[LOG][-1].changes] == ["PipelineApplied", "EpochRaised"]
    assert isinstance(store.logs[LOG][place].changes[0], Led)


def test_a_leader_that_dies_before_leaves_the_graph_in_force() -> None:
    store = Store()
    leader = Bench(store, "a")
    leader.begun()
    leader.tell(m.PipelineRequested(9, NEXT.to_dict(), amend=True, replicas=1))
    second = succeeded(store)
    epoch = second.core.runs["run"].ledger.epoch
    told = second.join(
        "w1",
        m.RunningTask("run/read.0", FIRST, OLD.version(), epoch, ready=True),
        m.RunningTask("run/read.1", FIRST, NEXT.version(), epoch, ready=True),
    )
    assert [kill.task for kill in of(m.KillTask, told)] == ["run/read.1"]
    assert second.core.runs["run"].version == OLD.version()


# -- options of stages that are gone --


def test_options_of_a_removed_stage_go_with_it() -> None:
    before = m.PipelineRequested(1, MORE.to_dict(), places={"more": "w1", "read": "w1"}, transports={"more": "ring"})
    kept = _kept(before, replace(amending(OLD, request=5, token="mine"), was="v"))
    assert (kept.request, kept.token, kept.was, kept.amend) == (5, "mine", "v", True)
    assert (kept.pipeline, kept.places, kept.transports) == (OLD.to_dict(), {"read": "w1"}, {})


def test_a_successor_forgets_what_was_changed_of_a_removed_stage() -> None:
    made = Change(replicas={"more": 2}, places={"more": "w1"}, transports={"more": "ring"})
    inherited = Inheritance(None, RequestedChanges(made=made), bool)
    workers = Workers([WorkerFacts("w1", 1)], (), dict)
    run = Run(m.PipelineRequested(1, OLD.to_dict()), Surroundings({}, workers), inherited)
    assert {task.stages for task in run.reconfiguration.plan().tasks} == {("read", "keep", "write")}
