"""What stands under the name of a shard and is another object: named, and neither published nor overwritten."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.kits.run.command import pipeline
from tests.kits.run.command_server import ended
from tests.kits.run.kill import headrace


@pytest.fixture
def house(tmp_path: Path) -> Path:
    (tmp_path / "small.py").write_text(pipeline())
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"id": f"r{number}", "text": f"line {number}\n" * 20}) for number in range(20)]
    (tmp_path / "corpus" / "a.jsonl").write_text("\n".join(lines))
    return tmp_path


def run(house: Path, output: str) -> subprocess.CompletedProcess[str]:
    arguments = ("run", "small.py", "-p", "input=corpus/*.jsonl", "-p", f"output={output}", "--json")
    return ended(headrace(*arguments), cwd=house)


@pytest.mark.parametrize("role", ["safetensors", "verdicts.parquet"])
def test_an_object_that_was_cut_ends_the_run_until_it_is_deleted(house: Path, role: str) -> None:
    assert run(house, "whole").returncode == 0
    (whole,) = (house / "whole").glob(f"shards/*/*.{role}")
    cut = house / "other" / whole.relative_to(house / "whole")
    cut.parent.mkdir(parents=True)
    cut.write_bytes(whole.read_bytes()[:-1])
    refused = run(house, "other")
    assert refused.returncode == 1
    assert cut.name in refused.stderr
    assert "Delete that object" in refused.stderr
    assert not (house / "other" / "manifest.json").exists()
    cut.unlink()
    assert run(house, "other").returncode == 0
    # Another run has another epoch, and so another folder.
    (again,) = (house / "other").glob(f"shards/*/{cut.name}")
    assert again.read_bytes() == whole.read_bytes()
    verified = ended(headrace("dataset", "verify", str(house / "other")))
    assert verified.returncode == 0
