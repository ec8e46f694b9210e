"""Which positions a step reads: how a pass is cut into steps, what is skipped, and both ways between step and position.

Positions here are *absolute*: position p of pass k of n samples is k * n + p. A pass offers those of its positions that
no skip covers, in order; a step takes the next `stride` of them, and rank r of a step takes the r-th `batch_size` of
these. Since skips are entered in the journal before the positions that they cover are reached, all of it can be
computed from the journal alone, at any time later. Pure.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.loader.order.order import I64, SAMPLES_MAX

#: absolute positions lie below, so that those of the pass behind the last fit 63 bits too
POSITIONS_MAX: Final = SAMPLES_MAX

#: the last absolute position, since arrays of them are int64
POSITION_MAX: Final = (1 << 63) - 1


class LastBatch(enum.Enum):
    """What becomes of the samples that do not fill a global batch at the end of a pass."""

    DROP = "drop"
    PAD = "pad"


@dataclass(frozen=True, slots=True)
class Cut:
    """How a pass is cut into steps, the same on all ranks."""

    #: sequences a rank
    batch_size: int
    world_size: int
    last: LastBatch

    @property
    def stride(self) -> int:
        """Samples a step, over all ranks."""
        return self.batch_size * self.world_size

    def steps(self, left: int) -> int:
        """Steps that `left` samples make."""
        return left // self.stride if self.last is LastBatch.DROP else -(-left // self.stride)


def pass_max(samples: int) -> int:
    """The highest number that a pass of so many samples may have."""
    return POSITIONS_MAX // max(samples, 1) - 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """Journal: `count` absolute positions from `first` on are left out."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Reweighted:
    """Journal: from this absolute position on, the mixture has these weights."""

    position: int
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Recut:
    """Journal: from this absolute position on, which `step` reads first, steps are cut so."""

    position: int
    step: int
    cut: Cut


@dataclass(frozen=True, slots=True)
class Revised:
    """Journal: from this absolute position on, the datasets were read at these versions [datasets].

    A newer version of the same shards hides what was retracted since; no position moves.
    """

    position: int
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grew:
    """Journal: at this absolute position a source of a mixture was found to have more shards.

    Until then it had `samples` in shards whose layout has the root `layout_root`; these it reads to the end of the
    pass that it is in, and all of them from its next pass on.
    """

    position: int
    source: int
    samples: int
    layout_root: str


Event = Skipped | Reweighted | Recut | Revised | Grew


def recut(events: Sequence[Event], made: Recut) -> tuple[Event, ...]:
    """The journal with `made`, in the place of one that no step was made under, or else behind the last."""
    same = [isinstance(event, Recut) and (event.position, event.step) == (made.position, made.step) for event in events]
    replaced = tuple(made if is_same else event for event, is_same in zip(events, same, strict=True))
    return replaced if any(same) else (*events, made)


