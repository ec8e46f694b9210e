"""What a death does (docs/design/deaths.md): each part dies while the rest runs, and any two at once.

Two controllers, two workers and an S3 server; the tasks are joined by QUIC. The dataset is compared record by record
with that of a run without faults, whatever died.
"""

import json
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from tests.kits.run.live import call, inputs
from tests.kits.store.s3_server import shared_server

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
#: What affects one run, one pair behind the other: the small sibling of all pairs.
IN_ONE_RUN = (("task", "controller"), ("worker", "store"), ("task", "worker"))
#: Commits from one pair of them to the next; they are counted on from round to round.
APART_COMMITS = 8
#: Rounds that all of them surely fit in: a run without a single commit would not end.
ROUNDS_MAX = 8 + 2 * APART_COMMITS
#: Nothing of a run is left in memory when everything dies, and the run over the same dataset that follows is another.
RAISING = "everything"


def scenario(*pairs: tuple[str, ...]) -> str:
    """Of each pair one dies at some commit, the other at most half a second later."""
    lines = ["[cluster]", "[run]", "fuse = false", "replicas = 2"]
    for number, pair in enumerate(pairs):
        first = sum(map(len, pairs[:number]))
        commits = [2 + APART_COMMITS * number, 8 + APART_COMMITS * number]
        for index, part in enumerate(pair):
            moment = {"follows": first, "after_s": [0.0, 0.5]} if index else {"after_commits": commits}
            lines += [
                "[[fault]]",
                *(f"{key} = {json.dumps(value)}" for key, value in {**PARTS[part], **moment}.items()),
            ]
    return "\n".join(lines) + "\n"


def survived(home: Path, reference: Path, folder: Path, *pairs: tuple[str, ...]) -> dict[str, Any]:
    """The report of a run in which these died; fails, with the findings, if the dataset is another."""
    (folder / "x.toml").write_text(scenario(*pairs))
    parts = [part for pair in pairs for part in pair]
    seed = str(sum(map(len, parts)))
    done = call(
        home, "chaos", "run", str(folder / "x.toml"), "small.py", *inputs(home), "--seed", seed,
        "--reference", str(reference), "--folder", str(folder), "--report", str(folder / "report"),
        "--rebuilds", "0", "--rounds", str(ROUNDS_MAX), "--store", shared_server().uri(), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["verdict"] == "passed"
    assert report["not_fired"] == [], "a run that is over too soon is followed by another round"
    fired = {fired["fault"]: fired["kind"] for fired in report["fired"]}
    assert [fired[number] for number in range(len(parts))] == [PARTS[part]["kind"] for part in parts]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_any_two_die_at_once_and_the_dataset_is_the_same(
    home: Path, reference: Path, tmp_path: Path, pair: tuple[str, str]
) -> None:
    report = survived(home, reference, tmp_path, pair)
    assert RAISING in pair or report["epochs"] == 1, "no epoch is raised by a death that needs none"


@pytest.mark.slow
def test_pairs_die_one_behind_the_other_and_the_dataset_is_the_same(
    home: Path, reference: Path, tmp_path: Path
) -> None:
    report = survived(home, reference, tmp_path, *IN_ONE_RUN)
    assert report["epochs"] == 1, "no epoch is raised by a death that needs none"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_one_dies_and_the_dataset_is_the_same(home: Path, reference: Path, tmp_path: Path, part: str) -> None:
    report = survived(home, reference, tmp_path, (part,))
    assert part == RAISING or report["epochs"] == 1, "no epoch is raised by a death that needs none"
    assert part == RAISING or len(report["starts"]) == report["rounds"], "the command is not started again"


def test_all_pairs_of_parts_are_there() -> None:
    assert len(PAIRS) == len(PARTS) * (len(PARTS) + 1) // 2
    assert set(PAIRS) > set(IN_ONE_RUN)
