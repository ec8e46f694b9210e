"""Ends of tasks and workers that nobody had asked for, counted by name and cause for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Names and causes of one run that are told apart; what comes when there are as many is counted with OTHERS.
KINDS_MAX = 64
#: Characters of a cause.
CAUSE_MAX = 200


@dataclass(frozen=True, slots=True)
class Death:
    """Who died, and of what: `what` is `task` or `worker`, `name` its name, and `cause` a line."""

    what: str
    name: str
    cause: str


@dataclass(slots=True)
class Deaths:
    """How often each of them died, those that died first before the others."""

    counts: dict[Death, int] = field(default_factory=dict[Death, int])

    def note(self, what: str, name: str, cause: str) -> None:
        """One more."""
        line = " ".join(cause.split())
        death = Death(what, name, line if len(line) <= CAUSE_MAX else f"{line[: CAUSE_MAX - 1]}…")
        if death not in self.counts and len(self.counts) >= KINDS_MAX:
            death = Death(what, "others", "of causes that are not told apart any more")
        self.counts[death] = self.counts.get(death, 0) + 1
