"""Faults of nodes, connections and stores, whatever runs on them: what dies, what freezes, what is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.chaos.sim.network import Harm, SimulatedSession
from headrace.chaos.sim.nodes import SimulatedController, SimulatedTask, SimulatedWorker, Site
from headrace.chaos.sim.storage import CALM, TROUBLE
from headrace.controller.core.messages import messages as core

#: How many moments of a seed have faults, and the seconds within which they are: few while the run begins, or many
#: until it would be over. Never fewer than five, so that three happen even where one finds nobody to happen to.
CAMPAIGNS = ((5, 9, 22.0), (15, 25, 40.0), (30, 50, 60.0))
#: So many that most strike what the one before has harmed, and little is done before they are over.
DENSE = ((60, 100, 60.0),)
#: How much likelier or rarer than usual a kind of fault is in one seed. Where all seeds have the same mixture, what
#: takes several faults of one kind, and none of another, happens in hardly any.
MIXTURE = (0.2, 1.0, 1.0, 5.0)
#: Share of the moments at which two happen at once.
PAIR_SHARE = 0.25
#: Links of which one frame is harmed at a time.
HARMED_MAX = 3
#: Seconds that a controller has to hand over the cluster's log when it is ended in order.
RETIRE_S = 3.0

T = TypeVar("T")


class NodeFaults:
    """The dice, and the misfortunes of nodes."""

    def __init__(self, site: Site, menu: Sequence[tuple[Callable[[], bool], int]]) -> None:
        self._site, self._world = site, site.world
        self.happened: list[str] = []
        #: Those that happened at one moment, two and two.
        self.pairs: list[tuple[str, str]] = []
        self._kinds = [kind for kind, _ in menu]
        self._weights = [weight * self._world.rng.choice(MIXTURE) for _, weight in menu]

    def plan(self, *, dense: bool = False) -> float:
        """Draw the times; when the last fault is over."""
        fewest, most, window_s = self._world.rng.choice(DENSE if dense else CAMPAIGNS)
        times = sorted(self._world.between(0.5, window_s) for _ in range(self._world.rng.randint(fewest, most)))
        for time in times:
            self._world.at(time, self._happen)
        quiet_at = times[-1] + 0.5
        self._world.at(quiet_at, self.calm)
        return quiet_at

    def _happen(self) -> None:
        """One fault, or two at the same moment: any two, since each is drawn by itself."""
        before = len(self.happened)
        for _ in range(2 if self._world.chance(PAIR_SHARE) else 1):
            self._draw()
        if len(self.happened) == before + 2:
            self.pairs.append((min(self.happened[before:]), max(self.happened[before:])))

    def _draw(self) -> None:
        for _ in range(4):
            fault = self._world.rng.choices(self._kinds, self._weights)[0]
            if fault():
                self.happened.append(fault.__name__)
                return

    def _tasks(self) -> list[SimulatedTask]:
        return [task for worker in self._site.workers for task in worker.tasks.values() if task.alive]

    def _pick(self, items: Sequence[T]) -> T | None:
        return self._world.rng.choice(items) if items else None

    def _crash(self, node: SimulatedController | SimulatedWorker, away_s: float) -> None:
        """It dies, and comes back within so long."""
        node.crash()
        self._world.after(self._world.between(0.5, away_s), node.start)

    def calm(self) -> None:
        """No fault happens any more: whoever sleeps wakes, and whoever was cut off is not."""
        self._world.note("faults", "are over")
        self._site.quiet = True
        self._calm_store()
        for controller in self._site.controllers:
            controller.thaw()
        for worker in self._site.workers:
            worker.thaw()
        self._site.wires.heal()
        self.settle()
        for link in self._site.wires.standing():
            link.spoils = None

    def settle(self) -> None:
        """What else is to be in order again."""

    # -- what dies --

    def kill_task(self) -> bool:
        """SIGKILL."""
        task = self._pick(self._tasks())
        if task is not None:
            task.die(-9, "killed by a fault")
        return task is not None

    def fail_task(self) -> bool:
        """A task says that it cannot go on."""
        task = self._pick(self._tasks())
        if task is not None:
            task.say(core.TaskFailed(task.name, task.attempt, "simulated", final=False))
        return task is not None

    def kill_worker(self) -> bool:
        """A node dies and comes back."""
        worker = self._pick([worker for worker in self._site.workers if worker.alive])
        if worker is not None:
            self._world.note("faults", "kill worker", worker.name)
            self._crash(worker, 5.0)
        return worker is not None

    def freeze_task(self) -> bool:
        """A process stops for a while without knowing it, and may wake when it is lost, or in another epoch."""
        task = self._pick(self._tasks())
        if task is not None:
            task.freeze(self._world.now + self._world.between(0.5, 15.0))
            self._world.note("faults", "freeze task", task.label)
        return task is not None

    def freeze_worker(self) -> bool:
        """A daemon stops for a while without knowing it, and its tasks go on; it may be given up before it wakes."""
        return self._freeze(node=False)

    def freeze_node(self) -> bool:
        """A daemon and all of its tasks stop, and may wake with proposals of attempts that others have replaced."""
        return self._freeze(node=True)

    def _freeze(self, *, node: bool) -> bool:
        living = [worker for worker in self._site.workers if worker.alive]
        worker = self._pick([worker for worker in living if worker.tasks] or living)
        if worker is not None:
            self._world.note("faults", "freeze node" if node else "freeze worker", worker.name)
            worker.freeze(self._world.between(0.5, 20.0), node=node)
        return worker is not None

    def crash_controller(self) -> bool:
        """A controller dies and comes back."""
        controller = self._pick([controller for controller in self._site.controllers if controller.alive])
        if controller is not None:
            self._world.note("faults", "kill controller", controller.name)
            self._crash(controller, 8.0)
        return controller is not None

    def freeze_controller(self) -> bool:
        """A controller, rather the leader, stops for a while without knowing it."""
        living = [item for item in self._site.controllers if item.alive and not item.frozen]
        controller = self._pick([item for item in living if item.leads] or living)
        if controller is not None:
            self._world.note("faults", "freeze controller", controller.name)
            controller.frozen = True
            self._world.after(self._world.between(0.5, 15.0), controller.thaw)
        return controller is not None

    def break_session(self) -> bool:
        """A connection breaks."""
        if (session := self._pick(self._sessions())) is not None:
            session.end("broken by a fault")
        return session is not None

    def leave_session(self) -> bool:
        """A worker comes back before its controller has noticed that it had gone; its last words come behind that."""
        if (session := self._pick(self._sessions())) is not None:
            session.abandon()
        return session is not None

    def _sessions(self) -> list[SimulatedSession]:
        return [worker.session for worker in self._site.workers if worker.session is not None]

    def dial_again(self) -> bool:
        """An end with the ticket of an earlier making of a link, or of a dead attempt, dials."""
        return self._site.wires.dial_again(self._world.rng)

    def harm_frame(self) -> bool:
        """The next frame on some links between workers is lost, doubled, overtaken or spoilt."""
        links = self._site.wires.standing()
        for link in self._world.rng.sample(links, min(len(links), HARMED_MAX)):
            link.spoils = self._world.rng.choice(list(Harm))
        return bool(links)

    def part_workers(self) -> bool:
        """Two workers that are joined by links cannot reach each other for a while, or for a moment."""
        if (pair := self._pick(self._site.wires.between())) is not None:
            self._world.note("faults", "part", sorted(pair))
            self._site.wires.part(pair, self._world.between(0.0, 6.0))
        return pair is not None

    def retire_controller(self) -> bool:
        """Somebody ends the leader of a cluster in order, and starts it again."""
        leader = next((item for item in self._site.controllers if item.alive and not item.frozen and item.leads), None)
        if leader is None or self._site.cluster_log is None:
            return False
        leader.post(core.ShutdownAsked())
        self._world.after(RETIRE_S, self._retired, leader, leader.life)
        return True

    def _retired(self, leader: SimulatedController, life: int) -> None:
        if leader.alive and leader.life == life:
            self._crash(leader, 4.0)

    # -- what fails --

    def trouble_store(self) -> bool:
        """For a while many writes end in an error, of the log and of objects, whether they took effect or not."""
        self._disturb(TROUBLE, self._world.between(1.0, 6.0))
        return True

    def lose_store(self) -> bool:
        """For a while every write ends in an error."""
        self._disturb(1.0, self._world.between(0.5, 8.0))
        return True

    def _disturb(self, share: float, for_s: float) -> None:
        self._set_errors(share)
        self._world.after(for_s, self._calm_store)

    def _calm_store(self) -> None:
        self._set_errors(0.0 if self._site.quiet else CALM)

    def _set_errors(self, share: float) -> None:
        for store in self._site.stores():
            store.error_share = share
