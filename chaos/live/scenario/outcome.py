"""What came of a run with faults: what fired, the starts of the command, and the commits that its dataset shows."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.chaos.gates import Affected
from headrace.chaos.live.scenario.scenario import Planned
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
        #: How many of them close records.
        self.closes = 0
        #: How often the epoch was raised.
        self.epochs = 0

    @property
    def entries(self) -> int:
        """How many there are."""
        return len(self.commits)

    def look(self, at_s: float) -> None:
        """Take in what has come."""
        while (data := self._entry(len(self.commits), at_s)) is not None:
            changes = decode_entry(data).changes
            records = sum(change.counts.records for change in changes if isinstance(change, Closed))
            self.commits.append(Commit(len(self.commits), at_s, records))
            self.closes += records > 0
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


@dataclass(slots=True)
class Fired:
    """A firing that took place. Times in seconds since the run began; `commits` is how many there had been."""

    planned: Planned
    at_s: float
    commits: int
    victims: tuple[str, ...]
    ended_s: float
    #: Until the first entry after its end that closed records; None where none was to come.
    recovered_s: float | None = None
    #: What a fault of the network did something to.
    affected: Counter[Affected] = field(default_factory=Counter[Affected])


@dataclass(slots=True)
class Start:
    """One start of the command."""

    number: int
    at_s: float
    ended_s: float = 0.0
    code: int | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """How the run with faults went; `problem` is empty where it came to its end."""

    fired: tuple[Fired, ...]
    waiting: tuple[Planned, ...]
    starts: tuple[Start, ...]
    commits: tuple[Commit, ...]
    answer: Mapping[str, Any]
    left: tuple[str, ...]
    seconds: float
    problem: str = ""
    #: How often the epoch of the dataset was raised; the first run over it raises it once.
    epochs: int = 0

    @property
    def closes(self) -> int:
        """How many entries closed records."""
        return sum(commit.records > 0 for commit in self.commits)


#: What has happened before the first round.
NOTHING_YET = ScenarioOutcome((), (), (), (), {}, (), 0.0)
