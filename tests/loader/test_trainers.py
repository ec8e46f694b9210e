"""Trainers that people have, each saved in a pass, killed and resumed: its steps see the rows of a run that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from headrace.loader.batches import Loader

pytestmark = pytest.mark.trainers

RUNS = Path(__file__).parent / "trainer_runs.py"
TIMEOUT_S = 180
ROWS_A_STEP = 20
#: one that ends within the pass; steps of a pass are 50
STEPS, SAVE_AT, DIE_AT = 62, 17, 20
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(uri: str, out: Path, trainer: str, via: str, ranks: int, *told: object) -> subprocess.CompletedProcess[str]:
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", str(RUNS), trainer, via, uri, str(out), *map(str, told)]
    if trainer == "checkpoint" or (ranks > 1 and trainer != "lightning"):
        # which finds a free port
        command[1:3] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    environ |= {"TEST_RANKS": str(ranks), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def seen(out: Path, rank: int) -> list[Any]:
    path = out / f"seen-{rank}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return lines


def expected(uri: str, rank: int, ranks: int, steps: int, skip: tuple[int, int] | None = None) -> list[Any]:
    loader = Loader(uri, batch_size=ROWS_A_STEP // ranks, seed=3, rank=rank, world_size=ranks)
    if skip is not None:
        loader.skip(*skip)
    found: list[Any] = []
    while len(found) < steps:
        found += [[batch["state"].tolist(), batch["tokens"].tolist()] for batch in loader]
    return found[:steps]


def check(uri: str, out: Path, trainer: str, via: str, ranks: int, *, save_at: int = SAVE_AT, **wanted: Any) -> None:
    first = run(uri, out, trainer, via, ranks, STEPS, save_at, save_at + 3, "fresh")
    assert first.returncode != 0, first.stderr
    before = [seen(out, rank)[:save_at] for rank in range(ranks)]
    second = run(uri, out, trainer, via, ranks, STEPS, save_at, -1, "resume")
    assert second.returncode == 0, second.stderr[-4000:]
    for rank in range(ranks):
        rows = before[rank] + seen(out, rank)
        assert rows == expected(uri, rank, ranks, STEPS, **wanted)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("trainer", "via"),
    [
        ("lightning", "bare"),
        ("lightning", "over_workers"),
        ("lightning", "stateful_data_loader"),
        ("transformers", "bare"),
        ("transformers", "over_workers"),
        ("accelerate", "bare"),
        ("accelerate", "over_workers"),
    ],
)
def test_a_trainer_that_was_killed_in_a_pass_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, trainer: str, via: str, ranks: int
):
    check(thousand_dataset, tmp_path / "out", trainer, via, ranks)


@pytest.mark.parametrize("trainer", ["lightning", "transformers", "accelerate"])
@pytest.mark.parametrize("save_at", [50, 55])
def test_a_trainer_saved_at_the_end_of_a_pass_or_in_the_second_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, trainer: str, save_at: int
):
    check(thousand_dataset, tmp_path / "out", trainer, "bare", 1, save_at=save_at)


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_distributed_checkpoint_keeps_the_place_and_the_journal(
    thousand_dataset: str, tmp_path: Path, ranks: int
):
    check(thousand_dataset, tmp_path / "out", "checkpoint", "bare", ranks, skip=(900, 20))


def test_the_trainer_of_transformers_that_skips_by_itself_is_exact_in_the_first_pass(
    thousand_dataset: str, tmp_path: Path
):
    check(thousand_dataset, tmp_path / "out", "transformers", "data_loader", 1)
