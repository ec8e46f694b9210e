"""One simulated run: a cluster, its faults at drawn times, a quiet time, and the verdict.

The cores are the very classes that run: Controller, Supervisor, TaskCore with its parts, inbox and outbox, both
halves of credit, the ledger's codec and fold. Shells, sockets, processes and the clock are simulated (the other
modules of this folder). Prior art: the simulators of FoundationDB and of TigerBeetle.

Known weakness: it finds no fault of a shell, nothing slow, and nothing that needs real memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from headrace.chaos.sim.cluster import SimulatedCluster
from headrace.chaos.sim.network import MARKER_BYTES, SimulatedFrame
from headrace.chaos.sim.node_faults import NodeFaults
from headrace.chaos.sim.nodes import SimulatedController, SimulatedSink, SimulatedWorker, Site
from headrace.chaos.sim.world import ViolationError, World
from headrace.store.datasets import collection
from headrace.store.ledger import LedgerState

#: How often old proposals come to a standby that all workers were sent to.
REPEATED_TO_STANDBY = 4


class Faults(NodeFaults):
    """The misfortunes of one seed."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        menu: list[tuple[Callable[[], bool], int]] = [
            (self.kill_task, 6),
            (self.kill_worker, 2),
            (self.crash_controller, 3),
            (self.freeze_controller, 7),
            (self.break_session, 3),
            (self.leave_session, 3),
            (self.dial_again, 2),
            (self.harm_frame, 6),
            (self.mislead_workers, 3),
            (self.trouble_store, 3),
            (self.corrupt_shard, 2),
            (self.repeat_proposal, 3),
            (self.stray_frame, 1),
            (self.wake_ghost, 4),
            (self.kill_index, 2),
            (self.fail_task, 1),
            (self.stop_pipeline, 1),
            (self.amend_pipeline, 2),
            (self.operate_pipeline, 4),
            (self.steer_pipeline, 4),
            (self.freeze_task, 3),
            (self.freeze_worker, 3),
            (self.freeze_node, 3),
            (self.lose_store, 2),
            (self.collect_objects, 3),
            (self.part_workers, 6),
            (self.offer_token, 1),
            (self.retire_controller, 2),
            (self.change_input, 8),
        ]
        super().__init__(cluster, menu)

    def settle(self) -> None:
        """See `NodeFaults`."""
        self._cluster.operator.settle()
        for sink in self._sinks():
            sink.corrupt = sink.haunted = False

    # -- what dies --

    def kill_index(self) -> bool:
        """A task that remembers, where there is one, gets SIGKILL: the decider, or a partition of its index."""
        task = self._pick([task for task in self._tasks() if task.remembers])
        if task is not None:
            task.die(-9, "killed by a fault")
        return task is not None

    def mislead_workers(self) -> bool:
        """Every worker goes to a standby, whose run has not begun, and comes back; then the leader may die."""
        cluster, world = self._cluster, self._world
        leader = next((item for item in cluster.controllers if item.leads and item.alive and not item.frozen), None)
        standbys = [
            index
            for index, item in enumerate(cluster.controllers)
            if item is not leader and item.alive and not item.frozen and item.run() is not None
        ]
        if leader is None or not standbys:
            return False
        index = world.rng.choice(standbys)
        world.note("faults", "mislead all workers to", cluster.controllers[index].name)
        for worker in cluster.workers:
            worker.turn_to(index)
        # What the leader is at the log with is proposed again where it is not known yet.
        for _ in range(REPEATED_TO_STANDBY):
            world.after(world.between(0.2, 4.0), self._late_proposals)
        if world.chance(0.6):
            world.after(world.between(4.0, 9.0), self._end_leader, leader, leader.life)
        return True

    def _end_leader(self, leader: SimulatedController, life: int) -> None:
        if leader.alive and leader.life == life and not self._cluster.quiet:
            self._crash(leader, 8.0)

    # -- what lies --

    def collect_objects(self) -> bool:
        """Somebody collects, by a fold that may be old when the last object is deleted."""
        state = LedgerState()
        for number, entry in self._cluster.log.behind(-1):
            state.apply(number, entry)
        for info in collection.garbage(state, self._cluster.objects.listing()):
            self._world.after(self._world.between(0.01, 4.0), self._delete, info.key)
        return True

    def _delete(self, key: str) -> None:
        self._cluster.checker.deleted(key)
        self._cluster.objects.delete(key)

    def corrupt_shard(self) -> bool:
        """A sink will write a shard that claims a record twice and another not at all."""
        if (sink := self._pick(self._sinks())) is not None:
            sink.corrupt = True
        return sink is not None

    def _sinks(self) -> list[SimulatedSink]:
        return [task.sink for task in self._tasks() if task.sink is not None]

    def repeat_proposal(self) -> bool:
        """Old proposals come in once more, from whatever attempt and epoch, by the worker that had it."""
        sessions = {worker.name: worker.session for worker in self._cluster.workers if worker.session is not None}
        proposed = [item for item in self._cluster.checker.proposed if item[0] in sessions]
        if not proposed:
            return False
        chosen = [proposed[-1], *(self._world.rng.choice(proposed) for _ in range(6))]
        for worker, event in sorted(chosen, key=lambda item: item[1].epoch):
            sessions[worker].report(event)
        return True

    def wake_ghost(self) -> bool:
        """A sink that was given up wakes when another is about to propose the same, and is first."""
        sink = self._pick(self._sinks()) if self._cluster.corpus.texts is not None else None
        if sink is not None:
            sink.haunted = True
        return sink is not None

    def stray_frame(self) -> bool:
        """A frame of another epoch arrives on a link."""
        link = self._pick([link for worker in self._cluster.workers for link in worker.links()])
        if link is None or link.receiver is None or not link.receiver.alive:
            return False
        return link.try_send(SimulatedFrame(link.receiver.epoch + 1, MARKER_BYTES, sweep=1 << 30))

    # -- what people do --

    def stop_pipeline(self) -> bool:
        """Somebody stops or cancels the run, and applies it again."""
        self._cluster.operator.stop(cancel=self._world.chance(0.5))
        return True

    def amend_pipeline(self) -> bool:
        """Somebody stops the run and applies another version."""
        self._cluster.operator.amend()
        # Whoever was away meanwhile comes back with what it made by the old version.
        for _ in range(2):
            self._world.after(self._world.between(3.0, 12.0), self._late_proposals)
        return True

    def operate_pipeline(self) -> bool:
        """Somebody changes the graph while records flow."""
        self._cluster.operator.operate()
        for _ in range(2):
            self._world.after(self._world.between(1.0, 12.0), self._late_proposals)
        return True

    def steer_pipeline(self) -> bool:
        """Somebody pauses, scales or drains."""
        self._cluster.operator.steer()
        return True

    def change_input(self) -> bool:
        """Somebody overwrites, removes, adds or puts back objects of the input."""
        if self._cluster.corpus.changes:
            self._cluster.inputs.change(self._world.rng)
        return self._cluster.corpus.changes

    def offer_token(self) -> bool:
        """Two nodes want to join the cluster with the same token."""
        if self._cluster.cluster_log is not None:
            self._cluster.operator.offer_token()
        return self._cluster.cluster_log is not None

    def _late_proposals(self) -> None:
        if not self._cluster.operator.completed:
            self.repeat_proposal()


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
    ghosts: int = 0
    repeats: int = 0
    #: How often a run of a queue gave way, and went on.
    held: int = 0
    gone_on: int = 0
    violation: str = ""
    number: int = -1
    story: tuple[str, ...] = ()


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


