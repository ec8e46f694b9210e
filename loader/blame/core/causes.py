"""What the documents of spikes have more often than others, and what a model finds hard or odd in them. Pure.

For each property the documents with and without it, of the spikes and of other steps, are a table of four counts. How
far these are from chance is the log-likelihood ratio (Dunning, "Accurate Methods for the Statistics of Surprise and
Coincidence", 1993), and counts only where the share among the spikes is the larger one. A cause that stands in each
of the spikes is worth more than one that stands in a few.

All are of tokens alone, so that they need no tokenizer: whether tokens follow each other as elsewhere, whether they
are those of elsewhere, and whether the same passage is in another document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Kinds of causes. Where two explain the spikes equally well, what stands first here is what a person can act on.
KINDS = ("source", "round", "recipe", "folder", "property", "edge", "dataset")
#: Below it a difference is chance: of one property in a thousand, and more with the number of those that were tried.
CHANCE = 10.8
#: Causes that explain nearly as much as the best.
EQUAL = 0.9
#: Causes of a kind that are given, at most.
CAUSES_MAX = 20


@dataclass(frozen=True, slots=True)
class ProfiledRead:
    """A document that was read: at which spike (-1: at another step), and its properties as (kind, value)."""

    spike: int
    properties: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Cause:
    """A property of `hits` of `among` documents of the spikes, in `spikes` of them, and of `usual` of `rest` others."""

    kind: str
    value: str
    score: float
    hits: int
    among: int
    usual: int
    rest: int
    spikes: int

    @property
    def times(self) -> float:
        """How many times as often as at other steps; half a document is added to what nobody has."""
        return (self.hits / self.among) / (max(self.usual, 0.5) / max(self.rest, 1))


def rank_causes(documents: Sequence[ProfiledRead]) -> list[Cause]:
    """The causes, the most likely first; empty where nothing stands out from chance."""
    odd = [one for one in documents if one.spike >= 0]
    among, rest = len(odd), len(documents) - len(odd)
    spikes = len({one.spike for one in odd})
    if not among or not rest:
        return []
    counts: dict[tuple[str, str], list[int]] = {}
    where: dict[tuple[str, str], set[int]] = {}
    for one in documents:
        for each in one.properties:
            counts.setdefault(each, [0, 0])[0 if one.spike >= 0 else 1] += 1
            if one.spike >= 0:
                where.setdefault(each, set()).add(one.spike)
    limit = CHANCE + 2 * math.log(max(len(counts), 1))
    found: list[Cause] = []
    for (kind, value), (hits, usual) in counts.items():
        ratio = surprise(hits, among, usual, rest)
        if ratio > limit:
            covered = len(where[kind, value])
            found.append(Cause(kind, value, ratio * covered / spikes, hits, among, usual, rest, covered))
    found.sort(key=lambda cause: (-cause.score, KINDS.index(cause.kind), cause.value))
    best = [cause for cause in found if cause.score >= EQUAL * found[0].score]
    best.sort(key=lambda cause: (KINDS.index(cause.kind), -cause.score, cause.value))
    return [*best, *found[len(best) :]][:CAUSES_MAX]


def surprise(hits: int, among: int, usual: int, rest: int) -> float:
    """The log-likelihood ratio of two shares, 0 where the first is not the larger one."""
    if hits * rest <= usual * among:
        return 0.0
    total, both = among + rest, hits + usual

    def part(count: int, row: int, column: int) -> float:
        return count * math.log(count * total / (row * column)) if count else 0.0

    return 2 * (
        part(hits, among, both)
        + part(among - hits, among, total - both)
        + part(usual, rest, both)
        + part(rest - usual, rest, total - both)
    )


Tokens = NDArray[Any]
#: The names of the properties.
ORDER = "tokens in an order that is not that of the rest"
WORDS = "tokens that the rest has not"
REPEATED = "the same passage in several documents"
#: Tokens that say nothing of an order: a document has at least as many that are looked at, and at most.
TOKENS_MIN, TOKENS_MAX = 24, 2048
#: Tokens of a passage, and how many of a document's passages are compared: those of the smallest hashes.
PASSAGE_TOKENS = 16
PASSAGES = 8
#: A document that is so many standard deviations below the rest has the property.
BELOW = 4.0
SIGMA = 1.4826
#: The least by which shares are taken to vary.
VARIATION_MIN = 0.02
_MIX = np.uint64(0x9E3779B97F4A7C15)
_BASE = np.uint64(1099511628211)


def traits(usual: Sequence[Tokens], odd: Sequence[Tokens]) -> list[frozenset[str]]:
    """The properties of each document, those of other steps (`usual`) first, then those of the spikes (`odd`).

    A document that was read several times is to be given once: it would be in several.
    """
    every = [np.asarray(one[:TOKENS_MAX], np.uint64) for one in (*usual, *odd)]
    found: list[set[str]] = [set() for _ in every]
    known = every[: len(usual)]
    words = _seen_elsewhere([_mixed(one) for one in every], len(usual))
    pairs = _seen_elsewhere([_mixed(one[:-1] * _BASE + one[1:]) for one in every], len(usual))
    # an order counts only among tokens that are those of the rest
    orders = pairs / np.maximum(words, 0.05)
    for name, values in ((ORDER, orders), (WORDS, words)):
        rest = np.array([value for value, one in zip(values, known, strict=False) if one.size >= TOKENS_MIN])
        if rest.size < 8:
            continue
        middle = float(np.median(rest))
        limit = middle - BELOW * max(SIGMA * float(np.median(np.abs(rest - middle))), VARIATION_MIN)
        for at, one in enumerate(every):
            if one.size >= TOKENS_MIN and values[at] < limit:
                found[at].add(name)
    for at in _repeated(every):
        found[at].add(REPEATED)
    # strange tokens stand in a strange order: that says no more
    return [frozenset(one - {ORDER} if WORDS in one else one) for one in found]


def _seen_elsewhere(hashes: Sequence[NDArray[np.uint64]], usual: int) -> NDArray[np.float64]:
    """The share of each document's hashes that another of the first `usual` documents has [documents]."""
    parts = [np.unique(one) for one in hashes[:usual]]
    table, counts = np.unique(np.concatenate([np.zeros(0, np.uint64), *parts]), return_counts=True)
    shares = np.zeros(len(hashes))
    for number, one in enumerate(hashes):
        if not one.size or not table.size:
            continue
        at = np.minimum(np.searchsorted(table, one), table.size - 1)
        # a document's own do not speak for it
        seen = (table[at] == one) & (counts[at] > (1 if number < usual else 0))
        shares[number] = float(seen.mean())
    return shares


def _repeated(every: Sequence[NDArray[np.uint64]]) -> set[int]:
    """The documents that share a passage with another one."""
    first: dict[int, int] = {}
    found: set[int] = set()
    for number, one in enumerate(every):
        if one.size < PASSAGE_TOKENS:
            continue
        size = one.size - PASSAGE_TOKENS + 1
        hashes = np.zeros(size, np.uint64)
        for at in range(PASSAGE_TOKENS):
            hashes = hashes * _BASE + one[at : at + size] + np.uint64(1)
        for value in np.unique(_mixed(hashes))[:PASSAGES].tolist():
            other = first.setdefault(value, number)
            if other != number:
                found |= {other, number}
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (values + np.uint64(1)) * _MIX
    mixed ^= mixed >> np.uint64(29)
    return mixed * _BASE
