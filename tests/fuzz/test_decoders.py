"""Every target until its canary is found: nothing breaks, and the fuzzer gets where the decoder has taken its input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import registry
from tests.fuzz.harness import Target
from tests.fuzz.runner import fuzz

#: Processor time of each target, in seconds: at a glimpse, and in the slow suite. A canary is sought until it is found.
GLIMPSE_S, LOOK_S = 0.2, 1.0

TARGETS = {target.name: target for target in registry.all_targets()}


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The reports on the targets whose tests were asked for, from one program, which imports them once."""
    wanted = {
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.fspath == request.fspath and "reports" in item.fixturenames
    }
    _, found = fuzz(sorted(wanted), tmp_path_factory.mktemp("fuzz"), "--seconds", str(GLIMPSE_S))
    return {report["target"]: report for report in found}


@pytest.mark.parametrize("name", TARGETS)
def test_each_seed_is_taken(name: str) -> None:
    target: Target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds
    # The tests that come after it in this process have the environment that they had.
    environment, folder = dict(os.environ), Path.cwd()
    assert [target.run(seed) is not None for seed in seeds] == [True] * len(seeds)
    assert (dict(os.environ), Path.cwd()) == (environment, folder)


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_decoder_and_its_canary_is_found(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[name]
    assert not report["problem"], report
    assert report["fresh"]
    assert report["canary_at"]


@pytest.mark.slow
def test_no_bytes_break_a_decoder_within_a_second(tmp_path: Path) -> None:
    _, found = fuzz(["all"], tmp_path, "--seconds", str(LOOK_S))
    assert {report["target"] for report in found} == set(TARGETS)
    assert {report["target"]: report["problem"] for report in found if report["problem"]} == {}
    assert [report["target"] for report in found if not (report["fresh"] and report["canary_at"])] == []
