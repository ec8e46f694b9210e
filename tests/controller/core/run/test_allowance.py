"""How much a run may lose to quarantine, and that one that loses more is ended with the reason."""

import pytest
from msgspec.structs import replace

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import Allowance
from headrace.controller.core.run.publishing import excess, kept_nothing
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.entries import Entry, Led, Resigned, VersionPublished
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from tests.kits.controller.core import Stand, bits, fragment, make_pipeline, of, proposal


@pytest.mark.parametrize(
    ("allowance", "kept", "quarantined", "at_end", "ended"),
    [
        (Allowance(), 0, 500, True, False),
        (Allowance(records=3), 10, 3, True, False),
        (Allowance(records=3), 10, 4, False, True),
        (Allowance(records=0), 5000, 1, False, True),
        (Allowance(share=0.01), 990, 10, True, False),
        (Allowance(share=0.01), 989, 11, True, True),
        (Allowance(share=0.01), 989, 11, False, True),
        (Allowance(share=0.01), 5, 5, False, False),
        (Allowance(share=0.01), 5, 5, True, True),
        (Allowance(share=0.0), 0, 0, True, False),
        (Allowance(share=1.0), 0, 5000, True, False),
    ],
)
def test_a_loss_is_judged_by_count_at_once_and_share_later(
    allowance: Allowance, kept: int, quarantined: int, at_end: bool, ended: bool
) -> None:
    ledger = LedgerState(counts={"write": Counts(kept=kept, quarantined=quarantined)})
    assert bool(excess(allowance, ledger, "file:///out", {}, at_end=at_end)) is ended


@pytest.mark.parametrize(
    ("allowance", "before", "now", "at_end", "said"),
    [
        (Allowance(share=0.5), Counts(kept=20000), Counts(kept=20000, quarantined=19000), True, "19000 of 19,000"),
        (Allowance(share=0.5), Counts(quarantined=3000), Counts(kept=10, quarantined=3000), True, ""),
        (Allowance(share=0.5), Counts(kept=5000), Counts(kept=5000, quarantined=999), False, ""),
        (Allowance(share=0.5), Counts(kept=5000), Counts(kept=5000, quarantined=1000), False, "1000 of 1,000"),
        (Allowance(records=3), Counts(quarantined=3), Counts(quarantined=6), False, ""),
        (Allowance(records=3), Counts(quarantined=3), Counts(quarantined=7), False, "4 of 4"),
    ],
)
def test_what_earlier_runs_closed_is_neither_judged_nor_told(
    allowance: Allowance, before: Counts, now: Counts, at_end: bool, said: str
) -> None:
    found = excess(allowance, LedgerState(counts={"write": now}), "file:///out", {"write": before}, at_end=at_end)
    assert found.split(" records")[0] == said


def test_the_chief_reason_is_that_of_this_run() -> None:
    before = Counts(quarantined=5, quarantined_by={"read/no text": 5})
    now = Counts(quarantined=8, quarantined_by={"read/no text": 5, "map/KeyError": 3})
    ledger = LedgerState(counts={"write": now})
    said = excess(Allowance(records=2), ledger, "file:///out", {"write": before}, at_end=False)
    assert "3 of 3 records" in said
    assert "most of them by map/KeyError" in said


def test_what_ended_a_run_says_losses_culprits_and_remedies() -> None:
    counts = Counts(kept=1, quarantined=3, quarantined_by={"read/malformed JSON": 2, "map/KeyError": 1})
    said = excess(Allowance(records=2), LedgerState(counts={"write": counts}), "file:///out", {}, at_end=False)
    assert said == (
        "3 of 4 records closed by sink write are quarantined, more than the 2 allowed; most of them by "
        "read/malformed JSON; see `headrace dataset show file:///out --quarantine`, then mend the input or raise "
        "--max-quarantined and run it again"
    )


def test_a_run_without_text_names_the_field_that_was_looked_for() -> None:
    source = {"name": "read", "parameters": {"text_key": "content"}}
    ledger = LedgerState(
        counts={"write": Counts(quarantined=3, quarantined_by={"read/no text": 3})}, pipeline={"stages": [source]}
    )
    expected = 'most of them by read/no text, looked for in the field "content": text_key= names another'
    assert expected in excess(Allowance(records=2), ledger, "file:///out", {}, at_end=False)
    assert expected in kept_nothing(ledger, "file:///out")


