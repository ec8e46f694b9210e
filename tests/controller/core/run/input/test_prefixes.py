"""An object that was read in part and stands in another version: what was read is compared before it is read on."""

from dataclasses import replace

import pytest

from headrace.controller.core.messages import messages as m
from headrace.controller.core.messages.requests import ChangedInput
from headrace.controller.core.run.input.known_objects import KnownObjects, ListedAs, evidence_of
from headrace.store.ledger.core.entries import (
    Change,
    Entry,
    FragmentEnded,
    FragmentsListed,
    Led,
    PrefixRead,
)
from headrace.store.ledger.core.fold import FoldError, LedgerState
from headrace.store.ledger.core.fragments import Fragment, Range
from headrace.store.ledger.snapshot import decode_snapshot, encode_snapshot
from tests.kits.controller.core import Stand, changes, fragment, of, proposal

A, B = fragment(0), fragment(1)
SUM, OTHER = b"c" * 16, b"o" * 16


def in_version(item: Fragment, version: str, size: int | None = None) -> Fragment:
    length = item.size if size is None else size
    return Fragment.named("read", item.uri, version, start=0, end=-1, reader="lines", size=length)


NEW_A = in_version(A, "v2")


def tell_prefix(stand: Stand, count: int, size: int, checksum: bytes = SUM) -> list[m.Command]:
    return stand.tell(m.FragmentWasRead(*stand.task(), A.id, count, checksum=checksum, prefix=size))


def half_read() -> Stand:
    """A run that closed four of A's records, of which a prefix of 60 bytes is known, and died."""
    stand = Stand()
    stand.begin(A)
    tell_prefix(stand, 5, 60)
    stand.propose(Range(A.id, 0, 4))
    return stand


def later(first: Stand, choice: ChangedInput = ChangedInput.HALT) -> Stand:
    """Another run on the same log, whose former leader is dead."""
    second = Stand(first.log)
    second.leader_alive = False
    second.changed_input = choice
    return second


def compared(stand: Stand, checksum: bytes, version: str = "v2") -> list[m.Command]:
    return stand.tell(m.FragmentWasRead(*stand.task(), A.id, -1, checksum=checksum, compared=version))


def test_what_was_read_of_a_touched_object_is_compared_and_read_on() -> None:
    stand = later(half_read())
    (order,) = of(m.ReadFragment, stand.begin(NEW_A))
    assert (order.fragment, order.gaps) == (replace(A, version="v2", size=60), ())
    (order,) = of(m.ReadFragment, compared(stand, SUM))
    assert order.fragment == replace(A, version="v2")
    assert [gap.first for gap in order.gaps] == [4]
    assert any("with the bytes that were read" in line for line in stand.run.listing.notes())


@pytest.mark.parametrize("choice", [ChangedInput.HALT, ChangedInput.DROP])
def test_other_bytes_in_what_was_read_are_for_a_person(choice: ChangedInput) -> None:
    stand = later(half_read(), choice)
    stand.begin(NEW_A)
    said = compared(stand, OTHER)
    said += stand.swept(said)
    (report,) = of(m.ReportRun, said)
    assert report.outcome == ("failed" if choice is ChangedInput.HALT else "completed")
    assert choice is not ChangedInput.HALT or "it holds other bytes than when it was read" in report.reason


def test_an_object_of_which_nothing_is_closed_is_read_as_it_is() -> None:
    first = Stand()
    first.begin(A)
    (order,) = of(m.ReadFragment, later(first).begin(NEW_A))
    assert order.fragment == replace(A, version="v2")
    assert [gap.first for gap in order.gaps] == [0]


def test_an_object_of_another_size_halts() -> None:
    stand = later(half_read())
    (report,) = of(m.ReportRun, stand.swept(stand.begin(in_version(A, "v2", A.size + 1))))
    assert "it has another size, or no checksum tells" in report.reason


def test_a_prefix_that_ends_before_what_is_closed_tells_nothing() -> None:
    first = half_read()
    first.propose(Range(A.id, 4, 4))
    stand = later(first)
    (report,) = of(m.ReportRun, stand.swept(stand.begin(NEW_A)))
    assert "no checksum tells" in report.reason


def test_an_object_that_is_back_in_its_first_version_is_compared() -> None:
    second = later(half_read())
    second.begin(NEW_A)
    compared(second, SUM)
    third = later(second)
    (order,) = of(m.ReadFragment, third.begin(A))
    assert order.gaps == (), "what was read of it meanwhile may be of other bytes"
    (order,) = of(m.ReadFragment, compared(third, SUM, "v1"))
    assert (order.fragment, [gap.first for gap in order.gaps]) == (A, [4])


def test_what_a_sink_of_an_earlier_run_holds_is_fenced_off() -> None:
    first = half_read()
    epoch = first.run.ledger.epoch
    stand = later(first)
    stand.begin(NEW_A)
    compared(stand, SUM)
    assert stand.run.ledger.epoch > epoch
    task, attempt = stand.task()
    event = proposal([Range(A.id, 4, 2)], version=stand.run.version, epoch=epoch, task=task, attempt=attempt)
    (answer,) = of(m.AnswerProposal, stand.tell(event))
    assert answer.outcome is m.Outcome.REFUSED


