"""What the steps of spikes and some other steps read, with what the datasets know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.loader import ReadPiece, Trace
from headrace.loader.blame.core.losses import Spike

#: Steps of spikes that are read, of one spike and of all, and other steps.
STEPS_A_SPIKE_MAX = 4
SPIKES_MAX = 64
OTHERS_MAX = 64
#: Rows of a step that are looked at, spread over its ranks.
ROWS_MAX = 256
#: Steps around a spike that are none of the others.
APART = 3


@dataclass(frozen=True, slots=True, eq=False)
class ReadDocument:
    """A document of which a step read a piece: the tokens of that piece [k], and the facts of its row."""

    spike: int
    step: int
    piece: ReadPiece
    tokens: NDArray[Any]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The documents of spikes and of other steps; `steps` of each spike that were read, and which others."""

    documents: tuple[ReadDocument, ...]
    steps: tuple[tuple[int, ...], ...]
    others: tuple[int, ...]
    notes: tuple[str, ...]


def collect(trace: Trace, spikes: Sequence[Spike], known: Sequence[int], before: int) -> Evidence:
    """Read the steps of the highest spikes, with `before` steps before each, and others of the `known` steps.

    Raises IndexError where no spike lies among the steps of the state.
    """
    inside = [spike for spike in spikes if spike.first < trace.steps]
    notes = []
    if len(inside) < len(spikes):
        notes.append(
            f"{len(spikes) - len(inside)} spikes come after the checkpoint, which ends before step {trace.steps}"
        )
    if not inside:
        raise IndexError(
            f"the checkpoint ends before step {trace.steps}, and all {len(spikes)} spikes come later: give a later "
            "checkpoint, or --offset if the losses count their steps from another one"
        )
    highest = sorted(sorted(inside, key=lambda spike: -spike.height)[:SPIKES_MAX], key=lambda spike: spike.first)
    if len(highest) < len(inside):
        notes.append(f"{len(inside)} spikes: the {SPIKES_MAX} highest were looked into")
    steps = [_steps(spike, before, trace.steps) for spike in highest]
    others = _others(inside, known, trace.steps, before)
    found: list[ReadDocument] = []
    for number, numbers in [*enumerate(steps), (-1, others)]:
        for step in numbers:
            found += _read(trace, number, step)
    return Evidence(tuple(found), tuple(map(tuple, steps)), tuple(others), tuple(notes))


def _steps(spike: Spike, before: int, end: int) -> list[int]:
    first = max(0, spike.first - before)
    return list(range(first, min(spike.last + 1, end, spike.first + STEPS_A_SPIKE_MAX)))


def _others(spikes: Sequence[Spike], known: Sequence[int], end: int, before: int) -> list[int]:
    """Steps that have a usual loss, spread over all."""
    steps = np.array(known, np.int64)
    steps = steps[(steps >= 0) & (steps < end)]
    near = np.zeros(steps.size, np.bool_)
    for spike in spikes:
        near |= (steps >= spike.first - before - APART) & (steps <= spike.last + APART)
    steps = steps[~near]
    if steps.size <= OTHERS_MAX:
        return [int(step) for step in steps]
    return [int(steps[at]) for at in np.linspace(0, steps.size - 1, OTHERS_MAX).astype(np.int64)]


def _read(trace: Trace, spike: int, step: int) -> list[ReadDocument]:
    pieces = trace.pieces_of(step, ROWS_MAX)
    return [
        ReadDocument(spike, step, piece, tokens, facts)
        for piece, tokens, facts in zip(pieces, trace.tokens_of(pieces), trace.facts_of(pieces), strict=True)
    ]
