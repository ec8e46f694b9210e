"""The stage: verdicts that name suite, item and score, scores in place of verdicts, and counts by suite."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.stages.library.filters import decontaminate
from headrace.stages.quality.scorecard.judgement import decide
from headrace.stages.runtime.batch import Batch, reason_class
from headrace.stages.runtime.build import build_stage, process_safely
from headrace.stages.runtime.errors import StageContractError
from headrace.stages.sinks.sidecars import documents_table
from tests.kits.run.command_server import ended

Write = Callable[..., pathlib.Path]
MILLS = {
    "question": "How many of the mills on the lower river were still grinding barley when the second war began, if "
    "four had burnt down and a ninth of the remaining thirty-six had been sold to the town?",
    "answer": "Thirty-two mills were still grinding.",
}
METAL = {"question": "What metal is liquid at room temperature?", "choices": ["Iron", "Mercury", "Tin"], "answer": 1}
TEXTS = [
    "A clean text about mills.",
    f"1. {MILLS['question']}",
    f"{METAL['question']} a) iron b) mercury",
    MILLS["question"][:150],
]


@pytest.fixture
def suites(write_jsonl: Write) -> list[str]:
    return [
        str(write_jsonl(MILLS, name="words.jsonl")),
        str(write_jsonl({**METAL, "question": "?" * 9 + "Or not to be"}, METAL, name="facts.jsonl")),
    ]


def test_a_verdict_names_suite_item_and_score(suites: list[str], batch_of: Callable[..., Batch]) -> None:
    answer = process_safely(build_stage(decontaminate(suites), {}), batch_of(TEXTS), "decontaminate")
    assert [(row["row"], row["verdict"], row["reason"]) for row in answer.verdicts.to_pylist()] == [
        (1, "filtered", "contaminated: words item 0 score 1.00"),
        (2, "filtered", "contaminated: facts item 1 score 1.00"),
    ]
    assert {reason_class(row["reason"]) for row in answer.verdicts.to_pylist()} == {"contaminated"}
    assert answer.counters == {"decontaminate/words": 1, "decontaminate/facts": 1}
    assert answer.rows.column("__row").to_pylist() == [0, 3]


def test_a_tag_keeps_each_text_and_any_threshold_is_tried_afterwards(
    suites: list[str], batch_of: Callable[..., Batch]
) -> None:
    stage = decontaminate(suites, tag=True)
    answer = process_safely(build_stage(stage, {}), batch_of(TEXTS), stage.name)
    assert (answer.rows.num_rows, answer.verdicts.num_rows) == (4, 0)
    assert answer.counters == {"decontaminate/words": 1, "decontaminate/facts": 1}
    tagged = {
        name.rpartition(".")[2]: answer.rows.column(name).to_pylist()
        for name in answer.rows.schema.names
        if "score." in name
    }
    assert (tagged["suite"], tagged["item"]) == (["", "words", "facts", "words"], [-1, 0, 1, 0])
    assert tagged["score"] == [0, 1, 1, pytest.approx(0.8, abs=0.15)]
    documents = documents_table([answer])
    at = {limit: decide(documents, [decontaminate(suites, threshold=limit)]).to_pylist() for limit in (0.5, 0.8, 1)}
    assert {limit: [row["row"] for row in rows] for limit, rows in at.items()} == {
        0.5: [1, 2, 3],
        0.8: [1, 2],
        1: [1, 2],
    }
    assert at[0.8][0]["reason"] == "contaminated: words item 0 score 1.00"


def test_it_needs_text_and_takes_a_batch_without_rows(suites: list[str], batch_of: Callable[..., Batch]) -> None:
    stage = build_stage(decontaminate(suites[0]), {})
    batch = batch_of(TEXTS)
    assert process_safely(stage, batch.with_rows(batch.rows.slice(0, 0)), "d").rows.num_rows == 0
    with pytest.raises(StageContractError, match="put it before tokenize"):
        process_safely(stage, batch.with_rows(batch.rows.drop_columns(["text"])), "d")
    assert dict(stage.facts()) == {"items": "1 of words"}


def test_importing_the_declaration_loads_no_loop() -> None:
    code = "import sys, headrace.stages.library.filters; print('numba' in sys.modules, 'pyarrow' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.split() == ["False", "False"]


PIPELINE = """
from headrace import Pipeline, decontaminate, read, write_jsonl


def build(input: str, output: str, suites: str) -> Pipeline:
    return Pipeline.chain("clean", output, read(input), decontaminate(suites.split()), write_jsonl())
"""


def test_a_run_reports_by_suite_and_a_bad_suite_stops_it(
    suites: list[str], write_jsonl: Write, tmp_path: pathlib.Path
) -> None:
    def run(suites: str) -> subprocess.CompletedProcess[str]:
        given = ["input=in.jsonl", "output=out", f"suites={suites}"]
        options = [word for one in given for word in ("-p", one)]
        command = [sys.executable, "-P", "-m", "headrace.cli", "run", "clean.py", *options, "--json"]
        return ended(command, cwd=tmp_path, timeout=300)

    (tmp_path / "clean.py").write_text(PIPELINE)
    write_jsonl(*({"id": str(n), "text": text} for n, text in enumerate(TEXTS)), name="in.jsonl")
    refused = run(str(write_jsonl({"question": ""}, name="bad.jsonl")))
    assert refused.returncode != 0
    assert 'suite "bad" item 0: its question is empty' in refused.stderr
    assert not (tmp_path / "out").exists()
    done = run(" ".join(suites))
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert (report["kept"], report["filtered_by"]) == (2, {"decontaminate/contaminated": 2})
    assert report["counters"] == {"decontaminate/facts": 1, "decontaminate/words": 1}
