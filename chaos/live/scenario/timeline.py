"""When each ledger entry came, as someone sees it who only looks at the dataset's folder."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

from headrace.store import ObjectStore, StoreError
from headrace.store.ledger import Closed, EpochRaised, decode_entry

#: Seconds between two looks into a store.
STORE_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry: its number, when it was seen in seconds since the run began, and the records that it closes."""

    number: int
    at_s: float
    records: int


class FaultTimeline:
    """Follows the log of a dataset, in a folder or a store. Numbers have no gaps, so one name is looked up at a time.

    A store is asked every STORE_LOOK_S, and what it cannot answer is asked again.
    """

    def __init__(self, dataset: pathlib.Path | ObjectStore) -> None:
        self._dataset = dataset
        self._again_at = 0.0
        self.commits: list[Commit] = []
        self._closes = 0
        #: How often the epoch was raised.
        self.epochs = 0

    @property
    def entries(self) -> int:
        """How many there are."""
        return len(self.commits)

    @property
    def closes(self) -> int:
        """How many of them close records."""
        return self._closes

    def look(self, at_s: float) -> None:
        """Take in what has come."""
        while (data := self._entry(len(self.commits), at_s)) is not None:
            changes = decode_entry(data).changes
            records = sum(change.counts.records for change in changes if isinstance(change, Closed))
            self.commits.append(Commit(len(self.commits), at_s, records))
            self._closes += records > 0
            self.epochs += sum(isinstance(change, EpochRaised) for change in changes)

    def _entry(self, number: int, at_s: float) -> bytes | None:
        key = f"ledger/{number:020d}.msgpack"
        if isinstance(self._dataset, pathlib.Path):
            try:
                return (self._dataset / key).read_bytes()
            except FileNotFoundError:
                return None
        if at_s < self._again_at:
            return None
        try:
            return self._dataset.get(key)
        except StoreError:
            self._again_at = at_s + STORE_LOOK_S
            return None

    def next_close(self, after_s: float) -> float | None:
        """When the first entry after a moment came that closes records."""
        return next((commit.at_s for commit in self.commits if commit.at_s > after_s and commit.records), None)
