"""Steps whose loss stands out of those around them. Pure.

What is usual at a step is the median of the few losses around it. How far losses are from what is usual is told by the
median of these distances (MAD) in a wider range, so that neither a spike nor the fall of the loss over training moves
either much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headrace.loader.blame.core.losses import Losses

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
