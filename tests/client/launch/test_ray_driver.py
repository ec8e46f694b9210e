"""The program that speaks to Ray, where there is no cluster: a line that says what to do, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client.launch import ray_driver

ORDER = {"address": "auto", "name": "mine", "nodes": 1, "cores": 1}


@pytest.mark.parametrize("word", ["start", "stop"])
def test_an_absent_cluster_is_said_in_a_line(tmp_path: Path, word: str) -> None:
    (tmp_path / "ray.py").write_text("def init(**_):\n    raise ConnectionError('Could not find\\na running one.')\n")
    done = subprocess.run(
        [sys.executable, str(ray_driver.__file__), word],
        input=json.dumps(ORDER), env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "no Ray cluster at 'auto': Could not find a running one; start one (`ray start --head`) or give --address\n"
    )
