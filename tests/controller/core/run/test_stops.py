"""A run that is stopped or cancelled: what sinks hold is closed first, or left open."""

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.entries import Entry, Led
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import Stand, changes, fragment, of

COUNT = 10
A = fragment(0)


def test_a_stop_lets_the_sinks_commit_what_they_hold() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.tell(m.StopRequested("run", cancel=False))
    assert [sweep.halt for sweep in of(m.SweepTask, commands)] == [True]
    commands = stand.swept(commands, Range(A.id, 0, 4))
    assert of(m.SealSink, commands)[0].reason == "stop"
    assert stand.run.state is RunState.DRAINING
    commands = stand.propose(Range(A.id, 0, 4))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "stopped")]
    assert changes(stand)[-3:] == ["Closed", "VersionPublished", "Resigned"]


def test_a_stop_during_a_sweep_that_halts_nobody_begins_one_that_does() -> None:
    stand = Stand()
    stand.begin(A)
    sweep = stand.read(A, COUNT)
    assert [ask.halt for ask in of(m.SweepTask, sweep)] == [False]
    commands = stand.tell(m.StopRequested("run", cancel=False))
    assert [ask.halt for ask in of(m.SweepTask, commands)] == [True]
    assert stand.swept(sweep, Range(A.id, 0, 4)) == [], "an answer to the first"


def test_a_stop_with_empty_hands_stops_at_once() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.swept(stand.tell(m.StopRequested("run", cancel=False)))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "stopped")]


def test_a_stop_waits_for_what_is_queued_for_the_log() -> None:
    """Of an attempt that was given up: no sink holds it, and the version and its gate are of it too."""
    stand = Stand()
    stand.gate = {"kept_share": {"min": 0.5}}
    stand.begin(A)
    stand.unresolved = True
    stand.propose(Range(A.id, 0, 4))
    commands = stand.swept(stand.tell(m.StopRequested("run", cancel=False)))
    assert of(m.AuditDataset, commands) == []
    stand.unresolved = False
    commands = stand.later(5.0)
    assert [audit.final for audit in of(m.AuditDataset, commands)] == [True]
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "stopped")]
    assert changes(stand)[-3:] == ["Closed", "VersionPublished", "Resigned"]


def test_a_task_that_fails_when_all_is_closed_fails_no_run() -> None:
    stand = Stand()
    stand.full = "no room"
    stand.begin(A)
    stand.swept(stand.read(A, COUNT), Range(A.id, 0, COUNT))
    stand.propose(Range(A.id, 0, COUNT))
    assert stand.run.state is RunState.PUBLISHING
    for final in (False, True):
        assert of(m.KillTask, stand.tell(m.TaskFailed(*stand.task(), "its sink is gone", final=final))) == []
    assert stand.run.state is RunState.PUBLISHING


def test_a_death_during_a_drain_begins_another_sweep() -> None:
    stand = Stand()
    stand.begin(A)
    stand.swept(stand.tell(m.StopRequested("run", cancel=False)), Range(A.id, 0, 4))
    stand.tell(m.TaskExited(*stand.task(), -9))
    commands = stand.ready(stand.later(0.1))
    assert [sweep.halt for sweep in of(m.SweepTask, commands)] == [True]
    assert of(m.ReportRun, stand.swept(commands))[0].outcome == "stopped"


def test_a_cancelled_run_leaves_what_is_open() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.tell(m.StopRequested("run", cancel=True))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "cancelled", "cancelled")]
    assert len(of(m.StopTask, commands)) == 1
    assert changes(stand)[-1] == "Resigned"
    assert stand.tell(m.StopRequested("run", cancel=True, request=7)) == [m.AnswerRequest(7, accepted=True)]


def test_a_cancelled_run_kills_its_tasks_once_its_log_was_taken() -> None:
    """A worker that obeys whoever took the log has refused to stop, and nobody else may ever end its tasks."""
    stand = Stand()
    stand.begin(A)
    stand.log.append(Entry(9, (Led(9, {"id": "another"}),)))
    stopped = of(m.StopTask, said := stand.tell(m.StopRequested("run", cancel=True)))
    killed = [(kill.worker, kill.task, kill.attempt) for kill in of(m.KillTask, said)]
    assert killed == [(stop.worker, stop.task, stop.attempt) for stop in stopped] != []
    assert of(m.KillTask, stand.later(60.0)) == []
