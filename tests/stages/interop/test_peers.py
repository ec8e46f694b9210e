"""Stages within datatrove and Ray Data, and datatrove's blocks within pipelines: the same verdicts, with their reasons.

Their own runners are those of an environment of its own, named by HEADRACE_TEST_PEERS_PYTHON (`make peers`).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from tests.kits.stages.peers import STAGES

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("HEADRACE_TEST_PEERS_PYTHON", "")
with_peers = pytest.mark.skipif(not PYTHON, reason="HEADRACE_TEST_PEERS_PYTHON names no Python with datatrove and Ray")


def records() -> list[dict[str, Any]]:
    texts = (ROOT / "docs" / "design" / "ledger.md").read_text(encoding="utf-8").split("\n\n")
    return [
        {"id": f"r{number}", "text": f"{text} to {number}@example.org", "metadata": {"n": number}}
        for number, text in enumerate(texts)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    lines = [json.dumps(record) + "\n" for record in records()]
    for part in range(2):
        (tmp_path / "in" / f"{part}.jsonl").write_text("".join(lines[part::2]), encoding="utf-8")
    return tmp_path


def expected() -> list[dict[str, Any]]:
    judged = headrace.to_ray(STAGES["gopher"], verdicts=True)(pa.Table.from_pylist(records()))
    return judged.to_pylist()  # type: ignore[no-any-return]


def peers(what: str, folder: Path) -> None:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    words = [PYTHON, "-m", "tests.kits.stages.peers", what, str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_a_function_for_ray_gives_tables_back() -> None:
    table = pa.table({"text": ["a b", None, "mail x.y@example.org"], "n": [1, 2, 3]})
    assert headrace.to_ray(STAGES["pii"])(table).to_pylist() == [
        {"text": "a b", "n": 1},
        {"text": "mail <email>", "n": 3},
    ]
    told = headrace.to_ray(STAGES["gopher"], verdicts=True)(table).to_pylist()
    assert [(row["verdict"], row["reason"]) for row in told] == [
        ("filtered", "too few words"),
        ("quarantined", 'text is not a string: column "text" is null'),
        ("filtered", "too few words"),
    ]


def test_what_fits_nowhere_else_is_said() -> None:
    with pytest.raises(headrace.PipelineError, match="only a stage that judges or changes single records"):
        headrace.to_ray(headrace.write_documents())
    with pytest.raises(headrace.PipelineError, match="pip install datatrove"):
        headrace.to_datatrove(STAGES["gopher"])
    with pytest.raises(headrace.InputError, match='no column "text"; they have: body; name it with text_key='):
        headrace.to_ray(STAGES["gopher"])(pa.table({"body": ["a"]}))
    with pytest.raises(headrace.PipelineError, match=r"is not of the form package\.module:Class"):
        headrace.datatrove_block("GopherQualityFilter")
    with pytest.raises(headrace.PipelineError, match="block is 5; it must be a string"):
        headrace.datatrove_block(5)  # type: ignore[arg-type]


@pytest.mark.slow
@with_peers
def test_datatroves_executor_runs_stages_and_writes_reasons(folder: Path) -> None:
    peers("datatrove", folder)
    right = expected()
    kept, dropped = lines_of(folder / "kept"), lines_of(folder / "dropped")
    assert sorted(one["id"] for one in kept) == sorted(one["id"] for one in right if one["verdict"] == "kept")
    assert all("<email>" in one["text"] for one in kept)
    reasons = {one["id"]: one["metadata"]["filter_reason"] for one in dropped}
    assert reasons == {one["id"]: one["reason"] for one in right if one["verdict"] != "kept"}
    assert kept
    assert dropped


@pytest.mark.slow
@with_peers
def test_ray_data_maps_batches_through_a_stage(folder: Path) -> None:
    peers("ray", folder)
    found = json.loads((folder / "ray.json").read_text())
    told = {one["id"]: (one["verdict"], one["reason"]) for one in found}
    assert told == {one["id"]: (one["verdict"], one["reason"]) for one in expected()}


@pytest.mark.slow
@with_peers
def test_a_block_of_datatrove_is_a_stage(folder: Path) -> None:
    peers("blocks", folder)
    found, alone = (json.loads((folder / name).read_text()) for name in ("blocks.json", "alone.json"))
    assert Counter(found["removed"]) + Counter({"": found["kept"]}) == Counter(alone)
    assert found["removed"]
