"""Where a loader stands in its passes, the journal of how it came there, and who is told of a jump."""

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from headrace.loader.order import Event, Offered, Skipped, Timeline


class LoaderWatcher(Protocol):
    """Who is to know that a loader goes on otherwise than by its batches."""

    def changed(self) -> None:
        """A state was loaded, or the journal changed."""


class LoaderPlace:
    """Where a loader stands: behind `position` samples of a pass, over all ranks, and before a step."""

    def __init__(self, samples: int, pass_: int, journal: Sequence[Event]) -> None:
        #: of a pass, over all ranks
        self._samples = samples
        #: what was done on the way, as `headrace.loader.order.plan` says
        self.journal = tuple(journal)
        self._pass = pass_
        self._position = self._step = 0
        #: whether a loop came to the end of this pass; and whether none has got a batch since a state was loaded or
        #: positions were skipped, behind which the pass may end: the loop that was in it has still to end too
        self._ended = self._is_moved = False
        #: how often a loop was begun or ended, here or in other processes
        self.iterations = 0
        self._watchers: WeakSet[LoaderWatcher] = WeakSet()

    @property
    def position(self) -> int:
        """Samples of this pass, over all ranks, up to and including the last batch that the caller received."""
        return self._position

    @property
    def pass_(self) -> int:
        """The number of the pass being read."""
        return self._pass

    @property
    def step(self) -> int:
        """How many steps were made since the journal began, over all passes; the number of the next step."""
        return self._step

    def watch(self, watcher: LoaderWatcher) -> None:
        """Tell `watcher`, as long as it lives, of each state that is loaded and of each change of the journal.

        What other processes do meanwhile, and are followed in, is none of these.
        """
        self._watchers.add(watcher)

    def _tell_watchers(self) -> None:
        for watcher in list(self._watchers):
            watcher.changed()

    @property
    def _first_step(self) -> int:
        return Timeline(self._samples, self.journal).steps_before(self._pass * self._samples)

    @property
    def _absolute(self) -> int:
        return self._pass * self._samples + self._position

    def _offered(self) -> Offered:
        return Offered(self._absolute, (self._pass + 1) * self._samples, self._skips())

    def _skips(self) -> list[Skipped]:
        return [event for event in self.journal if isinstance(event, Skipped)]
