"""`examples/plain.py` against the same stage functions in a plain loop, and beside Ray Data.

    python benchmarks/plain.py CORPUS [--json] [--megabytes 500] [--rounds 3] [--ray PYTHON] [--ways WAY,...]

Method. CORPUS is a folder of JSON Lines that do not repeat, since repeated text would warm the tokenizer's cache; of
its files as many are taken as make `--megabytes`. Each way is one command. It starts with the files in the page cache,
writes to a fresh folder beside them, and is timed from the start of its process, its interpreter included, to the end
of that process. What is checked afterwards, as is the number of tokens of all ways, is outside the clock.

- limit: one process a core, each in a loop with the pipeline's stages and nothing else (benchmarks/plain_loop.py).
- fused, rings: `headrace run examples/plain.py`, with and without `--no-fuse`.
- ray_guide, ray_tuned, ray_arrow, ray_hf: `read_json`, `map_batches`, `write_parquet`, run by a Python with ray and
  gigatoken. The same files, tokenizer.json and number of cores; as a user of Ray writes it from its guides, with blocks
  that let Ray fuse it, and with what Headrace knows of the tokenizer besides; hf, with those blocks, has the tokenizer
  in its usual library (benchmarks/plain_ray.py).

Rounds of all ways alternate. A measurement during which other processes took more than a twentieth (`quiet`) of the
processor time of all cores is made again, up to AGAIN_MAX times, after which the least disturbed one counts; `again`
says how many were left out. Ray is not judged so: its processes are not waited for, and count among the others.
Seconds are medians, and a ratio is the median of the rounds' ratios. `start_s` is the time to the first batch (limit:
until each process has its stages; Ray: to the end of `ray.init`), `steady` the ratio of what is left without it, and
`written_s` the time to the last write of any file of the output, by that file. `cpu_s` are the seconds of processor
time of a way and all its processes, and `cpu` the ratio of those: on a machine that others use too it is the steadier
figure, though it does not see waiting. `others_s` is the processor time that the machine spent on anything else
meanwhile, the kernel's own work for the measured included. The limit and Ray have the environment that this command
has, and so the allocators that anybody has; Headrace gives its tasks others (worker/processes/forkserver_start.py),
which is a part of what is measured. `--same-environment` gives the limit those too, so that a ratio shows what Headrace
adds to its stages alone, and `--limit-environment` any others, as NAME=VALUE. All have their modules as byte code, as
an installation has them (benchmarks/bytecode.py).

Last result: docs/performance.md.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow.parquet as pq
from bytecode import as_installed
from quiet import undisturbed

from headrace.pipeline import Pipeline
from headrace.stages.library import read, tokenize, write_tokens
from headrace.stages.tokenizer import resolve_tokenizer
from headrace.worker.processes import environment

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "plain.py"
LOOP_SCRIPT = pathlib.Path(__file__).with_name("plain_loop.py")
RAY_SCRIPT = pathlib.Path(__file__).with_name("plain_ray.py")
RUN_S_MAX = 1200.0
AGAIN_MAX = 2
#: Ways that are Ray's.
RAY_WAYS = ("guide", "tuned", "arrow", "hf")
MB = 1_000_000


@dataclass(frozen=True)
class Timed:
    """One way of doing the work: seconds in all, to its first batch and its last write; seconds of processor time."""

    seconds: float
    start_s: float
    written_s: float
    tokens: int
    cpu_s: float = 0.0
    others_s: float = 0.0
    again: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit-environment", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--same-environment", action="store_true", help="the limit has that of tasks")
    parser.add_argument("--ways", default="", help="those of them, by commas, that are measured beside the limit")
    parser.add_argument("--ray", default="", help="a Python that has ray and gigatoken")
    parser.add_argument("--tokenizer", default="deepseek")
    args = parser.parse_args(argv)
    as_installed()
    files = take(args.corpus, args.megabytes * MB)
    size = sum(path.stat().st_size for path in files)
    ways = ways_of(files, args)
    for path in files:
        path.read_bytes()
    found: dict[str, list[Timed]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            timed = measured(way, args, 0 if name.startswith("ray") else AGAIN_MAX)
            found[name].append(timed)
            print(f"{name}: {timed}", file=sys.stderr, flush=True)
    report = summarise(found, size)
    report |= {"megabytes": size / MB, "cores": args.cores, "rounds": args.rounds}
    if args.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


def measured(way: Callable[[pathlib.Path], Timed], args: argparse.Namespace, again_max: int) -> Timed:
    def once() -> Timed:
        with tempfile.TemporaryDirectory(dir=args.corpus, prefix=".plain-") as folder:
            return way(pathlib.Path(folder))

    timed, meanwhile = undisturbed(once, again_max)
    return replace(timed, cpu_s=meanwhile.cpu_s, others_s=meanwhile.others_s, again=meanwhile.again)


def take(corpus: pathlib.Path, limit: int) -> list[pathlib.Path]:
    """Files of the corpus of about `limit` bytes; the last one may be cut off behind a line."""
    files: list[pathlib.Path] = []
    left = limit
    for path in sorted(corpus.glob("*.jsonl")):
        size = path.stat().st_size
        if left >= size:
            files.append(path)
            left -= size
        elif left > MB:
            files.append(head(path, left))
            left = 0
    if not files:
        raise SystemExit(f"{corpus} holds no *.jsonl")
    return files


def head(path: pathlib.Path, size: int) -> pathlib.Path:
    """The first lines of a file, about `size` bytes of them, in a file beside it."""
    part = path.parent / ".parts" / f"{path.stem}-{size}.jsonl"
    part.parent.mkdir(exist_ok=True)
    with open(path, "rb") as file:
        data = file.read(size)
    part.write_bytes(data[: data.rfind(b"\n") + 1])
    return part


def ways_of(files: Sequence[pathlib.Path], args: argparse.Namespace) -> dict[str, Callable[[pathlib.Path], Timed]]:
    given = ",".join(map(str, files))
    ways: dict[str, Callable[[pathlib.Path], Timed]] = {
        "limit": functools.partial(plain_loop, given, args),
        "fused": functools.partial(headrace, given, args, ()),
        "rings": functools.partial(headrace, given, args, ("--no-fuse",)),
    }
    if args.ray:
        for name in RAY_WAYS:
            ways[f"ray_{name}"] = functools.partial(ray, name, files, args)
    wanted = {"limit", *args.ways.split(",")} if args.ways else ways.keys()
    if unknown := wanted - ways.keys():
        raise SystemExit(f"--ways: {', '.join(sorted(unknown))}: unknown, or Ray's and without --ray")
    return {name: way for name, way in ways.items() if name in wanted}


# -- the ways, each a command --


@dataclass(frozen=True)
class Ended:
    """A command that has ended: CLOCK_MONOTONIC at its start, seconds to its end and its last write, what it said."""

    started: float
    seconds: float
    written_s: float
    told: dict[str, Any]


def command(given: Sequence[str], folder: pathlib.Path, variables: Mapping[str, str] | None = None) -> Ended:
    """Run a command that writes to the folder, and nothing but it within the clock.

    What it says goes to files: a pipe would be waited for until the last of its processes has closed it.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        environ = {**os.environ, **(variables or {})}
        started, started_ns = time.monotonic(), time.time_ns()
        process = subprocess.Popen(given, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, env=environ, cwd=folder)
        process.wait(RUN_S_MAX)
        seconds = time.monotonic() - started
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{given[1]} ended with {process.returncode}:\n{errors.read()[-2000:]}")
        # Ray may say something behind it.
        told = json.loads(next(line for line in reversed(said.read().splitlines()) if line.startswith("{")))
    written_ns = max(path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file())
    return Ended(started, seconds, (written_ns - started_ns) / 1e9, told)


