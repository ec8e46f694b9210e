"""Defects in how graph and plan change under flow, and in what a gate holds back; see `headrace.chaos.sim.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

_proposed = proposals.Proposals.proposed
_judge = Committer.judge


def _judged_before_in_force(self: proposals.Proposals, event: ShardProposed) -> list[Command]:
    if self._ledger.pipeline_version == self._version:
        return _proposed(self, event)
    judgement = self._committer.judge(event, self._version, self._ledger.epoch)
    if judgement.closed is not None:
        self._leadership.submit(judgement.closed)
    return []


def _named_anew(self: Committer, event: ShardProposed, version: str, epoch: int) -> ProposalJudgement:
    return _judge(self, replace(event, version=version), version, epoch)


def _old_sources_read_on(self: Sweeps, passed: Any, *, all_read: bool, finish: bool) -> list[Command]:
    return _begun(self, replace(passed, leaving=frozenset()), all_read=all_read, finish=finish)


_begun = Sweeps.begin_if_due


def _unrecorded(self: Amendment, works: Works, state: RunState, now: float) -> list[Command]:
    return [*_advanced(self, works, state, now), *self.take_up(works)]


_advanced = Amendment.advance


def _left_at_once(self: Intake, _tasks: Any, since: int) -> bool:
    return self.sweep > since


def _index_of_its_own(self: RunTasks, other: RunTasks, guests: frozenset[str], ahead: int = 0) -> None:
    known = self.index
    _begun_beside(self, other, guests, ahead)
    self.index = known


_begun_beside = RunTasks.begin_beside


def _nobodys(_self: RunTasks, _other: RunTasks) -> None:
    return


def _published_unasked(self: Publishing, version: VersionPublished) -> list[Command]:
    self._leadership.submit(version)
    return []


def _never_broken(self: Publishing, event: core.DatasetAudited, now: float) -> str:
    return _audited(self, replace(event, broken=()), now)


_audited = Publishing._audited


def _nothing_wrong(_self: Amendment, _works: Works, _state: RunState) -> str:
    return ""


def _ready_at_once(_self: Amendment, works: Works) -> bool:
    return works.next is not None


def _left_untold(_self: Intake, _tasks: Any, _since: int) -> bool:
    return True


def _left_in_the_same_epoch(self: Amendment, works: Works) -> None:
    works.on_trial, self.leave_by = False, None
    works.reader.tasks.inherit_guests(works.in_force.tasks)
    self._machine.turn(AmendTurn.LEFT)


def _decisions_forgotten(self: Run, request: Any, surroundings: Any, inheritance: Inheritance | None = None) -> None:
    if inheritance is not None:
        inheritance = replace(inheritance, requested=replace(inheritance.requested, gated=None))
    _run_begun(self, request, surroundings, inheritance)


_run_begun = Run.__init__


#: Mutants by name: what is patched with what.
MUTANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "next-version-judged-early": ((proposals.Proposals, "proposed", _judged_before_in_force),),
    "shard-named-anew": ((Committer, "judge", _named_anew),),
    "old-sources-read-on": ((Sweeps, "begin_if_due", _old_sources_read_on),),
    "graph-not-recorded": ((Amendment, "advance", _unrecorded),),
    "gives-way-at-once": ((Intake, "have_left", _left_at_once),),
    "index-of-next-plan-alone": ((RunTasks, "begin_beside", _index_of_its_own),),
    "who-stays-is-stopped": ((RunTasks, "inherit_guests", _nobodys),),
    "gate-not-asked": ((Publishing, "_publish", _published_unasked),),
    "taken-up-untried": (
        (Amendment, "_is_ready", _ready_at_once),
        (Amendment, "_wrong", _nothing_wrong),
        (Intake, "have_left", _left_untold),
    ),
    "next-epoch-not-raised": ((Amendment, "_old_left", _left_in_the_same_epoch),),
    "gate-forgotten": ((Run, "__init__", _decisions_forgotten),),
    "broken-gate-passed": ((Publishing, "_audited", _never_broken),),
}
