"""Who has lost its parent ends soon, whatever it waits for."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

START_S = 30.0
#: Two seconds are promised; the rest is for a machine on which others work. A silent store is waited for 10 s and more.
END_S = 6.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(output: str) -> Pipeline:
    return Pipeline.chain("small", output, read_jsonl("in.jsonl"), write_documents())
"""
_WATCHES = """
import sys, threading
from headrace.transport.lifeline import end_with_parent
end_with_parent(int(sys.argv[1]))
print("watches", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


class Silent:
    """A store that takes connections and answers nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked = threading.Event()
        self._held: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._held.append(connection)
                if connection.recv(1):
                    self.asked.set()

    def close(self) -> None:
        self._socket.close()
        for connection in self._held:
            connection.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    store = Silent()
    yield store
    store.close()


def below(pid: int) -> dict[int, str]:
    """The processes below one, and what each is called."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
            parents[int(name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        above = pending.pop()
        children = [child for child, parent in parents.items() if parent == above]
        pending += children
        for child in children:
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def left_after(descriptors: dict[int, str], seconds: float) -> list[str]:
    """Which of these, by their pidfds, live still after so long."""
    poll, deadline = select.poll(), time.monotonic() + seconds
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = dict(descriptors)
    while left and (remains := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remains * 1000):
            poll.unregister(descriptor)
            left.pop(descriptor)
    return list(left.values())


def test_nobody_outlives_a_run_that_was_killed_while_its_store_is_silent(tmp_path: Path, silent: Silent) -> None:
    (tmp_path / "small.py").write_text(PIPELINE)
    (tmp_path / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
    store = f"s3://bucket/out?endpoint=http://127.0.0.1:{silent.port}&anonymous=true"
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", "small.py", "-p", f"output={store}"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert silent.asked.wait(START_S)
        found = below(run.pid)
        assert {name.split()[1] for name in found.values() if name.startswith("headrace")} >= {"controller", "worker"}
        held = {os.pidfd_open(pid): name for pid, name in found.items()}
    finally:
        run.kill()
        run.wait()
    assert left_after(held, END_S) == []
    for descriptor in held:
        os.close(descriptor)


def test_a_process_whose_main_thread_takes_no_turn_ends_with_its_parent() -> None:
    ours, theirs = os.pipe()
    arguments = [sys.executable, "-c", _WATCHES, str(ours)]
    with subprocess.Popen(arguments, pass_fds=[ours], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"watches\n"
        os.close(ours)
        assert child.poll() is None
        os.close(theirs)
        try:
            assert child.wait(END_S) < 0
        finally:
            child.kill()
