"""Defects in how graph and plan change under flow, and in what a gate holds back; see `headrace.chaos.sim.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import structs

from headrace.chaos.sim.planting import Patch, around, says
from headrace.controller.core.messages import Command, ShardProposed, messages as core
from headrace.controller.core.run import (
    Amendment,
    AmendTurn,
    Committer,
    Inheritance,
    ProposalJudgement,
    Publishing,
    Run,
    RunState,
    Sweeps,
    Works,
    proposals,
)
from headrace.controller.core.run.input import Intake
from headrace.controller.core.run.tasks import RunTasks
from headrace.store.ledger import VersionPublished


def _judged_before_in_force(proposed: Any, self: proposals.Proposals, event: ShardProposed) -> Any:
    if self._ledger.pipeline_version == self._version:
        return proposed(self, event)
    judgement = self._committer.judge(event, self._version, self._ledger.epoch)
    if judgement.closed is not None:
        self._leadership.submit(judgement.closed)
    return []


def _named_anew(
    judge: Callable[..., ProposalJudgement], self: Committer, event: ShardProposed, version: str, epoch: int
) -> ProposalJudgement:
    return judge(self, structs.replace(event, version=version), version, epoch)


def _old_sources_read_on(begun: Any, self: Sweeps, passed: Any, *, all_read: bool, finish: bool) -> Any:
    return begun(self, replace(passed, leaving=frozenset()), all_read=all_read, finish=finish)


def _unrecorded(advanced: Any, self: Amendment, works: Works, state: RunState, now: float) -> list[Command]:
    return [*advanced(self, works, state, now), *self.take_up(works)]


def _left_at_once(self: Intake, _tasks: Any, since: int) -> bool:
    return self.sweep > since


def _index_of_its_own(begun_beside: Any, self: RunTasks, *arguments: Any) -> None:
    known = self.index
    begun_beside(self, *arguments)
    self.index = known


def _published_unasked(self: Publishing, version: VersionPublished) -> list[Command]:
    self._leadership.submit(version)
    return []


def _never_broken(audited: Any, self: Publishing, event: core.DatasetAudited, now: float) -> Any:
    return audited(self, replace(event, broken=()), now)


def _ready_at_once(_self: Amendment, works: Works) -> bool:
    return works.next is not None


def _left_in_the_same_epoch(self: Amendment, works: Works) -> None:
    works.on_trial, self.leave_by = False, None
    works.reader.tasks.inherit_guests(works.in_force.tasks)
    self._machine.turn(AmendTurn.LEFT)


def _decisions_forgotten(
    run_begun: Any, self: Run, request: Any, surroundings: Any, inheritance: Inheritance | None = None
) -> None:
    if inheritance is not None:
        inheritance = replace(inheritance, requested=replace(inheritance.requested, gated=None))
    run_begun(self, request, surroundings, inheritance)


#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "next-version-judged-early": (around(proposals.Proposals, "proposed", _judged_before_in_force),),
    "shard-named-anew": (around(Committer, "judge", _named_anew),),
    "old-sources-read-on": (around(Sweeps, "begin_if_due", _old_sources_read_on),),
    "graph-not-recorded": (around(Amendment, "advance", _unrecorded),),
    "gives-way-at-once": ((Intake, "have_left", _left_at_once),),
    "index-of-next-plan-alone": (around(RunTasks, "begin_beside", _index_of_its_own),),
    "who-stays-is-stopped": ((RunTasks, "inherit_guests", says(None)),),
    "gate-not-asked": ((Publishing, "_publish", _published_unasked),),
    "taken-up-untried": (
        (Amendment, "_is_ready", _ready_at_once),
        (Amendment, "_wrong", says("")),
        (Intake, "have_left", says(True)),
    ),
    "next-epoch-not-raised": ((Amendment, "_old_left", _left_in_the_same_epoch),),
    "gate-forgotten": (around(Run, "__init__", _decisions_forgotten),),
    "broken-gate-passed": (around(Publishing, "_audited", _never_broken),),
}
