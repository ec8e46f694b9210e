"""An object that was read and stands in another version: comparing it, while another leader's orders are still out."""

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.run.input.known_objects import Comparing, KnownObjects, ListedAs, ObjectChange
from headrace.store.ledger.core.entries import (
    Entry,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    VersionSeen,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Fragment, Range
from tests.kits.controller.cluster_log import A, B, Bench, Store, living, succeeded
from tests.kits.controller.core import of, proposal

CHECKSUM = b"c" * 16
NEW_A, NEWER_A = (
    Fragment.named("read", A.uri, version, start=0, end=-1, reader="lines", size=A.size) for version in ("v2", "v3")
)
LISTED = Entry(1, (Led(1, {}), FragmentsListed((A,))))
ENDED = Entry(1, (FragmentEnded(A.id, 10, CHECKSUM),))


class Heir:
    """A leader that took over when all of A had been read and nothing of it was closed."""

    def __init__(self) -> None:
        store = Store()
        first = Bench(store, "a")
        start = first.begun()
        self.place = start.task, start.attempt
        first.tell(m.FragmentWasRead(*self.place, A.id, 10, checksum=CHECKSUM))
        self.bench = succeeded(store)
        commands = self.bench.join("w1", living(start))
        (self._ask,) = of(m.ListSource, commands)
        self._sweeps = of(m.SweepTask, commands)

    def swept(self, *held: Range) -> list[m.Command]:
        """Answer each sweep until none is asked for."""
        said: list[m.Command] = []
        while self._sweeps:
            answer = m.TaskSwept(*self.place, self._sweeps.pop(0).sweep, held=(("write", held),) if held else ())
            said += self._noting(self.bench.tell(answer))
        return said

    def listed(self) -> list[m.Command]:
        return self._noting(
            self.bench.tell(m.SourceListed(*self.place, "read", (NEW_A, B), last=True, listing=self._ask.listing))
        )

    def read(self, fragment: Fragment, count: int = -1, error: str = "") -> list[m.Command]:
        event = m.FragmentWasRead(*self.place, fragment.id, count, error, bool(error))
        return self._noting(self.bench.tell(event))

    def compared(self, checksum: bytes = CHECKSUM) -> list[m.Command]:
        event = m.FragmentWasRead(*self.place, A.id, -1, checksum=checksum, compared="v2")
        return self._noting(self.bench.tell(event))

    def propose(self, *ranges: Range) -> list[m.Command]:
        run = self.bench.core.runs["run"]
        task, attempt = self.place
        event = proposal(ranges, version=run.version, epoch=run.ledger.epoch, task=task, attempt=attempt)
        return self._noting(self.bench.tell(event))

    def _noting(self, said: list[m.Command]) -> list[m.Command]:
        self._sweeps += of(m.SweepTask, said)
        return said


def orders(said: list[m.Command]) -> list[tuple[bytes, str, bool]]:
    """What is to be read: its name, under which version, and whether only to be compared."""
    return [(order.fragment.id, order.fragment.version, not order.gaps) for order in of(m.ReadFragment, said)]


def test_an_object_is_not_read_while_compared_and_fully_read_then() -> None:
    heir = Heir()
    assert orders(heir.listed()) == [(A.id, "v2", True)]
    assert orders(heir.swept()) == [(B.id, "v1", False)]
    assert orders(heir.compared()) == []
    assert orders(heir.swept()) == [(A.id, "v2", False)]


def test_an_order_older_than_what_is_known_gives_nothing_up() -> None:
    heir = Heir()
    assert orders(heir.swept()) == [(A.id, "v1", False), (B.id, "v1", False)]
    heir.listed()
    assert of(m.ReportRun, heir.read(A, error="A has changed")) == []
    heir.compared()
    assert orders(heir.swept()) == [(A.id, "v2", False)]
    heir.read(A, error="A has changed again")
    heir.read(B, 4)
    heir.swept(Range(B.id, 0, 4))
    (report,) = of(m.ReportRun, heir.propose(Range(B.id, 0, 4)))
    assert "A has changed again" in report.reason


@pytest.mark.parametrize("reading_first", [True, False])
def test_read_and_compared_of_one_fragment_are_two_answers(reading_first: bool) -> None:
    heir = Heir()
    heir.swept()
    heir.listed()
    answers = [lambda: heir.read(A, error="A has changed"), lambda: heir.compared(b"o" * 16)]
    for answer in answers if reading_first else reversed(answers):
        answer()
    heir.read(B, 4)
    heir.swept(Range(B.id, 0, 4))
    (report,) = of(m.ReportRun, heir.propose(Range(B.id, 0, 4)))
    assert report.outcome == "failed", "all else is closed, and the run does not wait for ever"
    assert "holds other bytes" in report.reason


def test_an_answer_about_a_passed_version_says_nothing_of_the_present() -> None:
    ledger = LedgerState()
    ledger.apply(0, LISTED)
    ledger.apply(1, ENDED)
    comparing = Comparing()
    tile = (ledger.fragments[A.id],)
    comparing.meet(NEW_A, tile)
    comparing.meet(NEWER_A, tile)
    said = m.FragmentWasRead("run/read.0", 1, A.id, -1, checksum=CHECKSUM, compared="v2")
    assert comparing.heard(said)
    assert comparing.take() == []
    assert comparing.heard(structs.replace(said, compared="v3"))
    assert [(item.version, item.finding) for item in comparing.take()] == [("v3", ObjectChange.SAME)]


@pytest.mark.parametrize("reread", [True, False])
def test_what_was_given_up_is_listed_anew_only_if_read_again(reread: bool) -> None:
    ledger = LedgerState()
    for number, entry in enumerate((LISTED, ENDED, Entry(1, (VersionSeen("read", A.uri, "v2", True),)))):
        ledger.apply(number, entry)
    ledger.apply(3, Entry(1, (FragmentDropped(A.id, "it changed", reread),)))
    earlier = KnownObjects(ledger, ("write",))
    assert earlier.listed_as(NEW_A) is ListedAs.THERE
    assert earlier.uncovered(NEW_A) == ([NEW_A] if reread else [])
