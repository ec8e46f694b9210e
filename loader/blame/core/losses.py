"""Losses by step, from a table that a person exported, and the steps whose loss stands out of those around them. Pure.

What is usual at a step is the median of the few losses around it. How far losses are from what is usual is told by
the median of these distances (MAD) in a wider range, so that neither a spike nor the fall of the loss over training
moves either much.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

#: A file of losses: two numbers a step, of some ten million steps.
LOSSES_BYTES_MAX = 1 << 29
#: Rows of it: a line may have four bytes.
LOSSES_ROWS_MAX = 1 << 25
#: Steps are numbers below it.
STEP_MAX = 1 << 53
#: What trainers call the two columns, in the order in which they are looked for.
STEP_NAMES = ("step", "steps", "global_step", "trainer/global_step", "_step", "iteration", "iter")
LOSS_NAMES = ("loss", "train_loss", "train/loss", "training_loss", "lm_loss", "lm loss")
_SEPARATORS = ",;\t"
_MISSING = ("", "null", "none", "na", "n/a")


class LossesError(ValueError):
    """Why a table holds no losses by step, in one line."""


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """`loss` [n] of `step` [n], ascending, each step once; a loss may be NaN or infinite. `notes` say what was odd."""

    step: NDArray[np.int64]
    loss: NDArray[np.float64]
    notes: tuple[str, ...]


def parse_losses(text: str, columns: Sequence[str] = ()) -> Losses:
    """Read CSV with a head. `columns` names step and loss where they are called otherwise. Raises LossesError."""
    head = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=head.count)
    rows = csv.reader(_lines(text.removeprefix("\ufeff")), delimiter=separator)
    try:
        names = [name.strip() for name in next(rows, [])]
        at = _columns(names, columns)
        return _ordered(rows, lambda: rows.line_num, at)
    except csv.Error as error:
        raise LossesError(f"line {rows.line_num}: {error}") from error


def _lines(text: str) -> Iterator[str]:
    """Each line with its end: a file in memory has four bytes for each of its characters."""
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def _columns(names: Sequence[str], asked: Sequence[str]) -> tuple[int, int]:
    if asked:
        missing = [name for name in asked if names.count(name) != 1]
        if missing or len(asked) != 2:
            raise LossesError(f"{(missing or asked)[0]!r} is not one of its columns: {_shown(names)}")
        return names.index(asked[0]), names.index(asked[1])
    found: list[int] = []
    lower = [name.lower() for name in names]
    for what, known in (("steps", STEP_NAMES), ("losses", LOSS_NAMES)):
        name = next((name for name in known if name in lower), None)
        if name is None:
            raise LossesError(
                f"no column of {what}: name two by --columns STEP,LOSS; its first line has {_shown(names)}"
            )
        found.append(lower.index(name))
    return found[0], found[1]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:40]) for name in names[:20]) or "nothing"


def _ordered(rows: Iterator[list[str]], line: Callable[[], int], at: tuple[int, int]) -> Losses:
    steps, losses = array("q"), array("d")
    empty = 0
    for row in rows:
        if len(steps) >= LOSSES_ROWS_MAX:
            raise LossesError(f"it has more than {LOSSES_ROWS_MAX:,} steps: leave some out")
        if not row or all(not cell.strip() for cell in row):
            continue
        if len(row) <= max(at):
            raise LossesError(f"line {line()} has {len(row)} of {max(at) + 1} columns")
        step, loss = row[at[0]].strip(), row[at[1]].strip()
        if loss.lower() in _MISSING or not step:
            empty += 1
            continue
        try:
            number = float(step)
            losses.append(float(loss))
        except ValueError:
            raise LossesError(f"line {line()}: step {step[:40]!r} and loss {loss[:40]!r} are no numbers") from None
        if not 0 <= number < STEP_MAX or number != int(number):
            raise LossesError(f"line {line()}: {step[:40]!r} is no number of a step")
        steps.append(int(number))
    if not steps:
        raise LossesError("it holds no loss")
    at_step, of_step = np.array(steps, np.int64), np.array(losses, np.float64)
    notes = [f"{empty} lines without a loss were left out"] if empty else []
    if (np.diff(at_step) < 0).any():
        notes.append("its steps were not in order and were sorted")
    # of a step that is there twice, as behind a restart, the last one counts
    order = np.argsort(at_step, kind="stable")
    at_step, of_step = at_step[order], of_step[order]
    last = np.append(np.diff(at_step) > 0, True)
    if not last.all():
        notes.append(f"{int((~last).sum())} steps were there before, as behind a restart: the last of each counts")
    at_step, of_step = at_step[last], of_step[last]
    gap = np.diff(at_step)
    if gap.size and (gap > np.median(gap)).any():
        notes.append(f"there are gaps: {int((gap > np.median(gap)).sum())} steps come later than usual")
    odd = int((~np.isfinite(of_step)).sum())
    if odd:
        notes.append(f"{odd} losses are no finite numbers: the first of each run counts as a spike")
    return Losses(at_step, of_step, tuple(notes))


#: Losses before and behind one that say what is usual there, and how much they vary.
AROUND, VARIES_AROUND = 16, 50
#: Fewer losses than this say nothing.
LOSSES_MIN = 20
#: A normal distribution's standard deviation over its MAD.
SIGMA = 1.4826
#: The least share of the usual loss by which losses vary, where a log was rounded or smoothed.
VARIATION_MIN = 1e-3
#: How often what is usual is told again.
ROUNDS = 2
#: Losses that are looked at together.
CHUNK = 1 << 15


@dataclass(frozen=True, slots=True)
class Spike:
    """From step `first` to step `last` the loss stands out; at `peak` it is `loss` where `usual` was to be expected.

    `height` is how many standard deviations it is above; infinite where the loss is no finite number.
    """

    first: int
    last: int
    peak: int
    loss: float
    usual: float
    height: float


@np.errstate(over="ignore", invalid="ignore")
def find_spikes(losses: Losses, height_min: float = 6.0) -> list[Spike]:
    """The spikes, by step. Losses that rise for good are one spike, where they begin. None of too few losses.

    What is too large for a number of the machine on the way is none that stands out.
    """
    finite = np.isfinite(losses.loss)
    step, loss = losses.step[finite], losses.loss[finite]
    if step.size < LOSSES_MIN:
        return _broken(losses, finite)
    usual, varies = _usual(loss)
    heights = (loss - usual) / varies
    for _ in range(ROUNDS):
        # what is usual is told once more without the spikes, which had their part in it
        usual, varies = _usual(np.where(heights > height_min, usual, loss))
        heights = (loss - usual) / varies
    above = heights > height_min
    found: list[Spike] = []
    begins = np.flatnonzero(above & ~np.append(False, above[:-1]))
    ends = np.flatnonzero(above & ~np.append(above[1:], False))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        peak = begin + int(np.argmax(heights[begin : end + 1]))
        found.append(
            Spike(
                int(step[begin]),
                int(step[end]),
                int(step[peak]),
                float(loss[peak]),
                float(usual[peak]),
                float(heights[peak]),
            )
        )
    return sorted([*found, *_broken(losses, finite)], key=lambda spike: spike.first)


def _usual(loss: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median [n] and standard deviation [n] around each loss."""
    usual = _medians(loss, AROUND, "odd")
    varies = SIGMA * _medians(np.abs(loss - usual), VARIES_AROUND, "even")
    # where the loss falls steeply the median of a range is its middle, and only differences tell how it varies
    steps = np.diff(loss, append=2 * loss[-1] - loss[-2])
    falls = np.abs(steps - _medians(steps, VARIES_AROUND, "even"))
    varies = np.maximum(varies, SIGMA / np.sqrt(2) * _medians(falls, VARIES_AROUND, "even"))
    return usual, np.maximum(varies, np.abs(usual) * VARIATION_MIN + 1e-12)


def _medians(values: NDArray[np.float64], around: int, beyond: Literal["odd", "even"]) -> NDArray[np.float64]:
    """The median [n] of so many values before and behind each; beyond the ends they go on as they came, or back."""
    around = min(around, (values.size - 1) // 2)
    windows = sliding_window_view(np.pad(values, around, mode="reflect", reflect_type=beyond), 2 * around + 1)
    found = np.empty(values.size)
    for first in range(0, values.size, CHUNK):
        found[first : first + CHUNK] = np.median(windows[first : first + CHUNK], axis=1)
    return found


def _broken(losses: Losses, finite: NDArray[np.bool_]) -> list[Spike]:
    """The first of each run of losses that are no finite numbers: what follows comes of weights that are ruined."""
    starts, known = np.flatnonzero(~finite & np.append(True, finite[:-1])), np.flatnonzero(finite)
    found: list[Spike] = []
    for at, count in zip(starts.tolist(), np.searchsorted(known, starts).tolist(), strict=True):
        before = losses.loss[known[max(0, count - AROUND) : count]]
        step = int(losses.step[at])
        usual = float(np.median(before)) if before.size else float("nan")
        found.append(Spike(step, step, step, float(losses.loss[at]), usual, float("inf")))
    return found
