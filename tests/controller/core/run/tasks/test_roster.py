"""Tasks and their attempts: restarts with backoff, and numbers that are never used again."""

import pytest

from headrace.controller.core.log.leader import InvalidTransitionError
from headrace.controller.core.plan.locality import WorkerFacts
from headrace.controller.core.plan.planner import plan
from headrace.controller.core.run.tasks.task_table import (
    ATTEMPTS_A_TERM,
    DEATHS_MAX,
    HEALTHY_S,
    RESTART_S_MAX,
    TRANSITIONS,
    RunTask,
    TaskPhase,
    TaskTable,
    TaskTurn,
)
from tests.kits.controller.core import make_pipeline

WORKERS = ("w1",)


def roster(term: int = 0) -> TaskTable:
    return TaskTable(plan(make_pipeline(), [WorkerFacts("w1", 2)]), term)


def started(made: TaskTable) -> RunTask:
    return made.due(0.0, WORKERS)[0]


@pytest.mark.parametrize("state", list(TaskPhase))
@pytest.mark.parametrize("turn", list(TaskTurn))
def test_a_task_moves_along_the_table_or_not_at_all(state: TaskPhase, turn: TaskTurn) -> None:
    task = started(roster())
    task.state = state
    target = TRANSITIONS.get((state, turn))
    if target is None:
        with pytest.raises(InvalidTransitionError, match=f"task run/read.0: {state.value} on '{turn.value}'"):
            task.turn(turn)
        assert task.state is state
    else:
        task.turn(turn)
        assert task.state is target


def test_every_task_is_due_at_first_and_once() -> None:
    made = roster()
    assert [task.plan.name for task in made.due(0.0, WORKERS)] == ["run/read.0", "run/read.1"]
    assert made.due(0.0, WORKERS) == []


def test_a_task_that_dies_repeatedly_waits_longer_and_is_given_up() -> None:
    made, now, pauses = roster(), 0.0, []
    task = started(made)
    while made.died(task, "signal 9", now):
        wake_at = made.wake_at(WORKERS)
        assert wake_at is not None
        pauses.append(round(wake_at - now, 6))
        assert task not in made.due(now, WORKERS)
        now = wake_at
        assert made.due(now, WORKERS) == [task]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    assert task.deaths == DEATHS_MAX
    assert task.restarts == DEATHS_MAX
    assert pauses[-1] < RESTART_S_MAX
    assert task.start_at == now + RESTART_S_MAX, "twice the last pause would be more"


def test_a_task_that_was_ready_for_long_is_forgiven_its_deaths() -> None:
    made = roster()
    task = started(made)
    task.deaths = DEATHS_MAX - 1
    task.turn(TaskTurn.BECAME_READY)
    task.ready_at = 1.0
    assert made.died(task, "signal 9", 1.0 + HEALTHY_S)
    assert task.deaths == 1


def test_a_task_is_not_blamed_for_the_death_of_its_worker() -> None:
    made = roster()
    task = started(made)
    for round_ in range(3 * DEATHS_MAX):
        assert made.died(task, "worker lost", float(round_), blamed=False)
        assert made.due(round_ + 0.5, WORKERS) == [task]
    assert task.deaths == 0
    assert task.restarts == 3 * DEATHS_MAX


def test_news_of_the_dead_is_not_news_of_the_living() -> None:
    made = roster()
    task = started(made)
    assert made.current("run/read.0", 1) is task
    made.died(task, "signal 9", 0.0)
    assert made.current("run/read.0", 1) is None
    made.due(1.0, WORKERS)
    assert made.current("run/read.0", 1) is None
    assert made.current("run/read.0", 2) is task
    assert made.current("run/none.0", 1) is None


def test_a_later_term_numbers_its_attempts_higher() -> None:
    earlier, later = started(roster(term=3)), started(roster(term=4))
    assert earlier.attempt == 3 * ATTEMPTS_A_TERM + 1
    assert later.attempt - earlier.attempt == ATTEMPTS_A_TERM


def test_a_roster_is_stable_when_each_task_is_ready() -> None:
    made = roster()
    first, second = made.due(0.0, WORKERS)
    first.turn(TaskTurn.BECAME_READY)
    assert not made.stable
    second.turn(TaskTurn.BECAME_READY)
    assert made.stable
    assert made.wake_at(WORKERS) is None


def test_a_task_of_an_absent_worker_is_not_started_nor_wakes() -> None:
    made = roster()
    assert made.due(0.0, ()) == []
    assert made.wake_at(()) is None
    assert len(made.due(0.0, WORKERS)) == 2
