"""Which release this is."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from headrace.store.version import release


def test_the_release_is_the_version_of_the_distribution() -> None:
    release.cache_clear()
    assert release() == version("headrace")


def test_the_first_folder_of_the_path_that_has_one_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (("a", "headrace_extras-9.dist-info"), ("b", "headrace-1.2.dist-info"), ("c", "headrace-3")):
        (tmp_path / place / name).mkdir(parents=True)
    release.cache_clear()
    monkeypatch.setattr(sys, "path", [str(tmp_path / place) for place in ("nowhere", "a", "b", "c")])
    assert release() == "1.2"
    release.cache_clear()


def test_it_is_known_without_what_reads_the_metadata_of_packages() -> None:
    code = "import sys\nfrom headrace.store.version import release\nrelease()\nprint('email' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["False"]
