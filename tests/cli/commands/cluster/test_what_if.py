"""`headrace what-if`: what it takes, and what it says."""

import json
from dataclasses import replace

import pytest

from headrace.cli.commands.cluster import what_if as command
from headrace.cli.commands.cluster.what_if import WhatIfQuestion, asked_of, show_what_if
from headrace.client import CliError, ControllerAt, UsageError
from headrace.protos import control_pb2 as pb
from tests.kits.client import ClientStandIn


def status(records: int, busy_s: float) -> pb.StatusReply:
    """A source that waits for a stage, on two cores."""
    reply = pb.StatusReply()
    reply.workers.add(worker="one", host="n1", cores=2, state="registered")
    item = reply.pipelines.add(pipeline="books", sources=["read"], fragments=9, input_bytes=1_000_000, state="running")
    item.stages.add(stage="read", records=records, busy_s=busy_s / 10, stored_bytes=records * 100)
    item.stages.add(stage="slow", records=records, busy_s=busy_s)
    item.tasks.add(task="books/read.0", stages=["read"], worker="one", state="ready")
    item.tasks.add(task="books/slow.0", stages=["slow"], worker="one", state="ready")
    return reply


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[pb.StatusReply]:
    """The controller's answers, a second apart; the test may change them."""
    answers, clock = [status(1000, 5.0), status(1200, 6.0)], iter(range(100))

    class Controller(ClientStandIn):
        def status(self, pipeline: str) -> pb.StatusReply:
            return answers.pop(0)

    monkeypatch.setattr(command, "Client", Controller)
    monkeypatch.setattr(command.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    return answers


def ask(question: WhatIfQuestion, *, as_json: bool = True, price: float = 0.0) -> int:
    return show_what_if(ControllerAt("nowhere"), "books", question, over_s=1.0, price=price, as_json=as_json)


def test_the_answer_has_rate_bottleneck_time_and_cost(
    asks: list[pb.StatusReply], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(WhatIfQuestion(replicas=["slow=2"]), price=0.5) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["now"]["records_s"] == pytest.approx(200.0)
    assert said["then"]["records_s"] == pytest.approx(400.0)
    assert (said["then"]["bottleneck"], said["then"]["replicas"]["slow"]) == ("tasks of slow", 2)
    left = (1_000_000 - 1200 * 100) / 40_000
    assert said["then"]["left_s"] == pytest.approx(left)
    assert said["then"]["left_cost"] == pytest.approx(left * 2 / 3600 * 0.5)


def test_the_page_names_what_is_in_the_way(asks: list[pb.StatusReply], capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(WhatIfQuestion(without=["slow"]), as_json=False) == 0
    said = capsys.readouterr().out
    assert "nothing was changed" in said
    assert "tasks of read" in said


def test_a_stage_twice_as_fast_lets_twice_as_many_through(
    asks: list[pb.StatusReply], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(WhatIfQuestion(speed=["slow=2"])) == 0
    assert json.loads(capsys.readouterr().out)["then"]["records_s"] == pytest.approx(400.0)


def test_tasks_that_were_changed_meanwhile_cannot_be_judged(asks: list[pb.StatusReply]) -> None:
    asks[1].pipelines[0].tasks.add(task="books/slow.1", stages=["slow"], worker="one", state="ready")
    with pytest.raises(CliError, match="ask again"):
        ask(WhatIfQuestion())


def test_a_controller_that_says_what_cannot_be_is_not_believed(asks: list[pb.StatusReply]) -> None:
    asks[1].pipelines[0].stages[1].busy_s = float("nan")
    with pytest.raises(CliError, match="cannot be judged"):
        ask(WhatIfQuestion())


def test_a_stage_that_is_not_there_is_wrong_usage(asks: list[pb.StatusReply]) -> None:
    with pytest.raises(UsageError, match="no stage 'perplexity'"):
        ask(WhatIfQuestion(without=["perplexity"]))


@pytest.mark.parametrize(("text", "cores"), [("8", 8.0), ("+4", 6.0), ("-1", 1.0), ("0.5", 0.5)])
def test_cores_are_a_number_or_a_difference(text: str, cores: float) -> None:
    assert asked_of(WhatIfQuestion(cores=text), 2.0).cores == cores


def test_a_network_is_told_in_bits_and_a_store_in_bytes() -> None:
    asked = asked_of(WhatIfQuestion(nic="25G", store="200M"), 2.0)
    assert (asked.nic_bytes_s, asked.store_bytes_s) == (25e9 / 8, 200e6)


@pytest.mark.parametrize(
    "question",
    [
        WhatIfQuestion(cores="-2"),
        WhatIfQuestion(cores="many"),
        WhatIfQuestion(nic="0"),
        WhatIfQuestion(nic="1e9"),
        WhatIfQuestion(store="-1"),
        WhatIfQuestion(replicas=["slow"]),
        WhatIfQuestion(replicas=["slow=0"]),
        WhatIfQuestion(replicas=["slow=²"]),
        WhatIfQuestion(replicas=["slow=" + "9" * 5000]),
        WhatIfQuestion(speed=["slow=0"]),
        WhatIfQuestion(speed=["slow=1e9"]),
        WhatIfQuestion(speed=["slow=٢"]),
        WhatIfQuestion(model_hosts=["=2"]),
    ],
)
def test_what_is_no_amount_is_wrong_usage(question: WhatIfQuestion) -> None:
    with pytest.raises(UsageError):
        asked_of(question, 2.0)


def test_a_question_is_judged_before_anything_is_measured(asks: list[pb.StatusReply]) -> None:
    with pytest.raises(UsageError):
        ask(replace(WhatIfQuestion(), cores="x"))
    assert len(asks) == 2
