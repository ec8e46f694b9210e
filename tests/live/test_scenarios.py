"""The scenarios that ship as examples: each leaves the dataset that a run without faults makes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from live_kit import call, inputs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "chaos"
#: Run with every test; the others take longer.
QUICK = ("tasks", "power")


def cannot_mount() -> bool:
    """Whether neither root nor a user namespace gives the right to mount."""
    if os.geteuid() == 0:
        return False
    try:
        return subprocess.call(["unshare", "--user", "--map-root-user", "--mount", "true"], stderr=subprocess.DEVNULL) != 0
    except FileNotFoundError:
        return True


def scenarios() -> list[object]:
    names = sorted(path.stem for path in EXAMPLES.glob("*.toml"))
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def test_six_scenarios_ship() -> None:
    assert len(list(EXAMPLES.glob("*.toml"))) == 6


@pytest.mark.parametrize("name", scenarios())
def test_the_dataset_after_a_scenario_is_that_of_a_run_without_faults(
    name: str, home: Path, reference: Path, tmp_path: Path
) -> None:
    if name == "full-disk" and cannot_mount():
        pytest.skip("neither root nor user namespaces: nothing can be mounted")
    report = tmp_path / "report"
    done = call(
        home, "chaos", "run", str(EXAMPLES / f"{name}.toml"), "small.py", *inputs(home),
        "--seed", "5", "--reference", str(reference), "--folder", str(tmp_path), "--report", str(report),
        "--rebuilds", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "passed"
    assert answer["fired"]
    assert [finding["name"] for finding in answer["findings"] if finding["passed"] is None] == []
    assert answer == json.loads((report / "report.json").read_text())
    assert answer["replay"] in (report / "report.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "datasets and logs of a good run are removed"
