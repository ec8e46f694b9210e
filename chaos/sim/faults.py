"""Faults at drawn times: what dies, what freezes, what lies."""

from __future__ import annotations

from collections.abc import Callable

from headrace.chaos.sim.cluster import SimulatedCluster
from headrace.chaos.sim.network import MARKER_BYTES, Harm, SimulatedFrame
from headrace.chaos.sim.nodes import SimulatedController, SimulatedTask
from headrace.chaos.sim.storage import CALM, TROUBLE
from headrace.controller.core.messages import messages as core
from headrace.store.datasets import collection
from headrace.store.ledger import LedgerState

#: How many moments of a seed have faults, and the seconds within which they are: few while the run begins, or many
#: until it would be over. Never fewer than five, so that three happen even where one finds nobody to happen to.
CAMPAIGNS = ((5, 9, 22.0), (15, 25, 40.0), (30, 50, 60.0))
#: How much likelier or rarer than usual a kind of fault is in one seed. Where all seeds have the same mixture, what
#: takes several faults of one kind, and none of another, happens in hardly any.
MIXTURE = (0.2, 1.0, 1.0, 5.0)
#: Share of the moments at which two happen at once.
PAIR_SHARE = 0.25
#: Links of which one frame is harmed at a time.
HARMED_MAX = 3
#: How often old proposals come to a standby that all workers were sent to.
REPEATED_TO_STANDBY = 4
#: Seconds that a controller has to hand over the cluster's log when it is ended in order.
RETIRE_S = 3.0


