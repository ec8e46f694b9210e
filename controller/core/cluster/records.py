"""A plan and a request as plain values, for the cluster's log; and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from headrace.controller.core.messages import Allowance, ChangedInput, PipelineRequested, amending
from headrace.controller.core.plan import Change, LinkPlan, Need, Plan, RequestedChanges, TaskPlan
from headrace.controller.core.run import Run
from headrace.store.ledger import RunAmended, RunRecord


def plan_to_plain(plan: Plan) -> dict[str, Any]:
    """A plan as rows of values, with the names of the columns once."""
    return {
        "task": [item.name for item in fields(TaskPlan)],
        "tasks": [[_value(getattr(task, item.name)) for item in fields(TaskPlan)] for task in plan.tasks],
        "link": [item.name for item in fields(LinkPlan)],
        "links": [[getattr(link, item.name) for item in fields(LinkPlan)] for link in plan.links],
        "reasons": dict(plan.reasons),
    }


def _value(value: Any) -> Any:
    return asdict(value) if isinstance(value, Need) else value


def plan_from_plain(plain: Mapping[str, Any]) -> Plan:
    """The plan of these rows."""
    tasks = [dict(zip(plain["task"], row, strict=True)) for row in plain["tasks"]]
    links = [dict(zip(plain["link"], row, strict=True)) for row in plain["links"]]
    for task in tasks:
        task["stages"], task["need"] = tuple(task["stages"]), Need(**task["need"])
    return Plan(
        tuple(TaskPlan(**task) for task in tasks), tuple(LinkPlan(**link) for link in links), dict(plain["reasons"])
    )


def change_to_plain(pause: bool | None, change: Change) -> dict[str, Any]:
    """What was requested of a run."""
    parts = {"replicas": change.replicas, "places": change.places, "transports": change.transports}
    return {"pause": pause, **{name: dict(part) for name, part in parts.items()}}


def requested_of(record: RunRecord) -> RequestedChanges:
    """What people requested of a run, as the log has it."""
    waiting = tuple(_change(item) for item in record.waiting)
    made, broken = _change(record.wished), tuple(record.broken)
    return RequestedChanges(record.paused, record.held, made, waiting, record.gated, broken)


def _change(plain: Mapping[str, Any]) -> Change:
    return Change(plain.get("replicas", {}), plain.get("places", {}), plain.get("transports", {}))


_NOT_OPTIONS = ("request", "pipeline")


def options_of(event: PipelineRequested) -> dict[str, Any]:
    """All that a request says beside its pipeline."""
    plain = {name: value for name, value in asdict(event).items() if name not in _NOT_OPTIONS}
    return {**plain, "changed_input": event.changed_input.value}


def amended_of(name: str, run: Run) -> list[RunAmended]:
    """What the log is to have before a changed graph is taken up; nothing where it gets it already."""
    if (amended := run.amendment.to_record(run.works)) is None:
        return []
    request, plan = amended
    return [RunAmended(name, request.pipeline, options_of(amending(request, run.request)), plan_to_plain(plan))]


def request_of(pipeline: Mapping[str, Any], options: Mapping[str, Any]) -> PipelineRequested:
    """The request of these options; what this Headrace does not know of them is left out."""
    known = {item.name for item in fields(PipelineRequested)} - set(_NOT_OPTIONS)
    values = {name: value for name, value in options.items() if name in known}
    values["allowance"] = Allowance(**values.get("allowance", {}))
    values["changed_input"] = ChangedInput(values.get("changed_input", ChangedInput.HALT.value))
    return PipelineRequested(0, pipeline, **values)
