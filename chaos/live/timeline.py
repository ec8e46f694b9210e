"""When each ledger entry came, as someone sees it who only looks at the dataset's folder."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass

from headrace.store.entries import Closed, decode_entry


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry: its number, when it was seen in seconds since the run began, and the records that it closes."""

    number: int
    at_s: float
    records: int


class Timeline:
    """Follows the log of a dataset in a local folder. Numbers have no gaps, so one name is looked up at a time."""

    def __init__(self, dataset: pathlib.Path) -> None:
        self._folder = dataset / "ledger"
        self.commits: list[Commit] = []
        self._closes = 0

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
        while True:
            path = self._folder / f"{len(self.commits):020d}.msgpack"
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            with os.fdopen(descriptor, "rb") as file:
                changes = decode_entry(file.read()).changes
            records = sum(change.counts.records for change in changes if isinstance(change, Closed))
            self.commits.append(Commit(len(self.commits), at_s, records))
            self._closes += records > 0

    def next_close(self, after_s: float) -> float | None:
        """When the first entry after a moment came that closes records."""
        return next((commit.at_s for commit in self.commits if commit.at_s > after_s and commit.records), None)
