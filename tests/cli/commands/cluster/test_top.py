"""`headrace top`: rates from two readings, and who waits for whom; a page for a narrow terminal and for a wide one."""

import io

import pytest
from rich.console import Console

from headrace.cli.commands.cluster import top
from headrace.cli.commands.cluster.top import Readings, rates, show_top, top_page
from headrace.client import CliError, ControllerAt
from headrace.protos import control_pb2 as pb
from tests.kits.client import ClientStandIn


def reading(*, records: int = 0, busy_s: float = 0.0, blocked: int = 0, in_flight: int = 0) -> pb.PipelineStatus:
    """A source that feeds a slow sink over one link."""
    status = pb.PipelineStatus(pipeline="books", state="running", version="1", fragments=5, fragments_done=2)
    status.stages.add(stage="read", records=records, bytes=records * 1000, busy_s=busy_s / 10)
    status.stages.add(stage="write", records=records, bytes=records * 1000, busy_s=busy_s)
    source = status.tasks.add(task="books/read.0", stages=["read"], state="ready")
    source.progress.links.add(link="books/read.0->write.0", blocked=blocked, in_flight_bytes=in_flight)
    sink = status.tasks.add(task="books/write.0", stages=["write"], state="ready")
    sink.progress.links.add(link="books/read.0->write.0", blocked=99, in_flight_bytes=0)
    status.links.add(link="books/read.0->write.0", sender="books/read.0", receiver="books/write.0")
    return status


def test_a_rate_is_the_difference_of_two_readings() -> None:
    read, write = rates(reading(records=1000), reading(records=5000, busy_s=2.0), 2.0)
    assert (read.records_s, read.mb_s, read.busy) == (2000.0, 2.0, 0.1)
    assert write.busy == 1.0


def test_a_sender_that_found_no_credit_waits_for_its_receiver() -> None:
    read, write = rates(reading(blocked=3), reading(blocked=7, in_flight=4096), 1.0)
    assert (read.waits_for, read.holds_up) == (("write",), ())
    assert (write.waits_for, write.holds_up, write.in_flight_bytes) == ((), ("read",), 4096)


def test_a_sender_that_is_blocked_no_more_waits_for_nobody() -> None:
    assert all(not stage.waits_for for stage in rates(reading(blocked=7), reading(blocked=7), 1.0))


def test_the_first_reading_has_no_rates() -> None:
    readings = Readings()
    assert readings.take(pb.StatusReply(pipelines=[reading()]), 1.0) == {}
    assert readings.take(pb.StatusReply(pipelines=[reading(records=10)]), 2.0)["books"][0].records_s == 10.0


def at_batch(at: float, busy_s: float, records: int = 0, guessed_s: float = 0.0) -> pb.StatusReply:
    """A sink that is at one batch since `at` seconds."""
    status = reading(records=records, busy_s=busy_s)
    status.stages[1].at_batch_s, status.stages[1].batch_records, status.stages[1].guessed_s = at, 512, guessed_s
    return pb.StatusReply(pipelines=[status])


def test_a_stage_at_one_batch_for_seconds_is_seen_to_work() -> None:
    readings = Readings()
    readings.take(at_batch(1.0, 1.0), 1.0)
    write = readings.take(at_batch(2.0, 1.75, guessed_s=0.25), 2.0)["books"][1]
    assert (write.busy, write.at_batch_s, write.batch_records) == (1.0, 2.0, 512)
    reply = at_batch(2.5, 2.5)
    out = io.StringIO()
    Console(file=out, width=100).print(top_page(reply, {"books": [write]}, "127.0.0.1:7420", 100))
    assert "at its limit, at 512 records for 2.0 s" in out.getvalue()


def test_rates_are_averages_over_seconds_and_busy_is_of_the_last() -> None:
    readings = Readings()
    for second in range(30):
        # 700 records every seventh second.
        found = readings.take(at_batch(1.0, second, records=100 * (second - second % 7)), float(second))
    write = found["books"][1]
    assert 70.0 <= write.records_s <= 140.0
    assert write.busy == 1.0


def test_a_run_that_begins_anew_has_no_rates_of_the_one_before() -> None:
    readings = Readings()
    readings.take(at_batch(1.0, 90.0, records=9000), 1.0)
    assert readings.take(at_batch(1.0, 0.5), 2.0) == {}
    assert readings.take(at_batch(1.0, 1.5, records=10), 3.0)["books"][1].records_s == 10.0


@pytest.mark.parametrize("width", [80, 160])
def test_the_page_fits_the_terminal_and_names_who_holds_whom_up(width: int) -> None:
    before, now = reading(), reading(records=123_456, busy_s=0.9, blocked=4, in_flight=1 << 20)
    reply = pb.StatusReply(pipelines=[now])
    reply.workers.add(worker="one", state="registered")
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(top_page(reply, {"books": rates(before, now, 1.0)}, "127.0.0.1:7420", width))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = out.getvalue()
    for words in ("123,456", "waits for write", "holds up read", "3 of 5 fragments open", "90%"):
        assert words in text
    assert ("1,024 KiB" in text) == (width == 160), "a narrow page leaves the credit out"


class Idle(ClientStandIn):
    """A client of a controller that has no pipeline."""

    def status(self, name: str) -> pb.StatusReply:
        return pb.StatusReply()


def test_a_pipeline_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "Client", Idle)
    with pytest.raises(CliError, match="knows no pipeline 'slip'"):
        show_top(ControllerAt("127.0.0.1:1"), "slip", once=True, as_json=False)
