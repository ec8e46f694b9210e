"""An object that was read and stands in another version: comparing it, while another leader's orders are still out."""

import pytest
from msgspec import structs

from headrace.controller.core.messages import messages as m
from headrace.controller.core.plan.plans import TaskPlan
from headrace.controller.core.run.input.known_objects import Comparing, KnownObjects, ListedAs, ObjectChange
from headrace.controller.core.run.tasks.task_table import RunTask, TaskPhase
from headrace.store.ledger.core.entries import (
    Entry,
    FragmentDropped,
    FragmentEnded,
    FragmentsListed,
    Led,
    VersionSeen,
)
from headrace.store.ledger.core.fold import FragmentState, LedgerState
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
    assert comparing.done, "nobody waits for what is known of the passed version"


@pytest.mark.parametrize("continues", [True, False])
def test_what_cannot_be_read_on_at_its_end_is_another_object(continues: bool) -> None:
    comparing, tile = Comparing(), read_to_the_end(A)
    grown = Fragment.named("read", A.uri, "v2", start=0, end=-1, reader="lines", size=A.size + 7)
    comparing.meet(grown, tile)
    assert comparing.heard(compared("run/read.0", A, continues=continues))
    (item,) = comparing.take()
    assert item.finding is (ObjectChange.GROWN if continues else ObjectChange.OTHER)
    assert ("cannot be read on there" in item.why) is not continues


def test_what_a_dead_task_was_to_compare_others_compare() -> None:
    comparing, tile = Comparing(), read_to_the_end(A, B)
    one, other = (RunTask(TaskPlan(f"run/read.{n}", ("read",), "w1", n), TaskPhase.READY) for n in range(2))
    asked: list[bytes] = []
    for fragment, task in ((A, one), (B, other)):
        now = Fragment.named("read", fragment.uri, "v2", start=0, end=-1, reader="lines", size=fragment.size)
        comparing.meet(now, tuple(state for state in tile if state.fragment.id == fragment.id))
        asked += [order.fragment.id for order in of(m.ReadFragment, comparing.ask([task]))]
    assert asked == [A.id, B.id]
    comparing.drop_asked(one.plan.name)
    assert orders(comparing.ask([other])) == [(A.id, "v2", True)]
    comparing.drop_asked()
    assert {name for name, _, _ in orders(comparing.ask([other]))} == {A.id, B.id}


def read_to_the_end(*fragments: Fragment) -> tuple[FragmentState, ...]:
    ledger = LedgerState()
    ledger.apply(0, Entry(1, (Led(1, {}), FragmentsListed(fragments))))
    ledger.apply(1, Entry(1, tuple(FragmentEnded(item.id, 10, CHECKSUM) for item in fragments)))
    return tuple(ledger.fragments[item.id] for item in fragments)


def compared(task: str, fragment: Fragment, *, continues: bool) -> m.FragmentWasRead:
    facts = {"checksum": CHECKSUM, "compared": "v2"}
    return m.FragmentWasRead(task, 1, fragment.id, -1, continues=continues, **facts)  # type: ignore[arg-type]


def test_only_the_version_that_was_compared_has_a_tile() -> None:
    comparing, tile = Comparing(), read_to_the_end(A)
    comparing.meet(NEW_A, tile)
    assert comparing.tile_of(VersionSeen("read", A.uri, "v2", True)) == tile
    assert comparing.tile_of(VersionSeen("read", A.uri, "v3", True)) == ()
    assert comparing.tile_of(VersionSeen("read", B.uri, "v2", True)) == ()


def test_an_empty_fragment_accounts_for_nothing_and_stays() -> None:
    whole, empty = (
        Fragment.named("read", A.uri, "v1", start=start, end=-1, reader="lines", size=size)
        for start, size in ((0, 100), (5, 0))
    )
    ledger = LedgerState()
    ledger.apply(0, Entry(1, (Led(1, {}), FragmentsListed((empty, whole)))))
    assert [state.fragment for state in KnownObjects(ledger, ("write",)).tile(whole)] == [empty, whole]


@pytest.mark.parametrize("reread", [True, False])
def test_what_was_given_up_is_listed_anew_only_if_read_again(reread: bool) -> None:
    ledger = LedgerState()
    for number, entry in enumerate((LISTED, ENDED, Entry(1, (VersionSeen("read", A.uri, "v2", True),)))):
        ledger.apply(number, entry)
    ledger.apply(3, Entry(1, (FragmentDropped(A.id, "it changed", reread),)))
    earlier = KnownObjects(ledger, ("write",))
    assert earlier.listed_as(NEW_A) is ListedAs.THERE
    assert earlier.uncovered(NEW_A) == ([NEW_A] if reread else [])


def test_what_is_known_is_done_only_when_it_is_taken() -> None:
    comparing = Comparing()
    comparing.meet(NEW_A, (FragmentState(A, 10),))
    assert not comparing.done
    (found,) = comparing.take()
    assert (found.finding, comparing.done) == (ObjectChange.OTHER, True)
