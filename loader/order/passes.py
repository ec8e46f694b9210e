"""A source's samples in the order in which it gives them: which pass each belongs to, and which shards that pass reads.

A source of N samples gives its n-th, counted from 0, as position n mod N of its pass n div N. Where it grew, what
it was is read to the end of the pass that it was in, and the next pass is the first over all that it is since: passes
are numbered on, and only their length changes. A pass that has not begun when a source grows takes in everything.

So there are *eras*, runs of passes over the same shards, and each is (its first sample, its first pass, its layout).
A source that grows a second time before the era of the first has begun goes over to the newest at that place. Pure.
"""

from dataclasses import dataclass

import numpy as np

from headrace.loader.order.order import I64, Layout


@dataclass(frozen=True, slots=True, eq=False)
class Era:
    """From sample `start` and pass `pass_` on, passes go over `layout`."""

    start: int
    pass_: int
    layout: Layout

    def end_of_pass(self, given: int) -> tuple[int, int]:
        """(sample, pass) at which the next pass begins once `given` samples were given, or now where none has begun."""
        passes = -(-(given - self.start) // self.layout.samples)
        return self.start + passes * self.layout.samples, self.pass_ + passes


class Passes:
    """The passes of one source. Layouts have at least one sample; each is that of the first shards of the next."""

    __slots__ = ("_eras", "_starts")

    def __init__(self, layout: Layout) -> None:
        self._eras = [Era(0, 0, layout)]
        self._starts: I64 = np.zeros(1, dtype=np.int64)

    def grow(self, given: int, layout: Layout) -> None:
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

    def layout(self, pass_: int) -> Layout:
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
