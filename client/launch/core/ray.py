"""Actors of Ray: `ray_driver.py` starts them, by a Python that has Ray. What it needs goes by standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from headrace.client.launch.core.asked import CONTROLLER_FILES, Call, LaunchInput, LaunchPlan, Ray, known_as
from headrace.client.launch.core.ssh import local_run


def plan(launch: Ray, given: LaunchInput) -> LaunchPlan:
    """One call, which says where the controller is."""
    cluster = {name: given.cluster[name] for name in CONTROLLER_FILES}
    order = {name: value for name, value in asdict(launch).items() if name not in ("pipeline", "cwd", "folder")}
    data = json.dumps({**order, "name": known_as(launch), "cluster": cluster}).encode()
    start = Call((launch.python, given.driver, "start"), data, "the cluster's folder", keep="address")
    return LaunchPlan((), ((start,),), run=local_run(launch), said="the controller is at {address}")


def stop(launch: Ray, answers: Mapping[str, str]) -> tuple[tuple[Call, ...], ...]:
    """End the actors and give their resources back."""
    data = json.dumps({"name": known_as(launch), "address": launch.address}).encode()
    return ((Call((launch.python, answers.get("driver", "ray_driver.py"), "stop"), data),),)


def address(launch: Ray) -> str:
    """The driver says it."""
    return f"an-actor-of-{launch.name}:{launch.port or 1}"