def plain_loop(given: str, args: argparse.Namespace, folder: pathlib.Path) -> Timed:
    """One process a core in a loop (benchmarks/plain_loop.py); the pipeline is declared before the clock starts."""
    tokens = tokenize(args.tokenizer)
    pipeline = Pipeline.chain("plain", str(folder), read(given), tokens, write_tokens(tokens))
    variables = environment(os.environ) if args.same_environment else {}
    variables |= dict(pair.split("=", 1) for pair in args.limit_environment)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as declared:
        json.dump(pipeline.to_dict(), declared)
        declared.flush()
        ended = command([sys.executable, "-P", str(LOOP_SCRIPT), declared.name, str(args.cores)], folder, variables)
    start_s = ended.told["ready_at"] - ended.started
    return Timed(ended.seconds, start_s, ended.written_s, ended.told["tokens"])


def headrace(given: str, args: argparse.Namespace, options: Sequence[str], folder: pathlib.Path) -> Timed:
    """`headrace run examples/plain.py`."""
    parameters = ["-p", f"input={given}", "-p", f"output={folder}", "-p", f"tokenizer={args.tokenizer}"]
    run = [sys.executable, "-P", "-m", "headrace.cli", "run", str(EXAMPLE), "--json"]
    ended = command([*run, *options, *parameters], folder)
    return Timed(ended.seconds, ended.told["first_batch_s"], ended.written_s, ended.told["tokens"])


