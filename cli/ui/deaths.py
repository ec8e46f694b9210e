"""Deaths of a run, with causes and counts: a line at each death, and a list at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Lines of a page; `--json` has them all.
DEATHS_SHOWN = 8
#: What, name, cause.
Kind = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DeathRow:
    """Ends alike: `what` is `task`, `worker` or `controller`."""

    what: str
    name: str
    cause: str
    count: int

    def words(self) -> str:
        """As a line."""
        often = f", {counted(self.count, 'time')}" if self.count > 1 else ""
        return f"{self.what} {self.name}".rstrip() + f"{often}: {self.cause}"


def rows_of(deaths: Iterable[pb.Death]) -> list[DeathRow]:
    """What a controller tells."""
    return [DeathRow(item.what, item.name, item.cause, item.count) for item in deaths]


def death_lines(rows: Iterable[DeathRow]) -> list[str]:
    """A line each, the most frequent first, and one for all that there is no room for."""
    ranked = sorted(rows, key=lambda row: -row.count)
    lines = [row.words() for row in ranked[:DEATHS_SHOWN]]
    more = sum(row.count for row in ranked[DEATHS_SHOWN:])
    return [*lines, f"and {counted(more, 'death')} more; `--json` names all"] if more else lines


@dataclass(slots=True)
class DeathBook:
    """The deaths of one run as its command learns of them, from its controllers and with its own eyes."""

    _latest: Counter[Kind] = field(default_factory=Counter[Kind])
    #: Told by controllers that are no more.
    _before: Counter[Kind] = field(default_factory=Counter[Kind])
    #: Of processes that this command has started itself.
    _own: Counter[Kind] = field(default_factory=Counter[Kind])
    _said: Counter[Kind] = field(default_factory=Counter[Kind])

    def take(self, status: pb.PipelineStatus) -> list[str]:
        """What a controller tells; the lines to say now.

        Of many alike not each is said, but the first, the second, the fourth and so on.
        """
        self._latest = Counter({(row.what, row.name, row.cause): row.count for row in rows_of(status.deaths)})
        lines: list[str] = []
        for row in self.rows():
            kind = (row.what, row.name, row.cause)
            if row.count >= max(1, 2 * self._said[kind]):
                self._said[kind] = row.count
                lines.append(f"died: {row.words()}")
        return lines

    def saw(self, what: str, name: str, cause: str) -> None:
        """This command saw a process end that it had started."""
        self._own[what, name, cause] += 1

    def controller_died(self, cause: str) -> None:
        """Another takes its place, as the command says itself, and knows nothing of what this one has told."""
        self._before += self._latest
        self._latest = Counter()
        self.saw("controller", "", cause)
        self._said["controller", "", cause] += 1

    def rows(self) -> list[DeathRow]:
        """All of it, in the order of its coming. What was seen to end is not told a second time by a controller."""
        told = self._before + self._latest
        seen = sum(count for (what, _, _), count in self._own.items() if what == "worker")
        lost = sum(count for (what, _, _), count in told.items() if what == "worker")
        rows = [DeathRow(*kind, count) for kind, count in told.items() if kind[0] != "worker" or lost > seen]
        return [*rows, *(DeathRow(*kind, count) for kind, count in self._own.items())]
