"""Tests that send a signal hold however the suite was started: in the background of a script too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Limit on one run of pytest, in seconds.
LIMIT_S = 120
INNER = """
import signal, subprocess, sys, threading

def test_a_program_that_a_test_starts_ends_by_the_signal_that_it_is_sent():
    for number in (signal.SIGINT, signal.SIGTERM):
        waits = "import threading; print('lives', flush=True); threading.Event().wait()"
        with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout.readline() == b"lives\\n"
            child.send_signal(number)
            try:
                assert child.wait(60) == -number
            finally:
                child.kill()
"""


def test_a_suite_that_ignores_signals_starts_programs_that_hear_them(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        ["sh", "-c", "trap '' INT TERM; exec \"$@\"", "sh", *tests],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout


def test_this_suite_ignores_no_signal_that_its_tests_send() -> None:
    assert signal.SIG_IGN not in (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
