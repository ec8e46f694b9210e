"""`headrace pause`, `resume`, `scale`, `move`, `relink`, `drain`, `stop`, `cancel`, and `clear` for what has ended.

Each returns when the controller has taken the wish up; `--wait` stays until it has come true.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from headrace.cli.ui import safe
from headrace.client import ENDED, Client, CliError, ControllerAt, pipeline_of
from headrace.protos import control_pb2 as pb

#: Seconds that `--wait` waits: what is held must be written and committed, and new tasks start.
WAIT_S = 300.0
#: Seconds between two looks.
LOOK_S = 0.1


def pause(at: ControllerAt, pipeline: str, *, wait: bool, as_json: bool) -> int:
    """Have a pipeline stand still, with all that is held committed; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, pause=True)
    said = "is paused" if wait else "pauses: what is held is being committed"
    return _steer(at, request, said, _state("paused"), wait=wait, as_json=as_json)


def resume(at: ControllerAt, pipeline: str, *, wait: bool, as_json: bool) -> int:
    """Have a paused pipeline go on; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, pause=False)
    return _steer(at, request, "goes on", _state("running"), wait=wait, as_json=as_json)


def scale(at: ControllerAt, pipeline: str, stage: str, count: int, *, wait: bool, as_json: bool) -> int:
    """Give a stage another number of tasks; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, replicas={stage: count})
    return _steer(at, request, "is planned otherwise", _changed, wait=wait, as_json=as_json)


def move(at: ControllerAt, pipeline: str, stage: str, place: str, *, wait: bool, as_json: bool) -> int:
    """Bind a stage to another worker or label; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, places={stage: place})
    return _steer(at, request, "is planned otherwise", _changed, wait=wait, as_json=as_json)


def relink(at: ControllerAt, pipeline: str, stage: str, transport: str, *, wait: bool, as_json: bool) -> int:
    """Join a stage to the one before it by another transport; the exit code."""
    request = pb.SteerRequest(pipeline=pipeline, transports={stage: transport})
    return _steer(at, request, "is planned otherwise", _changed, wait=wait, as_json=as_json)


def drain(at: ControllerAt, worker: str, *, back: bool, wait: bool, as_json: bool) -> int:
    """Take every task off a worker, or let it have some again; the exit code."""
    with Client(at) as client:
        client.steer(pb.SteerRequest(worker=worker, back=back))
        if wait and not back:
            _until(client, "", lambda status: _worker(status, worker) in ("drained", ""), f"worker {worker} has tasks")
        state = _worker(client.status(), worker) or "gone"
    said = "may have tasks again" if back else "is drained" if state == "drained" else "is being drained"
    print(json.dumps({"worker": worker, "state": state}) if as_json else f"worker {safe(worker)} {said}")
    return 0


def clear(at: ControllerAt, pipeline: str, *, as_json: bool) -> int:
    """Be told no more of a pipeline that has ended, or of all that have; the exit code."""
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
        said = "is being cancelled" if cancel else "stops: what is held is being committed"
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
