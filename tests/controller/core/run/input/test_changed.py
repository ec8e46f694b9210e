"""Fragments whose object is not the one that was listed: halted, given up, or listed anew, as the run was asked."""

from dataclasses import replace

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import ChangedInput
from headrace.controller.core.run.input.known_objects import KnownObjects, ListedAs
from headrace.controller.core.run.input.listing import ListingCounts
from headrace.controller.core.run.states import RunState
from headrace.store.ledger.core.entries import Entry, FragmentDropped, FragmentsListed, Led
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Fragment, Range
from tests.kits.controller.core import Stand, fold, fragment, of

A, B = fragment(0), fragment(1)
NEW_B = Fragment.named("read", B.uri, "v2", start=0, end=-1, reader="lines", size=B.size + 50)


def later(first: Stand, choice: ChangedInput) -> Stand:
    """Another run on the same log, whose former leader is dead."""
    second = Stand(first.log)
    second.leader_alive = False
    second.changed_input = choice
    return second


def close_a(stand: Stand) -> list[m.Command]:
    said = stand.read(A, 10)
    said += stand.propose(Range(A.id, 0, 10))
    return said + sweep(stand, said)


def sweep(stand: Stand, said: list[m.Command], *held: Range) -> list[m.Command]:
    return stand.swept(said, *held)


def dropped(stand: Stand) -> list[FragmentDropped]:
    return [change for entry in stand.log for change in entry.changes if isinstance(change, FragmentDropped)]


def listed(stand: Stand) -> set[bytes]:
    return set(stand.run.ledger.fragments)


def test_what_changed_between_runs_halts_and_all_else_is_closed() -> None:
    first = Stand()
    first.begin(A, B)
    stand = later(first, ChangedInput.HALT)
    orders = of(m.ReadFragment, stand.begin(A, NEW_B))
    assert [order.fragment for order in orders] == [A]
    (report,) = of(m.ReportRun, close_a(stand))
    assert report.outcome == "failed"
    assert "1 fragment stands open" in report.reason
    assert f"{B.uri} changed or vanished since it was listed (then: v1, now: v2): it has another size" in report.reason
    assert listed(stand) == {A.id, B.id}
    assert not dropped(stand)


def test_what_changed_is_given_up_if_asked_and_stays_so() -> None:
    first = Stand()
    first.begin(A, B)
    stand = later(first, ChangedInput.DROP)
    stand.begin(A, NEW_B)
    (report,) = of(m.ReportRun, close_a(stand))
    assert report.outcome == "completed", report.reason
    (change,) = dropped(stand)
    assert (change.fragment, change.reread) == (B.id, False)
    again = later(stand, ChangedInput.HALT)
    assert of(m.ReportRun, again.begin(A, NEW_B))[0].outcome == "completed"
    assert listed(again) == {A.id, B.id}


def test_the_new_version_is_read_if_asked_and_the_old_dropped() -> None:
    first = Stand()
    first.begin(A, B)
    stand = later(first, ChangedInput.REREAD)
    orders = of(m.ReadFragment, stand.begin(A, NEW_B))
    assert [order.fragment for order in orders] == [A, NEW_B]
    said = stand.read(A, 10) + stand.read(NEW_B, 5) + stand.propose(Range(A.id, 0, 10), Range(NEW_B.id, 0, 5))
    (report,) = of(m.ReportRun, sweep(stand, said))
    assert report.outcome == "completed", report.reason
    assert [(change.fragment, change.reread) for change in dropped(stand)] == [(B.id, True)]


def test_what_a_sink_holds_of_a_changed_fragment_is_closed_first() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.DROP
    stand.begin(B)
    task, attempt = stand.task()
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, -1, "it changed", changed=True))
    said = sweep(stand, said, Range(B.id, 0, 4))
    assert [seal.reason for seal in of(m.SealSink, said)] == ["end"]
    assert not dropped(stand)
    (report,) = of(m.ReportRun, stand.propose(Range(B.id, 0, 4)))
    assert report.outcome == "completed"
    assert len(dropped(stand)) == 1
    assert stand.run.ledger.fragments[B.id].records_due("write") == 4


def test_a_paused_run_does_not_end_over_what_changed() -> None:
    stand = Stand()
    stand.begin(A, B)
    task, attempt = stand.task()
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, -1, "it changed", changed=True))
    said += stand.read(A, 10)
    said += stand.tell(m.SteerRequested(7, "run", pause=True))
    said += stand.propose(Range(A.id, 0, 10))
    said += sweep(stand, said) + stand.later(1.0)
    assert (of(m.ReportRun, said), stand.run.state) == ([], RunState.PAUSED)
    said = stand.tell(m.SteerRequested(8, "run", pause=False))
    (report,) = of(m.ReportRun, [*said, *sweep(stand, said)])
    assert (report.outcome, "it changed" in report.reason) == ("failed", True)


