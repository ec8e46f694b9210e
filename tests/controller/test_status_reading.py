"""A status as a reading: of a controller that may say anything."""

import pytest

from headrace.controller import reading_of
from headrace.controller.core.scaling import ReadingError
from headrace.protos import control_pb2 as pb


def status() -> pb.StatusReply:
    """Two workers, one of them with tasks; a second pipeline has reserved a core of it."""
    reply = pb.StatusReply()
    reply.workers.add(
        worker="one", host="n1", cores=4, state="registered", cores_reserved=3.0, memory_bytes=8 << 30,
        memory_reserved_bytes=3 << 30,
    )  # fmt: skip
    reply.workers.add(worker="two", host="n2", cores=2, state="registered", memory_bytes=4 << 30)
    reply.workers.add(worker="away", host="n3", cores=64, state="draining", memory_bytes=4 << 30)
    item = reply.pipelines.add(
        pipeline="books", sources=["read"], fixed=["dedup"], input_bytes=1000, fragments=9, fragments_done=2
    )
    item.stages.add(stage="read", records=100, busy_s=3.0, guessed_s=0.5, cpu_s=2.0, stored_bytes=400)
    item.stages.add(stage="dedup", records=90, busy_s=1.0)
    for replica in (0, 1):
        task = item.tasks.add(task=f"books/read.{replica}", stages=["read"], worker="one", state="ready", cores=1.0)
        task.memory_bytes = 1 << 30
        task.progress.links.add(link=f"l{replica}", bytes=700, in_flight_bytes=30)
    item.tasks.add(task="books/dedup.0", stages=["dedup"], worker="one", state="ready")
    item.tasks.add(task="books/solitary.0", stages=["read", "dedup"], worker="one", state="ready")
    item.tasks.add(task="books/read.7", stages=["read"], worker="one", state="stopped")
    item.links.add(link="l0", sender="books/read.0", receiver="books/dedup.0", transport="quic")
    item.links.add(link="l1", sender="books/read.1", receiver="books/dedup.0", transport="ring")
    return reply


def test_groups_are_the_living_tasks_of_a_chain_without_solitary_ones() -> None:
    reading = reading_of(status(), "books", 5.0)
    assert [(group.stages, group.replicas, group.fixed) for group in reading.groups] == [
        (("read",), 2, False),
        (("dedup",), 1, True),
    ]
    assert (reading.groups[0].cores, reading.groups[0].memory_bytes) == (1.0, 1 << 30)


def test_work_is_counted_up_to_now() -> None:
    assert reading_of(status(), "books", 5.0).stages[0].busy_s == 3.5


def test_limits_are_what_others_have_not_reserved_on_workers_that_take_tasks() -> None:
    reading = reading_of(status(), "books", 5.0)
    assert reading.limits.cores == 3.0 + 2.0
    assert reading.limits.memory_bytes == (7 << 30) + (4 << 30)
    assert (reading.limits.hosts, reading.cores) == (2, 4)


def test_memory_that_one_worker_does_not_know_is_no_limit() -> None:
    reply = status()
    reply.workers[1].memory_bytes = 0
    assert reading_of(reply, "books", 5.0).limits.memory_bytes == 0


def test_bytes_between_workers_are_those_that_senders_moved_by_quic() -> None:
    assert reading_of(status(), "books", 5.0).network_bytes == 700


def test_records_flow_past_a_stage_that_is_asked() -> None:
    reply = status()
    item = reply.pipelines[0]
    item.tasks.add(task="books/tidy.0", stages=["tidy", "write"], worker="one", state="ready")
    item.links.add(link="l2", sender="books/read.0", receiver="books/tidy.0", transport="ring")
    item.links.add(link="l3", sender="books/dedup.0", receiver="books/read.0", transport="ring")
    found = [(edge.before, edge.behind, edge.past) for edge in reading_of(reply, "books", 5.0).edges]
    assert found == [("tidy", "write", False), ("read", "tidy", True)]


def test_bytes_on_their_way_to_a_chain_are_those_of_its_senders() -> None:
    assert [group.queued_bytes for group in reading_of(status(), "books", 5.0).groups] == [0, 60]


def test_a_pipeline_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ReadingError, match=r"no pipeline 'films'; there are: books"):
        reading_of(status(), "films", 5.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_status_with_numbers_that_cannot_be_is_refused(wrong: float) -> None:
    reply = status()
    reply.pipelines[0].stages[0].busy_s = wrong
    with pytest.raises(ReadingError):
        reading_of(reply, "books", 5.0)


def test_a_status_of_a_graph_that_is_being_changed_is_refused() -> None:
    reply = status()
    reply.pipelines[0].tasks.add(task="books/read.9", stages=["read", "dedup"], worker="one", state="ready")
    with pytest.raises(ReadingError, match="two groups"):
        reading_of(reply, "books", 5.0)
