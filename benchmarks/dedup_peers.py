"""Near deduplication beside others: datatrove's four MinHash stages, and the signatures of rensa.

    python benchmarks/dedup_peers.py CORPUS --peers PYTHON [--json] [--megabytes 200] [--rounds 1] [--only run,...]

Method: PYTHON is an interpreter with datatrove, spacy, rensa and xxhash below 4. CORPUS is a folder of JSON Lines, of
whose files as many are taken as make `--megabytes`; where it has fewer, the report says how many.

- run: the files are read, deduplicated and written as JSON Lines under zstd. Ours is `headrace run` of read_jsonl,
  dedup, write_jsonl; theirs benchmarks/dedup_peers_side.py, which is datatrove's documented example with as many
  workers as there are cores. Both are timed from the start of the process to its end, and by processor time.
- signatures: documents a second of processor time. Ours from the texts, own key, sketch and all; rensa's from the same
  shingles (three words in lower case), once as lists that are there before the clock starts, and once from the texts.
  Both have as many values as `dedup()`.

Last result: docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from bytecode import as_installed
from plain import MB, take

from headrace.stages.dedup import DEFAULTS, RULE, Scheme, compile_index, compile_keys, make_sketches

SIDE = pathlib.Path(__file__).with_name("dedup_peers_side.py")
PIPELINE = """
from headrace import Pipeline, dedup, read_jsonl, write_jsonl


def build(input: str = "", output: str = "") -> Pipeline:
    return Pipeline.chain("peers", output, read_jsonl(input), *dedup(), write_jsonl())
"""
BATCH = 512
RUN_S_MAX = 1800.0
#: Of `dedup()`.
SCHEME = Scheme(*DEFAULTS[True], RULE)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--peers", required=True, help="an interpreter with datatrove and rensa")
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="run,signatures")
    args = parser.parse_args(argv)
    as_installed()
    compile_keys()
    compile_index()
    files = take(args.corpus, args.megabytes * MB)
    report: dict[str, Any] = {"megabytes": sum(path.stat().st_size for path in files) / MB}
    if "run" in args.only:
        report["run"] = beside(args.rounds, lambda: ours(files), lambda: datatrove(args.peers, files))
    if "signatures" in args.only:
        report["signatures"] = signatures(args.peers, files)
    print(json.dumps(report) if args.json else json.dumps(report, indent=2))
    return 0


def beside(rounds: int, *ways: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """What both ways took, and the medians of their ratios."""
    pairs = [[way() for way in ways] for _ in range(rounds)]
    ratios = {name: statistics.median(them[name] / us[name] for us, them in pairs) for name in ("seconds", "cpu_s")}
    return {"headrace": pairs[-1][0], "datatrove": pairs[-1][1], "ratio": ratios}


def ours(files: Sequence[pathlib.Path]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=files[0].parent, prefix=".peers-") as folder:
        script = pathlib.Path(folder, "peers.py")
        script.write_text(PIPELINE)
        given = ["-p", f"input={','.join(map(str, files))}", "-p", f"output={folder}/out"]
        return timed([sys.executable, "-P", "-m", "headrace.cli", "run", str(script), "--json", *given])


def datatrove(python: str, files: Sequence[pathlib.Path]) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=files[0].parent, prefix=".peers-") as folder:
        given = pathlib.Path(folder, "in")
        given.mkdir()
        for path in files:
            (given / path.name).hardlink_to(path)
        return timed([python, "-P", str(SIDE), "run", str(given), folder, str(len(os.sched_getaffinity(0)))])


def timed(command: Sequence[str]) -> dict[str, float]:
    """Seconds and processor time of a command, and how many records it kept."""
    before, begun = children(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{command[1:4]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    told = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    return {"seconds": time.monotonic() - begun, "cpu_s": children() - before, "kept": told["kept"]}


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def signatures(python: str, files: Sequence[pathlib.Path]) -> dict[str, float]:
    texts = [json.loads(line)["text"] for line in files[0].read_bytes().split(b"\n") if line]
    columns = [pa.array(texts[at : at + BATCH], pa.string()) for at in range(0, len(texts), BATCH)]
    begun = time.process_time()
    for column in columns:
        make_sketches(column, SCHEME)
    mine = len(texts) / (time.process_time() - begun)
    command = [python, "-P", str(SIDE), "signatures", str(files[0]), str(SCHEME.bands * SCHEME.rows)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ratio = {f"over_{name}": mine / value for name, value in told.items()}
    return {"texts": len(texts), "headrace": mine, **told, **ratio}


if __name__ == "__main__":
    raise SystemExit(main())
