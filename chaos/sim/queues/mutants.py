"""Defects in how pipelines share a cluster; see `headrace.chaos.sim.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.chaos.sim import Patch, around, says
from headrace.controller.core.cluster import (
    Claim,
    ClaimState,
    ClaimTurn,
    Controller,
    GoOn,
    QueuePlace,
    Queues,
    Scheduler,
)
from headrace.controller.core.messages import AnswerRequest, Command, PipelineRequested, QueueRequested, StopRequested
from headrace.controller.membership import Act, guard
from headrace.store.ledger import ClusterState, RunHeld


def _no_quota(_self: Scheduler, _claim: Claim, cores: int) -> int:
    return cores


def _given_twice(self: Scheduler, cores: int, queue: str | None = None) -> int:
    using = (item for item in self.claims.values() if item.state is ClaimState.GRANTED and queue in (None, item.queue))
    return sum(self.cores_of(item, cores) for item in using)


def _sealed_at_once(noted: Any, self: Queues) -> None:
    noted(self)
    for claim in self._scheduler.claims.values():
        if claim.state is ClaimState.SEALING:
            self._scheduler.note(claim.name, ClaimTurn.SEALED)


def _held_by_word(submitted: Any, self: Queues, change: Any, now: float) -> list[Command]:
    return self.durable(change, now) if isinstance(change, RunHeld) else submitted(self, change, now)


def _holds_forgotten(taken_over: Any, self: Queues, ledger: ClusterState) -> None:
    taken_over(self, ledger)
    for claim in self._scheduler.claims.values():
        if claim.state is ClaimState.SEALING:
            claim.state = ClaimState.GRANTED


def _waiting_forgotten(taken_over: Any, self: Queues, ledger: ClusterState) -> None:
    taken_over(self, ledger)
    for name in self.waiting:
        self._scheduler.claims.pop(name)
    self.waiting.clear()


def _never_on(decided: Any, self: Scheduler, *arguments: Any) -> Any:
    return [item for item in decided(self, *arguments) if not isinstance(item, GoOn)]


def _stopped_instead(durable: Any, self: Queues, change: Any, now: float) -> list[Command]:
    commands = durable(self, change, now)
    run = self._cluster.runs.get(change.name) if isinstance(change, RunHeld) and change.held else None
    return [*commands, *run.handle(StopRequested(change.name, cancel=True), now)] if run is not None else commands


def _in_parts(applied: Any, self: Queues, event: PipelineRequested, now: float) -> Any:
    return applied(self, replace(event, replicas=max(1, event.cores - 1)), now)


def _last_first(key: Any, self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    return tuple(-part for part in key(self, claim, cores))


def _answered_early(asked: Any, self: Queues, event: QueueRequested, now: float) -> list[Command]:
    commands = asked(self, event, now)
    return [*commands, *([] if commands else [AnswerRequest(event.request, accepted=True)])]


def _over_when_it_says_so(self: Queues, name: str) -> bool:
    run = self._cluster.runs.get(name)
    return run is None or run.ended


def _rules_forgotten(taken_over: Any, self: Queues, ledger: ClusterState) -> None:
    taken_over(self, replace(ledger, queues={}))


def _priority_inverted(key: Any, self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    first, *others = key(self, claim, cores)
    return (-first, *others)


def _weights_forgotten(key: Any, self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    first, _, *others = key(self, claim, cores)
    return (first, 0.0, *others)


def _users_forgotten(key: Any, self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    *others, _, number = key(self, claim, cores)
    return (*others, 0.0, number)


def _owner_of_runs(self: Controller, pipeline: str) -> str | None:
    return self.runs[pipeline].request.by if pipeline in self.runs else None


def _leaving_forgotten(led: Any, self: Controller) -> Any:
    commands = led(self)
    self.leaving.clear()
    return commands


def _share_of_all(_self: Scheduler, _rule: Any, cores: int, _outside: int) -> float:
    return cores


def _next_place(places: Any, self: Scheduler, cores: int) -> dict[str, QueuePlace]:
    return {name: replace(place, number=place.of + 1 - place.number) for name, place in places(self, cores).items()}


MUTANTS: dict[str, tuple[Patch, ...]] = {
    "quota-forgotten": ((Scheduler, "_room", _no_quota),),
    "cores-given-twice": ((Scheduler, "_used", _given_twice),),
    "sealed-at-once": (around(Queues, "_note_runs", _sealed_at_once),),
    "hold-not-in-the-log": (around(Queues, "_submit", _held_by_word),),
    "hold-forgotten": (around(Queues, "take_over", _holds_forgotten),),
    "waiting-forgotten": (around(Queues, "take_over", _waiting_forgotten),),
    "rules-forgotten": (around(Queues, "take_over", _rules_forgotten),),
    "never-goes-on": (around(Scheduler, "decide", _never_on),),
    "stopped-instead-of-held": (around(Queues, "durable", _stopped_instead),),
    "gang-in-parts": (around(Queues, "apply", _in_parts),),
    "last-comes-first": (around(Scheduler, "_key", _last_first),),
    "queue-answered-early": (around(Queues, "handle", _answered_early),),
    "priority-inverted": (around(Scheduler, "_key", _priority_inverted),),
    "least-for-weight-forgotten": (around(Scheduler, "_key", _weights_forgotten),),
    "users-forgotten": (around(Scheduler, "_key", _users_forgotten),),
    "fair-share-forgotten": ((Scheduler, "_share", _share_of_all),),
    "never-preempts": ((Scheduler, "_may_take", says(False)),),
    "others-cores-given": ((Queues, "outside", property(says(0))),),
    "stopped-by-anybody": ((guard, "RIGHTS", {**guard.RIGHTS, (guard.USER, Act.STOP): guard.Reach.ALL}),),
    "owner-of-who-waits-forgotten": ((Controller, "owner", _owner_of_runs),),
    "leaving-forgotten": (around(Controller, "_take_over", _leaving_forgotten),),
    "takes-from-anybody": ((Scheduler, "_may_take", says(True)),),
    "place-told-wrong": (around(Scheduler, "places", _next_place),),
    "over-before-durable": ((Queues, "_has_ended", _over_when_it_says_so),),
}
