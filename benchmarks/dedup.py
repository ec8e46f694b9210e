"""Deduplication on one core: what keys, decisions and loading cost, and how well bands find near-duplicates.

    python benchmarks/dedup.py CORPUS.jsonl ... [--json]

Method: all in this process, CPU seconds of one thread. Keys are made of batches of 512 texts; then one index decides on
them in order; then the keys of what it kept are written as a shard's file of keys, read back and loaded into a second
index, which must answer as the first one did. Quality: of PAIRS pairs of texts of 300 random words, the second with a
share of words replaced, the true Jaccard similarity of the sets of 5-grams is counted with Python sets, and compared
with how many share a band; "expected" is 1 - (1 - s^rows)^bands. The limit of making keys is hashing: the same pass
over the text without bands.

What a duplicate costs behind the decider says `benchmarks/dedup_sink.py`.

Last result, 150 MB of documentation and source code, 18,927 texts, one core of an AMD EPYC that others used too:
keys at 202 MB/s (204 without bands); 1.2 million records decided a second; 0.26 million loaded a second; 815 bytes of
index and 167 bytes of file a record. Quality, of three times as many pairs:

    similarity     pairs    met  expected
    0.0 to 0.3     5,078  0.000     0.000
    0.3 to 0.5     3,110  0.015     0.013
    0.5 to 0.6     1,068  0.112     0.113
    0.6 to 0.7       852  0.357     0.362
    0.7 to 0.8       707  0.752     0.750
    0.8 to 0.9       543  0.983     0.979
    0.9 to 1.0       642  1.000     1.000
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.stages.dedup import KeyIndex, Keys, Scheme, compile_index, compile_keys, make_keys
from headrace.store.shards import decode_keys, encode_keys

BATCH = 512
PAIRS = 12000
WORDS = [f"w{number}" for number in range(4000)]
EDGES = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)
FRAGMENT = bytes(16)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this thread that the work took, and what it gave."""
    begun = time.thread_time()
    answer = work()
    return time.thread_time() - begun, answer


def make_all(texts: Sequence[str], scheme: Scheme) -> Keys:
    """The keys of all texts, a batch at a time."""
    parts = [make_keys(pa.array(texts[at : at + BATCH], pa.string()), scheme) for at in range(0, len(texts), BATCH)]
    return np.concatenate(parts)


def decide_all(index: KeyIndex, keys: Keys) -> list[Any]:
    """What the index answers to all records, a batch at a time."""
    answers: list[Any] = []
    for at in range(0, len(keys), BATCH):
        part = keys[at : at + BATCH]
        answers += index.decide(FRAGMENT, np.arange(at, at + len(part)), part)
    return answers


def speed(texts: Sequence[str]) -> dict[str, float]:
    """Throughput and sizes of each step."""
    scheme, size = Scheme(), sum(len(text.encode()) for text in texts) / 1e6
    hashing_s, _ = cpu_seconds(lambda: make_all(texts, Scheme(bands=0)))
    keys_s, keys = cpu_seconds(lambda: make_all(texts, scheme))
    index = KeyIndex(scheme)
    decide_s, answers = cpu_seconds(lambda: decide_all(index, keys))
    kept = np.flatnonzero([answer is None for answer in answers])
    file = encode_keys([(FRAGMENT, kept, keys[kept])], scheme.identity())
    again = KeyIndex(scheme)
    load_s, _ = cpu_seconds(lambda: again.load(decode_keys(file, scheme.identity(), "keys")))
    if decide_all(again, keys) != answers:
        raise SystemExit("an index that was loaded answers otherwise than the one that was lost")
    return {
        "texts": len(texts),
        "megabytes": size,
        "duplicates": len(texts) - len(kept),
        "hashing_mb_s": size / hashing_s,
        "keys_mb_s": size / keys_s,
        "decided_records_s": len(texts) / decide_s,
        "loaded_records_s": len(kept) / load_s,
        "index_bytes_a_record": index.nbytes / max(1, index.records),
        "file_bytes_a_record": len(file) / max(1, len(kept)),
    }


def quality() -> list[dict[str, float]]:
    """For each range of similarity: pairs, the share that met in a band, and the share expected."""
    chance, scheme = random.Random(1), Scheme()
    pairs: list[tuple[float, str, str]] = []
    for number in range(PAIRS):
        words = chance.choices(WORDS, k=300)
        rate = 0.25 * number / PAIRS
        other = [chance.choice(WORDS) if chance.random() < rate else word for word in words]
        one, two = ({tuple(text[at : at + 5]) for at in range(len(text) - 4)} for text in (words, other))
        pairs.append((len(one & two) / len(one | two), " ".join(words), " ".join(other)))
    left, right = (make_all([pair[side] for pair in pairs], scheme)[:, 2:] for side in (1, 2))
    met, similar = (left == right).any(axis=1), np.array([pair[0] for pair in pairs])
    expected = np.array([scheme.share_of(value) for value in similar.tolist()])
    rows: list[dict[str, float]] = []
    for low, high in itertools.pairwise(EDGES):
        here = (similar >= low) & (similar < high)
        if here.any():
            found = {"from": low, "to": min(high, 1.0), "pairs": int(here.sum())}
            rows.append({**found, "met": float(met[here].mean()), "expected": float(expected[here].mean())})
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+", help="JSON Lines with a field text")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = (line for path in arguments.corpus for line in Path(path).read_text(encoding="utf-8").split("\n") if line)
    texts = [json.loads(line)["text"] for line in lines]
    compile_keys()
    compile_index()
    answer = {"speed": speed(texts), "quality": quality()}
    if arguments.json:
        print(json.dumps(answer))
        return 0
    for name, value in answer["speed"].items():
        print(f"{name:22} {value:14,.0f}")
    print("similarity        pairs    met  expected")
    for row in answer["quality"]:
        print(f"{row['from']:.1f} to {row['to']:.1f}  {row['pairs']:11,} {row['met']:7.3f} {row['expected']:8.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
