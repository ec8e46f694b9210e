"""`headrace pause`, `resume`, `scale`, `move`, `relink`, `insert`, `replace`, `remove`, `drain`, `stop`, and others.

Each returns when the controller has accepted the request, or with `--wait` when it is done. A change of the graph
returns when the next version is in force, or was rolled back.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from headrace.cli.commands import GivenCode, check_canary, try_canary
from headrace.cli.ui import CanaryOptions, print_json, read_ledger, safe
from headrace.client import ENDED, MODULE, Client, CliError, ControllerAt, UsageError, load, pipeline_of
from headrace.cluster import PEOPLE
from headrace.pipeline import Pipeline, Stage
from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Seconds that `--wait` waits: what is held must be written and committed, and new tasks start.
WAIT_S = 300.0
#: Seconds between two looks.
LOOK_S = 0.1
_PEOPLE = tuple(role.value for role in PEOPLE)


def pause(at: ControllerAt, pipeline: str, *, on: bool, wait: bool, as_json: bool) -> int:
    """Have a pipeline stand still, with all that is held committed, or go on; the exit code."""
    said = "resumes" if not on else "is paused" if wait else "pauses: its sinks commit what they hold"
    wanted = "paused" if on else "running"
    request = pb.SteerRequest(pipeline=pipeline, pause=on)
    return _steer(at, request, said, lambda status: status.state == wanted, wait=wait, as_json=as_json)


def replan(at: ControllerAt, pipeline: str, *, wait: bool, as_json: bool, **change: Mapping[str, Any]) -> int:
    """Change the `replicas`, `places` or `transports` of stages; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, **cast("Any", change))
    return _steer(at, request, "has a new plan", _changed, wait=wait, as_json=as_json)


def surgery(
    at: ControllerAt,
    name: str,
    expression: str,
    given: Sequence[str],
    edit: Callable[[Pipeline, Sequence[Stage]], Pipeline],
    *,
    dry_run: bool,
    canary: CanaryOptions,
    as_json: bool,
) -> int:
    """Change the graph of a running pipeline, or say how; the exit code."""
    check_canary(canary, dry_run=dry_run)
    facts: dict[str, Any] | None = {}
    stages, modules = stages_of(expression, given) if expression else ((), dict[str, str]())
    with Client(at) as client:
        status = pipeline_of(client.status(name), name)
        if status is None:
            raise CliError(f"the controller at {at.address} knows no pipeline {name!r}; see `headrace status`")
        if not (declared := read_ledger(status.dataset).pipeline):
            raise CliError(
                f"pipeline {name!r} is {status.state}, and its dataset has no graph yet that could be changed"
            )
        before = Pipeline.from_dict(declared)
        if before.modules and modules:
            from headrace.stages.shipping import beside

            stages, modules = beside(stages, modules, before.modules, MODULE)
        if other := [module for module, text in modules.items() if before.modules.get(module, text) != text]:
            raise CliError(
                f"module {other[0]!r} is not as pipeline {name!r} has it, and other stages may use it: give the "
                "pipeline's file whole, with `headrace apply --amend`"
            )
        after = edit(replace(before, modules={**before.modules, **modules}), stages)
        if canary.share:
            given_by_user = GivenCode(stages, modules)
            facts = try_canary(status.dataset, after, given_by_user, canary, as_json=as_json)
        if facts is None:
            return 0
        reply = client.amend(after, was=before.version(), dry_run=dry_run)
    if dry_run:
        from headrace.cli.commands import show_plan

        show_plan(name, reply.plan, as_json=as_json)
        return 0
    version = after.version()
    words = f"pipeline {safe(name)} has version {version} from now on; what is closed stays as it was"
    made = {"pipeline": name, "version": version, "was": before.version()} | ({"canary": facts} if facts else {})
    print(json.dumps(made) if as_json else "\n".join([*map(safe, reply.warnings)] or [words]))
    return 0


