"""The ledger answers for each record and each shard after the run."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return ended(headrace(*arguments))


@pytest.mark.slow
def test_a_shard_is_made_again_byte_for_byte_and_put_back(undisturbed: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "copy"
    shutil.copytree(undisturbed, dataset)
    shard = json.loads((dataset / "manifest.json").read_text())["shards"][1]
    tokens = dataset / shard["tokens"]
    before = tokens.read_bytes()
    tokens.unlink()
    missing = call("dataset", "verify", str(dataset))
    assert missing.returncode == 1
    assert shard["tokens"] in missing.stderr + missing.stdout
    answer = call("dataset", "rebuild", "--trust-code", str(dataset), tokens.stem, "--restore", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["identical"]
    assert json.loads(answer.stdout)["differing"] == []
    assert tokens.read_bytes() == before
    assert call("dataset", "verify", str(dataset)).returncode == 0


def test_a_record_is_traced_to_its_line_its_verdict_and_its_tokens(home: Path, undisturbed: Path) -> None:
    lines = (home / "corpus" / "0.jsonl").read_text().splitlines()
    name = json.loads(lines[0])["id"]
    found = json.loads(call("dataset", "trace", str(undisturbed), name, "--json").stdout)["records"]
    assert [(fact["row"], Path(fact["source"]).name) for fact in found] == [(0, "0.jsonl")]
    assert found[0]["verdict"] == "kept"
    assert sum(piece["length"] for piece in found[0]["pieces"]) == found[0]["tokens"]
    shown = json.loads(call("dataset", "show", str(undisturbed), "--quarantine", "--json").stdout)
    name = next(record["id"] for record in shown["quarantine"] if "/0.jsonl" in record["id"])
    (fact,) = json.loads(call("dataset", "trace", str(undisturbed), name, "--json").stdout)["records"]
    assert (fact["verdict"], fact["stage"]) == ("quarantined", "read")
    # The id of a record in a later part of a file: <uri>@<byte where the part begins>#<ordinal in it>.
    start, ordinal = (int(number) for number in name.rsplit("@", 1)[1].split("#"))
    part = (home / "corpus" / "0.jsonl").read_bytes()[start:]
    assert fact["row"] == ordinal
    # The part owns the lines that start in it; the one that reaches into it belongs to the part before.
    assert part.split(b"\n")[ordinal + 1] == b'{"id": "broken", "text": '


def test_a_record_that_is_not_there_is_said_in_one_line(undisturbed: Path) -> None:
    answer = call("dataset", "trace", str(undisturbed), "nobody")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "nobody" in answer.stderr


@pytest.mark.slow
def test_the_scorecard_is_written_and_its_gate_names_the_row(undisturbed: Path, tmp_path: Path) -> None:
    written = call("dataset", "show", str(undisturbed), "--card", str(tmp_path / "card"))
    assert written.returncode == 0, written.stderr
    assert "kept_share" in (tmp_path / "card" / "card.md").read_text()
    assert (tmp_path / "card" / "card.html").read_text().lstrip().lower().startswith("<!doctype html>")
    gate = tmp_path / "gate.toml"
    gate.write_text("[records]\nmin = 1\n")
    assert call("dataset", "verify", str(undisturbed), "--gate", str(gate)).returncode == 0
    gate.write_text("[kept_share]\nmin = 0.999\n")
    broken = call("dataset", "verify", str(undisturbed), "--gate", str(gate))
    assert broken.returncode == 1
    assert "kept_share: min 0.999" in broken.stdout


def test_a_tokenizer_is_trained_on_a_sample(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "tokenizer.json"
    trained = call("tokenizer", "train", f"{home}/corpus/0.jsonl", str(output), "--vocab-size", "600", "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["vocab_size"] == 600
    assert output.exists()
