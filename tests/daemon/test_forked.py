"""Forked processes, in an interpreter of their own: that of the tests has threads."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from headrace.daemon import child_processes
from headrace.daemon.child_processes import OPEN_FILES_MAX, raise_open_files

RUN_S_MAX = 300
PRELUDE = """
import os, signal, sys
from headrace.daemon.child_processes import fork, may_fork
"""


def said_by(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=RUN_S_MAX)


def test_a_forked_process_ends_with_its_code_and_never_returns() -> None:
    done = said_by("""
print("before", flush=True)
codes = [fork(live, keep=[]).wait() for live in (lambda: 0, lambda: 7, lambda: sys.exit(3), lambda: 1 // 0)]
print("behind", codes)
""")
    assert done.stdout == "before\nbehind [0, 7, 3, 1]\n"
    assert "ZeroDivisionError" in done.stderr


def test_it_has_the_descriptors_that_it_is_given_and_the_standard_ones() -> None:
    done = said_by("""
pipes = [os.pipe() for _ in range(3)]
def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
def live():
    os.write(pipes[1][1], repr([descriptor for descriptor in range(1000) if is_open(descriptor)]).encode())
    return 0
fork(live, keep=[pipes[1][1], pipes[0][0]]).wait()
print(sorted([0, 1, 2, pipes[0][0], pipes[1][1]]))
print(os.read(pipes[1][0], 1000).decode())
""")
    expected, found = done.stdout.splitlines()
    assert found == expected


def test_a_killed_process_tells_its_signal_and_killing_twice_is_harmless() -> None:
    done = said_by("""
read, write = os.pipe()
def live():
    os.close(write)
    return len(os.read(read, 1))
child = fork(live, keep=[read, write])
first = child.poll()
child.kill()
code = child.wait()
child.kill()
child.send_signal(signal.SIGTERM)
print(first, code, child.poll())
""")
    assert done.stdout == "None -9 -9\n"


def test_a_process_with_threads_may_not_fork() -> None:
    done = said_by("""
import threading
alone = may_fork()
go = threading.Event()
thread = threading.Thread(target=go.wait)
thread.start()
print(alone, may_fork())
go.set()
thread.join()
""")
    assert done.stdout == "True False\n"


@pytest.mark.parametrize(
    ("soft", "hard", "left"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 30, OPEN_FILES_MAX),
        (1024, resource.RLIM_INFINITY, OPEN_FILES_MAX),
        (1 << 20, 1 << 20, 1 << 20),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, left: int
) -> None:
    now = [soft, hard]
    monkeypatch.setattr(child_processes.resource, "getrlimit", lambda what: tuple(now))
    monkeypatch.setattr(child_processes.resource, "setrlimit", lambda what, to: now.__setitem__(slice(None), to))
    raise_open_files()
    assert now == [left, hard]


@pytest.mark.parametrize("daemon", ["worker", "controller"])
def test_a_daemon_may_open_what_its_hard_limit_allows(daemon: str) -> None:
    done = said_by(f"""
import resource
from headrace.{daemon}.__main__ import main
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
# It ends at once: what it is told first is the end of a pipe, or an address that is none.
told, tell = os.pipe()
os.close(tell)
code = main(["--listen", "nowhere"]) if "{daemon}" == "controller" else main([], told)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard % (1 << 64), {OPEN_FILES_MAX}))
""")
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
