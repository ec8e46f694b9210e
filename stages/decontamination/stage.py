"""The stage that filters texts in which an item of a test suite stands, or tags them with the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.stages.decontamination.index import make_index, open_index
from headrace.stages.decontamination.search import find_items, needed
from headrace.stages.decontamination.suites import Item, Suite
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import ONE_WORD, Rule, drop, tag
from headrace.stages.text.machine import prepared

#: The class of the reason; suite, item and score follow.
CONTAMINATED = "contaminated"


class Decontaminate(Transform):
    """Filters texts by the best score of an item of the suites in them."""

    merges = True
    judges = True

    def __init__(self, name: str, suites: Sequence[Mapping[str, Any]], threshold: float, tag: bool = False) -> None:
        self.name = name
        self.threshold = threshold
        self.tag = tag
        self._names = [table["name"] for table in suites]
        compile_search()
        self.index = open_index(name, suites)

    def process(self, batch: Batch) -> Batch:
        """The batch less the contaminated texts; or all of it, tagged. Both count the contaminated by suite."""
        scores = self.score(text_of(batch, self.name))
        for suite in np.asarray(scores["suite"], np.str_)[self.over(scores)].tolist():
            batch = batch.counted(self.name, suite, 1)
        return tag(batch, self.name, scores) if self.tag else drop(batch, self.name, self.rules(scores))

    def score(self, texts: pa.Array[Any]) -> dict[str, Any]:
        """Of each text the best score, the words that it is held against, and the suite and number of the item."""
        found, words, items = find_items(texts, self.index, self.threshold)
        suites, numbers = self.index.arrays["suite"], self.index.arrays["number"]
        held = items.tolist()
        return {
            "score": found,
            "words": words,
            "suite": [self._names[suites[item]] if item >= 0 else "" for item in held],
            "item": np.array([numbers[item] if item >= 0 else -1 for item in held], np.int32),
        }

    def rules(self, scores: dict[str, Any]) -> list[Rule]:
        """A reason for each item and score, and which texts with these scores it holds for."""
        reasons: dict[str, list[int]] = {}
        for text in np.flatnonzero(self.over(scores)).tolist():
            item = f"{scores['suite'][text]} item {scores['item'][text]} score {scores['score'][text]:.2f}"
            reasons.setdefault(f"{CONTAMINATED}: {item}", []).append(text)
        places = np.arange(len(scores["score"]))
        return [(reason, np.isin(places, texts)) for reason, texts in reasons.items()] or [(CONTAMINATED, places < 0)]

    def facts(self) -> Mapping[str, str]:
        """How many items are looked for."""
        left = f", {self.index.left_out:,} left out" if self.index.left_out else ""
        return {"items": f"{self.index.items:,} of {', '.join(self._names)}{left}"}

    def over(self, scores: dict[str, Any]) -> Any:
        """Which texts with these scores are contaminated."""
        return np.asarray(scores["score"], np.float64) >= needed(scores["words"], self.threshold)


def compile_search() -> None:
    """Compile what is not in the cache."""
    with prepared("decontamination"):
        item = Item(
            "How many words does a question need, so that it has grams enough?", (), "Twelve", "Words are read."
        )
        find_items(ONE_WORD.cast(pa.string()), make_index([Suite("suite", (item,), "")]), 0.8)
