"""`headrace pause`, `resume`, `scale`, `move`, `relink`, `drain`, `stop`, `cancel`, `clear` and `cluster expel`.

Each returns when the controller has accepted the request; `--wait` returns when it is done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from headrace.cli.ui import safe
from headrace.client import ENDED, Client, CliError, ControllerAt, UsageError, pipeline_of
from headrace.protos import control_pb2 as pb
from headrace.store import counted

#: Seconds that `--wait` waits: what is held must be written and committed, and new tasks start.
WAIT_S = 300.0
#: Seconds between two looks.
LOOK_S = 0.1


def pause(at: ControllerAt, pipeline: str, *, wait: bool, as_json: bool) -> int:
    """Have a pipeline stand still, with all that is held committed; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, pause=True)
    said = "is paused" if wait else "pauses: its sinks commit what they hold"
    return _steer(at, request, said, _state("paused"), wait=wait, as_json=as_json)


def resume(at: ControllerAt, pipeline: str, *, wait: bool, as_json: bool) -> int:
    """Have a paused pipeline go on; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, pause=False)
    return _steer(at, request, "resumes", _state("running"), wait=wait, as_json=as_json)


def scale(at: ControllerAt, pipeline: str, stage: str, count: int, *, wait: bool, as_json: bool) -> int:
    """Give a stage another number of tasks; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, replicas={stage: count})
    return _steer(at, request, "has a new plan", _changed, wait=wait, as_json=as_json)


def move(at: ControllerAt, pipeline: str, stage: str, place: str, *, wait: bool, as_json: bool) -> int:
    """Bind a stage to another worker or label; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, places={stage: place})
    return _steer(at, request, "has a new plan", _changed, wait=wait, as_json=as_json)


def relink(at: ControllerAt, pipeline: str, stage: str, transport: str, *, wait: bool, as_json: bool) -> int:
    """Join a stage to the one before it by another transport; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, transports={stage: transport})
    return _steer(at, request, "has a new plan", _changed, wait=wait, as_json=as_json)


def drain(at: ControllerAt, worker: str, *, back: bool, wait: bool, as_json: bool) -> int:
    """Take every task off a worker, or let it have some again; the exit code."""
    with Client(at) as client:
        client.steer(pb.SteerRequest(worker=worker, back=back))
        if wait and not back:
            _until(client, "", lambda status: _worker(status, worker) in ("drained", ""), f"worker {worker} has tasks")
        state = _worker(client.status(), worker) or "gone"
    said = "accepts tasks again" if back else "is drained" if state == "drained" else "drains"
    print(json.dumps({"worker": worker, "state": state}) if as_json else f"worker {safe(worker)} {said}")
    return 0


def clear(at: ControllerAt, pipeline: str, *, as_json: bool) -> int:
    """Remove an ended pipeline, or every ended one, from the status; the exit code."""
    with Client(at) as client:
        cleared = client.steer(pb.SteerRequest(pipeline=pipeline, clear=True))
    if as_json:
        print(json.dumps({"cleared": list(cleared)}))
    elif cleared:
        print(f"cleared: {', '.join(map(safe, cleared))}; the datasets are as they were")
    else:
        print("no pipeline has ended: there is nothing to clear")
    return 0


def stop(at: ControllerAt, pipeline: str, *, cancel: bool, wait: bool, as_json: bool) -> int:
    """End a pipeline, with what is held committed, or at once; the exit code."""
    with Client(at) as client:
        client.stop(pipeline, cancel=cancel)
        if wait:
            _until(client, pipeline, lambda status: _state_of(status, pipeline) in ENDED, f"pipeline {pipeline} lives")
        state = _state_of(client.status(pipeline), pipeline)
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
    with Client(at) as client:
        changes = client.steer(request)
        if wait:
            _until(client, name, lambda reply: _is(reply, name, done), f"pipeline {name} is not there yet")
        status = pipeline_of(client.status(name), name)
    if wait and status is not None and status.refused_change:
        raise CliError(f"the change could not be made any more: {status.refused_change}")
    state = status.state if status is not None else ""
    if wait and state in ENDED:
        said = f"is {state} by now"
    if as_json:
        print(json.dumps({"pipeline": name, "state": state, "changes": list(changes)}))
        return 0
    print(f"pipeline {safe(name)} {said}" + (f": {safe(', '.join(changes))}" if changes else ""))
    return 0


def _until(client: Client, pipeline: str, done: Callable[[pb.StatusReply], bool], still: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done(client.status(pipeline)):
        if time.monotonic() > deadline:
            raise CliError(f"{still} after {WAIT_S:.0f} s; see `headrace status` and `headrace logs`")
        time.sleep(LOOK_S)


def _is(reply: pb.StatusReply, name: str, done: Callable[[pb.PipelineStatus], bool]) -> bool:
    """Whether it is so, or never will be."""
    status = pipeline_of(reply, name)
    return status is None or status.state in ENDED or done(status)


def _state(wanted: str) -> Callable[[pb.PipelineStatus], bool]:
    return lambda status: status.state == wanted


def _changed(status: pb.PipelineStatus) -> bool:
    """No change waits, and every task of the plan is ready."""
    going = status.state in ("running", "paused") and not status.changes
    return going and all(task.state == "ready" for task in status.tasks)


def _state_of(reply: pb.StatusReply, name: str) -> str:
    status = pipeline_of(reply, name)
    return status.state if status is not None else ""


def _worker(reply: pb.StatusReply, name: str) -> str:
    return next((item.state for item in reply.workers if item.worker == name), "")


def expel(at: ControllerAt, name: str, *, operator: bool, agreed: bool, as_json: bool) -> int:
    """Expel a member; the exit code. Unless it is agreed to, say what would end."""
    role = "operator" if operator else "worker"
    with Client(at) as client:
        status = client.status()
        if not agreed:
            ends = _ends(status, name, operator=operator)
            raise UsageError(f"{ends}: add --yes to expel {role} {name}; only a new certificate brings it back")
        client.steer(pb.SteerRequest(expel=f"{role}/{name}"))
    if as_json:
        print(json.dumps({"expelled": f"{role}/{name}"}))
    else:
        print(f"{role} {safe(name)} is expelled: its certificates are refused; {_back(name, operator=operator)}")
    return 0


def _ends(status: pb.StatusReply, name: str, *, operator: bool) -> str:
    """What an expulsion ends, for people."""
    if operator:
        return f"operator {safe(name)} loses access to every controller"
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


def _back(name: str, *, operator: bool) -> str:
    if operator:
        return "`headrace cluster operator` makes one under another name"
    return f"`headrace cluster token --name {safe(name)}` and an empty --state folder let it in again"
