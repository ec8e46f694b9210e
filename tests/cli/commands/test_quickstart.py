"""The quickstart: its pipeline, its curve, and what it will not remove."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from headrace.cli.demo.steps import Curve, _remove
from headrace.cli.host.corpus import quickstart_pipeline, trained_tokenizer
from headrace.client.errors import CliError
from headrace.client.pipeline_file import complete
from headrace.stages.runtime.build import build_stage
from tests.kits.run.small_tokenizer import small_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> str:
    return small_tokenizer()


def test_its_pipeline_is_valid_and_joins_two_sources(tmp_path: Path, tokenizer: str) -> None:
    pipeline = complete(quickstart_pipeline(str(tmp_path / "out"), tokenizer), {})
    assert pipeline.stages[2].after == ("stdlib", "docs")
    assert pipeline.modules == {}
    assert not (tmp_path / "out").exists()


def test_it_reads_a_python_with_links_out_of_its_folders(
    tmp_path: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's has `sitecustomize.py` in /etc."""
    library, elsewhere = tmp_path / "python3", tmp_path / "etc"
    library.mkdir()
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text("pass\n")
    (library / "sitecustomize.py").symlink_to(elsewhere / "sitecustomize.py")
    (library / "METADATA").write_text("A package.\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(library))
    sources = [build_stage(stage, {}) for stage in quickstart_pipeline("out", tokenizer).stages[:2]]
    assert [[Path(found.uri).name for found in source.list()] for source in sources] == [
        ["sitecustomize.py"],
        ["METADATA"],
    ]


def test_a_falling_loss_is_a_falling_curve() -> None:
    curve = Curve([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert curve.bars() == "█▇▆▅▄▃▂▁"
    assert len(Curve([1.0] * 1000).bars(20)) == 20
    assert Curve().bars() == ""


def test_only_a_dataset_is_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(CliError, match="is no dataset"):
        _remove(tmp_path / "mine")
    (tmp_path / "old" / "ledger").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "old")
    with pytest.raises(CliError, match="or a link to one"):
        _remove(tmp_path / "link")
    _remove(tmp_path / "old")
    assert not (tmp_path / "old").exists()


def test_its_tokenizer_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "python3"
    sources.mkdir()
    (sources / "a.py").write_text("def of(some): return some\n" * 40)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(sources))
    path = trained_tokenizer(tmp_path / "tokenizer")
    before = Path(path).stat().st_mtime_ns
    assert trained_tokenizer(tmp_path / "tokenizer") == path
    assert Path(path).stat().st_mtime_ns == before


@pytest.mark.slow
def test_it_ends_with_a_balanced_dataset_and_a_lower_loss(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "headrace.cli", "quickstart", "--data", str(tmp_path), "--json"]
    done = subprocess.run([*command, "--steps", "40"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["balanced"]
    assert found["kept"] > 100
    assert found["training"]["last_loss"] < found["training"]["first_loss"]
