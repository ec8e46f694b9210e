"""What lives on this worker, in the words of a registration: a new leader goes on with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class LiveTask:
    """One attempt that lives here: what it was started with, and what it said when it was ready."""

    attempt: int
    version: str
    epoch: int
    stages: tuple[str, ...]
    fenced: bool = False
    #: Whether what it remembers waits for its epoch.
    waits: bool = False
    ready: bool = False
    #: Whether it has had a link, cut since or not.
    linked: bool = False
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveLink:
    """A link with an end here, and the attempts that it joins."""

    sender: tuple[str, int]
    receiver: tuple[str, int]
    generation: int


class LiveTasks:
    """The tasks and links of one worker."""

    def __init__(self) -> None:
        self.tasks: dict[str, LiveTask] = {}
        self.links: dict[str, LiveLink] = {}

    def started(
        self,
        task: str,
        attempt: int,
        version: str,
        epoch: int,
        stages: Iterable[str],
        *,
        fenced: bool = False,
        waits: bool = False,
    ) -> None:
        """An attempt was started here."""
        self.tasks[task] = LiveTask(attempt, version, epoch, tuple(stages), fenced, waits)

    def serves(self, task: str, attempt: int) -> None:
        """An attempt was told that its epoch is raised."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            entry.waits = False

    def ready(self, task: str, attempt: int, facts: Mapping[str, str], addresses: tuple[str, ...] = ()) -> None:
        """An attempt has built its stages."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            entry.ready, entry.facts, entry.addresses = True, dict(facts), addresses

    def exited(self, task: str, attempt: int) -> None:
        """An attempt is gone, and its links with it."""
        entry = self.tasks.get(task)
        if entry is not None and entry.attempt == attempt:
            del self.tasks[task]
        for name in [name for name, link in self.links.items() if (task, attempt) in (link.sender, link.receiver)]:
            del self.links[name]

    def linked(self, link: str, sender: tuple[str, int], receiver: tuple[str, int], generation: int = 0) -> None:
        """A link was made that has an end here, if that end lives."""
        mine = [entry for name, entry in self.tasks.items() if (name, entry.attempt) in (sender, receiver)]
        for entry in mine:
            entry.linked = True
        if mine:
            self.links[link] = LiveLink(sender, receiver, generation)

    def cut(self, link: str, generation: int) -> None:
        """A link was found cut."""
        found = self.links.get(link)
        if found is not None and found.generation == generation:
            del self.links[link]