def stages_of(expression: str, given: Sequence[str]) -> tuple[tuple[Stage, ...], dict[str, str]]:
    """The stage that an expression names, of two parts for dedup, and the user's modules that it needs.

    It is a call of a stage of the library with literal arguments, or FILE.py:NAME, a stage of that file's pipeline.
    Raises UsageError.
    """
    path, colon, name = expression.rpartition(":")
    if colon and path.endswith(".py"):
        declared = load(Path(path), given)
        known = [stage.name for stage in declared.stages]
        if name not in known:
            raise UsageError(f"{path} declares no stage {name!r}; it has {', '.join(known)}")
        return tuple(map(declared.stage, declared.unit(name))), dict(declared.modules)
    if given:
        raise UsageError(f"-p {given[0]}: build() of FILE.py:NAME takes it; a call takes its arguments in brackets")
    from importlib import import_module

    from headrace.stages.shipping import modules_of

    library = import_module("headrace.stages.library")

    try:
        call = ast.parse(expression.strip(), mode="eval").body
        function = call.func if isinstance(call, ast.Call) else call
        if not isinstance(function, ast.Name):
            raise ValueError("no call of a name")
        arguments = [ast.literal_eval(item) for item in call.args] if isinstance(call, ast.Call) else []
        pairs = call.keywords if isinstance(call, ast.Call) else []
        if any(item.arg is None for item in pairs):
            raise ValueError("arguments by ** have no names")
        named = {str(item.arg): ast.literal_eval(item.value) for item in pairs}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"{expression[:200]!r} is no stage: give a call with literal arguments, such as "
            f"'gopher_quality(words_min=80)', or FILE.py:NAME ({error})"
        ) from error
    make = None if function.id.startswith("_") else getattr(library, function.id, None)
    if make is None or not callable(make) or isinstance(make, type):
        raise UsageError(
            f"the library has no stage {function.id!r}; see docs/guide/stages.md and docs/guide/filters.md"
        )
    try:
        made = make(*arguments, **named)
    except TypeError as error:
        raise UsageError(f"{expression[:200]!r}: {error}") from error
    parts = cast("tuple[object, ...]", made if isinstance(made, tuple) else (made,))
    stages = tuple(part for part in parts if isinstance(part, Stage))
    if not stages or len(stages) < len(parts):
        raise UsageError(f"{function.id!r} makes no stage")
    return stages, dict(modules_of(Pipeline("one", "file:///none", stages), {}))


def drain(at: ControllerAt, worker: str, *, back: bool, wait: bool, as_json: bool) -> int:
    """Take every task off a worker, or let it have some again; the exit code."""
    with Client(at) as client:
        client.steer(pb.SteerRequest(worker=worker, back=back))
        if wait and not back:
            there = ("drained", "")
            reply = _until(client, "", lambda status: _worker(status, worker) in there, f"worker {worker} has tasks")
        else:
            reply = client.status()
    state = _worker(reply, worker) or "gone"
    if wait and not back and state == "gone":
        raise CliError(f"worker {safe(worker)} left before it was drained; see `headrace status`")
    said = "accepts tasks again" if back else "is drained" if state == "drained" else "drains"
    print(json.dumps({"worker": worker, "state": state}) if as_json else f"worker {safe(worker)} {said}")
    return 0


def clear(at: ControllerAt, pipeline: str, *, as_json: bool) -> int:
    """Remove an ended pipeline, or every ended one, from the status; the exit code."""
    with Client(at) as client:
        cleared = client.steer(pb.SteerRequest(pipeline=pipeline, clear=True))
    if as_json:
        return print_json({"cleared": list(cleared)})
    if cleared:
        print(f"cleared: {', '.join(map(safe, cleared))}; the datasets are as they were")
    else:
        print("no pipeline has ended: there is nothing to clear")
    return 0


def stop(at: ControllerAt, pipeline: str, *, cancel: bool, wait: bool, as_json: bool) -> int:
    """End a pipeline, with what is held committed, or at once; the exit code."""
    with Client(at) as client:
        client.stop(pipeline, cancel=cancel)
        if wait:
            state = _reached(client, pipeline, _ended_well, f"pipeline {pipeline} lives").state
        else:
            status = pipeline_of(client.status(pipeline), pipeline)
            state = status.state if status is not None else ""
    if state in ENDED:
        said = f"is {state}"
    else:
        said = "is being cancelled" if cancel else "stops: its sinks commit what they hold"
    print(json.dumps({"pipeline": pipeline, "state": state}) if as_json else f"pipeline {safe(pipeline)} {said}")
    return 0


