"""`headrace dataset head`, `cat` and `sample`: what a dataset holds, as text, whatever sink wrote it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace
from tests.kits.run.small_tokenizer import small_tokenizer

PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import map_records, read_jsonl, tokenize, write_documents, write_jsonl, write_tokens


def odd(record):
    return record if record["metadata"].get("n", 0) % 2 or "n" not in record["metadata"] else None


def build(input: str, output: str, tokenizer: str, sink: str) -> Pipeline:
    tokens = tokenize(tokenizer)
    ends = {
        "tokens": [tokens, write_tokens(tokens, seq_len=16)],
        "documents": [write_documents()],
        "lines": [write_jsonl()],
    }[sink]
    return Pipeline.chain("p", output, read_jsonl(input), *ends)
"""
#: The third one would clear a terminal, rename its window and turn what follows around.
TEXTS = [f"record {number}\n\tof twenty" for number in range(20)]
TEXTS[2] = "\x1b[2J\x1b]0;owned\x07 \u202e \x9b1m plain"
SINKS = ("tokens", "documents", "lines")


def call(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(headrace("dataset", *arguments), cwd=home)


def records(home: Path, *arguments: str) -> list[dict[str, Any]]:
    done = call(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["records"]
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset of each sink."""
    home = tmp_path_factory.mktemp("records")
    (home / "p.py").write_text(PIPELINE)
    rows = [json.dumps({"id": f"d{number}", "text": text, "n": number}) for number, text in enumerate(TEXTS)]
    (home / "in.jsonl").write_text("\n".join(rows))
    for sink in SINKS:
        given = (f"sink={sink}", f"output={sink}", "input=in.jsonl", f"tokenizer={small_tokenizer()}")
        command = headrace("run", "p.py", *(word for one in given for word in ("-p", one)))
        done = ended(command, cwd=home)
        assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize("sink", ["tokens", *(pytest.param(sink, marks=pytest.mark.slow) for sink in SINKS[1:])])
def test_each_sink_gives_its_texts_back(home: Path, sink: str) -> None:
    found = records(home, "cat", sink)
    assert [(one["id"], one["row"], one["text"], one["cut"]) for one in found] == [
        (f"d{number}", number, text, 0) for number, text in enumerate(TEXTS)
    ]
    assert [one["metadata"]["n"] for one in found] == list(range(20))
    assert all((one["tokens"] is None) == (sink != "tokens") for one in found)
    assert records(home, "head", sink, "-n", "3") == found[:3]
    assert records(home, "cat", sink, "d7", "d11") == [found[7], found[11]]
    drawn = records(home, "sample", sink, "-n", "5", "--seed", "3")
    assert drawn == records(home, "sample", sink, "-n", "5", "--seed", "3")
    assert drawn != records(home, "sample", sink, "-n", "5", "--seed", "4")
    assert len(drawn) == 5
    assert all(one in found for one in drawn)
    assert len(records(home, "sample", sink, "-n", "50")) == 20


@pytest.mark.parametrize("sink", SINKS)
def test_nothing_of_a_record_reaches_a_terminal_as_a_command(home: Path, sink: str) -> None:
    shown = call(home, "head", sink).stdout
    assert r"\x1b[2J\x1b]0;owned\x07 \x202e \x9b1m plain" in shown
    assert "record 1\n\tof twenty\n" in shown
    assert all(char.isprintable() or char in "\n\t" for char in shown)


def test_long_texts_are_cut_and_the_rest_counted(home: Path) -> None:
    (found,) = records(home, "head", "tokens", "-n", "1", "--characters", "4")
    assert (found["text"], found["cut"]) == ("reco", len(TEXTS[0]) - 4)
    assert "-- and 15 characters more" in call(home, "head", "tokens", "-n", "1", "--characters", "4").stdout


def test_a_reader_that_leaves_early_ends_the_command_without_a_word(home: Path) -> None:
    command = " ".join(headrace("dataset", "cat", "tokens"))
    done = subprocess.run(f"{command} | head -n 1", shell=True, capture_output=True, text=True, cwd=home, timeout=300)
    assert done.stdout.startswith("== d0  ")
    assert done.stderr == ""


def test_a_record_that_is_not_kept_is_named(home: Path) -> None:
    done = call(home, "cat", "tokens", "d3", "nobody")
    assert done.returncode == 1
    assert "keeps no record 'nobody'" in done.stderr


@pytest.mark.slow
def test_a_retracted_record_is_shown_in_no_version(home: Path) -> None:
    assert call(home, "retract", "tokens", "d5").returncode == 0
    ids = [f"d{number}" for number in range(20) if number != 5]
    for address in ("tokens", "tokens@1", "tokens@2"):
        assert [one["id"] for one in records(home, "cat", address)] == ids
        assert {one["id"] for one in records(home, "sample", address, "-n", "20")} <= set(ids)
    done = call(home, "cat", "tokens@9")
    assert done.returncode == 1
    assert "has no version 9; the newest are 1, 2" in done.stderr
