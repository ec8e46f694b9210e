"""What a death does (docs/deaths.md): each part dies while the rest runs, and any two at once, on a real cluster.

Two controllers, two workers and an S3 server; the tasks are joined by QUIC. The dataset is compared record by record
with that of a run without faults, whatever died.
"""

import json
import sys
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest
from live_kit import call, inputs

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from s3_server import shared_server

#: Seconds for which links are cut: longer than their idle timeout, so that both ends give them up.
CUT_S = 12.0
PARTS: dict[str, dict[str, Any]] = {
    "task": {"kind": "kill", "target": "task"},
    "link": {"kind": "partition", "target": "links", "for_s": CUT_S},
    "worker": {"kind": "kill", "target": "worker"},
    "controller": {"kind": "kill", "target": "controller"},
    "store": {"kind": "store_outage", "for_s": [1.0, 4.0]},
    "everything": {"kind": "kill", "target": "everything"},
}
PAIRS = tuple(combinations_with_replacement(PARTS, 2))
#: Run with every test; all others take longer together.
QUICK = {("task", "controller"), ("worker", "store")}
#: Nothing of a run is left in memory when everything dies, and the run over the same dataset that follows is another.
RAISING = "everything"


def scenario(*parts: str) -> str:
    """One part dies between the second commit and the tenth, the other at most half a second later."""
    lines = ["[cluster]", "[run]", "fuse = false", "replicas = 2"]
    for number, part in enumerate(parts):
        moment = {"follows": 0, "after_s": [0.0, 0.5]} if number else {"after_commits": [2, 10]}
        lines += ["[[fault]]", *(f"{key} = {json.dumps(value)}" for key, value in {**PARTS[part], **moment}.items())]
    return "\n".join(lines) + "\n"


def survived(home: Path, reference: Path, folder: Path, *parts: str) -> dict[str, Any]:
    """The report of a run in which these died; fails, with the findings, if the dataset is another."""
    (folder / "x.toml").write_text(scenario(*parts))
    seed = str(sum(map(len, parts)))
    done = call(
        home, "chaos", "run", str(folder / "x.toml"), "small.py", *inputs(home), "--seed", seed,
        "--reference", str(reference), "--folder", str(folder), "--report", str(folder / "report"),
        "--rebuilds", "0", "--store", shared_server().uri(), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["verdict"] == "passed"
    assert [fired["kind"] for fired in report["fired"]] == [PARTS[part]["kind"] for part in parts]
    return report


@pytest.mark.parametrize(
    "parts", [pytest.param(pair, marks=() if pair in QUICK else pytest.mark.slow, id="+".join(pair)) for pair in PAIRS]
)
def test_any_two_die_at_once_and_the_dataset_is_the_same(
    home: Path, reference: Path, tmp_path: Path, parts: tuple[str, str]
) -> None:
    report = survived(home, reference, tmp_path, *parts)
    assert RAISING in parts or report["epochs"] == 1, "no epoch is raised by a death that needs none"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_one_dies_and_the_dataset_is_the_same(home: Path, reference: Path, tmp_path: Path, part: str) -> None:
    report = survived(home, reference, tmp_path, part)
    assert part == RAISING or report["epochs"] == 1, "no epoch is raised by a death that needs none"
    assert part == RAISING or len(report["starts"]) == 1, "the command is not started again"


def test_all_pairs_of_parts_are_there() -> None:
    assert len(PAIRS) == len(PARTS) * (len(PARTS) + 1) // 2
    assert set(PAIRS) > QUICK
