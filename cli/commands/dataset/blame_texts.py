"""What the ledger, the tokenizer and the filters know of documents that were read: for `headrace dataset blame`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.loader.blame import ReadDocument
from headrace.pipeline import PipelineError, Stage
from headrace.stages.export import text_decoder
from headrace.stages.runtime import Batch, build_stage, no_verdicts, process_safely
from headrace.store import StoreError
from headrace.store.datasets import Dataset, main_object

#: The property of a text whose letters were broken on the way.
ENCODING = "letters broken by an encoding"
#: The least share of a text's characters.
BROKEN_SHARE_MIN = 0.005
#: What a wrong decoding leaves: replacement characters, controls, and UTF-8 that was read as Latin 1 or Windows 1252.
_BROKEN = re.compile(
    "[\ufffd\x00-\x08\x0b\x0e-\x1f\x80-\x9f]|[\u00c2\u00c3\u00e2][\u0080-\u00bf\u20ac\u201a-\u201e\u2020-\u2026\u2030]"
)
#: Filters whose limits are tried, by where their stages lie, and by how much a limit is moved.
_OURS = "headrace.stages.quality."
EDGE = 0.1
EDGES_MAX = 40
#: Texts that are tried, and characters of each.
EDGE_TEXTS_MAX = 2000
EDGE_CHARACTERS_MAX = 100_000


def has_broken_encoding(text: str) -> bool:
    """Whether more of a text is broken letters than a slip makes."""
    return len(_BROKEN.findall(text)) > max(2, BROKEN_SHARE_MIN * len(text))


class Texts:
    """The datasets of a loader by name, and where each lies."""

    def __init__(self, places: Mapping[str, str], tokenizer: str) -> None:
        self._tokenizer = tokenizer
        self._several = len(places) > 1
        self.datasets: dict[str, Dataset] = {}
        #: why texts or facts of a dataset are not known; empty where they are
        self.problem = ""
        self._decoders: dict[str, Any] = {}
        self._rounds: dict[str, tuple[str, str]] = {}
        for name, uri in places.items():
            try:
                self.datasets[name] = dataset = Dataset.open(uri)
                self._rounds |= dict(_rounds(dataset, name if self._several else ""))
                self._decoders[name] = text_decoder(dataset, tokenizer)
            except (StoreError, PipelineError) as error:
                self.problem = str(error)

    def of(self, documents: Sequence[ReadDocument]) -> list[str | None]:
        """The text of each document's piece; None where it cannot be decoded."""
        found: list[str | None] = [None] * len(documents)
        for name, decode in self._decoders.items():
            chosen = [at for at, one in enumerate(documents) if one.piece.source == name]
            if chosen:
                parts = [documents[at].tokens for at in chosen]
                texts = decode(np.concatenate(parts), np.array([len(part) for part in parts], np.int64)).to_pylist()
                for at, text in zip(chosen, texts, strict=True):
                    found[at] = text
        return found

    def known(self, one: ReadDocument) -> Iterator[tuple[str, str]]:
        """What is known of a document, as (kind, value)."""
        source = str(one.facts.get("source") or "")
        if source:
            yield "source", source
            yield "folder", source.rpartition("/")[0]
        if self._several:
            yield "dataset", one.piece.source
        made, recipe = self._rounds.get(one.piece.tokens_key, ("", ""))
        if made:
            yield "round", made
        if recipe:
            yield "recipe", recipe

    def filters(self) -> list[Stage]:
        """Our own filters that made the datasets."""
        found: dict[str, Stage] = {}
        for dataset in self.datasets.values():
            for data in dataset.state.pipeline.get("stages", ()):
                try:
                    stage = Stage.from_dict(data)
                except PipelineError:
                    continue
                if stage.target.startswith(_OURS):
                    found[repr((stage.target, stage.parameters))] = stage
        return list(found.values())


def _rounds(dataset: Dataset, name: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """By the key of its tokens, with which version a shard came in, and by which recipe, where there are several."""
    versions = sorted(dataset.state.published.items())
    recipes = len({shard.closed.version for shard in dataset.state.shards}) > 1
    for shard in dataset.state.shards:
        main = main_object(shard.closed)
        first = next((number for number, shown in versions if shown.shows_entry(shard.number)), 0)
        made = f"version {first}{' of ' * bool(name)}{name}" if first and len(versions) > 1 else ""
        if main is not None:
            yield main.key, (made, f"recipe {shard.closed.version}" if recipes else "")


def edges_of(texts: Texts, documents: Sequence[ReadDocument], shown: Sequence[str | None]) -> list[frozenset[str]]:
    """The limits of filters that each document nearly broke: it passes the filter, and not one that is stricter."""
    found: list[set[str]] = [set() for _ in documents]
    odd = [at for at, one in enumerate(documents) if one.spike >= 0 and shown[at]][: EDGE_TEXTS_MAX // 2]
    usual = [at for at, one in enumerate(documents) if one.spike < 0 and shown[at]][: EDGE_TEXTS_MAX // 2]
    chosen = odd + usual
    if not odd or not usual:
        return [frozenset(one) for one in found]
    batch = _batch([(shown[at] or "")[:EDGE_CHARACTERS_MAX] for at in chosen])
    tried = 0
    for stage in texts.filters():
        passing = _kept(stage, batch)
        for said, stricter in _stricter(stage) if passing is not None else ():
            tried += 1
            kept = _kept(stricter, batch) if tried <= EDGES_MAX else None
            if kept is not None and passing is not None:
                for row in passing - kept:
                    found[chosen[row]].add(said)
    return [frozenset(one) for one in found]


def _stricter(stage: Stage) -> Iterator[tuple[str, Stage]]:
    """The stage with one of its limits moved by a tenth, for each limit."""
    for name, value in stage.parameters.items():
        if type(value) not in (int, float) or not name.endswith(("_min", "_max")) or not value:
            continue
        moved = value * (1 + EDGE if name.endswith("_min") else 1 - EDGE)
        moved = type(value)(round(moved)) if isinstance(value, int) else round(moved, 6)
        if moved != value:
            yield f"{stage.name} {name}={moved:g}", replace(stage, parameters={**stage.parameters, name: moved})


def _kept(stage: Stage, batch: Batch) -> set[int] | None:
    """The rows that a filter keeps; None where it cannot be built here, or changes rows otherwise."""
    try:
        answer = process_safely(build_stage(stage, {}), batch, stage.name)
    except (PipelineError, StoreError, ValueError, TypeError, OSError):
        return None
    rows: Any = answer.rows.column("__row")
    return set(rows.to_pylist())


def _batch(texts: Sequence[str]) -> Batch:
    count = len(texts)
    columns: list[Any] = [
        pa.array(range(count), pa.int64()),
        pa.array([str(at) for at in range(count)], pa.string()),
        pa.array(texts, pa.string()),
        pa.array([None] * count, pa.string()),
    ]
    rows = pa.record_batch(columns, names=["__row", "id", "text", "metadata"])
    return Batch(bytes(16), "", 0, count, 0, 0, rows, no_verdicts())
