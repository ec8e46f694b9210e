"""What a source task was given and has not sent: the pure half of reading."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.store.ledger import UNKNOWN, Fragment, Gap

#: A fragment's name, and the version under which it is to be compared; None: it is to be read.
_Order = tuple[bytes, str | None]


class ReadQueue:
    """Fragments in the order given, each with the gaps that are still to be sent.

    One that is given without a gap is to be compared under the version that it is given with. To read it and to compare
    it are two orders, which do not know of each other: what is open of it may be read while its end is compared.
    """

    def __init__(self) -> None:
        self._fragments: dict[_Order, Fragment] = {}
        self._pending: dict[_Order, list[Gap]] = {}

    def give(self, fragment: Fragment, gaps: Sequence[Gap]) -> None:
        """The controller asks for these gaps; asked again, they are added behind the others."""
        order = fragment.id, None if gaps else fragment.version
        self._fragments[order] = fragment
        self._pending.setdefault(order, []).extend(gaps)

    @property
    def compares(self) -> bool:
        """Whether what `next` gives is to be compared, and not to be read."""
        return any(compared is not None for _, compared in itertools.islice(self._pending, 1))

    def next(self) -> tuple[Fragment, tuple[Gap, ...]] | None:
        """The fragment to read now, and its gaps; None when there is nothing to read."""
        for order, gaps in self._pending.items():
            return self._fragments[order], tuple(gaps)
        return None

    def behind(self) -> tuple[Fragment, tuple[Gap, ...]] | None:
        """The fragment to read behind the one of `next`, and its gaps; None where there is none."""
        for order, gaps in itertools.islice(self._pending.items(), 1, 2):
            return self._fragments[order], tuple(gaps)
        return None

    def sent(self, fragment: bytes, first: int, end: int, stop: int = UNKNOWN) -> None:
        """Records `first` to `end` are on their way, the next one begins at byte `stop`.

        ValueError if they are not the beginning of the first gap: a reader must go in order.
        """
        gaps = self._pending[fragment, None]
        if not gaps or gaps[0].first != first or end > gaps[0].end:
            wanted = f"{gaps[0].first}..{gaps[0].end}" if gaps else "nothing"
            raise ValueError(f"{self._fragments[fragment, None].uri}: read {first}..{end}, asked for {wanted}")
        if end == gaps[0].end:
            del gaps[0]
        else:
            gaps[0] = Gap(end, gaps[0].end, stop)

    def ended(self, fragment: bytes, compared: str | None = None) -> None:
        """All that was asked of this fragment has been sent, or it has been compared under this version."""
        self._pending.pop((fragment, compared), None)
        self._fragments.pop((fragment, compared), None)

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
        return [(name, tuple(gaps)) for (name, _), gaps in self._pending.items() if gaps]
