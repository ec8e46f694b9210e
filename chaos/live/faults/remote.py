"""What of a living cluster is not on this host: faults are asked of its workers, by whichever controller leads.

A worker does what it is asked by an agent of its own (`headrace.chaos.agent`), if it was started with --allow-chaos. It
keeps the time of a fault itself, so that one that cuts it off, or stops it, ends by itself. Answers come on threads:
whoever asks looks for them when it has time, since a leader may be dead just then. A controller is asked itself, leader
or not, and has the fault done to itself, if it was started with --allow-chaos.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Self

from headrace.chaos.gates import Affected
from headrace.chaos.live.faults.processes import Process, ProcessRole
from headrace.chaos.live.faults.tools import Begun
from headrace.chaos.live.scenario import NETWORK, Planned, Scenario
from headrace.client import Client, CliError, ControllerAt
from headrace.protos import control_pb2 as pb

#: Seconds between two looks at what there is.
LOOK_S = 0.2
#: Workers that are asked at once.
ASKED_AT_ONCE = 16
#: Seconds in which a worker must have answered: a leader may be gone, or the worker. Then others are asked.
ASK_S = 60.0
#: Seconds in which a worker must be found again to say what was affected.
END_S = 20.0
#: What a signal can be sent to that belongs to a worker.
_OF_WORKERS = frozenset({"task", "sink", "worker", "everything"})
#: And to a controller.
_OF_CONTROLLERS = frozenset({"controller", "everything"})
#: States of a task that has a process.
_LIVING = ("starting", "ready")


@dataclass(slots=True)
class Asked:
    """One firing, on its way to the workers and controllers that it concerns; answers are by their names.

    `there` are the workers that a fault of the network has found, with their process ids: it affects those, too, that
    come or come back while it lasts.
    """

    orders: list[pb.FaultAsked]
    said: tuple[str, ...] = ()
    answers: dict[str, Future[pb.FaultTold]] = field(default_factory=dict[str, "Future[pb.FaultTold]"])
    there: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    until: float = 0.0
    asked_at: float = field(default_factory=time.monotonic)


class HostReach:
    """The workers and controllers of a cluster but for those that run `here`, by name and address.

    A context manager. Raises CliError where nobody leads.
    """

    def __init__(self, at: ControllerAt, here: Collection[str]) -> None:
        self._at, self._here = at, frozenset(here)
        self._name = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        with Client(at) as client:
            self._reply = client.status()
            self.controllers = tuple(client.addresses)
        named = (address.strip() for address in at.address.split(","))
        self._far_controllers = tuple(sorted(address for address in named if address and address not in self._here))
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="reach")
        self._asked: dict[tuple[int, int], Asked] = {}
        #: Faults of the network that last.
        self._impairments: list[Asked] = []
        self._ending: list[Future[None]] = []
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, name="reach", daemon=True)

    def __enter__(self) -> Self:
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._looking.join(2 * LOOK_S)

    def check(self, scenario: Scenario) -> None:
        """Raises CliError where a worker or a controller that may be hit does not allow it."""
        by_network = scenario.has(NETWORK)
        by_signal = any(
            fault.kind not in NETWORK and (fault.target in _OF_WORKERS or fault.target.startswith("stage:"))
            for fault in scenario.faults
        )
        for worker in self._reply.workers:
            far = worker.worker not in self._here
            if not worker.allows_chaos and (by_network or (by_signal and far)):
                remedy = "start it with --allow-chaos"
                remedy += "" if by_network else ", or give --here to hit this host's processes alone"
                raise CliError(f"worker {worker.worker} on host {worker.host} does not allow chaos: {remedy}")
        if any(fault.kind not in NETWORK and fault.target in _OF_CONTROLLERS for fault in scenario.faults):
            for address in self._far_controllers:
                with self._client(address) as client:
                    if not client.allows_chaos():
                        remedy = "start it with --allow-chaos, or give --here to hit this host's processes alone"
                        raise CliError(f"controller {address} does not allow chaos: {remedy}")

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers elsewhere that are registered and allow it, as seen last."""
        return tuple(sorted(item.worker for item in self._allowing() if item.worker not in self._here))

    def alive(self) -> list[Process]:
        """These workers and their tasks, as seen last, and these controllers, by title."""
        far = frozenset(self.workers)
        found = [Process(0, ProcessRole.WORKER, f"headrace worker {name}", worker=name) for name in sorted(far)]
        found += [
            Process(0, ProcessRole.CONTROLLER, f"headrace controller {address}", controller=address)
            for address in self._far_controllers
        ]
        for pipeline in self._reply.pipelines:
            found += [
                Process(0, ProcessRole.TASK, f"headrace task {task.task}", task.stages[0], task.worker, task.task)
                for task in pipeline.tasks
                if task.worker in far and task.state in _LIVING
            ]
        return sorted(found, key=lambda process: process.title)

    # -- asking --

    def awaits(self, planned: Planned) -> bool:
        """Whether this firing is on its way."""
        return (planned.fault, planned.nth) in self._asked

    def inject(self, planned: Planned, victims: Sequence[Process]) -> None:
        """Ask for a fault of processes: of a task, a worker or a controller, or of all that these are."""
        everything = planned.target == "everything"
        targets = {
            process.worker: "everything" if everything else process.role.value
            for process in victims
            if not everything or process.role is ProcessRole.WORKER
        }
        tasks = {process.worker: process.task for process in victims}
        orders = [
            self._order(planned, worker, target, task="" if everything else tasks[worker])
            for worker, target in targets.items()
            if worker
        ]
        # Controllers last: one of them leads, and passes on what is asked of workers.
        orders += [
            self._order(planned, "", "controller", controller=process.controller)
            for process in victims
            if process.controller
        ]
        self._ask(planned, orders)

    def impairment(self, planned: Planned) -> None:
        """Ask all workers for a fault of the network, also those that run here: each has gates of its own."""
        found = sorted(self._allowing(), key=lambda item: item.worker)
        if not found:
            return
        target, ends, said = planned.target, [""], planned.target
        if target == "worker":
            victim = found[int(planned.pick * len(found))]
            target, ends, said = "ways", [victim.worker, *victim.addresses], f"worker {victim.worker}"
        elif target == "controller":
            ends = [self.controllers[int(planned.pick * len(self.controllers))]]
            target, said = "control", f"controller {ends[0]}"
        said = said if planned.share == 1 else f"{planned.share:.1%} of {said}"
        orders = [self._order(planned, item.worker, target, ends=[end for end in ends if end]) for item in found]
        asked = self._ask(planned, orders, (said,))
        asked.there.update((item.worker, item.pid) for item in found)
        asked.until = time.monotonic() + planned.for_s
        self._impairments.append(asked)

    def take(self, planned: Planned) -> Begun | None:
        """The fault that was asked for, once all have answered; None before, and where it has to be asked for anew."""
        key = planned.fault, planned.nth
        asked = self._asked[key]
        late = time.monotonic() > asked.asked_at + ASK_S
        told: dict[str, pb.FaultTold] = {}
        for order in asked.orders[: len(asked.answers)]:
            future = asked.answers[_whom(order)]
            if future.done() and future.exception() is None and not future.result().again:
                told[_whom(order)] = future.result()
            elif late:
                continue
            else:
                if future.done():
                    # Nobody leads, or the worker is away: the very same again, which is done once.
                    asked.answers[_whom(order)] = self._pool.submit(self._send, order, LOOK_S)
                return None
        del self._asked[key]
        if not any(answer.accepted for answer in told.values()):
            self._forget(asked)
            return None
        victims = asked.said or tuple(
            title if title.endswith(whom) else f"{title}, on worker {whom}"
            for whom, answer in told.items()
            for title in answer.victims
        )
        affected: Counter[Affected] = Counter()
        return Begun(victims, lambda: self._end(asked, affected) if planned.for_s else None, affected)

    def finish(self) -> None:
        """Wait until what was affected is known of all faults that are over, as far as it can be asked."""
        wait(self._ending, timeout=END_S)

    # -- inside --

    def _allowing(self) -> list[pb.WorkerStatus]:
        return [item for item in self._reply.workers if item.allows_chaos]

    def _order(
        self,
        planned: Planned,
        worker: str,
        target: str,
        *,
        task: str = "",
        ends: Sequence[str] = (),
        controller: str = "",
    ) -> pb.FaultAsked:
        return pb.FaultAsked(
            fault=f"{self._name}.{planned.fault}.{planned.nth}.{next(self._numbers)}",
            worker=worker,
            kind=planned.kind.value,
            target=target,
            task=task,
            for_s=planned.for_s,
            share=planned.share,
            delay_s=planned.delay_s,
            ends=ends,
            controller=controller,
        )

    def _ask(self, planned: Planned, orders: list[pb.FaultAsked], said: tuple[str, ...] = ()) -> Asked:
        asked = self._asked[planned.fault, planned.nth] = Asked(orders, said)
        for order in orders:
            asked.answers[_whom(order)] = self._pool.submit(self._send, order)
        return asked

    def _send(self, order: pb.FaultAsked, after_s: float = 0.0) -> pb.FaultTold:
        self._over.wait(after_s)
        with self._client(order.controller) as client:
            return client.fault(order)

    def _client(self, controller: str = "") -> Client:
        """A connection to one controller, whether it leads or not; without an address, to the one that does."""
        return Client(replace(self._at, address=controller) if controller else self._at)

    def _end(self, asked: Asked, affected: Counter[Affected]) -> None:
        """Let it be over at all of them, and learn what it affected."""
        self._forget(asked)
        latest = {order.worker: order for order in asked.orders if order.worker}
        self._ending += [self._pool.submit(self._end_one, order, affected) for order in latest.values()]

    def _forget(self, asked: Asked) -> None:
        """New workers are not affected from now on."""
        self._impairments = [impairment for impairment in self._impairments if impairment is not asked]

    def _end_one(self, order: pb.FaultAsked, affected: Counter[Affected]) -> None:
        """A worker that has died since knows nothing of it; one that is away is asked again."""
        deadline = time.monotonic() + END_S
        ending = pb.FaultAsked(fault=order.fault, worker=order.worker, end=True)
        while time.monotonic() < deadline and not self._over.is_set():
            with contextlib.suppress(CliError):
                told = self._send(ending)
                if not told.again:
                    affected.update({Affected(what): count for what, count in told.struck.items()})
                    return
            self._over.wait(LOOK_S)

    def _look(self) -> None:
        with Client(self._at) as client:
            while not self._over.wait(LOOK_S):
                with contextlib.suppress(CliError):
                    self._reply = client.status()
                    for impairment in list(self._impairments):
                        self._spread(impairment)

    def _spread(self, impairment: Asked) -> None:
        """Ask for a fault of the network of workers that have come since it began."""
        left_s = impairment.until - time.monotonic()
        for item in self._allowing() if left_s > 0 else ():
            if (item.worker, item.pid) in impairment.there:
                continue
            impairment.there.add((item.worker, item.pid))
            order = pb.FaultAsked()
            order.CopyFrom(impairment.orders[0])
            order.worker, order.for_s = item.worker, left_s
            with contextlib.suppress(CliError):
                self._send(order)
                impairment.orders.append(order)


def _whom(order: pb.FaultAsked) -> str:
    """The worker or the controller that is asked."""
    return order.worker or order.controller
