"""The tables of `headrace status`: a row each for few, a row with a count for many."""

import io

from rich.console import Console, RenderableType
from rich.text import Text

from headrace.cli.ui.page import console
from headrace.cli.ui.status_tables import ROWS_MAX, links_table, tasks_table, workers_table
from headrace.protos import control_pb2 as pb


def shown(table: RenderableType | None) -> list[list[str]]:
    """The rows of a table, cell by cell."""
    assert table is not None
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=False).print(table)
    return [line.split() for line in out.getvalue().splitlines()]


def running(count: int) -> pb.PipelineStatus:
    """As many sources as sinks, each with its own."""
    status = pb.PipelineStatus(pipeline="books", state="running")
    for index in range(count):
        status.tasks.add(task=f"books/read.{index}", stages=["read"], worker="one", state="ready", restarts=1)
        status.tasks.add(task=f"books/write.{index}", stages=["write"], worker="two", state="ready")
        ends = f"books/read.{index}", f"books/write.{index}"
        status.links.add(link=f"l{index}", sender=ends[0], receiver=ends[1], transport="quic")
    return status


def test_few_tasks_and_links_have_a_row_each() -> None:
    assert shown(tasks_table(running(1)))[1:] == [
        ["books/read.0", "read", "one", "ready", "1"],
        ["books/write.0", "write", "two", "ready", "0"],
    ]
    assert shown(links_table(running(1))) == [["link", "from", "transport", "to"], ["l0", "one", "quic", "two"]]


def test_many_alike_share_a_row_and_trouble_has_its_own() -> None:
    status = running(ROWS_MAX + 1)
    status.links[7].trouble = "cut"
    assert shown(tasks_table(status))[1:] == [["read", "ready", "61", "61"], ["write", "ready", "61", "0"]]
    assert shown(links_table(status))[1:] == [
        ["read", "quic", "write", "60"],
        ["read", "quic", "write", "1", "l7:", "cut"],
    ]


def test_a_worker_shows_what_all_pipelines_take_of_it() -> None:
    reply = pb.StatusReply(pipelines=[running(2), running(1)])
    reply.pipelines[0].tasks.add(task="books/read.9", stages=["read"], worker="one", state="stopped")
    reply.workers.add(worker="two", state="drained", cores=4, host="b", pid=2)
    one = reply.workers.add(worker="one", state="registered", cores=4, host="a", pid=1, cores_reserved=2.5)
    one.memory_reserved_bytes = 3 << 30
    assert shown(workers_table(reply)) == [
        ["worker", "state", "tasks", "cores", "reserved", "host", "process"],
        ["one", "registered", "3", "4", "2.5", "cores,", "3", "GiB", "a", "1"],
        ["two", "drained", "3", "4", "b", "2"],
    ]


def test_a_pipeline_without_tasks_has_no_tables() -> None:
    assert tasks_table(pb.PipelineStatus()) is None
    assert links_table(pb.PipelineStatus()) is None


def test_a_terminal_obeys_nothing_of_what_is_shown() -> None:
    out, evil = io.StringIO(), "a\x1b]0;owned\x07b\x9b31m\rc"
    made = console(out)
    for item in (evil, Text(evil), workers_table(pb.StatusReply(workers=[pb.WorkerStatus(worker=evil)]))):
        made.print(item, markup=False)
    assert not set("\x1b\x07\x9b\r") & set(out.getvalue())
    assert out.getvalue().count("\\x1b]0;owned") == 3
