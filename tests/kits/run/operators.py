"""A controller, two workers, and the commands of an operator, each a process as a user has it."""

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.daemon.log_lines import as_text
from tests.kits.run.command import DEADLINE_S, PIPELINE
from tests.kits.run.command_server import ended
from tests.kits.run.kill import Marked, count_entries, headrace
from tests.kits.run.small_tokenizer import small_tokenizer

LOOK_S_MAX = 120.0
LOOK_S = 0.02
#: Seconds that each record takes until `House.hurry`, but in a canary: no machine is so fast that the run is over
#: before it is steered.
PACE_S = 0.1
PACED = PIPELINE.replace("from headrace", "import os, sys, time\n\nfrom headrace", 1).replace(
    "has_many_lines(record):\n",
    f"has_many_lines(record):\n    slow = os.path.exists('@pace@') and '--canary' not in sys.argv\n"
    f"    time.sleep({PACE_S} if slow else 0)\n",
)


@dataclass(slots=True)
class House:
    """A controller, its workers, and the commands that are given to it."""

    home: Path
    address: str = ""
    started: list[tuple[Marked, "subprocess.Popen[bytes]"]] = field(default_factory=list)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        marked = Marked(headrace(*arguments), self.home)
        self.started.append((marked, marked.start()))
        return self.started[-1][1]

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = headrace(*arguments, "--controller", self.address)
        return ended(command, cwd=self.home)

    def good(self, *arguments: str) -> dict[str, Any]:
        done = self.call(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def pipeline(self) -> dict[str, Any]:
        return self.good("status", "small")["pipelines"][0]

    def until(self, what: str, so: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + LOOK_S_MAX, threading.Event()
        while not so():
            assert time.monotonic() < deadline, f"{what}: not after {LOOK_S_MAX} s: {self.pipeline()}"
            pause.wait(LOOK_S)

    def hurry(self) -> None:
        """Let the records go as fast as they can."""
        (self.home / "pace").unlink()


@contextmanager
def a_house(home: Path) -> Iterator[House]:
    """A controller and two workers of one core each, which know it."""
    made = House(home)
    try:
        listen = f"unix:{home}/sockets/{uuid.uuid4().hex}.sock"
        controller = made.start("controller", "--listen", listen, "--metrics", "127.0.0.1:0")
        assert controller.stderr is not None
        made.address = next(
            as_text(line).split("serves on", 1)[1].strip() for line in controller.stderr if b"serves on" in line
        )
        for name in ("one", "two"):
            own = ("--name", name, "--cores", "1", "--metrics", "127.0.0.1:0")
            made.start("worker", "--controller", made.address, *own)
        made.until("two workers", lambda: len(made.good("status")["workers"]) == 2)
        yield made
    finally:
        for marked, process in made.started:
            marked.kill()
            process.communicate(timeout=DEADLINE_S)


def write_paced(folder: Path) -> None:
    """The pipeline file `paced.py`, whose records take their time while there is the file `pace`."""
    (folder / "pace").touch()
    (folder / "paced.py").write_text(
        PACED.replace("@pace@", str(folder / "pace")).replace("TOKENIZER", small_tokenizer())
    )


def begin(house: House, output: Path, *arguments: str) -> None:
    """The pipeline runs, slowly, and has written something."""
    write_paced(house.home)
    given = ("apply", "paced.py", "-p", f"input={house.home}/corpus/*.jsonl", "-p", f"output={output}")
    house.good(*given, *arguments)
    house.until("the first shard", lambda: count_entries(output / "ledger") > 4)
