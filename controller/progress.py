"""What tasks say of their own work: sums for people to read, which decide nothing."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from headrace.protos import control_pb2 as pb


@dataclass(slots=True)
class RunProgress:
    """Progress of one run: the newest report of each attempt, and what dead attempts had done."""

    started_at: float = field(default_factory=time.monotonic)
    first_batch_at: float | None = None
    facts: dict[str, str] = field(default_factory=dict[str, str])
    latest: dict[tuple[str, int], pb.Progress] = field(default_factory=dict[tuple[str, int], pb.Progress])

    def take(self, message: pb.TaskEvent) -> None:
        """Note a report."""
        kind = message.WhichOneof("event")
        if kind == "ready":
            self.facts.update(message.ready.facts)
        elif kind == "progress":
            self.latest[message.task, message.attempt] = message.progress
            if self.first_batch_at is None and any(stage.records for stage in message.progress.stages):
                self.first_batch_at = time.monotonic()

    def of(self, task: str, attempt: int) -> pb.Progress | None:
        """The newest report of one attempt."""
        return self.latest.get((task, attempt))

    def relays(self) -> dict[str, str]:
        """The workers that relay links, by link, as the newest attempts of their senders say."""
        newest = sorted(self.latest.items(), key=lambda item: item[0][1])
        return {link.link: link.via for _, progress in newest for link in progress.links if link.via}

    def held_by_dead(self, living: Container[tuple[str, int]]) -> int:
        """Records that the sinks of all other attempts held when they reported last."""
        return sum(progress.held_records for attempt, progress in self.latest.items() if attempt not in living)

    def stages(self) -> list[pb.StageProgress]:
        """The sum over all attempts, a row a stage, in the order first seen."""
        return sum_stages(stage for progress in self.latest.values() for stage in progress.stages)


def sum_stages(parts: Iterable[pb.StageProgress]) -> list[pb.StageProgress]:
    """Reports of the same stage added up."""
    sums: dict[str, pb.StageProgress] = {}
    for part in parts:
        total = sums.setdefault(part.stage, pb.StageProgress(stage=part.stage))
        total.records += part.records
        total.bytes += part.bytes
        total.busy_s += part.busy_s
        total.dropped += part.dropped
        total.skipped_bytes += part.skipped_bytes
        total.stored_bytes += part.stored_bytes
    return list(sums.values())