class Offered:
    """The positions of [first, end) that no skip covers, numbered from 0."""

    __slots__ = ("_before", "_starts", "count", "end")

    def __init__(self, first: int, end: int, skips: Sequence[Skipped]) -> None:
        starts, ends = [first], []
        for skip in sorted(skips, key=lambda skip: skip.first):
            begin, stop = max(skip.first, starts[-1]), min(skip.first + skip.count, end)
            if begin < stop:
                ends.append(begin)
                starts.append(stop)
        ends.append(max(end, starts[-1]))
        lengths = np.array(ends, dtype=np.int64) - np.array(starts, dtype=np.int64)
        self._starts: I64 = np.array(starts, dtype=np.int64)
        self._before: I64 = np.cumsum(lengths) - lengths
        self.count = int(lengths.sum())
        self.end = end

    @property
    def whole_from(self) -> int | None:
        """The first position where all from it to `end` are offered, or None where a skip lies between."""
        return int(self._starts[0]) if self._starts.size == 1 else None

    def at(self, numbers: I64) -> I64:
        """The absolute positions of `numbers` [k], each below `count`."""
        if self._starts.size == 1:
            moved: I64 = numbers + self._starts[0]
            return moved
        run = np.searchsorted(self._before, numbers, side="right") - 1
        found: I64 = self._starts[run] + numbers - self._before[run]
        return found

    def number(self, position: int) -> int | None:
        """The number of an absolute position, or None where it is skipped or outside."""
        number = int(self.numbers(np.array([position], dtype=np.int64))[0])
        return number if number >= 0 else None

    def numbers(self, positions: I64) -> I64:
        """The numbers [k] of absolute positions [k], -1 where one is skipped or outside."""
        run = np.searchsorted(self._starts, positions, side="right") - 1
        found: I64 = self._before[run] + positions - self._starts[run]
        inside = (run >= 0) & (positions < self.end) & (found < np.append(self._before[1:], self.count)[run])
        return np.where(inside, found, -1)

    def before(self, position: int) -> int:
        """How many of them lie before an absolute position."""
        lengths = np.diff(np.append(self._before, self.count))
        return int(np.clip(position - self._starts, 0, lengths).sum())

    def after(self, numbers: I64) -> I64:
        """The absolute positions behind the first `numbers` [k] offered ones, each at least 1."""
        inside = np.minimum(numbers, self.count)
        return np.where(numbers < self.count, self.at(np.maximum(inside - 1, 0)) + 1, self.end)


