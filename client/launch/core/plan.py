"""The plan of a launch: files, and calls that start and end it. The one table of launchers stands here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.client.launch.core import kubernetes, ray, slurm, ssh
from headrace.client.launch.core.asked import (
    Call,
    Kubernetes,
    Launch,
    LaunchError,
    LaunchInput,
    LaunchPlan,
    Ray,
    Slurm,
    Ssh,
    check,
)

L = TypeVar("L", bound=Launch)


@dataclass(frozen=True, slots=True)
class Launcher:
    """How one kind of launch is planned, and what its calls' answers are needed for to end it."""

    kind: type[Any]
    plan: Callable[[Any, LaunchInput], LaunchPlan]
    stop: Callable[[Any, Mapping[str, str]], Sequence[Sequence[Call]]]
    #: Where the controller is found, as far as it is known before: HOST:PORT.
    address: Callable[[Any], str]


LAUNCHERS: Mapping[str, Launcher] = {
    "slurm": Launcher(Slurm, slurm.plan, slurm.stop, slurm.address),
    "ssh": Launcher(Ssh, ssh.plan, ssh.stop, ssh.address),
    "ray": Launcher(Ray, ray.plan, ray.stop, ray.address),
    "kubernetes": Launcher(Kubernetes, kubernetes.plan, kubernetes.stop, kubernetes.address),
}


def read(launcher: object, said: object) -> Launch:
    """A launch as its folder remembers it. Raises LaunchError."""
    if not isinstance(launcher, str) or launcher not in LAUNCHERS or not isinstance(said, dict):
        raise LaunchError(f"{launcher!r} is no launcher: {', '.join(LAUNCHERS)} are")
    try:
        tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
        launch: Launch = LAUNCHERS[launcher].kind(**tuples)
    except TypeError as error:
        raise LaunchError(f"this is no launch by {launcher}: {error}") from error
    check(launch)
    return launch


def shown(plan: LaunchPlan) -> str:
    """The plan for people: every file and every call. It holds secrets if `given` held some."""
    lines: list[str] = []
    for file in plan.files:
        lines += [f"# --- {file.name}", file.text.rstrip("\n"), ""]
    for step in plan.start:
        for call in step:
            lines.append("# --- " + (f"reads {call.what}: " if call.what else "") + "runs")
            lines.append(shlex.join(call.argv))
    if plan.run:
        lines += ["# --- runs, then ends all", shlex.join(plan.run)]
    return "\n".join(lines)
