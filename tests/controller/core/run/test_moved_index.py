"""The index of a dedup stage is moved: an epoch begins with the one that takes its place."""

from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.dedup import ServeIndex
from headrace.controller.core.run.states import RunState
from headrace.controller.core.run.tasks.task_table import ATTEMPTS_A_TERM
from headrace.pipeline.graph import Pipeline, Stage, StageKind
from headrace.store.ledger.core.entries import EpochRaised
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import LOG, Stand, changes, close, fragment, make_pipeline, of, proposal

A, B = fragment(0), fragment(1)
#: The first attempt of a task in the first term.
FIRST = ATTEMPTS_A_TERM + 1
OLD = make_pipeline()
DEDUP = Stage("dedup", StageKind.STATEFUL, "m:d", replicas=1)
DEDUPED = Pipeline.chain("run", LOG, *OLD.stages[:2], DEDUP, *OLD.stages[2:])


def running() -> tuple[Stand, list[m.Command]]:
    """A run that asks a decider on one of two workers, and has been given two fragments."""
    stand = Stand()
    stand.replicas = 1
    stand.tell(*(m.WorkerRegistered(name, "host", 1, 1 << 30, host_id="host", door="door") for name in ("w1", "w2")))
    return stand, stand.listed(stand.ready(stand.apply(DEDUPED)), A, B)


def other_place(stand: Stand) -> dict[str, str]:
    assert stand.run.tasks is not None
    (decider,) = (task for task in stand.run.tasks if task.plan.stages == ("dedup",))
    return {"dedup": "w1" if decider.plan.worker == "w2" else "w2"}


def test_an_index_that_is_moved_at_rest_raises_the_epoch_there() -> None:
    stand, _ = running()
    place = other_place(stand)
    commands = stand.tell(m.SteerRequested(7, "run", pause=True))
    stand.swept(commands, Range(A.id, 0, 4))
    task = next(name for name, _ in (stand.task(0), stand.task(1)) if "read" in name)
    close(stand, DEDUPED.version(), task, Range(A.id, 0, 4))
    assert stand.run.state is RunState.PAUSED
    epoch = stand.run.ledger.epoch
    commands = stand.tell(m.SteerRequested(8, "run", places=place))
    starts = of(m.StartTask, [*commands, *stand.later(0.1)])
    assert stand.run.ledger.epoch > epoch
    assert changes(stand).count("EpochRaised") == 2, "at the beginning, and for the move"
    assert {(start.epoch, start.fenced) for start in starts} == {(stand.run.ledger.epoch, False)}
    assert [start.worker for start in starts if start.stages == ("dedup",)] == [place["dedup"]]
    assert of(m.StartTask, stand.ready(starts)) == [], "nothing is started a second time"


def warming() -> tuple[Stand, list[m.Command]]:
    """The decider is to be on the other worker: the next tasks are started beside those in force."""
    stand, _ = running()
    commands = stand.tell(m.SteerRequested(7, "run", places=other_place(stand)))
    return stand, commands


def handing_over() -> tuple[Stand, list[m.Command]]:
    """The next tasks are ready, and read."""
    stand, commands = warming()
    return stand, stand.ready(commands)


def empty(stand: Stand, commands: list[m.Command]) -> list[m.Command]:
    """Those in force answer the sweep, and what their sink held is closed."""
    halted = (m.TaskSwept(ask.task, ask.attempt, ask.sweep) for ask in of(m.SweepTask, commands) if ask.halt)
    return stand.tell(*halted)


def test_next_tasks_start_in_the_epoch_that_is_to_come() -> None:
    stand, commands = warming()
    starts = of(m.StartTask, commands)
    assert {seal.task for seal in of(m.SealSink, commands)} == {"run/read.0"}, "what it holds is closed meanwhile"
    assert {start.task for start in starts} == {"run/read.1", "run/dedup.1"}
    assert {start.epoch for start in starts} == {stand.run.ledger.number}
    assert stand.run.ledger.number > stand.run.ledger.epoch
    assert {start.stages: start.waits for start in starts} == {("read", "keep", "write"): False, ("dedup",): True}
    assert {start.replica for start in starts if start.waits} == {0}, "it decides"
    assert of(m.StopTask, commands) == []


