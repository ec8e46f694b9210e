"""`examples/plain.py` against the same stage functions in a plain loop, and beside Ray Data.

    python benchmarks/plain.py CORPUS [--json] [--megabytes 500] [--rounds 3] [--cores N] [--ray PYTHON]

Method. CORPUS is a folder of JSON Lines that do not repeat, since repeated text would warm the tokenizer's cache; of
its files as many are taken as make `--megabytes`. Everything starts with the files in the page cache, writes to a fresh
folder beside them, and is timed from the start of its command to its end.

- limit: one process a core, each in a loop: take the next fragment, read a batch, tokenize it, gather, write a shard
  when it is full. The stages are those of the pipeline, built from the same declarations. No controller, no ledger, no
  links, nothing that survives a death.
- fused, rings: `headrace run examples/plain.py`, with and without `--no-fuse`.
- ray_guide, ray_arrow, ray_hf: `read_json`, `map_batches`, `write_parquet`, run by a Python with ray and gigatoken.
  The same files, tokenizer.json and number of cores; as a user of Ray writes it from its guides, and with what Headrace
  knows of the tokenizer; hf has the tokenizer in its usual library (benchmarks/plain_ray.py).

Rounds of all ways alternate. A measurement during which other processes took more than a twentieth (`quiet`) of the
processor time of all cores is made again, up to AGAIN_MAX times, after which the least disturbed one counts; `again`
says how many were left out. Ray is not judged so: its processes are not waited for, and count among the others.
Seconds are medians, and a ratio is the median of the rounds' ratios. `start_s` is the time to the first batch (limit:
until each process has its stages), and `steady` the ratio of what is left without it. `cpu_s` are the seconds of
processor time of a way and all its processes, and `cpu` the ratio of those: on a machine that others use too it is the
steadier figure, though it does not see waiting. `others_s` is the processor time that the machine spent on anything
else meanwhile, the kernel's own work for the measured included. The limit and Ray have the environment that this
command has, and so the allocators that anybody has; Headrace gives its tasks others (worker/cradle.py), which is a
part of what is measured. `--same-environment` gives the limit those too, so that a ratio shows what Headrace adds to
its stages alone, and `--limit-environment` any others, as NAME=VALUE. Ray's seconds end with its last write.

Last result: docs/performance.md.
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from quiet import undisturbed

from headrace.pipeline.graph import Pipeline
from headrace.stages.batch import Batch
from headrace.stages.build import build_stage
from headrace.stages.library import read, tokenize, write_tokens
from headrace.store.intervals import UNBOUNDED, Gap
from headrace.store.objects import open_store
from headrace.worker.cradle import environment

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "plain.py"
RAY_SCRIPT = pathlib.Path(__file__).with_name("plain_ray.py")
RUN_S_MAX = 1200.0
AGAIN_MAX = 2
#: Ways that are Ray's.
RAY_WAYS = ("guide", "arrow", "hf")
MB = 1_000_000


@dataclass(frozen=True)
class Timed:
    """One way of doing the work: seconds in all, and until its first batch; seconds of processor time."""

    seconds: float
    start_s: float
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
    parser.add_argument("--ray", default="", help="a Python that has ray and gigatoken")
    parser.add_argument("--tokenizer", default="deepseek")
    args = parser.parse_args(argv)
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
        "limit": lambda folder: plain_loop(given, folder, args),
        "fused": lambda folder: headrace(given, folder, args, ()),
        "rings": lambda folder: headrace(given, folder, args, ("--no-fuse",)),
    }
    if args.ray:
        for name in RAY_WAYS:
            ways[f"ray_{name}"] = functools.partial(ray, name, files, args)
    return ways


# -- the plain loop --


def plain_loop(given: str, folder: pathlib.Path, args: argparse.Namespace) -> Timed:
    """The time of one process a core, from before the first is started to the end of the last."""
    tokens = tokenize(args.tokenizer)
    pipeline = Pipeline.chain("plain", str(folder), read(given), tokens, write_tokens(tokens))
    context = multiprocessing.get_context("spawn")
    following, reports = context.Value("i", 0), context.Queue()
    started = time.monotonic()
    workers = [
        context.Process(target=work, args=(pipeline.to_dict(), following, reports, started)) for _ in range(args.cores)
    ]
    variables = environment(os.environ) if args.same_environment else {}
    variables |= dict(pair.split("=", 1) for pair in args.limit_environment)
    with other_environment(variables):
        for worker in workers:
            worker.start()
    told = [reports.get(timeout=RUN_S_MAX) for _ in workers]
    for worker in workers:
        worker.join(RUN_S_MAX)
        if worker.exitcode:
            raise SystemExit(f"the plain loop died with exit code {worker.exitcode}")
    return Timed(time.monotonic() - started, max(start for start, _ in told), sum(tokens for _, tokens in told))


@contextlib.contextmanager
def other_environment(given: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started meanwhile have these variables besides."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def work(plain: dict[str, Any], following: Any, reports: Any, started: float) -> None:
    """One process of the plain loop. CLOCK_MONOTONIC is the same in all."""
    pipeline = Pipeline.from_dict(plain)
    source, transform, sink = (build_stage(stage, {}) for stage in pipeline.stages)
    sink.begin(pipeline.name, "plain")
    ready = time.monotonic() - started
    store = open_store(pipeline.dataset)
    fragments = list(source.list())
    batches: list[Batch] = []
    size = tokens = 0
    while True:
        with following.get_lock():
            index, following.value = following.value, following.value + 1
        if index >= len(fragments):
            break
        for item in source.read(fragments[index], [Gap(0, UNBOUNDED, 0)]):
            if not isinstance(item, Batch):
                continue
            batch = transform.process(item)
            batches.append(batch)
            size += sink.measure(batch)
            if size >= sink.shard_bytes:
                tokens += sink.write(batches, store, "shards/1/").counts.tokens
                batches, size = [], 0
    if batches:
        tokens += sink.write(batches, store, "shards/1/").counts.tokens
    reports.put((ready, tokens))


# -- the others --


def headrace(given: str, folder: pathlib.Path, args: argparse.Namespace, options: Sequence[str]) -> Timed:
    command = [sys.executable, "-P", "-m", "headrace.cli", "run", str(EXAMPLE), "--json", *options]
    command += ["-p", f"input={given}", "-p", f"output={folder}", "-p", f"tokenizer={args.tokenizer}"]
    started = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX)
    seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"headrace run ended with {done.returncode}:\n{done.stderr}")
    report = json.loads(done.stdout)
    return Timed(seconds, report["first_batch_s"], report["tokens"])


def ray(way: str, files: Sequence[pathlib.Path], args: argparse.Namespace, folder: pathlib.Path) -> Timed:
    from headrace.stages.vocabulary import resolve_tokenizer

    facts = resolve_tokenizer(args.tokenizer, "auto")
    command = [args.ray, str(RAY_SCRIPT), way, facts.path, str(facts.eos_id), str(args.cores), str(folder)]
    command += map(str, files)
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_S_MAX, cwd=folder)
    if done.returncode:
        raise SystemExit(f"ray ended with {done.returncode}:\n{done.stderr[-2000:]}")
    # Ray may say something behind it.
    report = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return Timed(report["seconds"], report["start_s"], report["tokens"])


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
        report[f"times_{name}"] = statistics.median(
            other.seconds / mine.seconds for other, mine in zip(found[name], found["fused"], strict=True)
        )
    return report


def show(report: dict[str, Any]) -> None:
    print(f"{report['megabytes']:.0f} MB, {report['tokens']:,} tokens, {report['cores']} cores")
    print(f"{'way':10}{'MB/s':>8}{'seconds':>9}{'start':>7}{'cpu':>7}{'ratio':>7}{'steady':>8}{'cpu':>6}")
    for name in ("limit", "fused", "rings", *(f"ray_{way}" for way in RAY_WAYS)):
        if name in report:
            row = report[name]
            times = f"{row['mb_s']:8.1f}{row['seconds']:9.2f}{row['start_s']:7.2f}{row['cpu_s']:7.1f}"
            print(f"{name:10}{times}{row['ratio']:7.2f}{row['steady']:8.2f}{row['cpu']:6.2f}")
        if f"times_{name}" in report:
            print(f"fused is {report[f'times_{name}']:.1f} times {name}")


if __name__ == "__main__":
    sys.exit(main())