def ray(way: str, files: Sequence[pathlib.Path], args: argparse.Namespace, folder: pathlib.Path) -> Timed:
    """Ray Data (benchmarks/plain_ray.py); its tokens are counted in what it wrote, behind the clock."""
    facts = resolve_tokenizer(args.tokenizer, "auto")
    given = [args.ray, str(RAY_SCRIPT), way, facts.path, str(facts.eos_id), str(args.cores), str(folder)]
    # Ray makes its processes yield to all others, by 15; on a machine that others use too they would be measured.
    ended = command([*given, *map(str, files)], folder, {"RAY_worker_niceness": "0"})
    counts = [pq.read_table(path, columns=["count"]).column("count") for path in folder.rglob("*.parquet")]
    tokens = sum(int(count) for column in counts for count in column.to_numpy())
    return Timed(ended.seconds, ended.told["ready_at"] - ended.started, ended.written_s, tokens)


# -- the report --


def summarise(found: dict[str, list[Timed]], size: int) -> dict[str, Any]:
    tokens = {item.tokens for rounds in found.values() for item in rounds}
    if len(tokens) != 1:
        raise SystemExit(f"the ways do not agree on the number of tokens: {sorted(tokens)}")
    report: dict[str, Any] = {"tokens": tokens.pop(), "rounds_of": {}}
    limits = found["limit"]
    for name, rounds in found.items():
        seconds = statistics.median(item.seconds for item in rounds)
        report[name] = {
            "mb_s": size / MB / seconds,
            "seconds": seconds,
            "start_s": statistics.median(item.start_s for item in rounds),
            "written_s": statistics.median(item.written_s for item in rounds),
            "seconds_min": min(item.seconds for item in rounds),
            "seconds_max": max(item.seconds for item in rounds),
            "cpu_s": statistics.median(item.cpu_s for item in rounds),
            "others_s": statistics.median(item.others_s for item in rounds),
            "again": sum(item.again for item in rounds),
            "cpu": statistics.median(limit.cpu_s / item.cpu_s for limit, item in zip(limits, rounds, strict=True)),
            "ratio": statistics.median(
                limit.seconds / item.seconds for limit, item in zip(limits, rounds, strict=True)
            ),
            "steady": statistics.median(
                (limit.seconds - limit.start_s) / (item.seconds - item.start_s)
                for limit, item in zip(limits, rounds, strict=True)
            ),
        }
        report["rounds_of"][name] = [asdict(item) for item in rounds]
    for name in (f"ray_{way}" for way in RAY_WAYS if f"ray_{way}" in found):
        for ours in found.keys() & {"fused", "limit"}:
            report[f"{ours}_times_{name}"] = statistics.median(
                other.seconds / mine.seconds for other, mine in zip(found[name], found[ours], strict=True)
            )
    return report


def show(report: dict[str, Any]) -> None:
    print(f"{report['megabytes']:.0f} MB, {report['tokens']:,} tokens, {report['cores']} cores")
    print(f"{'way':10}{'MB/s':>8}{'seconds':>9}{'written':>9}{'start':>7}{'cpu':>7}{'ratio':>7}{'steady':>8}{'cpu':>6}")
    for name in ("limit", "fused", "rings", *(f"ray_{way}" for way in RAY_WAYS)):
        if name in report:
            row = report[name]
            times = f"{row['mb_s']:8.1f}{row['seconds']:9.2f}{row['written_s']:9.2f}{row['start_s']:7.2f}"
            print(f"{name:10}{times}{row['cpu_s']:7.1f}{row['ratio']:7.2f}{row['steady']:8.2f}{row['cpu']:6.2f}")
        for ours in ("fused", "limit"):
            if f"{ours}_times_{name}" in report:
                print(f"{ours} is {report[f'{ours}_times_{name}']:.1f} times {name}")


if __name__ == "__main__":
    sys.exit(main())
