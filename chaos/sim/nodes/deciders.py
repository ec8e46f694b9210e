"""A simulated dedup stage: the real Decider core over an index that is a dict, begun with the keys of the kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.chaos.sim.network import SimulatedFrame
from headrace.chaos.sim.world import DEDUPS, Name, SimulatedTexts, ViolationError, ordinals
from headrace.controller.core.messages import Records, dedup, messages
from headrace.stages.dedup import decider as core, kept, partitions
from headrace.store.ledger import LedgerState
from headrace.worker.task import DedupRole

if TYPE_CHECKING:
    from headrace.chaos.sim.nodes.tasks import SimulatedTask


class SimulatedIndex:
    """Which record holds a key, and the keys that each holds."""

    def __init__(self) -> None:
        self.held: dict[Name, tuple[int, ...]] = {}
        #: What was kept before it began.
        self.settled: frozenset[Name] = frozenset()
        self._holders: dict[int, Name] = {}

    def load(self, name: Name, keys: Sequence[int]) -> None:
        """A record was kept before: it holds its keys, unless another does."""
        self.held[name] = tuple(key for key in keys if self._holders.setdefault(key, name) == name)

    def decide(
        self, fragment: bytes, rows: Sequence[int], keys: Sequence[tuple[int, ...]], sketches: None
    ) -> list[Name | None]:
        """See `headrace.stages.dedup.core.decider.Index`. A shared key decides: there is no judge."""
        del sketches
        return [self._decide((fragment, row), mine) for row, mine in zip(rows, keys, strict=True)]

    def _decide(self, name: Name, keys: tuple[int, ...]) -> Name | None:
        if name in self.held:
            return None
        holder = next((self._holders[key] for key in keys if key in self._holders), None)
        if holder is None:
            self.load(name, keys)
        return holder

    def release(self, name: Name) -> bool:
        """See `headrace.stages.dedup.core.decider.Index`."""
        keys = self.held.pop(name, ())
        for key in keys:
            del self._holders[key]
        return bool(keys)


class SimulatedRequest(NamedTuple):
    """What a partition is told, released records and claims, and the keys that it is asked for."""

    number: int
    released: tuple[Name, ...]
    claims: tuple[tuple[int, Name], ...]
    keys: tuple[int, ...]


class SimulatedAnswer(NamedTuple):
    """Who holds each key of a request; None: the partition is fenced."""

    number: int
    holders: Mapping[int, Name] | None


def share_of(key: int, partitions: int) -> int:
    """Which partition holds a key."""
    return key % partitions


class SimulatedPartitions(SimulatedIndex):
    """The records that are kept, whose keys partitions hold."""

    def __init__(self, partitions: int) -> None:
        super().__init__()
        self._partitions, self._number = partitions, 0
        self._claims: list[tuple[int, Name]] = []
        self._released: list[Name] = []
        self._answers: dict[int, Name] = {}

    def requests(self, keys: Sequence[tuple[int, ...]]) -> list[SimulatedRequest]:
        """What each partition is asked for records with these keys."""
        self._number += 1
        asked = sorted({key for mine in keys for key in mine})
        claims = [claim for claim in self._claims if claim[1] not in self._released]
        requests = [
            SimulatedRequest(
                self._number,
                tuple(self._released),
                tuple(claim for claim in claims if share_of(claim[0], self._partitions) == part),
                tuple(key for key in asked if share_of(key, self._partitions) == part),
            )
            for part in range(self._partitions)
        ]
        self._claims, self._released = [], []
        return requests

    def answered(self, answers: Sequence[SimulatedAnswer]) -> None:
        """The partitions have answered."""
        self._answers = {key: name for answer in answers for key, name in (answer.holders or {}).items()}

    def load(self, name: Name, keys: Sequence[int]) -> None:
        """A record was kept before; partitions know its keys."""
        self.held[name] = tuple(keys)

    def _decide(self, name: Name, keys: tuple[int, ...]) -> Name | None:
        if name in self.held:
            return None
        holders = [holder for key in keys if (holder := self._answers.get(key)) in self.held]
        if holders:
            return holders[0]
        self.held[name] = keys
        self._answers |= dict.fromkeys(keys, name)
        self._claims += [(key, name) for key in keys]
        return None

    def release(self, name: Name) -> bool:
        """See `headrace.stages.dedup.core.decider.Index`."""
        held = self.held.pop(name, None) is not None
        if held:
            self._released.append(name)
        return held


class SimulatedPartition:
    """A partition of the index of a dedup stage, in one task."""

    def __init__(
        self,
        task: SimulatedTask,
        texts: SimulatedTexts,
        stage: int,
        sinks: Sequence[str],
        share: int,
        shares: int,
        *,
        fenced: bool,
    ) -> None:
        self._task, self._texts, self._stage, self._sinks = task, texts, stage, sinks
        self._share, self._shares, self.fenced = share, shares, fenced
        self._holders: dict[int, Name] = {}
        self._served = partitions.ServedRequest[SimulatedAnswer]()

    def begin(self, position: int | None) -> None:
        """Load the range of keys of what was kept up to an entry; None: by now, and the rest when it is to serve."""
        for name in () if self.fenced else kept_names(self._task, self._sinks, self._stage, position):
            self._give(name, self._texts.keys(name, self._stage))

    def serve(self, frame: SimulatedFrame) -> SimulatedFrame:
        """The answer to a request."""
        request = frame.message
        assert isinstance(request, SimulatedRequest)
        answer = self._served.again(request.number)
        if answer is None:
            for key in [key for key, name in self._holders.items() if name in request.released]:
                del self._holders[key]
            for key, name in request.claims:
                self._give(name, (key,))
            answer = SimulatedAnswer(
                request.number, {key: self._holders[key] for key in request.keys if key in self._holders}
            )
            self._served.served(request.number, answer)
        return frame._replace(message=answer)

    def refuse(self, frame: SimulatedFrame) -> SimulatedFrame:
        """The answer of a fenced partition."""
        request = frame.message
        assert isinstance(request, SimulatedRequest)
        return frame._replace(message=SimulatedAnswer(request.number, None))

    def _give(self, name: Name, keys: Sequence[int]) -> None:
        for key in keys:
            if share_of(key, self._shares) == self._share:
                self._holders.setdefault(key, name)


def kept_names(task: SimulatedTask, sinks: Sequence[str], stage: int, position: int | None) -> list[Name]:
    """What was kept up to an entry (None: the last), from the log and the objects that it names."""
    state, cluster = LedgerState(), task.cluster
    for number, entry in cluster.log.behind(-1):
        state.apply(number, entry)
    return [
        (part.item.fragment, row)
        for key, *_ in kept.key_files(
            state, state.number if position is None else position, sinks, cluster.log.uri, stage
        )
        for part in cluster.objects.content[key][1]
        for row in ordinals(part.kept, part.item.first)
    ]


class SimulatedDecider:
    """One dedup stage in one task."""

    def __init__(
        self,
        task: SimulatedTask,
        texts: SimulatedTexts,
        stage: int,
        sinks: Sequence[str],
        partitions: int,
        *,
        fenced: bool,
    ) -> None:
        self.parted = SimulatedPartitions(partitions) if partitions else None
        self.index = self.parted or SimulatedIndex()
        self._core = core.Decider(self.index)
        self._task, self._texts, self._stage, self._sinks = task, texts, stage, sinks
        self._who = f"{task.name}#{task.attempt}"
        if fenced:
            self._do(core.ServiceForbidden())

    @property
    def fenced(self) -> bool:
        """Whether it lets nothing through until the epoch is raised."""
        return self._core.state is core.DeciderState.FENCED

    def begin(self, position: int | None) -> None:
        """Load the keys of what was kept up to an entry; None: by now, and the rest when it is to serve."""
        for name in () if self.fenced else kept_names(self._task, self._sinks, self._stage, position):
            if name not in self.index.held:
                self.index.load(name, self._texts.keys(name, self._stage))
        if self.fenced or position is None:
            return
        self.index.settled = frozenset(self.index.held)
        self._task.cluster.checker.verdicts.begun(self._who, self._task.epoch, self._stage, self.index.held)
        self._do(core.KeysLoaded())

    def forbid(self) -> None:
        """A partition was lost."""
        self._do(core.ServiceForbidden())

    def requests(self, question: SimulatedFrame | dedup.AskDecision) -> list[SimulatedFrame]:
        """What each partition is asked for a batch, or for the record of a solitary task."""
        assert self.parted is not None
        if isinstance(question, SimulatedFrame):
            names = [(question.fragment, row) for row in ordinals(question.kept, question.first)]
        else:
            names = [(question.question.fragment, question.question.row)]
        requests = self.parted.requests([self._texts.keys(name, self._stage) for name in names])
        return [SimulatedFrame(self._task.epoch, 1 + len(item.keys), message=item) for item in requests]

    def decide(self, frame: SimulatedFrame) -> SimulatedFrame:
        """The batch less the duplicates, each with the name of the record that is kept in its place."""
        if not frame.kept:
            return frame
        if self._core.state is core.DeciderState.LOADING:
            raise ViolationError(11, f"{self._who} is given a batch before it serves")
        rows = ordinals(frame.kept, frame.first)
        keys = [self._texts.keys((frame.fragment, row), self._stage) for row in rows]
        (answer,) = self._do(core.BatchStamped(frame.fragment, rows, keys))
        if not isinstance(answer, core.AnswerBatch):
            raise ViolationError(11, f"{self._who} is fenced and is given a batch")
        through = [(frame.fragment, row) for row, of in zip(rows, answer.duplicates_of, strict=True) if of is None]
        verdicts = self._task.cluster.checker.verdicts
        verdicts.granted(self._who, self._task.epoch, self._stage, through, self.index.held)
        found = zip(rows, answer.duplicates_of, strict=True)
        lost = tuple((row, of, self._stage) for row, of in found if of is not None)
        bits = sum(1 << row - frame.first for row, *_ in lost)
        settled = sum(1 << row - frame.first for row, of, _ in lost if of in self.index.settled)
        both = (*frame.duplicates, *lost)
        return frame._replace(kept=frame.kept & ~bits, duplicates=both, settled=frame.settled | settled)

    def asked(self, message: dedup.AskDecision) -> dedup.DecisionMade:
        """What is decided on a record of a solitary task."""
        question = message.question
        frame = self.decide(SimulatedFrame(self._task.epoch, 0, question.fragment, question.row, 1, 1))
        target = frame.duplicates[0][1] if frame.duplicates else None
        made = dedup.Decision(question.number, target, settled=frame.settled > 0)
        return dedup.DecisionMade(
            self._task.name, self._task.attempt, message.asking_task, message.asking_attempt, made
        )

    def release(self, records: Records) -> None:
        """Let go of the claims of records that are not kept after all."""
        for fragment, rows in records:
            for row in rows:
                self._task.cluster.checker.verdicts.released(self._who, self._task.epoch, self._stage, (fragment, row))
                self._do(core.ClaimReleased((fragment, row)))

    def _do(self, event: core.Event) -> list[core.Command]:
        return self._core.handle(event, self._task.clock.at(self._task.cluster.world.now))


def resumed(frame: SimulatedFrame, answer: SimulatedFrame | dedup.Decision, stage: int) -> SimulatedFrame:
    """The batch less its duplicates; a decision is that of a dedup stage."""
    if isinstance(answer, SimulatedFrame):
        if (answer.fragment, answer.first, answer.records) != (frame.fragment, frame.first, frame.records):
            raise ViolationError(11, f"the answer to a question about {frame} is of {answer}")
        lost = sum(1 << row - frame.first for row, *_ in answer.duplicates)
        return frame._replace(kept=frame.kept & ~lost, duplicates=answer.duplicates, settled=answer.settled)
    if answer.duplicate_of is not None:
        pair = frame.first, answer.duplicate_of, stage
        return frame._replace(kept=0, duplicates=(pair,), settled=int(answer.settled))
    return frame


def role_of(order: messages.StartTask, *, consults: bool) -> DedupRole:
    """What a task that asks nobody over links has to do with duplicates."""
    if not set(DEDUPS).intersection(order.stages):
        return DedupRole.NONE
    if order.alone:
        return DedupRole.ASKS_ALONE
    if order.fenced:
        return DedupRole.FENCED
    return DedupRole.CONSULTS if consults else DedupRole.DECIDES
