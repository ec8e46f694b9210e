"""A run that is stopped or cancelled: what sinks hold is closed first, or left open."""

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.entries import Entry, Led, VersionPublished
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import Stand, changes, fragment, led, of, rolled_back, stopped_and_completed

COUNT = 10
A, B = fragment(0), fragment(1)


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


def versions(stand: Stand) -> dict[int, tuple[str, bool]]:
    return {number: (shown.reason, shown.complete) for number, shown in stand.run.ledger.published.items()}


def test_no_run_completes_what_a_rollback_to_an_incomplete_version_hides() -> None:
    third, commands = rolled_back(stopped_and_completed(), "c", 1, A)
    assert of(m.ReadFragment, commands) == []
    (report,) = of(m.ReportRun, commands)
    assert report.outcome == "failed"
    assert report.reason.startswith(
        "all is committed, but version 3 is incomplete: a rollback hides 1 shard of its input"
    )
    assert len(of(m.WriteManifest, commands)) == 1
    assert versions(third) == {1: ("stopped", False), 2: ("completed", True), 3: ("rollback", False)}
    assert third.run.records_resumed == 4
    assert changes(third)[-1] == "Resigned"


def test_further_input_behind_such_a_rollback_is_published_as_incomplete() -> None:
    third, _ = rolled_back(stopped_and_completed(), "c", 1, A, B)
    third.swept(third.read(B, COUNT), Range(B.id, 0, COUNT))
    (report,) = of(m.ReportRun, third.propose(Range(B.id, 0, COUNT)))
    assert (report.outcome, "version 4 is incomplete" in report.reason) == ("failed", True)
    assert versions(third)[4] == ("stopped", False)
    undone, commands = rolled_back(third, "d", 2, A)
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "completed")]
    assert undone.run.ledger.version == 5, "a version that was complete stays complete"


def test_no_run_completes_a_fragment_of_which_a_rollback_hides_a_part() -> None:
    killed = Stand(stopped_and_completed().log, name="c")
    killed.begin(A, B)
    killed.swept(killed.read(B, COUNT), Range(B.id, 0, 4))
    killed.propose(Range(B.id, 0, 4))
    later, _ = rolled_back(killed, "d", 2, A, B)
    later.swept(later.read(B, COUNT), Range(B.id, 4, COUNT - 4))
    (report,) = of(m.ReportRun, later.propose(Range(B.id, 4, COUNT - 4)))
    assert (report.outcome, "a rollback hides 1 shard of its input" in report.reason) == ("failed", True)
    assert (versions(later)[3], versions(later)[4]) == (("rollback", True), ("stopped", False))
    (again,) = of(m.ReportRun, Stand(later.log, name="e").begin(A, B))
    assert again.outcome == "failed", "the same run again says the same"


def test_input_behind_a_rollback_to_a_complete_version_is_complete() -> None:
    third = Stand(stopped_and_completed().log, name="c")
    third.begin(A, B)
    third.swept(third.read(B, COUNT), Range(B.id, 0, COUNT))
    third.propose(Range(B.id, 0, COUNT))
    more = fragment(2)
    fourth, _ = rolled_back(third, "d", 2, A, B, more)
    fourth.swept(fourth.read(more, COUNT), Range(more.id, 0, COUNT))
    assert of(m.ReportRun, fourth.propose(Range(more.id, 0, COUNT))) == [m.ReportRun("run", "completed")]
    assert versions(fourth)[5] == ("completed", True)


def test_a_rollback_that_hides_no_shard_keeps_a_run_from_nothing() -> None:
    first = Stand()
    first.begin(A)
    first.swept(first.tell(m.StopRequested("run", cancel=False)), Range(A.id, 0, 4))
    first.propose(Range(A.id, 0, 4))
    led(first, VersionPublished(2, "retraction", first.run.ledger.published[1].shows, complete=False))
    again = Stand(first.log, name="b")
    again.begin(A)
    again.tell(m.StopRequested("run", cancel=True))
    third, _ = rolled_back(again, "c", 1, A)
    third.swept(third.read(A, COUNT), Range(A.id, 4, 6))
    assert of(m.ReportRun, third.propose(Range(A.id, 4, 6))) == [m.ReportRun("run", "completed")]
    assert versions(third)[4] == ("completed", True)
