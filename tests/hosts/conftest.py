"""Clusters on several hosts, made of network namespaces on this one. They need root."""

import json
from pathlib import Path

import pytest

from tests.kits.run.command_server import ended
from tests.kits.run.gated import write_pipeline
from tests.kits.run.kill import headrace

ROOT = Path(__file__).parents[2]
RECORDS = 1500


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus in four files, one broken line in each."""
    folder = tmp_path_factory.mktemp("texts")
    source = (ROOT / "docs" / "design" / "ledger.md").read_text()
    for part in range(4):
        lines = [
            json.dumps({"id": f"r{number}", "text": f"{number} {source[number % 5000 : number % 5000 + 1500]}"})
            for number in range(part, RECORDS, 4)
        ]
        lines.insert(len(lines) // 2, '{"id": "broken", "text": ')
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def undisturbed(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of a run on one host that nothing happened to."""
    output = tmp_path_factory.mktemp("reference") / "out"
    done = ended(headrace("run", str(ROOT / "examples/plain.py"), *inputs(texts, output), "--json"), timeout=300)
    assert done.returncode == 0, done.stderr
    return output


def inputs(texts: Path, output: Path) -> list[str]:
    return ["-p", f"input={texts}/*.jsonl", "-p", f"output={output}", "-p", "seq_len=512"]


@pytest.fixture(scope="session")
def reference(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the gated pipeline makes on one host, with its gate open."""
    folder = tmp_path_factory.mktemp("gated")
    (folder / "gate").touch()
    gated = write_pipeline(folder)
    done = ended(
        headrace("run", str(gated), "-p", f"input={texts}/*.jsonl", "-p", f"output={folder}/out", "--json"), timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder / "out"
