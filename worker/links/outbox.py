"""The sending side of a task: for each downstream stage the links to its replicas, and the batch that waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from headrace.transport import LinkAborted

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)


class OutputEnd(Protocol[F_contra]):
    """As much of a `Sender` as an outbox needs."""

    def credit_bytes(self) -> int:
        """See `Sender`."""
        ...

    def try_send(self, frame: F_contra, /) -> bool:
        """See `Sender`."""
        ...

    def close(self) -> None:
        """See `Sender`."""
        ...


class Outbox(Generic[F]):
    """Sends each batch to one replica of every downstream stage, the one with the most credit.

    Of those with the same credit it is the one that has waited longest for a batch: replicas that keep up always have
    all of theirs, and one of them would do the work of all.

    One batch waits at most; while it does the task takes no other, which is all that backpressure is.
    """

    def __init__(self, stages: tuple[str, ...], cut: Callable[[str, str], None]) -> None:
        self._cut = cut
        self._links: dict[str, dict[str, OutputEnd[F]]] = {stage: {} for stage in stages}
        self._waiting: deque[tuple[str, F]] = deque()
        #: The last marker that each link has taken.
        self._marked: dict[str, int] = {}
        #: How many batches had been sent when the link got its last one.
        self._served: dict[str, int] = {}
        self._sent = 0

    @property
    def empty(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def senders(self) -> list[OutputEnd[F]]:
        """Every sender."""
        return [sender for links in self._links.values() for sender in links.values()]

    def awaited(self) -> list[OutputEnd[F]]:
        """Those to wait on, all of which `flush` or `mark` has looked at: news of another would end each wait at once.

        They are those of the batch that waits, or all for a marker.
        """
        return list(self._links[self._waiting[0][0]].values()) if self._waiting else self.senders()

    def open(self, stage: str, link: str, sender: OutputEnd[F]) -> None:
        """A link to a replica of `stage` stands."""
        self._links[stage][link] = sender
        self._marked.pop(link, None)
        self._served.pop(link, None)

    def close(self, link: str) -> None:
        """A link is gone."""
        self._served.pop(link, None)
        for links in self._links.values():
            links.pop(link, None)

    def put(self, frame: F, stages: tuple[str, ...] | None = None) -> None:
        """Queue a frame for every downstream stage, or for these, and send what can be sent."""
        self._waiting.extend((stage, frame) for stage in (self._links if stages is None else stages))
        self.flush()

    def clear(self) -> None:
        """Let go of what waits."""
        self._waiting.clear()

    def mark(self, frame: F, sweep: int) -> bool:
        """Send a marker on every link; False if one had no room: then call again with the same marker."""
        done = True
        for links in self._links.values():
            for link in list(links):
                if self._marked.get(link) == sweep:
                    self._look(links, link)
                elif self._mark(links, link, frame):
                    self._marked[link] = sweep
                else:
                    done = False
        return done

    def flush(self) -> bool:
        """Send what waits; whether anything moved."""
        moved = False
        while self._waiting:
            stage, frame = self._waiting[0]
            if not self._send(stage, frame):
                break
            self._waiting.popleft()
            moved = True
        return moved

    def finish(self) -> None:
        """Close every link in order."""
        for sender in self.senders():
            sender.close()

    def _send(self, stage: str, frame: F) -> bool:
        links = self._links[stage]
        offers: list[tuple[int, int, str]] = []
        for name, sender in list(links.items()):
            try:
                offers.append((-sender.credit_bytes(), self._served.get(name, 0), name))
            except LinkAborted as end:
                self._drop(links, name, end)
        for _, _, name in sorted(offers):
            try:
                if links[name].try_send(frame):
                    self._sent += 1
                    self._served[name] = self._sent
                    return True
            except LinkAborted as end:
                self._drop(links, name, end)
        return False

    def _mark(self, links: dict[str, OutputEnd[F]], link: str, frame: F) -> bool:
        try:
            return links[link].try_send(frame)
        except LinkAborted as end:
            self._drop(links, link, end)
            return True

    def _look(self, links: dict[str, OutputEnd[F]], link: str) -> None:
        try:
            links[link].credit_bytes()
        except LinkAborted as end:
            self._drop(links, link, end)

    def _drop(self, links: dict[str, OutputEnd[F]], link: str, end: LinkAborted) -> None:
        """A link was cut; what was on it the sweep finds."""
        del links[link]
        self._cut(link, end.reason)
