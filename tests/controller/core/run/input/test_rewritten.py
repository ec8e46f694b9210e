"""Sources that name all they have: what is new waits for a choice where something that was read is gone."""

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import ChangedInput
from headrace.controller.effects.progress import ReportedProgress
from headrace.controller.status import pipeline_status
from headrace.store.ledger.core.entries import FragmentDropped, VersionSeen
from headrace.store.ledger.core.fragments import Fragment, Range
from headrace.store.ledger.core.intervals import UNBOUNDED
from tests.kits.controller.core import Stand, fold, fragment, of

A, B, C, D = (fragment(index) for index in range(4))
CHECKSUM = b"c" * 16


class TableStand(Stand):
    """A stand whose source names all that lies below a place."""

    place = "file:///in/"

    def __init__(self, first: Stand | None = None, choice: ChangedInput = ChangedInput.HALT) -> None:
        super().__init__(first.log if first is not None else None)
        self.changed_input = choice
        if first is not None:
            self.leader_alive = False

    def page(self, commands: list[m.Command], *fragments: Fragment, last: bool = True) -> list[m.Command]:
        (ask,) = of(m.ListSource, commands)
        facts = {"last": last, "listing": ask.listing, "all_below": self.place}
        return self.tell(m.SourceListed(ask.task, ask.attempt, ask.stage, fragments, **facts))

    def started(self) -> list[m.Command]:
        self.join("w1")
        return self.ready(self.apply())

    def closes(self, *fragments: Fragment) -> m.ReportRun:
        """The report of a run that reads and closes these, of those that it listed and was to read."""
        said: list[m.Command] = []
        for number, item in enumerate(fragments):
            said += self.tell(m.FragmentWasRead(*self.task(), item.id, 4, checksum=CHECKSUM))
            said += self.propose(Range(item.id, 0, 4), number=number)
        return self.ends(said)

    def ends(self, said: list[m.Command]) -> m.ReportRun:
        (report,) = of(m.ReportRun, said + self.swept(said))
        return report


def asked(said: list[m.Command]) -> list[Fragment]:
    return [order.fragment for order in of(m.ReadFragment, said)]


def touched(item: Fragment) -> Fragment:
    """The object, touched."""
    return Fragment.named(item.stage, item.uri, "v2", start=0, end=-1, reader=item.reader, size=item.size)


def read_whole(*fragments: Fragment) -> TableStand:
    """A table of which all was read."""
    stand = TableStand()
    assert asked(stand.page(stand.started(), *fragments)) == list(fragments)
    assert stand.closes(*fragments).outcome == "completed"
    return stand


def test_what_is_new_waits_where_something_that_was_read_is_gone() -> None:
    stand = TableStand(read_whole(A, B))
    said = stand.page(stand.started(), B, C)
    assert asked(said) == []
    report = stand.ends(said)
    assert report.outcome == "failed"
    words = f"1 object that was read or passed over is gone from {stand.place}, such as {A.uri!r}, and 1 other object"
    assert words in report.reason
    assert C.id not in stand.run.ledger.fragments
    again = TableStand(stand)
    assert again.ends(again.page(again.started(), A, B)).outcome == "completed", "the version that was read"


def test_what_a_page_names_twice_is_listed_once() -> None:
    stand = TableStand(read_whole(A, B), ChangedInput.REREAD)
    assert asked(stand.page(stand.started(), B, C, C)) == [C]
    fold(stand.log)


