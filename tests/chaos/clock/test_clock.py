"""A process whose clock is bent sees another time."""

import json
import os
import subprocess
import sys
import time

import pytest

from headrace.chaos.live.clusters.test_cluster import CLOCK, CLOCK_FOLDER

CODE = """
import json, time
from headrace.cluster.certificates import utc_now
def kernel(): return time.clock_gettime(time.CLOCK_MONOTONIC)
before, first, begun = kernel(), time.monotonic(), kernel()
while kernel() < begun + 0.2: pass
ended, passed, after = kernel(), time.monotonic() - first, kernel()
dates = time.time(), time.time_ns() / 1e9, utc_now().timestamp()
print(json.dumps([*dates, passed, before, first, begun, ended, after]))
"""


def seen(clock: str) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(CLOCK_FOLDER), CLOCK: clock}
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


def test_the_wall_clock_is_ahead_and_the_monotonic_one_runs_faster() -> None:
    wall, wall_ns, date, passed, before, _, begun, ended, after = seen("3600,2.0")
    for one in (wall, wall_ns, date):
        assert one - time.time() == pytest.approx(3600, abs=30)
    assert 2.0 * (ended - begun) <= passed <= 2.0 * (after - before)


def test_a_slow_clock_that_is_behind() -> None:
    wall, _, date, passed, before, _, begun, ended, after = seen("-86400,0.5")
    assert wall - time.time() == pytest.approx(-86400, abs=30)
    assert date - time.time() == pytest.approx(-86400, abs=30)
    assert 0.5 * (ended - begun) <= passed <= 0.5 * (after - before)


def test_a_straight_clock_is_the_kernels() -> None:
    *_, before, first, begun, _, _ = seen("0,1")
    assert before <= first <= begun