@without_garbage()
def simulate(seed: int, *, dense: bool = False) -> SimulationOutcome:
    """Run one seed to its end, or to the first invariant that does not hold."""
    cluster = SimulatedCluster(seed)
    faults, checker = Faults(cluster), cluster.checker
    outcome = outcome_of(seed, cluster, faults, [checker.ledger], lambda: _run(cluster, faults, dense=dense))
    return replace(outcome, ghosts=checker.ghosts, repeats=checker.repeats)


def outcome_of(
    seed: int, site: Site, faults: NodeFaults, ledgers: Sequence[LedgerState], run: Callable[[], float]
) -> SimulationOutcome:
    """Run to the end, or to the first invariant that does not hold; what became of it."""
    violation, number, seconds = "", -1, 0.0
    try:
        seconds = run()
    except ViolationError as error:
        violation, number = str(error), error.number
    counts = [item for ledger in ledgers for item in ledger.counts.values()]
    return SimulationOutcome(
        seed=seed,
        events=site.world.events,
        faults=tuple(faults.happened),
        pairs=tuple(faults.pairs),
        seconds=seconds,
        entries=len(site.log.entries),
        terms=site.checker.ledger.term,
        truncated=site.log.truncated,
        quarantined=sum(item.quarantined for item in counts),
        duplicates=sum(item.duplicate for item in counts),
        violation=violation,
        number=number,
        story=tuple(site.world.tail()) if violation else (),
    )


def _run(cluster: SimulatedCluster, faults: Faults, *, dense: bool) -> float:
    world, operator = cluster.world, cluster.operator
    cluster.start()
    quiet_at = faults.plan(dense=dense)
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
