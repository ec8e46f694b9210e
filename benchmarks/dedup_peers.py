"""Near deduplication beside others: datatrove's four MinHash stages, and the signatures of rensa.

    python benchmarks/dedup_peers.py CORPUS --peers PYTHON [--json] [--megabytes 200] [--rounds 1] [--only run,...]

Method: PYTHON is an interpreter with datatrove, spacy, rensa and xxhash below 4. CORPUS is a folder of JSON Lines, of
whose files as many are taken as make `--megabytes`; where it has fewer, the report says how many.

- run: the files are read, deduplicated and written as JSON Lines under zstd. Ours is `headrace run` of read_jsonl,
  dedup, write_jsonl; theirs benchmarks/dedup_peers_side.py, which is datatrove's documented example with as many
  workers as there are cores. Both are timed from the start of the process to its end, and by processor time.
- signatures: documents a second of processor time, with as many values as `dedup()`, and the same shingles (three words
  in lower case) on both sides. `alone` is like for like: rensa is given lists of shingles, ours the hashes of the
  words, and both hash the shingles and take the minima. From the texts: ours alone, ours as a run makes them (bands,
  own key and sketch), and rensa's.

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

import numpy as np
import pyarrow as pa
from bytecode import as_installed
from plain import MB, take

from headrace.stages.dedup import (
    CODES_MORE,
    DEFAULTS,
    RULE,
    Scheme,
    compile_index,
    compile_keys,
    make_sketches,
    permutations,
    read_words,
    sign,
)
from headrace.stages.text import LoopRoom, longest, text_bytes
from headrace.stages.text.machine import compiled

SIDE = pathlib.Path(__file__).with_name("dedup_peers_side.py")
PIPELINE = """
from headrace import Pipeline, dedup, read_jsonl, write_jsonl


def build(input: str = "", output: str = "") -> Pipeline:
    return Pipeline.chain("peers", output, read_jsonl(input), *dedup(), write_jsonl())
"""
BATCH = 128
RUN_S_MAX = 1800.0
#: Of `dedup()`.
SCHEME = Scheme(*DEFAULTS[True], RULE)
NGRAM = SCHEME.ngram


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
    room, given = LoopRoom(), [from_texts(column, LoopRoom()) for column in columns]
    mine = {
        "headrace": clocked(lambda: [make_sketches(column, SCHEME, room) for column in columns]),
        "headrace_from_texts": clocked(lambda: [from_texts(column, room) for column in columns]),
        "headrace_alone": clocked(lambda: [sign_all(*words) for words in given]),
    }
    command = [python, "-P", str(SIDE), "signatures", str(files[0]), str(SCHEME.bands * SCHEME.rows)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    rates = {name: len(texts) / seconds for name, seconds in mine.items()} | told
    return {
        "texts": len(texts),
        **rates,
        "alone": rates["headrace_alone"] / rates["rensa_from_shingles"],
        "run_over_rensa_from_shingles": rates["headrace"] / rates["rensa_from_shingles"],
        "run_over_rensa_from_texts": rates["headrace"] / rates["rensa_from_texts"],
    }


def clocked(work: Callable[[], object]) -> float:
    """The least processor time of three, after one that compiles."""
    work()
    return min(_timed(work) for _ in range(3))


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def from_texts(column: Any, room: LoopRoom) -> tuple[Any, ...]:
    """Make the signatures of texts; what `sign_all` is to be given for them, until the room is used again."""
    data, offsets = text_bytes(column, room)
    factors, shifts = permutations(SCHEME.bands * SCHEME.rows)
    least, counts = np.empty(len(factors), np.uint32), np.zeros(len(column), np.int64)
    words = room.take("words", len(data), np.uint64)
    codes = room.take("codes", max(1, longest(offsets)) + CODES_MORE, np.uint32)
    sign_texts(data, offsets, words, counts, factors, shifts, least, codes)
    return words, offsets, counts, factors, shifts, least, codes


@compiled
def sign_texts(
    data: Any, offsets: Any, words: Any, counts: Any, factors: Any, shifts: Any, least: Any, codes: Any
) -> None:
    """The words of each text and its MinHash values."""
    for text in range(len(offsets) - 1):
        room = words[offsets[text] : offsets[text + 1]]
        counts[text] = read_words(data, offsets[text], offsets[text + 1], room, codes)
        if counts[text]:
            sign(room, counts[text], NGRAM, factors, shifts, least, codes)


@compiled
def sign_all(words: Any, offsets: Any, counts: Any, factors: Any, shifts: Any, least: Any, codes: Any) -> None:
    """The MinHash values of texts whose words are there."""
    for text in range(len(counts)):
        if counts[text]:
            sign(words[offsets[text] : offsets[text + 1]], counts[text], NGRAM, factors, shifts, least, codes)


if __name__ == "__main__":
    raise SystemExit(main())
