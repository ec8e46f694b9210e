"""Several datasets read as one sequence of positions, by weights: which source a position reads, and its how-manieth.

Construction
------------
Weights become whole numbers of a *period* of at most `PERIOD_MAX` positions: exactly where they are decimal fractions
of a common denominator (0.7, 0.2, 0.1 have the period 10) or numbers of samples, else by largest remainders. The list
of sources is halved again and again. Of the n positions that a part of the list has, its left half, which is to have
a of every b, has the whole number nearest to n * a / b; so each half counts its own positions, and so on down to one
source. Each halving is off by half a position at most, so a source is off by as many halves as there are halvings above
it. Source and how-manieth of any position are one division for each of these, and so is the way back; nothing is stored
but the sources' counts, and a table where the period is short.

The n-th sample of a source of N samples is position n mod N of its pass n div N: a source that is read more often than
it has samples is shuffled anew for each time, and how often that happened is counted. Weights may change at any
position; what a source has given up to there stays given. A source may grow at any position, and goes over to its new
shards at the end of the pass that it is in (`Passes`). Sources share nothing else, so neither
changes another source's order.

A source's share among any run of positions differs from its weight's by a handful of samples at most (a test holds
the bound), where drawing sources at random would be off by the square root of the run. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Final

import numpy as np

from headrace.loader.order.order import I64, Loops, Order, OrderMode, SampleLayout, derive_key, distinct
from headrace.loader.order.plan import Reweighted

#: changes whenever the same weights give another sequence of sources; states of mixtures carry it
SCHEDULE: Final = 2
#: positions after which a schedule repeats, at most; also the accuracy of weights that fit no smaller period. The
#: product of two such numbers fits 62 bits
PERIOD_MAX: Final = 1 << 30
#: periods of which a table is made: it is looked up in a third of the time, and made in less than a job of batches
TABLE_MAX: Final = 1 << 12
SOURCES_MAX: Final = 1024
#: orders kept: a source has two when a batch holds its last samples of one pass and its first of the next
_ORDERS_A_SOURCE: Final = 2
#: stretches of located positions that are kept: those read, and what is fetched ahead of them, each over a pass's end
KEPT_MAX: Final = 4
_LEVEL_SOURCE: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Era:
    """From sample `start` and pass `pass_` on, passes go over `layout`."""

    start: int
    pass_: int
    layout: SampleLayout

    def end_of_pass(self, given: int) -> tuple[int, int]:
        """(sample, pass) at which the next pass begins once `given` samples were given, or now where none has begun."""
        passes = -(-(given - self.start) // self.layout.samples)
        return self.start + passes * self.layout.samples, self.pass_ + passes


class Passes:
    """The passes of one source: which pass each of its samples belongs to, and which shards that pass reads.

    Passes over the same shards are an *era*. A source that grows finishes the pass that it is in, and the next pass is
    the first over all of it; one that has not begun takes in everything. Each layout has at least one sample, and is
    that of the first shards of the next.
    """

    __slots__ = ("_eras", "_starts")

    def __init__(self, layout: SampleLayout) -> None:
        self._eras = [Era(0, 0, layout)]
        self._starts: I64 = np.zeros(1, dtype=np.int64)

    def grow(self, given: int, layout: SampleLayout) -> None:
        """From the end of the pass that the source is in after `given` samples, passes go over `layout`."""
        begun = [era for era in self._eras if era.start < given]
        self._eras = [*begun, Era(*(begun[-1].end_of_pass(given) if begun else (0, 0)), layout)]
        self._starts = np.array([era.start for era in self._eras], dtype=np.int64)

    def split(self, index: I64) -> tuple[I64, I64]:
        """(pass [k], position in it [k]) of the source's samples `index` [k]."""
        if len(self._eras) == 1:
            found = np.divmod(index, self._eras[0].layout.samples)
            return found[0], found[1]
        which = np.searchsorted(self._starts, index, side="right") - 1
        lengths = np.array([era.layout.samples for era in self._eras], dtype=np.int64)[which]
        passes, place = np.divmod(index - self._starts[which], lengths)
        return passes + np.array([era.pass_ for era in self._eras], dtype=np.int64)[which], place

    def at(self, given: int) -> tuple[int, int]:
        """(pass, position in it) of the sample that comes after `given` ones."""
        passes, place = self.split(np.array([given], dtype=np.int64))
        return int(passes[0]), int(place[0])

    def layout(self, pass_: int) -> SampleLayout:
        """What a pass reads."""
        return self._era(pass_).layout

    def begin(self, pass_: int) -> int:
        """The first sample of a pass."""
        era = self._era(pass_)
        return era.start + (pass_ - era.pass_) * era.layout.samples

    def read(self, given: int) -> float:
        """How often the source was read by its first `given` samples."""
        pass_, place = self.at(given)
        return pass_ + place / self.layout(pass_).samples

    def _era(self, pass_: int) -> Era:
        return [era for era in self._eras if era.pass_ <= pass_][-1]


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How each source is ordered; the arguments of `headrace.loader.order.order.Order`."""

    seed: int
    mode: OrderMode
    window_blocks: int
    block_rows: int

    def order(self, layout: SampleLayout, source: int, pass_: int, loops: Loops | None = None) -> Order:
        """The order of one pass of a source; the first source's is that of its dataset read alone."""
        seed = self.seed if source == 0 else derive_key(self.seed, source, _LEVEL_SOURCE)
        return Order(layout, seed, pass_, self.mode, self.window_blocks, self.block_rows, loops)


