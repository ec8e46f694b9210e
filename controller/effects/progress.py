"""What tasks say of their own work: sums for people to read, which decide nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from headrace.controller.core.cluster import NUMBER_MAX
from headrace.protos import control_pb2 as pb
from headrace.store.ledger import UNBOUNDED, LedgerState, without_hidden

#: Seconds for which a stage that was at a batch is taken to be at it still, without a word of its worker.
GUESSED_S_MAX = 1.0
#: Decisions of scaling that a status names.
SCALING_MAX = 8
#: Stages and links in one report, and its bytes; characters of a name in it, and of any other text.
ROWS_MAX, REPORT_BYTES_MAX = 65_536, 4 << 20
NAME_MAX, TEXT_MAX = 512, 64 << 10
#: Stages of one run that reports name, over all versions of its graph.
STAGES_MAX = 1024
#: Facts of one run, and characters of one.
FACTS_MAX, FACT_MAX = 256, 4096
#: Rests between two looks at a ledger without what a rollback hides, each as long as a look took.
SHOWN_REST = 100
#: What of a stage is counted and added up.
_ADDED = ("records", "bytes", "dropped", "skipped_bytes", "stored_bytes")


@dataclass(slots=True)
class ReportedProgress:
    """Progress of one run: the newest report of each attempt, and what dead attempts had done."""

    started_at: float = field(default_factory=time.monotonic)
    first_batch_at: float | None = None
    facts: dict[str, str] = field(default_factory=dict[str, str])
    #: The newest decisions of scaling, in words.
    scaling: deque[str] = field(default_factory=lambda: deque[str](maxlen=SCALING_MAX))
    latest: dict[tuple[str, int], pb.Progress] = field(default_factory=dict[tuple[str, int], pb.Progress])
    #: When each of these came, seconds, monotonic.
    heard_at: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    #: Records that the sinks of each attempt held when it reported last.
    held: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    #: Since when the sinks of each attempt hold records, and when an entry closed records last, seconds, monotonic.
    held_since: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    closed_at: float = 0.0
    #: The run has ended: no task holds anything, whatever its last report says.
    over: bool = False
    _stages: set[str] = field(default_factory=set[str])
    #: A ledger and what no rollback hides of it, up to which entry, and when it is looked at again.
    _shown: tuple[LedgerState, LedgerState, int] | None = None
    _look_at: float = 0.0

    def shown(self, ledger: LedgerState, *, ended: bool) -> LedgerState:
        """What no rollback hides of the run's ledger; of a long one that goes on, as it stood a while ago."""
        if ledger.newest is None or not ledger.newest.rollbacks:
            return ledger
        now, known = time.monotonic(), self._shown
        is_known = known is not None and known[0] is ledger
        if known is None or not is_known or (known[2] != ledger.number and (ended or now >= self._look_at)):
            known = self._shown = ledger, without_hidden(ledger), ledger.number
            self._look_at = time.monotonic() + SHOWN_REST * (time.monotonic() - now)
        return known[1]

    def end(self) -> None:
        """The run has ended."""
        self.over = True
        self.latest = {attempt: _empty_handed(progress) for attempt, progress in self.latest.items()}
        self.held_since.clear()

    def take(self, message: pb.TaskEvent) -> str:
        """Note a report; why it is not believed, if it is not."""
        kind = message.WhichOneof("event")
        if kind == "ready":
            return self.note_facts(message.task, message.ready.facts)
        if kind == "progress":
            if wrong := self._fault(message.progress):
                return f"attempt {message.attempt} of task {message.task} reports {wrong}"
            progress = _empty_handed(message.progress) if self.over else message.progress
            self.latest[message.task, message.attempt] = progress
            self.held[message.task, message.attempt] = message.progress.held_records
            self.heard_at[message.task, message.attempt] = now = time.monotonic()
            if progress.held_records:
                self.held_since.setdefault((message.task, message.attempt), now)
            else:
                self.held_since.pop((message.task, message.attempt), None)
            if self.first_batch_at is None and any(stage.records for stage in message.progress.stages):
                self.first_batch_at = time.monotonic()
        return ""

    def note_facts(self, task: str, facts: Mapping[str, str]) -> str:
        """Note what a task says of itself; why that is not kept, if it is not."""
        if any(len(word) > FACT_MAX for item in facts.items() for word in item):
            return f"task {task} tells a fact of more than {FACT_MAX} characters"
        if len(self.facts.keys() | facts.keys()) > FACTS_MAX:
            return f"task {task} tells more than the {FACTS_MAX} facts that a run has"
        self.facts.update(facts)
        return ""

    def of(self, task: str, attempt: int) -> pb.Progress | None:
        """The newest report of one attempt."""
        return self.latest.get((task, attempt))

    def relays(self) -> dict[str, str]:
        """The workers that relay links, by link, as the newest attempts of their senders say."""
        newest = sorted(self.latest.items(), key=lambda item: item[0][1])
        return {link.link: link.via for _, progress in newest for link in progress.links if link.via}

    def held_by_dead(self, living: Container[tuple[str, int]]) -> int:
        """Records that the sinks of all other attempts held when they reported last."""
        return _on_the_wire(sum(held for attempt, held in self.held.items() if attempt not in living))

    def ledger_lag_s(self, living: Container[tuple[str, int]], now: float) -> float:
        """For how long living attempts have held records without an entry that closed any."""
        since = min((at for attempt, at in self.held_since.items() if attempt in living), default=now)
        return max(0.0, now - max(since, self.closed_at))

    def _fault(self, progress: pb.Progress) -> str:
        """What a task cannot have done; empty if nothing is."""
        rows = (*progress.stages, *progress.links)
        if len(rows) > ROWS_MAX or progress.ByteSize() > REPORT_BYTES_MAX:
            return f"{len(rows)} stages and links in {progress.ByteSize()} bytes"
        for said in (progress, *rows):
            for about, value in said.ListFields():
                if isinstance(value, int | float) and not 0 <= value <= NUMBER_MAX:
                    return f"{about.name} of {value}"
                if isinstance(value, str) and len(value) > (TEXT_MAX if said is progress else NAME_MAX):
                    return f"{about.name} of {len(value)} characters"
        names = {stage.stage for stage in progress.stages} - self._stages
        if len(self._stages) + len(names) > STAGES_MAX:
            return f"more than the {STAGES_MAX} stages that a run has"
        self._stages |= names
        return ""

    def stages(self, living: Container[tuple[str, int]] = (), now: float = 0.0) -> list[pb.StageProgress]:
        """The sum over all attempts, a row a stage, in the order first seen.

        A living attempt that was at a batch when it was heard of last has been at it since, up to `now`. What it worked
        since is a guess, and told apart: sums of work never fall.
        """
        return sum_stages(
            _since(stage, now - self.heard_at[attempt]) if attempt in living else _ended(stage)
            for attempt, progress in self.latest.items()
            for stage in progress.stages
        )


