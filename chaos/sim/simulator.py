"""One simulated run: a cluster, its faults, a quiet time, and the verdict.

The cores are the very classes that run: Controller, Supervisor, TaskCore with its parts, inbox and outbox, both halves
of credit, the ledger's codec and fold. Shells, sockets, processes and the clock are simulated (the other modules of
this folder). Prior art: the simulators of FoundationDB and of TigerBeetle.

Known weakness: it finds no fault of a shell, nothing slow, and nothing that needs real memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.chaos.sim.cluster import SimulatedCluster
from headrace.chaos.sim.faults import Faults
from headrace.chaos.sim.nodes import SimulatedWorker
from headrace.chaos.sim.world import ViolationError, World

#: Seconds after the last fault within which everything must be closed, and then every task be gone.
CLOSE_S = 240.0
VACATE_S = 30.0
#: Events of one run; beyond it something runs in a circle.
EVENTS_MAX = 120_000


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What became of one seed. `violation` is empty if every invariant held."""

    seed: int
    events: int
    faults: tuple[str, ...]
    #: Those that happened at one moment, two and two.
    pairs: tuple[tuple[str, str], ...]
    #: Virtual seconds until the run was complete.
    seconds: float
    entries: int
    terms: int
    #: Entries that were deleted behind a snapshot.
    truncated: int
    #: Records that killed their task, and those that are duplicates of others.
    quarantined: int
    duplicates: int
    #: Proposals that controllers believed: of sinks that were given up, and those that came once more.
    ghosts: int
    repeats: int
    #: How often a run of a queue gave way, and went on.
    held: int = 0
    gone_on: int = 0
    violation: str = ""
    number: int = -1
    story: tuple[str, ...] = ()


def simulate(seed: int) -> SimulationOutcome:
    """Run one seed to its end, or to the first invariant that does not hold."""
    with without_garbage():
        return _simulate(seed)


@contextmanager
def without_garbage() -> Iterator[None]:
    """Look for cycles at the end of a seed alone.

    Nodes and their links know each other both ways, so almost nothing is garbage before the end and everything is then:
    looking for cycles meanwhile took a tenth of the time. All that a seed has made is young, so the look is short.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if collects:
            gc.enable()


def _simulate(seed: int) -> SimulationOutcome:
    cluster = SimulatedCluster(seed)
    faults = Faults(cluster)
    violation = ""
    number = -1
    seconds = 0.0
    try:
        seconds = _run(cluster, faults)
    except ViolationError as error:
        violation, number = str(error), error.number
    return SimulationOutcome(
        seed=seed,
        events=cluster.world.events,
        faults=tuple(faults.happened),
        pairs=tuple(faults.pairs),
        seconds=seconds,
        entries=len(cluster.log.entries),
        terms=cluster.checker.ledger.term,
        truncated=cluster.log.truncated,
        quarantined=sum(counts.quarantined for counts in cluster.checker.ledger.counts.values()),
        duplicates=sum(counts.duplicate for counts in cluster.checker.ledger.counts.values()),
        ghosts=cluster.checker.ghosts,
        repeats=cluster.checker.repeats,
        violation=violation,
        number=number,
        story=tuple(cluster.world.tail()) if violation else (),
    )


def _run(cluster: SimulatedCluster, faults: Faults) -> float:
    world, operator = cluster.world, cluster.operator
    cluster.start()
    quiet_at = faults.plan()
    check = cluster.checker.check
    until(lambda: operator.completed, world, check, quiet_at + CLOSE_S, "a record is still open")
    done_at = world.now
    cluster.quiet = True
    cluster.checker.finish()
    operator.stop(cancel=True)
    deadline = max(quiet_at + CLOSE_S, done_at + VACATE_S)
    until(lambda: vacated(cluster.workers), world, check, deadline, "a task is still alive after the end")
    return done_at


def vacated(workers: list[SimulatedWorker]) -> bool:
    """No task is left, or nobody leads: a worker that was away when the run ended finds nobody who would tell it."""
    return not any(worker.tasks for worker in workers) or not any(worker.session for worker in workers)


def until(
    reached: Callable[[], bool],
    world: World,
    check: Callable[[], None],
    deadline: float,
    late: str,
    events_max: int = EVENTS_MAX,
) -> None:
    """Let events happen until it is reached. 18: that is before the deadline."""
    while not reached():
        if not world.step():
            raise ViolationError(18, f"{late}, and nothing will happen any more")
        check()
        if world.now > deadline:
            raise ViolationError(18, f"{late} long after the last fault")
        if world.events > events_max:
            raise ViolationError(18, f"{late} after {events_max} events")
