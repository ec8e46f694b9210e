"""`headrace dataset contamination`: suites against datasets that exist already, and the retraction of what is found."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from headrace.stages.tokenizer.vocabulary import resolve_tokenizer
from tests.kits.run.command_server import ended
from tests.kits.run.small_tokenizer import small_tokenizer

PIPELINE = """
from headrace import Pipeline, read, tokenize, write_documents, write_jsonl, write_tokens


def build(input: str, output: str, kind: str = "tokens", tokenizer: str = "TOKENIZER") -> Pipeline:
    if kind == "tokens":
        tokens = tokenize(tokenizer)
        return Pipeline.chain("words", output, read(input), tokens, write_tokens(tokens, seq_len=64))
    if kind == "twice":
        sinks = (write_documents(name=name).fed_by("read") for name in ("one", "two"))
        return Pipeline("words", output, (read(input), *sinks))
    return Pipeline.chain("words", output, read(input), write_documents() if kind == "text" else write_jsonl())
"""
QUESTION = (
    "How many of the mills on the lower river were still grinding barley when the second war began, if four burnt?"
)
TEXTS = {
    "clean": "Mills on a river grind barley. " * 40,
    "verbatim": f"Question 4. {QUESTION} Nobody could say.",
    "within a long one": f"{'It rained on the river that year. ' * 60}{QUESTION.upper()}{' It rained still.' * 60}",
    "half": QUESTION[:50],
}
CONTAMINATED = ["verbatim", "within a long one"]


def call(home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "headrace.cli", *arguments]
    return ended(command, cwd=home)


def answer(home: pathlib.Path, *arguments: str) -> dict[str, Any]:
    done = call(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "words.py").write_text(PIPELINE.replace("TOKENIZER", small_tokenizer()))
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items())
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "river.jsonl").write_text(
        json.dumps({"question": "Another one?", "answer": "x"})
        + "\n"
        + json.dumps({"question": QUESTION, "answer": "x"})
    )
    (tmp_path / "other.jsonl").write_text(
        json.dumps({"ask": "What is not in any of these texts, since nobody wrote it there?"})
    )
    return tmp_path


def run(home: pathlib.Path, *more: str, output: str = "out") -> None:
    answer(home, "run", "words.py", "-p", "input=in.jsonl", "-p", f"output={output}", *more)


OTHER = '{"input": "other.jsonl", "question": "ask"}'


def test_what_is_found_is_listed_and_the_list_retracts_it(home: pathlib.Path) -> None:
    run(home)
    found = answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl", OTHER, "--out", "list.jsonl")
    assert (found["records"], found["contaminated"], found["suites"]) == (4, 2, {"river": 2, "other": 0})
    assert found["items"] == [{"suite": "river", "item": 1, "records": 2, "score": 1.0}]
    assert [one["id"] for one in found["found"]] == CONTAMINATED
    assert [json.loads(line) for line in (home / "list.jsonl").read_text().splitlines()] == found["found"]
    gone = answer(home, "dataset", "retract", "out", "--list", "list.jsonl")
    assert (gone["records"], gone["documents"], gone["version"]) == (2, 2, 2)
    after = answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl")
    assert (after["records"], after["contaminated"]) == (2, 0)


def test_a_dataset_of_text_is_searched_and_one_of_lines_refused(home: pathlib.Path) -> None:
    run(home, "-p", "kind=text")
    found = answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl")
    assert (found["records"], [one["id"] for one in found["found"]]) == (4, CONTAMINATED)
    answer(home, "dataset", "retract", "out", "verbatim", "half")
    found = answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl")
    assert (found["records"], [one["id"] for one in found["found"]]) == (2, CONTAMINATED[1:])
    assert answer(home, "dataset", "repeats", "out", "--out", "lines.idx", "--records-min", "2")["records"] == 2
    run(home, "-p", "kind=lines", output="lines")
    refused = call(home, "dataset", "contamination", "lines", "--suites", "river.jsonl")
    assert refused.returncode == 1
    assert "holds neither tokens nor documents with text" in refused.stderr


def test_a_record_of_two_sinks_is_searched_and_exported_once(home: pathlib.Path) -> None:
    run(home, "-p", "kind=twice")
    assert answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl")["records"] == len(TEXTS)
    assert answer(home, "dataset", "export", "out", "to", "--format", "parquet")["documents"] == len(TEXTS)


def test_people_see_suites_and_the_worst_records(home: pathlib.Path) -> None:
    run(home)
    done = call(home, "dataset", "contamination", "out", "river.jsonl", "--out", "list.jsonl")
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "2 of 4 records contaminated" in words
    assert "river 2 1" in words
    assert "verbatim river 1 1.00" in words
    assert "--list list.jsonl` retracts them" in words


REFUSED = [
    (["contamination", "out"], 2, "give --suites with the files of test suites"),
    (["contamination", "out", "--suites", "none.jsonl"], 1, 'suite "none": no file matches'),
    (["contamination", "out", "--suites", "{"], 2, "is no JSON"),
    (["contamination", "nowhere", "--suites", "river.jsonl"], 1, "holds no dataset"),
    (["contamination", "out", "--suites", "river.jsonl", "--out", "no/such/list"], 1, "cannot write no/such/list"),
    (
        ["contamination", "out", "--suites", "river.jsonl", "--tokenizer", "small.json"],
        1,
        "'small.json' is another one: name it by --tokenizer",
    ),
    (["retract", "out", "--list", "none.jsonl"], 1, "cannot read the list none.jsonl"),
    (
        ["retract", "out", "--list", "river.jsonl"],
        1,
        'river.jsonl, line 1: no record; a line of the list is {"id": "..."}',
    ),
]


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_in_one_line(home: pathlib.Path) -> None:
    run(home)
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (home / "small.json").write_text(json.dumps({"version": "1.0", "model": model}))
    for arguments, code, message in REFUSED:
        done = call(home, "dataset", *arguments)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_tokenizer_that_moved_is_named_by_its_new_place(home: pathlib.Path) -> None:
    deepseek = pathlib.Path(resolve_tokenizer("deepseek").path)
    (home / "here.json").write_bytes(deepseek.read_bytes())
    (home / "tokenizer_config.json").write_bytes(deepseek.with_name("tokenizer_config.json").read_bytes())
    run(home, "-p", "tokenizer=here.json")
    (home / "here.json").rename(home / "there.json")
    lost = call(home, "dataset", "contamination", "out", "--suites", "river.jsonl")
    assert lost.returncode == 1
    assert "it is not where the pipeline had it: name it by --tokenizer" in lost.stderr
    assert (
        answer(home, "dataset", "contamination", "out", "--suites", "river.jsonl", "--tokenizer", "there.json")[
            "contaminated"
        ]
        == 2
    )
