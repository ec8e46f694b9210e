"""The links of one run: which stand, between which attempts, and when one that was cut is made again.

A link inside a worker lives and dies with the tasks at its ends. One between workers can be cut while both live; then
an end of it says so, and it is made again with a higher generation, so that news of the old one moves nothing. Where
two workers of one host turn out to be unable to pass memory to each other, it is made by QUIC. Where one cannot reach
the other, RELAYS_MAX other workers are asked to relay it, and the first through which the two meet has it. If they meet
nowhere the straight way is tried again, then others are asked. Weakness: a link that is relayed stays so until it is
cut, also where the straight way is there again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.controller.core.messages import LinkLost, MakeLink, OpenRelay, RunningLink
from headrace.controller.core.plan import QUIC, LinkPlan, Plan, WorkerFacts
from headrace.controller.core.run.tasks.task_table import RunTask, TaskPhase, TaskTable

#: Seconds before a link that was cut is made again, doubled for each time in a row up to REMAKE_S_MAX.
REMAKE_S = 0.2
REMAKE_S_MAX = 5.0
#: Seconds after which a link that was not cut again counts as healed. Longer than an end takes to find it cut.
HEALED_S = 20.0
#: Seconds that two workers may be unable to reach each other before the run gives up.
CUT_S_MAX = 600.0
#: Times in a row that two workers may fail to pass memory before QUIC takes its place: one may have been starting.
APART_MAX = 2
#: Workers that are asked at once to relay a link.
RELAYS_MAX = 3
#: Makings of a link in one term: those of a later leader have higher numbers.
MAKINGS_A_TERM = 1 << 20


@dataclass(slots=True)
class _LinkState:
    """One link as it stands."""

    #: The attempts that it joins; None while it has to be made.
    pair: tuple[int, int] | None = None
    generation: int = 0
    made_at: float = 0.0
    #: Not before this is it made again.
    due_at: float = 0.0
    cuts: int = 0
    cut_since: float = 0.0
    trouble: str = ""
    #: Whether its workers have been found unable to pass memory to each other.
    apart: bool = False
    #: Whether the sender found the receiver at none of its addresses; then others relay the next making.
    unreachable: bool = False
    #: The workers that relay the present making, and how many have been asked before.
    relays: tuple[str, ...] = ()
    asked: int = 0


class RunLinks:
    """Every link of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._floor = 0
        self._links: dict[str, _LinkState] = {}
        self._transports: dict[str, str] = {}
        self.replan(plan)
        #: Links that workers say stand, made by an earlier leader.
        self._reported: dict[str, RunningLink] = {}

    def inherit(self, term: int) -> None:
        """An earlier leader may have had links made: number those of this one higher.

        What stands keeps its number: by that its ends will say that it was cut.
        """
        self._floor = max(self._floor, term * MAKINGS_A_TERM)

    def follow(self, other: RunLinks) -> None:
        """Number links above those of a plan whose names may come again here."""
        self._floor = max([self._floor, other._floor, *(state.generation for state in other._links.values())])

    def share(self, other: RunLinks, tasks: Container[str], plan: Plan) -> None:
        """Links between tasks that run beside those of another plan, and are of both, are one."""
        for link in plan.links:
            if link.sender in tasks and link.receiver in tasks:
                self._links[link.name] = other._links[link.name]

    def knows(self, link: str) -> bool:
        """Whether it is a link of the plan."""
        return link in self._links

    def reported(self, plan: Plan, worker: str, links: Sequence[RunningLink]) -> None:
        """A worker comes (back) and says which links stand: those and no others need not be made anew."""
        found_standing = {link.link: link for link in links}
        at = {task.name: task.worker for task in plan.tasks}
        for link in plan.links:
            if worker in (at[link.sender], at[link.receiver]):
                state, found = self._links[link.name], found_standing.get(link.name)
                if found is not None:
                    other = self._reported.get(link.name)
                    # Of two makings the newer one counts: the end that has it will find that nobody is there.
                    if other is None or other.generation < found.generation:
                        self._reported[link.name] = found
                elif state.pair is not None:
                    # It was ordered and has not come to be, or broke while nobody listened.
                    state.pair = None

    def replan(self, plan: Plan) -> None:
        """The links are those of another plan; those that it keeps stand."""
        before, transports = self._links, self._transports
        # A link that comes again must not take news of its earlier life for its own.
        self._floor = max([self._floor, *(state.generation for state in before.values())])
        self._transports = {link.name: link.transport for link in plan.links}
        self._links = {
            name: before[name] if transports.get(name) == transport else _LinkState(generation=self._floor)
            for name, transport in self._transports.items()
        }

    @property
    def missing(self) -> bool:
        """Whether a link is still to be made for the first time, or again."""
        return any(state.pair is None for state in self._links.values())

    def generation(self, link: str) -> int:
        """How often the link was made."""
        return self._links[link].generation

    def trouble(self, link: str) -> str:
        """Why the link was cut last, while it is not healed; for people."""
        return self._links[link].trouble

    def transport(self, link: LinkPlan) -> str:
        """What the link is made of: what was planned, or what takes its place."""
        return link.fallback if self._links[link.name].apart and link.fallback else link.transport

    def wake_at(self, plan: Plan, table: TaskTable) -> float | None:
        """When a link that was cut is due. One whose end is not ready waits for that, and not for a moment."""
        cut = {name for name, state in self._links.items() if state.pair is None and state.cuts}
        if not cut:
            return None
        due = [link.name for link in plan.links if link.name in cut and _ready(table, link)]
        return min((self._links[name].due_at for name in due), default=None)

    def lost(self, event: LinkLost, now: float) -> str | None:
        """An end found the link cut. None for old news, else why the run must give up, or an empty string."""
        state = self._links.get(event.link)
        found_standing = self._reported.get(event.link)
        if found_standing is not None and found_standing.generation == event.generation:
            # Its other end is not ready yet, so nobody has taken it up: it is to be made.
            del self._reported[event.link]
        if state is None or state.pair is None or state.generation != event.generation:
            return None
        if not state.cuts or now >= state.made_at + HEALED_S:
            state.cuts, state.cut_since = 0, now
        state.pair, state.trouble = None, event.reason
        state.due_at = now + min(REMAKE_S_MAX, REMAKE_S * 2**state.cuts)
        state.cuts += 1
        state.apart = state.apart or (event.apart and state.cuts >= APART_MAX)
        # A relayed making that found nobody either makes room for another try of the straight way.
        state.unreachable = event.unreachable and not state.relays
        if now >= state.cut_since + CUT_S_MAX:
            return f"link {event.link} could not be kept up for {CUT_S_MAX:.0f} s: {event.reason}"
        return ""

    def make(
        self, plan: Plan, table: TaskTable, epoch: int, now: float, workers: Mapping[str, WorkerFacts]
    ) -> list[MakeLink | OpenRelay]:
        """Join the tasks that are ready; each worker at an end of a link is told, and those that relay it."""
        commands: list[MakeLink | OpenRelay] = []
        for link in plan.links:
            state = self._links[link.name]
            sender, receiver = table.tasks[link.sender], table.tasks[link.receiver]
            pair = (sender.attempt, receiver.attempt)
            ready = sender.state is TaskPhase.READY and receiver.state is TaskPhase.READY
            if state.trouble and state.pair is not None and now >= state.made_at + HEALED_S:
                state.trouble, state.cuts = "", 0
            if not ready or state.pair == pair or (state.pair is None and now < state.due_at):
                continue
            found_standing = self._reported.pop(link.name, None)
            state.pair, state.made_at = pair, now
            if found_standing is not None and (found_standing.sender_attempt, found_standing.receiver_attempt) == pair:
                state.generation = found_standing.generation
                continue
            state.generation = max(state.generation, self._floor) + 1
            ends = dict.fromkeys((sender.plan.worker, receiver.plan.worker))
            made = replace(link, transport=self.transport(link))
            state.relays = _relays(state, ends, workers) if made.transport == QUIC else ()
            told = [_make(made, state, worker, sender, receiver, epoch) for worker in ends]
            commands += [OpenRelay(worker, told[0]) for worker in state.relays]
            commands += told
        return commands


