"""What a source task was given and has not sent: the pure half of reading."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.store.entries import Fragment
from headrace.store.intervals import UNKNOWN, Gap


class Reading:
    """Fragments in the order given, each with the gaps that are still to be sent."""

    def __init__(self) -> None:
        self._fragments: dict[bytes, Fragment] = {}
        self._pending: dict[bytes, list[Gap]] = {}

    def give(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """The controller asks for these gaps; asked again, they are added behind the others."""
        self._fragments[fragment.id] = fragment
        self._pending.setdefault(fragment.id, []).extend(gaps)

    def next(self) -> tuple[Fragment, tuple[Gap, ...]] | None:
        """The fragment to read now, and its gaps; None when there is nothing to read."""
        for name, gaps in self._pending.items():
            return self._fragments[name], tuple(gaps)
        return None

    def behind(self) -> tuple[Fragment, tuple[Gap, ...]] | None:
        """The fragment to read behind the one of `next`, and its gaps; None where there is none."""
        for name, gaps in itertools.islice(self._pending.items(), 1, 2):
            return self._fragments[name], tuple(gaps)
        return None

    def sent(self, fragment: bytes, first: int, end: int, stop: int = UNKNOWN) -> None:
        """Records `first` to `end` are on their way, the next one begins at byte `stop`.

        ValueError if they are not the beginning of the first gap: a reader must go in order.
        """
        gaps = self._pending[fragment]
        if not gaps or gaps[0].first != first or end > gaps[0].end:
            wanted = f"{gaps[0].first}..{gaps[0].end}" if gaps else "nothing"
            raise ValueError(f"{self._fragments[fragment].uri}: read {first}..{end}, asked for {wanted}")
        if end == gaps[0].end:
            del gaps[0]
        else:
            gaps[0] = Gap(end, gaps[0].end, stop)

    def ended(self, fragment: bytes) -> None:
        """All that was asked of this fragment has been sent."""
        self._pending.pop(fragment, None)
        self._fragments.pop(fragment, None)

    def halt(self) -> None:
        """Let go of everything that has not been sent."""
        self._pending.clear()
        self._fragments.clear()

    @property
    def fragments(self) -> int:
        """How many fragments there are to read."""
        return len(self._pending)

    def pending(self) -> list[tuple[bytes, tuple[Gap, ...]]]:
        """What has not been sent, for a sweep."""
        return [(name, tuple(gaps)) for name, gaps in self._pending.items() if gaps]
