"""Trainers that people have, each saved in a pass, killed and resumed: its steps see the rows of a run that was not."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.loader import Loader

MISSING = [
    package
    for package in ("torch", "torchdata", "lightning", "transformers", "accelerate")
    if importlib.util.find_spec(package) is None
]
pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; make trainers installs them"),
]

RUNS = Path(__file__).parents[1] / "kits" / "loader" / "trainer_runs.py"
#: Trainers, and by what they get their batches, whose resume is exact.
WAYS = [
    ("lightning", "bare"),
    ("lightning", "over_workers"),
    ("lightning", "stateful"),
    ("lightning", "stateful_persistent"),
    ("transformers", "bare"),
    ("transformers", "over_workers"),
    ("transformers", "data_loader"),
    ("accelerate", "bare"),
    ("accelerate", "over_workers"),
]
TIMEOUT_S = 300
ROWS_A_STEP = 20
#: a pass has 50 steps
STEPS, SAVE_AT = 62, 17
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


def check(uri: str, out: Path, trainer: str, via: str, ranks: int, *, save_at: int = SAVE_AT, **wanted: Any) -> str:
    first = run(uri, out, trainer, via, ranks, STEPS, save_at, save_at + 3, "fresh")
    # the one that is saved behind its end is not killed
    assert (first.returncode == 0) == (trainer == "lightning_saved_after_fit"), first.stderr
    before = [seen(out, rank)[:save_at] for rank in range(ranks)]
    second = run(uri, out, trainer, via, ranks, STEPS, save_at, -1, "resume")
    assert second.returncode == 0, second.stderr[-4000:]
    for rank in range(ranks):
        rows = before[rank] + seen(out, rank)
        assert rows == expected(uri, rank, ranks, STEPS, **wanted)
    return second.stderr


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("trainer", "via"), WAYS)
def test_a_trainer_that_was_killed_in_a_pass_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, trainer: str, via: str, ranks: int
):
    check(thousand_dataset, tmp_path / "out", trainer, via, ranks)


@pytest.mark.parametrize(("trainer", "via"), WAYS)
@pytest.mark.parametrize("save_at", [50, 55])
def test_a_trainer_saved_at_or_after_a_pass_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, trainer: str, via: str, save_at: int
):
    check(thousand_dataset, tmp_path / "out", trainer, via, 1, save_at=save_at)


@pytest.mark.parametrize("via", ["bare", "over_workers", "stateful", "stateful_persistent"])
@pytest.mark.parametrize("save_at", [SAVE_AT, 50, 55])
def test_lightning_saved_twice_behind_the_end_of_its_fit_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, via: str, save_at: int
):
    check(thousand_dataset, tmp_path / "out", "lightning_saved_after_fit", via, 1, save_at=save_at)


@pytest.mark.parametrize("via", ["over_workers", "stateful", "stateful_persistent"])
@pytest.mark.parametrize("save_at", [SAVE_AT, 50, 55])
def test_lightning_that_validates_between_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, via: str, save_at: int
):
    check(thousand_dataset, tmp_path / "out", "lightning_that_validates", via, 1, save_at=save_at)


def of_all_ranks(found: list[list[Any]]) -> list[Any]:
    """A step a line: its place, and the rows of all ranks in their order."""
    return [[steps[0][0], [row for _, rows in steps for row in rows]] for steps in zip(*found, strict=True)]


@pytest.mark.parametrize(("first_ranks", "then_ranks"), [(2, 1), (1, 2)])
@pytest.mark.parametrize(
    ("trainer", "via", "save_at"),
    [
        ("lightning", "bare", SAVE_AT),
        ("lightning", "over_workers", 55),
        ("lightning", "stateful", SAVE_AT),
        ("transformers", "bare", SAVE_AT),
        ("accelerate", "bare", SAVE_AT),
        ("accelerate", "over_workers", 55),
        ("checkpoint", "bare", SAVE_AT),
    ],
)
def test_a_trainer_with_other_ranks_reads_the_same_rows(
    thousand_dataset: str, tmp_path: Path, trainer: str, via: str, save_at: int, first_ranks: int, then_ranks: int
):
    out = tmp_path / "out"
    first = run(thousand_dataset, out, trainer, via, first_ranks, STEPS, save_at, save_at + 3, "fresh")
    assert first.returncode != 0, first.stderr
    rows = of_all_ranks([seen(out, rank)[:save_at] for rank in range(first_ranks)])
    second = run(thousand_dataset, out, trainer, via, then_ranks, STEPS, save_at, -1, "resume")
    assert second.returncode == 0, second.stderr[-4000:]
    rows += of_all_ranks([seen(out, rank) for rank in range(then_ranks)])
    assert rows == expected(thousand_dataset, 0, 1, STEPS, skip=(900, 20) if trainer == "checkpoint" else None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_distributed_checkpoint_keeps_the_place_and_the_journal(
    thousand_dataset: str, tmp_path: Path, ranks: int
):
    check(thousand_dataset, tmp_path / "out", "checkpoint", "bare", ranks, skip=(900, 20))


REFUSED = """
import sys, torch
from torch.utils.data import DataLoader
from headrace.loader.loader import Loader
from headrace.loader.torch import TorchLoader
from headrace.loader.order.errors import LoaderError
from accelerate import Accelerator, DataLoaderConfiguration
loader = TorchLoader(Loader(sys.argv[1], batch_size=4, fields=("labels",)))
for dispatch in (None, False):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    prepared = accelerator.prepare(DataLoader(loader, batch_size=None))
    try:
        next(iter(prepared))
    except LoaderError as error:
        assert "Leave the loader out of accelerator.prepare" in str(error)
        print("refused")
bare = accelerator.prepare(TorchLoader(Loader(sys.argv[1], batch_size=4)))
assert next(iter(bare))["tokens"].shape[0] == 4
"""


def test_an_accelerate_wrapper_that_looks_ahead_or_cuts_is_refused(tiny_dataset: str):
    command = [sys.executable, "-W", "ignore", "-c", REFUSED, tiny_dataset]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (0, "refused\nrefused\n"), done.stderr


@pytest.mark.parametrize(
    ("trainer", "via", "said"),
    [
        ("lightning", "data_loader", "in place of the DataLoader give the trainer the loader itself"),
        ("lightning", "data_loader_workers", r"in place of the DataLoader give the trainer loader.over_workers(2)"),
        ("lightning", "data_loader_spawned", r"in place of the DataLoader give the trainer loader.over_workers(1)"),
        ("transformers_without_callback", "bare", "callbacks=[headrace.loader.hugging_face.LoaderState(loader)]"),
        ("transformers_without_callback", "data_loader", "ignore_data_skip=True"),
        ("transformers_without_callback", "data_loader_workers", "ignore_data_skip=True"),
        ("transformers_without_callback", "data_loader_spawned", "ignore_data_skip=True"),
        ("transformers_without_callback", "over_workers", "ignore_data_skip=True"),
        ("transformers_that_skips", "data_loader", "ignore_data_skip=True"),
    ],
)
def test_a_trainer_whose_checkpoints_lack_the_place_is_refused_first(
    thousand_dataset: str, tmp_path: Path, trainer: str, via: str, said: str
):
    out = tmp_path / "out"
    done = run(thousand_dataset, out, trainer, via, 1, STEPS, SAVE_AT, -1, "fresh")
    assert done.returncode == 1
    assert "LoaderError" in done.stderr
    assert said in done.stderr
    assert not list(out.glob("seen-*"))