def test_an_index_takes_over_when_those_in_force_are_empty() -> None:
    stand, commands = handing_over()
    epoch, number = stand.run.ledger.epoch, stand.run.ledger.number
    assert {order.task for order in of(m.ReadFragment, commands)} <= {"run/read.1"}
    assert {link.epoch for link in of(m.MakeLink, commands)} == {number}
    assert of(ServeIndex, commands) == []
    assert stand.run.ledger.epoch == epoch
    commands = empty(stand, commands)
    assert stand.run.ledger.epoch == number, "the epoch is that of the next tasks"
    assert stand.log[-1].changes == (EpochRaised("another index takes over", number),)
    assert of(ServeIndex, commands) == [ServeIndex("w2", "run/dedup.1", FIRST, stand.run.ledger.number)]
    assert {stop.task for stop in of(m.StopTask, commands)} == {"run/read.0", "run/dedup.0"}
    assert (stand.run.state, stand.run.amendment.busy) == (RunState.RUNNING, False)


def test_nothing_of_the_next_epoch_is_judged_before_it_is_raised() -> None:
    stand, commands = handing_over()
    (order,) = of(m.StartTask, warming()[1])[:1]
    shard = proposal([Range(A.id, 0, 4)], version=DEDUPED.version(), epoch=order.epoch, task="run/read.1")
    assert of(m.AnswerProposal, stand.tell(structs.replace(shard, attempt=FIRST))) == []
    empty(stand, commands)
    (answer,) = of(m.AnswerProposal, stand.tell(structs.replace(shard, attempt=FIRST)))
    assert answer.outcome is m.Outcome.ACCEPTED


def test_what_is_proposed_late_of_the_epoch_before_is_refused() -> None:
    stand, commands = handing_over()
    epoch = stand.run.ledger.epoch
    empty(stand, commands)
    late = proposal([Range(A.id, 0, 4)], version=DEDUPED.version(), epoch=epoch, task="run/read.0")
    assert of(m.AnswerProposal, stand.tell(structs.replace(late, attempt=FIRST))) == []
    assert stand.run.ledger.fragments[A.id].of("write").size == 0


def test_a_next_index_that_dies_leaves_the_one_that_serves() -> None:
    stand, _ = handing_over()
    epoch = stand.run.ledger.epoch
    commands = stand.tell(m.TaskExited("run/dedup.1", FIRST, -9))
    assert {stop.task for stop in of(m.StopTask, commands)} == {"run/read.1"}
    assert (stand.run.ledger.epoch, stand.run.amendment.busy) == (epoch, False)


def test_no_two_tries_are_of_one_epoch() -> None:
    stand, commands = warming()
    (first,) = {start.epoch for start in of(m.StartTask, commands)}
    commands = stand.tell(m.TaskExited("run/dedup.1", FIRST, -9))
    assert of(m.StartTask, commands) == [], "the log has no newer entry: the run rests for it"
    assert {ask.halt for ask in of(m.SweepTask, commands)} == {True}
    assert stand.run.ledger.number == first


def test_an_index_that_still_waits_is_not_taken_from_a_worker() -> None:
    stand, commands = handing_over()
    commands = empty(stand, commands)
    stand.tell(m.WorkerLost("w2", "away"))
    (serve,) = of(ServeIndex, commands)
    found = m.RunningTask(serve.task, serve.attempt, DEDUPED.version(), stand.run.ledger.epoch, ready=True, linked=True)
    back = m.WorkerRegistered(
        "w2", "host", 1, 1 << 30, host_id="host", door="door", tasks=(structs.replace(found, waits=True),)
    )
    commands = [*stand.tell(back), *stand.later(1.0)]
    assert [kill.task for kill in of(m.KillTask, commands)] == ["run/dedup.1"]
    assert [start.fenced for start in of(m.StartTask, commands) if start.task == "run/dedup.1"] == [True]
