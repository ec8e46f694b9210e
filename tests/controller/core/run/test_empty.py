"""A run that keeps nothing is no success, and what it leaves behind is in nobody's way."""

from headrace.controller.core.messages import messages as m
from headrace.controller.effects.progress import ReportedProgress
from headrace.controller.status import pipeline_status
from headrace.store.ledger.core.fragments import Counts, Range
from tests.kits.controller.core import Stand, changes, fragment, make_pipeline, of, proposal

A, B = fragment(0), fragment(1)


def none_kept(stand: Stand) -> list[m.Command]:
    """Ten records are read, and each is filtered."""
    said = stand.swept(stand.read(A, 10), Range(A.id, 0, 10))
    task, attempt = stand.task()
    everyone = ((1 << 10) - 1).to_bytes(8, "little")
    shard = proposal(
        [Range(A.id, 0, 10)],
        kept=[b"\0" * 8],
        other=[everyone],
        version=stand.run.version,
        epoch=stand.run.ledger.epoch,
        task=task,
        attempt=attempt,
    )
    return [*said, *stand.tell(shard)]


def test_a_run_that_keeps_nothing_fails_and_publishes_nothing() -> None:
    stand = Stand()
    stand.begin(A)
    (report,) = of(m.ReportRun, none_kept(stand))
    assert report.outcome == "failed"
    assert report.reason.startswith("nothing was kept of 10 records: 10 filtered")
    assert "VersionPublished" not in changes(stand)
    assert stand.run.ledger.version == 0


def test_a_run_that_is_stopped_before_it_kept_anything_publishes_nothing() -> None:
    stand = Stand()
    stand.begin(A)
    said = stand.tell(m.StopRequested("run", cancel=False))
    (report,) = of(m.ReportRun, stand.swept(said))
    assert report.outcome == "stopped"
    assert "VersionPublished" not in changes(stand)


def test_a_dataset_without_kept_records_takes_another_pipeline() -> None:
    stand = Stand()
    stand.begin(A)
    none_kept(stand)
    said = stand.apply(make_pipeline(rule=2))
    (answer,) = of(m.AnswerRequest, said)
    assert answer.accepted
    assert "another pipeline had read 10 records into it and kept none" in answer.warnings[0]
    assert changes(stand)[-3:] == ["EpochRaised", "Removed", "PipelineApplied"]
    (read,) = of(m.ReadFragment, stand.listed(stand.ready(said), A))
    assert [(gap.first, gap.offset) for gap in read.gaps] == [(0, 0)], "nothing of before is closed"
    said = stand.read(A, 10) + stand.propose(Range(A.id, 0, 10))
    (report,) = of(m.ReportRun, [*said, *stand.swept(said)])
    assert (report.outcome, stand.run.ledger.version) == ("completed", 1)


def test_a_run_that_failed_before_closing_takes_another_pipeline_silently() -> None:
    stand = Stand()
    stand.begin(A)
    task, attempt = stand.task()
    stand.tell(m.FragmentWasRead(task, attempt, A.id, -1, "no such column"))
    (answer,) = of(m.AnswerRequest, stand.apply(make_pipeline(rule=2)))
    assert (answer.accepted, answer.warnings) == (True, ())


def test_the_same_pipeline_goes_on_with_an_empty_dataset() -> None:
    stand = Stand()
    stand.begin(A, B)
    stand.tell(m.StopRequested("run", cancel=True))
    stand.listed(stand.ready(stand.apply()), A, B)
    assert "Removed" not in changes(stand)


def test_a_sink_without_records_is_noted_when_the_run_has_ended() -> None:
    stand = Stand()
    stand.begin(A, B)
    stand.run.ledger.counts["other"] = Counts(filtered=10)
    stand.swept(stand.read(A, 10), Range(A.id, 0, 10))
    stand.propose(Range(A.id, 0, 10))
    assert list(pipeline_status(stand.run, ReportedProgress(), ()).notes) == [], "it may keep some yet"
    stand.tell(m.StopRequested("run", cancel=True))
    notes = list(pipeline_status(stand.run, ReportedProgress(), ()).notes)
    assert notes == ["sink other kept none of 10 records: 10 filtered"]
