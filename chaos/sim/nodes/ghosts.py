"""A sink that was given up as lost wakes, and proposes parts of what another sink has by now.

It acts out a rare coincidence: the range was read again, and both are about to propose it. What the ghost has may even
be another verdict, since a record that kills at some times only has killed it and not the other. And it may lean on a
record that is not in the log yet, as one does whose answer was to another question.

It speaks in the name of the sink that it comes before, since an attempt is believed by the session of its worker alone
and not every sink has had an attempt before this one. Answers to it are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.chaos.sim.nodes.parts import Member
from headrace.chaos.sim.storage import CALM
from headrace.chaos.sim.world import GHOST_PROPOSALS, Name, Part
from headrace.controller.core.messages import ShardProposed
from headrace.store.ledger import Range

#: Share of ghosts whose record killed them, and of those that meet a log that does not answer; for seconds.
KILLED_SHARE, SILENT_SHARE, SILENT_S = 0.5, 0.5, (0.3, 2.0)

Make = Callable[[int, tuple[Part, ...]], ShardProposed]


def leaning_within(content: Sequence[Part]) -> tuple[Name, Name] | None:
    """A duplicate of a shard, and the record of the same shard that it names; None if there is none."""
    for part in content:
        for row, target in part.duplicates:
            if _holder(content, target) is not None:
                return (part.item.fragment, row), target
    return None


def wake(task: Member, content: Sequence[Part], make: Make) -> bool:
    """Propose a record that others of this shard lean on, and then one that leans on it. False if there is none."""
    pair = leaning_within(content)
    if pair is None:
        return False
    world, cluster = task.cluster.world, task.cluster
    duplicate, target = pair
    kept = _one(content, target)
    if world.chance(KILLED_SHARE):
        cluster.corpus.spook(target)
        kept = kept._replace(kept=0, other=1, quarantined=1)
    if world.chance(SILENT_SHARE):
        cluster.log.error_share = 1.0
        world.after(world.between(*SILENT_S), _answer_again, task)
    world.note(task.name, "is haunted: a ghost proposes", (kept, duplicate))
    task.say(make(GHOST_PROPOSALS, (kept,)))
    task.say(make(GHOST_PROPOSALS + 1, (_one(content, duplicate),)))
    return True


def _answer_again(task: Member) -> None:
    task.cluster.log.error_share = 0.0 if task.cluster.quiet else CALM


def _holder(content: Sequence[Part], name: Name) -> Part | None:
    fragment, row = name
    for part in content:
        if part.item.fragment == fragment and part.item.first <= row < part.item.end:
            return part if part.kept >> (row - part.item.first) & 1 else None
    return None


def _one(content: Sequence[Part], name: Name) -> Part:
    item = Range(name[0], name[1], 1)
    return next(part for part in content if part.holds(item)).cut(item)
