"""What the tests of commands share: a batch through a stage, and who is lost and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.stages.commands import command as command_stage
from headrace.stages.commands.command import Command
from headrace.stages.commands.process import CommandProcess
from headrace.stages.runtime.batch import Batch
from headrace.stages.runtime.build import process_safely

#: Seconds in which a command surely starts and answers, on a machine that may be busy with other things.
HANGS_S = 60


def wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no command's input closed since the machine gives it no time to answer."""
    monkeypatch.setattr(command_stage, "SILENCE_S", float(HANGS_S))


def patience_ends_with_the_hanging(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have time pass for a command that has said, by its process id in a file, that it hangs; and for no other."""
    passed_s, turn, real = [0.0], CommandProcess.turn, command_stage.time.monotonic

    def turn_soon(process: CommandProcess, timeout_s: float, take: Callable[[bytes], None]) -> bool:
        moved = turn(process, min(timeout_s, 0.01), take)
        if not moved and told.exists() and told.read_text() == str(process.pid):
            passed_s[0] += 2 * HANGS_S
        return moved

    monkeypatch.setattr(CommandProcess, "turn", turn_soon)
    monkeypatch.setattr(command_stage, "time", SimpleNamespace(monotonic=lambda: real() + passed_s[0]))


def run(built: Command, batch: Batch) -> tuple[list[str], dict[str, str]]:
    """The texts that are kept, and the reason of each other record."""
    answer = process_safely(built, batch, built.name)
    lost = {row["id"]: f"{row['verdict']}: {row['reason']}" for row in answer.verdicts.to_pylist()}
    return answer.rows.column("text").to_pylist(), lost
