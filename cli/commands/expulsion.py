"""`headrace cluster expel`: the certificates of a worker or an operator are good no more."""

from __future__ import annotations

import json

from headrace.cli.ui import safe
from headrace.client import Client, ControllerAt, UsageError
from headrace.protos import control_pb2 as pb
from headrace.store import counted


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
        return f"operator {safe(name)} can ask no controller anything any more"
    if not any(worker.worker == name for worker in status.workers):
        there = ", ".join(sorted(safe(worker.worker) for worker in status.workers)) or "none"
        return f"no worker {safe(name)} attends now (there are: {there}), and none could under its certificates"
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
