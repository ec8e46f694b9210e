"""Datasets that many tests read, and torch on one thread."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kits.loader.shards import write_dataset

#: Of torch, here and in processes that a test starts: the models are small, and threads that spin while they wait for
#: each other take three times the work where something else runs.
THREADS = "1"


@pytest.fixture(autouse=True)
def _few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", THREADS)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(THREADS))


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., str]:
    """Writes a dataset and returns its URI; arguments as of `write_dataset`."""
    made = iter(range(1000))

    def make(**arguments: object) -> str:
        return str(write_dataset(tmp_path / str(next(made)), **arguments))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 17 sequences of 16 tokens in four shards, one of them empty."""
    return str(write_dataset(tmp_path_factory.mktemp("datasets") / "tiny"))


@pytest.fixture(scope="session")
def thousand_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 1,003 sequences of 8 tokens in five shards."""
    root = tmp_path_factory.mktemp("datasets") / "thousand"
    return str(write_dataset(root, sequences=(300, 1, 402, 200, 100), seq_len=8))


@pytest.fixture(scope="session")
def large_dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards of 16 and of 31 blocks."""
    root = tmp_path_factory.mktemp("datasets") / "large"
    return str(write_dataset(root, sequences=(500, 490), seq_len=1000))