def _steer(
    at: ControllerAt,
    request: pb.SteerRequest,
    said: str,
    done: Callable[[pb.PipelineStatus], bool],
    *,
    wait: bool,
    as_json: bool,
) -> int:
    name = request.pipeline
    status: pb.PipelineStatus | None
    with Client(at) as client:
        changes = client.steer(request)
        if wait:
            status = _reached(client, name, done, f"pipeline {name} is not there yet")
        else:
            status = pipeline_of(client.status(name), name)
    refused = status.refused_change if status is not None else ""
    # What was refused to others, or before, is said in the same place.
    if wait and any(refused.startswith(f"{words}: ") for words in changes):
        raise CliError(f"the change could not be made any more: {refused}")
    state = status.state if status is not None else ""
    if wait and state in ENDED:
        said = f"is {state} by now"
    facts = {"pipeline": name, "state": state, "changes": list(changes)}
    words = f"pipeline {safe(name)} {said}" + (f": {safe(', '.join(changes))}" if changes else "")
    print(json.dumps(facts) if as_json else words)
    return 0


def _until(client: Client, pipeline: str, done: Callable[[pb.StatusReply], bool], still: str) -> pb.StatusReply:
    """The first status in which it is so. Raises CliError after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not done(reply := client.status(pipeline)):
        if time.monotonic() > deadline:
            raise CliError(f"{still} after {WAIT_S:.0f} s; see `headrace status` and `headrace logs`")
        time.sleep(LOOK_S)
    return reply


def _reached(client: Client, name: str, done: Callable[[pb.PipelineStatus], bool], still: str) -> pb.PipelineStatus:
    """The status of a pipeline once it is as wanted, or has completed. Raises CliError where it never will be."""

    def over(reply: pb.StatusReply) -> bool:
        status = pipeline_of(reply, name)
        return status is None or status.state in ENDED or done(status)

    status = pipeline_of(_until(client, name, over, still), name)
    if status is None:
        raise CliError(f"pipeline {safe(name)} was cleared, or its controller began anew: see its dataset")
    if not (done(status) or status.state == "completed"):
        why = f": {status.failure}" if status.state == "failed" else ""
        raise CliError(f"pipeline {safe(name)} is {status.state} by now{why}")
    return status


def _changed(status: pb.PipelineStatus) -> bool:
    """No change waits, and every task of the plan is ready."""
    going = status.state in ("running", "paused") and not status.changes
    return going and all(task.state == "ready" for task in status.tasks)


def _ended_well(status: pb.PipelineStatus) -> bool:
    return status.state in ENDED and status.state != "failed"


def _worker(reply: pb.StatusReply, name: str) -> str:
    return next((item.state for item in reply.workers if item.worker == name), "")


def expel(at: ControllerAt, name: str, *, role: str, agreed: bool, as_json: bool) -> int:
    """Expel a member; the exit code. Unless it is agreed to, say what would end."""
    if role not in (known := ("worker", *_PEOPLE)):
        raise UsageError(f"--role {role!r}: give one of {', '.join(known)}")
    with Client(at) as client:
        status = client.status()
        if not agreed:
            ends = _ends(status, name, role)
            raise UsageError(f"{ends}: add --yes to expel {role} {name}; only a new certificate brings it back")
        unknown = client.steer(pb.SteerRequest(expel=f"{role}/{name}"))
    if as_json:
        print_json({"expelled": f"{role}/{name}", "seen": not unknown})
    else:
        print(f"{role} {safe(name)} is expelled: its certificates are refused; {_back(name, role)}")
    if unknown:
        raise CliError(f"{unknown[0]}; look for a slip in the name, unless its certificate was issued elsewhere")
    return 0


def _ends(status: pb.StatusReply, name: str, role: str) -> str:
    """What an expulsion ends, for people."""
    if role in _PEOPLE:
        return f"{role} {safe(name)} loses access to every controller"
    if not any(worker.worker == name for worker in status.workers):
        there = ", ".join(sorted(safe(worker.worker) for worker in status.workers)) or "none"
        return f"no worker {safe(name)} is connected (connected: {there}), and none could under its certificates"
    tasks = {
        item.pipeline: sum(task.worker == name and task.state != "stopped" for task in item.tasks)
        for item in status.pipelines
    }
    held = [f"{counted(count, 'task')} of pipeline {safe(pipeline)}" for pipeline, count in tasks.items() if count]
    what = f"{', '.join(held)}, which others are given" if held else "no task"
    return f"worker {safe(name)} is cut off, with {what}"


def _back(name: str, role: str) -> str:
    if role in _PEOPLE:
        return "`headrace cluster operator` makes one under another name"
    return f"`headrace cluster token --name {safe(name)}` and an empty --state folder let it in again"
