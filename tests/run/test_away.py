"""A worker that is killed or frozen while it is the only one costs no record and does not end the run."""

import json
import os
import select
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.kits.run.command import DEADLINE_S, run_command
from tests.kits.run.dataset import fates
from tests.kits.run.kill import Marked, count_entries

#: Longer than the silence after which a session is given up.
FROZEN_S = 12.0
LOOK_S = 0.005


@pytest.mark.parametrize("fault", ["killed", pytest.param("frozen", marks=pytest.mark.slow)])
def test_a_sole_worker_that_goes_is_replaced_or_waited_for(
    home: Path, undisturbed: Path, tmp_path: Path, fault: str
) -> None:
    run = Marked(run_command(home, str(tmp_path / "out")), home)
    process = run.start()
    deadline = time.monotonic() + DEADLINE_S
    while count_entries(tmp_path / "out" / "ledger") < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        threading.Event().wait(LOOK_S)
    (worker,) = (pid for pid in run.alive() if title(pid).startswith("headrace worker"))
    if fault == "killed":
        os.kill(worker, signal.SIGKILL)
    else:
        os.kill(worker, signal.SIGSTOP)
        fd = os.pidfd_open(worker)
        assert not select.select([fd], [], [], FROZEN_S)[0]
        os.close(fd)
        os.kill(worker, signal.SIGCONT)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors.decode()
    assert json.loads(out)["balanced"]
    assert fates(tmp_path / "out") == fates(undisturbed)
    assert not run.alive()


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
