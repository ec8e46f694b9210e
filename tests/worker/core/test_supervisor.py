"""The worker's machine: which attempts live, and what is done about each."""

import pytest

from headrace.worker.core.supervisor import (
    STOP_GRACE_S,
    TRANSITIONS,
    CutLinks,
    KillAsked,
    KillProcess,
    ProcessExited,
    ProcessState,
    ProcessTurn,
    ReportExit,
    SpawnProcess,
    StartAsked,
    Supervisor,
    TaskStopAsked,
    WatchTimePassed,
)

T = "run/read.0"


def running() -> Supervisor:
    supervisor = Supervisor()
    assert supervisor.handle(StartAsked(T, 2), 0.0) == [SpawnProcess(T, 2)]
    return supervisor


def test_a_death_cuts_the_links_and_is_reported() -> None:
    supervisor = running()
    assert supervisor.alive(T, 2)
    assert supervisor.handle(ProcessExited(T, 2, -9), 0.0) == [
        CutLinks(T, 2, "task run/read.0 died by signal 9"),
        ReportExit(T, 2, -9),
    ]
    assert supervisor.running() == []
    assert not supervisor.alive(T, 2)


def test_a_newer_attempt_takes_the_place_of_an_older_one() -> None:
    supervisor = running()
    assert supervisor.handle(StartAsked(T, 3), 0.0) == [
        KillProcess(T, 2),
        CutLinks(T, 2, "a newer attempt takes its place"),
        SpawnProcess(T, 3),
    ]
    assert supervisor.running() == [(T, 3)]
    assert supervisor.handle(ProcessExited(T, 2, -9), 0.0) == [], "nobody waits for news of it"
    assert supervisor.alive(T, 3)


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_attempt_that_is_no_newer_is_not_started(attempt: int) -> None:
    assert running().handle(StartAsked(T, attempt), 0.0) == []


def test_a_task_that_does_not_end_by_itself_is_killed() -> None:
    supervisor = running()
    assert supervisor.wake_at() is None
    assert supervisor.handle(TaskStopAsked(T, 2), 1.0) == []
    assert supervisor.handle(TaskStopAsked(T, 2), 2.0) == []
    assert supervisor.wake_at() == 1.0 + STOP_GRACE_S
    assert supervisor.handle(WatchTimePassed(), 5.9) == []
    assert supervisor.handle(WatchTimePassed(), 6.0) == [KillProcess(T, 2)]
    assert supervisor.handle(WatchTimePassed(), 7.0) == []
    assert supervisor.wake_at() is None
    assert supervisor.running() == [(T, 2)], "it lives until it is seen dead"


def test_a_task_is_killed_once() -> None:
    supervisor = running()
    assert supervisor.handle(KillAsked(T, 2), 0.0) == [KillProcess(T, 2)]
    assert supervisor.handle(KillAsked(T, 2), 0.0) == []
    assert supervisor.handle(TaskStopAsked(T, 2), 0.0) == []
    assert supervisor.wake_at() is None


@pytest.mark.parametrize("event", [TaskStopAsked(T, 1), KillAsked(T, 1), ProcessExited(T, 1, 0), KillAsked("other", 1)])
def test_words_about_another_attempt_move_nothing(event: TaskStopAsked | KillAsked | ProcessExited) -> None:
    supervisor = running()
    assert supervisor.handle(event, 0.0) == []
    assert supervisor.running() == [(T, 2)]


def test_every_living_state_can_end() -> None:
    living = {ProcessState.RUNNING, ProcessState.STOPPING, ProcessState.KILLED}
    assert {state for state, turn in TRANSITIONS if turn is ProcessTurn.EXITED} == living
    assert all(state is not ProcessState.GONE for state, _ in TRANSITIONS)
