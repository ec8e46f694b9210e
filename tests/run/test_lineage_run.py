"""OpenLineage events of runs as people begin, kill and end them: one set of events a version."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.kill import Marked, count_entries, kill_after_entries

pytestmark = pytest.mark.slow


def run(home: Path, output: Path) -> None:
    done = subprocess.run(run_command(home, str(output)), capture_output=True, text=True, cwd=home, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr


def test_a_run_that_is_killed_and_begun_again_is_one_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, output = tmp_path / "events of lineage", tmp_path / "out"
    monkeypatch.setenv("HEADRACE_LINEAGE", str(folder))
    for entries in (8, 20):
        killed = Marked(run_command(home, str(output)), home)
        assert kill_after_entries(killed, lambda: count_entries(output / "ledger"), entries, 0.3)
    assert [file.suffixes[0] for file in folder.glob("*.json")] in ([], [".start"])
    run(home, output)
    run(home, output)  # there is nothing left to do
    events = [json.loads(file.read_bytes()) for file in sorted(folder.glob("[!.]*.json"))]
    assert [event["eventType"] for event in events] == ["COMPLETE", "START"]
    assert len({event["run"]["runId"] for event in events}) == 1
    (made,) = events[0]["outputs"]
    manifest = json.loads((output / "manifest.json").read_bytes())
    assert made["name"] == str(output)
    assert made["facets"]["version"]["datasetVersion"] == str(manifest["entry"])
    facts = made["outputFacets"]["outputStatistics"]
    assert facts["rowCount"] == sum(shard["kept"] for shard in manifest["shards"])


@pytest.mark.parametrize("place", ["file", "http://127.0.0.1:1"])
def test_a_run_ends_well_where_events_cannot_be_written(
    place: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HEADRACE_LINEAGE", place if "://" in place else str(tmp_path / place))
    run(home, tmp_path / "out")
