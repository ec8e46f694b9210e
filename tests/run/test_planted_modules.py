"""What lies in the current folder is found last: it cannot stand in for a module that Headrace itself imports."""

import json
import subprocess
from pathlib import Path

from tests.kits.run.kill import headrace

#: Modules that every process of a run imports, or tries to: of Python, of what is installed, and of Headrace. And one
#: that none of them imports before a function of the pipeline does, in a task.
LATE = "colorsys"
PLANTED = ("json", "random", "numpy", "pyarrow", "orjson", "msgpack", "torch", "headrace", "sitecustomize", LATE)
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import command, map_records, read_jsonl, write_documents


def late(record):
    import colorsys

    return {**record, "text": colorsys.__name__}


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("planted", output, read_jsonl(input), command(["cat"]), map_records(late), write_documents())
"""


def test_no_process_of_a_run_imports_planted_modules(tmp_path: Path) -> None:
    here, pipelines = tmp_path / "here", tmp_path / "pipelines"
    here.mkdir()
    pipelines.mkdir()
    for name in PLANTED:
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write({name!r} + ' ')\n")
    (pipelines / "planted.py").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "1", "text": "a word"}) + "\n")
    given = ["-p", f"input={tmp_path / 'in.jsonl'}", "-p", f"output={tmp_path / 'out'}"]
    done = subprocess.run(
        headrace("run", str(pipelines / "planted.py"), *given), capture_output=True, text=True, cwd=here, timeout=180
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "planted").exists(), (tmp_path / "planted").read_text()
