"""What is to be read, and what a sweep finds lost: open less closed, pending and held."""

from hypothesis import given, strategies as st

from headrace.controller.core.messages.messages import InHand, TaskSwept
from headrace.controller.core.plan.plans import Route
from headrace.controller.core.run.input.intake import (
    AHEAD_BYTES,
    AHEAD_BYTES_MIN,
    AHEAD_FRAGMENTS,
    AHEAD_OF_READ,
    Intake,
)
from headrace.store.ledger.core.entries import (
    Closed,
    Entry,
    FragmentEnded,
    FragmentsListed,
    Led,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment, Range
from headrace.store.ledger.core.intervals import UNBOUNDED, Gap
from tests.kits.controller.core import fragment

COUNT = 12
A, B, C = fragment(0), fragment(1), fragment(2)


class Bench:
    """An intake with a ledger that can be written to."""

    def __init__(self, *fragments: Fragment, sinks: tuple[str, ...] = ("write",)) -> None:
        self.ledger = LedgerState()
        self._write(Led(1, {}))
        self._write(FragmentsListed(fragments))
        self.intake = Intake(self.ledger, sinks)
        for item in fragments:
            self.intake.admit(item.id)

    def close(self, *ranges: Range, sink: str = "write") -> None:
        self._write(Closed(sink, "v", 0, ranges, (), Counts(kept=sum(item.count for item in ranges))))
        self.intake.settle(item.fragment for item in ranges)

    def end(self, item: Fragment, count: int) -> None:
        self._write(FragmentEnded(item.id, count))
        self.intake.settle((item.id,))

    def sweep(self, *answers: TaskSwept) -> bool:
        number = self.intake.begin_sweep([answer.task for answer in answers])
        return [self.intake.swept(self.numbered(answer, number)) for answer in answers][-1]

    @staticmethod
    def numbered(answer: TaskSwept, number: int) -> TaskSwept:
        return TaskSwept(answer.task, answer.attempt, number, answer.pending, answer.held)

    def _write(self, change: object) -> None:
        self.ledger.apply(self.ledger.number + 1, Entry(1, (change,)))  # type: ignore[arg-type]


def says(
    *, pending: tuple[tuple[bytes, tuple[Gap, ...]], ...] = (), held: tuple[Range, ...] = (), task: str = "t"
) -> TaskSwept:
    return TaskSwept(task, 1, 0, pending, (("write", held),))


def gaps_of(given: list[tuple[Fragment, tuple[Gap, ...]]]) -> dict[bytes, list[tuple[int, int]]]:
    return {item.id: [(gap.first, gap.end) for gap in gaps] for item, gaps in given}


def test_a_fragment_is_handed_out_whole_once() -> None:
    bench = Bench(A, B)
    assert bench.intake.assign("read", "t") == [(A, (Gap(0, UNBOUNDED, 0),)), (B, (Gap(0, UNBOUNDED, 0),))]
    assert bench.intake.assign("read", "u") == []
    assert bench.intake.assign("another", "u") == []


def test_a_fragment_that_is_listed_twice_is_read_once() -> None:
    bench = Bench(A)
    bench.intake.admit(A.id)
    bench.intake.assign("read", "t")
    bench.intake.admit(A.id)
    assert bench.intake.assign("read", "t") == []


def test_what_is_closed_while_a_fragment_waits_is_not_read_again() -> None:
    bench = Bench(A, B)
    bench.close(Range(A.id, 0, 4, 0, 40))  # by a task that was thought dead
    bench.end(B, 3)
    bench.close(Range(B.id, 0, 3, 0, 30))
    assert bench.intake.assign("read", "t") == [
        (A, (Gap(4, UNBOUNDED, 40),)),
        (B, (Gap(3, UNBOUNDED, 30),)),
    ]


def test_only_the_gaps_are_read_and_their_byte_is_named() -> None:
    bench = Bench(A)
    bench.close(Range(A.id, 2, 3, 20, 30))
    bench.close(Range(A.id, 8, 1))
    again = Intake(bench.ledger, ("write",))
    again.admit(A.id)
    assert again.assign("read", "t") == [(A, (Gap(0, 2, 0), Gap(5, 8, 50), Gap(9, UNBOUNDED, -1)))]


def test_a_task_is_given_no_more_than_it_needs_ahead() -> None:
    large = [fragment(index, AHEAD_BYTES // 2) for index in range(4)]
    assert len(Bench(*large).intake.assign("read", "t")) == 2
    small = [fragment(index, 0) for index in range(AHEAD_FRAGMENTS + 5)]
    assert len(Bench(*small).intake.assign("read", "t")) == AHEAD_FRAGMENTS
    assert len(Bench(fragment(0, 10 * AHEAD_BYTES)).intake.assign("read", "t")) == 1


def test_one_of_several_tasks_is_given_half_its_even_share() -> None:
    bench = Bench(*(fragment(index, 1000) for index in range(40)))
    given = {name: len(bench.intake.assign("read", name, among=2)) for name in "tu"}
    assert given == {"t": 10, "u": 8}, "small as they are, most of them wait for who is quicker"


def test_a_task_earns_what_it_has_ahead_by_what_it_has_read() -> None:
    items = [fragment(index, AHEAD_BYTES_MIN) for index in range(200)]
    bench = Bench(*items)
    given = bench.intake.assign("read", "t", 2)
    assert len(given) == 2, "the next one, however large; many that join later find the rest"
    for _ in range(5 * AHEAD_OF_READ):
        assert bench.intake.was_read("t", given.pop(0)[0].id, COUNT)
        given += bench.intake.assign("read", "t", 2)
    assert len(given) == 5


def test_who_has_nothing_is_given_a_fragment_of_any_size() -> None:
    bench = Bench(*(fragment(index, 1000) for index in range(3)))
    assert [len(bench.intake.assign("read", name, among=9)) for name in "tut"] == [1, 1, 0]


def test_news_that_a_fragment_was_read_is_taken_from_its_reader_only() -> None:
    bench = Bench(A)
    bench.intake.assign("read", "t")
    assert not bench.intake.was_read("u", A.id, COUNT)
    assert bench.intake.was_read("t", A.id, COUNT)
    assert not bench.intake.was_read("t", A.id, COUNT)
    assert bench.intake.idle
    assert not bench.intake.done


def test_done_means_that_the_intervals_tile_and_the_end_is_logged() -> None:
    bench = Bench(A)
    bench.close(Range(A.id, 0, COUNT))
    assert not bench.intake.done
    bench.end(A, COUNT)
    assert bench.intake.done


def test_what_nobody_holds_is_read_again() -> None:
    bench = Bench(A)
    bench.intake.assign("read", "t")
    bench.intake.was_read("t", A.id, COUNT)
    bench.close(Range(A.id, 0, 2))
    assert bench.sweep(says(held=(Range(A.id, 4, 2),)))
    assert bench.intake.requeue_lost() == 1
    assert gaps_of(bench.intake.assign("read", "t")) == {A.id: [(2, 4), (6, COUNT)]}


def test_what_is_assigned_or_queued_is_not_lost() -> None:
    bench = Bench(A, fragment(7, AHEAD_BYTES), B)
    bench.intake.assign("read", "t")
    bench.sweep(says())
    assert bench.intake.requeue_lost() == 0


def test_what_is_pending_at_a_source_is_not_lost() -> None:
    bench = Bench(A)
    bench.intake.assign("read", "t")
    bench.sweep(says(pending=((A.id, (Gap(3, UNBOUNDED, 30),)),), held=(Range(A.id, 0, 3),)))
    bench.intake.was_read("t", A.id, COUNT)
    assert bench.intake.requeue_lost() == 0


def test_what_is_given_and_read_behind_a_marker_is_not_lost() -> None:
    bench = Bench(A, B)
    bench.intake.begin_sweep(["t", "u"])
    assert len(bench.intake.assign("read", "t")) == 2
    assert bench.intake.was_read("t", A.id, COUNT)
    bench.intake.halt(B.id, "t")
    for task in ("t", "u"):
        bench.intake.swept(bench.numbered(says(task=task), bench.intake.sweep))
    assert bench.intake.requeue_lost() == 0, "it is on its way behind the marker"
    assert bench.sweep(says())
    assert bench.intake.requeue_lost() == 1, "the next marker has passed it by"


def test_what_is_given_behind_a_marker_and_let_go_is_lost() -> None:
    bench = Bench(A, B)
    for let_go in (bench.intake.let_go, lambda _: (bench.intake.withhold(A.id), bench.intake.excuses("t", A.id))):
        bench.intake.begin_sweep(["t"])
        assert bench.intake.assign("read", "t")
        let_go("t")
        bench.intake.release(A.id)
        bench.intake.swept(bench.numbered(says(), bench.intake.sweep))
        assert bench.intake.requeue_lost() >= 1


def test_what_a_solitary_task_was_given_and_has_pending_is_assigned_once() -> None:
    bench = Bench(A)
    bench.intake.inherit()
    bench.intake.suspicion.died([InHand("keep", Range(A.id, 0, 1))], certain=True)
    solitary = bench.intake.solitary
    solitary.requeue(A.id, {}, COUNT)
    solitary.assign(Route("read", "write"), "solitary")
    assert bench.sweep(says(task="solitary", pending=((A.id, (Gap(0, 1, 0),)),)))
    assert bench.intake.was_read("solitary", A.id, -1)
    bench.intake.halt(A.id)
    assert bench.intake.assign("read", "t") == []
    assert bench.intake.idle, "nobody is waited for"


def test_a_dead_source_loses_what_it_was_given() -> None:
    bench = Bench(A)
    bench.intake.assign("read", "t")
    bench.intake.task_died("t")
    bench.sweep(says(held=(Range(A.id, 0, 3, 0, 30),)))
    assert bench.intake.requeue_lost() == 1
    assert bench.intake.assign("read", "t") == [(A, (Gap(3, UNBOUNDED, 30),))]


def test_a_death_makes_the_sweep_under_way_worthless() -> None:
    bench = Bench(A)
    number = bench.intake.begin_sweep(["t", "u"])
    bench.intake.swept(Bench.numbered(says(task="t"), number))
    bench.intake.task_died("u")
    assert not bench.intake.sweeping
    assert not bench.intake.swept(Bench.numbered(says(task="u"), number))
    assert bench.intake.begin_sweep(["t"]) == number + 1


def test_an_answer_counts_once_and_for_its_own_sweep() -> None:
    intake = Bench(A).intake
    intake.begin_sweep(["t"])
    number = intake.begin_sweep(["t", "u"])
    assert not intake.swept(Bench.numbered(says(task="t"), number - 1))
    assert not intake.swept(Bench.numbered(says(task="u"), number)), "the answer of t was to another sweep"
    assert not intake.swept(Bench.numbered(says(task="u"), number))
    assert intake.swept(Bench.numbered(says(task="t"), number))


def test_a_record_is_lost_if_one_of_two_sinks_lost_it() -> None:
    bench = Bench(A, sinks=("write", "copy"))
    bench.intake.assign("read", "t")
    bench.intake.was_read("t", A.id, COUNT)
    bench.close(Range(A.id, 0, 6))
    bench.close(Range(A.id, 3, 9), sink="copy")
    bench.sweep(says(held=(Range(A.id, 6, 4),)))
    bench.intake.requeue_lost()
    assert gaps_of(bench.intake.assign("read", "t")) == {A.id: [(0, 3), (10, COUNT)]}


def test_what_the_sink_that_lost_it_has_closed_is_not_read_again() -> None:
    bench = Bench(A, sinks=("write", "copy"))
    bench.intake.assign("read", "t")
    bench.intake.was_read("t", A.id, COUNT)
    bench.end(A, COUNT)
    bench.sweep(TaskSwept("t", 1, 0, (), (("copy", (Range(A.id, 0, COUNT),)), ("write", (Range(A.id, 0, 6),)))))
    bench.intake.requeue_lost()
    bench.close(Range(A.id, 6, 2))
    assert gaps_of(bench.intake.assign("read", "t")) == {A.id: [(8, COUNT)]}


def test_a_drain_waits_for_all_that_sinks_held() -> None:
    bench = Bench(A)
    bench.sweep(says(held=(Range(A.id, 0, 3), Range(A.id, 5, 2))))
    assert not bench.intake.held_are_closed()
    bench.close(Range(A.id, 0, 6))
    assert not bench.intake.held_are_closed()
    bench.close(Range(A.id, 6, 1))
    assert bench.intake.held_are_closed()


fates = st.lists(st.sampled_from(["closed", "pending", "held", "lost"]), min_size=1, max_size=40)


@given(fates, st.booleans())
def test_lost_is_open_less_held_less_pending(fate: list[str], ended: bool) -> None:
    bench, count = Bench(A), len(fate)
    bench.intake.assign("read", "t")
    bench.intake.was_read("t", A.id, count)
    where = {name: [ordinal for ordinal, given in enumerate(fate) if given == name] for name in set(fate)}
    for ordinal in where.get("closed", []):
        bench.close(Range(A.id, ordinal, 1, 10 * ordinal, 10))
    if ended:
        bench.end(A, count)
    pending = tuple(Gap(ordinal, ordinal + 1) for ordinal in where.get("pending", []))
    held = tuple(Range(A.id, ordinal, 1) for ordinal in where.get("held", []))
    bench.sweep(says(pending=((A.id, pending),), held=held))
    lost = where.get("lost", [])
    assert bench.intake.requeue_lost() == bool(lost)
    given = bench.intake.assign("read", "t")
    assert [ordinal for _, gaps in given for gap in gaps for ordinal in range(gap.first, gap.end)] == lost
    assert all(gap.offset in (-1, 10 * gap.first) for _, gaps in given for gap in gaps)


def test_of_a_halted_fragment_nothing_more_is_handed_out() -> None:
    bench = Bench(A, B)
    bench.intake.halt(A.id)
    assert gaps_of(bench.intake.assign("read", "t")) == {B.id: [(0, UNBOUNDED)]}


def test_what_a_source_has_of_a_halted_fragment_may_be_closed() -> None:
    bench = Bench(A)
    bench.intake.halt(A.id)
    bench.sweep(says(pending=((A.id, (Gap(4, UNBOUNDED, 40),)),)))
    wanted = ((A.id, (5,)),)
    assert bench.intake.parted_halted(("write",), wanted) == (wanted, ())


def test_of_a_halted_fragment_what_no_sink_held_is_never_closed() -> None:
    bench = Bench(A, B)
    wanted = ((A.id, (1, 5)), (B.id, (0,)))
    bench.sweep(says())
    bench.intake.halt(A.id)
    assert bench.intake.parted_halted(("write",), wanted) == (wanted, ()), "some of it may be on its way"
    bench.intake.begin_sweep(["t"])
    assert bench.intake.parted_halted(("write",), wanted) == (wanted, ()), "the marker is on its way"
    bench.intake.swept(Bench.numbered(says(held=(Range(A.id, 0, 4),)), bench.intake.sweep))
    assert bench.intake.parted_halted(("write",), wanted) == (((B.id, (0,)), (A.id, (1,))), ((A.id, (5,)),))
    bench.intake.begin_sweep(["t"])
    bench.intake.abort_sweep()
    assert bench.intake.parted_halted(("write",), wanted) == (wanted, ()), "nobody knows what that sink holds"


def test_of_records_that_a_sink_holds_all_none_is_called_lost() -> None:
    bench = Bench(A, B)
    bench.sweep(says(held=(Range(A.id, 2, 3),)))
    assert bench.intake.parted(("write",), ((A.id, (2, 4)),)) == (((A.id, (2, 4)),), ())
    assert bench.intake.parted(("write",), ((A.id, (1, 4)), (B.id, (0,)))) == (
        ((A.id, (4,)),),
        ((A.id, (1,)), (B.id, (0,))),
    )
