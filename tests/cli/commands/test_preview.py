"""A preview of a pipeline file whose functions print, or ask for the end of the process."""

import json
from pathlib import Path

import pytest

from headrace.cli.commands.preview import preview_file
from headrace.client.errors import CliError

FILE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, write_jsonl


def rule(record):
    RULE
    return record


def build(input: str, output: str) -> Pipeline:
    return Pipeline.chain("small", output, read_jsonl(input), map_records(rule), write_jsonl())
"""


def preview(folder: Path, rule: str) -> int:
    (folder / "p.py").write_text(FILE.replace("RULE", rule))
    (folder / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    given = [f"input={folder}/in.jsonl", f"output={folder}/out"]
    return preview_file(folder / "p.py", given, 10, as_json=True)


def test_what_a_function_prints_is_not_in_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preview(tmp_path, "print('seen')") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kept"] == 1
    assert said.err == "seen\n"


def test_a_function_that_ends_the_process_is_said(tmp_path: Path) -> None:
    with pytest.raises(CliError, match=r"p\.py: SystemExit: 0"):
        preview(tmp_path, "raise SystemExit(0)")
