"""Two pipelines that are given one dataset, at one instant or through a link: one runs, the other is told so."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kits.run.daemons import Cluster, until
from tests.kits.run.kill import headrace

DEADLINE_S = 300.0
#: A run of it does not end: nobody closes the spool.
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_spool, write_jsonl

def build(name: str, output: str) -> Pipeline:
    return Pipeline.chain(name, output, read_spool("spool"), write_jsonl())
"""


def applied(home: Path, at: str, *runs: tuple[str, str]) -> list[tuple[int, str]]:
    """Exit code and words of each apply (a name, an output), all of which are begun before one has ended."""
    begun = [
        subprocess.Popen(
            headrace("apply", "open.py", "-p", f"name={name}", "-p", f"output={output}", "--controller", at),
            cwd=home,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, output in runs
    ]
    said = [process.communicate(timeout=DEADLINE_S)[1] for process in begun]
    return [(process.returncode, words) for process, words in zip(begun, said, strict=True)]


def test_one_dataset_has_one_run_at_one_instant_and_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "open.py").write_text(PIPELINE)
    (tmp_path / "spool").mkdir()
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    cluster = Cluster(tmp_path, tmp_path, f"file://{tmp_path}/root")
    try:
        cluster.add_controller("a")
        until(lambda: cluster.leads("a"), "it leads")
        cluster.add_worker("w", cores=2)
        cluster.wait_for_workers("a")
        both = applied(tmp_path, cluster.known(), ("one", "out"), ("two", "link/out"))
        assert sorted(code for code, _ in both) == [0, 1], both
        (refused,) = [words for code, words in both if code]
        assert "which is the same place): stop it first, or choose another dataset" in refused
        winner = "one" if both[0][0] == 0 else "two"
        until(lambda: getattr(cluster.status(winner), "state", "") == "running", "it runs")
        ((code, words),) = applied(tmp_path, cluster.known(), ("three", "link/link/out"))
        assert (code, f"pipeline '{winner}' writes to" in words) == (1, True), words
        assert cluster.status("three") is None
    finally:
        cluster.close()
