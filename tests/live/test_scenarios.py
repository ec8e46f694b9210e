"""The scenarios that ship as examples: each leaves the dataset that a run without faults makes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.kits.host.rights import VARIABLE, need_mounts, need_namespaces
from tests.kits.run.live import call, inputs
from tests.kits.store.s3_server import shared_server

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "chaos"
#: Run with every test; the others take longer.
QUICK = ("tasks",)


def scenarios() -> list[object]:
    names = sorted(path.stem for path in EXAMPLES.glob("*.toml"))
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def test_six_scenarios_and_more_ship() -> None:
    assert len(list(EXAMPLES.glob("*.toml"))) >= 6


@pytest.mark.parametrize("name", scenarios())
def test_the_dataset_after_a_scenario_is_that_of_a_run_without_faults(
    name: str, home: Path, reference: Path, tmp_path: Path
) -> None:
    if name == "full-disk":
        need_mounts()
    if name == "unplugged":
        need_namespaces()
    report = tmp_path / "report"
    store = ["--store", shared_server().uri()] if name == "store" else []
    done = call(
        home, "chaos", "run", str(EXAMPLES / f"{name}.toml"), "small.py", *inputs(home),
        "--seed", "5", "--reference", str(reference), "--folder", str(tmp_path), "--report", str(report),
        "--rebuilds", "1", "--json", *store,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["verdict"] == "passed"
    assert answer["fired"]
    assert [finding["name"] for finding in answer["findings"] if finding["passed"] is None] == []
    if name == "network":
        met = {fired["kind"]: fired["affected"] for fired in answer["fired"] if fired["target"] != "control"}
        assert all(affected.get("link datagrams between workers") for affected in met.values()), met
        assert len(met) == 6
    assert answer == json.loads((report / "report.json").read_text())
    assert answer["replay"] in (report / "report.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "datasets and logs of a good run are removed"


def test_without_root_what_takes_namespaces_is_skipped_and_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kits.host.rights.os.geteuid", lambda: 1000)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception):
        need_namespaces()
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="run as root"):
        need_namespaces()


@pytest.mark.slow
def test_a_dataset_unlike_the_reference_fails_and_says_how_to_replay(
    home: Path, reference: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(reference, tmp_path / "other"))
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["shards"].pop()
    (other / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "x.toml").write_text('[[fault]]\nkind = "freeze"\ntarget = "task"\nafter_commits = 1\nfor_s = 0.1\n')
    done = call(
        home, "chaos", "run", str(tmp_path / "x.toml"), "small.py", *inputs(home), "--reference", str(other),
        "--folder", str(tmp_path), "--report", str(tmp_path / "report"), "--rebuilds", "0",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "records not in the reference" in done.stdout
    assert f"again: headrace chaos run {tmp_path}/x.toml small.py -p" in done.stdout
    assert list(tmp_path.glob("headrace-chaos-*/faulted/manifest.json")), "what went wrong can be looked at"


def test_a_parameter_that_is_not_the_output_is_refused(home: Path, tmp_path: Path) -> None:
    scenario = EXAMPLES / "tasks.toml"
    given = call(home, "chaos", "run", str(scenario), "small.py", *inputs(home), "--output", "target")
    assert given.returncode == 2
    assert "has no parameter 'target'" in given.stderr
    twice = call(home, "chaos", "run", str(scenario), "small.py", *inputs(home), "-p", "output=mine")
    assert twice.returncode == 2
    assert "given twice" in twice.stderr