def _ready(table: TaskTable, link: LinkPlan) -> bool:
    return all(table.tasks[name].state is TaskPhase.READY for name in (link.sender, link.receiver))


def _relays(state: _LinkState, ends: Container[str], workers: Mapping[str, WorkerFacts]) -> tuple[str, ...]:
    """The workers that are to relay a link; none where its ends may find each other."""
    able = sorted(worker.name for worker in workers.values() if worker.relays and worker.name not in ends)
    if not state.unreachable or not able:
        return ()
    count = min(RELAYS_MAX, len(able))
    chosen = tuple(able[(state.asked + step) % len(able)] for step in range(count))
    state.asked += count
    return chosen


def _make(link: LinkPlan, state: _LinkState, worker: str, sender: RunTask, receiver: RunTask, epoch: int) -> MakeLink:
    return MakeLink(
        worker=worker,
        link=link.name,
        transport=link.transport,
        sender=link.sender,
        sender_attempt=sender.attempt,
        sender_stage=link.sender_stage,
        receiver=link.receiver,
        receiver_attempt=receiver.attempt,
        receiver_stage=link.receiver_stage,
        epoch=epoch,
        sender_worker=sender.plan.worker,
        receiver_worker=receiver.plan.worker,
        addresses=receiver.addresses if link.transport == QUIC else (),
        generation=state.generation,
        relays=state.relays,
    )
