"""A cluster that stands while run after run goes through it, and whose dead are started again at once.

Two controllers of one root, the second a standby, and two workers. Each seed draws what dies (tasks, a worker, the
leading controller, or a worker and the leader at once) and at which ledger entries of its run; then the dataset is
compared record by record with one that was made without faults, by `evidence.py`, which shares no code with the stages.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from headrace.chaos.live.checks import Fates, compare, read_fates
from headrace.chaos.live.faults import Marked, ProcessRole
from headrace.chaos.live.scenario import FaultTimeline
from headrace.client import ENDED, Client, ControllerSilent, RunOptions
from headrace.daemon import as_text
from headrace.pipeline import Pipeline
from headrace.stages.library import read, tokenize, write_tokens

#: What dies, in turn from seed to seed.
VICTIMS = ("task", "worker", "controller", "worker and controller")
#: Kills a seed, and the ledger entries before the first and between two.
KILLS = {"task": 3, "worker": 2, "controller": 1, "worker and controller": 1}
FIRST_ENTRIES, NEXT_ENTRIES = (4, 9), (1, 6)
#: The input: so many records, of so many words on average.
RECORDS, WORDS = 4000, 90
CORES = 1
START_S = 30.0
RUN_S_MAX = 120.0
LOOK_S = 0.005
#: Seconds between two questions to the controller.
ASK_S = 0.1


@dataclass(frozen=True, slots=True)
class Burnt:
    """The result of one seed: the kills that met a process, and the wrong records."""

    seed: int
    victim: str
    state: str
    kills: int
    records: int
    lost: int
    twice: int
    #: Records with another fate than without faults, or that are not the source's.
    otherwise: int
    #: Records that all attempts read beyond the dataset's, and the most it may be: where stages are fused and no
    #: controller died, what the sinks of the dead held; else what was open at the kills.
    read_again: int
    most: int
    #: Seconds from the last kill until an entry closed records; None if none was left to close.
    closed_s: float | None
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether everything is as it is without faults."""
        wrong = self.lost + self.twice + self.otherwise
        return self.state == "completed" and not wrong and self.read_again <= self.most


