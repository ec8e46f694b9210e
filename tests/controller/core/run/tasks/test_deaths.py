"""What a death does to a run: of a task, of a worker, of one that was given up."""

import pytest

from headrace.controller.core.cluster.controller import ORPHAN_S
from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.losses import WORKER_AWAY_S_MAX
from headrace.controller.core.run.states import RunState
from headrace.controller.core.run.tasks.task_table import CAUSE_MAX, DEATHS_MAX, KINDS_MAX, Death, DeathCounts
from headrace.store.ledger.core.fragments import Range
from tests.kits.controller.core import Stand, changes, fragment, of

A, B = fragment(0), fragment(1)
COUNT = 10


def test_a_dead_task_starts_again_and_what_it_held_is_read_again() -> None:
    stand = Stand()
    stand.begin(A)
    stand.read(A, COUNT)
    task, attempt = stand.task()
    stand.tell(m.TaskExited(task, attempt, -9))
    commands = stand.later(0.1)
    (start,) = of(m.StartTask, commands)
    assert start.attempt == attempt + 1
    commands = stand.swept(stand.ready(commands))
    assert [read.gaps[0].first for read in of(m.ReadFragment, commands)] == [0]


def test_deaths_are_counted_by_name_and_cause() -> None:
    stand = Stand()
    stand.begin(A)
    for _ in range(2):
        stand.tell(m.TaskExited(*stand.task(), -9))
        stand.ready(stand.later(10.0))
    stand.tell(m.TaskExited(*stand.task(), 1, "Traceback:\n  line\nValueError: out of luck\n"))
    stand.ready(stand.later(10.0))
    stand.tell(m.TaskFailed(*stand.task(), "task run/read.0: its store is gone", final=False))
    stand.ready(stand.later(10.0))
    stand.tell(m.WorkerLost("w1", "its session ended"))
    assert stand.run.deaths.counts == {
        Death("task", "run/read.0", "the process was killed by signal 9"): 2,
        Death("task", "run/read.0", "the process ended with exit code 1: ValueError: out of luck"): 1,
        Death("task", "run/read.0", "task run/read.0: its store is gone"): 1,
        Death("worker", "w1", "it was lost with 1 task: its session ended"): 1,
    }


def test_a_lost_worker_is_told_of_even_without_tasks() -> None:
    stand = Stand()
    stand.join("w1")
    stand.tell(m.WorkerLost("w1", "its session ended"))
    stand.join("w1")
    stand.tell(m.WorkerLost("w1", "its session ended"))
    assert stand.core.lost.counts == {Death("worker", "w1", "its session ended"): 2}


def test_an_end_that_was_asked_for_is_no_death() -> None:
    stand = Stand()
    stand.begin(A)
    task, attempt = stand.task()
    stand.tell(m.StopRequested("run", cancel=True))
    stand.tell(m.TaskExited(task, attempt, 0))
    assert stand.run.deaths.counts == {}


def test_causes_beyond_what_is_told_apart_are_counted_together() -> None:
    deaths = DeathCounts()
    for number in range(KINDS_MAX + 5):
        deaths.note("task", "run/read.0", f"cause {number}")
    assert len(deaths.counts) == KINDS_MAX + 1
    assert sum(deaths.counts.values()) == KINDS_MAX + 5
    deaths.note("task", "run/read.1", "x" * 10_000 + "\nsecond")
    assert all(len(death.cause) <= CAUSE_MAX and "\n" not in death.cause for death in deaths.counts)


def test_news_from_a_dead_attempt_moves_nothing() -> None:
    stand = Stand()
    stand.begin(A)
    task, attempt = stand.task()
    stand.tell(m.TaskExited(task, attempt, -9))
    stand.ready(stand.later(0.1))
    for event in (
        m.FragmentWasRead(task, attempt, A.id, COUNT),
        m.FragmentWasRead(task, attempt, A.id, -1, error="the disk of a dead task"),
        m.SourceListed(task, attempt, "read", (), last=True, error="a listing of a dead task"),
        m.TaskExited(task, attempt, -9),
        m.TaskFailed(task, attempt, "a dead task", final=True),
        m.TaskReady(task, attempt),
    ):
        assert stand.tell(event) == []
    assert stand.run.state is RunState.RUNNING
    assert not stand.run.intake.done


def test_a_listing_that_is_repeated_after_a_death_reads_nothing_twice() -> None:
    stand = Stand()
    stand.join("w1")
    (ask,) = of(m.ListSource, stand.ready(stand.apply()))
    stand.tell(m.SourceListed(ask.task, ask.attempt, "read", (A,), last=False, listing=ask.listing))
    stand.tell(m.TaskExited(ask.task, ask.attempt, 1))
    reads = of(m.ReadFragment, stand.listed(again := stand.ready(stand.later(0.1)), A, B))
    assert changes(stand).count("FragmentsListed") == 2
    reads += of(m.ReadFragment, [*again, *stand.later(1.0)])
    assert [read.fragment for read in reads if read.fragment == B] == [B]
    assert len([read for read in reads if read.fragment == A]) <= 1


