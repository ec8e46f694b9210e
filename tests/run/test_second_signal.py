"""Who is sent two signals ends within five seconds, and all that it started, whatever its threads wait for.

Timers of the kernel see to it: `SECOND_S` for a command, and `child_processes.END_S` more for what it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer

from headrace.cli.main import app
from headrace.controller.server import ENDING_S
from headrace.daemon.child_processes import END_S as LIFELINE_S
from headrace.daemon.signals import SECOND_S
from tests.kits.host.silent import Silent, below, left_after, wait_until

START_S = 120.0
#: Seconds that are promised, and those that a test waits: a machine on which others work delays what a timer does, and
#: what waits for a silent store or controller would not end so soon.
PROMISED_S, END_S = 5.0, 14.0
PIPELINE = """
import threading
from headrace.pipeline.graph import Pipeline
from headrace.stages.library import read_jsonl, write_documents


def build(output: str, input: str = "in.jsonl", waits: str = "") -> Pipeline:
    if waits:
        open(waits, "w").close()
        threading.Event().wait()
    return Pipeline.chain("small", output, read_jsonl(input), write_documents())
"""
SCENARIO = """
[[fault]]
kind = "kill"
after_s = 5
target = "task"
"""
#: Forks a command for each line: with what all commands import already there. SIGUSR1 has its main thread compute in C
#: for good, which holds the interpreter: no handler in Python has a turn any more.
ZYGOTE = """
import collections, itertools, json, os, signal, sys
import headrace.cli.main, headrace.cli.__main__, headrace.store.datasets.dataset, headrace.store.s3.store


def compute(*_):
    os.write(computes, b"c")
    collections.deque(itertools.repeat(0), maxlen=0)


