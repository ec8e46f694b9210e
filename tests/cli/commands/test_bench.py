"""`headrace bench`: what it takes, keeps and says."""

import json
import threading
from pathlib import Path

import pytest

from headrace.cli.commands import bench
from headrace.cli.commands.bench import Asked, peer_of, run_bench, within
from headrace.cli.host import MeasureError, read_facts
from headrace.client import EXIT_FAULT, UsageError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "host.json"
    monkeypatch.setattr(bench, "facts_path", lambda: path)
    return path


def test_what_was_measured_is_kept(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(Asked(["disk", "network"], tmp_path, seconds=0.01), as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"cores", "disk_sync_s", "net_bytes_s"} <= said["facts"].keys()
    assert said["file"] == str(cache)
    assert read_facts(cache).plain()["facts"] == said["facts"]


def test_a_part_that_fails_leaves_the_others(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Asked(["disk", "network"], tmp_path / "missing", seconds=0.01)
    assert run_bench(asked, as_json=False) == EXIT_FAULT
    assert "disk was not measured" in capsys.readouterr().err
    assert "net_bytes_s" in read_facts(cache).facts


def test_facts_that_cannot_be_kept_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "facts_path", lambda: None)
    assert run_bench(Asked(["network"], seconds=0.01), as_json=False) == 0
    said = capsys.readouterr()
    assert "net_round_s" in said.out
    assert "not kept" in said.err


@pytest.mark.parametrize(
    "asked",
    [Asked(["gpu"]), Asked(["store"]), Asked(peer="1.2.3.4:5"), Asked(peer="a/b"), Asked(peer="1.2.3.4:5/../x y")],
)
def test_what_cannot_be_measured_is_wrong_usage(asked: Asked) -> None:
    with pytest.raises(UsageError):
        run_bench(asked, as_json=True)


def test_a_peer_is_a_host_a_port_and_a_word() -> None:
    assert peer_of("[::1]:7430/abc1") == ("::1", 7430, "abc1")


def test_a_part_that_never_ends_is_given_up() -> None:
    never = threading.Event()
    assert "no answer" in within("store", lambda: {"x": float(never.wait())}, 0.001)
    never.set()


def test_why_a_part_failed_is_its_answer() -> None:
    def fails() -> dict[str, float]:
        raise MeasureError("the disk is full")

    assert within("disk", fails, 60.0) == "the disk is full"
