"""Fuzz decoders: `python -m tests.fuzz.run TARGET...|all [--seconds N] [--jobs N] [--json] [--canary]`.

Each target runs in a process of its own under atheris (libFuzzer), led by the coverage of all of headrace, with a limit
of memory and of time for one input. The report says how often it ran, how often the interesting state was reached and
by which execution the canary was found. A target that broke, that never reached the state, or whose canary was not
found fails the run. Inputs that break one are saved beside its corpus.

`--seconds` is processor time of each target. With `--canary` each target ends when its canary is found: "the canary
sings". `--from MODULE` takes the targets of that module. `--campaign FILE` goes on where the last session ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import atheris

from tests.fuzz import harness
from tests.fuzz.campaign import Campaign, commit_now

#: Wall time for each second of processor time that a target was given, and besides: then it hangs.
WALL_FACTOR, WALL_S_MORE = 20, 600
#: Where corpora and inputs that break targets are kept.
FOLDER = ".fuzz"


@dataclass(frozen=True, slots=True)
class Plan:
    """How each target is fuzzed."""

    seconds: float
    folder: Path
    ends_with_canary: bool
    #: libFuzzer's own; 0 for one by the clock.
    seed: int
    #: Executions after which a canary that was not found is given up, and seconds of one input.
    executions_max: int
    input_s_max: int


@dataclass(frozen=True, slots=True)
class Child:
    """A process that fuzzes a target."""

    target: harness.Target
    tally: harness.Tally
    #: Readable when it has ended.
    descriptor: int
    pid: int
    deadline: float


def main(arguments: list[str]) -> int:
    parsed = parse(arguments)
    targets = instrumented(parsed.module, parsed.targets)
    if parsed.targets != ["all"]:
        unknown = sorted(set(parsed.targets) - {target.name for target in targets})
        if unknown:
            print(f"no target {', '.join(unknown)}", file=sys.stderr)
            return 2
        targets = [target for target in targets if target.name in parsed.targets]
    plan = Plan(parsed.seconds, Path(parsed.folder), parsed.canary, parsed.seed, parsed.executions, parsed.input_s)
    turns: Once | Campaign = Once(targets, parsed.seconds)
    if parsed.campaign:
        turns = Campaign(Path(parsed.campaign), targets, parsed.seconds, parsed.turn, commit_now())
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    reports = fuzz_all(turns, plan, parsed.jobs, quiet=parsed.json)
    if parsed.json:
        print(json.dumps([report.as_dict() for report in reports]))
    if parsed.canary:
        return int(not all("the canary sings" in report.account for report in reports))
    return int(any(report.problem for report in reports))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fuzz decoders, each in a process of its own.")
    parser.add_argument("targets", nargs="+", help="names of targets, or all")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each target")
    parser.add_argument("--campaign", default="", help="a record that goes on; --seconds is then of all its sessions")
    parser.add_argument("--turn", type=float, default=60.0, help="seconds of a target's turn in a campaign")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--json", action="store_true", help="the reports as JSON")
    parser.add_argument("--canary", action="store_true", help="each target ends when its canary is found")
    parser.add_argument("--folder", default=FOLDER, help="where corpora and inputs that break targets are kept")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer; 0: another each time")
    parser.add_argument(
        "--executions", type=int, default=harness.CANARY_EXECUTIONS_MAX, help="until a canary is given up"
    )
    parser.add_argument("--input-s", type=int, default=harness.INPUT_S_MAX, help="limit for one input")
    parser.add_argument("--from", dest="module", default="", help="a module that holds targets, in place of all")
    return parser.parse_args(arguments)


def instrumented(module: str, names: list[str]) -> list[harness.Target]:
    """The targets of a module, or those of the modules that hold these names, or all.

    What they import of headrace tells of its branches. atheris works on each module for about 30 ms, so that all of
    them take 16 s.
    """
    own = [f"tests.fuzz.{module}"] if module else []
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        atheris.instrument_imports(include=["headrace", *own], exclude=EXCLUDED),
    ):
        from tests.fuzz import registry

        if module:
            return registry.targets_of(module)
        return registry.all_targets([] if names == ["all"] else registry.areas_of(names))


#: Made by others, large, and no decoders of ours.
EXCLUDED = ["headrace.protos.control_pb2", "headrace.protos.control_pb2_grpc"]


class Once:
    """A turn for each target, in their order."""

    def __init__(self, targets: list[harness.Target], seconds: float) -> None:
        self._waiting = list(targets)
        self._seconds = seconds

    def next(self) -> tuple[harness.Target, float] | None:
        return (self._waiting.pop(0), self._seconds) if self._waiting else None

    def ended(self, report: harness.Report) -> None:
        pass


def fuzz_all(turns: Once | Campaign, plan: Plan, jobs: int, *, quiet: bool) -> list[harness.Report]:
    """Fuzz who has a turn, `jobs` at a time, until nobody has one or the user ends it; their reports."""
    running, found = list[Child](), list[harness.Report]()
    if not quiet:
        print(HEAD)
    try:
        while True:
            while len(running) < max(1, jobs) and (turn := turns.next()):
                running.append(start(turn[0], replace(plan, seconds=turn[1])))
            if not running:
                return found
            soon = min(child.deadline for child in running) - time.monotonic()
            ended, _, _ = select.select([child.descriptor for child in running], [], [], max(0.0, soon))
            for child in list(running):
                if child.descriptor not in ended and time.monotonic() < child.deadline:
                    continue
                running.remove(child)
                found.append(end(child, plan))
                turns.ended(found[-1])
                if not quiet:
                    print(line_of(found[-1]), flush=True)
    except KeyboardInterrupt:
        for child in running:
            os.kill(child.pid, signal.SIGKILL)
            turns.ended(replace(end(child, plan), account="", crash=""))
        return found


HEAD = f"{'target':24} {'executions':>11} {'per s':>8} {'reached':>10} {'no seed':>10} {'canary at':>10} {'edges':>6}"


def line_of(report: harness.Report) -> str:
    counted = f"{report.executions:11,} {report.per_second:8,} {report.reached:10,} {report.fresh:10,}"
    line = f"{report.target:24} {counted} {report.canary_at:10,} {report.edges:6,}"
    return f"{line}  {report.problem}\n{report.account}" if report.problem else line


def start(target: harness.Target, plan: Plan) -> Child:
    tally = harness.Tally()
    folder = plan.folder / target.name
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        fuzz(target, tally, plan, folder)
    os.close(write)
    deadline = time.monotonic() + WALL_FACTOR * max(plan.seconds, harness.CANARY_CPU_S_MAX) + WALL_S_MORE
    return Child(target, tally, read, pid, deadline)


def fuzz(target: harness.Target, tally: harness.Tally, plan: Plan, folder: Path) -> None:
    """What the child does; it does not return."""
    status = 70
    # Ctrl-C goes to all processes of the terminal; the parent ends this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        said = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.addaudithook(harness.no_program)
        watched = harness.Watched(
            target, tally, folder, plan.seconds, plan.executions_max, ends_with_canary=plan.ends_with_canary
        )
        atheris.Setup(options(target, watched, plan, folder), watched, **mutator(target, watched.seeds))
        atheris.Fuzz()
    except BaseException:  # noqa: BLE001 - told in the log, and by the exit status
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def options(target: harness.Target, watched: harness.Watched, plan: Plan, folder: Path) -> list[str]:
    """libFuzzer's options; it writes what it finds into the first folder."""
    seeds = folder / "seeds"
    seeds.mkdir(exist_ok=True)
    for number, seed in enumerate(watched.seeds):
        (seeds / f"{number:03}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{"".join(f"{chr(92)}x{byte:02x}" for byte in word)}"\n' for word in target.words))
    return [
        target.name,
        f"-max_len={max(target.bytes_max, *map(len, watched.seeds))}",
        f"-rss_limit_mb={harness.RSS_MIB_MAX}",
        f"-timeout={plan.input_s_max}",
        f"-artifact_prefix={folder}/",
        f"-seed={plan.seed}",
        "-handle_int=0",
        "-handle_term=0",
        *([f"-dict={words}"] if target.words else []),
        str(folder / "corpus"),
        str(seeds),
    ]


def mutator(target: harness.Target, seeds: Sequence[bytes]) -> dict[str, object]:
    """Half of the changes are the target's own, of an input and of a seed by turns.

    libFuzzer keeps the smallest of the inputs that it can't tell apart, and so no seed where coverage shows nothing.
    """
    change = target.mutate
    if change is None:
        return {}

    def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            changed = change(random.choice((data, random.choice(seeds))), random)
            if len(changed) <= bytes_max:
                return changed
        return bytes(atheris.Mutate(data, bytes_max))

    return {"custom_mutator": mutate}


def end(child: Child, plan: Plan) -> harness.Report:
    """Wait for a child that has ended, or end one that hangs."""
    hangs = time.monotonic() >= child.deadline
    if hangs:
        os.kill(child.pid, signal.SIGKILL)
    os.close(child.descriptor)
    _, status = os.waitpid(child.pid, 0)
    folder = plan.folder / child.target.name
    log = (folder / "log").read_text(errors="replace")
    return harness.report_of(child.target, child.tally, folder, os.waitstatus_to_exitcode(status), log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