def test_an_object_that_changes_while_read_is_not_told_by_its_prefix() -> None:
    """What was handed out may be on its way from the version before."""
    stand = Stand()
    stand.begin(A, B)
    tell_prefix(stand, 5, 60)
    stand.propose(Range(A.id, 0, 4))
    stand.run.listing.again(["read"])
    assert of(m.ReadFragment, stand.listed(stand.later(0.1), NEW_A, B)) == []
    assert stand.run.ledger.seen == {}


def test_a_prefix_stands_in_the_entry_of_the_shard() -> None:
    stand = half_read()
    assert [type(change).__name__ for change in stand.log[-1].changes] == ["Closed", "PrefixRead"]
    tell_prefix(stand, 9, 80)
    assert changes(stand).count("PrefixRead") == 1, "no more is closed than the first covers"
    stand.propose(Range(A.id, 4, 4))
    assert changes(stand).count("PrefixRead") == 2


def test_a_prefix_that_does_not_cover_a_shard_is_not_entered() -> None:
    stand = Stand()
    stand.begin(A)
    tell_prefix(stand, 3, 40)
    stand.propose(Range(A.id, 0, 4))
    assert "PrefixRead" not in changes(stand)


def test_a_prefix_that_comes_after_its_shard_is_entered_then() -> None:
    stand = Stand()
    stand.begin(A)
    stand.propose(Range(A.id, 0, 4))
    tell_prefix(stand, 3, 40)
    assert "PrefixRead" not in changes(stand)
    tell_prefix(stand, 4, 50)
    assert changes(stand)[-1] == "PrefixRead"


def parts(*sizes: int) -> list[Fragment]:
    """An object cut into fragments of these sizes."""
    found: list[Fragment] = []
    for index, size in enumerate(sizes):
        start = sum(sizes[:index])
        end = -1 if index == len(sizes) - 1 else start + size
        found.append(Fragment.named("read", "file:///in/0", "v1", start=start, end=end, reader="lines", size=size))
    return found


def state_of(*entry: Change) -> LedgerState:
    ledger = LedgerState()
    ledger.apply(0, Entry(1, (Led(1, {}), *entry)))
    return ledger


def test_a_part_behind_one_read_to_its_end_is_not_unread() -> None:
    """The last line of a part ends in the next one."""
    first, second, third = parts(100, 100, 50)
    begun = state_of(FragmentsListed((first, second, third)), PrefixRead(first.id, 3, 60, SUM))
    tile = tuple(begun.fragments.values())
    assert evidence_of(tile) == {first.id: (60, SUM), second.id: (0, b""), third.id: (0, b"")}
    begun.apply(1, Entry(1, (FragmentEnded(first.id, 5, SUM),)))
    assert evidence_of(tile) is None
    begun.apply(2, Entry(1, (PrefixRead(second.id, 1, 20, OTHER),)))
    assert evidence_of(tile) == {first.id: (100, SUM), second.id: (20, OTHER), third.id: (0, b"")}


def test_the_end_of_another_writing_tells_nothing_of_a_part() -> None:
    ended = state_of(FragmentsListed((A,)), PrefixRead(A.id, 3, 60, SUM), FragmentEnded(A.id, 9))
    assert evidence_of(tuple(ended.fragments.values())) is None
    assert KnownObjects(ended, ("write",), handed=set()).listed_as(NEW_A) is ListedAs.CONTRADICTED


@pytest.mark.parametrize("handed", [None, {A.id}])
def test_nobody_tells_by_a_prefix_while_records_may_be_on_their_way(handed: set[bytes] | None) -> None:
    begun = state_of(FragmentsListed((A,)))
    assert KnownObjects(begun, ("write",), handed=handed).listed_as(NEW_A) is ListedAs.CONTRADICTED
    assert KnownObjects(begun, ("write",), handed={B.id}).listed_as(NEW_A) is ListedAs.TO_COMPARE


def test_the_fold_keeps_the_longest_prefix_until_there_is_a_checksum() -> None:
    ledger = state_of(FragmentsListed((A,)), PrefixRead(A.id, 3, 60, SUM), PrefixRead(A.id, 2, 40, OTHER))
    assert ledger.fragments[A.id].prefix == PrefixRead(A.id, 3, 60, SUM)
    assert decode_snapshot(encode_snapshot(ledger)) == ledger
    ledger.apply(1, Entry(1, (FragmentEnded(A.id, 4, SUM), PrefixRead(A.id, 4, 90, OTHER))))
    assert ledger.fragments[A.id].prefix is None


@pytest.mark.parametrize("wrong", [(0, 60, SUM), (3, 0, SUM), (3, 101, SUM), (3, 60, b"")])
def test_a_prefix_that_cannot_be_is_refused(wrong: tuple[int, int, bytes]) -> None:
    with pytest.raises(FoldError, match="prefix"):
        state_of(FragmentsListed((A,)), PrefixRead(A.id, *wrong))