def test_a_task_that_dies_too_often_fails_the_run_with_its_story() -> None:
    stand = Stand()
    stand.begin(A)
    for _ in range(DEATHS_MAX):
        commands = stand.tell(m.TaskExited(*stand.task(), 1, "Traceback: out of luck"))
        stand.ready(stand.later(10.0))
    (report,) = of(m.ReportRun, commands)
    assert report.outcome == "failed"
    assert report.reason.startswith(f"task run/read.0 died {DEATHS_MAX} times in a row; the last time by exit code 1: ")
    assert "out of luck" in report.reason


def test_a_final_failure_ends_the_run_and_another_restarts_the_task() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.tell(m.TaskFailed(*stand.task(), "try again", final=False))
    assert len(of(m.KillTask, commands)) == 1
    assert stand.run.state is RunState.RUNNING
    stand.ready(stand.later(1.0))
    commands = stand.tell(m.TaskFailed(*stand.task(), "no such tokenizer", final=True))
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "failed", "no such tokenizer")]


def test_tasks_of_a_lost_worker_are_replanned_and_nobody_is_blamed() -> None:
    stand = Stand()
    stand.join("w1", "w2")
    stand.replicas = 1
    (start,) = of(m.StartTask, stand.apply())
    assert start.worker == "w1"
    for lost, other in [("w1", "w2"), ("w2", "w1")] * DEATHS_MAX:
        stand.tell(m.WorkerLost(lost, "cable"))
        (start,) = of(m.StartTask, stand.later(1.0))
        assert start.worker == other
        stand.join(lost)
    assert stand.run.state is RunState.RUNNING


def test_tasks_of_a_sole_worker_wait_for_it_and_restart() -> None:
    stand = Stand()
    stand.begin(A)
    task, attempt = stand.task()
    assert of(m.ReportRun, stand.tell(m.WorkerLost("w1", "its session ended"))) == []
    assert of(m.StartTask, stand.later(WORKER_AWAY_S_MAX - 1.0)) == []
    commands = stand.join("w1", tasks=((task, attempt),))
    assert [(kill.task, kill.attempt) for kill in of(m.KillTask, commands)] == [(task, attempt)]
    (start,) = of(m.StartTask, commands)
    assert (start.worker, start.attempt) == ("w1", attempt + 1)
    assert of(m.ReportRun, stand.later(WORKER_AWAY_S_MAX)) == []


def test_another_worker_takes_the_tasks_of_one_that_is_away() -> None:
    stand = Stand()
    stand.begin(A)
    stand.tell(m.WorkerLost("w1", "its session ended"))
    stand.join("w2")
    (start,) = of(m.StartTask, stand.later(1.0))
    assert start.worker == "w2"


def test_a_sole_worker_that_stays_away_takes_the_run_with_it() -> None:
    stand = Stand()
    stand.begin(A)
    stand.tell(m.WorkerLost("w1", "its session ended"))
    wake_at = stand.core.wake_at()
    assert wake_at is not None
    assert wake_at > stand.now
    (report,) = of(m.ReportRun, stand.later(WORKER_AWAY_S_MAX))
    assert report.reason.startswith("worker w1 was lost (its session ended), and neither it nor another")
    assert changes(stand)[-1] == "Resigned"


def test_a_death_in_the_last_moment_neither_fails_nor_wakes_forever() -> None:
    stand = Stand()
    stand.begin(A)
    commands = stand.read(A, COUNT)
    stand.swept(commands, Range(A.id, 0, COUNT))
    stand.unresolved = True
    stand.propose(Range(A.id, 0, COUNT))
    stand.tell(m.TaskExited(*stand.task(), -9))
    stand.unresolved = False
    commands = stand.later(0.3)
    assert of(m.ReportRun, commands) == [m.ReportRun("run", "completed")]
    assert stand.core.wake_at() is None


def test_a_worker_that_comes_back_is_told_to_kill_what_nobody_knows() -> None:
    stand = Stand()
    stand.begin(A)
    task, attempt = stand.task()
    assert stand.join("w1", tasks=((task, attempt),)) == []
    kills = of(m.KillTask, stand.join("w2", tasks=((task, attempt), (task, attempt - 1), ("gone/read.0", 1))))
    assert {(kill.task, kill.attempt) for kill in kills} == {(task, attempt), (task, attempt - 1)}
    (orphan,) = of(m.KillTask, stand.later(ORPHAN_S))
    assert (orphan.worker, orphan.task, orphan.attempt) == ("w2", "gone/read.0", 1), "somebody might have applied it"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "the process ended with exit code 0"),
        (75, "the process ended with exit code 75"),
        (-9, "the process was killed by signal 9"),
    ],
)
def test_an_end_is_told_by_its_exit_code_or_its_signal(code: int, told: str) -> None:
    assert m.TaskExited("run/read.0", 1, code).ending() == told
    assert m.TaskExited("run/read.0", 1, code, killed_for="it did not return").ending() == "it did not return"
