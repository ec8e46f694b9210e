"""Links between the workers of a simulated cluster: made when both ends have been told, and cut whole, as QUIC is.

A network that loses, doubles or reorders datagrams is a matter below these links: the transport mends it, or the link
is cut. So what befalls them here is what the cores can see of it: they are cut, for a while they cannot be made, and an
end dials with an old ticket. Where a frame is harmed all the same (`links.Harm`), the link must find it out, or do
without.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.chaos.sim.network.links import SimulatedLink
from headrace.chaos.sim.world import ViolationError, World
from headrace.cluster import TicketError, match_ticket
from headrace.controller.core.messages import messages as core

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import SimulatedTask, SimulatedWorker

#: Seconds after which an end that hears nothing of the other gives up.
DIAL_S = 5.0


@dataclass(slots=True)
class _End:
    worker: SimulatedWorker
    task: SimulatedTask
    ticket: bytes


@dataclass(slots=True)
class _Wire:
    """One making of a link: the ends that have been told of it, by worker, and the link."""

    command: core.MakeLink
    ends: dict[str, _End]
    link: SimulatedLink
    over: bool = False


class Wires:
    """All links between workers of one cluster."""

    def __init__(self, world: World, window_bytes: int) -> None:
        self._world, self._window_bytes = world, window_bytes
        #: By link and attempts: another leader may join other attempts under the same name.
        self._wires: dict[tuple[str, int, int], _Wire] = {}
        #: Every ticket that was given to an end, with the name of its link.
        self._tickets: list[tuple[str, bytes]] = []
        #: Fragments of which a fault let a frame arrive late, or twice.
        self.strayed: set[bytes] = set()
        #: Workers that cannot reach each other, and until when.
        self._apart: dict[frozenset[str], float] = {}

    def told(self, worker: SimulatedWorker, command: core.MakeLink, ticket: bytes) -> None:
        """A worker is told to make its end of a link."""
        mine = command.sender_worker == worker.name
        name = (command.sender, command.sender_attempt) if mine else (command.receiver, command.receiver_attempt)
        task = worker.tasks.get(name)
        if task is None:
            return
        key = command.link, command.sender_attempt, command.receiver_attempt
        self.replace(worker, task, command)
        wire = self._wires.get(key)
        if wire is None or wire.over or wire.command.generation != command.generation:
            if wire is not None:
                # Whoever is told first of another making, an end of the one before finds that nobody is there.
                self._lose(wire, "another making takes its place")
            window = self._window_bytes
            link = SimulatedLink(self._world, command, None, None, window)
            wire = self._wires[key] = _Wire(command, {}, link)
            link.strayed = self.strayed
            link.cut = functools.partial(self._lose, wire)
        wire.ends[worker.name] = _End(worker, task, ticket)
        wire.link.join(task, sends=mine)
        task.deliver(("open", wire.link))
        self._tickets.append((command.link, ticket))
        world = self._world
        if len(wire.ends) == 2 and not self._parted(wire) and self._matched(wire):
            wire.link.meet()
        else:
            world.after(world.between(1.0, DIAL_S), self._give_up, wire)

    def replace(self, worker: SimulatedWorker, task: SimulatedTask, command: core.MakeLink) -> None:
        """A task has one end of that name: the one before is closed without a word, and its peer finds that out."""
        key = command.link, command.sender_attempt, command.receiver_attempt
        for other, wire in self._wires.items():
            end = wire.ends.get(worker.name) if other[0] == command.link and not wire.over else None
            same = other == key and wire.command.generation == command.generation
            if end is not None and end.task is task and not same:
                del wire.ends[worker.name]
                task.deliver(("close", wire.link))
                self._lose(wire, "another making takes its place")

    def _matched(self, wire: _Wire) -> bool:
        """Whether both ends were given the same ticket, as the receiver's end looks."""
        one, other = wire.ends.values()
        try:
            match_ticket(one.ticket, other.ticket)
        except TicketError:
            return False
        return True

    def dial_again(self, rng: random.Random) -> bool:
        """20: an end of an earlier making, or of a dead attempt, dials with the ticket that it had, and is refused."""
        standing = [wire for wire in self._wires.values() if wire.link.stands and not wire.over]
        wire = rng.choice(standing) if standing else None
        old = {ticket for link, ticket in self._tickets if wire is not None and link == wire.command.link}
        ours = {end.ticket for end in wire.ends.values()} if wire is not None else set[bytes]()
        for ticket in sorted(old - ours):
            for mine in ours:
                try:
                    match_ticket(ticket, mine)
                except TicketError:
                    continue
                raise ViolationError(20, "a link is opened with the ticket of an earlier making")
        return bool(old - ours)

    def standing(self) -> list[SimulatedLink]:
        """The links that stand."""
        return [wire.link for wire in self._wires.values() if wire.link.stands and not wire.over]

    def between(self) -> list[frozenset[str]]:
        """The pairs of workers that are joined."""
        pairs = {frozenset(wire.ends) for wire in self._wires.values() if wire.link.stands and not wire.over}
        return sorted(pairs, key=sorted)

    def part(self, pair: frozenset[str], for_s: float) -> None:
        """Two workers cannot reach each other for a while; links between them are cut."""
        self._apart[pair] = self._world.now + for_s
        for wire in list(self._wires.values()):
            if frozenset(wire.ends) == pair:
                self._lose(wire, "parted by a fault")

    def heal(self) -> None:
        """Everybody can reach everybody."""
        self._apart.clear()

    def task_gone(self, task: str, attempt: int) -> None:
        """A task is dead: its peers find their links cut."""
        for wire in list(self._wires.values()):
            if any((end.task.name, end.task.attempt) == (task, attempt) for end in wire.ends.values()):
                self._lose(wire, f"{task} is gone")

    def worker_gone(self, worker: str) -> None:
        """A node is dead, and nobody there says anything."""
        for wire in list(self._wires.values()):
            if wire.ends.pop(worker, None) is not None:
                self._lose(wire, f"{worker} is gone")

    def unreached(self, worker: str) -> None:
        """A node has been silent for long: links with it are cut."""
        for wire in list(self._wires.values()):
            if worker in wire.ends:
                self._lose(wire, f"{worker} is silent")

    def _parted(self, wire: _Wire) -> bool:
        return self._world.now < self._apart.get(frozenset(wire.ends), 0.0)

    def _give_up(self, wire: _Wire) -> None:
        if not wire.link.stands:
            self._lose(wire, "the other end does not answer")

    def _lose(self, wire: _Wire, reason: str) -> None:
        """Each end that lives finds the link cut, in its own time."""
        if wire.over:
            return
        self._close(wire)
        world = self._world
        for end in wire.ends.values():
            world.after(world.between(0.01, 2.0), self._found_cut, wire, end, reason)

    def _found_cut(self, wire: _Wire, end: _End, reason: str) -> None:
        if end.task.alive and end.worker.alive:
            end.worker.link_cut(end.task.name, end.task.attempt, wire.command.link, wire.command.generation, reason)

    def _close(self, wire: _Wire) -> None:
        wire.over = True
        if wire.link.open:
            wire.link.open = False
            for end in wire.ends.values():
                end.task.deliver(("close", wire.link))
