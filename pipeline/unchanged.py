"""Which stages of two pipelines do the same: by graph, parameters, code and environment.

Of the user's code counts what a stage's function may reach in its module, and each other module whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.pipeline.code import fingerprint, fingerprint_of
from headrace.pipeline.graph import Pipeline, Stage, StageKind, difference

#: Modules of this begin with it; all others are the user's.
_OWN = "headrace"
_CODE = "function_code"


def unchanged_stages(before: Pipeline, now: Pipeline) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """By source, the transforms between it and the first stage that is another; and by source why there are no more.

    A path ends before a stage that remembers, a sink and a branch too.
    """
    stages: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    known = {stage.name for stage in before.stages}
    for source in now.of_kind(StageKind.SOURCE):
        path: list[str] = []
        name = source.name
        reason = _change(before, now, name) if name in known else f'stage "{name}" is new'
        while not reason:
            following, earlier = now.downstream(name), before.downstream(name)
            reason = _step(now, name, following, earlier) or _change(before, now, following[0])
            if not reason:
                path.append(name := following[0])
        stages[source.name], reasons[source.name] = tuple(path), reason
    return stages, reasons


def first_change(before: Pipeline, now: Pipeline) -> str:
    """The first stage, in declared order, that is new, does something else or stands elsewhere; "" for none."""
    known = {stage.name: stage for stage in before.stages}
    for stage in now.stages:
        earlier = known.get(stage.name)
        if earlier is None or earlier.after != stage.after or _change(before, now, stage.name):
            return stage.name
    return ""


def _step(now: Pipeline, name: str, following: tuple[str, ...], earlier: tuple[str, ...]) -> str:
    """Why records may not be followed from a stage to the next one; "" if they may."""
    if following != earlier:
        return f'stage "{name}" leads to {_names(following)}, and led to {_names(earlier)}'
    if len(following) != 1:
        return f'behind stage "{name}" the graph branches'
    stage = now.stage(following[0])
    if stage.kind is StageKind.STATEFUL:
        return f'stage "{stage.name}" remembers what it let through, and has to see all of it'
    return f'stage "{stage.name}" is the sink' if stage.kind is StageKind.SINK else ""


def _names(stages: tuple[str, ...]) -> str:
    return ", ".join(f'"{stage}"' for stage in stages) or "nothing"


def _change(before: Pipeline, now: Pipeline, name: str) -> str:
    lines = difference(_facts(before, before.stage(name), now), _facts(now, now.stage(name), before))
    return f'stage "{name}" is another: {lines[0]}' if lines else ""


def _facts(pipeline: Pipeline, stage: Stage, other: Pipeline) -> dict[str, Any]:
    """What decides what a stage does with a record."""
    parameters = {key: value for key, value in stage.parameters.items() if key not in stage.volatile}
    facts: dict[str, Any] = {"kind": stage.kind.value, "target": stage.target, **parameters}
    facts |= {f"identity {key}": value for key, value in stage.identity.items()}
    paths = [stage.target, *(text for text in stage.parameters.values() if isinstance(text, str) and ":" in text)]
    own = [path.partition(":") for path in paths if path.partition(":")[0] in pipeline.modules]
    for module, _, attribute in own:
        # What the module has for other stages is no part of this one.
        facts[f"code of {module}:{attribute}"] = fingerprint_of(pipeline.modules[module], attribute)
        facts.pop(f"identity {_CODE}", None)
    is_users = any(path.partition(":")[0].partition(".")[0] != _OWN for path in (stage.target, *_functions(stage)))
    if is_users:
        called = {module for module, _, _ in own}
        facts |= {f"code of {name}": fingerprint(text) for name, text in pipeline.modules.items() if name not in called}
    shared = pipeline.environment.keys() & other.environment.keys()
    locked: Mapping[str, str] = pipeline.environment
    return facts | {f"version of {name}": text for name, text in locked.items() if is_users or name in shared}


def _functions(stage: Stage) -> tuple[str, ...]:
    function = stage.parameters.get("function")
    return (function,) if isinstance(function, str) else ()