def test_no_size_of_what_waits_breaks_a_status() -> None:
    stand = TableStand(read_whole(A), ChangedInput.REREAD)
    commands = stand.started()
    for number in range(10, 14):
        stand.page(commands, fragment(number, UNBOUNDED // 2), last=number == 13)
    assert pipeline_status(stand.run, ReportedProgress(), ()).input_bytes == UNBOUNDED


def test_what_only_joins_is_read_without_a_word() -> None:
    stand = TableStand(read_whole(A, B))
    commands = stand.started()
    assert asked(stand.page(commands, A, C, last=False)) == [], "B may be gone"
    assert asked(stand.page(commands, B, last=False)) == [C]
    assert asked(stand.page(commands, D)) == [D]
    assert stand.closes(C, D).outcome == "completed"
    assert not stand.run.listing.notes()[:-1], "but for the same bytes, which these are"


@pytest.mark.parametrize("choice", [ChangedInput.DROP, ChangedInput.REREAD])
def test_a_choice_is_made_once_and_holds(choice: ChangedInput) -> None:
    stand = TableStand(read_whole(A), choice)
    said = stand.page(stand.started(), B)
    reread = choice is ChangedInput.REREAD
    assert asked(said) == ([B] if reread else [])
    assert (stand.closes(B) if reread else stand.ends(said)).outcome == "completed"
    assert f"the new ones are {'read' if reread else 'not read'}" in stand.run.listing.notes()[0]
    later = TableStand(stand)
    orders = asked(later.page(later.started(), touched(B), D))
    assert [item.uri for item in orders] == ([B.uri, D.uri] if reread else [D.uri]), "of B its bytes, to compare them"


@pytest.mark.parametrize("choice", list(ChangedInput))
def test_what_joins_after_something_is_gone_alone_waits_for_a_choice(choice: ChangedInput) -> None:
    stand = TableStand(read_whole(A, B), choice)
    assert stand.ends(stand.page(stand.started(), B)).outcome == "completed"
    later = TableStand(stand)
    said = later.page(later.started(), B, C)
    assert asked(said) == []
    assert later.ends(said).outcome == "failed"


def test_what_was_passed_over_is_waited_for_as_if_it_were_read() -> None:
    stand = TableStand(read_whole(A), ChangedInput.DROP)
    assert stand.ends(stand.page(stand.started(), B)).outcome == "completed"
    again = TableStand(stand)
    said = again.page(again.started(), C)
    assert asked(said) == []
    report = again.ends(said)
    assert report.outcome == "failed"
    assert f"such as {B.uri!r}, and 1 other object is new" in report.reason
    last = TableStand(again, ChangedInput.DROP)
    assert last.ends(last.page(last.started(), C)).outcome == "completed"
    later = TableStand(last)
    assert asked(later.page(later.started(), C, D)) == [D]


def test_what_was_given_up_unread_while_gone_is_not_waited_for() -> None:
    first = TableStand()
    first.page(first.started(), A)
    stand = TableStand(first, ChangedInput.DROP)
    assert asked(stand.page(stand.started(), B)) == [B]
    assert stand.closes(B).outcome == "completed"
    assert stand.run.ledger.fragments[A.id].dropped is not None
    later = TableStand(stand)
    assert asked(later.page(later.started(), B, C)) == [C]


def test_what_comes_back_is_compared_and_not_read_again() -> None:
    stand = TableStand(read_whole(A, B), ChangedInput.DROP)
    assert stand.ends(stand.page(stand.started(), B, C)).outcome == "completed"
    later = TableStand(stand)
    assert asked(later.page(later.started(), A, B)) == [A]
    compared = m.FragmentWasRead(*later.task(), A.id, -1, checksum=CHECKSUM, compared="v1")
    assert later.ends(later.tell(compared)).outcome == "completed"
    assert later.run.ledger.seen["read", A.uri] == VersionSeen("read", A.uri, "v1", True)


@pytest.mark.parametrize("choice", list(ChangedInput))
def test_what_is_half_read_and_gone_holds_back_what_is_new(choice: ChangedInput) -> None:
    first = TableStand()
    first.page(first.started(), A)
    first.propose(Range(A.id, 0, 4))
    stand = TableStand(first, choice)
    said = stand.page(stand.started(), B)
    assert asked(said) == ([B] if choice is ChangedInput.REREAD else [])
    report = stand.closes(B) if asked(said) else stand.ends(said)
    assert report.outcome == ("failed" if choice is ChangedInput.HALT else "completed"), report.reason
    given_up = [
        change.fragment for entry in stand.log for change in entry.changes if isinstance(change, FragmentDropped)
    ]
    assert given_up == {"halt": [], "drop": [B.id, A.id], "reread": [A.id]}[choice.value]
    if choice is ChangedInput.HALT:
        assert ("read", A.uri) not in stand.run.ledger.seen, "its open part may come back"
        return
    later = TableStand(stand)
    assert asked(later.page(later.started(), B, C)) == [C]


def test_another_place_and_a_source_that_does_not_say_are_read() -> None:
    for place in ("", "file:///elsewhere/"):
        stand = TableStand(read_whole(A))
        stand.place = place
        assert asked(stand.page(stand.started(), B)) == [B]