def period_counts(weights: Sequence[float]) -> I64:
    """Positions of each source in one period. Raises ValueError for weights that are negative or all zero."""
    if not 1 <= len(weights) <= SOURCES_MAX or not all(0 <= weight < float("inf") for weight in weights):
        raise ValueError(f"a mixture needs 1 to {SOURCES_MAX} weights, finite and not negative, got {list(weights)}")
    exact = [Fraction(repr(float(weight))) for weight in weights]
    total = sum(exact)
    if total == 0:
        raise ValueError("the weights of a mixture are all zero; give one source a weight")
    shares = [weight / total for weight in exact]
    period = lcm(*(share.denominator for share in shares))
    if period <= PERIOD_MAX:
        return np.array([int(share * period) for share in shares], dtype=np.int64)
    ideal = [share * PERIOD_MAX for share in shares]
    counts = [max(int(value), 1 if value else 0) for value in ideal]
    spare = PERIOD_MAX - sum(counts)
    by_remainder = sorted(range(len(counts)), key=lambda at: (int(ideal[at]) - ideal[at], at))
    for at in by_remainder[: max(spare, 0)]:
        counts[at] += 1
    return np.array(counts, dtype=np.int64)


class Schedule:
    """One period: whose each position is, and which of that source's."""

    __slots__ = ("_ends", "_table", "counts", "period")

    def __init__(self, weights: Sequence[float]) -> None:
        self.counts = period_counts(weights)
        #: positions of the first k sources, for each k: Python's ints, which do not overflow on the way back
        self._ends = [0, *np.cumsum(self.counts).tolist()]
        self.period: int = self._ends[-1]
        #: all that `at` can give, where the period is short
        self._table: tuple[I64, I64] | None = None

    def _halved(self, low: int, high: int) -> tuple[int, int, int]:
        """Sources `low` to `high` in two halves: where the second begins, positions of the first, and of both."""
        middle = (low + high) // 2
        return middle, self._ends[middle] - self._ends[low], self._ends[high] - self._ends[low]

    def at(self, places: I64) -> tuple[I64, I64]:
        """(source [k], which of its positions in the period [k]) at places [k] of the period."""
        if self.period > TABLE_MAX:
            return self._computed(places)
        if self._table is None:
            self._table = self._computed(np.arange(self.period))
        return self._table[0][places], self._table[1][places]

    def _computed(self, places: I64) -> tuple[I64, I64]:
        owner, nth = np.zeros_like(places), places.copy()
        parts = [(0, self.counts.size, np.arange(places.size))]
        while parts:
            low, high, chosen = parts.pop()
            if high - low == 1 or not chosen.size:
                owner[chosen] = low
                continue
            middle, left, both = self._halved(low, high)
            mine = nth[chosen]
            before, rest = np.divmod(mine * left + both // 2, both)
            is_left = rest + left >= both
            nth[chosen] = np.where(is_left, before, mine - before)
            parts += [(low, middle, chosen[is_left]), (middle, high, chosen[~is_left])]
        return owner, nth

    def count(self, positions: int) -> I64:
        """How many of the first `positions` positions are each source's [sources]."""
        whole, rest = divmod(positions, self.period)
        found = whole * self.counts
        parts = [(0, self.counts.size, rest)]
        while parts:
            low, high, given = parts.pop()
            if high - low == 1:
                found[low] += given
            elif given:
                middle, left, both = self._halved(low, high)
                before = (given * left + both // 2) // both
                parts += [(low, middle, before), (middle, high, given - before)]
        return found

    def place(self, source: int, nth: int) -> int:
        """The place in the period of a source's `nth` position there; the source has a weight."""
        low, high, halvings = 0, self.counts.size, []
        while high - low > 1:
            middle, left, both = self._halved(low, high)
            halvings.append((source < middle, left, both))
            low, high = (low, middle) if source < middle else (middle, high)
        for is_left, left, both in reversed(halvings):
            if is_left:
                nth = -((both // 2 - (nth + 1) * both) // left) - 1
            else:
                nth = (nth * both + both // 2) // (both - left)
        return nth


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """At an absolute position a source, which had been `before`, was found to have more shards behind these."""

    position: int
    source: int
    before: SampleLayout


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Positions from `start` on follow one schedule; `given` [sources] had been read before."""

    start: int
    schedule: Schedule
    given: I64


@dataclass(frozen=True, slots=True, eq=False)
class _Located:
    """Where the samples of positions from `first` on lie [k]."""

    first: int
    shards: I64
    rows: I64


class Mixture:
    """The sequence of (shard, row) over all sources. Shards are numbered through: the second source's follow the
    first's. `samples` are those of one pass of the mixture; absolute positions go through all passes. `layouts` are
    the sources' newest, and `growths` say, in the order in which it happened, which were smaller before.

    One source alone is the plain order of its dataset, and does not grow in here.
    """

    def __init__(
        self,
        layouts: Sequence[SampleLayout],
        shuffle: Shuffle,
        weights: Sequence[float],
        samples: int,
        changes: Sequence[Reweighted] = (),
        growths: Sequence[Growth] = (),
    ) -> None:
        self.layouts = tuple(layouts)
        self.shuffle = shuffle
        self.samples = samples
        shards = np.array([layout.shards for layout in layouts], dtype=np.int64)
        #: number of each source's first shard
        self.shard_starts: I64 = np.cumsum(shards) - shards
        stretch = _Stretch(0, Schedule(weights), np.zeros(len(layouts), dtype=np.int64))
        self._stretches = [stretch]
        for change in sorted(changes, key=lambda change: change.position):
            given = stretch.given + stretch.schedule.count(change.position - stretch.start)
            stretch = _Stretch(change.position, Schedule(change.weights), given)
            self._stretches.append(stretch)
        #: each source's passes [sources]
        self.passes = self._passes(growths)
        self._orders: dict[tuple[int, int], Order] = {}
        self._loops: Loops | None = None
        self._kept: tuple[_Located, ...] = ()

    def _passes(self, growths: Sequence[Growth]) -> list[Passes]:
        known = list(self.layouts)
        for growth in reversed(growths):
            known[growth.source] = growth.before
        passes = [Passes(layout) for layout in known]
        for number, growth in enumerate(growths):
            later = [one.before for one in growths[number + 1 :] if one.source == growth.source]
            layout = (later or [self.layouts[growth.source]])[0]
            passes[growth.source].grow(int(self.given(growth.position)[growth.source]), layout)
        return passes

    def compute_by(self, loops: Loops) -> None:
        """Have orders computed by `loops` from here on; they are the same, and sooner there."""
        if loops is not self._loops:
            self._loops = loops
            self._orders.clear()

    def order(self, source: int, pass_: int) -> Order:
        """The order of one pass of a source; a few are kept."""
        order = self._orders.get((source, pass_))
        if order is None:
            if len(self._orders) >= _ORDERS_A_SOURCE * len(self.layouts):
                self._orders.clear()
            layout = self.passes[source].layout(pass_)
            order = self._orders[source, pass_] = self.shuffle.order(layout, source, pass_, self._loops)
        return order

    def sources(self, positions: I64) -> tuple[I64, I64]:
        """(source [k], which of this source's samples from 0 on [k]) at absolute positions [k]."""
        if len(self.layouts) == 1:
            return np.zeros(positions.size, dtype=np.int64), positions
        source = np.empty(positions.size, dtype=np.int64)
        index = np.empty(positions.size, dtype=np.int64)
        bounds = [stretch.start for stretch in self._stretches]
        which = np.searchsorted(bounds, positions, side="right") - 1
        for number in distinct(which).tolist():
            chosen = np.flatnonzero(which == number)
            stretch = self._stretches[number]
            whole, rest = np.divmod(positions[chosen] - stretch.start, stretch.schedule.period)
            owner, nth = stretch.schedule.at(rest)
            source[chosen] = owner
            index[chosen] = stretch.given[owner] + whole * stretch.schedule.counts[owner] + nth
        return source, index

    def locate_ahead(self, positions: I64) -> tuple[I64, I64]:
        """Like `locate` for rising positions, and remembered where few gaps lie between them: who reads them later does
        not compute it again. Any number of threads may locate meanwhile.
        """
        shards, rows = self.locate(positions)
        gaps = (np.flatnonzero(np.diff(positions) != 1) + 1).tolist()
        if positions.size and len(gaps) < KEPT_MAX:
            runs = pairwise([0, *gaps, positions.size])
            found = [_Located(int(positions[begin]), shards[begin:end], rows[begin:end]) for begin, end in runs]
            self._kept = (*found, *self._kept)[:KEPT_MAX]
        return shards, rows

    def _remembered(self, positions: I64) -> tuple[I64, I64] | None:
        if not self._kept or not positions.size:
            return None
        first, last = int(positions.min()), int(positions.max())
        for kept in self._kept:
            if kept.first <= first and last < kept.first + kept.shards.size:
                at = positions - kept.first
                return kept.shards[at], kept.rows[at]
        return None

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Absolute positions [k] to (shard [k], row in the shard [k])."""
        remembered = self._remembered(positions)
        if remembered is not None:
            return remembered
        if len(self.layouts) == 1 and positions.size:
            only = int(positions.min()) // self.samples
            if int(positions.max()) // self.samples == only:
                return self.order(0, only).locate((positions - only * self.samples).view(np.uint64))
        source, index = self.sources(positions)
        shard = np.empty(positions.size, dtype=np.int64)
        row = np.empty(positions.size, dtype=np.int64)
        for number in distinct(source).tolist():
            mine = np.flatnonzero(source == number)
            pass_, place = self.passes[number].split(index[mine])
            for one in distinct(pass_).tolist():
                chosen = mine[pass_ == one]
                found, row[chosen] = self.order(number, one).locate(place[pass_ == one].view(np.uint64))
                shard[chosen] = found + self.shard_starts[number]
        return shard, row

    def source_of(self, shards: I64) -> I64:
        """The source [k] of numbered-through shards [k]."""
        return np.searchsorted(self.shard_starts, shards, side="right").astype(np.int64) - 1

    def positions_of(self, shard: int, row: int, end: int) -> list[int]:
        """The absolute positions below `end` that read one row, in order: one in each pass of its source."""
        source = int(self.source_of(np.array([shard]))[0])
        passes = self.passes[source]
        local = shard - int(self.shard_starts[source])
        found: list[int] = []
        for pass_ in range(passes.at(int(self.given(end)[source]))[0] + 1):
            if local >= passes.layout(pass_).shards:
                continue
            place = int(self.order(source, pass_).inverse(np.array([local]), np.array([row]))[0])
            position = self._position(source, passes.begin(pass_) + place)
            if position is not None and position < end:
                found.append(position)
        return found

    def given(self, position: int) -> I64:
        """How many samples each source [sources] has given before an absolute position."""
        if len(self.layouts) == 1:
            return np.array([position], dtype=np.int64)
        stretch = [one for one in self._stretches if one.start <= position][-1]
        return stretch.given + stretch.schedule.count(position - stretch.start)

    def _position(self, source: int, index: int) -> int | None:
        """The absolute position of a source's sample, or None where the source has lost its weight before it."""
        if len(self.layouts) == 1:
            return index
        stretch = [one for one in self._stretches if int(one.given[source]) <= index][-1]
        # where a source was given nothing for a while, several stretches begin at one count: the last is not it
        count = int(stretch.schedule.counts[source])
        if count == 0:
            return None
        whole, rest = divmod(index - int(stretch.given[source]), count)
        return stretch.start + whole * stretch.schedule.period + stretch.schedule.place(source, rest)
