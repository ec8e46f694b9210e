"""Input that changes or vanishes while it is open halts its own fragment; the rest of the run goes on."""

import json
import subprocess
from pathlib import Path

import pytest
from kill_kit import headrace

from headrace.store.dataset import Dataset

DEADLINE_S = 60.0
RECORDS = 50
PIPELINE = """
import os
from pathlib import Path

from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def meddle(record):
    if record["text"].startswith("change "):
        path = Path(record["text"].removeprefix("change "))
        path.write_text(path.read_text() + path.read_text())
    if record["text"].startswith("remove "):
        os.unlink(record["text"].removeprefix("remove "))
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("meddled", output, read_jsonl(input), map_records(meddle), write_jsonl())
"""


@pytest.mark.parametrize("deed", ["change", "remove"])
def test_a_file_that_changes_while_it_is_open_halts_alone(tmp_path: Path, deed: str) -> None:
    (tmp_path / "meddled.py").write_text(PIPELINE)
    for part in range(3):
        texts = [f"{part}-{index}" for index in range(RECORDS)]
        if part == 0:
            texts[0] = f"{deed} {tmp_path}/1.jsonl"
        lines = [json.dumps({"id": f"{part}-{index}", "text": text}) for index, text in enumerate(texts)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    parameters = ("-p", f"input={tmp_path}/*.jsonl", "-p", f"output={tmp_path}/out", "--replicas", "1")
    command = headrace("run", "meddled.py", *parameters)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "1 fragments stand open" in said
    assert "1.jsonl" in said
    assert "Put the old objects back" in said
    assert "Traceback" not in said
    state = Dataset.open(str(tmp_path / "out")).state
    closed = {Path(item.fragment.uri).name: item.done(("lines",)) for item in state.fragments.values()}
    assert closed == {"0.jsonl": True, "1.jsonl": False, "2.jsonl": True}
