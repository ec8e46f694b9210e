"""Weights of a mixture as a function of position, and by feedback: each as entries of the journal. Pure.

Whatever the function, the journal says weights and the position from which they hold, so that a state needs nothing
else to go on, or to say later what a step has read. Entries behind the first position that was not read are replaced by
what is asked next; those before it stand for good.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.loader.order.plan import POSITIONS_MAX, Event, Reweighted

#: points of a schedule, and steps of a ramp between two of them
POINTS_MAX: Final = 1000
RAMP_STEPS: Final = 32
#: their sums are finite, and as many as there are fit into a state
WEIGHT_MAX: Final = 1e300
#: weights of a ramp or of a policy are shares of so many: their period is one of which a table is made
SHARES: Final = 1000


@dataclass(frozen=True, slots=True)
class WeightSchedule:
    """From each absolute position (samples over all passes and ranks) on, the weights [sources] beside it.

    With `ramp` weights go from each point to the next in `RAMP_STEPS` equal steps of positions, in whole thousandths.
    Before the first point its weights hold, behind the last point those. Raises ValueError for what is no schedule.
    """

    points: tuple[tuple[int, tuple[float, ...]], ...]
    ramp: bool = False

    def __post_init__(self) -> None:
        positions = [position for position, _ in self.points]
        if not 1 <= len(positions) <= POINTS_MAX:
            raise ValueError(f"a schedule has 1 to {POINTS_MAX} points, got {len(positions)}")
        if any(type(one) is not int or one < 0 for one in positions) or sorted(set(positions)) != positions:
            raise ValueError(f"the positions of a schedule are whole numbers that grow, got {positions[:10]}")
        counts = {len(weights) for _, weights in self.points}
        if len(counts) != 1:
            raise ValueError(f"each point of a schedule has a weight for each source, got {sorted(counts)} weights")
        if positions[-1] > POSITIONS_MAX:
            raise ValueError(f"a schedule ends at position {POSITIONS_MAX} at the latest, got {positions[-1]}")
        for _, weights in self.points:
            shares_of_weights(weights)
        # numpy's numbers are none that JSON knows
        plain = tuple((position, tuple(float(weight) for weight in weights)) for position, weights in self.points)
        object.__setattr__(self, "points", plain)

    def changes(self, begin: int) -> tuple[Reweighted, ...]:
        """The journal's entries from absolute position `begin` on; the first holds from there."""
        stands = self._stands()
        at = bisect_right([position for position, _ in stands], begin) - 1
        first = Reweighted(begin, stands[max(at, 0)][1])
        return (first, *(Reweighted(*one) for one in stands[max(at, 0) + 1 :] if one[0] > begin))

    def _stands(self) -> list[tuple[int, tuple[float, ...]]]:
        """Each position from which other weights hold."""
        if not self.ramp:
            return list(self.points)
        found: list[tuple[int, tuple[float, ...]]] = []
        for (begin, before), (end, after) in zip(self.points, self.points[1:], strict=False):
            steps = min(RAMP_STEPS, end - begin)
            low, high = (_normal(weights) for weights in (before, after))
            for step in range(steps):
                part = step / steps
                weights = [one + part * (other - one) for one, other in zip(low, high, strict=True)]
                found.append((begin + (end - begin) * step // steps, shares_of_weights(weights)))
        return [*found, (self.points[-1][0], shares_of_weights(self.points[-1][1]))]


def shares_of_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights as whole thousandths of their sum, by largest remainder; what has a weight has at least one.

    Raises ValueError for weights that are negative, above WEIGHT_MAX, or all zero.
    """
    shares = [one * SHARES for one in _normal(weights)]
    counts = [max(int(share), 1 if share else 0) for share in shares]
    # One that was given its one has no remainder.
    by_remainder = sorted(range(len(counts)), key=lambda at: (counts[at] - shares[at], at))
    for at in by_remainder[: max(0, SHARES - sum(counts))]:
        counts[at] += 1
    return tuple(count / SHARES for count in counts)


def changes_of(asked: Sequence[float] | WeightSchedule, begin: int, sources: int) -> tuple[Reweighted, ...]:
    """The journal's entries of weights or a schedule from position `begin` on. Raises ValueError."""
    if isinstance(asked, WeightSchedule):
        count, made = len(asked.points[0][1]), asked.changes(begin)
    else:
        weights = tuple(float(weight) for weight in asked)
        _normal(weights)
        count, made = len(weights), (Reweighted(begin, weights),)
    if count != sources:
        raise ValueError(f"reweight takes a weight a dataset, of which there are {sources}, got {count}")
    return made


def replaced(events: Sequence[Event], begin: int, made: Sequence[Reweighted]) -> tuple[Event, ...]:
    """The journal with other weights from position `begin` on: what a schedule had for later holds no more."""
    kept = (event for event in events if not (isinstance(event, Reweighted) and event.position > begin))
    return (*kept, *made)


def weights_at(events: Sequence[Event], position: int, first: Sequence[float]) -> tuple[float, ...]:
    """The weights that hold at an absolute position; `first` are those of a journal without any."""
    latest, at = tuple(first), -1
    for event in events:
        # of several at one position the last was asked last
        if isinstance(event, Reweighted) and at <= event.position <= position:
            latest, at = event.weights, event.position
    return latest


def _normal(given: Sequence[float]) -> list[float]:
    weights = [float(weight) for weight in given]
    if not all(0 <= weight <= WEIGHT_MAX for weight in weights) or not sum(weights) > 0:
        raise ValueError(f"weights are from 0 to {WEIGHT_MAX:g} and not all zero, got {weights}")
    largest = max(weights)
    scaled = [weight / largest for weight in weights]
    return [weight / sum(scaled) for weight in scaled]
