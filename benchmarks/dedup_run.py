"""What deduplication costs a whole run: a pipeline with it beside the same pipeline without it.

    python benchmarks/dedup_run.py CORPUS [--json] [--megabytes 190] [--rounds 3] [--ways exact,near]

Method: CORPUS is a folder of JSON Lines, of whose files as many are taken as make `--megabytes`; where it has fewer,
they are taken again under other names, and the report says how often. Each way is one `headrace run` of
read, [dedup,] tokenize, write_tokens, into a fresh folder beside the corpus, timed from the start of its process to its
end. Rounds of all ways alternate; a round that other processes disturbed is made again, as in benchmarks/plain.py.
`ratio` is the median over the rounds of the seconds without dedup over those with it; `cpu` the same of processor
time, `start_s` the seconds to the first batch. What is removed need not be tokenized or
written, which counts for dedup.

Last result: docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bytecode import as_installed
from plain import AGAIN_MAX, MB, command, take
from quiet import undisturbed

#: The pipeline, whose dedup stage a parameter chooses.
PIPELINE = """
from headrace import Pipeline, dedup, read, tokenize, write_tokens


def build(input: str = "", output: str = "", way: str = "none", tokenizer: str = "deepseek") -> Pipeline:
    stages = {"none": (), "exact": dedup(near=False), "near": dedup()}[way]
    return Pipeline.chain("cost", output, read(input), *stages, tokens := tokenize(tokenizer), write_tokens(tokens))
"""
WAYS = ("none", "exact", "near")


@dataclass(frozen=True)
class Ran:
    """One run: seconds in all and to its first batch, what it kept, and its processor time."""

    seconds: float
    start_s: float
    kept: int
    cpu_s: float = 0.0
    others_s: float = 0.0
    again: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--megabytes", type=int, default=190)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--ways", default="exact,near", help="those that are measured beside the run without, by commas"
    )
    args = parser.parse_args(argv)
    ways = ("none", *args.ways.split(","))
    if unknown := set(ways) - set(WAYS):
        raise SystemExit(f"--ways: {', '.join(sorted(unknown))}: unknown; there are {', '.join(WAYS)}")
    as_installed()
    files = take(args.corpus, args.megabytes * MB)
    size = sum(path.stat().st_size for path in files)
    times = max(1, round(args.megabytes * MB / size))
    with tempfile.TemporaryDirectory(dir=args.corpus, prefix=".dedup-") as folder:
        place = pathlib.Path(folder)
        given = ",".join(map(str, inputs(files, times, place)))
        rounds: dict[str, list[Ran]] = {way: [] for way in ways}
        for _ in range(args.rounds):
            for way in ways:
                rounds[way].append(measured(way, given, place))
                print(f"{way}: {rounds[way][-1]}", file=sys.stderr, flush=True)
    report = {"megabytes": size * times / MB, "times": times, "rounds": args.rounds} | summarise(rounds)
    print(json.dumps(report) if args.json else table(report, ways))
    return 0


def inputs(files: Sequence[pathlib.Path], times: int, place: pathlib.Path) -> list[pathlib.Path]:
    """The files, so many times: an object that was read under its name is not read again under it."""
    found: list[pathlib.Path] = []
    for turn in range(times):
        for path in files:
            other = place / f"{turn}-{path.name}"
            other.hardlink_to(path) if turn == 0 else other.write_bytes(path.read_bytes())
            found.append(other)
    return found


def measured(way: str, given: str, place: pathlib.Path) -> Ran:
    def once() -> Ran:
        with tempfile.TemporaryDirectory(dir=place, prefix="run-") as folder:
            script = pathlib.Path(folder, "cost.py")
            script.write_text(PIPELINE)
            parameters = ["-p", f"input={given}", "-p", f"output={folder}/out", "-p", f"way={way}"]
            run = [sys.executable, "-P", "-m", "headrace.cli", "run", str(script), "--json"]
            ended = command([*run, *parameters], pathlib.Path(folder))
            return Ran(ended.seconds, ended.told["first_batch_s"], ended.told["kept"])

    ran, meanwhile = undisturbed(once, AGAIN_MAX)
    return replace(ran, cpu_s=meanwhile.cpu_s, others_s=meanwhile.others_s, again=meanwhile.again)


def summarise(rounds: dict[str, list[Ran]]) -> dict[str, Any]:
    plain = rounds["none"]
    return {
        way: {
            "seconds": statistics.median(ran.seconds for ran in found),
            "start_s": statistics.median(ran.start_s for ran in found),
            "cpu_s": statistics.median(ran.cpu_s for ran in found),
            "kept": found[0].kept,
            "again": sum(ran.again for ran in found),
            "ratio": statistics.median(one.seconds / ran.seconds for one, ran in zip(plain, found, strict=True)),
            "cpu": statistics.median(one.cpu_s / ran.cpu_s for one, ran in zip(plain, found, strict=True)),
        }
        for way, found in rounds.items()
    }


def table(report: dict[str, Any], ways: Sequence[str]) -> str:
    lines = [f"{report['megabytes']:.0f} MB, the files {report['times']} times, {report['rounds']} rounds"]
    lines.append(f"{'':8}{'seconds':>9}{'start':>8}{'cpu s':>8}{'kept':>10}{'ratio':>8}{'cpu':>8}")
    for way in ways:
        row = report[way]
        figures = f"{row['seconds']:9.2f}{row['start_s']:8.2f}{row['cpu_s']:8.2f}{row['kept']:10,}"
        lines.append(f"{way:8}{figures}{row['ratio']:8.2f}{row['cpu']:8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
