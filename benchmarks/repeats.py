"""How fast repeated lines are counted and removed: bytes of text a second of one core.

    python benchmarks/repeats.py [--json] [--rounds 5] [--spans 2000000]

Method: TEXTS texts of LINES lines of WORDS words each, of which one in ten stands in every tenth text, go in batches
of BATCH through `SpanCounter.add` (with its share of the sort and the merge), and through the stage `dedup_lines` with
an index of the texts' own repeated lines, and with one of so many others, of which none is found. The keys of exact
dedup for the same batches, which read each code point once too, are the measure: ways alternate, and of each the
processor time of the best round counts. Limit: 0.5 of their speed.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.stages.dedup import Scheme, compile_keys, make_keys
from headrace.stages.dedup.spans import SpanCounter, compile_spans
from headrace.stages.library import dedup_lines
from headrace.stages.runtime import Batch, build_stage, no_verdicts

TEXTS, LINES, WORDS, BATCH = 20_000, 30, 12, 500
LIMIT = 0.5


def texts_of() -> list[str]:
    """Texts with lines of their own, and some that others have too."""
    chance = random.Random(1)
    vocabulary = [f"{chance.getrandbits(30):x}" for _ in range(20_000)]
    shared = [" ".join(chance.choices(vocabulary, k=WORDS)) for _ in range(TEXTS // 100)]
    return [
        "\n".join(
            chance.choice(shared) if chance.random() < 0.1 else " ".join(chance.choices(vocabulary, k=WORDS))
            for _ in range(LINES)
        )
        for _ in range(TEXTS)
    ]


def batch(texts: list[str], first: int) -> Batch:
    """A batch as a source makes it."""
    rows = pa.record_batch(
        {
            "__row": pa.array(range(first, first + len(texts)), pa.int64()),
            "id": pa.array([f"id-{first + place}" for place in range(len(texts))], pa.string()),
            "text": pa.array(texts, pa.string()),
            "metadata": pa.nulls(len(texts), pa.string()),
        }
    )
    return Batch(bytes(16), "file:///a.jsonl", first, len(texts), -1, -1, rows, no_verdicts())


def index_of_others(folder: Path, spans: int) -> str:
    """An index of lines that no text has."""
    counter = SpanCounter("line", 3)
    for first in range(0, spans, 10_000):
        text = "\n".join(f"an other line {number}" for number in range(first, min(first + 10_000, spans)))
        counter.add(pa.array(["one", "two"]), pa.array([text, text]))
    counter.write(folder / "others.idx", 2, keeps_one=False)
    return str(folder / "others.idx")


def best(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of processor of the best round of each way."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            found[name].append(time.process_time() - begun)
    return {name: min(seconds) for name, seconds in found.items()}


def measure(rounds: int, spans: int) -> dict[str, Any]:
    """MB/s of each way, and its share of the speed of exact keys."""
    compile_keys()
    compile_spans()
    texts = texts_of()
    batches = [batch(texts[first : first + BATCH], first) for first in range(0, TEXTS, BATCH)]
    size = sum(len(text) for text in texts)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def count() -> None:
            counter = SpanCounter("line", 3)
            for one in batches:
                counter.add(one.rows.column("id"), one.rows.column("text"))
            counter.write(folder / "own.idx", 2, keeps_one=False)

        count()
        own = build_stage(dedup_lines(str(folder / "own.idx")), {})
        others = build_stage(dedup_lines(index_of_others(folder, spans)), {})
        ways: dict[str, Callable[[], object]] = {
            "exact keys": lambda: [make_keys(one.rows.column("text"), Scheme(bands=0)) for one in batches],
            "count": count,
            "remove, one line in ten": lambda: [own.process(one) for one in batches],
            "remove, none found": lambda: [others.process(one) for one in batches],
        }
        seconds = best(ways, rounds)
    return {
        "bytes": size,
        "spans": spans,
        "mb_s": {way: size / 1e6 / spent for way, spent in seconds.items()},
        "of_exact_keys": {way: seconds["exact keys"] / spent for way, spent in seconds.items()},
        "limit": LIMIT,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spans", type=int, default=2_000_000)
    options = parser.parse_args()
    found = measure(options.rounds, options.spans)
    if options.json:
        print(json.dumps(found))
    else:
        for way, speed in found["mb_s"].items():
            print(f"{way:28} {speed:8.1f} MB/s  {found['of_exact_keys'][way]:.2f} of exact keys")
    return int(min(found["of_exact_keys"].values()) < LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
