"""What must hold after each event, by the numbers of docs/design/ledger.md.

The checker folds the log by itself, from the bytes that are durable, and compares all that anybody says or holds with
that fold. It looks into the cores and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from headrace.chaos.sim.checks.logs import Assignments, History, OperatorRequest
from headrace.chaos.sim.checks.reading import Provenance, Rereading
from headrace.chaos.sim.checks.verdicts import Verdicts
from headrace.chaos.sim.checks.versions import SimulatedBuilds, SimulatedGate
from headrace.chaos.sim.storage import SHARD
from headrace.chaos.sim.world import (
    BATCH_RECORDS_MAX,
    CLUSTER,
    GHOST_PROPOSALS,
    HELD_BYTES,
    Name,
    Part,
    SimulatedTexts,
    ViolationError,
    keys_of,
)
from headrace.controller.core.log import Fence
from headrace.controller.core.messages import messages as core
from headrace.store.ledger import ClaimsReleased, Closed, Entry, EpochRaised, LedgerState
from headrace.store.shards import KEYS_ROLE, epoch_of, numbered_role
from headrace.worker.task import HELD_TIMES_MAX, NEED_BYTES

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes import Cluster, SimulatedController, SimulatedSink

#: The one batch that a sink lets in below its budget.
BATCH_BYTES_MAX = BATCH_RECORDS_MAX * HELD_BYTES


class Checker:
    """The judge of one simulated run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.dataset = History(cluster.log, LedgerState(), summary)
        #: The fold of all that is durable in the dataset's log.
        self.ledger = self.dataset.ledger
        self.provenance = Provenance(cluster, self.ledger)
        self.rereading = Rereading(cluster, self.ledger)
        #: What a version must meet to be published, if anything.
        self.gate = SimulatedGate(cluster.world, self.ledger)
        #: Which versions cannot be built.
        self.builds = SimulatedBuilds(cluster.world)
        #: What is asked of the cluster's own log, where it has one.
        self.assignments = Assignments(cluster.cluster_log) if cluster.cluster_log is not None else None
        #: What is asked of duplicates, where there is a dedup stage.
        self.verdicts = Verdicts(cluster.corpus.texts or SimulatedTexts(), cluster.corpus.dedups)
        #: The controllers that have handled an event since the last check: no other fold can have changed.
        self._stirred: list[SimulatedController] = []
        self._proposals: dict[tuple[str, int, int], set[bytes]] = {}
        #: What was proposed, each with the worker that it came from.
        self.proposed: list[tuple[str, core.ShardProposed]] = []
        #: Proposals that a controller has believed and that were of ghosts, or came once more.
        self.ghosts = self.repeats = 0
        self._heard: set[int] = set()
        #: The highest terms that each life of a worker has obeyed, by log.
        self._obeyed: dict[tuple[str, int, str], int] = {}
        self._identities: set[bytes] = set()

    # -- after each event --

    def stirred(self, controller: SimulatedController) -> None:
        """A controller's core has been given an event, which is all that changes its folds."""
        self._stirred.append(controller)

    def check(self) -> None:
        """1: what each controller has folded is a prefix of the log, and is folded alike."""
        if not self._stirred:
            return
        stirred, self._stirred = self._stirred, []
        for controller in stirred:
            run = controller.core.runs.get(self._cluster.pipeline)
            if run is not None:
                self.dataset.compare(controller, run.ledger)
            if self.assignments is not None:
                self.assignments.compare(controller)

    # -- the log --

    def write_asked(self, controller: SimulatedController, command: core.WriteEntry, data: bytes) -> None:
        """1, 3: what a controller wants to write."""
        if self.assignments is not None and command.log == CLUSTER:
            self.assignments.history.write_asked(controller, command, data)
        else:
            self.dataset.write_asked(controller, command, data)

    def durable(self, number: int, entry: Entry, writer: str) -> None:
        """2, 4, 6 to 9, 12, 13, 15, 24, 30: an entry that has become durable keeps every promise of the ledger."""
        freed = set(released_by(entry))
        for change in entry.changes:
            if isinstance(change, Closed):
                self._check_closed(number, change, freed)
            elif isinstance(change, EpochRaised):
                self.verdicts.raised(number, change.number or number)
            self.provenance.change(number, change)
            self.gate.change(number, change, writer)
        self.builds.durable(number, entry)
        self.dataset.led(entry, writer)
        self.dataset.fold(number, entry)
        for change in entry.changes:
            self.provenance.folded(change)

    def _check_closed(self, number: int, closed: Closed, freed: Collection[tuple[str, Name]]) -> None:
        if closed.identity() in self._identities:
            raise ViolationError(15, f"entry {number} closes the same proposal a second time")
        self._identities.add(closed.identity())
        if closed.version != self.ledger.pipeline_version or closed.epoch != self.ledger.epoch:
            raise ViolationError(
                12,
                f"entry {number} closes work of version {closed.version}, epoch {closed.epoch}; the ledger is at "
                f"{self.ledger.pipeline_version}, {self.ledger.epoch}",
            )
        for item in closed.ranges:
            state = self.ledger.fragments.get(item.fragment)
            if state is not None and state.of(closed.sink).overlap(item.first, item.end):
                raise ViolationError(4, f"entry {number} closes records {item.first}..{item.end - 1} a second time")
        parts = self._content(closed)
        names = [(item.fragment, item.first, item.count) for item in closed.ranges]
        if [(part.item.fragment, part.item.first, part.item.count) for part in parts] != names:
            raise ViolationError(7, f"entry {number} closes other ranges than its shard holds")
        for part in parts:
            self._check_part(number, closed, part)
        if self._cluster.corpus.texts is not None:
            self.verdicts.closed(number, closed.epoch, parts)
            for part in parts:
                fragment = part.item.fragment
                for row in part.released_rows():
                    if (closed.sink, (fragment, row)) not in freed:
                        raise ViolationError(
                            9, f"entry {number} quarantines record {row} of {fragment.hex()[:8]} and keeps its claim"
                        )

    def _check_part(self, number: int, closed: Closed, part: Part) -> None:
        item, everyone = part.item, (1 << part.item.count) - 1
        where = f"entry {number}, records {item.first}..{item.end - 1}"
        if part.kept & part.other or (part.kept | part.other) != everyone:
            raise ViolationError(7, f"{where}: a record has no fate or two")
        self.provenance.read(number, part)
        if item.end > self._cluster.corpus.records[item.fragment]:
            raise ViolationError(4, f"{where} are beyond the end of the fragment")
        alike = sum(1 << row - item.first for row, *_ in part.duplicates)
        corpus, place = self._cluster.corpus, (item.fragment, item.first, item.count)
        dead = corpus.quarantined(closed.version, closed.sink, *place)
        dead &= part.quarantined | ~corpus.fickle(*place)
        kept = corpus.passed(closed.version, *place) & ~dead
        late = ~corpus.passed_late(closed.sink, *place) & everyone
        # A duplicate comes to no sink, so it kills none.
        due = kept | dead & alike
        if part.kept & (alike | late) or alike & ~due or part.kept | alike | due & late != due:
            raise ViolationError(8, f"{where}: other verdicts than a run without faults comes to")
        if part.quarantined != dead & ~alike:
            raise ViolationError(8, f"{where}: quarantined are {part.quarantined:b}, those that kill are {dead:b}")

    def _content(self, closed: Closed) -> tuple[Part, ...]:
        """13: what an entry names exists and is what it was, and keys are those of the records that are kept."""
        found: dict[str, tuple[Part, ...]] = {}
        for stored in closed.objects:
            checksum, found[stored.role] = self._cluster.objects.content.get(stored.key, ("", ()))
            if checksum != stored.checksum:
                raise ViolationError(
                    13, f"object {stored.key} has checksum {checksum or 'none'}, not {stored.checksum}"
                )
        if SHARD not in found:
            raise ViolationError(13, "a shard without an object")
        keys = keys_of(found[SHARD]) if self._cluster.corpus.texts is not None else ()
        if any(found.get(numbered_role(KEYS_ROLE, stage), ()) != keys for stage in range(self._cluster.corpus.dedups)):
            raise ViolationError(13, "the keys beside a shard are not those of the records that it keeps")
        return found[SHARD]

    # -- what is said --

    def commanded(self, controller: SimulatedController, command: core.Command, given: Fence) -> None:
        """2, 3: nothing is done in a term before its Led is durable; an accepted shard is named by a durable entry."""
        if self.assignments is not None:
            self.assignments.commanded(controller, command, given.term)
        term = given.log_term
        if term == 0:
            if not isinstance(command, core.KillTask):
                raise ViolationError(2, f"{controller.name} commands without a term: {command}")
            return
        if self.dataset.led_by(term) != controller.identity:
            raise ViolationError(2, f"{controller.name} commands in term {term} before it leads it: {command}")
        if isinstance(command, core.AnswerProposal) and command.outcome is core.Outcome.ACCEPTED:
            proposed = self._proposals.get((command.task, command.attempt, command.proposal), set())
            if not any(identity in self.ledger.accepted for identity in proposed):
                raise ViolationError(3, f"{controller.name} accepts what no durable entry names: {command}")

    def obeyed(self, worker: str, life: int, given: Fence) -> None:
        """2: no worker does what a leader says of a lower term than it has heard of."""
        for log, term in ((CLUSTER, given.term), (given.log, given.log_term)):
            known = self._obeyed.get((worker, life, log), 0)
            if term < known:
                raise ViolationError(2, f"{worker} obeys term {term} of {log} behind term {known}")
            if term:
                self._obeyed[worker, life, log] = term

    def granted(self, controller: SimulatedController, request: OperatorRequest) -> None:
        """3: what was promised is in the cluster's log, where there is one."""
        if self.assignments is not None:
            self.assignments.granted(controller, request)

    def said(self, worker: str, event: core.Event) -> None:
        """9: a sink proposes no duplicate of a record that the ledger does not keep. Remember what was proposed."""
        if isinstance(event, core.ShardProposed):
            if event.proposal < GHOST_PROPOSALS:
                self.verdicts.proposed(event.task, event.epoch, event.needs)
            closed = Closed(event.sink, event.version, event.epoch, event.ranges, event.objects, event.counts)
            self._proposals.setdefault((event.task, event.attempt, event.proposal), set()).add(closed.identity())
            self.proposed.append((worker, event))

    def heard(self, event: core.ShardProposed) -> None:
        """A controller believes that this was proposed: count what came late, so that a test sees that it does."""
        self.ghosts += event.proposal >= GHOST_PROPOSALS
        self.repeats += id(event) in self._heard
        self._heard.add(id(event))

    def released(self, task: str, sink: str, parts: list[Part]) -> None:
        """3: a sink lets go only of what is closed."""
        for item in (part.item for part in parts):
            state = self.ledger.fragments.get(item.fragment)
            closed = state.of(sink).overlap(item.first, item.end) if state else []
            if sum(end - first for first, end in closed) < item.count:
                raise ViolationError(3, f"{task} lets go of records {item.first}..{item.end - 1}, which are open")

    def held(self, task: str, sink: SimulatedSink) -> None:
        """16: held bytes are within the budget; a verdict that waits counts more than it did as part of its batch."""
        held, budget = (
            sink.core.gathering.held_bytes,
            HELD_TIMES_MAX * sink.core.policy.held_bytes_max + BATCH_BYTES_MAX,
        )
        if held > budget and held > budget + NEED_BYTES * sink.waiting():
            raise ViolationError(16, f"{task} holds {held} bytes, its budget is {budget}")

    def deleted(self, key: str) -> None:
        """14: what is deleted is below the floor and reached from nothing."""
        epoch = epoch_of(key)
        if epoch is None or epoch >= self.ledger.epoch:
            raise ViolationError(14, f"{key} is deleted in epoch {self.ledger.epoch}: it may still be proposed")
        if any(stored.key == key for shard in self.ledger.shards for stored in shard.closed.objects):
            raise ViolationError(14, f"{key} is deleted, and an entry names it")

    def frame_taken(self, task: str, frame_epoch: int, epoch: int) -> None:
        """20: what a task takes is of its own epoch."""
        if frame_epoch != epoch:
            raise ViolationError(20, f"{task} of epoch {epoch} takes a frame of epoch {frame_epoch}")

    # -- the end --

    def finish(self) -> None:
        """5, 8, 13, 23: all is closed, each record has one verdict, and every shard is there."""
        self.dataset.finish()
        if self.assignments is not None:
            self.assignments.history.finish()
        self.provenance.finish()
        self._cluster.manifest.finish(self.ledger)
        for shard in self.ledger.shards:
            for part in self._content(shard.closed):
                self._check_part(shard.number, shard.closed, part)


def released_by(entry: Entry) -> Iterator[tuple[str, Name]]:
    """The sink and the name of each record whose claim an entry releases."""
    for change in entry.changes:
        if isinstance(change, ClaimsReleased):
            for fragment, rows in change.records:
                for row in rows:
                    yield change.sink, (fragment, row)


def summary(ledger: LedgerState) -> tuple[Any, ...]:
    """What a fold knows, in few words; two folds that differ differ here."""
    return (
        ledger.term,
        ledger.leader.get("id"),
        ledger.resigned,
        ledger.pipeline_version,
        ledger.epoch,
        ledger.version,
        len(ledger.fragments),
        len(ledger.shards),
        [(sink, counts.kept, counts.duplicate, counts.records) for sink, counts in ledger.counts.items()],
        sum(len(rows) for state in ledger.fragments.values() for rows in state.released.values()),
    )
