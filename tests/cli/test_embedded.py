"""The processes of an embedded run live exactly as long as whoever started them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client.client import Client, ControllerSilent, RunOptions
from headrace.client.embedded import Embedded, seconds_since_start
from headrace.client.errors import CliError, ProcessDied
from headrace.pipeline.graph import Pipeline

STARTER = """
from headrace.client.embedded import Embedded
embedded = Embedded(1)
print(embedded.address(), *embedded.pids(), flush=True)
input()
"""
#: Seconds for which somebody else has a port: a controller that did not wait would have ended by then.
DEADLINE_S = 300.0


def ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd is gone within the deadline."""
    return bool(select.select([pidfd], [], [], DEADLINE_S)[0])


def test_both_serve_and_a_killed_one_is_told_with_its_signal() -> None:
    with Embedded(1) as embedded, Client(embedded.address()) as client:
        watched = [os.pidfd_open(pid) for pid in embedded.pids()]
        assert len(watched) == 2
        client.wait_for_worker(DEADLINE_S, embedded.check)
        reply = client.status()
        assert [(item.worker, item.cores) for item in reply.workers] == [("local", 1)]
        with pytest.raises(CliError, match="no stages"):
            client.apply(Pipeline("p", "file:///nowhere", ()), RunOptions())
        with pytest.raises(CliError, match="no pipeline 'x'"):
            client.stop("x", cancel=False)
        os.kill(embedded.pids()[0], signal.SIGKILL)
        with pytest.raises(ProcessDied, match=r"controller was killed by signal 9 \(SIGKILL\); run the same"):
            embedded.check(within_s=DEADLINE_S)
        with pytest.raises(ControllerSilent):
            client.status()
    assert all(ended(pidfd) for pidfd in watched)


def test_both_are_gone_when_their_starter_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in starter.stdout.readline().split()[1:]]
        starter.kill()
    assert len(watched) == 2
    assert all(ended(pidfd) for pidfd in watched)


def test_an_embedded_run_leaves_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    embedded = Embedded(1)
    embedded.start_controller()
    embedded.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_age_of_this_process_counts_from_its_start() -> None:
    code = "from headrace.client.embedded import seconds_since_start as s; print(s())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) < DEADLINE_S
    assert seconds_since_start() > 0


def test_logs_are_kept_in_a_folder_that_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LOGS", str(tmp_path / "new" / "logs"))
    embedded = Embedded(1)
    embedded.start_controller()
    embedded.close()
    assert (tmp_path / "new" / "logs" / "controller.log").stat().st_size > 0


def test_a_dead_controller_is_started_again_at_its_own_socket() -> None:
    with Embedded(1) as embedded:
        address = embedded.address()
        path = Path(address.removeprefix("unix:"))
        assert path.parent.stat().st_mode & 0o777 == 0o700
        os.kill(embedded.pids()[0], signal.SIGKILL)
        embedded.restart_controller("it died")
        assert embedded.address() == address
        embedded.check()
    assert not path.parent.exists()
