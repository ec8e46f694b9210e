"""What the documents of spikes have more often than those of other steps. Pure.

For each property the documents with and without it, of the spikes and of other steps, are a table of four counts. How
far these are from chance is the log-likelihood ratio (Dunning, "Accurate Methods for the Statistics of Surprise and
Coincidence", 1993), and counts only where the share among the spikes is the larger one. A cause that stands in each of
the spikes is worth more than one that stands in a few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
