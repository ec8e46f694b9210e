"""The number of the protocol that controllers and workers speak, and whether two releases understand each other. Pure.

One number stands for all that two of them exchange: the messages of `control.proto`, frames on links, and what tasks
write for others to read. Releases may differ as long as the ranges of numbers that they speak meet: see
docs/design/upgrade.md.
"""

from __future__ import annotations

from dataclasses import dataclass

#: What this release speaks, and the oldest number that it still understands.
PROTOCOL, PROTOCOL_OLDEST = 1, 1


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a process speaks: its release, for people, and its range of protocols. 0 is that of who names none."""

    release: str
    newest: int
    oldest: int


def spoken_here(release: str) -> Spoken:
    """What this process speaks."""
    return Spoken(release, PROTOCOL, PROTOCOL_OLDEST)


def why_foreign(who: str, theirs: Spoken, ours: Spoken) -> str:
    """Why `who` and a controller do not understand each other; empty if they do."""
    if 0 < theirs.oldest <= theirs.newest and theirs.oldest <= ours.newest and ours.oldest <= theirs.newest:
        return ""
    older = who if theirs.newest < ours.newest else "the controller"
    return (
        f"{who} is Headrace {theirs.release}, the controller {ours.release}: they speak protocol "
        f"{_range(theirs)} and {_range(ours)}; upgrade {older}"
    )


def _range(spoken: Spoken) -> str:
    return str(spoken.newest) if spoken.oldest == spoken.newest else f"{spoken.oldest} to {spoken.newest}"
