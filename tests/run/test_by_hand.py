"""A controller and two workers, each started by hand as a daemon, make the dataset that `headrace run` makes."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.kits.run.command import DEADLINE_S
from tests.kits.run.command_server import ended
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, headrace


def call(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(headrace(*arguments), cwd=home)


@pytest.mark.slow
def test_controller_two_workers_and_apply_give_the_same_documents_and_verdicts(
    home: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(tmp_path / "runtime"))
    daemon = Marked(headrace("controller"), home)
    controller = daemon.start()
    started, processes = [daemon], [controller]
    try:
        _serves(controller)
        for name in ("one", "two"):
            worker = Marked(headrace("worker", "--name", name, "--cores", "1"), home)
            started.append(worker)
            processes.append(worker.start())
        _wait_for_workers(home, 2)
        output = str(tmp_path / "out")
        apply = ("apply", "small.py", "-p", f"input={home}/corpus/*.jsonl", "-p", f"output={output}")
        planned = json.loads(call(home, *apply, "--dry-run", "--json").stdout)
        assert not json.loads(call(home, "status", "--json").stdout)["pipelines"], "a dry run starts nothing"
        applied = call(home, *apply, "--wait")
        assert applied.returncode == 0, applied.stderr
        status = json.loads(call(home, "status", "--json").stdout)
        tasks = status["pipelines"][0]["tasks"]
        assert {task["worker"] for task in tasks} == {"one", "two"}
        where = {task["task"]: task["worker"] for task in tasks}
        assert {task["task"]: task["worker"] for task in planned["tasks"]} == where, "as the dry run said"
        assert "one for each core" in planned["chains"][0]["reason"]
        assert fates(Path(output)) == fates(undisturbed)
        verified = call(home, "dataset", "verify", output)
        assert verified.returncode == 0, verified.stdout
    finally:
        for item in started:
            item.kill()
        for process in processes:
            process.communicate(timeout=DEADLINE_S)


def _serves(controller: "subprocess.Popen[bytes]") -> None:
    """Return once the controller says on standard error that it serves."""
    assert controller.stderr is not None
    assert any(b"serves on" in line for line in controller.stderr), "the controller ended before it served"


def _wait_for_workers(home: Path, count: int) -> None:
    for _ in range(50):
        answer = call(home, "status", "--json")
        if answer.returncode == 0 and len(json.loads(answer.stdout)["workers"]) == count:
            return
    raise AssertionError(f"{count} workers did not register")
