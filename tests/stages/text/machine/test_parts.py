"""Loops that are made of loops: what is machine code of its own, what is kept, and that both compute the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.stages.text.machine import kernels, parts

ADDED = """
import sys
from headrace.stages.text.machine import kernels, parts

kernels._cache_folder = lambda: sys.argv[1]

@kernels.compiled
def one(value):
    return value + 1

@kernels.compiled
def two(value):
    return one(one(value))

@kernels.compiled
def three(value):
    return one(two(value))

found = [eval(called)(int(value)) for called, value in (call.split(":") for call in sys.argv[2:])]
inner = one._dispatcher
parts_left = sum(isinstance(each.library, parts._Part) for each in inner.overloads.values())
print(found, inner.stats.cache_hits.total(), parts_left)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "added.py"
    path.write_text(ADDED)
    return path


def outcome(program: Path, *calls: str) -> str:
    command = [sys.executable, str(program), str(program.parent / "kept"), *calls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_loop_that_others_call_is_no_machine_code(program: Path) -> None:
    assert outcome(program, "two:5") == "[7] 0 1"


def test_a_part_that_python_calls_becomes_machine_code(program: Path) -> None:
    assert outcome(program, "two:5", "one:5", "three:5", "one:6") == "[7, 6, 8, 7] 0 0"


def test_another_process_takes_a_part_that_is_kept(program: Path) -> None:
    outcome(program, "two:5")
    assert outcome(program, "three:5") == "[8] 1 1"


def test_another_process_takes_a_whole_loop_without_its_parts(program: Path) -> None:
    outcome(program, "three:5")
    assert outcome(program, "three:6") == "[9] 0 0"


def test_who_adds_code_to_the_cache_does_so_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two that add to the index of one function at once would each name the other's code."""
    monkeypatch.setattr(kernels, "_cache_folder", lambda: str(tmp_path))
    held: list[str] = []
    alone = parts.taken_alone

    def recorded(folder: Path, name: str, wait_s: float) -> object:
        held.append(name)
        return alone(folder, name, wait_s)

    monkeypatch.setattr(parts, "taken_alone", recorded)
    assert kernels.compiled(_twice)(21) == 42
    assert held == ["saving"]
    assert list(tmp_path.rglob("*.nbc"))


def _twice(value: int) -> int:
    return 2 * value


@pytest.fixture
def _no_folder_is_known() -> Iterator[None]:
    """What was found of the folder of machine code is forgotten before and after."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    kernels._cache_folder.cache_clear()
    kernels.digest.cache_clear()


@pytest.mark.usefixtures("_no_folder_is_known")
def test_a_change_of_any_file_with_loops_makes_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stages = Path(kernels.__file__).parents[2]
    read, changed = Path.read_bytes, list[Path]()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path in changed))
    before = kernels._cache_folder()
    marked = re.compile(r"^@(compiled|entry)\b", re.MULTILINE)
    loops = [path for path in sorted(stages.rglob("*.py")) if marked.search(path.read_text(encoding="utf-8"))]
    assert {path.parent.name for path in loops} >= {"machine", "text", "quality", "dedup", "index", "decontamination"}
    for path in loops:
        _forget()
        changed[:] = [path]
        assert kernels._cache_folder() != before, path
