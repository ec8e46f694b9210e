"""The deaths of a run as its command tells them: as they come, and all of them at the end."""

from headrace.cli.ui.deaths import DeathBook, DeathRow
from headrace.protos import control_pb2 as pb

KILLED = "the process was killed by signal 9"
LOST = "it was lost with 2 tasks: its session ended"


def status(*deaths: tuple[str, str, str, int]) -> pb.PipelineStatus:
    made = pb.PipelineStatus(pipeline="p", state="running")
    for what, name, cause, count in deaths:
        made.deaths.add(what=what, name=name, cause=cause, count=count)
    return made


def test_a_death_is_said_once_when_it_comes() -> None:
    book = DeathBook()
    assert book.take(status()) == []
    assert book.take(status(("task", "p/read.0", KILLED, 1))) == [f"died: task p/read.0: {KILLED}"]
    assert book.take(status(("task", "p/read.0", KILLED, 1))) == []


def test_of_many_deaths_alike_ever_fewer_are_said() -> None:
    book = DeathBook()
    said = [count for count in range(1, 101) if book.take(status(("task", "p/read.0", KILLED, count)))]
    assert said == [1, 2, 4, 8, 16, 32, 64]


def test_what_a_controller_told_that_died_is_not_forgotten() -> None:
    book = DeathBook()
    book.take(status(("task", "p/read.0", KILLED, 2)))
    book.controller_died("the controller was killed by signal 9 (SIGKILL)")
    book.take(status())
    book.take(status(("task", "p/read.0", KILLED, 1)))
    assert book.rows() == [
        DeathRow("task", "p/read.0", KILLED, 3),
        DeathRow("controller", "", "the controller was killed by signal 9 (SIGKILL)", 1),
    ]


def test_a_worker_whose_end_was_seen_is_told_once_with_cause() -> None:
    book = DeathBook()
    book.saw("worker", "local", "was killed by signal 9 (SIGKILL)")
    book.take(status(("worker", "local", LOST, 1)))
    assert book.rows() == [DeathRow("worker", "local", "was killed by signal 9 (SIGKILL)", 1)]


def test_a_worker_that_was_lost_without_an_end_is_told_too() -> None:
    book = DeathBook()
    assert book.take(status(("worker", "local", LOST, 1))) == [f"died: worker local: {LOST}"]
