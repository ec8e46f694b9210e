"""Rounds: a run that is over before all that was planned has been done to it is followed by another, on a fresh output.

How many commits a run has is up to the machine: on a fast one a single ledger entry closes what are ten on a slow one.
So times, commits and firings are counted on from round to round, until nothing of the schedule is left. Each round's
dataset is judged by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.chaos.live.checks import Finding, numb_ways
from headrace.chaos.live.conductor import Outcome
from headrace.chaos.live.scenario import NETWORK, Planned


def left_over(outcome: Outcome) -> tuple[Planned, ...]:
    """What another round is for: firings that still wait, and those of the network that met nothing, once more each."""
    often = [(item.planned.fault, item.planned.nth) for item in outcome.fired]
    numb = (
        item.planned
        for item in outcome.fired
        if item.planned.kind in NETWORK
        and often.count((item.planned.fault, item.planned.nth)) == 1
        and numb_ways(item.planned.target, item.struck)
    )
    return (*outcome.waiting, *numb)


def joined(earlier: Outcome, later: Outcome) -> Outcome:
    """Both as one: what was done, and what is left after the later one."""
    return replace(
        later,
        fired=(*earlier.fired, *later.fired),
        starts=(*earlier.starts, *later.starts),
        commits=(*earlier.commits, *later.commits),
        left=(*earlier.left, *later.left),
        seconds=earlier.seconds + later.seconds,
        problem=earlier.problem or later.problem,
        epochs=max(earlier.epochs, later.epochs),
    )


def of_all_rounds(rounds: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The answers to the same questions in each round as one answer each: no if it was no once."""
    if len(rounds) == 1:
        return list(rounds[0])
    by_name: dict[str, list[tuple[int, Finding]]] = {}
    for number, findings in enumerate(rounds, 1):
        for finding in findings:
            by_name.setdefault(finding.name, []).append((number, finding))
    return [_of_rounds(name, answers) for name, answers in by_name.items()]


def _of_rounds(name: str, answers: Sequence[tuple[int, Finding]]) -> Finding:
    passed = {finding.passed for _, finding in answers}
    said: dict[str, list[int]] = {}
    for number, finding in answers:
        said.setdefault(finding.said, []).append(number)
    return Finding(
        name,
        False if False in passed else None if None in passed else True,
        "; ".join(f"{_named(numbers)}: {words}" for words, numbers in said.items()),
        tuple(f"round {number}: {detail}" for number, finding in answers for detail in finding.details),
    )


def _named(numbers: Sequence[int]) -> str:
    """`round 3`, `rounds 1 to 5`, or `rounds 1, 2 and 4`."""
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"round {first}"
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"rounds {first} to {last}"
    return f"rounds {', '.join(map(str, numbers[:-1]))} and {last}"