def test_an_object_that_changes_while_read_is_listed_again_a_few_times() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.REREAD
    stand.begin(B)
    task, attempt = stand.task()
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, -1, "it changed", changed=True))
    (ask,) = of(m.ListSource, sweep(stand, said))
    orders = of(m.ReadFragment, stand.listed([ask], NEW_B))
    assert [order.fragment for order in orders] == [NEW_B]
    said = stand.tell(m.FragmentWasRead(task, attempt, NEW_B.id, -1, "it changed again", changed=True))
    (report,) = of(m.ReportRun, sweep(stand, said))
    assert report.outcome == "failed"
    assert "it changed again" in report.reason


def test_nothing_is_closed_behind_a_queued_drop() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.DROP
    stand.begin(B)
    task, attempt = stand.task()
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, -1, "it changed", changed=True))
    stand.unresolved = True
    sweep(stand, said)
    assert stand.propose(Range(B.id, 0, 4)) == [], "of a sink that was given up"
    stand.unresolved = False
    stand.later(10.0)
    assert len(dropped(stand)) == 1
    assert stand.run.ledger.fragments[B.id].of("write").size == 0


def test_what_is_given_up_is_given_up_once_whatever_a_source_says() -> None:
    first = Stand()
    first.begin(A, B)
    stand = later(first, ChangedInput.DROP)
    stand.join("w1")
    asked = stand.ready(stand.apply())
    stand.listed(asked, A)
    said = [*stand.read(A, 10), *stand.propose(Range(A.id, 0, 10))]
    stand.unresolved = True
    sweep(stand, said)
    stand.listed(asked, A)  # its last page again: B is not in it
    stand.unresolved = False
    (report,) = of(m.ReportRun, stand.later(10.0))
    assert report.outcome == "completed"
    assert len(dropped(stand)) == 1
    fold(stand.log)


def test_a_source_that_lists_more_bytes_than_sums_hold_has_failed() -> None:
    stand = Stand()
    said = stand.begin(*(fragment(number, (1 << 62) - 1) for number in range(2)))
    (kill,) = of(m.KillTask, said)
    assert "no sum holds that" in kill.reason
    again = stand.ready(stand.later(10.0))
    assert [order.fragment for order in of(m.ReadFragment, stand.listed(again, A, B))] == [A, B]


def test_a_source_is_listed_again_once_the_log_has_the_given_up() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.REREAD
    stand.begin(B)
    task, attempt = stand.task()
    said = stand.tell(m.FragmentWasRead(task, attempt, B.id, -1, "it changed", changed=True))
    stand.unresolved = True
    assert of(m.ListSource, sweep(stand, said)) == [], "B would be compared, and given up a second time"
    stand.unresolved = False
    (ask,) = of(m.ListSource, stand.later(10.0))
    assert len(dropped(stand)) == 1
    assert [order.fragment for order in of(m.ReadFragment, stand.listed([ask], NEW_B))] == [NEW_B]


@pytest.mark.parametrize("choice", ChangedInput)
def test_nothing_is_given_up_of_a_fragment_closed_to_its_end(choice: ChangedInput) -> None:
    stand = Stand()
    stand.changed_input = choice
    stand.begin(B)
    (order,) = of(m.ReadFragment, sweep(stand, stand.read(B, 4)))
    assert order.fragment == B, "what was sent is lost, and to be read again"
    stand.tell(m.FragmentWasRead(*stand.task(), B.id, -1, "it changed", changed=True))
    (report,) = of(m.ReportRun, stand.propose(Range(B.id, 0, 4)))  # of a sink that was thought dead
    assert report.outcome == "completed"
    assert not dropped(stand)


def page(stand: Stand, commands: list[m.Command], *fragments: Fragment, last: bool = False) -> list[m.Command]:
    (ask,) = of(m.ListSource, commands)
    return stand.tell(m.SourceListed(ask.task, ask.attempt, ask.stage, fragments, last=last, listing=ask.listing))


def test_an_object_that_changes_between_listings_is_listed_once() -> None:
    stand = Stand()
    stand.join("w1")
    page(stand, stand.ready(stand.apply()), A, B)
    said = stand.tell(m.TaskExited(*stand.task(), -9, "killed while it was listing"))
    said += stand.later(5.0)
    page(stand, stand.ready(said), A, NEW_B, last=True)
    assert listed(stand) == {A.id, B.id}


def test_another_version_of_what_is_closed_meanwhile_is_listed_again() -> None:
    """A listing shows B in another version while B is read: when B is closed, that version can be compared with it."""
    stand = Stand()
    stand.changed_input = ChangedInput.DROP
    stand.begin(A, B)
    stand.run.listing.again(["read"])
    page(stand, stand.later(0.1), A, NEW_B, last=True)
    stand.read(B, 4)
    said = stand.propose(Range(B.id, 0, 4))
    assert of(m.ReportRun, said) == []
    assert of(m.ListSource, stand.listed(said, A, NEW_B)) == []


def unreadable(stand: Stand) -> m.ReportRun:
    """The report of a run that closes A, and finds that B's device has failed."""
    stand.begin(A, B)
    stand.tell(m.FragmentWasRead(*stand.task(), B.id, -1, "EIO", unreadable=True))
    (report,) = of(m.ReportRun, close_a(stand))
    return report


