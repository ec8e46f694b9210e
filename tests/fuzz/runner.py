"""The runner as a program, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNNER = ("-m", "tests.fuzz.run")
#: What is waited for a run at most, in seconds; its own limits are in processor time and executions.
RUN_S_MAX = 1800


def fuzz(targets: list[str], folder: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status of a run, and its reports."""
    command = [sys.executable, *RUNNER, *targets, "--folder", str(folder), "--seed", "1", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, cwd=ROOT)
    assert done.stdout, done.stderr[-3000:]
    reports: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return done.returncode, reports
