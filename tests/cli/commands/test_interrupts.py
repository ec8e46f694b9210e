"""Ctrl-C at any moment: the first stops, the second cancels, and none is lost."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.cli.commands.run import Interrupts, _obey
from headrace.cli.ui.progress_lines import Progress
from headrace.client.client import Client


class Quiet:
    """A client and a progress that note what they are told."""

    def __init__(self) -> None:
        self.stops: list[bool] = []

    def stop(self, name: str, *, cancel: bool) -> None:
        self.stops.append(cancel)

    def note(self, line: str) -> None:
        pass


class Pressed:
    """Interrupts where Ctrl-C is pressed again behind the second look at how often it was pressed."""

    def __init__(self) -> None:
        self.obeyed, self._looks = 0, 0

    @property
    def asked(self) -> int:
        self._looks += 1
        return 1 if self._looks <= 2 else 2


def obeyed(interrupts: Interrupts, times: int) -> list[bool]:
    told = Quiet()
    for _ in range(times):
        _obey(cast("Client", told), "plain", cast("Progress", told), interrupts)
    return told.stops


def test_the_first_ctrl_c_stops_and_the_second_cancels() -> None:
    assert obeyed(Interrupts(), 2) == []
    assert obeyed(Interrupts(asked=1), 2) == [False]
    assert obeyed(Interrupts(asked=2), 2) == [True]


def test_a_second_ctrl_c_during_the_first_is_obeyed_next() -> None:
    assert obeyed(cast("Any", Pressed()), 4) == [False, True]


WAITS = """
import signal, sys, threading
from headrace.cli.commands.run import catch_signals

with catch_signals() as interrupts:
    print("waits", flush=True)
    while not interrupts.asked:
        threading.Event().wait(0.05)
    print(interrupts.asked)
"""


@pytest.mark.parametrize(("ignored", "first"), [("", signal.SIGINT), ("INT", signal.SIGTERM)])
def test_a_background_run_of_a_script_ignores_ctrl_c_and_obeys_sigterm(ignored: str, first: signal.Signals) -> None:
    shell = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"" if ignored else 'exec "$@"', "sh"]
    with subprocess.Popen([*shell, sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        if ignored:
            process.send_signal(signal.SIGINT)
        process.send_signal(first)
        try:
            assert process.communicate(timeout=300)[0] == "1\n"
        finally:
            process.kill()


def test_every_signal_that_ends_is_heard_by_the_one_list() -> None:
    """Another handler would undo that they are ignored, or that the second one ends the process."""
    root = Path(__file__).resolve().parents[3]
    setting = ("signal.signal(", "add_signal_handler(", "in (signal.SIG")
    one_list = root / "daemon" / "signals.py"
    found = [
        f"{file.relative_to(root)}: {line.strip()}"
        for folder in ("cli", "client", "controller", "worker", "daemon", "transport")
        for file in (root / folder).rglob("*.py")
        if file != one_list
        for line in file.read_text().splitlines()
        if any(words in line for words in setting) and "SIG_IGN" not in line and "SIGALRM" not in line
    ]
    assert found == []
