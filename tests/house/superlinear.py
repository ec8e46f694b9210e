"""Finds out whether a regular expression takes more than linear time: each of its repetitions is given much to repeat.

From the parsed expression come texts that lead into each repetition (those of its alternatives that stand before it),
repeat one or more of the texts that its body matches, and end so that no match is found. What backtracks over them
takes a thousand times as long as what does not, so that the time of a processor tells the two apart on any machine.
"""

from __future__ import annotations

import itertools
import re
import re._constants as names  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: Characters of a pumped text at most: enough for a square to take seconds, and a line less than a millisecond.
PUMPED = 32_000
#: And at first, and its growth: what doubles with each character takes a second before it takes a year.
PUMPED_FIRST, GROWTH = 18, 1.12
#: Seconds of processor time that no linear expression takes for it.
SECONDS_MAX = 0.1
#: How often one must take longer to be called slow.
TIMES = 3
#: Texts a part of an expression is sampled by; repetitions of one that are not bounded.
SAMPLES = 3
_MANY = 16
#: Behind a pumped text, so that what would match does not.
_ENDS = ("\0", "!\0", "\n\0", "x", "")

_CATEGORIES = {
    names.CATEGORY_DIGIT: "1",
    names.CATEGORY_NOT_DIGIT: "a",
    names.CATEGORY_SPACE: " \n",
    names.CATEGORY_NOT_SPACE: "a",
    names.CATEGORY_WORD: "a1",
    names.CATEGORY_NOT_WORD: " -",
}


def superlinear(pattern: re.Pattern[Any], methods: Iterable[str] = ("search",)) -> str:
    """The beginning of a text for which one of the methods is, as Python writes it; empty where none was found."""
    attempts = [getattr(pattern, name) for name in methods]
    for before, kernel, end in kernels(pattern):
        size = float(PUMPED_FIRST)
        while size < PUMPED:
            size = min(size * GROWTH if size < 100 else size * 4, PUMPED)
            text = before + kernel * max(1, int(size) // len(kernel)) + end
            given: Any = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
            if any(_is_long(attempt, given) for attempt in attempts):
                return repr(text[:60])
    return ""


def _is_long(attempt: Callable[[Any], object], given: Any) -> bool:
    """Whether it takes too long each time: once it may be the machine, which others use too."""
    for _ in range(TIMES):
        begun = time.thread_time()
        attempt(given)
        if time.thread_time() - begun <= SECONDS_MAX:
            return False
    return True


def kernels(pattern: re.Pattern[Any]) -> list[tuple[str, str, str]]:
    """What leads into the repetitions of the pattern, what they repeat, and what follows so that nothing matches."""
    source: Any = pattern.pattern
    tree = parser.parse(source.decode("latin-1") if isinstance(source, bytes) else source, pattern.flags & ~re.LOCALE)
    found: dict[tuple[str, str, str], None] = {}
    for lead, bodies in _repetitions(list(tree), [""]):
        bodies = sorted({body for body in bodies if body}) or [" "]
        several = [*bodies, *("".join(pair) for pair in itertools.permutations(bodies[:SAMPLES], 2))]
        found |= dict.fromkeys(itertools.product(lead[:SAMPLES], several[: 2 * SAMPLES], _ENDS))
        # A search that begins anew at each of its leads.
        found |= dict.fromkeys(itertools.product([""], filter(None, lead[:SAMPLES]), _ENDS))
    return list(found)


def _repetitions(items: list[Any], leads: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """What leads into each long repetition, and texts of its body."""
    for at, (kind, value) in enumerate(items):
        for inner in _inner(kind, value):
            yield from _repetitions(inner, leads)
        if kind in (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT) and value[1] >= _MANY:
            rest = _texts(items[at + 1 :])
            bodies = _texts(list(value[2]))
            yield leads, [*bodies, *(body + more for body in bodies for more in rest)][: 3 * SAMPLES]
        leads = [lead + text for lead in leads for text in _texts([(kind, value)])][: 2 * SAMPLES]


def _inner(kind: Any, value: Any) -> list[list[Any]]:
    if kind in (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT):
        return [list(value[2])]
    if kind is names.SUBPATTERN:
        return [list(value[-1])]
    if kind is names.ATOMIC_GROUP:
        return [list(value)]
    if kind is names.BRANCH:
        return [list(branch) for branch in value[1]]
    return []


def _texts(items: list[Any]) -> list[str]:
    """Some texts that these parts match one after the other, what they only look at left out."""
    found = [""]
    for kind, value in items:
        found = [text + more for text in found for more in _one(kind, value)][: 2 * SAMPLES]
    return found


def _one(kind: Any, value: Any) -> list[str]:
    if kind is names.LITERAL:
        return [chr(value)]
    if kind is names.NOT_LITERAL:
        return ["b" if value == ord("a") else "a"]
    if kind is names.ANY:
        return ["a", " "]
    if kind is names.IN:
        return _members(value)[: 2 * SAMPLES]
    if kind in (names.MAX_REPEAT, names.MIN_REPEAT, names.POSSESSIVE_REPEAT):
        once = _texts(list(value[2]))
        least = ["".join([text] * value[0]) for text in once]
        return list(dict.fromkeys([*least, *(text * max(1, value[0]) for text in once)]))
    if kind is names.BRANCH:
        return [text for branch in value[1] for text in _texts(list(branch))[:SAMPLES]]
    inner = _inner(kind, value)
    return _texts(inner[0]) if inner else [""]


def _members(value: Any) -> list[str]:
    """Characters of a set; some that are not in it, where it is a set of what is not."""
    chosen: list[str] = []
    for kind, item in value:
        if kind is names.LITERAL:
            chosen.append(chr(item))
        elif kind is names.RANGE:
            chosen.append(chr(item[0]))
        elif kind is names.CATEGORY:
            chosen += _CATEGORIES.get(item, "a")
    if value and value[0][0] is names.NEGATE:
        return [text for text in ("a", "<", " ", "-", "\n", "1") if text not in chosen]
    return chosen