class StandingDaemon:
    """A controller or a worker that is started again when it is dead, with a log that goes on."""

    def __init__(self, folder: pathlib.Path, name: str, *arguments: str) -> None:
        self.log = folder / f"{name}.log"
        self.marked = Marked([sys.executable, "-P", "-m", "headrace.cli", *arguments], folder)
        self._process: subprocess.Popen[bytes] | None = None

    def see_to(self) -> None:
        """Start it if it does not run."""
        if self._process is None or self._process.poll() is not None:
            with open(self.log, "ab") as log:
                self._process = self.marked.start(log, log)

    def kill(self) -> None:
        """SIGKILL to it and to all that it started."""
        self.marked.kill()
        if self._process is not None:
            self._process.wait()

    def wait_until_it_serves(self) -> None:
        """Return when a controller says that it does."""
        deadline = time.monotonic() + START_S
        while not any("serves on" in as_text(line) for line in self.log.read_bytes().splitlines()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no controller serves within {START_S:.0f} s: {self.log.read_text()}")
            time.sleep(LOOK_S)


class Standing:
    """The cluster, for the time of a `with` block."""

    def __init__(self, folder: pathlib.Path, tokenizer: str) -> None:
        self._folder, self.tokenizer = folder, tokenizer
        self.controllers: dict[str, StandingDaemon] = {}
        self.workers: list[StandingDaemon] = []

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _begin(self) -> None:
        root = ("--root", str(self._folder / "root"))
        for name in ("first", "second"):
            address = f"unix:{self._folder}/sockets/{name}.sock"
            daemon = self.controllers[address] = StandingDaemon(
                self._folder, name, "controller", "--listen", address, *root
            )
            daemon.see_to()
            daemon.wait_until_it_serves()
        for name in ("one", "two"):
            known = ",".join(self.controllers)
            arguments = ("--controller", known, "--name", name, "--cores", str(CORES))
            self.workers.append(StandingDaemon(self._folder, name, "worker", *arguments))
        self.see_to()
        self.wait_until_whole()

    def _end(self) -> None:
        for daemon in (*self.workers, *self.controllers.values()):
            daemon.kill()

    def see_to(self) -> None:
        """Restart dead processes."""
        for daemon in (*self.controllers.values(), *self.workers):
            daemon.see_to()

    def client(self) -> Client:
        """A connection to the leader."""
        return Client(",".join(self.controllers))

    def wait_until_whole(self) -> None:
        """Return when a controller leads and has both workers."""
        deadline = time.monotonic() + START_S
        with self.client() as client:
            while True:
                self.see_to()
                with contextlib.suppress(ControllerSilent):
                    if len(client.status().workers) == len(self.workers):
                        return
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no leader has {len(self.workers)} workers within {START_S:.0f} s")
                time.sleep(ASK_S)

    def inject(self, victim: str, pipeline: str, leader: str, dice: random.Random) -> bool:
        """Kill; False without a victim."""
        if victim == "task":
            return self._strike_task(pipeline, dice)
        if "worker" in victim:
            dice.choice(self.workers).kill()
        if "controller" in victim:
            self.controllers[leader].kill()
        return True

    def _strike_task(self, pipeline: str, dice: random.Random) -> bool:
        begin = f"headrace task {pipeline}/"
        tasks = [
            process
            for worker in self.workers
            for process in worker.marked.alive()
            if process.role is ProcessRole.TASK and process.title.startswith(begin)
        ]
        if not tasks:
            return False
        try:
            os.kill(dice.choice(sorted(tasks, key=lambda task: task.title)).pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def pipeline_of(name: str, source: str, output: pathlib.Path, tokenizer: str) -> Pipeline:
    """Small fragments, batches and shards, so that there is much to lose at any moment."""
    tokens = tokenize(tokenizer)
    reader = read(source, fragment_bytes=1 << 18, batch_bytes=1 << 15)
    return Pipeline.chain(name, str(output), reader, tokens, write_tokens(tokens, seq_len=512, shard_bytes=1 << 17))


def write_input(path: pathlib.Path) -> None:
    """Some megabytes of records, long and short ones and some without text; always the same."""
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(4000)]
    with open(path, "w", encoding="utf-8") as lines:
        for number in range(RECORDS):
            text = " ".join(dice.choices(words, k=0 if number % 97 == 0 else int(dice.expovariate(1 / WORDS))))
            lines.write(json.dumps({"id": f"record-{number}", "text": text}) + "\n")


def burn(folder: pathlib.Path, seeds: range, tokenizer: str = "deepseek") -> Iterator[Burnt]:
    """Run each seed through one cluster; the first run of all has no faults, and is the measure of the others."""
    source = str(folder / "input.jsonl")
    write_input(folder / "input.jsonl")
    with Standing(folder, tokenizer) as standing:
        reference, _ = _run(standing, folder, source, "reference", "", random.Random(0))
        if reference.state != "completed":
            raise RuntimeError(f"the run without faults is {reference.state}: {folder}")
        measure = read_fates(folder / "reference")
        for seed in seeds:
            victim, name = VICTIMS[seed % len(VICTIMS)], f"seed-{seed}"
            seen, seconds = _run(standing, folder, source, name, victim, random.Random(seed))
            yield _judged(seed, victim, seen, seconds, folder / name, measure)
            shutil.rmtree(folder / name)
            standing.wait_until_whole()


@dataclass(slots=True)
class _Seen:
    """What was seen of one run."""

    state: str = ""
    kills: int = 0
    read: int = 0
    fused: bool = False
    held_by_dead: int = 0
    #: Records that were closed at each kill.
    closed: tuple[int, ...] = ()
    closed_s: float | None = None


def _judged(seed: int, victim: str, seen: _Seen, seconds: float, dataset: pathlib.Path, measure: Fates) -> Burnt:
    try:
        fates = read_fates(dataset)
    except FileNotFoundError:
        fates = Fates({}, [])
    difference, records = compare(measure, fates), len(measure.found)
    known = seen.fused and "controller" not in victim
    return Burnt(
        seed=seed,
        victim=victim,
        state=seen.state,
        kills=seen.kills,
        records=records,
        lost=len(difference.lost),
        twice=len(fates.twice),
        otherwise=len(difference.changed) + len(difference.added),
        read_again=max(0, seen.read - records),
        most=seen.held_by_dead if known else sum(records - closed for closed in seen.closed),
        closed_s=seen.closed_s,
        seconds=seconds,
    )


def _run(
    standing: Standing, folder: pathlib.Path, source: str, name: str, victim: str, dice: random.Random
) -> tuple[_Seen, float]:
    """One run to its end, with its kills."""
    seen, timeline = _Seen(), FaultTimeline(folder / name)
    due = dice.randint(*FIRST_ENTRIES)
    left = KILLS.get(victim, 0)
    started = asked = time.monotonic()
    killed_s = 0.0
    with standing.client() as client:
        seen.fused = dice.random() < 0.5
        client.apply(pipeline_of(name, source, folder / name, standing.tokenizer), RunOptions(fuse=seen.fused))
        while seen.state not in ENDED and time.monotonic() - started < RUN_S_MAX:
            timeline.look(time.monotonic())
            if left and timeline.entries >= due:
                killed_s = time.monotonic()
                if standing.inject(victim, name, client.address, dice):
                    seen.kills += 1
                    seen.closed = (*seen.closed, sum(commit.records for commit in timeline.commits))
                left, due = left - 1, timeline.entries + dice.randint(*NEXT_ENTRIES)
            standing.see_to()
            if time.monotonic() - asked > ASK_S:
                asked = time.monotonic()
                with contextlib.suppress(ControllerSilent, IndexError):
                    status = client.status(name).pipelines[0]
                    seen.state, seen.read = status.state, next((stage.records for stage in status.stages), 0)
                    seen.held_by_dead = status.held_by_dead
            time.sleep(LOOK_S)
    timeline.look(time.monotonic())
    closed_at = timeline.next_close(killed_s) if seen.kills else None
    seen.closed_s = None if closed_at is None else closed_at - killed_s
    return seen, time.monotonic() - started
