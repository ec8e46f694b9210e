"""`headrace run --page` as a person has it: the address at once, the run to its end, then the dataset on a page."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from headrace.controller import page as module
from headrace.controller.page import read_samples
from headrace.page import QuestionRefused
from tests.kits.run.command import DEADLINE_S, dataset_answer, pipeline, run_command

HOSTILE = "<script>alert(1)</script> "


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a space in its name, a pipeline, and a corpus of which some lines are no JSON."""
    home = tmp_path_factory.mktemp("a page")
    (home / "small.py").write_text(pipeline(), encoding="utf-8")
    (home / "corpus").mkdir()
    texts = [f"{HOSTILE}{number}\n" * (number % 30) + "import " * (13 * (number % 7 == 0)) for number in range(3_000)]
    lines = [json.dumps({"id": f"<b>{number}", "text": text}) for number, text in enumerate(texts)]
    lines[17] = HOSTILE
    (home / "corpus" / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return home


def events(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Every event of the page's stream until it ends."""
    found = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(found.hostname or "", found.port, timeout=DEADLINE_S)
    connection.request("GET", "/api/state", headers={"Authorization": f"Bearer {found.fragment}"})
    text = connection.getresponse().read().decode()
    connection.close()
    parts = re.findall(r"^event: (\w+)\ndata: (.*)$", text, re.MULTILINE)
    return [(name, json.loads(data)) for name, data in parts]


@pytest.fixture(scope="module")
def watched(home: Path) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """A run with a page: what a viewer was sent, and what the command said."""
    command = [*run_command(home, str(home / "data")), "--page", "--max-quarantined", "100%"]
    with subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert run.stdout is not None
        said = next(line for line in run.stderr if "page of this run" in line)
        seen = events(said.split()[-1])
        rest = run.stderr.read()
        report = run.stdout.read()
    assert run.returncode == 0, rest
    return seen, report


def test_a_viewer_sees_the_run_to_its_end(watched: tuple[list[tuple[str, dict[str, Any]]], str]) -> None:
    seen, report = watched
    assert seen[0][0] == "whole"
    assert seen[0][1]["about"]["page"]["kind"] == "run"
    heads = [change["pipelines"]["small"] for _, change in seen if change.get("pipelines", {}).get("small")]
    assert heads[-1]["state"] == "completed"
    balance = json.loads(report)
    for verdict in ("kept", "filtered", "quarantined"):
        assert heads[-1]["balance"][verdict] == balance[verdict] > 0
    marks = [row["words"] for _, change in seen for row in change.get("marks", {}).values() if row]
    assert "small is completed" in marks


@pytest.mark.usefixtures("watched")
def test_the_page_of_its_dataset_has_verdicts_samples_versions_and_lineage(home: Path) -> None:
    found = dataset_answer(home, "page", str(home / "data"))
    assert found["records_closed"] == found["kept"] + found["filtered"] + found["duplicate"] + found["quarantined"]
    (rows,) = found["samples"].values()
    assert rows
    assert all(HOSTILE in row["text"] or row["text"] == "" for row in rows), "as it is: the browser makes it text"
    assert {"raw", "id", "stage", "reason"} == set(found["quarantine"][0])
    assert [version["version"] for version in found["versions"]] == [1]
    assert found["inputs"][0]["uri"].endswith("corpus/a.jsonl")
    assert [stage["name"] for stage in found["recipes"][0]["stages"]] == ["read", "has_many_lines", "tokenize", "write"]


@pytest.mark.usefixtures("watched")
def test_a_controller_has_the_samples_read_by_a_process(home: Path) -> None:
    samples = asyncio.run(read_samples(str(home / "data")))
    assert samples["samples"].keys() == dataset_answer(home, "page", str(home / "data"))["samples"].keys()


@pytest.mark.usefixtures("watched")
def test_more_samples_than_the_limit_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES_BYTES_MAX", 10)
    with pytest.raises(QuestionRefused, match="more than"):
        asyncio.run(read_samples(str(home / "data")))
