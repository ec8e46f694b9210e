"""Daemons tell the service manager that they are ready, that they live, and that they stop."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from headrace.daemon.sd_notify import notify, watchdog_interval_s
from tests.kits.run.kill import headrace

WATCHDOG_S = 0.4
PATIENCE_S = 120.0


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["controller", "--listen", "insecure-tcp:127.0.0.1:0"], "STATUS=serves on insecure-tcp:127.0.0.1:"),
        (["worker", "--controller", "unix:/run/x/c.sock"], "STATUS=looks for a controller at unix:/run/x/c.sock"),
    ],
    ids=["controller", "worker"],
)
def test_a_daemon_says_when_it_is_ready_lives_and_stops(arguments: list[str], status: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        }
        daemon = subprocess.Popen(headrace(*arguments), env=environment, stderr=subprocess.DEVNULL)
        try:
            ready = manager.recv(4096).decode().splitlines()
            assert ready[0] == "READY=1"
            assert ready[1].startswith(status)
            assert [manager.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            daemon.send_signal(signal.SIGTERM)
            while (said := manager.recv(4096)) == b"WATCHDOG=1":
                pass
            assert said == b"STOPPING=1"
            assert daemon.wait(PATIENCE_S) == 0
        finally:
            daemon.kill()
            daemon.wait(PATIENCE_S)


def test_without_a_service_manager_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):
        monkeypatch.delenv(name, raising=False)
    notify("READY=1")
    assert watchdog_interval_s() is None
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notify("READY=1")


def test_the_watchdog_of_another_process_is_not_this_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_interval_s() == 1.5
    for usec in ("²", "9" * 5000):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        assert watchdog_interval_s() is None
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert watchdog_interval_s() is None
