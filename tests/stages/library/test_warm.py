"""Loops that a machine has not compiled yet: what a run needs of them, who compiles it, and what is said meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import headrace
from headrace.stages.dedup import compile_keys
from headrace.stages.library import warm
from headrace.stages.library.warm import LOOPS, Compiling

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found: set[str] = set()
    monkeypatch.setattr(warm, "is_prepared", found.__contains__)
    monkeypatch.setattr(warm, "is_kept", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    orders: list[list[str]] = []

    def start(names: Sequence[str]) -> subprocess.Popen[bytes]:
        orders.append(list(names))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(warm, "_start", start)
    return orders


@pytest.mark.parametrize(
    ("example", "names"),
    [
        ("plain", set()),
        ("fineweb", {"repetition", "gopher", "c4", "fineweb"}),
        ("dedup", {"repetition", "gopher", "keys", "index"}),
    ],
)
def test_a_pipeline_file_says_what_it_needs(
    ready: set[str], started: list[list[str]], example: str, names: set[str]
) -> None:
    with Compiling() as compiling:
        compiling.begin((ROOT / "examples" / f"{example}.py").read_text())
    assert {name for order in started for name in order} == names


def test_the_targets_of_stages_say_the_same(ready: set[str], started: list[list[str]]) -> None:
    filters = [headrace.gopher_quality(), headrace.duplicate_lines(), headrace.c4_quality(), headrace.fineweb_quality()]
    targets = " ".join(stage.target for stage in (*filters, *headrace.dedup()))
    with Compiling() as compiling:
        compiling.begin(targets)
    assert set(started[0]) == set(LOOPS) - {"decontamination", "spans"}


def test_two_processes_begin_at_both_ends(ready: set[str], started: list[list[str]]) -> None:
    ready.add("c4")
    with Compiling() as compiling:
        compiling.begin("gopher_repetition gopher_quality c4_quality fineweb_quality")
        compiling.begin("gopher_quality, what is begun already")
    assert started == [["repetition", "gopher", "fineweb"], ["fineweb", "gopher", "repetition"]]


def test_it_says_what_is_compiled_and_how_far_it_is(ready: set[str], started: list[list[str]]) -> None:
    with Compiling() as compiling:
        assert compiling.news() == []
        compiling.begin("gopher_quality c4_quality")
        assert compiling.news() == ["compiling gopher, c4, once on this machine; 0 of 2 done"]
        assert compiling.news() == []
        ready.add("gopher")
        assert compiling.news() == ["compiling c4; 1 of 2 done"]
        ready.add("c4")
        (line,) = compiling.news()
        assert line.startswith("compiled gopher, c4 in ")
        assert compiling.news() == []


def test_who_waits_is_told_until_all_is_compiled(ready: set[str], started: list[list[str]]) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        ready.add("gopher" if "gopher" not in ready else "c4")

    with Compiling() as compiling:
        compiling.begin("gopher_quality c4_quality")
        compiling.finish(say)
    assert said[:2] == ["compiling gopher, c4, once on this machine; 0 of 2 done", "compiling c4; 1 of 2 done"]
    assert said[2].startswith("compiled gopher, c4 in ")


def test_who_waits_for_processes_that_died_goes_on(ready: set[str], started: list[list[str]]) -> None:
    said: list[str] = []
    with Compiling() as compiling:
        compiling.finish(said.append)
        compiling.begin("gopher_quality")
        compiling.finish(said.append)
    assert said == ["compiling gopher, once on this machine; 0 of 1 done"]


def test_what_takes_long_is_said_again(
    ready: set[str], started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(warm.time, "monotonic", lambda: clock[0])
    with Compiling() as compiling:
        compiling.begin("gopher_quality")
        said = []
        for _ in range(24):
            said += compiling.news()
            clock[0] += 1
    assert said[1:] == ["compiling gopher; 0 of 1 done after 10 s", "compiling gopher; 0 of 1 done after 20 s"]


def test_where_no_code_can_be_kept_that_is_said_once(
    ready: set[str], started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "is_kept", lambda: False)
    with Compiling() as compiling:
        compiling.begin("gopher_quality")
        (line,) = compiling.news()
        assert "set XDG_CACHE_HOME" in line
        assert compiling.news() == []
    assert started == []


def test_only_known_loops_are_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headrace.stages.library.warm", "gophers"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "no loops are called gophers" in done.stderr


@pytest.mark.slow
def test_code_that_several_processes_compile_at_once_is_right(tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "headrace.stages.library.warm"]
    both = [subprocess.Popen([*command, *order], env=env) for order in (LOOPS, reversed(LOOPS))]
    assert [process.wait(300) for process in both] == [0, 0]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "tests/stages/quality", "-m", "not slow"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout


def test_loops_that_are_there_load_no_compiler() -> None:
    compile_keys()
    script = (
        "import sys; from headrace.stages.dedup import compile_keys; compile_keys(); "
        "print(*{'numba.np.arraymath', 'awkward'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "\n", "half a second of each start"
