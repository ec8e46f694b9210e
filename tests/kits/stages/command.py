"""What the tests of commands share: a batch through a stage, and who is lost and why."""

from __future__ import annotations

from headrace.stages.commands.command import Command
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import process_safely


def run(built: Command, batch: Batch) -> tuple[list[str], dict[str, str]]:
    """The texts that are kept, and the reason of each other record."""
    answer = process_safely(built, batch, built.name)
    lost = {row["id"]: f"{row['verdict']}: {row['reason']}" for row in answer.verdicts.to_pylist()}
    return answer.rows.column("text").to_pylist(), lost
