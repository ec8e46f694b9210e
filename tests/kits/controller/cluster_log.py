"""Controllers of one cluster, their two logs, and a store that answers at once."""

from collections.abc import Mapping, Sequence

from headrace.controller.core.cluster.controller import Controller
from headrace.controller.core.log.leader import TAKEOVER_S
from headrace.controller.core.messages import messages as m
from headrace.store.ledger.core.cluster_fold import ClusterState
from headrace.store.ledger.core.entries import Entry
from tests.kits.controller.core import LOG, fragment, make_pipeline, of

CLUSTER = "file:///shared/controller"
A, B = fragment(0), fragment(1)


class Store:
    """Two logs that answer at once."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Entry]] = {LOG: [], CLUSTER: []}
        self.leader_alive: bool | None = None

    def fold(self) -> ClusterState:
        state = ClusterState()
        for number, entry in enumerate(self.logs[CLUSTER]):
            state.apply(number, entry)
        return state


class Bench:
    """One controller."""

    def __init__(self, store: Store, name: str, expelled: Mapping[str, Sequence[str]] = {}) -> None:
        self.store, self.now = store, 0.0
        self.core = Controller({"host": name, "address": f"{name}:1"}, log=CLUSTER, expelled=expelled)
        self.frozen = False
        #: A log whose writes wait, and those that do.
        self.slow, self.waiting = "", list[m.WriteEntry]()
        self.said = self.do(self.core.open())

    def tell(self, *events: object) -> list[m.Command]:
        return [said for event in events for said in self.do(self.core.handle(event, self.now))]

    def later(self, seconds: float) -> list[m.Command]:
        self.now += seconds
        return self.tell(m.TimePassed())

    def do(self, commands: list[m.Command]) -> list[m.Command]:
        queue, said = list(commands), list[m.Command]()
        while queue:
            command = queue.pop(0)
            match command:
                case m.ReadLog():
                    behind = tuple(enumerate(self.store.logs[command.log]))[command.after + 1 :]
                    read = m.LogRead(command.log, behind, command.after, self.store.leader_alive)
                    queue += self.core.handle(read, self.now)
                case m.WriteEntry() if command.log == self.slow:
                    self.waiting.append(command)
                case m.WriteEntry():
                    queue += self.core.handle(self._written(command), self.now)
                case _:
                    said.append(command)
        return said

    def hurry(self) -> list[m.Command]:
        """The slow log takes what waits, and is slow no more."""
        waiting, self.slow, self.waiting = self.waiting, "", []
        return self.do([*waiting])

    def _written(self, command: m.WriteEntry) -> object:
        log = self.store.logs[command.log]
        if command.number < len(log):
            return m.EntryRefused(command.log, command.number, log[command.number])
        log.append(command.entry)
        return m.EntryWritten(command.log, command.number)

    def apply(self) -> list[m.Command]:
        return self.tell(m.PipelineRequested(1, make_pipeline().to_dict(), replicas=1))

    def join(self, name: str, *tasks: m.RunningTask) -> list[m.Command]:
        return self.tell(m.WorkerRegistered(name, name, 1, 1 << 30, tasks=tasks))

    def begun(self) -> m.StartTask:
        """One worker and its one fused task, ready and listed, with two fragments to read."""
        self.join("w1")
        (start,) = of(m.StartTask, self.apply())
        (ask,) = of(m.ListSource, self.tell(m.TaskReady(start.task, start.attempt)))
        page = m.SourceListed(ask.task, ask.attempt, "read", (A, B), last=True, listing=ask.listing)
        assert len(of(m.ReadFragment, self.tell(page))) == 2
        return start


def succeeded(store: Store) -> Bench:
    """A second controller after a silence."""
    second = Bench(store, "b")
    while not second.core.leads:
        second.later(1.0)
        assert second.now < 2 * TAKEOVER_S
    return second


def living(start: m.StartTask, *, ready: bool = True) -> m.RunningTask:
    return m.RunningTask(start.task, start.attempt, start.version, start.epoch, ready)
