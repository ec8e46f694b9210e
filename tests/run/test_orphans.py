"""Who has lost its parent ends soon, whatever it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.daemon.child_processes import END_S as LIFELINE_S
from tests.kits.host.silent import Silent, below, left_after

START_S = 120.0
#: A timer of the kernel ends it after `child_processes.END_S`. A silent store is waited for 10 s and more.
PROMISED_S, END_S = 2.0, 9.0
PIPELINE = """
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(output: str) -> Pipeline:
    return Pipeline.chain("small", output, read_jsonl("in.jsonl"), write_documents())
"""
_WATCHES = """
import sys, threading
from headrace.daemon.child_processes import end_with_parent
end_with_parent(int(sys.argv[1]))
print("watches", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()
"""


@pytest.fixture
def silent() -> Iterator[Silent]:
    store = Silent()
    yield store
    store.close()


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
    assert LIFELINE_S < PROMISED_S
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
            assert child.wait(START_S) < 0
        finally:
            child.kill()
