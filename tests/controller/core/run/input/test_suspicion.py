"""Strikes, suspects and sentences: which record is poison, and when it is the stage that is at fault."""

import pytest

from headrace.controller.core.messages.messages import InHand
from headrace.controller.core.run.input.suspicion import NEIGHBOURS_MAX, POISON_MAX, VAIN_MAX, Suspicion
from headrace.store.ledger.core.fragments import Range
from headrace.store.ledger.core.intervals import UNBOUNDED

FILE = b"f" * 16


def hand(first: int, count: int, stage: str = "keep") -> list[InHand]:
    return [InHand(stage, Range(FILE, first, count))]


def runs(suspicion: Suspicion) -> list[tuple[int, int]]:
    suspects = suspicion.of(FILE)
    return [] if suspects is None else list(suspects)


def test_one_death_makes_no_suspect_and_a_second_alike_does() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died(hand(0, 10), certain=False)
    assert runs(suspicion) == []
    suspicion.died(hand(20, 10), certain=False)
    assert suspicion.fragments() == []
    suspicion.died(hand(5, 10), certain=False)
    assert runs(suspicion) == [(5, 15)]
    assert suspicion.fragments() == [FILE]


def test_a_death_by_the_workers_own_hand_is_enough() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died(hand(3, 4), certain=True)
    assert runs(suspicion) == [(3, 7)]
    assert suspicion.died_alone(hand(3, 1), "it did not return within 60 s", certain=True) == ""
    assert [item.ordinal for item in suspicion.poison(FILE)] == [3]


def test_a_record_that_is_alone_in_hand_twice_is_condemned_once() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died_alone(hand(7, 1), "signal 11", certain=False)
    assert suspicion.poison(FILE) == ()
    suspicion.died_alone(hand(7, 1), "signal 11", certain=False)
    suspicion.died_alone(hand(7, 1), "signal 11", certain=False)
    (sentence,) = suspicion.poison(FILE)
    assert (sentence.ordinal, sentence.stage, sentence.story) == (7, "keep", "signal 11")


def test_a_record_that_kills_two_sinks_is_condemned_at_both_once() -> None:
    suspicion = Suspicion(["read"], ["write", "archive"])
    for stage in ("write", "archive"):
        for _ in range(2):
            suspicion.died_alone(hand(7, 1, stage), "signal 11", certain=False)
    assert [(item.ordinal, item.stage) for item in suspicion.poison(FILE)] == [(7, "write"), (7, "archive")]
    others = range(9, 9 + 2 * (POISON_MAX - 1), 2)
    assert not any(suspicion.died_alone(hand(at, 1), "exit 3", certain=True) for at in others)


@pytest.mark.parametrize("certain", [True, False])
def test_a_record_in_a_shard_with_others_is_not_alone(certain: bool) -> None:
    suspicion = Suspicion(["read"], ["write"])
    shard = [*hand(0, 1, "write"), InHand("write", Range(b"g" * 16, 0, 19))]
    for _ in range(3):
        suspicion.died_alone(shard, "signal 11", certain=certain)
    assert suspicion.poison(FILE) == ()
    assert suspicion.trial(FILE), "each record of it is to be tried by itself"


def test_deaths_at_two_stages_do_not_add_up() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died_alone(hand(7, 1), "signal 11", certain=False)
    suspicion.died_alone(hand(7, 1, "write"), "signal 11", certain=False)
    assert suspicion.poison(FILE) == ()


def test_a_reader_without_numbers_makes_all_behind_it_suspect() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died(hand(100, 0, "read"), certain=True)
    assert runs(suspicion) == [(100, UNBOUNDED)]
    suspicion.died_alone(hand(130, 1, "read"), "signal 11", certain=True)
    assert runs(suspicion) == [(100, 131)]


def test_a_sink_that_died_of_many_has_records_tried_singly() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died(hand(0, 10), certain=True)
    assert not suspicion.trial(FILE)
    suspicion.died(hand(0, 10, "write"), certain=True)
    assert suspicion.trial(FILE)
    assert not suspicion.trial(b"g" * 16)


def test_neighbours_in_a_row_are_the_fault_of_the_stage() -> None:
    suspicion = Suspicion(["read"], ["write"])
    said = [suspicion.died_alone(hand(at, 1), "exit 3", certain=True) for at in range(NEIGHBOURS_MAX)]
    assert not any(said[:-1])
    assert f"stage keep killed its process on {NEIGHBOURS_MAX} records in a row" in said[-1]


def test_too_many_apart_are_the_fault_of_the_stage() -> None:
    suspicion = Suspicion(["read"], ["write"])
    said = [suspicion.died_alone(hand(2 * at, 1), "exit 3", certain=True) for at in range(POISON_MAX + 1)]
    assert not any(said[:-1])
    assert f"more than {POISON_MAX} records of this run have" in said[-1]


def test_a_solitary_sink_that_died_of_many_has_them_tried() -> None:
    suspicion = Suspicion(["read"], ["write"])
    suspicion.died_alone(hand(3, 1, "write"), "signal 11", certain=False)
    assert not suspicion.trial(FILE)
    suspicion.died_alone(hand(0, 5, "write"), "signal 11", certain=False)
    assert suspicion.trial(FILE)
    assert suspicion.poison(FILE) == ()


def in_vain(suspicion: Suspicion, in_hand: list[InHand], closed: list[int]) -> list[str]:
    return [suspicion.in_vain(in_hand, at) for at in closed]


def test_a_stage_that_kills_only_in_company_is_at_fault_eventually() -> None:
    shard = [*hand(0, 1, "write"), InHand("write", Range(b"g" * 16, 0, 19))]
    assert in_vain(Suspicion(["read"], ["write"]), shard, [5] * VAIN_MAX) == [""] * (VAIN_MAX - 1) + ["write"]


def test_what_is_closed_between_two_deaths_begins_the_row_again() -> None:
    suspicion, shard = Suspicion(["read"], ["write"]), hand(0, 19, "write")
    assert set(in_vain(suspicion, shard, list(range(3 * VAIN_MAX)))) == {""}
    assert in_vain(suspicion, shard, [99] * VAIN_MAX)[-1] == "write"


def test_what_is_condemned_between_two_deaths_begins_the_row_again() -> None:
    suspicion, shard = Suspicion(["read"], ["write"]), hand(0, 19, "write")
    in_vain(suspicion, shard, [0] * (VAIN_MAX - 1))
    suspicion.died_alone(hand(7, 1, "write"), "signal 11", certain=True)
    assert suspicion.in_vain(shard, 0) == ""


def test_a_source_that_says_not_how_many_is_at_fault_eventually() -> None:
    assert in_vain(Suspicion(["read"], ["write"]), hand(7, 0, "read"), [0] * VAIN_MAX)[-1] == "read"


def test_a_record_that_is_alone_in_hand_is_no_death_in_vain() -> None:
    assert set(in_vain(Suspicion(["read"], ["write"]), hand(7, 1, "write"), [0] * 3 * VAIN_MAX)) == {""}