class Faults:
    """The misfortunes of one seed."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.happened: list[str] = []
        #: Those that happened at one moment, two and two.
        self.pairs: list[tuple[str, str]] = []
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
        self._kinds = [kind for kind, _ in menu]
        self._weights = [weight * self._world.rng.choice(MIXTURE) for _, weight in menu]

    def plan(self) -> float:
        """Draw the times; when the last fault is over."""
        fewest, most, window_s = self._world.rng.choice(CAMPAIGNS)
        times = sorted(self._world.between(0.5, window_s) for _ in range(self._world.rng.randint(fewest, most)))
        for time in times:
            self._world.at(time, self._happen)
        quiet_at = times[-1] + 0.5
        self._world.at(quiet_at, self._quiet)
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

    def _quiet(self) -> None:
        self._world.note("faults", "are over")
        self._cluster.quiet = True
        self._calm_store()
        for controller in self._cluster.controllers:
            controller.thaw()
        for worker in self._cluster.workers:
            worker.thaw()
        self._cluster.wires.heal()
        self._cluster.operator.settle()
        for link in self._cluster.wires.standing():
            link.spoils = None
        for task in self._tasks():
            if task.sink is not None:
                task.sink.corrupt = task.sink.haunted = False

    def _tasks(self) -> list[SimulatedTask]:
        return [task for worker in self._cluster.workers for task in worker.tasks.values() if task.alive]

    def _pick_task(self) -> SimulatedTask | None:
        tasks = self._tasks()
        return self._world.rng.choice(tasks) if tasks else None

    # -- what dies --

    def kill_task(self) -> bool:
        """SIGKILL."""
        task = self._pick_task()
        if task is not None:
            task.die(-9, "killed by a fault")
        return task is not None

    def kill_index(self) -> bool:
        """A task that remembers, where there is one, gets SIGKILL: the decider, or a partition of its index."""
        remembering = [task for task in self._tasks() if task.remembers]
        if remembering:
            self._world.rng.choice(remembering).die(-9, "killed by a fault")
        return bool(remembering)

    def fail_task(self) -> bool:
        """A task says that it cannot go on."""
        task = self._pick_task()
        if task is not None:
            task.say(core.TaskFailed(task.name, task.attempt, "simulated", final=False))
        return task is not None

    def kill_worker(self) -> bool:
        """A node dies and comes back."""
        living = [worker for worker in self._cluster.workers if worker.alive]
        if not living:
            return False
        worker = self._world.rng.choice(living)
        self._world.note("faults", "kill worker", worker.name)
        worker.crash()
        self._world.after(self._world.between(0.5, 5.0), worker.start)
        return True

    def freeze_task(self) -> bool:
        """A process stops for a while without knowing it, and may wake when it is lost, or in another epoch."""
        task = self._pick_task()
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
        living = [worker for worker in self._cluster.workers if worker.alive]
        busy = [worker for worker in living if worker.tasks]
        if not living:
            return False
        worker = self._world.rng.choice(busy or living)
        self._world.note("faults", "freeze node" if node else "freeze worker", worker.name)
        worker.freeze(self._world.between(0.5, 20.0), node=node)
        return True

    def crash_controller(self) -> bool:
        """A controller dies and comes back."""
        living = [controller for controller in self._cluster.controllers if controller.alive]
        if not living:
            return False
        controller = self._world.rng.choice(living)
        self._world.note("faults", "kill controller", controller.name)
        controller.crash()
        self._world.after(self._world.between(0.5, 8.0), controller.start)
        return True

    def freeze_controller(self) -> bool:
        """A controller, rather the leader, stops for a while without knowing it."""
        living = [item for item in self._cluster.controllers if item.alive and not item.frozen]
        leaders = [item for item in living if item.leads]
        if not living:
            return False
        controller = self._world.rng.choice(leaders or living)
        self._world.note("faults", "freeze controller", controller.name)
        controller.frozen = True
        self._world.after(self._world.between(0.5, 15.0), controller.thaw)
        return True

    def break_session(self) -> bool:
        """A connection breaks."""
        sessions = [worker.session for worker in self._cluster.workers if worker.session is not None]
        if sessions:
            self._world.rng.choice(sessions).end("broken by a fault")
        return bool(sessions)

    def leave_session(self) -> bool:
        """A worker comes back before its controller has noticed that it had gone; its last words come behind that."""
        sessions = [worker.session for worker in self._cluster.workers if worker.session is not None]
        if sessions:
            self._world.rng.choice(sessions).abandon()
        return bool(sessions)

    def dial_again(self) -> bool:
        """An end with the ticket of an earlier making of a link, or of a dead attempt, dials."""
        return self._cluster.wires.dial_again(self._world.rng)

    def harm_frame(self) -> bool:
        """The next frame on some links between workers is lost, doubled, overtaken or spoilt."""
        links = self._cluster.wires.standing()
        for link in self._world.rng.sample(links, min(len(links), HARMED_MAX)):
            link.spoils = self._world.rng.choice(list(Harm))
        return bool(links)

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
            leader.crash()
            self._world.after(self._world.between(0.5, 8.0), leader.start)

    def part_workers(self) -> bool:
        """Two workers that are joined by links cannot reach each other for a while, or for a moment."""
        pairs = self._cluster.wires.between()
        if pairs:
            pair = self._world.rng.choice(pairs)
            self._world.note("faults", "part", sorted(pair))
            self._cluster.wires.part(pair, self._world.between(0.0, 6.0))
        return bool(pairs)

    # -- what lies --

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
        self._set_errors(0.0 if self._cluster.quiet else CALM)

    def _set_errors(self, share: float) -> None:
        self._cluster.objects.error_share = share
        for log in self._cluster.logs():
            log.error_share = share

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
        sinks = [task.sink for task in self._tasks() if task.sink is not None]
        if sinks:
            self._world.rng.choice(sinks).corrupt = True
        return bool(sinks)

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
        sinks = [task.sink for task in self._tasks() if task.sink is not None]
        if sinks and self._cluster.corpus.texts is not None:
            self._world.rng.choice(sinks).haunted = True
            return True
        return False

    def stray_frame(self) -> bool:
        """A frame of another epoch arrives on a link."""
        links = [link for worker in self._cluster.workers for link in worker.links()]
        link = self._world.rng.choice(links) if links else None
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

    def retire_controller(self) -> bool:
        """Somebody ends the leader of a cluster in order, and starts it again."""
        leader = next(
            (item for item in self._cluster.controllers if item.alive and not item.frozen and item.leads), None
        )
        if leader is None or self._cluster.cluster_log is None:
            return False
        leader.post(core.ShutdownAsked())
        self._world.after(RETIRE_S, self._retired, leader, leader.life)
        return True

    def _retired(self, leader: SimulatedController, life: int) -> None:
        if leader.alive and leader.life == life:
            leader.crash()
            self._world.after(self._world.between(0.5, 4.0), leader.start)

    def _late_proposals(self) -> None:
        if not self._cluster.operator.completed:
            self.repeat_proposal()