class Hosted:
    """What the ranks of one host read, over all passes: of the pass at hand from `offered` on."""

    __slots__ = ("_cut", "_is_here", "_offered", "_samples", "_skips")

    def __init__(
        self, samples: int, cut: Cut, ranks: Collection[int], offered: Offered, skips: Sequence[Skipped] = ()
    ) -> None:
        self._samples = samples
        self._cut = cut
        self._offered = offered
        self._skips = skips
        self._is_here = np.isin(np.arange(cut.world_size), list(ranks))

    @property
    def is_all(self) -> bool:
        """Whether every rank is on this host."""
        return bool(self._is_here.all())

    def positions(self, first: int, end: int) -> I64:
        """The absolute positions from `first` to `end` that a rank of this host reads."""
        found = [
            self._of_pass(pass_, max(first, pass_ * self._samples), min(end, (pass_ + 1) * self._samples))
            for pass_ in range(first // self._samples, -(-end // self._samples))
        ]
        return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *found])

    def _of_pass(self, pass_: int, first: int, end: int) -> I64:
        begin, stop = pass_ * self._samples, (pass_ + 1) * self._samples
        offered = self._offered if self._offered.end == stop else Offered(begin, stop, self._skips)
        stride = self._cut.stride
        whole_from = offered.whole_from
        if self.is_all and whole_from is not None:
            read_to = whole_from + self._cut.steps(offered.count) * stride
            return np.arange(max(first, whole_from), min(end, read_to), dtype=np.int64)
        positions = np.arange(first, end, dtype=np.int64)
        numbers = offered.numbers(positions)
        is_read = (numbers >= 0) & (numbers < self._cut.steps(offered.count) * stride)
        return positions[is_read & self._is_here[numbers % stride // self._cut.batch_size]]


def versions_at(position: int, events: Sequence[Event]) -> tuple[int, ...] | None:
    """The versions that an absolute position was read at, or None where the journal does not say."""
    found = [event for event in events if isinstance(event, Revised) and event.position <= position]
    return found[-1].versions if found else None


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step as it was: which absolute positions it read; fewer than `cut.stride` where it was padded."""

    number: int
    pass_: int
    cut: Cut
    positions: I64


@dataclass(frozen=True, slots=True)
class ReadAt:
    """When a position was read: by which rank of which step, in which row of its batch."""

    step: int
    pass_: int
    rank: int
    row: int


class Timeline:
    """What a journal says of the steps: from step to positions and back. `samples` are those of a pass."""

    def __init__(self, samples: int, events: Sequence[Event]) -> None:
        self._samples = samples
        self._skips = [event for event in events if isinstance(event, Skipped)]
        self._recuts = [event for event in events if isinstance(event, Recut)]
        #: from here on all passes are alike but for how they are cut
        self._skips_end = max((skip.first + skip.count for skip in self._skips), default=0)

    def step(self, number: int) -> Step:
        """Step `number`; raises IndexError where the journal begins later, or no sample is left for it."""
        recuts = [recut for recut in self._recuts if recut.step <= number]
        if number < 0 or not recuts:
            raise IndexError(f"step {number} lies before the journal's first step")
        recut = recuts[-1]
        position, step = recut.position, recut.step
        a_pass = recut.cut.steps(self._samples)
        while position <= POSITION_MAX - self._samples:
            offered, pass_ = self._rest(position)
            steps = recut.cut.steps(offered.count)
            if number < step + steps:
                first = (number - step) * recut.cut.stride
                numbers = np.arange(first, min(first + recut.cut.stride, offered.count), dtype=np.int64)
                return Step(number, pass_, recut.cut, offered.at(numbers))
            step, position = step + steps, offered.end
            if position >= self._skips_end:
                if a_pass == 0:
                    raise IndexError(f"step {number} does not exist: passes of {self._samples} samples have no step")
                passes = (number - step) // a_pass
                step, position = step + passes * a_pass, position + passes * self._samples
        raise IndexError(f"step {number} does not exist: positions end at {POSITION_MAX}")

    def steps_before(self, position: int) -> int:
        """The number of the step that reads the first position of the pass which begins at this absolute position."""
        recuts = [recut for recut in self._recuts if recut.position <= position]
        if not recuts:
            return self._recuts[0].step if self._recuts else 0
        begin, step, cut = recuts[-1].position, recuts[-1].step, recuts[-1].cut
        while begin < position:
            offered, _ = self._rest(begin)
            begin, step = offered.end, step + cut.steps(offered.count)
            if begin >= self._skips_end:
                passes = (position - begin) // self._samples
                begin, step = begin + passes * self._samples, step + passes * cut.steps(self._samples)
        return step

    def reading(self, position: int) -> ReadAt | None:
        """When an absolute position is read, or None where it was skipped, or dropped at the end of its pass."""
        which = self._recut_at(position)
        if which < 0:
            return None
        recut = self._recuts[which]
        offered, pass_, step = self._pass_at(position, recut)
        number = offered.number(position)
        if number is None or number >= recut.cut.steps(offered.count) * recut.cut.stride:
            return None
        at, within = divmod(number, recut.cut.stride)
        if which + 1 < len(self._recuts) and step + at >= self._recuts[which + 1].step:
            return None
        rank, row = divmod(within, recut.cut.batch_size)
        return ReadAt(step + at, pass_, rank, row)

    def step_from(self, position: int) -> int:
        """The first step that reads an absolute position from this one on, whether or not it is read itself."""
        which = self._recut_at(position)
        if which < 0:
            return self.steps_before(position)
        recut = self._recuts[which]
        offered, _, step = self._pass_at(position, recut)
        steps, number = recut.cut.steps(offered.count), offered.before(position)
        is_read = number < min(offered.count, steps * recut.cut.stride)
        later = [recut.step for recut in self._recuts[which + 1 :]]
        return min([step + (number // recut.cut.stride if is_read else steps), *later[:1]])

    def _recut_at(self, position: int) -> int:
        # by number, since a loader that went from one world size to another and back has two that are equal
        return sum(recut.position <= position for recut in self._recuts) - 1

    def _pass_at(self, position: int, recut: Recut) -> tuple[Offered, int, int]:
        """What the pass of an absolute position offers from this recut on, the pass, and its first step."""
        begin, step = recut.position, recut.step
        while True:
            offered, pass_ = self._rest(begin)
            if position < offered.end:
                return offered, pass_, step
            begin, step = offered.end, step + recut.cut.steps(offered.count)

    def _rest(self, position: int) -> tuple[Offered, int]:
        pass_ = position // self._samples
        return Offered(position, (pass_ + 1) * self._samples, self._skips), pass_
