"""The outcome of a run with faults: what fired, the starts of the command, and the commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.chaos.gates import Affected
from headrace.chaos.live.scenario.scenario import Planned
from headrace.chaos.live.scenario.timeline import Commit


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
