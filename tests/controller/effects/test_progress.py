"""What tasks say of their own work, where it cannot be."""

from __future__ import annotations

import math

import pytest

from headrace.controller.effects import progress as module
from headrace.controller.effects.progress import (
    FACT_MAX,
    FACTS_MAX,
    NAME_MAX,
    REPORT_BYTES_MAX,
    SHOWN_REST,
    STAGES_MAX,
    TEXT_MAX,
    ReportedProgress,
)
from headrace.protos import control_pb2 as pb
from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import UNBOUNDED
from tests.kits.controller.core import fragment, rolled_back, stopped_and_completed


def said(progress: pb.Progress, task: str = "run/read.0") -> pb.TaskEvent:
    return pb.TaskEvent(task=task, attempt=1, progress=progress)


def status(progress: ReportedProgress) -> pb.PipelineStatus:
    return pb.PipelineStatus(stages=progress.stages(), held_by_dead=progress.held_by_dead(()))


@pytest.mark.parametrize(
    "lie",
    [
        pb.Progress(held_records=2**63 - 1),
        pb.Progress(stages=[pb.StageProgress(stage="map", records=2**63 - 1)]),
        pb.Progress(stages=[pb.StageProgress(stage="map", bytes=-1)]),
        pb.Progress(stages=[pb.StageProgress(stage="map", busy_s=math.nan)]),
        pb.Progress(links=[pb.LinkProgress(link="a.b", frames=2**54)]),
        pb.Progress(stages=[pb.StageProgress(stage="x" * (NAME_MAX + 1))]),
        pb.Progress(links=[pb.LinkProgress(link="x" * (NAME_MAX + 1))]),
        pb.Progress(links=[pb.LinkProgress(link="a.b", via="x" * (NAME_MAX + 1))]),
        pb.Progress(trouble="x" * (TEXT_MAX + 1)),
        pb.Progress(stages=[pb.StageProgress(stage=f"{number}") for number in range(STAGES_MAX)]),
        pb.Progress(links=[pb.LinkProgress(link="x" * NAME_MAX)] * (REPORT_BYTES_MAX // NAME_MAX)),
    ],
)
def test_a_report_that_cannot_be_changes_nothing_and_is_told(lie: pb.Progress) -> None:
    progress = ReportedProgress()
    honest = pb.StageProgress(stage="map", records=1, busy_s=1.5)
    assert progress.take(said(pb.Progress(stages=[honest], held_records=1))) == ""
    assert progress.take(said(lie, "run/read.1")).startswith("attempt 1 of task run/read.1 reports ")
    assert status(progress) == pb.PipelineStatus(stages=[honest], held_by_dead=1)


def test_a_report_up_to_its_limits_is_taken() -> None:
    progress = ReportedProgress()
    stages = [pb.StageProgress(stage=f"{number}".ljust(NAME_MAX)) for number in range(STAGES_MAX)]
    link = pb.LinkProgress(link="x" * NAME_MAX, via="y" * NAME_MAX)
    for task in range(3):
        report = pb.Progress(stages=stages, links=[link], trouble="z" * TEXT_MAX)
        assert progress.take(said(report, f"run/read.{task}")) == ""
    assert len(progress.stages()) == STAGES_MAX


def ready(facts: dict[str, str]) -> pb.TaskEvent:
    return pb.TaskEvent(task="run/read.0", attempt=1, ready=pb.TaskReady(facts=facts))


def test_facts_of_a_run_are_bounded_in_number_and_length() -> None:
    progress = ReportedProgress()
    most = {f"{number}".ljust(FACT_MAX): "v" * FACT_MAX for number in range(FACTS_MAX)}
    for _ in range(3):
        assert progress.take(ready(most)) == ""
    for wrong in ({"one more": ""}, {"0".ljust(FACT_MAX): "v" * (FACT_MAX + 1)}, {"x" * (FACT_MAX + 1): ""}):
        assert progress.take(ready(wrong)).startswith("task run/read.0 tells ")
    assert progress.facts == most


def test_sums_of_many_reports_fit_into_a_status() -> None:
    progress = ReportedProgress()
    most = pb.StageProgress(stage="map", records=2**53, stored_bytes=2**53)
    for task in range(1025):
        assert progress.take(said(pb.Progress(stages=[most], held_records=2**53), f"run/read.{task}")) == ""
    (stage,) = status(progress).stages
    assert (stage.records, stage.stored_bytes, progress.held_by_dead(())) == (UNBOUNDED, UNBOUNDED, UNBOUNDED)


def test_what_a_rollback_hides_of_a_flowing_run_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    more, progress, ticks = fragment(1), ReportedProgress(), iter(range(1000))
    stand, _ = rolled_back(stopped_and_completed(), "c", 1, fragment(0), more)
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))
    ledger = stand.run.ledger

    def kept(*, ended: bool = False) -> int:
        return progress.shown(ledger, ended=ended).counts["write"].kept

    assert kept() == 4
    stand.propose(Range(more.id, 0, 3))
    assert kept() == 4, "a look took a second, and the next comes later"
    assert kept(ended=True) == 7
    stand.propose(Range(more.id, 3, 2))
    assert [kept() for _ in range(2 * SHOWN_REST)][-1] == 9
    first = stopped_and_completed().run.ledger
    assert progress.shown(first, ended=False) is first, "nothing is hidden of it"
