"""A script that ends while batches are made ends as it would without them: no abort, and nothing that it waits for."""

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

EXITS = "tests.kits.loader.exits"
TIMEOUT_S = 300
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
def test_a_script_ending_during_batches_ends_as_without_them(thousand_dataset: str, tmp_path: Path, via: str, end: str):
    if via == "stateful":
        pytest.importorskip("torchdata")
    command = [sys.executable, "-W", "ignore", "-m", EXITS, via, end, thousand_dataset]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        script = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            script.wait(TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
    said, complained = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    status, last = ENDS[end]
    assert said == "[0, 1, 1]\n"
    assert script.returncode == status, complained
    assert "terminate called" not in complained
    assert "Fatal Python error" not in complained
    if NOISE not in complained:
        assert complained.strip().rpartition("\n")[2] == last
