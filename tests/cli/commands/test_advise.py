"""`headrace advise`: what it takes, and what it says."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.bench import numbers_in, show_advice
from headrace.cli.host import Fact, facts as host_facts, keep_facts, read_facts
from headrace.client import UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "host.json"
    monkeypatch.setattr(host_facts, "facts_path", lambda: path)
    return path


def test_each_number_says_by_what_it_is(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"tokenizer_bytes_s": Fact(3e6, "", 1.0), "net_bytes_s": Fact(9e9, "loopback", 1.0)}
    keep_facts(cache, read_facts(cache).joined(facts))
    assert show_advice(["gpus=64", "params=7G"], measured=True, as_json=True) == 0
    numbers = {one["name"]: one for one in json.loads(capsys.readouterr().out)["numbers"]}
    assert (numbers["params"]["value"], numbers["params"]["by"]) == (7e9, "given")
    assert (numbers["tokenizer_bytes_s"]["value"], numbers["net_bytes_s"]["by"]) == (3e6, "default")
    assert numbers["hosts"]["by"] == "ceil(gpus / gpus_a_host)"


def test_facts_can_be_left_alone(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_facts(cache, read_facts(cache).joined({"tokenizer_bytes_s": Fact(3e6, "", 1.0)}))
    show_advice([], measured=False, as_json=True)
    assert "fact" not in {one["by"] for one in json.loads(capsys.readouterr().out)["numbers"]}


def test_the_page_says_what_is_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_advice(["host_bytes_s=10G", "net_bytes_s=1G"], measured=True, as_json=False) == 0
    said = capsys.readouterr().out
    assert "too small in places" in said
    assert "host_bytes_s is 10 times net_bytes_s" in said


@pytest.mark.parametrize("item", ["gpus", "=4", "gpus=", "gpus=many", "gpus=-1", "gpus=1" * 40, "gpus=4", "gpu=4"])
def test_what_is_no_number_of_a_cluster_is_wrong_usage(item: str) -> None:
    with pytest.raises(UsageError):
        show_advice([item, "mfu=2"], measured=True, as_json=True)


def test_amounts_have_units_of_thousands_or_powers() -> None:
    assert numbers_in(["a=7G", "b=7e9", "c=0.4", "a=2k"]) == {"a": 2000.0, "b": 7e9, "c": 0.4}
