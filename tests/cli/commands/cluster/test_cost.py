"""`headrace cost`: what pipelines used, added up by whom, and by a price list."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.cluster import cost as command
from headrace.cli.commands.cluster.cost import PRICES_BYTES_MAX, Prices, Used, read_prices, show_cost, used_by
from headrace.client import CliError, ControllerAt, UsageError
from headrace.protos import control_pb2 as pb
from tests.kits.client import ClientStandIn

AT = ControllerAt("")


def status() -> pb.StatusReply:
    reply = pb.StatusReply()
    for name, user, queue, cpu_s in (
        ("books", "ann", "night", 3600.0),
        ("web", "ben", "", 1800.0),
        ("code", "ann", "", 0.0),
    ):
        item = reply.pipelines.add(pipeline=name, applied_by=user, queue=queue, sources=["read"])
        item.stages.add(stage="read", cpu_s=cpu_s / 4, stored_bytes=2_000_000_000)
        # What a stage behind the source was given is not read from a store.
        item.stages.add(stage="tokenize", cpu_s=cpu_s * 3 / 4, stored_bytes=7)
    return reply


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> pb.StatusReply:
    """What the controller answers; the test may change it."""
    reply = status()

    class Controller(ClientStandIn):
        def status(self) -> pb.StatusReply:
            return reply

    monkeypatch.setattr(command, "Client", Controller)
    return reply


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("pipeline", [("books", 1, 3600, 2), ("web", 1, 1800, 2), ("code", 1, 0, 2)]),
        ("user", [("ann", 2, 3600, 4), ("ben", 1, 1800, 2)]),
        ("queue", [("night", 1, 3600, 2), ("no queue", 2, 1800, 4)]),
    ],
)
def test_all_that_was_used_is_in_one_row(by: str, expected: list[tuple[str, int, int, int]]) -> None:
    assert used_by(status().pipelines, by) == [
        Used(name, pipelines, core_s, gigabytes * 10**9) for name, pipelines, core_s, gigabytes in expected
    ]


def test_a_price_list_makes_money_of_it(
    controller: pb.StatusReply, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('core_hour = 0.5\nread_gb = 0.25\ncurrency = "EUR"\n')
    assert show_cost(AT, by="user", prices_file=str(prices), as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["currency"], [(row["name"], row["cost"]) for row in told["used"]]) == (
        "EUR",
        [("ann", 1.5), ("ben", 0.75)],
    )
    assert show_cost(AT, by="user", prices_file=str(prices), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "cost EUR" in shown
    assert shown.splitlines()[-1].split() == ["all", "3", "1.500", "6.000", "2.25"]


def test_without_a_price_list_no_money_is_shown(controller: pb.StatusReply, capsys: pytest.CaptureFixture[str]) -> None:
    controller.pipelines[0].applied_by = "\x1b[31mann"
    assert show_cost(AT, by="user", prices_file="", as_json=False) == 0
    shown = capsys.readouterr().out
    assert "cost " not in shown.partition("\n")[2]
    assert "\x1b[31m" not in shown
    assert show_cost(AT, by="pipeline", prices_file="", as_json=True) == 0
    assert "cost" not in json.loads(capsys.readouterr().out)["used"][0]


def test_nothing_applied_costs_nothing(controller: pb.StatusReply, capsys: pytest.CaptureFixture[str]) -> None:
    del controller.pipelines[:]
    assert show_cost(AT, by="pipeline", prices_file="", as_json=False) == 0
    assert "no pipeline" in capsys.readouterr().out


def test_a_group_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="give one of pipeline, user, queue"):
        show_cost(AT, by="day", prices_file="", as_json=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("core_hour = -1", "core_hour is a number from 0"),
        ("core_hour = true", "core_hour is a number from 0"),
        ("read_gb = nan", "read_gb is a number from 0"),
        ("read_gb = 1e300", "read_gb is a number from 0"),
        ('currency = "0123456789"', "at most 8 characters"),
        ("disk = 1", "'disk' is no price"),
        ("core_hour", "price list"),
        ("#" * (PRICES_BYTES_MAX + 1), "more than"),
        ("\xff", "price list"),
        ("core_hour = " + "[" * 20_000, "price list"),
    ],
)
def test_a_price_list_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CliError, match=words):
        read_prices(str(path))


def test_a_price_list_may_leave_prices_out(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("core_hour = 1\n")
    assert read_prices(str(path)) == Prices(core_hour=1)
    with pytest.raises(CliError, match="No such file"):
        read_prices(str(tmp_path / "none.toml"))