A, B = fragment(0), fragment(1)


def judged(stand: Stand, allowance: Allowance, *listed: Fragment) -> list[m.Command]:
    """Begin a run with this allowance, by the only worker."""
    if not stand.core.workers:
        stand.join("w1")
    commands = stand.tell(m.PipelineRequested(1, make_pipeline().to_dict(), allowance=allowance))
    return stand.listed(stand.ready(commands), *listed)


def read_and_lost(stand: Stand, item: Fragment, count: int, lost: int) -> list[m.Command]:
    """Read a fragment of this many records, of which the last ones are quarantined, and close it."""
    whole = Range(item.id, 0, count)
    stand.swept(stand.read(item, count), whole)
    task, attempt = stand.task()
    shard = proposal(
        [whole],
        kept=[bits(*range(count - lost))],
        other=[bits(*range(count - lost, count))],
        version=stand.run.version,
        epoch=stand.run.ledger.epoch,
        task=task,
        attempt=attempt,
    )
    by = {"read/malformed JSON": lost} if lost else {}
    return stand.tell(replace(shard, counts=Counts(kept=count - lost, quarantined=lost, quarantined_by=by)))


def test_a_run_that_loses_too_much_fails_and_keeps_what_is_closed() -> None:
    stand = Stand()
    judged(stand, Allowance(records=0), A)
    said = read_and_lost(stand, A, 10, 1)
    assert stand.run.state is RunState.FAILED
    assert of(m.ReportRun, said)[0].reason.startswith("1 of 10 records closed by sink write is quarantined")
    assert len(stand.run.ledger.shards) == 1


def test_a_later_run_is_judged_by_what_it_closes() -> None:
    stand, half = Stand(), Allowance(share=0.5)
    judged(stand, half, A)
    read_and_lost(stand, A, 20, 0)
    judged(stand, half, A, B)
    (report,) = of(m.ReportRun, read_and_lost(stand, B, 19, 19))
    assert report.reason.startswith("19 of 19 records closed by sink write are quarantined, more than the 50% allowed")
    assert stand.run.ledger.version == 1


def test_a_run_of_good_records_goes_on_after_one_that_lost_all() -> None:
    stand, half = Stand(), Allowance(share=0.5)
    judged(stand, half, A)
    read_and_lost(stand, A, 30, 30)
    assert stand.run.state is RunState.FAILED
    judged(stand, half, A, B)
    read_and_lost(stand, B, 10, 0)
    assert stand.run.state is RunState.COMPLETED


def test_a_failed_run_fails_again_when_nothing_was_mended() -> None:
    stand, half = Stand(), Allowance(share=0.5)
    judged(stand, half, A)
    read_and_lost(stand, A, 20, 0)
    judged(stand, half, A, B)
    read_and_lost(stand, B, 19, 19)
    (report,) = of(m.ReportRun, judged(stand, half, A, B))
    assert report.reason.startswith("this run closed nothing, and of what no version shows 19 of 19 records closed")
    assert stand.run.ledger.version == 1
    (report,) = of(m.ReportRun, judged(stand, Allowance(share=1.0), A, B))
    assert (report.outcome, stand.run.ledger.version) == ("completed", 2)
    (report,) = of(m.ReportRun, judged(stand, half, A, B))
    assert report.outcome == "completed", "what a version shows is judged no more"


def test_a_rollback_takes_what_it_hides_out_of_the_judgement() -> None:
    stand, half = Stand(), Allowance(share=0.5)
    judged(stand, half, A)
    read_and_lost(stand, A, 20, 0)
    judged(stand, Allowance(share=1.0), A, B)
    read_and_lost(stand, B, 19, 19)
    shows, term = stand.run.ledger.published[1].shows, stand.run.ledger.term + 1
    stand.log.append(
        Entry(term, (Led(term, {}), VersionPublished(3, "rollback", shows=shows, restores=1), Resigned(term)))
    )
    (report,) = of(m.ReportRun, judged(stand, half, A, B))
    assert report.outcome == "completed"