def _on_the_wire(total: int) -> int:
    """A sum of what many tasks say, or the most that a status holds."""
    return min(total, UNBOUNDED)


def _empty_handed(progress: pb.Progress) -> pb.Progress:
    """The report of a task whose run has ended meanwhile."""
    empty = pb.Progress()
    empty.CopyFrom(progress)
    for name in ("held_bytes", "open_ranges", "held_records", "pending_fragments", "trouble"):
        empty.ClearField(name)
    return empty


def _since(stage: pb.StageProgress, seconds: float) -> pb.StageProgress:
    if not stage.at_batch_s:
        return stage
    more = min(GUESSED_S_MAX, max(0.0, seconds))
    later = pb.StageProgress()
    later.CopyFrom(stage)
    later.guessed_s, later.at_batch_s = more, stage.at_batch_s + more
    return later


def _ended(stage: pb.StageProgress) -> pb.StageProgress:
    """What an attempt had done that is no more, and so is at nothing now."""
    if not stage.at_batch_s:
        return stage
    ended = pb.StageProgress()
    ended.CopyFrom(stage)
    ended.at_batch_s, ended.batch_records = 0.0, 0
    return ended


def sum_stages(parts: Iterable[pb.StageProgress]) -> list[pb.StageProgress]:
    """Reports of the same stage added up; of the batches that they are at the one that takes longest."""
    sums: dict[str, pb.StageProgress] = {}
    for part in parts:
        total = sums.setdefault(part.stage, pb.StageProgress(stage=part.stage))
        total.busy_s += part.busy_s
        total.cpu_s += part.cpu_s
        total.guessed_s += part.guessed_s
        if part.at_batch_s > total.at_batch_s:
            total.at_batch_s, total.batch_records = part.at_batch_s, part.batch_records
        for name in _ADDED:
            setattr(total, name, _on_the_wire(getattr(total, name) + getattr(part, name)))
    return list(sums.values())
