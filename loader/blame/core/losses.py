"""Losses by step, from a table that a person exported: what cannot be used of it is counted and said. Pure."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
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
