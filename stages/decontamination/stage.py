"""The stage that filters texts in which an item of a test suite stands, or tags them with the score.

Finds the items of an index in texts and scores them, as SIMPLE of allenai/decon does. At an anchor the search goes
both ways along the text, until more than MISSES_MAX words in a row begin no gram of the item. Of the grams that it
met, the weightiest row in the question's own order counts: its share of the weight of all is the question's score.
Answer and passage are looked for beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stages.decontamination.index import SHORT_ANSWER_WORDS, SuiteIndex, make_index, open_index
from headrace.stages.decontamination.suites import Item, Suite
from headrace.stages.decontamination.units import ANSWER_GRAM, GRAM, hash_units, read_units, room_for
from headrace.stages.runtime import Batch, Transform, text_of
from headrace.stages.text import ONE_WORD, Numbers, Rule, drop, longest, tag, text_bytes
from headrace.stages.text.machine import compiled, entry, prepared

MISSES_MAX: Final = 11
#: An item of so many words must be there as a whole; one of PLAIN_WORDS needs no more than the threshold.
WHOLE_WORDS: Final = 20
PLAIN_WORDS: Final = 50
#: A question of so many words counts without its answer too (the 8-grams of Chowdhery et al. 2022).
ALONE_WORDS: Final = 8
#: A question that is there by less is not looked at further.
QUESTION_MIN: Final = 0.5
#: Words beside the question in which a short answer must stand; and at least for a long one, and a passage.
SHORT_WINDOW: Final = 50
LONG_WINDOW: Final = 100
#: What question, answer and passage weigh, by which of the last two an item has.
_ANSWER_ONLY, _PASSAGE_ONLY, _BOTH = (0.75, 0.25, 0.0), (0.85, 0.0, 0.15), (0.7, 0.2, 0.1)
_EPSILON: Final = 1e-9
_ONE, _SIX, _LAST = np.uint64(1), np.uint64(6), np.uint64(63)


def needed(words: Any, threshold: float) -> Numbers:
    """The score that contamination takes: 1 for WHOLE_WORDS and less, `threshold` from PLAIN_WORDS on."""
    share = np.clip((np.asarray(words, np.float64) - WHOLE_WORDS) / (PLAIN_WORDS - WHOLE_WORDS), 0.0, 1.0)
    return np.asarray(1.0 - share * (1.0 - threshold) - _EPSILON, np.float64)


def find_items(
    column: pa.Array[Any], index: SuiteIndex, threshold: float
) -> tuple[Numbers, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """For each of `n` texts the best score, the words that it is held against (`needed`), and the item; -1: none."""
    data, offsets = text_bytes(column)
    count = len(column)
    scores, words, items = np.zeros(count), np.zeros(count, np.int32), np.full(count, -1, np.int32)
    arrays = index.arrays
    if not count or not index.items:
        return scores, words, items
    spans = int(arrays["span"].max())
    marks = max(int(np.diff(arrays[name]).max()) for name in ("answers_first", "passages_first"))
    _search(
        data, offsets, *room_for(longest(offsets)),
        np.zeros(index.items, np.int64), np.empty(spans + 1), np.zeros(max(1, marks), np.int64), threshold,
        arrays["words"], arrays["span"], arrays["total"],
        arrays["grams_first"], arrays["grams"], arrays["places"], arrays["weights"],
        arrays["answers_first"], arrays["answers"], arrays["answer_size"],
        arrays["passages_first"], arrays["passages"],
        arrays["filter"], arrays["slots"], arrays["slot_first"], arrays["holders"],
        scores, words, items,
    )  # fmt: skip
    return scores, words, items


@compiled
def _needed(words: int, threshold: float) -> float:
    share = min(1.0, max(0.0, (words - WHOLE_WORDS) / (PLAIN_WORDS - WHOLE_WORDS)))
    return 1.0 - share * (1.0 - threshold) - _EPSILON


@compiled
def _slot_of(key: Any, bits: Any, shift: Any, slots: Any) -> Any:
    """Where a gram stands in the table of anchors; -1 for one that is none."""
    bit = key >> shift
    if not bits[bit >> _SIX] >> (bit & _LAST) & _ONE:
        return -1
    mask = np.uint64(len(slots) - 1)
    slot = key & mask
    while slots[slot] != 0 and slots[slot] != key:
        slot = (slot + _ONE) & mask
    return np.int64(slot) if slots[slot] != 0 else -1


@compiled
def _place_of(hashes: Any, first: int, end: int, wanted: Any) -> int:
    """Where a hash stands among sorted ones; -1 where it does not."""
    low, high = first, end
    while low < high:
        middle = (low + high) >> 1
        if hashes[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < end and hashes[low] == wanted else -1


@compiled
def _most_before(best: Any, place: Any) -> float:
    """The greatest weight at a place before this one: `best` is a tree of prefixes (Fenwick 1994)."""
    most = 0.0
    while place > 0:
        most = max(most, best[place])
        place &= place - 1
    return most


@compiled
def _put(best: Any, place: Any, span: int, weight: float) -> None:
    """Note a weight at a place."""
    place += 1
    while place <= span:
        best[place] = max(best[place], weight)
        place += place & -place


@compiled
def _follow(
    found: Any, ready: int, at: int, hashes: Any, places: Any, weights: Any, first: int, end: int, span: int, best: Any
) -> tuple[int, int, float]:
    """The first and the last word of what is met around word `at`, and the weight of the best row in order."""
    low, misses, word = at, 0, at - 1
    while word >= 0 and misses <= MISSES_MAX:
        if _place_of(hashes, first, end, found[word]) >= 0:
            low, misses = word, 0
        else:
            misses += 1
        word -= 1
    for node in range(span + 1):
        best[node] = 0.0
    high, misses, word, most = low, 0, low, 0.0
    while word < ready and misses <= MISSES_MAX:
        gram = _place_of(hashes, first, end, found[word])
        if gram >= 0:
            high, misses = word, 0
            weight, place = np.float64(weights[gram]), np.int64(places[gram])
            weight += _most_before(best, place)
            _put(best, place, span, weight)
            most = max(most, weight)
        else:
            misses += 1
        word += 1
    return low, high, most


@compiled
def _answer_share(
    units: Any, count: int, starts: Any, words: int, low: int, high: int, window: int,
    hashes: Any, first: int, end: int, size: int, whole: bool, marks: Any, mark: int,
) -> float:  # fmt: skip
    """The share of an answer's grams that begin beside the words `[low, high)`; a whole one ends where a word does."""
    met = 0
    for word in range(max(0, low - window), min(words, high + window)):
        if (low <= word < high) or starts[word] + size > count:
            continue
        if whole:
            behind = word + 1
            while behind < words and starts[behind] < starts[word] + size:
                behind += 1
            if (starts[behind] if behind < words else count) != starts[word] + size:
                continue
        place = _place_of(hashes, first, end, hash_units(units, starts[word], size))
        if place >= 0 and marks[place - first] != mark:
            marks[place - first] = mark
            met += 1
    return met / (end - first)