@pytest.mark.parametrize("choice", [ChangedInput.HALT, ChangedInput.REREAD])
def test_a_fragment_on_a_failing_device_halts_and_is_read_next(choice: ChangedInput) -> None:
    first = Stand()
    first.changed_input = choice
    report = unreadable(first)
    assert report.outcome == "failed"
    assert "1 fragment stands open, since their devices failed: EIO. All else is closed." in report.reason
    assert not dropped(first)
    assert first.run.ledger.fragments[A.id].done(("write",))
    (order,) = of(m.ReadFragment, later(first, choice).begin(A, B))
    assert order.fragment == B


def test_a_fragment_whose_device_fails_is_given_up_if_asked() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.DROP
    assert unreadable(stand).outcome == "completed"
    assert [(change.fragment, change.reread) for change in dropped(stand)] == [(B.id, False)]


#: The first half of B, as an interrupted listing left it.
HALF = replace(B, end=50, size=50)


def half_listed() -> KnownObjects:
    ledger = LedgerState()
    ledger.apply(0, Entry(1, (Led(1, {}), FragmentsListed((HALF,)))))
    return KnownObjects(ledger, ("write",))


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        (replace(B, version="v2"), ListedAs.CONTRADICTED),
        (B, ListedAs.THERE),
        (replace(B, uri="file:///in/9", version="v2"), ListedAs.NEW),
        (replace(B, stage="other", version="v2"), ListedAs.NEW),
    ],
)
def test_another_version_of_open_input_is_held_back_another_object_is_new(found: Fragment, standing: ListedAs) -> None:
    assert half_listed().listed_as(found) is standing


@pytest.mark.parametrize(
    ("start", "end", "missing"),
    [
        (50, -1, [(50, -1, 50)]),
        (0, 30, []),
        (30, 80, [(50, 80, 30)]),
        (0, -1, [(50, -1, 50)]),
    ],
)
def test_of_an_object_cut_otherwise_only_the_uncovered_is_new(
    start: int, end: int, missing: list[tuple[int, int, int]]
) -> None:
    size = (100 if end < 0 else end) - start
    found = half_listed().uncovered(replace(B, start=start, end=end, size=size))
    assert [(item.start, item.end, item.size) for item in found] == missing
    assert all((item.uri, item.version, item.reader) == (B.uri, B.version, B.reader) for item in found)


@pytest.mark.parametrize("reread", [False, True])
def test_what_was_given_up_for_good_has_no_later_version(reread: bool) -> None:
    ledger = LedgerState()
    given_up = FragmentDropped(B.id, "it changed", reread)
    ledger.apply(0, Entry(1, (Led(1, {}), FragmentsListed((B,)), given_up)))
    expected = ListedAs.NEW if reread else ListedAs.SKIPPED
    assert KnownObjects(ledger, ("write",)).listed_as(replace(B, version="v2")) is expected


def counted(stand: Stand) -> ListingCounts:
    """What `Listing.tally` is to say, by looking at every fragment."""
    known = stand.run.ledger.fragments
    found = [known[name] for name in stand.run.listing.seen if name in known]
    done = sum(state.done(stand.run.sinks) for state in found)
    return ListingCounts(len(found), done, sum(state.fragment.size for state in found))


@pytest.mark.parametrize("choice", [ChangedInput.DROP, ChangedInput.REREAD])
def test_the_tally_of_a_listing_equals_a_look_at_each_fragment(choice: ChangedInput) -> None:
    first = Stand()
    first.begin(A, B)
    assert first.run.listing.counts() == counted(first) == ListingCounts(2, 0, A.size + B.size)
    stand = later(first, choice)
    stand.begin(A, NEW_B)
    listed_now = (A, NEW_B) if choice is ChangedInput.REREAD else (A,)
    size = sum(item.size for item in listed_now)
    assert stand.run.listing.counts() == counted(stand) == ListingCounts(len(listed_now), 0, size)
    said = close_a(stand)
    assert stand.run.listing.counts() == counted(stand) == ListingCounts(len(listed_now), 1, size)
    if choice is ChangedInput.REREAD:
        said += stand.read(NEW_B, 0)
        assert stand.run.listing.counts() == counted(stand) == ListingCounts(2, 2, size)
    third = later(stand, ChangedInput.DROP)
    third.begin(A, B)
    assert third.run.listing.counts() == counted(third)


def test_what_is_given_up_while_it_runs_counts_as_done() -> None:
    stand = Stand()
    stand.changed_input = ChangedInput.DROP
    stand.begin(A, B)
    stand.tell(m.FragmentWasRead(*stand.task(), B.id, -1, f"{B.uri} has changed", changed=True))
    assert stand.run.listing.counts() == counted(stand) == ListingCounts(2, 0, A.size + B.size)
    close_a(stand)
    assert stand.run.listing.counts() == counted(stand) == ListingCounts(2, 2, A.size + B.size)
