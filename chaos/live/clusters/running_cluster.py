"""A cluster that lives, as faults see it: what of it runs on this host, and what elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.chaos.live import NETWORK, Scenario
from headrace.chaos.live.clusters.attached import Attached
from headrace.chaos.live.faults import Reach
from headrace.client import ControllerAt


@contextmanager
def living(at: ControllerAt, *, here: bool) -> Iterator[tuple[Attached, Reach | None]]:
    """Its processes on this host, and what runs elsewhere unless only what is `here` is meant."""
    attached = Attached(at, needed=here)
    if here:
        yield attached, None
        return
    with Reach(at, {*attached.running_workers(), *attached.controllers}) as reach:
        yield attached, reach


def permit(at: ControllerAt, scenario: Scenario, *, here: bool) -> None:
    """Raises CliError, a line, where there is nobody who may be hit, or one whom it may befall does not allow it."""
    with living(at, here=here) as (_, reach):
        if reach is None:
            return
        reach.check(scenario)
        if not reach.alive() and not scenario.has(NETWORK):
            Attached(at)  # refuses, where nothing runs here either
