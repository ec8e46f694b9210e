"""Each recipe for a trainer of others, as its page has it: killed in a pass, resumed, its steps see every row once."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.loader.loader import Loader
from tests.kits.loader.recipes import recipes

PACKAGES = {
    "Lightning": ("lightning",),
    "transformers": ("transformers",),
    "TRL": ("trl", "datasets"),
    "Accelerate": ("accelerate",),
    "torchtitan": ("torchtitan", "tyro"),
    "Megatron": ("megatron",),
    "nanotron": ("torch",),
}
#: Which seed a recipe reads with.
SEEDS = {"Lightning": 1, "transformers": 1, "TRL": 1, "Accelerate": 1, "torchtitan": 0, "Megatron": 0, "nanotron": 0}
ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "tests" / "kits" / "loader" / "recipe_runs.py"
LINES_MAX = 10
BATCH, GLOBAL_BATCH, STEPS, SAVE_AT = 8, 16, 50, 17
#: Those that go on at one global batch size.
COUNTING = ("Megatron", "nanotron")
TIMEOUT_S = 300
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(home: Path, heading: str, ranks: int, *told: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(RUNS), heading, ".", *map(str, told)]
    if heading != "Lightning":
        command[1:3] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environ = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    environ |= {"TEST_RANKS": str(ranks), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environ.get("PYTHONPATH")])])
    return subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def seen(home: Path, ranks: int, steps: int | None = None) -> list[list[int]]:
    """The rows of `steps`, those of all ranks in their order."""
    files = [home / f"seen-{rank}.jsonl" for rank in range(ranks)]
    found = [[json.loads(line) for line in path.read_text().splitlines()][:steps] for path in files]
    for path in files:
        path.unlink()
    return [row for step in zip(*found, strict=True) for batch in step for row in batch]


def expected(uri: str, seed: int, rows: int) -> list[Any]:
    batches = iter(Loader(uri, batch_size=1, seed=seed, rank=0, world_size=1))
    return [next(batches)["tokens"][0].tolist() for _ in range(rows)]


def test_a_recipe_has_at_most_ten_lines() -> None:
    assert recipes().keys() == PACKAGES.keys()
    for heading, text in recipes().items():
        imports = [node.lineno for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
        lines = [line for number, line in enumerate(text.splitlines(), 1) if line and number not in imports]
        assert len(lines) <= LINES_MAX, heading


@pytest.mark.trainers
@pytest.mark.parametrize(("first_ranks", "then_ranks"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("heading", PACKAGES)
def test_a_recipe_that_was_killed_in_a_pass_goes_on_exactly(
    thousand_dataset: str, tmp_path: Path, heading: str, first_ranks: int, then_ranks: int
) -> None:
    missing = [package for package in PACKAGES[heading] if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"not installed: {missing}; make trainers installs them")
    home = tmp_path / "a home"
    (home / "data").mkdir(parents=True)
    (home / "data" / "plain").symlink_to(thousand_dataset.removeprefix("file://"))
    first = run(home, heading, first_ranks, STEPS, SAVE_AT, SAVE_AT + 3, "fresh")
    assert first.returncode != 0, first.stderr[-4000:]
    rows = seen(home, first_ranks, SAVE_AT)
    before, after = (GLOBAL_BATCH if heading in COUNTING else BATCH * ranks for ranks in (first_ranks, then_ranks))
    assert len(rows) == SAVE_AT * before, first.stderr[-4000:]
    second = run(home, heading, then_ranks, STEPS, SAVE_AT, -1, "resume")
    assert second.returncode == 0, second.stderr[-4000:]
    rows += seen(home, then_ranks)
    assert len(rows) == SAVE_AT * before + (STEPS - SAVE_AT) * after
    assert rows == expected(thousand_dataset, SEEDS[heading], len(rows))
    if heading == "Lightning":
        lines = (home / "validated-0.jsonl").read_text().splitlines()
        assert lines[:3] == lines[3:6]
