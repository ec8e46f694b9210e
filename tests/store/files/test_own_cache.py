"""A cache is believed only where no other user can have put anything into it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.store.files.user_cache import own_cache

OTHER = 65534


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_is_made_for_this_user_alone(base: Path) -> None:
    assert own_cache("kernels", "x") == base / "headrace" / "kernels" / "x"
    for folder in ("headrace", "headrace/kernels", "headrace/kernels/x"):
        assert (base / folder).stat().st_mode & 0o777 == 0o700


def test_a_unit_of_systemd_has_its_own(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}/unit:{tmp_path}/other")
    assert own_cache("kernels") == tmp_path / "unit" / "headrace" / "kernels"
    assert not base.exists()


@pytest.mark.parametrize(("folder", "mode"), [("x", 0o775), ("x", 0o702), ("", 0o777), ("..", 0o707)])
def test_a_folder_that_others_may_write_to_is_not_believed(base: Path, folder: str, mode: int) -> None:
    own_cache("kernels", "x")
    (base / "headrace" / "kernels" / folder).chmod(mode)
    assert own_cache("kernels", "x") is None


def test_a_link_is_not_followed(base: Path) -> None:
    own_cache("kernels", "y")
    (base / "headrace" / "kernels" / "x").symlink_to("y")
    assert own_cache("kernels", "x") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("folder", ["x", "."])
def test_a_folder_of_another_user_is_not_believed(base: Path, folder: str) -> None:
    own_cache("kernels", "x")
    os.chown(base / "headrace" / "kernels" / folder, OTHER, OTHER)
    assert own_cache("kernels", "x") is None


def test_what_cannot_be_made_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert own_cache("kernels") is None


@pytest.mark.parametrize("module", ["headrace.stages.text.machine.kernels", "headrace.loader.batch.kernels"])
def test_machine_code_that_others_may_write_is_not_used(base: Path, module: str) -> None:
    own_cache("kernels")
    (base / "headrace" / "kernels").chmod(0o777)
    code = f"""
import {module} as kernels
try:
    print(f"found {{kernels._cache_folder()!r}}")
except OSError:
    print("found ''")
"""
    # Not to compile the loader's loops for nobody, which takes ten seconds of a core.
    plain = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300, check=True, env=plain
    )
    assert done.stdout == "found ''\n"
    assert not [path for path in base.rglob("*") if path.is_file()]
