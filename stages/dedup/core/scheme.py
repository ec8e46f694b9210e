"""What makes two records duplicates: the scheme by which keys are made, and its hash.

By URL, those with the same normal form (`headrace.stages.dedup.core.urls`); a record without a URL has no key. By
text, two records with the same key of the whole text are duplicates. Where they share a band, the judge decides
(`headrace.stages.dedup.judge`), or without a judge the band. One key is of the whole text; with `bands` above 0 there
is one more a band: of `rows` MinHash values each, so that two texts whose sets of shingles have the Jaccard similarity
s share a band with probability 1 - (1 - s^rows)^bands. Prior art: Broder 1997 (MinHash), Indyk and Motwani 1998
(bands), Lee et al. 2022 ("Deduplicating training data makes language models better"), Penedo et al. 2024
(5-grams of words, 14 bands of 8 rows). A judge may be given more candidates: 20 bands of 4 rows over 3-grams find 99 %
of pairs of similarity 0.68.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import xxhash

from headrace.stages.dedup.core.urls import URL_RULE

#: Behind any change in how keys follow from text, so that no index is loaded with keys of another making.
KEYS_VERSION = 2
#: The judge's rule: behind any change in how it decides.
RULE = 1
#: The default n-gram, bands and rows with a judge, and without.
DEFAULTS = {True: (3, 20, 4), False: (5, 14, 8)}
#: 64-bit words of the key of the whole text.
EXACT_WORDS = 2
#: The hidden column of keys: `Scheme.words` words of 64 bits a record, the lowest byte first.
KEYS = "__keys"
#: The hidden column of sketches, where a judge compares records.
SKETCH = "__sketch"


def numbered_column(name: str, number: int) -> str:
    """The column of the keys or sketches of dedup stage `number`, counted from 0 in the order of the pipeline."""
    return f"{name}_{number}" if number else name


#: MinHash values that a scheme may have.
PERMUTATIONS_MAX = 1024
_STEPS = 200
#: Why a record is a duplicate. Behind `SIMILAR` stand the judge's score and rule.
EQUAL, EQUAL_URL, SIMILAR = "equal text", "equal URL", "similar text"
#: How the target of the stage that makes keys ends.
KEY_MAKER = "stages.dedup.stage:KeyMaker"


@dataclass(frozen=True, slots=True)
class Scheme:
    """How keys are made. `bands` 0: of the whole text alone. `rule`: that of the judge; 0: a shared band decides.

    `url`: the rule by which the key is that of a URL; 0: it is that of the text.
    """

    ngram: int = 5
    bands: int = 14
    rows: int = 8
    rule: int = 0
    url: int = 0

    def __post_init__(self) -> None:
        if self.rule not in (0, RULE):
            raise ValueError(f"rule {self.rule} of the judge is unknown: this Headrace has {RULE}")
        if self.url not in (0, URL_RULE) or (self.url and self.bands):
            raise ValueError(f"rule {self.url} of URLs with {self.bands} bands: this Headrace has {URL_RULE} without")

    @property
    def judged(self) -> bool:
        """Whether a judge compares what shares a band."""
        return bool(self.rule and self.bands)

    @property
    def words(self) -> int:
        """64-bit words of a record's keys."""
        return EXACT_WORDS + self.bands

    def identity(self) -> str:
        """The hash of the scheme: keys with another one have nothing to do with these."""
        facts = {"keys": KEYS_VERSION, **(asdict(self) if self.bands else {"bands": 0})}
        if not self.judged:
            facts.pop("rule", None)
        facts.pop("url", None)
        facts |= {"url": self.url} if self.url else {}
        return xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())

    def reason(self, *, near: bool, score: int) -> str:
        """Why a record is a duplicate; `score` is the judge's, in thousandths, and -1 without one."""
        if not near:
            return EQUAL_URL if self.url else EQUAL
        return SIMILAR if score < 0 else f"{SIMILAR}: score {score / 1000:.3f}, rule {self.rule}"

    def share_of(self, similarity: float) -> float:
        """The probability that two texts of this Jaccard similarity share a band."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands


def scheme_of(parameters: Mapping[str, Any]) -> Scheme:
    """The scheme of a stage with these parameters. Raises ValueError for a rule that is unknown."""
    facts = ("ngram", "bands", "rows", "rule", "url")
    return Scheme(**{name: parameters[name] for name in facts if name in parameters})


@lru_cache
def best_bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows, of at most so many MinHash values, that err least about a threshold of similarity.

    The error is the area between the step at `threshold` and `Scheme.share_of`, on both sides of it alike.
    """
    steps = [(step + 0.5) / _STEPS for step in range(_STEPS)]

    def error(scheme: Scheme) -> float:
        shares = ((point, scheme.share_of(point)) for point in steps)
        return sum(share if point < threshold else 1.0 - share for point, share in shares)

    choices = [
        Scheme(bands=bands, rows=rows) for rows in range(1, permutations + 1) for bands in (permutations // rows,)
    ]
    best = min(choices, key=error)
    return best.bands, best.rows
