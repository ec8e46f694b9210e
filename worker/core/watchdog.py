"""How long a stage may be at a batch and how much memory a task may have: judged by the worker, which runs no stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.store.ledger import Range

#: Seconds that a stage may be at one record, where the run does not say.
RECORD_S = 60.0
#: A stage may be at a batch for as long as at this many records, or at as many as it has if those are fewer.
BATCH_TIMES = 10
#: The part of the machine's memory that all tasks together may have; a task's cap is a core's share of it.
MEMORY_SHARE = 0.9
#: Seconds between two looks at the tasks.
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """What one record may take in seconds, and one task in resident bytes; 0 bytes: no cap."""

    record_s: float = RECORD_S
    task_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StageInHand:
    """A stage and the records that it was given; `range.count` is 0 where a source has not said how many."""

    stage: str
    range: Range


@dataclass(frozen=True, slots=True)
class Held:
    """What one thread of a task has in hand since `since` (seconds, monotonic). `timed`: it must come to an end.

    Sources and sinks wait for stores, which may be away for long: these are not timed by the clock but by what they
    take of a processor, which a thread that waits does not. `spent_s` are the thread's processor seconds at `since`.
    """

    since: float
    timed: bool
    items: tuple[StageInHand, ...]
    thread: int = 0
    spent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: a task's own, and those of all that its command stages have started; `commands` names these."""

    own: int
    commands_bytes: int = 0
    commands: str = ""

    @property
    def total(self) -> int:
        """What counts against the cap of a task."""
        return self.own + self.commands_bytes


def fault(
    held: Sequence[Held], memory: Memory, limits: TaskLimits, now: float, spent_of: Callable[[int], float]
) -> str:
    """What a task is to be killed for; empty if for nothing. `spent_of` are the processor seconds of a thread, now."""
    if limits.task_bytes and memory.total > limits.task_bytes:
        took = f"it took {memory.total >> 20} MiB of memory"
        if memory.commands_bytes:
            took += f", of which {memory.commands} and what that has started have {memory.commands_bytes >> 20} MiB"
        return f"{took}, the cap of a task is {limits.task_bytes >> 20} MiB"
    for item in held:
        counts = [inner.range.count for inner in item.items]
        # A source says 0, since it does not know yet how many records there will be.
        allowed_s = limits.record_s * (min(max(1, sum(counts)), BATCH_TIMES) if all(counts) else BATCH_TIMES)
        if now <= item.since + allowed_s:
            continue
        if item.timed:
            return f"it did not return within {allowed_s:g} s"
        if spent_of(item.thread) > item.spent_s + allowed_s:
            return f"it did not return within {allowed_s:g} s of processor time"
    return ""
