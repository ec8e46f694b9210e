"""Each part of a balance by itself: shares, the words of what is open, and whose word it is."""

from collections.abc import Mapping

import pytest

from headrace.store.ledger.core.balance import Balance, balance_of, empty_sinks, sinks_of
from headrace.store.ledger.core.entries import (
    Entry,
    FragmentEnded,
    FragmentsListed,
    Led,
    PipelineApplied,
)
from headrace.store.ledger.core.fold import LedgerState
from headrace.store.ledger.core.fragments import Counts, Fragment

TWO_SINKS = {
    "stages": [
        {"name": "read", "kind": "source"},
        {"name": "write", "kind": "sink", "parameters": {"seq_len": 8}},
        {"name": "archive", "kind": "sink"},
    ]
}
ONE_SINK = {"stages": TWO_SINKS["stages"][:2]}
FRAGMENT = Fragment.named("read", "file:///a", "1", start=0, end=-1, reader="lines", size=9)


def ledger(pipeline: Mapping[str, object], *, records: int | None = None) -> LedgerState:
    """With one fragment listed, of so many records; None: it was not read to its end."""
    state = LedgerState()
    ends = () if records is None else (FragmentEnded(FRAGMENT.id, records),)
    state.apply(0, Entry(1, (Led(1, {}), PipelineApplied("v", dict(pipeline)), FragmentsListed((FRAGMENT,)), *ends)))
    return state


@pytest.mark.parametrize(
    ("seq_len", "counts", "share"),
    [
        (8, Counts(tokens=10, sequences=3, padding=6), 6 / 24),
        (0, Counts(tokens=10, sequences=3, padding=6), 6 / 16),
        (8, Counts(tokens=10, padding=10), 10 / 20),
        (8, Counts(), 0.0),
    ],
)
def test_padding_is_a_share_of_all_tokens_in_the_sequences(seq_len: int, counts: Counts, share: float) -> None:
    assert Balance(counts, seq_len=seq_len).padding_share == share


def test_a_share_has_six_digits() -> None:
    assert Balance(Counts(tokens=2, padding=1)).to_dict()["padding_share"] == 0.333333


@pytest.mark.parametrize(
    ("balance", "words"),
    [
        (Balance(Counts(), complete=True), ""),
        (Balance(Counts()), "nothing is listed yet"),
        (Balance(Counts(), fragments=2, open_at=("a", "b")), "all is closed at this sink, and not at a, b"),
        (Balance(Counts(), fragments=2, fragments_open=1), "1 fragment is open"),
        (
            Balance(Counts(), records_open=1, fragments=9, fragments_open=2, fragments_unended=1),
            "1 record read and not closed; 2 fragments are open, 1 of them not read to the end",
        ),
    ],
)
def test_what_is_open_is_said(balance: Balance, words: str) -> None:
    assert balance.open_words == words


def test_before_anything_is_closed_the_first_sink_speaks() -> None:
    balance = balance_of(ledger(TWO_SINKS))
    assert (balance.seq_len, balance.open_at) == (8, ("write", "archive"))
    assert sinks_of(ledger(TWO_SINKS)) == ("write", "archive")


def test_a_sink_that_declares_no_length_has_none() -> None:
    assert balance_of(ledger(TWO_SINKS), "archive").seq_len == 0


def test_who_is_the_only_sink_is_not_named() -> None:
    balance = balance_of(ledger(ONE_SINK))
    assert (balance.fragments_open, balance.open_at, balance.complete) == (1, (), False)


def test_a_ledger_naming_no_sink_is_incomplete_while_open() -> None:
    assert not balance_of(ledger({})).complete
    assert balance_of(ledger({}, records=0)).complete


def test_a_sink_of_before_is_not_complete_by_the_word_of_todays() -> None:
    empty = ledger(ONE_SINK, records=0)
    assert balance_of(empty, "write").complete
    assert not balance_of(ledger(ONE_SINK, records=2), "gone").complete


def counted_by(**counts: Counts) -> LedgerState:
    return LedgerState(counts=counts, pipeline=TWO_SINKS)


def test_each_sink_that_kept_nothing_beside_another_is_named_with_reasons() -> None:
    lost = Counts(filtered=3, quarantined=2, filtered_by={"f/a": 1, "f/b": 2}, quarantined_by={"read/bad": 2})
    found = empty_sinks(counted_by(write=lost, archive=Counts(kept=5), zoo=Counts(duplicate=1)))
    assert list(found) == [
        "sink write kept none of 5 records: 2 quarantined (most of them by read/bad), 3 filtered (most of them by f/b)",
        "sink zoo kept none of 1 record: 1 duplicate",
    ]


def test_no_sink_is_named_where_all_kept_or_none_did() -> None:
    kept, lost = Counts(kept=1), Counts(filtered=1)
    assert empty_sinks(counted_by(write=kept, archive=Counts(kept=1, filtered=9))) == ()
    assert empty_sinks(counted_by(write=lost, archive=lost)) == (), "the run says of these that it kept nothing"
    assert empty_sinks(counted_by(write=kept, archive=Counts())) == (), "it has seen no record yet"
