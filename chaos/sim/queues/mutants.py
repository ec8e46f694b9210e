"""Defects in how pipelines share a cluster; see `headrace.chaos.sim.mutants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

_applied, _asked, _taken_over = Queues.apply, Queues.handle, Queues.take_over
_places = Scheduler.places
_key, _decided, _submitted, _durable = Scheduler._key, Scheduler.decide, Queues._submit, Queues.durable


def _no_quota(_self: Scheduler, _claim: Claim, cores: int) -> int:
    return cores


def _given_twice(self: Scheduler, cores: int, queue: str | None = None) -> int:
    using = (item for item in self.claims.values() if item.state is ClaimState.GRANTED and queue in (None, item.queue))
    return sum(self.cores_of(item, cores) for item in using)


def _sealed_at_once(self: Queues) -> None:
    _noted(self)
    for claim in self._scheduler.claims.values():
        if claim.state is ClaimState.SEALING:
            self._scheduler.note(claim.name, ClaimTurn.SEALED)


_noted = Queues._note_runs


def _held_by_word(self: Queues, change: Any, now: float) -> list[Command]:
    return self.durable(change, now) if isinstance(change, RunHeld) else _submitted(self, change, now)


def _holds_forgotten(self: Queues, ledger: ClusterState) -> None:
    _taken_over(self, ledger)
    for claim in self._scheduler.claims.values():
        if claim.state is ClaimState.SEALING:
            claim.state = ClaimState.GRANTED


def _waiting_forgotten(self: Queues, ledger: ClusterState) -> None:
    _taken_over(self, ledger)
    for name in self.waiting:
        self._scheduler.claims.pop(name)
    self.waiting.clear()


def _never_on(self: Scheduler, *arguments: Any) -> Any:
    return [item for item in _decided(self, *arguments) if not isinstance(item, GoOn)]


def _stopped_instead(self: Queues, change: Any, now: float) -> list[Command]:
    commands = _durable(self, change, now)
    run = self._cluster.runs.get(change.name) if isinstance(change, RunHeld) and change.held else None
    return [*commands, *run.handle(StopRequested(change.name, cancel=True), now)] if run is not None else commands


def _in_parts(self: Queues, event: PipelineRequested, now: float) -> list[Command]:
    return _applied(self, replace(event, replicas=max(1, event.cores - 1)), now)


def _last_first(self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    return tuple(-part for part in _key(self, claim, cores))


def _answered_early(self: Queues, event: QueueRequested, now: float) -> list[Command]:
    commands = _asked(self, event, now)
    return [*commands, *([] if commands else [AnswerRequest(event.request, accepted=True)])]


def _over_when_it_says_so(self: Queues, name: str) -> bool:
    run = self._cluster.runs.get(name)
    return run is None or run.ended


def _rules_forgotten(self: Queues, ledger: ClusterState) -> None:
    _taken_over(self, replace(ledger, queues={}))


def _priority_inverted(self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    first, *others = _key(self, claim, cores)
    return (-first, *others)


def _weights_forgotten(self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    first, _, *others = _key(self, claim, cores)
    return (first, 0.0, *others)


def _users_forgotten(self: Scheduler, claim: Claim, cores: int) -> tuple[float, ...]:
    *others, _, number = _key(self, claim, cores)
    return (*others, 0.0, number)


def _owner_of_runs(self: Controller, pipeline: str) -> str | None:
    return self.runs[pipeline].request.by if pipeline in self.runs else None


def _leaving_forgotten(self: Controller) -> list[Command]:
    commands = _led(self)
    self.leaving.clear()
    return commands


_led = Controller._take_over


def _none_outside(_self: Queues) -> int:
    return 0


def _share_of_all(_self: Scheduler, _rule: Any, cores: int, _outside: int) -> float:
    return cores


def _never_taken(_self: Scheduler, *_arguments: Any) -> bool:
    return False


def _always_taken(_self: Scheduler, *_arguments: Any) -> bool:
    return True


def _next_place(self: Scheduler, cores: int) -> dict[str, QueuePlace]:
    return {name: replace(place, number=place.of + 1 - place.number) for name, place in _places(self, cores).items()}


MUTANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "quota-forgotten": ((Scheduler, "_room", _no_quota),),
    "cores-given-twice": ((Scheduler, "_used", _given_twice),),
    "sealed-at-once": ((Queues, "_note_runs", _sealed_at_once),),
    "hold-not-in-the-log": ((Queues, "_submit", _held_by_word),),
    "hold-forgotten": ((Queues, "take_over", _holds_forgotten),),
    "waiting-forgotten": ((Queues, "take_over", _waiting_forgotten),),
    "rules-forgotten": ((Queues, "take_over", _rules_forgotten),),
    "never-goes-on": ((Scheduler, "decide", _never_on),),
    "stopped-instead-of-held": ((Queues, "durable", _stopped_instead),),
    "gang-in-parts": ((Queues, "apply", _in_parts),),
    "last-comes-first": ((Scheduler, "_key", _last_first),),
    "queue-answered-early": ((Queues, "handle", _answered_early),),
    "priority-inverted": ((Scheduler, "_key", _priority_inverted),),
    "least-for-weight-forgotten": ((Scheduler, "_key", _weights_forgotten),),
    "users-forgotten": ((Scheduler, "_key", _users_forgotten),),
    "fair-share-forgotten": ((Scheduler, "_share", _share_of_all),),
    "never-preempts": ((Scheduler, "_may_take", _never_taken),),
    "others-cores-given": ((Queues, "outside", property(_none_outside)),),
    "stopped-by-anybody": ((guard, "RIGHTS", {**guard.RIGHTS, (guard.USER, Act.STOP): guard.Reach.ALL}),),
    "owner-of-who-waits-forgotten": ((Controller, "owner", _owner_of_runs),),
    "leaving-forgotten": ((Controller, "_take_over", _leaving_forgotten),),
    "takes-from-anybody": ((Scheduler, "_may_take", _always_taken),),
    "place-told-wrong": ((Scheduler, "places", _next_place),),
    "over-before-durable": ((Queues, "_has_ended", _over_when_it_says_so),),
}
