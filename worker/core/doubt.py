"""The very first records of a sink: where most of them are quarantined, the ledger is to hear of it at once."""

from __future__ import annotations

#: Records that a sink looks at first of all, and the share of them which, quarantined, is told at once.
DOUBT_RECORDS = 1000
DOUBT_SHARE = 0.5


class Doubt:
    """Judged once, when DOUBT_RECORDS have come; later dirt makes no row of small shards."""

    def __init__(self) -> None:
        self._records = self._quarantined = 0
        #: Whether it is not judged yet.
        self.lasts = True

    def note(self, records: int, quarantined: int) -> None:
        """So many records came, and so many of them are quarantined."""
        self._records += records
        self._quarantined += quarantined

    def due(self) -> bool:
        """Whether what came is to be sealed now, for this reason."""
        if not self.lasts or self._records < DOUBT_RECORDS:
            return False
        self.lasts = False
        return self._quarantined > DOUBT_SHARE * self._records
