"""What `benchmarks/history.py` plants: versions whose texts drift, and versions that are only shuffled.

A document has a topic, a length and tokens drawn by Zipf's law from the topic's vocabulary, so that the tokens of one
are alike; its metadata names a site and a language, its path a source. DOCUMENTS of them make a version. A drift is
planted in a share of a version's documents: another language (other tokens), a source (a folder that gives more), a
boilerplate (the same 40 tokens at the end), an encoding (each tenth token is two others, as UTF-8 read as Latin-1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.store.history.audit import drifted
from headrace.store.shards import Profile, ProfileBuilder

DOCUMENTS = 4_000
VOCABULARY, TOPICS, SITES, FOLDERS = 32_768, 40, 300, 6
KINDS = ("language", "source", "boilerplate", "encoding")
SHARES = (0.15, 0.25, 0.5)
SHUFFLES = 100


@dataclass(frozen=True)
class Document:
    tokens: npt.NDArray[np.uint16]
    folder: int
    site: int
    language: str = "en"


def documents(chance: np.random.Generator, count: int) -> list[Document]:
    found = []
    for _ in range(count):
        topic, length = int(chance.integers(TOPICS)), int(np.clip(chance.lognormal(5.6, 0.9), 20, 8000))
        ranks = np.minimum(chance.zipf(1.25, length), VOCABULARY // 2) - 1
        own = chance.random(length) < 0.4
        tokens = np.where(own, VOCABULARY // 2 + (ranks * 131 + topic * 397) % (VOCABULARY // 4), ranks)
        site = int(min(chance.zipf(1.3), SITES))
        found.append(Document(tokens.astype(np.uint16) + np.uint16(1), topic % FOLDERS, site))
    return found


def planted(kind: str, share: float, chance: np.random.Generator, given: Sequence[Document]) -> list[Document]:
    """The documents with a drift in a share of them."""
    footer = chance.integers(1, VOCABULARY, 40).astype(np.uint16)
    found = []
    for one in given:
        if chance.random() >= share:
            found.append(one)
        elif kind == "language":
            other = (one.tokens.astype(np.int64) * 7 + 11) % (VOCABULARY // 4) + 3 * VOCABULARY // 4
            found.append(replace(one, tokens=other.astype(np.uint16), language="xx"))
        elif kind == "source":
            found.append(replace(one, folder=0, site=1))
        elif kind == "boilerplate":
            found.append(replace(one, tokens=np.concatenate([one.tokens, footer])))
        else:
            struck = chance.random(len(one.tokens)) < 0.1
            wrong = np.where(struck, 200 + one.tokens % 7, one.tokens).astype(np.uint16)
            found.append(replace(one, tokens=np.insert(wrong, np.flatnonzero(struck), np.uint16(199))))
    return found


def profile(given: Sequence[Document], *, names_language: bool) -> Profile:
    """The profile that a sink of tokens writes of these documents in one shard."""
    builder = ProfileBuilder()
    flat = np.concatenate([one.tokens for one in given])
    builder.token_counter(flat.size, 0)(flat)
    fields = [{"url": f"https://site{one.site}.example/{number}"} for number, one in enumerate(given)]
    if names_language:
        fields = [field | {"language": one.language} for field, one in zip(fields, given, strict=True)]
    table = pa.table(
        {
            "source": [f"s3://lake/crawl-{one.folder}/part-0.jsonl" for one in given],
            "tokens": [len(one.tokens) for one in given],
            "metadata": [json.dumps(field) for field in fields],
        }
    )
    builder.add(table)
    return builder.finish({"kept": len(given)})


def measure() -> dict[str, object]:
    """How many planted drifts are found, and how many are where nothing is."""
    chance = np.random.default_rng(20)
    pool = documents(chance, 3 * DOCUMENTS)
    baseline = profile(pool[:DOCUMENTS], names_language=False)
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        for share in SHARES:
            fresh = planted(kind, share, chance, pool[DOCUMENTS : 2 * DOCUMENTS])
            broken = drifted(baseline, profile(fresh, names_language=False), {})
            found[f"{kind} {share:g}"] = [f"{row.name} {row.found}" for row in broken]
    alarms = 0
    began = time.perf_counter()
    for _ in range(SHUFFLES):
        order = chance.permutation(len(pool))
        halves = [[pool[at] for at in order[:DOCUMENTS]], [pool[at] for at in order[DOCUMENTS : 2 * DOCUMENTS]]]
        one, other = (profile(half, names_language=True) for half in halves)
        alarms += bool(drifted(one, other, {}))
    return {
        "drift_planted": len(found),
        "drift_found": sum(bool(names) for names in found.values()),
        "drift_by": found,
        "drift_shuffles": SHUFFLES,
        "drift_false_alarms": alarms,
        "drift_s": round(time.perf_counter() - began, 1),
    }
