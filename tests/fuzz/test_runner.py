"""The runner: what it says of targets that are wrong, each in one way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.harness import children_s
from tests.fuzz.runner import fuzz

FLAWED = ("--from", "flawed", "--executions", "20000")
#: The fall is found in some seconds of processor time.
FALL_S_MAX = 120


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("flawed")
    status, (hanging,) = fuzz(["hanging"], folder, *FLAWED, "--seconds", "0.1", "--input-s", "1")
    assert status == 1
    # What it takes is looked at once a second: it ends long before these seconds have passed.
    status, (hungry,) = fuzz(["hungry"], folder, *FLAWED, "--seconds", "20")
    assert status == 1
    status, found = fuzz(["blind", "deaf"], folder, *FLAWED, "--seconds", "0.1")
    assert status == 1
    found += [hanging, hungry]
    return {report["target"]: report for report in found}


def test_what_is_found_by_coverage_alone_is_found_and_saved(tmp_path: Path) -> None:
    status, (report,) = fuzz(["falling"], tmp_path, *FLAWED, "--seconds", str(FALL_S_MAX))
    assert status == 1
    assert "this decoder fell" in report["account"]
    assert Path(report["crash"]).read_bytes().startswith(b"HRF1\x01\x63")
    assert report["canary_at"]


def test_a_target_begins_no_program_that_an_input_names(tmp_path: Path) -> None:
    status, (report,) = fuzz(["beginning"], tmp_path, *FLAWED, "--seconds", str(FALL_S_MAX))
    assert status == 1
    assert "a target begins another program" in report["account"]
    assert Path(report["crash"]).read_bytes()[:1] == b"c"


@pytest.mark.parametrize(("name", "kind"), [("hanging", "timeout-"), ("hungry", "oom-")])
def test_an_input_that_takes_too_long_or_too_much_is_saved(
    name: str, kind: str, reports: dict[str, dict[str, Any]]
) -> None:
    crash = Path(reports[name]["crash"])
    assert crash.name.startswith(kind), reports[name]
    assert crash.read_bytes()[:1] == b"\x63"


def test_a_target_that_takes_only_its_seeds_fails_the_run(reports: dict[str, dict[str, Any]]) -> None:
    assert reports["blind"]["reached"]
    assert reports["blind"]["problem"] == "the interesting state was never reached"


def test_what_coverage_does_not_show_is_reached_from_the_seeds(tmp_path: Path) -> None:
    corpus = tmp_path / "unseen" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "smallest").write_bytes(b"w")
    status, (report,) = fuzz(["unseen"], tmp_path, *FLAWED, "--seconds", "1")
    assert status == 0, report
    assert report["fresh"] > 100


def test_a_canary_that_is_not_found_fails_the_run(reports: dict[str, dict[str, Any]]) -> None:
    assert reports["deaf"]["fresh"]
    assert reports["deaf"]["problem"] == "the canary was not found"


def test_with_canary_a_target_ends_when_it_sings(tmp_path: Path) -> None:
    status, (report,) = fuzz(["frame"], tmp_path, "--from", "transport_targets", "--canary")
    assert status == 0
    assert "the canary sings" in report["account"]


def test_the_time_of_children_counts_living_or_ended() -> None:
    begun = children_s()
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(end='x', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        living = children_s()
        assert living - begun >= 0.2
        child.kill()
    assert children_s() >= living - 0.02, "the kernel counts who has ended in ticks"
