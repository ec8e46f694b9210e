"""Loops that came as machine code: which processor runs which, how they are called, and what is said without any."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.pipeline import PipelineError
from headrace.stages.library.warm import Compiling
from headrace.stages.text.machine import build, kernels, native
from headrace.stages.text.machine.kernels import CalledLoop
from headrace.stages.text.machine.sources import digest

LEVEL = "x86-64-v2"
TUPLES = "(u8[], (i64[,], u32[]), i64, f64, bool) -> (i64, i64)"
#: Tests that call loops of their own, or such as other loops call.
LOOPS_OF_TESTS = (
    "tests/stages/dedup/index/test_tables.py::test_a_table_of_slots_is_read_in_order_however_it_grew",
    "tests/stages/decontamination/test_search.py::test_the_row_in_order_is_the_weightiest_that_there_is",
    "tests/stages/dedup/index/test_index.py",
)
ADDS, ASKS, WRITES = "(i64, f64) -> f64", "(bool, i64[]) -> bool", "(u16[,,], u64)"


def tuples(data: Any, pair: Any, number: int, weight: float, more: bool) -> Any:
    rows, words = pair
    total = number + int(weight * 2)
    for at in range(len(data)):
        total += data[at]
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            total += rows[row, column] * (column + 1)
    return total + (100 if more else 0), len(words) * 1


def adds(number: int, weight: float) -> float:
    return number + weight


def asks(flag: bool, numbers: Any) -> bool:
    return flag and len(numbers) > 1 and numbers[1] > 0


def writes(cube: Any, value: Any) -> None:
    cube[1, 2, 3] = value


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> ctypes.PyDLL:
    path = tmp_path_factory.mktemp("loops") / "small.so"
    signatures = {tuples: TUPLES, adds: ADDS, asks: ASKS, writes: WRITES}
    build.build_level(LEVEL, path, [CalledLoop(function, signature) for function, signature in signatures.items()])
    return ctypes.PyDLL(str(path))


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An installation without machine code and without numba."""
    monkeypatch.setattr(native, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(kernels, "_cache_folder", lambda: "")
    monkeypatch.setattr("headrace.stages.library.warm.can_compile", lambda: False)
    monkeypatch.setattr(kernels, "can_compile", lambda: False)
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def bound(loops: ctypes.PyDLL, function: Any, signature: str) -> Any:
    return native.bind(loops, __name__, function.__name__, signature)


def test_arrays_tuples_and_numbers_reach_the_loop(loops: ctypes.PyDLL) -> None:
    call = bound(loops, tuples, TUPLES)
    data, rows = np.arange(4, dtype=np.uint8), np.array([[1, 2], [3, 4]])
    data.setflags(write=False)
    given = data, (rows, np.zeros(5, np.uint32)), np.int64(7), 1.5, True
    assert call(*given) == tuples(*given) == (132, 5)


def test_a_loop_gives_one_number_or_a_truth(loops: ctypes.PyDLL) -> None:
    assert bound(loops, adds, ADDS)(-2, 0.25) == -1.75
    assert bound(loops, asks, ASKS)(np.bool_(True), np.array([0, 1])) is True
    assert bound(loops, asks, ASKS)(False, np.array([0, 1])) is False


def test_a_loop_writes_into_an_array_of_three_axes(loops: ctypes.PyDLL) -> None:
    cube = np.zeros((2, 3, 4), np.uint16)
    assert bound(loops, writes, WRITES)(cube, np.uint64(65_535)) is None
    assert (cube[1, 2, 3], cube.sum()) == (65_535, 65_535)


@pytest.mark.parametrize(
    "numbers", [np.zeros(3, np.int32), np.zeros((3, 1), np.int64), np.zeros(6, np.int64)[::2]], ids=str
)
def test_another_array_is_refused(loops: ctypes.PyDLL, numbers: Any) -> None:
    with pytest.raises(TypeError, match="asks takes an array"):
        bound(loops, asks, ASKS)(True, numbers)


def test_too_few_arguments_are_refused(loops: ctypes.PyDLL) -> None:
    with pytest.raises(TypeError, match="takes 2 arguments and not 1"):
        bound(loops, adds, ADDS)(1)
    with pytest.raises(TypeError, match="takes 2 in a tuple and not 1"):
        bound(loops, tuples, TUPLES)(np.zeros(1, np.uint8), (np.zeros((1, 1), np.int64),), 1, 1.0, True)


def test_a_loop_that_a_library_lacks_is_not_found(loops: ctypes.PyDLL) -> None:
    assert native.bind(loops, __name__, "others", ADDS) is None


def test_a_signature_that_is_not_the_loops_is_no_library(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="returns float64, its signature says"):
        build.build_level(LEVEL, tmp_path / "x.so", [CalledLoop(adds, "(i64, f64) -> i64")])


def test_a_processor_has_the_levels_of_its_features() -> None:
    oldest, newer = native.LEVELS["x86-64-v2"], native.LEVELS["x86-64-v3"]
    assert native.levels(frozenset(newer | {"avx512f"}), "x86_64") == ["x86-64-v3", "x86-64-v2"]
    assert native.levels(oldest | {"avx2"}, "x86_64") == ["x86-64-v2"]
    assert native.levels(oldest - {"ssse3"}, "x86_64") == []
    assert native.levels(newer, "aarch64") == []


def test_code_of_other_sources_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    (tmp_path / native.name_of("0123456789abcdef", LEVEL)).write_bytes(b"no library")
    native.library.cache_clear()
    assert native.library() is None
    native.library.cache_clear()


def test_a_library_that_cannot_be_loaded_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    monkeypatch.setattr(native, "levels", lambda *_: [LEVEL])
    (tmp_path / native.name_of(digest(), LEVEL)).write_bytes(b"no library")
    native.library.cache_clear()
    assert native.library() is None
    assert "cannot be loaded" in caplog.text
    native.library.cache_clear()


def test_who_has_no_loops_is_told_before_the_run(nothing: None) -> None:
    with Compiling() as compiling:
        compiling.begin("gopher_quality in a comment")
        assert compiling.news() == []
        with pytest.raises(PipelineError, match=r"pip install 'headrace\[numba\]'"):
            compiling.begin("headrace.stages.quality:GopherQuality", certain=True)


def test_a_loop_without_code_and_compiler_says_what_to_install(nothing: None) -> None:
    with pytest.raises(ImportError, match=r"not compiled .* pip install 'headrace\[numba\]'"):
        CalledLoop(adds, ADDS)(1, 1.0)


@pytest.mark.slow
def test_the_loops_of_a_wheel_pass_the_tests_of_the_filters(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    site = tmp_path / "site" / "headrace"
    shutil.copytree(root / ".typing" / "headrace", site, ignore=shutil.ignore_patterns("__pycache__"))
    build.build(site / "loops")
    # numba cannot be imported: each loop that Python calls has come along.
    code = "import sys; sys.modules['numba'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    tests = [f"tests/stages/{name}" for name in ("quality", "dedup", "decontamination")]
    own = [f"--deselect={test}" for test in LOOPS_OF_TESTS]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "-q", "-n0", "-m", "not slow", *own, *tests],
        cwd=root, env={**os.environ, "PYTHONPATH": str(site.parent)}, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
