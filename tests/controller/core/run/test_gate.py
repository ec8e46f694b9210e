"""A run with a gate: what passes is published, what does not is held, and the run says why."""

from __future__ import annotations

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.publishing import AUDIT_REST, AUDIT_S, MANIFEST_AGAIN_S
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.entries import VersionHeld, VersionPublished
from headrace.store.ledger.core.fragments import Range
from tests.controller.core.run.test_run import COUNT, LOG, A, changes, complete
from tests.kits.controller.core import Stand, of

WHY = ("kept_share: min 0.5, and it is 0.4",)


def gated(*broken: str, pauses: bool = False) -> Stand:
    stand = Stand()
    stand.gate, stand.gate_pauses, stand.broken = {"kept_share": {"min": 0.5}}, pauses, broken
    return stand


def test_what_passes_is_published() -> None:
    stand = gated()
    audits = of(m.AuditDataset, complete(stand))
    assert audits[-1] == m.AuditDataset(LOG, stand.gate, 1, True)
    assert changes(stand)[-2:] == ["VersionPublished", "Resigned"]


def test_what_does_not_pass_is_held_and_the_run_says_why() -> None:
    stand = gated(*WHY)
    report = of(m.ReportRun, complete(stand))[0]
    assert changes(stand)[-2:] == ["VersionHeld", "Resigned"]
    assert report.outcome == "failed"
    assert WHY[0] in report.reason
    assert f"headrace dataset publish {LOG} --anyway" in report.reason
    assert (stand.run.ledger.version, stand.run.ledger.held) == (0, WHY)


def test_the_next_run_that_passes_publishes_what_was_held() -> None:
    held = gated(*WHY)
    complete(held)
    again = Stand(log=held.log)
    again.gate = held.gate
    complete(again)
    assert (again.run.ledger.version, again.run.ledger.held) == (1, ())


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    stand = gated()
    stand.full = "no answer"
    complete(stand)
    assert stand.run.state is RunState.PUBLISHING
    assert stand.run.trouble(stand.now) == "no answer"
    assert of(m.AuditDataset, stand.later(MANIFEST_AGAIN_S))
    stand.full = ""
    stand.later(MANIFEST_AGAIN_S)
    assert changes(stand)[-2:] == ["VersionPublished", "Resigned"]


def flowing(stand: Stand) -> list[m.Command]:
    """Some of a fragment is closed, and more is open."""
    stand.begin(A)
    stand.read(A, COUNT)
    stand.propose(Range(A.id, 0, 1))
    return stand.later(1.0)


def test_a_run_that_flows_asks_its_gate_of_new_shards() -> None:
    stand = gated(*WHY)
    stand.begin(A)
    stand.read(A, COUNT)
    said = [*stand.propose(Range(A.id, 0, 1)), *stand.later(1.0)]
    assert [audit.final for audit in of(m.AuditDataset, said)] == [False]
    assert WHY[0] in stand.run.trouble(stand.now)
    assert stand.run.state is RunState.RUNNING
    assert not of(m.AuditDataset, stand.later(2 * AUDIT_S))


def test_a_run_pauses_for_its_gate_once() -> None:
    stand = gated(*WHY, pauses=True)
    flowing(stand)
    assert stand.run.state in (RunState.PAUSING, RunState.PAUSED)
    stand.tell(m.SteerRequested(7, "run", pause=False))
    stand.tell(m.DatasetAudited(LOG, 1, False, WHY))
    assert not stand.run.reconfiguration.stands


def test_reasons_are_bounded() -> None:
    stand = gated(*(f"row {number}" for number in range(100)))
    complete(stand)
    held = next(change for entry in stand.log for change in entry.changes if isinstance(change, VersionHeld))
    assert len(held.reasons) == 32
    assert not any(isinstance(change, VersionPublished) for entry in stand.log for change in entry.changes)


def test_an_audit_that_takes_long_is_asked_for_rarely() -> None:
    stand = gated()
    stand.audits = []
    stand.later(100.0)
    flowing(stand)
    assert len(stand.audits) == 1
    took = 30.0
    stand.now += took
    stand.answer_audits()
    stand.propose(Range(A.id, 1, 1), number=1)
    waited = next(seconds for seconds in range(10_000) if stand.later(1.0) and stand.audits)
    assert waited == pytest.approx(AUDIT_REST * took, rel=0.05)


def test_a_gate_that_has_not_answered_is_not_asked_again() -> None:
    stand = gated()
    stand.audits = []
    flowing(stand)
    for number in range(1, 4):
        stand.propose(Range(A.id, number, 1), number=number)
        stand.later(2 * AUDIT_S)
    assert [audit.final for audit in stand.audits] == [False]
    stand.answer_audits()
    stand.later(2 * AUDIT_REST * 6 * AUDIT_S)
    assert [audit.final for audit in stand.audits] == [False]


def test_the_last_word_of_a_gate_is_asked_behind_its_answer() -> None:
    stand = gated()
    stand.audits = []
    said = flowing(stand)
    assert [audit.final for audit in stand.audits] == [False]
    stand.propose(Range(A.id, 1, COUNT - 1), number=1)
    stand.swept(said)
    assert (stand.run.state, len(stand.audits)) == (RunState.PUBLISHING, 1)
    stand.answer_audits()
    assert [audit.final for audit in stand.audits] == [True]
    stand.answer_audits()
    assert changes(stand)[-2:] == ["VersionPublished", "Resigned"]


def applied_again(stand: Stand) -> None:
    """The run is cancelled while it publishes, and applied anew: all that its input has is closed."""
    assert stand.run.state is RunState.PUBLISHING
    stand.tell(m.StopRequested("run", cancel=True))
    assert stand.run.over
    stand.listed(stand.ready(stand.apply()), A)
    assert stand.run.state is RunState.PUBLISHING


def test_a_gate_that_answers_late_passes_no_later_run() -> None:
    stand = gated()
    stand.audits = []
    complete(stand)
    stand.answer_audits()
    stand.later(1.0)
    (first,) = stand.audits
    assert first.final
    stand.gate = {"kept_share": {"min": 0.9}}
    applied_again(stand)
    stand.tell(m.DatasetAudited(LOG, first.term, first.final))
    assert stand.run.state is RunState.PUBLISHING
    stand.broken = WHY
    while stand.audits:
        stand.answer_audits()
    assert changes(stand)[-2:] == ["VersionHeld", "Resigned"]


def test_a_manifest_that_is_written_late_ends_no_later_run() -> None:
    stand = Stand()
    stand.full = "no room"
    complete(stand)
    term = stand.run.leadership.term
    applied_again(stand)
    stand.tell(m.ManifestWritten(LOG, term))
    assert stand.run.state is RunState.PUBLISHING
