"""A script that ends while batches are made ends as it would without them: no abort, no hang, no process left."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

EXITS = Path(__file__).parent / "exits.py"
TIMEOUT_S = 120
#: how a script ends: (its exit status, the last line that it says)
ENDS = {
    "end": (0, ""),
    "raise": (1, "ValueError: the loss is no number"),
    "sys.exit": (3, ""),
    "SIGTERM": (-signal.SIGTERM, ""),
    "SIGINT": (-signal.SIGINT, "KeyboardInterrupt"),
}
#: what torch may say of a spawned worker that had not begun when the script ended
NOISE = "is killed by signal: Terminated"


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "via", ["bare", "over_workers", "data_loader", "data_loader_persistent", "data_loader_spawned", "stateful"]
)
def test_a_script_that_ends_while_batches_are_made_ends_as_it_would_without(thousand_dataset: str, via: str, end: str):
    if via == "stateful":
        pytest.importorskip("torchdata")
    command = [sys.executable, "-W", "ignore", str(EXITS), via, end, thousand_dataset]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as script:
        try:
            # both end with the last process that holds them
            said, complained = script.communicate(timeout=TIMEOUT_S)
        finally:
            if script.poll() is None:
                os.killpg(script.pid, signal.SIGKILL)
    status, last = ENDS[end]
    assert said == "[0, 1, 1]\n"
    assert script.returncode == status, complained
    assert "terminate called" not in complained
    assert "Fatal Python error" not in complained
    if NOISE not in complained:
        assert complained.strip().rpartition("\n")[2] == last