@compiled
def _passage_share(
    found: Any, ready: int, low: int, high: int, window: int, hashes: Any, first: int, end: int, marks: Any, mark: int
) -> float:
    met = 0
    for word in range(max(0, low - window), min(ready, high + window)):
        if low <= word < high:
            continue
        place = _place_of(hashes, first, end, found[word])
        if place >= 0 and marks[place - first] != mark:
            marks[place - first] = mark
            met += 1
    return met / (end - first)


@compiled
def _weigh(question: float, answer: float, passage: float, words: int) -> float:
    """The score of an item; `answer` and `passage` are negative where it has none.

    The fewer words a question has, the less it says: below WHOLE_WORDS its weight goes to what stands beside it.
    """
    if answer < 0.0 and passage < 0.0:
        return question
    weights = _BOTH if answer >= 0.0 and passage >= 0.0 else _ANSWER_ONLY if answer >= 0.0 else _PASSAGE_ONLY
    own = weights[0] * min(1.0, words / WHOLE_WORDS)
    beside = weights[1] * max(answer, 0.0) + weights[2] * max(passage, 0.0)
    return own * question + (1.0 - own) * beside / (weights[1] + weights[2])


@entry(
    "(u8[], i64[], u32[], i32[], u64[], i64[], f64[], i64[], f64, i32[,], i32[], f64[], i64[], u64[], i32[], f32[], "
    "i64[], u64[], i32[], i64[], u64[], u64[], u64[], i64[,], i32[], f64[], i32[], i32[])"
)
def _search(
    data: Any, offsets: Any, units: Any, starts: Any, found: Any, reached: Any, best: Any, marks: Any, threshold: float,
    item_words: Any, spans: Any, totals: Any,
    grams_first: Any, grams: Any, places: Any, weights: Any,
    answers_first: Any, answers: Any, answer_size: Any,
    passages_first: Any, passages: Any,
    bits: Any, slots: Any, slot_first: Any, holders: Any,
    scores: Any, score_words: Any, items: Any,
) -> None:  # fmt: skip
    shift, wide = np.uint64(64), len(bits) * 64
    while wide > 1:
        shift -= _ONE
        wide >>= 1
    mark = 0
    for text in range(len(offsets) - 1):
        count, words, ready = read_units(data, offsets[text], offsets[text + 1], False, units, starts, found)
        # An item is reached up to a word of this text; what was reached in an earlier text is less.
        base = np.int64(text + 1) << 32
        margin, most = -2.0, 0.0
        for at in range(ready):
            slot = _slot_of(found[at], bits, shift, slots)
            if slot < 0:
                continue
            for holder in range(slot_first[slot, 0], slot_first[slot, 1]):
                item = holders[holder]
                if reached[item] > base + at:
                    continue
                first, end = grams_first[item], grams_first[item + 1]
                low, high, weight = _follow(found, ready, at, grams, places, weights, first, end, spans[item], best)
                reached[item] = base + max(high, at) + 1
                question, asked, answered = weight / totals[item], item_words[item, 0], item_words[item, 1]
                if question < QUESTION_MIN or (asked <= WHOLE_WORDS and question < 1.0 - _EPSILON):
                    continue
                behind = high
                while behind < words and starts[behind] < starts[high] + GRAM:
                    behind += 1
                answer = passage = -1.0
                first, end = answers_first[item], answers_first[item + 1]
                if end > first:
                    mark += 1
                    whole = answered <= SHORT_ANSWER_WORDS or answer_size[item] < ANSWER_GRAM
                    window = SHORT_WINDOW if whole else max(LONG_WINDOW, 2 * answered)
                    answer = _answer_share(
                        units, count, starts, words, low, behind, window,
                        answers, first, end, answer_size[item], whole, marks, mark,
                    )  # fmt: skip
                first, end = passages_first[item], passages_first[item + 1]
                if end > first:
                    mark += 1
                    window = max(LONG_WINDOW, 2 * item_words[item, 2])
                    passage = _passage_share(found, ready, low, behind, window, passages, first, end, marks, mark)
                weighed = score = _weigh(question, answer, passage, asked)
                held = asked + answered
                if asked >= ALONE_WORDS and question - _needed(asked, threshold) > score - _needed(held, threshold):
                    score, held = question, asked
                above = score - _needed(held, threshold)
                if above > margin + _EPSILON or (above > margin - _EPSILON and weighed > most + _EPSILON):
                    margin, most = above, weighed
                    scores[text], score_words[text], items[text] = score, held, item


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