for line in sys.stdin:
    item = json.loads(line)
    pid = os.fork()
    if not pid:
        os.setsid()
        os.chdir(item["folder"])
        for number, path in enumerate((os.devnull, item["out"], item["errors"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        computes = os.open(item["computes"], os.O_WRONLY | os.O_CREAT, 0o600)
        signal.signal(signal.SIGUSR1, compute)
        sys.argv = ["headrace", *item["arguments"]]
        headrace.cli.__main__.main()
    print(pid, flush=True)
"""


@dataclass(frozen=True)
class Waits:
    """A command line with which a command waits for what never comes."""

    line: str
    #: What it waits for: the store, a controller, a reader of its output, or processes that it has started.
    on: str = "store"
    after: tuple[str, ...] = field(default=())


ASKS = Waits("--controller {controller}", "controller")
NAMED = Waits("small --controller {controller}", "controller")
#: By what follows `headrace`. Each command has one; what ends by itself waits for somebody to read what it says.
WAITS = {
    "run": Waits("small.py -p output={store}"),
    "apply": Waits("small.py -p output={folder}/out --controller {controller}", "controller"),
    "quickstart": Waits("--data {folder}/data", "processes"),
    "examples": Waits("", "output"),
    "simulate": Waits("--seeds 100000 --jobs 2", "processes"),
    "version": Waits("", "output"),
    "status": ASKS,
    "top": ASKS,
    "logs": ASKS,
    "what-if": NAMED,
    "cost": ASKS,
    "advise": Waits("", "output"),
    "bench": Waits("--only store --store {store}"),
    "pause": NAMED,
    "resume": NAMED,
    "scale": Waits("small read 2 --controller {controller}", "controller"),
    "move": Waits("small read two --controller {controller}", "controller"),
    "relink": Waits("small write pipe --controller {controller}", "controller"),
    "insert": Waits("small normalize --after read --controller {controller}", "controller"),
    "replace": Waits("small read normalize --controller {controller}", "controller"),
    "remove": Waits("small read --controller {controller}", "controller"),
    "drain": Waits("one --controller {controller}", "controller"),
    "stop": NAMED,
    "cancel": NAMED,
    "clear": NAMED,
    "queue set": Waits("night --controller {controller}", "controller"),
    "queue list": ASKS,
    "queue remove": Waits("night --controller {controller}", "controller"),
    "controller": Waits("--listen unix:{sockets}/own.sock --root {store}"),
    "worker": ASKS,
    "metrics": Waits("board", "output"),
    "cluster init": Waits("{folder}/cluster --controller 127.0.0.1:7420", "output"),
    "cluster token": Waits("{folder}/made", "output", after=("cluster", "init", "made", "--controller", "[::1]:7420")),
    "cluster expel": Waits("one --yes --controller {controller}", "controller"),
    "cluster operator": Waits(
        "{folder}/made {folder}/given --name ann",
        "output",
        after=("cluster", "init", "made", "--controller", "[::1]:7420"),
    ),
    "cluster renew": Waits("{folder}/made", "output", after=("cluster", "init", "made", "--controller", "[::1]:7420")),
    "launch slurm": Waits("--nodes 1 --dry-run", "output"),
    "launch ssh": Waits("--host one --dry-run", "output"),
    "launch ray": Waits("--nodes 1 --dry-run", "output"),
    "launch kubernetes": Waits("--nodes 1 --image i --root s3://b/c --dry-run", "output"),
    "launch down": Waits("--folder {folder}/launch", "output"),
    "dataset ls": Waits("{store}"),
    "dataset show": Waits("{store}"),
    "dataset page": Waits("{store}"),
    "dataset log": Waits("{store}"),
    "dataset tag": Waits("{store}"),
    "dataset rollback": Waits("{version}"),
    "dataset publish": Waits("{store} --anyway"),
    "dataset diff": Waits("{store} {store}"),
    "dataset bisect": Waits("{store} --run true"),
    "dataset blame": Waits("--checkpoint loader.json --losses loss.csv", "output"),
    "dataset head": Waits("{store}"),
    "dataset cat": Waits("{store}"),
    "dataset sample": Waits("{store}"),
    "dataset verify": Waits("{store}"),
    "dataset trace": Waits("{store} a"),
    "dataset export": Waits("{store} {folder}/export --format mds"),
    "dataset push": Waits("{store} hf://datasets/o/n"),
    "dataset mirror": Waits("{store} --delta {folder}/table"),
    "dataset rebuild": Waits("{store} 3f2a91 --trust-code"),
    "dataset dedup": Waits("{store}"),
    "dataset split": Waits("{store} {folder}/held-out"),
    "dataset repeats": Waits("{store} --out {folder}/lines.idx"),
    "dataset contamination": Waits("{store} --suites {folder}/in.jsonl"),
    "dataset retract": Waits("{store} a"),
    "dataset purge": Waits("{store}"),
    "dataset gc": Waits("{store}"),
    "dataset compact": Waits("{store} {folder}/large"),
    "dataset rm": Waits("{store} --yes"),
    "chaos run": Waits("scenario.toml small.py -p input={input} --folder {folder}"),
    "tokenizer train": Waits("{input} tokenizer.json"),
}
#: Those that set handlers of their own.
HEAR = ("run", "quickstart", "controller", "worker", "dataset gc")
#: And one of each kind of the others; all have their turn in `make kill`.
SOME = (*HEAR, "simulate", "version", "status", "scale", "dataset ls", "dataset export", "dataset rm", "chaos run")


def commands_of(group: Any, path: str = "") -> list[str]:
    """Every command of the parser."""
    found: list[str] = []
    for name, command in group.commands.items():
        called = f"{path} {name}".strip()
        found += commands_of(command, called) if hasattr(command, "commands") else [called]
    return found


COMMANDS = commands_of(typer.main.get_command(app))


class Commands:
    """Starts commands that wait, each in a folder of its own."""

    def __init__(self, folder: Path, zygote: subprocess.Popen[str]) -> None:
        self._folder, self._zygote = folder, zygote
        self.silent = Silent()
        #: The name of a socket may not be as long as the folders of a test.
        self.sockets = Path(tempfile.mkdtemp(prefix="headrace-"))

    def start(self, command: str, waits: Waits) -> Waiting:
        """Start one, and wait until it waits."""
        called = command.replace(" ", "-")
        folder = self._folder / called
        folder.mkdir()
        (folder / "small.py").write_text(PIPELINE)
        (folder / "scenario.toml").write_text(SCENARIO)
        (folder / "loss.csv").write_text("step,loss\n0,1\n")
        (folder / "in.jsonl").write_text('{"id": "a", "text": "b"}\n')
        if waits.after:
            subprocess.run(
                [sys.executable, "-m", "headrace.cli", *waits.after], cwd=folder, check=True, stdout=subprocess.DEVNULL
            )
        out = folder / "out.fifo" if waits.on == "output" else folder / "out.txt"
        held = [full_pipe(out)] if waits.on == "output" else []
        controller = self.silent.controller(self.sockets / f"{called}.sock")
        store = self.silent.store(f"b{called}")
        places = {"folder": folder, "sockets": self.sockets, "store": store, "controller": controller}
        given = {"input": store.replace("out", "*.jsonl"), "version": store.replace("/out", "/out@1")}
        line = waits.line.format(**given, **places)
        arguments = [*command.split(), *line.split()]
        item = {"folder": str(folder), "arguments": arguments, "out": str(out), "errors": str(folder / "errors.txt")}
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        print(json.dumps({**item, "computes": str(folder / "computes")}), file=self._zygote.stdin, flush=True)
        pid = int(self._zygote.stdout.readline())
        waiting = Waiting(pid, command, folder, held)
        come_true = {
            "store": lambda: self.silent.was_asked(f"/b{called}"),
            "controller": lambda: self.silent.was_asked(f"{called}.sock"),
            "output": lambda: "pipe_write" in Path(f"/proc/{pid}/wchan").read_text(),
            "processes": lambda: len(below(pid)) >= 2,
            "file": (folder / "waits").exists,
        }[waits.on]
        wait_until(lambda: come_true() or not waiting.lives(), START_S, f"{command} waits for {waits.on}")
        assert waiting.lives(), (folder / "errors.txt").read_text()
        return waiting


@dataclass
class Waiting:
    """A command that waits."""

    pid: int
    command: str
    folder: Path
    held: list[int]

    def __post_init__(self) -> None:
        self._descriptor = os.pidfd_open(self.pid)

    def lives(self) -> bool:
        """Whether it has not ended."""
        return bool(left_after({self._descriptor: ""}, 0.001))

    def compute(self) -> None:
        """Have its main thread compute in C for good."""
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(lambda: (self.folder / "computes").read_bytes() == b"c", START_S, f"{self.command} computes")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, and wait until it has it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)
        wait_until(lambda: not pending(self.pid, number), START_S, f"{self.command} is delivered a signal")

    def left_after_two(self, number: signal.Signals) -> list[str]:
        """What lives still when it was sent two signals and the time is over."""
        all_of_it = {os.pidfd_open(pid): f"{self.command}: {name}" for pid, name in below(self.pid).items()}
        self.signal(number)
        self.signal(number)
        left = left_after({self._descriptor: self.command, **all_of_it}, END_S)
        for descriptor in all_of_it:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        return left

    def close(self) -> None:
        """Leave nothing of it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        for descriptor in (self._descriptor, *self.held):
            os.close(descriptor)


def pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal waits to be delivered to a process that lives."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (OSError, ValueError):
        return False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return fields["State"][0] != "Z" and bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)


def full_pipe(path: Path) -> int:
    """Make a pipe with a name, full, with nobody who reads it."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(descriptor, bytes(4096)):
            pass
    return descriptor


@pytest.fixture(scope="module")
def zygote() -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-P", "-c", ZYGOTE]
    # Their output goes through a buffer, as a user's does.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=buffered) as process:
        yield process
        process.kill()


@pytest.fixture
def commands(tmp_path: Path, zygote: subprocess.Popen[str]) -> Iterator[Commands]:
    started = Commands(tmp_path, zygote)
    yield started
    started.silent.close()
    shutil.rmtree(started.sockets)


def test_the_timers_of_a_second_signal_keep_what_is_promised() -> None:
    assert SECOND_S + LIFELINE_S < PROMISED_S


def test_each_command_has_a_line_with_which_it_waits() -> None:
    assert sorted(WAITS) == sorted(COMMANDS), "a new command needs a line in WAITS with which it waits"


@pytest.mark.parametrize(
    "command", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_a_command_sent_two_signals_ends_with_its_children(command: str, commands: Commands) -> None:
    with contextlib.closing(commands.start(command, WAITS[command])) as waiting:
        assert waiting.left_after_two(signal.SIGINT) == []


@pytest.mark.parametrize(
    ("command", "waits"),
    [
        *((name, WAITS[name]) for name in ("dataset show", "dataset gc", "status", "simulate", "version", "run")),
        ("run", Waits("small.py -p output={store} -p waits=waits", "file")),
    ],
    ids=[
        "a store",
        "a store that it would write to",
        "a controller",
        "processes",
        "a reader",
        "a store, before the run opens",
        "code of the user's",
    ],
)
def test_ctrl_c_ends_a_command_without_commits_with_a_line(command: str, waits: Waits, commands: Commands) -> None:
    with contextlib.closing(commands.start(command, waits)) as waiting:
        waiting.signal(signal.SIGINT)
        wait_until(lambda: not waiting.lives(), START_S, f"{command} ends")
        # The last line but for a process that was interrupted while it started, and says so after us.
        assert "headrace: interrupted" in (waiting.folder / "errors.txt").read_text().splitlines()


def test_ctrl_c_of_a_terminal_shows_no_traceback_of_children(commands: Commands) -> None:
    with contextlib.closing(commands.start("simulate", WAITS["simulate"])) as waiting:
        # which have just begun, and import what they need
        os.killpg(waiting.pid, signal.SIGINT)
        wait_until(lambda: not waiting.lives(), END_S, "simulate ends")
        assert (waiting.folder / "errors.txt").read_text() == "headrace: interrupted\n"


@pytest.mark.slow
def test_one_signal_ends_a_controller_whose_store_is_silent_within_its_limit(commands: Commands) -> None:
    with contextlib.closing(commands.start("controller", WAITS["controller"])) as waiting:
        waiting.signal(signal.SIGTERM)
        wait_until(lambda: not waiting.lives(), ENDING_S + START_S, "the controller ends")


def test_two_signals_end_a_run_whose_controller_is_stopped(commands: Commands) -> None:
    with contextlib.closing(commands.start("run", WAITS["run"])) as waiting:
        for pid, name in below(waiting.pid).items():
            if name == "headrace controller":
                os.kill(pid, signal.SIGSTOP)
        assert waiting.left_after_two(signal.SIGINT) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "terminate"])
@pytest.mark.parametrize("command", HEAR)
def test_one_whose_main_thread_computes_in_c_ends_too(command: str, number: signal.Signals, commands: Commands) -> None:
    with contextlib.closing(commands.start(command, WAITS[command])) as waiting:
        waiting.compute()
        assert waiting.left_after_two(number) == []
